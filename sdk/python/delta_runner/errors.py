"""What a handler raises to say how its call ended, and what the runner says in its name.

Owns the exceptions. Refuses a delay that JSON cannot say.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, Optional, Union

from .outcome import CANCELLED

#: The type of an error for parameters that a handler does not take.
INVALID_PARAMS = "invalid_params"
#: The type of an error for a result that is no JSON, or larger than a frame may be.
INVALID_RESULT = "invalid_result"
#: The type of an error for a request whose id another one has that is not answered yet (RQ-20).
DUPLICATE_REQUEST = "duplicate_request"
#: The type of an error for a request that came, or was still waiting, when the runner was told to
#: end. Nothing of it was begun.
SHUTTING_DOWN = "shutting_down"


class Failure(Exception):
    """An error with more than a message: a type and a code for policy, details for people."""

    def __init__(
        self,
        message: str,
        *,
        type: Optional[str] = None,
        code: Optional[str] = None,
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.type = type
        self.code = code
        self.details = details


class InvalidParams(Failure):
    """The parameters are not what the handler takes."""

    def __init__(self, message: str) -> None:
        super().__init__(message, type=INVALID_PARAMS)


class Cancelled(Failure):
    """Raised by `Context.raise_if_cancelled` where the call was taken back."""

    def __init__(self) -> None:
        super().__init__("Job cancelled", type=CANCELLED)


class Retry(Exception):
    """Asks for another try, after so many seconds if the caller allows it.

    Without `after` the caller's own backoff decides.
    """

    def __init__(
        self,
        message: str = "The handler asks for another try",
        *,
        after: Union[float, timedelta, None] = None,
    ) -> None:
        super().__init__(message)
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if seconds is not None and not math.isfinite(seconds):
            raise ValueError(f"after must be a number of seconds, not {seconds}")
        self.after = None if seconds is None else float(seconds)
