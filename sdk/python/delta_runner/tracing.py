"""Spans named `rrq.runner` that continue the producer's trace (RQ-28), where the application has
OpenTelemetry set up.

Owns the only import of `opentelemetry`, which may fail. Refuses to depend on it: without it, or
without a provider, a span is nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Callable, Iterator

from .request import ExecutionRequest

try:
    from opentelemetry import propagate, trace
except ImportError:
    trace = None  # type: ignore[assignment]

#: Tells a span how its call ended: a status, and the type of the error if there is one.
Ended = Callable[[str], None]


@contextmanager
def span(request: ExecutionRequest) -> Iterator[Ended]:
    """A span around the handler, current while it runs, so that spans of its own are below it."""
    if trace is None:
        yield lambda status: None
        return
    # A carrier that is malformed is read as none by the propagators: the trace begins here.
    parent = propagate.extract(request.context.trace_context or {})
    tracer = trace.get_tracer("delta_runner")
    with tracer.start_as_current_span(
        "rrq.runner", context=parent, kind=trace.SpanKind.CONSUMER, attributes=_attributes(request)
    ) as current:
        yield lambda status: _end(current, status)


def _end(current: Any, status: str) -> None:
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
