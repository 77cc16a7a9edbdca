"""The handlers that the tests call, in a runner process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

from delta_runner import App, Context, Failure, Retry

app = App()
#: How many of `crowd` run now, and the most there were at once.
running = {"now": 0, "most": 0}


def leave_mark(path: str, words: str) -> None:
    """Says in a file what happened, since nobody hears the answer of an abandoned call."""
    with open(path, "a") as file:
        file.write(words + "\n")


@app.handler
async def echo(**params: Any) -> Dict[str, Any]:
    return params


@app.handler
def plain_echo(**params: Any) -> Dict[str, Any]:
    return params


@app.handler
async def boom() -> None:
    raise RuntimeError("boom")


@app.handler
def plain_boom() -> None:
    raise RuntimeError("boom")


@app.handler
async def leave() -> None:
    sys.exit(3)


@app.handler
async def cancel_itself() -> None:
    raise asyncio.CancelledError


@app.handler
async def later(after: Optional[float] = None) -> None:
    raise Retry("later", after=after)


@app.handler
async def fail(details: Any = None) -> None:
    raise Failure("m", type="t", code="c", details=details)


@app.handler
async def fail_oddly() -> None:
    raise Failure("odd \ud800", type="t", code="c", details=object())


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@app.handler
async def speechless() -> None:
    raise Speechless


@app.handler
def plain_speechless() -> None:
    raise Speechless


class Trap(Dict[str, int]):
    def items(self) -> Any:
        raise LookupError("a trap")


@app.handler
async def trap() -> object:
    return Trap(a=1)


@app.handler
async def odd_result() -> object:
    return object()


@app.handler
async def not_a_number() -> float:
    return float("nan")


@app.handler
async def long(size: int) -> str:
    return "x" * size


@app.handler
async def sleep(seconds: float, mark: Optional[str] = None) -> str:
    if mark:
        leave_mark(mark, "begun")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if mark:
            leave_mark(mark, "cancelled")
        raise
    return "slept"


@app.handler
def plain_sleep(seconds: float, context: Context, mark: Optional[str] = None) -> str:
    if mark:
        leave_mark(mark, "begun")
    if context.wait_cancelled(seconds):
        if mark:
            leave_mark(mark, "cancelled")
        context.raise_if_cancelled()
    return "slept"


@app.handler
def deaf(mark: str, go: str) -> None:
    """Heeds nothing but this file."""
    leave_mark(mark, "begun")
    while not Path(go).exists():
        time.sleep(0.01)
    leave_mark(mark, "over")


@app.handler
async def stubborn(mark: str, go: str) -> None:
    """Takes note of its cancel, and goes on."""
    leave_mark(mark, "begun")
    while not Path(go).exists():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            leave_mark(mark, "cancelled")


@app.handler
async def wait_for_file(path: str) -> str:
    """Ends when the test says so."""
    running["now"] += 1
    running["most"] = max(running.values())
    while not Path(path).exists():
        await asyncio.sleep(0.01)
    running["now"] -= 1
    return "found"


@app.handler
async def hold(path: str, go: str) -> str:
    """Says in a file that it has begun, and waits for another one."""
    leave_mark(path, str(os.getpid()))
    while not Path(go).exists():
        await asyncio.sleep(0.01)
    return "done"


left: ContextVar[str] = ContextVar("left", default="nothing")


@app.handler
async def leave_behind() -> str:
    """What another call has left in the context of this one."""
    found = left.get()
    left.set("something")
    return found


@app.handler
async def most_at_once() -> int:
    return running["most"]


@app.handler
async def describe(context: Context) -> Dict[str, Any]:
    return {
        "job_id": context.job_id,
        "request_id": context.request_id,
        "attempt": context.attempt,
        "lease_epoch": context.lease_epoch,
        "queue_name": context.queue_name,
        "enqueue_time": context.enqueue_time.isoformat(),
        "deadline": context.deadline.isoformat() if context.deadline else None,
        "trace_context": context.trace_context,
        "worker_id": context.worker_id,
        "cancelled": context.cancelled,
    }


@dataclass
class Order:
    item: str
    count: int = 1


@app.handler
def order(order: Order) -> Order:
    return order


@app.handler
def orders(orders: List[Order], rush: bool = False) -> Dict[str, Any]:
    return {"count": sum(each.count for each in orders), "rush": rush}


@app.handler
async def pid() -> int:
    print("noise on stdout", flush=True)
    return os.getpid()


def current_span_name() -> Any:
    from opentelemetry import trace

    return trace.get_current_span().given["name"]  # type: ignore[attr-defined]


@app.handler
async def span_name() -> Any:
    return current_span_name()


@app.handler
def plain_span_name() -> Any:
    return current_span_name()
