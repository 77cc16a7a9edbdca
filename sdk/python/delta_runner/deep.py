"""JSON that Python's reader gives up on, though it is JSON: nested a thousand deep, or with a
number of thousands of digits.

Owns the second look at such a text, which finds whose request it is: without it, one job's
parameters would end the connection that other jobs share. Refuses to guess: what it leaves out is
never handed to a handler, the request is refused.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, List

#: Far below where Python's reader ends, far above where the members of a message are.
_DEPTH = 32

_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def read_deep(text: str, parse_constant: Callable[[str], Any]) -> Any:
    """Reads it with nothing where it is too deep, and floats for all its numbers."""
    kept: List[str] = []
    depth = begin = 0
    for token in _TOKENS.finditer(text):
        sign = token.group()
        if sign in "[{":
            depth += 1
            if depth == _DEPTH:
                kept.append(text[begin : token.start()])
        elif sign in "]}":
            if depth == _DEPTH:
                kept.append("null")
                begin = token.end()
            depth -= 1
    if depth:
        raise ValueError("a bracket is open")
    kept.append(text[begin:])
    return json.loads("".join(kept), parse_int=float, parse_constant=parse_constant)
