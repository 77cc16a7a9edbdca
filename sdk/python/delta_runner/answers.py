"""What is answered: the outcome of every way a call can end.

Owns the words that go over the wire, and that there always is an answer which fits into a frame.
Refuses to let a traceback out unless it was asked for: whoever may see a job's error may not be
meant to see the code.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any, Optional

from .errors import DUPLICATE_REQUEST, INVALID_RESULT, SHUTTING_DOWN, Failure, Retry
from .frames import MAX_FRAME_BYTES, TooLarge
from .outcome import (
    CANCELLED,
    ERROR,
    HANDLER_NOT_FOUND,
    RETRY,
    SUCCESS,
    TIMEOUT,
    ErrorInfo,
    Outcome,
)
from .protocol import NotJson, frame
from .request import ExecutionRequest, RefusedRequest

log = logging.getLogger("delta_runner")


def succeeded(request: ExecutionRequest, result: Any) -> Outcome:
    return Outcome(request.request_id, request.job_id, SUCCESS, result=result)


def raised(request: ExecutionRequest, error: BaseException, tracebacks: bool) -> Outcome:
    """The outcome of a handler that raised. What nobody foresaw goes to the log with its
    traceback."""
    message = _message(error)
    if isinstance(error, Retry):
        outcome = _outcome(request, RETRY, ErrorInfo(message))
        return Outcome(**{**vars(outcome), "retry_after_seconds": error.after})
    if isinstance(error, Failure):
        return _outcome(request, ERROR, ErrorInfo(message, error.type, error.code, error.details))
    log.error("%s of job %s raised", request.function_name, request.job_id, exc_info=error)
    details = None
    if tracebacks:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        details = {"traceback": "".join(lines)}
    return _outcome(request, ERROR, ErrorInfo(message, details=details))


def cancelled(request: ExecutionRequest, message: str = "Job cancelled") -> Outcome:
    return _outcome(request, ERROR, ErrorInfo(message, CANCELLED))


def timed_out(request: ExecutionRequest, message: str) -> Outcome:
    return _outcome(request, TIMEOUT, ErrorInfo(message, TIMEOUT))


def not_found(request: ExecutionRequest) -> Outcome:
    message = f"No handler registered for function '{request.function_name}'"
    return _outcome(request, ERROR, ErrorInfo(message, HANDLER_NOT_FOUND))


def duplicate(request: ExecutionRequest) -> Outcome:
    message = "a request of this id is in flight"
    return _outcome(request, ERROR, ErrorInfo(message, DUPLICATE_REQUEST))


def shutting_down(request: ExecutionRequest) -> Outcome:
    message = "The runner is shutting down; nothing of this was begun"
    return _outcome(request, RETRY, ErrorInfo(message, SHUTTING_DOWN))


def refused(request: RefusedRequest) -> Optional[Outcome]:
    """The answer to a request that cannot be carried out; none where it is not known what to
    answer."""
    if request.request_id is None:
        return None
    job_id = "unknown" if request.job_id is None else request.job_id
    return Outcome(request.request_id, job_id, ERROR, error=ErrorInfo(request.why))


def frame_of_answer(outcome: Outcome) -> bytes:
    """The frame of an outcome, or of an error that says why there is none."""
    try:
        return frame(outcome)
    except NotJson as wrong:
        what, why = ("result", str(wrong))
    except TooLarge:
        what, why = ("answer", f"it is larger than {MAX_FRAME_BYTES} bytes")
    if outcome.error is not None:
        return frame(_without_details(outcome, outcome.error))
    error = ErrorInfo(f"The {what} cannot be sent: {_sendable(why)}", INVALID_RESULT)
    log.error("job %s: %s", outcome.job_id, error.message)
    return frame(Outcome(outcome.request_id, outcome.job_id, ERROR, error=error))


#: Characters of a message whose error was too large as a whole: enough to know it by.
_KEPT = 1000


def _without_details(outcome: Outcome, error: ErrorInfo) -> Outcome:
    """An error keeps its meaning though its details cannot be sent."""
    log.error("job %s: the details of its error cannot be sent", outcome.job_id)
    kind = error.type if isinstance(error.type, str) else None
    code = error.code if isinstance(error.code, str) else None
    kind, code = (text and _sendable(text) for text in (kind, code))
    short = ErrorInfo(_sendable(error.message), kind, code)
    return Outcome(**{**vars(outcome), "result": None, "error": short})


def _message(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:
        # Also an exception that cannot say what it is has an answer.
        return type(error).__name__


def _sendable(text: str) -> str:
    return text[:_KEPT].encode("utf-8", "backslashreplace").decode()


def _outcome(request: ExecutionRequest, status: str, error: ErrorInfo) -> Outcome:
    return Outcome(request.request_id, request.job_id, status, error=error)
