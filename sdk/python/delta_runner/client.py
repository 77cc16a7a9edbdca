"""Calling functions from a program: enqueue, wait, cancel, result, over the server's HTTP API.

Owns one request at a time per call of a method, and asks again where that is safe: every enqueue
carries an idempotency key of its own, so that a lost answer makes no second call. Refuses to guess:
what the server refuses is raised with the server's words.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional

from .tracing import carrier

#: Tries of one request, and the pauses between them: a server that restarts is back by then.
TRIES = 6
PAUSE = 0.2
#: How long one question for the end waits at the server; longer waits are several questions.
EACH_WAIT = 20.0
#: The longest that a server's `Retry-After` is waited for, each time.
LONGEST_PAUSE = 30.0
#: Longer than any answer takes.
TIMEOUT = 40.0


class ServerError(Exception):
    """The server refused, or could not be reached."""

    def __init__(self, message: str, status: Optional[int] = None, code: Optional[str] = None):
        super().__init__(message)
        self.status = status
        self.code = code


class FunctionFailed(Exception):
    """The call has ended, and not with a result."""

    def __init__(self, call: "Call") -> None:
        error = call.error or {}
        super().__init__(error.get("message") or call.summary or call.cause or call.state)
        self.call = call
        #: As the handler or its runner gave them.
        self.type: Optional[str] = error.get("type")
        self.code: Optional[str] = error.get("code")
        self.details: Any = error.get("details")


@dataclass(frozen=True)
class Call:
    """A call as it stood when the server was asked."""

    id: str
    function: str
    queue: str
    state: str
    attempts: int
    cause: Optional[str]
    #: What the agent or the server says of its end.
    summary: Optional[str]
    result: Any
    error: Optional[Dict[str, Any]]
    dead_letter: bool
    #: An earlier call had the unique key, and is this one.
    existing: bool
    ended: bool

    @staticmethod
    def _of(view: Mapping[str, Any]) -> "Call":
        return Call(
            id=view["id"],
            function=view["function"],
            queue=view["queue"],
            state=view["state"],
            attempts=view["attempts"],
            cause=view.get("cause"),
            summary=view.get("summary"),
            result=view.get("result"),
            error=view.get("error"),
            dead_letter=bool(view.get("dead_letter")),
            existing=bool(view.get("existing")),
            ended="ended_at" in view,
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: the token is for the server that was named."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Client:
    """A server's address and a token of role `user`.

    Without arguments they come from `DELTA_SERVER`, and `DELTA_TOKEN` or `DELTA_TOKEN_FILE`.
    Methods block; from asyncio use `asyncio.to_thread`.
    """

    def __init__(self, server: Optional[str] = None, token: Optional[str] = None) -> None:
        server = server or os.environ.get("DELTA_SERVER")
        if not server:
            raise ValueError("which server? give one, or set DELTA_SERVER")
        self._base = server.rstrip("/")
        self._token = token or _token_of_environment()
        self._opener = urllib.request.build_opener(_NoRedirects)

    def enqueue(
        self,
        function: str,
        params: Optional[Mapping[str, Any]] = None,
        *,
        idempotency_key: Optional[str] = None,
        **options: Any,
    ) -> Call:
        """Calls `handler` or `runner#handler`. Options are the fields of the API: `queue`,
        `priority`, `delay_seconds`, `not_before`, `unique_key`, `unique_seconds`, `max_attempts`,
        `backoff_seconds`, `backoff_cap_seconds`, `timeout_seconds`, `result_ttl_seconds`,
        `trace_context`. Under a key of the caller's own it is one call, however often it is
        said."""
        body = _body(function, params, options)
        key = idempotency_key or str(uuid.uuid4())
        return Call._of(self._ask("POST", "/api/v1/functions", body, key=key))

    def enqueue_many(
        self, calls: Iterable[Mapping[str, Any]], *, idempotency_key: Optional[str] = None
    ) -> List[Call]:
        """Up to a thousand calls in one commit: `{"function": …, "params": …, …}` each."""
        bodies = []
        for call in calls:
            rest = dict(call)
            bodies.append(_body(rest.pop("function"), rest.pop("params", None), rest))
        key = idempotency_key or str(uuid.uuid4())
        made = self._ask("POST", "/api/v1/functions", {"functions": bodies}, key=key)
        return [Call._of(view) for view in made["functions"]]

    def get(self, id: str) -> Call:
        return Call._of(self._ask("GET", f"/api/v1/functions/{_quoted(id)}"))

    def wait(self, id: str, timeout: Optional[float] = None) -> Call:
        """The call once it has ended; `TimeoutError` when it has not by then."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = EACH_WAIT if until is None else min(EACH_WAIT, until - time.monotonic())
            path = f"/api/v1/functions/{_quoted(id)}?wait={max(left, 0.0):.3f}"
            call = Call._of(self._ask("GET", path))
            if call.ended:
                return call
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"{id} has not ended: {call.state}")

    def result(self, id: str, timeout: Optional[float] = None) -> Any:
        """What the handler returned; `FunctionFailed` when it ended otherwise."""
        call = self.wait(id, timeout)
        if call.state != "SUCCEEDED":
            raise FunctionFailed(call)
        return call.result

    def cancel(self, id: str, reason: Optional[str] = None) -> None:
        """Asks it to stop. One that has ended stays as it is."""
        body = {"reason": reason} if reason else {}
        self._ask("POST", f"/api/v1/runs/{_quoted(id)}/cancel", body)

    def _ask(self, method: str, path: str, body: Any = None, key: Optional[str] = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if key:
            headers["Idempotency-Key"] = key
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(TRIES):
            request = urllib.request.Request(self._base + path, data, headers, method=method)
            try:
                with self._opener.open(request, timeout=TIMEOUT) as answer:
                    said = answer.read()
                return _understood(said)
            except urllib.error.HTTPError as error:
                refused, wish = _refused(error), _wished(error)
                if error.code not in (429, 502, 503, 504):
                    raise refused from None
            except (OSError, http.client.HTTPException) as error:
                # Not there, gone in mid answer, or too slow; the same key makes no second call.
                refused = ServerError(f"the server cannot be reached: {error!r}")
                wish = 0.0
            if attempt + 1 < TRIES:
                time.sleep(max(PAUSE * 2**attempt, wish))
        raise refused


def _body(
    function: str, params: Optional[Mapping[str, Any]], options: Mapping[str, Any]
) -> Dict[str, Any]:
    body = {"function": function, "params": dict(params or {}), **options}
    trace = carrier()
    if trace:
        body.setdefault("trace_context", trace)
    return body


def _understood(said: bytes) -> Any:
    try:
        return json.loads(said)
    except ValueError:
        raise ServerError("the answer is no JSON; is this address a server's?") from None


def _refused(error: urllib.error.HTTPError) -> ServerError:
    if 300 <= error.code < 400:
        place = error.headers.get("Location")
        return ServerError(f"it answered {error.code}: the server is at {place!r}", error.code)
    try:
        said = json.loads(error.read())
        return ServerError(said["message"], error.code, said.get("code"))
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return ServerError(f"the server answered {error.code}", error.code)


def _wished(error: urllib.error.HTTPError) -> float:
    """Seconds that the server asks to wait, within bounds; a date, which servers of ours do not
    say, is none."""
    text = (error.headers.get("Retry-After") or "").strip()
    return min(float(text), LONGEST_PAUSE) if text.isascii() and text.isdecimal() else 0.0


def _quoted(id: str) -> str:
    return urllib.parse.quote(id, safe="")


def _token_of_environment() -> Optional[str]:
    if os.environ.get("DELTA_TOKEN"):
        return os.environ["DELTA_TOKEN"].strip()
    path = os.environ.get("DELTA_TOKEN_FILE")
    if path:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    return None
