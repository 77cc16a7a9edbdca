"""Write a runner for function jobs of Delta CI, or of anything that speaks the RRQ Runner Protocol
v2.

`App` holds handlers, `Context` is what one may know of its call, `Retry` and `Failure` say how it
ended. `delta-runner module:app` serves them; `run` does so from within a program. `Client` calls
functions and waits for their results.
"""

from .client import Call, Client, FunctionFailed, ServerError
from .context import Context
from .errors import Cancelled, Failure, InvalidParams, Retry
from .handlers import App
from .main import run
from .runner import Runner

__all__ = [
    "App",
    "Call",
    "Cancelled",
    "Client",
    "Context",
    "Failure",
    "FunctionFailed",
    "InvalidParams",
    "Retry",
    "Runner",
    "ServerError",
    "run",
]
