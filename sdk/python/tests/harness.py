"""A runner process and a caller of it, both real.

Everything waits for something that must happen, with an end to the waiting; nothing sleeps and
hopes.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

ROOT = Path(__file__).resolve().parent.parent
#: Longer than anything here takes on a busy machine.
PATIENCE_SECONDS = 30.0


def eventually(what: str, reached: Callable[[], Any]) -> Any:
    """The first thing that is true of it, or a failure that says what was waited for."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        found = reached()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"never: {what}")


class RunnerProcess:
    """`python -m delta_runner`, with what it says on stderr."""

    def __init__(
        self,
        *arguments: str,
        app: str = "tests.handlers:app",
        env: Optional[Dict[str, str]] = None,
        folder: Path = ROOT,
        paths: Sequence[Path] = (),
    ) -> None:
        """In this folder, with these folders to import from. Where `env` is given, the address is
        in it or in the arguments; otherwise it is any that is free."""
        command = [sys.executable, "-m", "delta_runner", app, *arguments]
        if env is None:
            command += ["--tcp-socket", "127.0.0.1:0"]
        imports = os.pathsep.join(str(path) for path in (*paths, ROOT))
        environment = {**os.environ, "PYTHONPATH": imports, **(env or {})}
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.said: List[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.address = eventually("a runner that listens", self._listening)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)

    def _listening(self) -> Any:
        if self.process.poll() is not None:
            raise AssertionError(f"the runner ended: {self.stderr()}")
        for line in list(self.said):
            if "listening on" in line:
                host, _, port = line.split()[-1].rpartition(":")
                return host.strip("[]"), int(port)
        return None

    def stderr(self) -> str:
        return "".join(self.said)

    def refuses(self) -> None:
        """Waits until it lets nobody in. Whoever waited in line when the port was closed is reset
        instead of refused, and is not in either."""

        def refused() -> bool:
            try:
                Caller(self).close()
            except ConnectionError:
                return True
            return False

        eventually("a runner that lets nobody in", refused)

    def ended(self) -> int:
        """Its exit code, once it has ended and said all it had to say."""
        code = self.process.wait(PATIENCE_SECONDS)
        self._listener.join(PATIENCE_SECONDS)
        return code

    def close(self) -> None:
        self.process.kill()
        self.ended()
        assert self.process.stderr is not None
        self.process.stderr.close()


class Caller:
    """One connection to a runner."""

    def __init__(self, runner: RunnerProcess) -> None:
        self.socket = socket.create_connection(runner.address, PATIENCE_SECONDS)

    @classmethod
    def over(cls, connection: socket.socket) -> Caller:
        """Over a connection that is there."""
        caller = cls.__new__(cls)
        caller.socket = connection
        connection.settimeout(PATIENCE_SECONDS)
        return caller

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, kind: str, payload: Any) -> None:
        data = json.dumps({"type": kind, "payload": payload}).encode()
        self.send_bytes(len(data).to_bytes(4, "big") + data)

    def receive(self) -> Dict[str, Any]:
        """The payload of the next answer."""
        length = int.from_bytes(self._exactly(4), "big")
        envelope = json.loads(self._exactly(length))
        assert envelope["type"] == "response", envelope
        payload: Dict[str, Any] = envelope["payload"]
        return payload

    def ask(self, function: str, **params: Any) -> Dict[str, Any]:
        self.send("request", request(function, params))
        return self.receive()

    def is_closed(self) -> bool:
        """Waits for the runner to close it, and takes any frame for a no."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def is_silent(self, seconds: float = 0) -> bool:
        """Whether nothing has come that was not received, nor comes within this time."""
        return not select.select([self.socket], [], [], seconds)[0]

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.socket.recv(min(count, 1 << 20))
            if not part:
                raise AssertionError("the runner closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def request(
    function: str,
    params: Optional[Dict[str, Any]] = None,
    request_id: str = "req-1",
    job_id: str = "job-1",
    **context: Any,
) -> Dict[str, Any]:
    """The payload of a request; `context` adds to its context."""
    return {
        "protocol_version": "2",
        "request_id": request_id,
        "job_id": job_id,
        "function_name": function,
        "params": params or {},
        "context": {
            "job_id": job_id,
            "attempt": 1,
            "enqueue_time": "2026-11-15T19:29:54.444847710Z",
            "queue_name": "rrq:queue:default",
            "correlation_context": None,
            "worker_id": "rrq_worker_1",
            **context,
        },
    }


def deadline_in(seconds: float) -> str:
    at = time.time_ns() + int(seconds * 10**9)
    whole, fraction = divmod(at, 10**9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{fraction:09}Z"


class RunnerCase(unittest.TestCase):
    """One runner process for all tests of a class, and a folder for each test."""

    runner: RunnerProcess

    @classmethod
    def setUpClass(cls) -> None:
        cls.runner = RunnerProcess()
        cls.addClassCleanup(cls.runner.close)

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.folder = Path(folder.name)
        self.addCleanup(folder.cleanup)

    def start(self, *arguments: str, **more: Any) -> RunnerProcess:
        """A runner of this test alone."""
        runner = RunnerProcess(*arguments, **more)
        self.addCleanup(runner.close)
        return runner

    def caller(self, runner: Optional[RunnerProcess] = None) -> Caller:
        caller = Caller(runner or self.runner)
        self.addCleanup(caller.close)
        return caller

    def mark(self, name: str = "mark") -> Path:
        return self.folder / name

    def deaf(self) -> Dict[str, Any]:
        """The parameters of a function that ends when `go` is there."""
        return {"mark": str(self.mark()), "go": str(self.mark("go"))}

    def wait_for(self, mark: Path, words: str) -> None:
        eventually(f"{words} in {mark.name}", lambda: mark.exists() and words in mark.read_text())
