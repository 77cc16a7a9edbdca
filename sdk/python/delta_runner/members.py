"""Reading members of a JSON object one by one, so that what is wrong with one is said by name.

Owns what counts as given: a member that is there and not null. Refuses texts that no UTF-8 can
hold, which JSON can write as half of a surrogate pair.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from .instant import Instant

Members = Dict[str, Any]


class Wrong(Exception):
    """What is wrong, and with which member."""


def members_of(value: Any, what: str) -> Members:
    if not isinstance(value, dict):
        raise Wrong(f"{what} must be an object")
    return value


def text(members: Members, name: str) -> str:
    """A text that must be there and say something."""
    value = may_text(members, name)
    if value is None:
        raise Wrong(f"{name} is missing")
    if not value:
        raise Wrong(f"{name} is empty")
    return value


def may_text(members: Members, name: str) -> Optional[str]:
    """A text that may be absent."""
    value = members.get(name)
    if value is None or is_text(value):
        return value
    raise Wrong(f"{name} must be a string")


def is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def may_number(members: Members, name: str, least: int, most: int) -> Optional[int]:
    """A whole number within bounds; nothing where it is anything else."""
    value = members.get(name)
    # In Python true is a number too; in JSON it is none.
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    return None


def may_instant(members: Members, name: str) -> Optional[Instant]:
    """An instant with its offset, which may be absent."""
    value = may_text(members, name)
    if value is None:
        return None
    read = Instant.read(value)
    if read is None:
        words = "must be an RFC 3339 time with its offset, as in 2026-01-04T08:00:00Z"
        raise Wrong(f"{name} {words}")
    return read
