"""The RRQ Runner Protocol, version 2: what an agent and a language runner say to each other over a
loopback socket.

`Frames` cuts a stream of bytes into frames, `read` says what a frame means, and `frame` makes one.
No socket, no clock and no task is in here: whoever drives it brings those.

Reading is strict about what decides (versions, ids, the shape of parameters) and lenient about the
rest: fields it does not know are left out, nulls and absent fields are the same. The vectors in
`protocol/runner/v2` hold for every language.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Dict, NoReturn, Optional, Tuple, Union

from .deep import read_deep
from .frames import MAX_FRAME_BYTES, Empty, FrameError, Frames, TooLarge, frame_of
from .instant import Instant
from .outcome import (
    CANCELLED,
    ERROR,
    HANDLER_NOT_FOUND,
    RETRY,
    SUCCESS,
    TIMEOUT,
    ErrorInfo,
    Outcome,
    Response,
    RetryAfter,
    read_response,
)
from .request import (
    PROTOCOL_VERSION,
    CancelRequest,
    ExecutionRequest,
    RefusedRequest,
    RequestContext,
    read_cancel,
    read_request,
)

__all__ = [
    "CANCELLED", "ERROR", "HANDLER_NOT_FOUND", "MAX_FRAME_BYTES", "PROTOCOL_VERSION", "RETRY",
    "SOCKET_FLAG", "SOCKET_VARIABLE", "SUCCESS", "TIMEOUT", "Cancel", "CancelRequest", "Empty",
    "ErrorInfo", "ExecutionRequest", "FrameError", "Frames", "Instant", "Message", "NotJson",
    "Outcome", "RefusedRequest", "RequestContext", "Response", "RetryAfter", "TooLarge", "Unknown",
    "Unreadable", "frame", "read", "split_function",
]  # fmt: skip

#: Where a runner is told to listen, as `host:port`; also given as `--tcp-socket`.
SOCKET_VARIABLE = "RRQ_RUNNER_TCP_SOCKET"
#: The same on the command line, which newer runners read alone.
SOCKET_FLAG = "--tcp-socket"

_NOT_WHOLE = "the message is nested too deep, or has a number with too many digits"


@dataclass(frozen=True)
class Cancel:
    #: Nothing where it cannot be meant for anybody; it has no answer either way.
    request: Optional[CancelRequest]


@dataclass(frozen=True)
class Unknown:
    """Of a later version: counted, and otherwise ignored (RQ-12)."""

    type: str


#: What can be heard.
Message = Union[ExecutionRequest, RefusedRequest, Response, Cancel, Unknown]
#: What can be sent.
Sent = Union[ExecutionRequest, CancelRequest, Outcome]


class Unreadable(Exception):
    """No message of this protocol: whoever sends it is not to be understood, and its connection
    ends. `reason` is `no_object`, `no_type` or `no_payload`."""

    def __init__(self, reason: str) -> None:
        words = {
            "no_object": "a frame is no JSON object",
            "no_type": "a message has no type",
            "no_payload": "a message has no payload",
        }
        super().__init__(words[reason])
        self.reason = reason


class NotJson(Exception):
    """A message with something in it that JSON cannot say."""


def read(data: bytes) -> Message:
    """Reads the JSON of one frame (RQ-4, RQ-11, RQ-12)."""
    envelope, whole = _parse(data)
    if not isinstance(envelope, dict):
        raise Unreadable("no_object")
    kind, payload = envelope.get("type"), envelope.get("payload")
    if not isinstance(kind, str):
        raise Unreadable("no_type")
    if payload is None:
        raise Unreadable("no_payload")
    if kind == "request":
        return read_request(payload) if whole else _not_whole(payload)
    if kind == "response":
        response = read_response(payload)
        return response if whole else Response(response.request_id, _NOT_WHOLE)
    if kind == "cancel":
        return Cancel(read_cancel(payload))
    return Unknown(kind)


def frame(message: Sent) -> bytes:
    """The frame of a message. Raises `TooLarge` and `NotJson`."""
    kind, payload = _written(message)
    try:
        # Whatever a result of an application does while it is written, there is an answer.
        data = _encode({"type": kind, "payload": payload}).encode()
    except Exception as wrong:
        raise NotJson(str(wrong)) from wrong
    return frame_of(data)


def split_function(name: str) -> Tuple[Optional[str], str]:
    """Splits `runner#handler` at the first `#`; without one there is no runner in it (RQ-45)."""
    runner, hash_sign, handler = name.partition("#")
    return (runner, handler) if hash_sign else (None, name)


def _parse(data: bytes) -> Tuple[Any, bool]:
    """What the JSON says, and whether that is the whole of it."""
    try:
        text = data.decode()
        try:
            return _decode(text), True
        except json.JSONDecodeError:
            raise
        except (RecursionError, ValueError):
            return read_deep(text, _no_number), False
    except ValueError:
        raise Unreadable("no_object") from None


def _not_whole(payload: Any) -> RefusedRequest:
    refused = read_request(payload)
    return RefusedRequest(refused.request_id, refused.job_id, _NOT_WHOLE)


def _no_number(name: str) -> NoReturn:
    """NaN and the infinities, which Python reads and JSON does not have."""
    raise json.JSONDecodeError("no number of JSON", name, 0)


def _written(message: Sent) -> Tuple[str, Dict[str, Any]]:
    payload = _given(message)
    if isinstance(message, Outcome):
        if message.error is not None:
            payload["error"] = _given(message.error)
        return "response", payload
    payload = {"protocol_version": PROTOCOL_VERSION, **payload}
    if isinstance(message, CancelRequest):
        return "cancel", payload
    payload["context"] = _given(message.context)
    return "request", payload


def _given(message: Any) -> Dict[str, Any]:
    """The members of a message that are not null."""
    return {name: value for name, value in vars(message).items() if value is not None}


def _simple(value: Any) -> Any:
    """What Python has and JSON writes otherwise."""
    if isinstance(value, Instant):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON can say")


# Made once: `json.loads` and `json.dumps` make others for every text.
_decode = json.JSONDecoder(parse_constant=_no_number).decode
_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_simple
).encode
