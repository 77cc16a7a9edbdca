"""What a runner is asked to do (RQ-18 … RQ-28), and what takes it back (RQ-39 … RQ-44).

Owns what makes a request one that can be carried out. Refuses it by name of the member that is
wrong, and keeps the ids that could be read, so that the refusal reaches whoever asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Union

from .instant import Instant
from .members import Members, Wrong, is_text, may_instant, may_number, may_text, members_of, text

#: What both sides must speak (RQ-1, RQ-19).
PROTOCOL_VERSION = "2"

_MAX_ATTEMPT = 2**32 - 1
_MAX_EPOCH = 2**64 - 1


# These two are not frozen: there is one for every call, and a frozen one takes four times as long.
@dataclass
class RequestContext:
    """What a function may know of its call, as it is on the wire."""

    job_id: str
    #: From 1.
    attempt: int
    enqueue_time: Instant
    queue_name: str
    deadline: Optional[Instant] = None
    #: What continues the producer's trace. What is no text in it is left out.
    trace_context: Optional[Dict[str, str]] = None
    worker_id: Optional[str] = None
    #: Grows with every lease of the job. Absent where the caller has no leases.
    lease_epoch: Optional[int] = None


@dataclass
class ExecutionRequest:
    """One call of a function."""

    request_id: str
    job_id: str
    function_name: str
    params: Dict[str, Any]
    context: RequestContext


@dataclass(frozen=True)
class RefusedRequest:
    """A request that cannot be carried out, and what of it could be read."""

    request_id: Optional[str]
    job_id: Optional[str]
    #: What is wrong with it, in a sentence.
    why: str


@dataclass(frozen=True)
class CancelRequest:
    """Ends the work of a job, or one call of it."""

    job_id: str
    #: Only this call; all of the job when absent.
    request_id: Optional[str] = None
    #: The caller ends the process itself, whatever the runner makes of this (RQ-42).
    hard_kill: bool = False


def read_request(payload: Any) -> Union[ExecutionRequest, RefusedRequest]:
    try:
        members = members_of(payload, "payload")
    except Wrong as wrong:
        return RefusedRequest(None, None, str(wrong))
    try:
        return _request(members)
    except Wrong as wrong:
        ids = [members.get(name) for name in ("request_id", "job_id")]
        request_id, job_id = (value if is_text(value) else None for value in ids)
        return RefusedRequest(request_id or None, job_id, str(wrong))


def read_cancel(payload: Any) -> Optional[CancelRequest]:
    """Nothing when it cannot be meant for anybody: a cancel has no answer, so there is nobody to
    tell."""
    try:
        members = members_of(payload, "payload")
        _check_version(members)
        job_id, request_id = text(members, "job_id"), may_text(members, "request_id")
    except Wrong:
        return None
    return CancelRequest(job_id, request_id, members.get("hard_kill") is True)


def _request(members: Members) -> ExecutionRequest:
    _check_version(members)
    job_id = text(members, "job_id")
    if "params" not in members:
        raise Wrong("params is missing")
    params = members_of(members["params"], "params")
    if members.get("context") is None:
        raise Wrong("context is missing")
    within = members_of(members["context"], "context")
    try:
        context = _context(within)
    except Wrong as wrong:
        raise Wrong(f"context.{wrong}") from None
    if context.job_id != job_id:
        raise Wrong("context.job_id is not job_id")
    request_id, function_name = text(members, "request_id"), text(members, "function_name")
    return ExecutionRequest(request_id, job_id, function_name, params, context)


def _check_version(members: Members) -> None:
    """RQ-1, RQ-19: the very text, and nothing for granted."""
    if members.get("protocol_version") != PROTOCOL_VERSION:
        words = f'this runner speaks "{PROTOCOL_VERSION}"'
        raise Wrong(f"Unsupported protocol version: {words}")


def _context(members: Members) -> RequestContext:
    enqueue_time = may_instant(members, "enqueue_time")
    job_id = text(members, "job_id")
    attempt = may_number(members, "attempt", 1, _MAX_ATTEMPT)
    if attempt is None:
        raise Wrong("attempt must be a number from 1")
    if enqueue_time is None:
        raise Wrong("enqueue_time is missing")
    return RequestContext(
        job_id=job_id,
        attempt=attempt,
        enqueue_time=enqueue_time,
        queue_name=text(members, "queue_name"),
        deadline=may_instant(members, "deadline"),
        trace_context=_trace(members.get("trace_context")),
        worker_id=may_text(members, "worker_id"),
        lease_epoch=may_number(members, "lease_epoch", 0, _MAX_EPOCH),
    )


def _trace(carrier: Any) -> Optional[Dict[str, str]]:
    """RQ-28: what is malformed in it is left out, and stops nothing."""
    if not isinstance(carrier, dict):
        return None
    return {name: value for name, value in carrier.items() if is_text(name) and is_text(value)}
