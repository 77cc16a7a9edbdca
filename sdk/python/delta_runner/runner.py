"""The runner: listens on a loopback address and carries out what it is asked for.

Owns what is in flight over all connections: an id is there once, a cancel finds its calls wherever
they came from, and the end of the process is orderly. Refuses more at a time than its limit by
letting the rest wait, never by an answer: a caller would count that as a failed try.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from typing import Callable, Deque, Dict, Iterable, Optional, Set, Tuple, Union

from . import answers
from .address import Address
from .call import Call, Slots, Stop
from .connection import Connection
from .handlers import App
from .outcome import Outcome
from .request import CancelRequest, ExecutionRequest

log = logging.getLogger("delta_runner")

#: Calls at a time: what callers send at most, so that none of theirs waits by default.
DEFAULT_LIMIT = 64
#: Seconds that running calls have to end after SIGTERM. Callers kill after five.
DEFAULT_GRACE_SECONDS = 4.0
#: Connections that wait to be accepted: more than callers open at once.
_BACKLOG = 512
#: Seconds for handlers that are cancelled at the end to notice it, and for the last answers to be
#: taken.
_LAST_MOMENT_SECONDS = 0.75
_LAST_WORDS_SECONDS = 0.5
#: How long, and how many, cancels are kept whose requests may be read after them.
_EARLY_SECONDS = 0.5
_MAX_EARLY = 256


class Runner:
    def __init__(
        self,
        app: App,
        *,
        limit: int = DEFAULT_LIMIT,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
        tracebacks: bool = False,
    ) -> None:
        if limit < 1:
            raise ValueError("a runner needs a limit of at least 1")
        self._app = app
        self._limit = limit
        self._grace = grace_seconds
        #: Whether tracebacks go to callers, in the details of an error.
        self._tracebacks = tracebacks
        #: What is not answered yet, by request_id.
        self._calls: Dict[str, Call] = {}
        #: Cancels that meant nobody, with when they came.
        self._early: Deque[Tuple[float, CancelRequest]] = deque(maxlen=_MAX_EARLY)
        self._closing = False
        self.connections: Set[Connection] = set()
        #: answered, refused, unreadable, unknown: how often.
        self.counts: Counter[str] = Counter()

    async def serve(
        self, address: Address, stop: asyncio.Event, ready: Callable[[Address], None]
    ) -> bool:
        """Serves until `stop` is set, and then ends in order; setting it again cuts the grace.

        False where a handler goes on although it was told to end.
        """
        loop = asyncio.get_running_loop()
        self._slots = Slots(self._limit)
        self._changed = asyncio.Event()
        server = await loop.create_server(
            lambda: Connection(self), address.host, address.port, backlog=_BACKLOG
        )
        ready(Address(address.host, server.sockets[0].getsockname()[1]))
        await stop.wait()
        stop.clear()
        self._closing = True
        server.close()
        await self._finish(stop)
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        log.info("the runner ends: %s", counts or "nothing was asked for")
        return self._slots.busy == 0

    def admit(self, request: ExecutionRequest) -> Union[Call, Outcome]:
        """A call, or what is answered instead of one."""
        handler = self._app.find(request.function_name)
        if request.request_id in self._calls:
            self.counts["refused"] += 1
            return answers.duplicate(request)
        if handler is None:
            return answers.not_found(request)
        if self._closing:
            return answers.shutting_down(request)
        call = Call(request, handler, self._slots, self._tracebacks)
        if call.seconds_left is not None and call.seconds_left <= 0:
            return answers.timed_out(request, "Job deadline exceeded")
        self._calls[request.request_id] = call
        if self._was_cancelled(call):
            # Once it is begun: a call ends by the same ways whenever its cancel is read.
            asyncio.get_running_loop().call_soon(call.stop, Stop.CANCELLED)
        return call

    def forget(self, call: Call) -> None:
        """It is answered, or nobody waits for it."""
        request_id = call.request.request_id
        if self._calls.get(request_id) is call:
            del self._calls[request_id]
            self._changed.set()

    def cancel(self, request: CancelRequest) -> None:
        """RQ-40, RQ-41: one call, or all of a job; nothing where there is none (RQ-44)."""
        meant = list(self._meant(request))
        for call in meant:
            call.stop(Stop.CANCELLED)
        if not meant:
            self._early.append((time.monotonic(), request))

    def connection_ended(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._changed.set()

    def _meant(self, cancel: CancelRequest) -> Iterable[Call]:
        if cancel.request_id is not None:
            # The id of a request says it all, whatever job the cancel names.
            call = self._calls.get(cancel.request_id)
            return [] if call is None else [call]
        return [call for call in self._calls.values() if call.request.job_id == cancel.job_id]

    def _was_cancelled(self, call: Call) -> bool:
        """Whether its cancel, which has a connection of its own, was read before it."""
        since = time.monotonic() - _EARLY_SECONDS
        while self._early and self._early[0][0] < since:
            self._early.popleft()
        for early in self._early:
            if call in self._meant(early[1]):
                # Once: the next request of the job is another one.
                self._early.remove(early)
                return True
        return False

    async def _finish(self, hurry: asyncio.Event) -> None:
        """What waits is given back at once, what runs may end, and is cancelled after the grace."""
        self._stop_all(lambda call: not call.begun)
        await self._until(lambda: not self._calls, self._grace, hurry)
        self._stop_all(lambda call: True)
        await self._until(lambda: not self._calls, _LAST_MOMENT_SECONDS)
        for connection in list(self.connections):
            connection.close()
        await self._until(lambda: not self.connections, _LAST_WORDS_SECONDS)

    def _stop_all(self, which: Callable[[Call], bool]) -> None:
        for call in list(self._calls.values()):
            if which(call):
                call.stop(Stop.SHUT_DOWN)

    async def _until(
        self, reached: Callable[[], bool], seconds: float, hurry: Optional[asyncio.Event] = None
    ) -> None:
        """Waits for it, but not longer than this, and not once there is hurry."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not reached() and loop.time() < end:
            self._changed.clear()
            events = [self._changed] if hurry is None else [self._changed, hurry]
            waits = [loop.create_task(event.wait()) for event in events]
            await asyncio.wait(
                waits, timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            for wait in waits:
                wait.cancel()
            if hurry is not None and hurry.is_set():
                return
