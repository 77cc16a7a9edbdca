"""What came of a call (RQ-29 … RQ-38).

Owns the four ways a call can end and the shape of an error. Refuses, when reading, what is wrong
with an answer, and names the request it is about wherever that can be read: it hurts no other.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Optional, Union

from .members import Members, Wrong, is_text, may_text, members_of, text

SUCCESS = "success"
#: The runner wants it to be tried again.
RETRY = "retry"
#: The runner ended it for its time. Also the type of the error that says so.
TIMEOUT = "timeout"
ERROR = "error"

#: The type of an error that no retry can help: nobody handles that function (RQ-37).
HANDLER_NOT_FOUND = "handler_not_found"
#: The type of an error after a cancel (RQ-43).
CANCELLED = "cancelled"

#: The longest a runner may ask a job to wait.
MAX_RETRY_AFTER_SECONDS = 24 * 60 * 60.0


@dataclass(frozen=True)
class ErrorInfo:
    """What went wrong, for people and for policy."""

    message: str
    type: Optional[str] = None
    code: Optional[str] = None
    details: Any = None


@dataclass(frozen=True)
class RetryAfter:
    """How long a job should wait before the next try."""

    seconds: float
    #: The runner said something else, which no schedule has.
    clamped: bool


# Not frozen: there is one for every call, and a frozen one takes four times as long.
@dataclass
class Outcome:
    """The answer to one request."""

    request_id: str
    job_id: str
    status: str
    result: Any = None
    error: Optional[ErrorInfo] = None
    retry_after_seconds: Optional[float] = None

    def is_handler_not_found(self) -> bool:
        """Nobody handles that function: no other try will help (RQ-37)."""
        kind = self.error.type if self.error else None
        return self.status == ERROR and kind == HANDLER_NOT_FOUND

    def retry_after(self) -> Optional[RetryAfter]:
        """The delay that a retry asks for, within what a schedule has (RQ-38, A48)."""
        said = self.retry_after_seconds
        if said is None or self.status != RETRY:
            return None
        within = 0.0 if math.isnan(said) else min(max(said, 0.0), MAX_RETRY_AFTER_SECONDS)
        return RetryAfter(within, within != said)


@dataclass(frozen=True)
class Response:
    """What a runner sent as an answer."""

    #: Absent where it cannot be told which request it answers (RQ-34).
    request_id: Optional[str]
    #: What is wrong with the answer, or the answer.
    outcome: Union[Outcome, str]


def read_response(payload: Any) -> Response:
    try:
        members = members_of(payload, "payload")
    except Wrong as wrong:
        return Response(None, str(wrong))
    request_id = members.get("request_id")
    request_id = request_id if is_text(request_id) and request_id else None
    try:
        return Response(request_id, _outcome(members))
    except Wrong as wrong:
        return Response(request_id, str(wrong))


def _outcome(members: Members) -> Outcome:
    status = text(members, "status")
    if status not in (SUCCESS, RETRY, TIMEOUT, ERROR):
        raise Wrong(f"status {json.dumps(status[:40])} is none of the protocol's")
    after = members.get("retry_after_seconds")
    if after is not None:
        if isinstance(after, bool) or not isinstance(after, (int, float)):
            raise Wrong("retry_after_seconds must be a number")
        # A number that no float can hold is as long as any.
        after = float(min(max(after, -1e300), 1e300))
    error = members.get("error")
    if error is not None:
        error = _error(members_of(error, "error"))
    request_id, job_id = text(members, "request_id"), text(members, "job_id")
    return Outcome(request_id, job_id, status, members.get("result"), error, after)


def _error(members: Members) -> ErrorInfo:
    """Whatever is odd about an error, its message is worth having."""

    def odd(name: str) -> Optional[str]:
        try:
            return may_text(members, name)
        except Wrong:
            return None

    return ErrorInfo(odd("message") or "", odd("type"), odd("code"), members.get("details"))
