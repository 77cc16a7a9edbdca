"""Frames: four bytes of length, the highest first, and that many bytes of JSON (RQ-10).

Owns where one frame ends and the next begins, however the bytes arrive. Refuses a length of nothing
and one beyond the limit as soon as it is announced, before anything is kept for it: whoever sends
such a length has ended the connection.
"""

from __future__ import annotations

from typing import Iterator

#: Bytes of a frame's JSON, as every implementation has it.
MAX_FRAME_BYTES = 16 * 1024 * 1024

#: Bytes of the length in front.
_PREFIX = 4


class FrameError(Exception):
    """What no reader recovers from: where the next frame begins is not known any more."""


class Empty(FrameError):
    def __init__(self) -> None:
        super().__init__("a frame has no bytes")


class TooLarge(FrameError):
    """A frame that says, or would have to say, that it is larger than one may be."""

    def __init__(self, length: int) -> None:
        super().__init__(f"a frame of {length} bytes is larger than {MAX_FRAME_BYTES}")


class Frames:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def push(self, data: bytes) -> None:
        """Takes the next bytes of the stream."""
        self._held += data

    def __iter__(self) -> Iterator[bytes]:
        """The JSON of each frame that is there as a whole; each is handed out once."""
        while len(self._held) >= _PREFIX:
            length = int.from_bytes(self._held[:_PREFIX], "big")
            if length == 0:
                raise Empty
            if length > MAX_FRAME_BYTES:
                raise TooLarge(length)
            end = _PREFIX + length
            if len(self._held) < end:
                return
            json = bytes(memoryview(self._held)[_PREFIX:end])
            # Deleting at the front moves nothing: a bytearray only remembers where it begins.
            del self._held[:end]
            yield json


def frame_of(json: bytes) -> bytes:
    """The frame of this JSON."""
    if not json:
        raise Empty
    if len(json) > MAX_FRAME_BYTES:
        raise TooLarge(len(json))
    return len(json).to_bytes(_PREFIX, "big") + json
