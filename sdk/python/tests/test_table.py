"""How real workers and runners behave on the wire, row by row: the table that every SDK is put to,
so that all of them answer alike."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any, Dict

from .harness import Caller, RunnerCase, RunnerProcess, deadline_in, request

TABLE = Path(__file__).resolve().parents[3] / "protocol/runner/v2/runners.json"


class Table(RunnerCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.runner = RunnerProcess(app="tests.table:app")
        cls.addClassCleanup(cls.runner.close)

    def setUp(self) -> None:
        super().setUp()
        #: Whom the steps of a row are about.
        self.asked = self.runner

    # RQ-1, RQ-4, RQ-6, RQ-10 … RQ-16, RQ-18 … RQ-29, RQ-31 … RQ-44, A52
    def test_every_row(self) -> None:
        rows = json.loads(TABLE.read_text())["rows"]
        self.assertGreater(len(rows), 30)
        for row in rows:
            with self.subTest(row["row"]):
                self.converse(row)

    def test_every_end(self) -> None:
        for row in json.loads(TABLE.read_text())["ends"]:
            with self.subTest(row["row"]):
                limit = str(row.get("limit", 64))
                self.asked = self.start("--limit", limit, "--grace", "600", app="tests.table:app")
                self.converse(row)

    def converse(self, row: Dict[str, Any]) -> None:
        self.connections = {"": self.caller(self.asked)}
        try:
            for step in row["steps"]:
                self.take(step)
        finally:
            for connection in self.connections.values():
                connection.close()

    def take(self, step: Dict[str, Any]) -> None:
        on = self.connections.get(step.get("on", ""))
        assert on is not None
        if "open" in step:
            self.connections[step["open"]] = self.caller(self.asked)
        elif "close" in step:
            self.connections[step["close"]].close()
        elif "half_close" in step:
            self.connections[step["half_close"]].socket.shutdown(socket.SHUT_WR)
        elif "closed" in step:
            self.assertTrue(self.connections[step["closed"]].is_closed())
        elif "hex" in step:
            on.send_bytes(bytes.fromhex(step["hex"]))
        elif "text" in step:
            send_text(on, step["text"].encode())
        elif "say" in step:
            on.send(step["say"]["type"], step["say"]["payload"])
        elif "ask" in step:
            self.ask(on, step)
        elif "end" in step:
            self.asked.process.send_signal(signal.Signals["SIG" + step["end"]])
        elif "refuses" in step:
            self.asked.refuses()
        elif "exits" in step:
            self.assertEqual(self.asked.ended(), step["exits"])
        else:
            self.hear(on, step)

    def ask(self, on: Caller, step: Dict[str, Any]) -> None:
        for number in range(step.get("times", 1)):
            payload = asked(step)
            if "times" in step:
                payload["request_id"] += f"-{number}"
            data = json.dumps({"type": "request", "payload": payload}).encode()
            if "fill" in step:
                payload["params"] = {"x": "x" * (step["fill"] - len(data) - len('"x": ""'))}
                data = json.dumps({"type": "request", "payload": payload}).encode()
                self.assertEqual(len(data), step["fill"])
            send_text(on, data)

    def hear(self, on: Caller, step: Dict[str, Any]) -> None:
        heard = set()
        for _ in range(step.get("times", 1)):
            answer = on.receive()
            heard.add(answer["request_id"])
            for name, wanted in step["hear"].items():
                self.assert_member(answer.get(name), wanted, answer)
        self.assertEqual(len(heard), step.get("times", 1), "each is answered once")

    def assert_member(self, said: Any, wanted: Any, answer: Any) -> None:
        if isinstance(wanted, dict) and "begins" in wanted:
            wanted = dict(wanted)
            begins = wanted.pop("begins")
            self.assertTrue(said["message"].startswith(begins), answer)
            said = {name: value for name, value in said.items() if name != "message"}
        self.assertEqual(said, wanted, answer)


def asked(step: Dict[str, Any]) -> Dict[str, Any]:
    """The request of a step: what it changes, and the rest as usual."""
    changes = dict(step["ask"])
    context = dict(changes.pop("context", {}))
    if isinstance(context.get("deadline"), dict):
        context["deadline"] = deadline_in(context["deadline"]["in"])
    payload = {**request("echo", {}, "r", "j", **context), **changes}
    for name in step.get("without", []):
        del payload[name]
    return payload


def send_text(on: Caller, data: bytes) -> None:
    on.send_bytes(len(data).to_bytes(4, "big") + data)
