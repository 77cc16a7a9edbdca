"""What a runner refuses, and what it goes on with.

Where other runtimes close a connection over one request that is wrong in itself, this one refuses
that request and goes on, as the vectors say.
"""

from __future__ import annotations

import json
import signal

from .harness import RunnerCase, request


class Refusals(RunnerCase):
    """Each hurts its own request and no other: the connection goes on."""

    def refused(self, payload: object, why: str) -> None:
        caller = self.caller()
        caller.send("request", request("sleep", {"seconds": 0.05}, "neighbour", "job-2"))
        caller.send("request", payload)
        answers = {answer["request_id"]: answer for answer in (caller.receive(), caller.receive())}
        self.assertEqual(answers["neighbour"]["status"], "success")
        error = answers["req-1"]["error"]
        self.assertEqual(error["message"][: len(why)], why)
        self.assertEqual(caller.ask("echo")["status"], "success")

    # RQ-1, RQ-19
    def test_another_version_a_number_and_none_are_refused(self) -> None:
        for version in ("1", "3", 2, None):
            payload = {**request("echo"), "protocol_version": version}
            self.refused(payload, "Unsupported protocol version")

    # RQ-23, RQ-24, RQ-25
    def test_what_is_wrong_in_itself_is_refused_by_name(self) -> None:
        self.refused({**request("echo"), "params": [1]}, "params must be an object")
        self.refused({**request("echo"), "context": None}, "context is missing")
        self.refused(request("echo", attempt=-1), "context.attempt must be a number from 1")
        self.refused(request("echo", deadline="2099-01-01T00:00:00"), "context.deadline must be")

    def test_params_too_deep_for_python_are_refused(self) -> None:
        deep = "[" * 100_000 + "]" * 100_000
        payload = json.dumps(request("echo", {"deep": "DEEP"})).replace('"DEEP"', deep)
        data = f'{{"type":"request","payload":{payload}}}'.encode()
        caller = self.caller()
        caller.send_bytes(len(data).to_bytes(4, "big") + data)
        self.assertIn("nested too deep", caller.receive()["error"]["message"])

    # RQ-20
    def test_an_id_that_is_in_flight_is_refused_once_on_any_connection(self) -> None:
        first, second, go = self.caller(), self.caller(), str(self.mark("go"))
        first.send("request", request("wait_for_file", {"path": go}))
        first.send("request", request("echo", {}))
        self.assertEqual(first.receive()["error"]["type"], "duplicate_request")
        self.assertEqual(second.ask("echo")["error"]["type"], "duplicate_request")
        self.mark("go").touch()
        self.assertEqual(first.receive()["result"], "found")
        self.assertEqual(second.ask("echo")["status"], "success")
        self.assertTrue(first.is_silent())

    # RQ-12
    def test_types_that_mean_nothing_here_are_ignored_and_counted(self) -> None:
        runner = self.start()
        caller = self.caller(runner)
        caller.send("hello", {})
        caller.send("response", {"request_id": "x", "job_id": "y", "status": "success"})
        caller.send("request", "x")
        self.assertEqual(caller.ask("echo")["status"], "success")
        self.assertTrue(caller.is_silent())
        runner.process.send_signal(signal.SIGTERM)
        self.assertEqual(runner.ended(), 0)
        self.assertIn("2 unknown", runner.stderr())

    # RQ-4, RQ-10, A52
    def test_what_cannot_be_read_ends_its_own_connection_only(self) -> None:
        other = self.caller()
        for data in (
            b"\x00\x00\x00\x00",
            b"\x01\x00\x00\x01",
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x01{",
            b"\x00\x00\x00\x02[]",
            b"\x00\x00\x00\x02\xff\xfe",
            b'\x00\x00\x00\x0c{"type":"x"}',
        ):
            caller = self.caller()
            caller.send_bytes(data)
            self.assertTrue(caller.is_closed(), data)
            self.assertEqual(other.ask("echo")["status"], "success")
