"""Threads for plain functions, kept for the next one.

Owns the threads: there are as many as plain functions ever ran at once, which the slots of the
runner bound. Refuses to wait for any of them at the end of the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from queue import SimpleQueue
from typing import Any, Callable, List

Work = Callable[[], None]


class Threads:
    """Only the loop's own thread calls this."""

    def __init__(self) -> None:
        #: What each thread that has nothing to do takes its next work from.
        self._idle: List[SimpleQueue[Work]] = []

    def run(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Runs a function, which must not raise, and gives its result when it is really over."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        inbox = self._idle.pop() if self._idle else _start()

        def over(result: Any) -> None:
            self._idle.append(inbox)
            if not future.done():
                future.set_result(result)

        def run() -> None:
            result = context.run(work)
            try:
                loop.call_soon_threadsafe(over, result)
            except RuntimeError:
                # The loop is closed: the runner ended before its function.
                pass

        inbox.put(run)
        return future


def _start() -> SimpleQueue[Work]:
    inbox: SimpleQueue[Work] = SimpleQueue()

    def serve() -> None:
        while True:
            inbox.get()()

    threading.Thread(target=serve, name="delta-runner handler", daemon=True).start()
    return inbox
