"""Spans named `rrq.runner` that continue the producer's trace (RQ-28), where the application has
OpenTelemetry set up.

Owns the only import of `opentelemetry`, which may fail. Refuses to depend on it: without it, or
without a provider, a span is nothing, and one that fails is left out.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Callable, ContextManager, Iterator

from .request import ExecutionRequest

try:
    from opentelemetry import propagate, trace
except ImportError:
    trace = None  # type: ignore[assignment]

log = logging.getLogger("delta_runner")

#: Tells a span how its call ended.
Ended = Callable[[str], None]


def span(request: ExecutionRequest) -> ContextManager[Ended]:
    """A span around the handler, current while it runs, so that spans of its own are below it."""
    return _NO_SPAN if trace is None else _span(request)


def _ignore(status: str) -> None:
    pass


_NO_SPAN = nullcontext(_ignore)


@contextmanager
def _span(request: ExecutionRequest) -> Iterator[Ended]:
    spans = ExitStack()
    current = _quietly(lambda: spans.enter_context(_started(request)))
    try:
        yield lambda status: _quietly(lambda: _end(current, status))
    finally:
        _quietly(spans.close)


def _quietly(step: Callable[[], Any]) -> Any:
    """A trace that is lost is no reason to lose a call."""
    try:
        return step()
    except Exception:
        log.warning("a span is lost", exc_info=True)
        return None


def _started(request: ExecutionRequest) -> Any:
    # A carrier that is malformed is read as none by the propagators: the trace begins here.
    parent = propagate.extract(request.context.trace_context or {})
    tracer = trace.get_tracer("delta_runner")
    kind, attributes = trace.SpanKind.CONSUMER, _attributes(request)
    return tracer.start_as_current_span(
        "rrq.runner", context=parent, kind=kind, attributes=attributes
    )


def _end(current: Any, status: str) -> None:
    if current is None:
        return
    current.set_attribute("rrq.status", status)
    if status != "success":
        current.set_status(trace.Status(trace.StatusCode.ERROR, status))


def _attributes(request: ExecutionRequest) -> dict[str, Any]:
    context = request.context
    attributes = {
        "rrq.job_id": request.job_id,
        "rrq.function_name": request.function_name,
        "rrq.queue_name": context.queue_name,
        "rrq.attempt": context.attempt,
        "rrq.worker_id": context.worker_id,
        "delta.lease_epoch": context.lease_epoch,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def carrier() -> dict[str, str]:
    """The current trace, to be handed on with a call (RQ-28); empty where there is none."""
    found: dict[str, str] = {}
    if trace is not None:
        _quietly(lambda: propagate.inject(found))
    return found
