"""One call, from its arrival to its one outcome.

Owns the race between the handler's end, its deadline, a cancel and the end of the connection: the
first decides, and there is one outcome. Refuses to let a handler's exception of any kind, an exit
included, reach the loop.
"""

from __future__ import annotations

import asyncio
import enum
import time
from typing import Any, Callable, Optional, Set

from . import answers, tracing
from .context import Context
from .errors import Failure
from .handlers import Handler
from .outcome import CANCELLED, TIMEOUT, Outcome
from .request import ExecutionRequest
from .threads import Threads

#: How long an answer waits for a handler to notice that it was stopped. Most end at once, and then
#: the answer means that nothing of the work goes on; one that does not notice must not keep the
#: answer from whoever waits for it.
SETTLE_SECONDS = 0.25


class Stop(enum.Enum):
    """Why a call ends before its handler does."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    #: Its connection is gone: nobody hears the answer.
    ABANDONED = "abandoned"
    SHUT_DOWN = "shut down"


class Slots:
    """How many calls run at a time. A call keeps its slot until its work is really over."""

    def __init__(self, limit: int) -> None:
        self._free = asyncio.Semaphore(limit)
        self.busy = 0
        self.threads = Threads()

    async def take(self) -> None:
        await self._free.acquire()
        self.busy += 1

    def give_back(self) -> None:
        self.busy -= 1
        self._free.release()


class Call:
    def __init__(
        self, request: ExecutionRequest, handler: Handler, slots: Slots, tracebacks: bool
    ) -> None:
        self.request = request
        #: Whether its handler was called.
        self.begun = False
        self._handler = handler
        self._slots = slots
        self._tracebacks = tracebacks
        self._context = Context(request)
        self._stopped: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()

    def stop(self, why: Stop) -> None:
        """Ends it; only the first reason counts."""
        if not self._stopped.done():
            self._context.cancel_event.set()
            self._stopped.set_result(why)

    async def outcome(self) -> Optional[Outcome]:
        """Nothing where nobody waits for it any more."""
        left = self._seconds_left()
        if left is not None and left <= 0:
            return answers.timed_out(self.request, "Job deadline exceeded")
        loop = asyncio.get_running_loop()
        timer = loop.call_later(left, self.stop, Stop.TIMEOUT) if left is not None else None
        work = loop.create_task(self._work())
        first: Set[asyncio.Future[Any]] = {work, self._stopped}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if work.done() and not work.cancelled():
                return work.result()
            work.cancel()
            await asyncio.wait({work}, timeout=SETTLE_SECONDS)
            return self._stopped_outcome()
        finally:
            if timer is not None:
                timer.cancel()

    def _seconds_left(self) -> Optional[float]:
        deadline = self.request.context.deadline
        return None if deadline is None else (deadline.nanoseconds - time.time_ns()) / 1e9

    def _stopped_outcome(self) -> Optional[Outcome]:
        why = self._stopped.result()
        if why is Stop.ABANDONED:
            return None
        if why is Stop.TIMEOUT:
            return answers.timed_out(self.request, "Job execution timed out.")
        if why is Stop.CANCELLED:
            return answers.cancelled(self.request)
        if self.begun:
            return answers.cancelled(self.request, "The runner is shutting down")
        return answers.shutting_down(self.request)

    async def _work(self) -> Outcome:
        await self._slots.take()
        if self._stopped.done():
            # Stopped in the very moment its turn came: its handler is not called any more.
            self._slots.give_back()
            raise asyncio.CancelledError
        self.begun = True
        run = self._run_async if self._handler.is_async else self._run_plain
        with tracing.span(self.request) as ended:
            try:
                outcome = await run()
            except asyncio.CancelledError:
                ended(TIMEOUT if self._stopped.result() is Stop.TIMEOUT else CANCELLED)
                raise
            ended(outcome.status)
            return outcome

    async def _run_async(self) -> Outcome:
        try:
            return answers.succeeded(self.request, await self._call())
        except asyncio.CancelledError:
            if self._stopped.done():
                raise
            wrong = Failure("The handler was cancelled, but not by a cancel of its job")
            return answers.raised(self.request, wrong, self._tracebacks)
        except BaseException as error:  # An exit of a handler is no exit of the runner.
            return answers.raised(self.request, error, self._tracebacks)
        finally:
            self._slots.give_back()

    async def _run_plain(self) -> Outcome:
        def work() -> Outcome:
            try:
                return answers.succeeded(self.request, self._call())
            except BaseException as error:
                return answers.raised(self.request, error, self._tracebacks)

        over = self._slots.threads.run(work, self._slots.give_back)
        try:
            return await asyncio.shield(over)
        except asyncio.CancelledError:
            # Nothing ends a thread from outside: it is over when the function has noticed.
            await over
            raise

    def _call(self) -> Any:
        function: Callable[..., Any] = self._handler.function
        return function(**self._handler.arguments(self.request.params, self._context))
