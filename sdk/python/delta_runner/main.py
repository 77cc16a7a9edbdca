"""The command `delta-runner module:app`, and `run` for programs that start a runner themselves.

Owns arguments, signals and the end of the process. Refuses to start without an address and without
an application, with exit code 2 as any other wrong argument.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import math
import os
import signal
import sys
from contextlib import suppress
from typing import List, Optional

from .address import Address, NoAddress
from .handlers import App
from .parent import die_with_parent
from .protocol import SOCKET_FLAG, SOCKET_VARIABLE
from .runner import DEFAULT_GRACE_SECONDS, DEFAULT_LIMIT, Runner

#: As early as can be: a parent that ends while the application loads is missed then.
_PARENT = os.getppid()


def main(arguments: Optional[List[str]] = None) -> None:
    parser = _parser()
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        app = _load(given.app)
        address = _address(given.tcp_socket)
    except (NoAddress, _NoApp) as wrong:
        parser.error(str(wrong))
    if not given.outlive_parent:
        die_with_parent(_PARENT)
    runner = Runner(
        app, limit=given.limit, grace_seconds=given.grace, tracebacks=given.tracebacks
    )
    asyncio.run(_serve(runner, address))


def run(app: App, tcp_socket: Optional[str] = None, *, limit: int = DEFAULT_LIMIT) -> None:
    """Serves until SIGTERM or SIGINT, at this address, or that of `--tcp-socket` among the
    program's own arguments, or that of the environment. Ends with its parent, as the command
    does."""
    address = _address(tcp_socket if tcp_socket is not None else _flag(sys.argv[1:]))
    die_with_parent(_PARENT)
    asyncio.run(_serve(Runner(app, limit=limit), address))


async def _serve(runner: Runner, address: Address) -> None:
    """Serves until SIGTERM or SIGINT; a second one cuts the grace of what still runs."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:
            # Windows, where the loop knows nothing of signals.
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))

    def ready(bound: Address) -> None:
        print(f"delta-runner: listening on {bound}", file=sys.stderr, flush=True)

    if not await runner.serve(address, stop, ready):
        # Leaving the loop would wait for handlers that do not heed anything.
        _leave()


def _leave() -> None:
    """Ends the process although a handler goes on: it was told, and had its time."""
    # Whoever read this may be gone; the end comes all the same.
    with suppress(OSError, ValueError):
        print("delta-runner: a handler goes on and is left behind", file=sys.stderr, flush=True)
        sys.stdout.flush()
    logging.shutdown()
    os._exit(0)


class _NoApp(Exception):
    pass


def _load(path: str) -> App:
    module_name, _, name = path.partition(":")
    # As `python -m` has it: what is in this folder can be imported.
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module_name)
    except ModuleNotFoundError as wrong:
        if wrong.name is not None and not f"{module_name}.".startswith(f"{wrong.name}."):
            raise
        raise _NoApp(f"there is no module {module_name!r}") from None
    app = getattr(found, name or "app", None)
    if not isinstance(app, App):
        raise _NoApp(f"{path!r} is no delta_runner.App; it is given as module:app")
    return app


def _address(flag: Optional[str]) -> Address:
    """The flag, or what the environment says: callers give one of them, or both."""
    text = flag if flag is not None else os.environ.get(SOCKET_VARIABLE)
    if text is None:
        raise NoAddress(f"{SOCKET_FLAG} host:port or {SOCKET_VARIABLE} is needed")
    return Address.read(text)


def _flag(arguments: List[str]) -> Optional[str]:
    """What `--tcp-socket` says among the arguments of a program that has its own, too."""
    found = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    found.add_argument(SOCKET_FLAG)
    text: Optional[str] = found.parse_known_args(arguments)[0].tcp_socket
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="delta-runner", description="Carries out function jobs that an agent hands over."
    )
    add = parser.add_argument
    add("app", metavar="module:app", help="where the handlers are")
    add(SOCKET_FLAG, metavar="HOST:PORT", help=f"loopback address; else {SOCKET_VARIABLE}")
    add("--limit", type=_limit, default=DEFAULT_LIMIT, help="calls at a time (%(default)s)")
    add(
        "--grace", type=_seconds, default=DEFAULT_GRACE_SECONDS, metavar="SECONDS",
        help="for running calls after SIGTERM (%(default)s)",
    )  # fmt: skip
    add("--tracebacks", action="store_true", help="send tracebacks to callers")
    add("--outlive-parent", action="store_true", help="go on when the parent ends")
    return parser


def _limit(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError("is a number from 1")
    return int(text)


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError("is a number of seconds")
