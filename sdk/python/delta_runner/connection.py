"""One connection: requests in, answers out, in whatever order they are ready.

Owns which calls came over it: when it ends or is half closed, they end too, and nothing is
answered. Refuses what cannot be read by closing itself, and nothing but itself.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Dict, Optional, cast

from . import answers
from .call import Call, Stop
from .frames import FrameError, Frames
from .outcome import Outcome
from .protocol import Cancel, ExecutionRequest, Message, RefusedRequest, Unreadable, read

if TYPE_CHECKING:
    from .runner import Runner

log = logging.getLogger("delta_runner")

#: Requests of one connection that wait or run. Beyond it the connection is not read until one is
#: answered, and its end is not noticed before then; callers have at most 64 under way, so this only
#: bounds what a broken one can cost.
MAX_HELD = 1024
#: The same in bytes: four frames of the largest size.
MAX_HELD_BYTES = 64 * 1024 * 1024
#: How long a connection that is closed may take to hand over what was answered.
FLUSH_SECONDS = 5.0
#: Answers that are ready in one turn of the loop go out together, up to about so many bytes.
TOGETHER_BYTES = 64 * 1024


class Connection(asyncio.Protocol):
    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._frames = Frames()
        #: Each call with the size of its request.
        self._calls: Dict[Call, int] = {}
        self._held_bytes = 0
        self._unwritten = False
        #: Answers that the transport does not have yet.
        self._unsent = bytearray()
        #: Whether the connection is not read for now.
        self._waits = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._runner.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._frames.push(data)
        self._take()

    def eof_received(self) -> Optional[bool]:
        # Also half of an end is one: whoever waits for answers keeps its side open.
        self._abandon()
        return None

    def connection_lost(self, wrong: Optional[Exception]) -> None:
        self._abandon()
        self._runner.connection_ended(self)

    def pause_writing(self) -> None:
        # Whoever does not read its answers is not read either.
        self._unwritten = True
        self._read_or_wait()

    def resume_writing(self) -> None:
        self._unwritten = False
        self._take()

    def close(self) -> None:
        """Ends it, with what was answered handed over."""
        self._abandon()
        self._transport.close()
        asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._transport.abort)

    def _take(self) -> None:
        """Hears what has come, as far as there is room for it."""
        if self._transport.is_closing():
            return
        try:
            for json in () if self._is_full() else self._frames:
                self._hear(read(json), len(json))
                if self._is_full():
                    break
        except (FrameError, Unreadable) as wrong:
            self._runner.counts["unreadable"] += 1
            log.warning("a connection is closed: %s", wrong)
            self.close()
        self._read_or_wait()

    def _hear(self, message: Message, size: int) -> None:
        if isinstance(message, ExecutionRequest):
            admitted = self._runner.admit(message)
            if isinstance(admitted, Outcome):
                self._write(admitted)
            else:
                self._begin(admitted, size)
        elif isinstance(message, RefusedRequest):
            self._runner.counts["refused"] += 1
            refusal = answers.refused(message)
            if refusal is not None:
                self._write(refusal)
        elif isinstance(message, Cancel):
            if message.request is not None:
                self._runner.cancel(message.request)
        else:
            # Of a later version, or an answer, which nobody here has asked for.
            self._runner.counts["unknown"] += 1

    def _begin(self, call: Call, size: int) -> None:
        self._calls[call] = size
        self._held_bytes += size
        call.begin(self._ended)

    def _ended(self, call: Call, outcome: Optional[Outcome]) -> None:
        # First of all: its id may be used again as soon as the answer is read.
        self._runner.forget(call)
        self._held_bytes -= self._calls.pop(call)
        if outcome is not None:
            self._write(outcome)
        if self._waits:
            # There is room for what has come in the meantime.
            self._take()

    def _write(self, outcome: Outcome) -> None:
        if self._transport.is_closing():
            return
        self._runner.counts["answered"] += 1
        is_first = not self._unsent
        self._unsent += answers.frame_of_answer(outcome)
        if not self._calls or len(self._unsent) >= TOGETHER_BYTES:
            self._flush()
        elif is_first:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        if self._unsent and not self._transport.is_closing():
            self._transport.write(self._unsent)
        # The transport may still have the other one.
        self._unsent = bytearray()

    def _abandon(self) -> None:
        # What was answered before is handed over.
        self._flush()
        for call in self._calls:
            call.stop(Stop.ABANDONED)
            # A thread may go on for a while, but its request is nobody's any more.
            self._runner.forget(call)

    def _is_full(self) -> bool:
        held = len(self._calls) >= MAX_HELD or self._held_bytes >= MAX_HELD_BYTES
        return held or self._unwritten

    def _read_or_wait(self) -> None:
        if self._transport.is_closing():
            return
        self._waits = self._is_full()
        if self._waits:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
