"""Where a runner listens: `host:port`, and only where nobody but this machine can reach it (RQ-8).

Owns the reading of that text. Refuses every address but loopback ones: the socket asks nobody who
they are.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass


class NoAddress(ValueError):
    """The text names nowhere to listen, or somewhere that others could reach."""


@dataclass(frozen=True)
class Address:
    host: str
    #: 0 for any that is free; which one it became is printed.
    port: int

    @staticmethod
    def read(text: str) -> Address:
        host, colon, port = text.rpartition(":")
        # No signs, blanks or digits of other scripts, which int() would take.
        if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
            raise NoAddress(f"{text!r} is not host:port, as in 127.0.0.1:9000")
        return Address(_loopback(host), int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _loopback(host: str) -> str:
    if host == "localhost":
        # Not looked up: a hosts file could say that it is anywhere.
        return "127.0.0.1"
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        raise NoAddress(f"{host!r} is no address of this machine's loopback") from None
    if not address.is_loopback or getattr(address, "scope_id", None):
        raise NoAddress(f"{host!r} is no loopback address; others could reach it")
    return str(address)
