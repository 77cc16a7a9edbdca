"""What a handler may know of its call.

Owns the sign that the call was taken back, which a plain function looks at and an async one need
not: its task is cancelled. Refuses nothing; all of it is for reading.
"""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import Dict, Optional

from .errors import Cancelled
from .request import ExecutionRequest


class Context:
    """Handed to every handler that asks for it."""

    def __init__(self, request: ExecutionRequest) -> None:
        wire = self._wire = request.context
        self.request_id = request.request_id
        self.job_id = request.job_id
        self.function_name = request.function_name
        #: From 1.
        self.attempt = wire.attempt
        #: Grows with every lease of the job: a store that keeps the largest it has seen, and
        #: refuses smaller ones, refuses late writers. Nothing where the caller has no leases.
        self.lease_epoch = wire.lease_epoch
        self.queue_name = wire.queue_name
        #: The headers that continue the producer's trace, as in `traceparent`.
        self.trace_context: Dict[str, str] = dict(wire.trace_context or {})
        self.worker_id = wire.worker_id
        #: Set once the call is taken back, past its deadline, or its caller is gone.
        self.cancel_event = threading.Event()

    @property
    def enqueue_time(self) -> datetime:
        return self._wire.enqueue_time.datetime

    @property
    def deadline(self) -> Optional[datetime]:
        """When the call is ended at the latest, in UTC."""
        return self._wire.deadline.datetime if self._wire.deadline else None

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more."""
        return self.cancel_event.is_set()

    def raise_if_cancelled(self) -> None:
        """Ends a plain function here if nobody waits for its result."""
        if self.cancelled:
            raise Cancelled

    def wait_cancelled(self, seconds: Optional[float] = None) -> bool:
        """Sleeps in a plain function, and ends early, with true, when the call is taken back."""
        return self.cancel_event.wait(seconds)

    def remaining_seconds(self) -> Optional[float]:
        """How long until the deadline; nothing where there is none."""
        if self.deadline is None:
            return None
        return (self.deadline - datetime.now(timezone.utc)).total_seconds()
