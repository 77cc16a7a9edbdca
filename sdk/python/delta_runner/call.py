"""One call, from its arrival to its one outcome.

Owns the race between the handler's end, its deadline, a cancel and the end of the connection: the
first decides, and there is one outcome. Refuses to let a handler's exception of any kind, an exit
included, reach the loop, and to answer while anything of the work goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import enum
import time
from collections import OrderedDict
from typing import Any, Callable, Optional, Set

from . import answers, tracing
from .context import Context
from .errors import Failure
from .handlers import Handler
from .outcome import CANCELLED, TIMEOUT, Outcome
from .request import ExecutionRequest
from .threads import Threads


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
        self._limit = limit
        #: Kept here, since the loop alone would forget their tasks.
        self._running: Set[Call] = set()
        #: In the order they came.
        self._waiting: OrderedDict[Call, None] = OrderedDict()
        self.threads = Threads()

    @property
    def busy(self) -> int:
        return len(self._running)

    def take(self, call: Call) -> None:
        """Starts it, at once or when its turn comes."""
        if len(self._running) < self._limit:
            self._running.add(call)
            call.start()
        else:
            self._waiting[call] = None

    def withdraw(self, call: Call) -> None:
        """It waits no longer."""
        self._waiting.pop(call, None)

    def give_back(self, call: Call) -> None:
        self._running.discard(call)
        if self._waiting:
            self.take(self._waiting.popitem(last=False)[0])


class Call:
    def __init__(
        self, request: ExecutionRequest, handler: Handler, slots: Slots, tracebacks: bool
    ) -> None:
        self.request = request
        #: Until its deadline, when it came; nothing where it has none.
        self.seconds_left = _seconds_left(request)
        #: Whether its handler was called.
        self.begun = False
        self._handler = handler
        self._slots = slots
        self._tracebacks = tracebacks
        self._context = Context(request) if handler.takes_context else None
        #: Without what its handler sets.
        self._outside = contextvars.copy_context()
        self._why: Optional[Stop] = None
        self._timer: Optional[asyncio.TimerHandle] = None
        self._task: Optional[asyncio.Task[None]] = None

    def begin(self, ended: Callable[[Call, Optional[Outcome]], None]) -> None:
        """Sends it on its way. `ended` is told its one outcome, or nothing where nobody waits for
        it any more; never before this has returned."""
        self._ended = ended
        if self.seconds_left is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.seconds_left, self.stop, Stop.TIMEOUT)
        self._slots.take(self)

    def start(self) -> None:
        """It has its slot."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    def stop(self, why: Stop) -> None:
        """Ends it; only the first reason counts."""
        if self._why is not None:
            return
        self._why = why
        if self._context is not None:
            self._context.cancel_event.set()
        if self._task is None:
            self._slots.withdraw(self)
            asyncio.get_running_loop().call_soon(self._end, self._stopped_outcome(why))
        elif self.begun:
            # The answer says that nothing of it goes on, and whoever hears it may try again. One
            # that notices nothing is never answered: its caller ends this process when its grace
            # is over, which alone frees the thread.
            self._task.cancel()

    def _end(self, outcome: Optional[Outcome]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ended(self, outcome)

    def _stopped_outcome(self, why: Stop) -> Optional[Outcome]:
        if why is Stop.ABANDONED:
            return None
        if why is Stop.TIMEOUT:
            return answers.timed_out(self.request, "Job execution timed out.")
        if why is Stop.CANCELLED:
            return answers.cancelled(self.request)
        if self.begun:
            return answers.cancelled(self.request, "The runner is shutting down")
        return answers.shutting_down(self.request)

    async def _work(self) -> None:
        outcome = None
        try:
            # Stopped in the very moment its turn came, its handler is not called any more.
            if self._why is None:
                outcome = await self._handled()
        finally:
            # What begins now must not inherit what the handler set in its context.
            self._outside.run(self._over, outcome)

    def _over(self, outcome: Optional[Outcome]) -> None:
        self._slots.give_back(self)
        self._end(outcome if self._why is None else self._stopped_outcome(self._why))

    async def _handled(self) -> Optional[Outcome]:
        """Nothing where it was cancelled."""
        self.begun = True
        run = self._run_async if self._handler.is_async else self._run_plain
        with tracing.span(self.request) as ended:
            try:
                outcome = await run()
            except asyncio.CancelledError:
                ended(TIMEOUT if self._why is Stop.TIMEOUT else CANCELLED)
                return None
            ended(outcome.status)
            return outcome

    async def _run_async(self) -> Outcome:
        try:
            return answers.succeeded(self.request, await self._call())
        except asyncio.CancelledError:
            if self._why is not None:
                raise
            wrong = Failure("The handler was cancelled, but not by a cancel of its job")
            return answers.raised(self.request, wrong, self._tracebacks)
        except BaseException as error:  # An exit of a handler is no exit of the runner.
            return answers.raised(self.request, error, self._tracebacks)

    async def _run_plain(self) -> Outcome:
        def work() -> Outcome:
            try:
                return answers.succeeded(self.request, self._call())
            except BaseException as error:
                return answers.raised(self.request, error, self._tracebacks)

        over = self._slots.threads.run(work)
        try:
            return await asyncio.shield(over)
        except asyncio.CancelledError:
            # Nothing ends a thread from outside: it is over when the function has noticed.
            await over
            raise

    def _call(self) -> Any:
        function: Callable[..., Any] = self._handler.function
        return function(**self._handler.arguments(self.request.params, self._context))


def _seconds_left(request: ExecutionRequest) -> Optional[float]:
    deadline = request.context.deadline
    return None if deadline is None else (deadline.nanoseconds - time.time_ns()) / 1e9
