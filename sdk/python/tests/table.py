"""The functions that every row of `runners.json` calls; a runner in any language has the same."""

from __future__ import annotations

import asyncio
from typing import Any, Dict

from delta_runner import App, Context, Retry

app = App()


@app.handler
async def echo(context: Context, **params: Any) -> Dict[str, Any]:
    return {"params": params, "attempt": context.attempt}


@app.handler
async def size(**params: Any) -> int:
    return sum(len(value) for value in params.values())


@app.handler
async def boom() -> None:
    raise RuntimeError("boom")


@app.handler
async def later(seconds: float) -> None:
    raise Retry("later", after=seconds)


@app.handler
async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "waited"
