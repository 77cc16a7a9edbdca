"""How a runner behaves on the wire: a real process, driven as real callers drive one.

Where other runtimes close a connection over one request that is wrong in itself, this one refuses
that request and goes on, as the vectors say.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time

from .harness import Caller, RunnerCase, deadline_in, eventually, request

MIB = 1024 * 1024


class Answers(RunnerCase):
    # RQ-14, RQ-29, RQ-35
    def test_success(self) -> None:
        for function in ("echo", "plain_echo"):
            answer = self.caller().ask(function, k="v", name="Zoë \u2603")
            wanted = {"k": "v", "name": "Zoë \u2603"}
            self.assertEqual(
                answer,
                {"request_id": "req-1", "job_id": "job-1", "status": "success", "result": wanted},
            )

    # RQ-33: no type and no traceback, which goes to stderr.
    def test_a_handler_that_raises(self) -> None:
        for function in ("boom", "plain_boom"):
            answer = self.caller().ask(function)
            self.assertEqual(answer["status"], "error")
            self.assertEqual(answer["error"], {"message": "boom"})
            eventually("a traceback", lambda: f"in {function}" in self.runner.stderr())

    # RQ-36
    def test_an_error_with_everything_in_it(self) -> None:
        answer = self.caller().ask("fail", details={"a": [1]})
        error = {"message": "m", "type": "t", "code": "c", "details": {"a": [1]}}
        self.assertEqual((answer["status"], answer["error"]), ("error", error))
        answer = self.caller().ask("fail_oddly")
        error = {"message": "odd \\ud800", "type": "t", "code": "c"}
        self.assertEqual(answer["error"], error)

    # RQ-22, RQ-37
    def test_nobody_handles_the_function(self) -> None:
        error = self.caller().ask("nosuch")["error"]
        self.assertEqual(error["type"], "handler_not_found")
        self.assertEqual(error["message"], "No handler registered for function 'nosuch'")

    # RQ-31, RQ-38
    def test_a_retry_after_a_while(self) -> None:
        answer = self.caller().ask("later", after=2.5)
        self.assertEqual((answer["status"], answer["retry_after_seconds"]), ("retry", 2.5))
        self.assertEqual(answer["error"]["message"], "later")
        self.assertNotIn("retry_after_seconds", self.caller().ask("later"))

    def test_a_handler_that_leaves_or_cancels_itself_takes_nobody_along(self) -> None:
        caller = self.caller()
        self.assertEqual(caller.ask("leave")["status"], "error")
        answer = caller.ask("cancel_itself")
        self.assertNotEqual(answer["error"].get("type"), "cancelled")
        self.assertEqual(caller.ask("echo")["status"], "success")

    def test_a_result_that_is_no_json_is_an_error(self) -> None:
        caller = self.caller()
        for function in ("odd_result", "not_a_number"):
            answer = caller.ask(function)
            self.assertEqual((answer["status"], answer["error"]["type"]), ("error", "invalid_result"))

    # A72, RQ-24 … RQ-28
    def test_a_handler_knows_its_call(self) -> None:
        caller = self.caller()
        deadline, trace = "2099-01-01T00:00:00Z", {"traceparent": "x"}
        more = {"lease_epoch": 2**32 + 1, "deadline": deadline, "trace_context": trace}
        caller.send("request", request("describe", attempt=3, hello=[1], **more))
        known = caller.receive()["result"]
        self.assertEqual(
            known,
            {
                "job_id": "job-1",
                "request_id": "req-1",
                "attempt": 3,
                "lease_epoch": 2**32 + 1,
                "queue_name": "rrq:queue:default",
                "enqueue_time": "2026-11-15T19:29:54.444847+00:00",
                "deadline": "2099-01-01T00:00:00+00:00",
                "trace_context": trace,
                "worker_id": "rrq_worker_1",
                "cancelled": False,
            },
        )

    def test_parameters_are_checked_by_type(self) -> None:
        caller = self.caller()
        result = caller.ask("order", item="tea", count=2)["result"]
        self.assertEqual(result, {"item": "tea", "count": 2})
        listed = caller.ask("orders", orders=[{"item": "a"}, {"item": "b", "count": 3}])
        self.assertEqual(listed["result"], {"count": 4, "rush": False})
        for params, words in (
            ({"item": 1}, "params.item must be a string, not a whole number"),
            ({}, "params.item is missing"),
            ({"item": "a", "cuont": 1}, "params.cuont is not known; there is count, item"),
        ):
            error = caller.ask("order", **params)["error"]
            self.assertEqual((error["type"], error["message"]), ("invalid_params", words))


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
        caller = self.caller()
        caller.send("hello", {})
        caller.send("response", {"request_id": "x", "job_id": "y", "status": "success"})
        caller.send("request", "x")
        self.assertEqual(caller.ask("echo")["status"], "success")
        self.assertTrue(caller.is_silent())
        self.runner.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.runner.ended(), 0)
        self.assertIn("2 unknown", self.runner.stderr())
        type(self).setUpClass()

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


class Deadlines(RunnerCase):
    # RQ-26
    def test_a_deadline_that_is_past_is_a_timeout_at_once(self) -> None:
        caller, mark = self.caller(), self.mark()
        params = {"seconds": 60, "mark": str(mark)}
        caller.send("request", request("sleep", params, deadline="2025-01-01T12:05:00Z"))
        answer = caller.receive()
        self.assertEqual(answer["status"], "timeout")
        self.assertEqual(answer["error"], {"message": "Job deadline exceeded", "type": "timeout"})
        self.assertFalse(mark.exists(), "its handler was called")

    # RQ-32
    def test_a_deadline_ends_a_handler_that_runs(self) -> None:
        for function in ("sleep", "plain_sleep"):
            caller, mark = self.caller(), self.mark(function)
            params = {"seconds": 60, "mark": str(mark)}
            begun = time.monotonic()
            caller.send("request", request(function, params, deadline=deadline_in(0.5)))
            answer = caller.receive()
            self.assertGreaterEqual(time.monotonic() - begun, 0.4)
            self.assertEqual(answer["status"], "timeout")
            self.assertEqual(answer["error"]["message"], "Job execution timed out.")
            self.assertEqual(answer["error"]["type"], "timeout")
            self.wait_for(mark, "cancelled")

    def test_a_function_that_heeds_nothing_does_not_keep_the_answer(self) -> None:
        caller, mark = self.caller(), self.mark()
        params = {"seconds": 2, "mark": str(mark)}
        caller.send("request", request("deaf", params, deadline=deadline_in(0.3)))
        self.assertEqual(caller.receive()["status"], "timeout")
        self.assertNotIn("over", mark.read_text())
        self.wait_for(mark, "over")
        self.assertTrue(caller.is_silent(), "a second answer")


class Cancels(RunnerCase):
    def begin(self, function: str = "sleep", **ids: str) -> Caller:
        """A call that has begun."""
        caller, mark = self.caller(), self.mark("-".join([function, *ids.values()]))
        caller.send("request", request(function, {"seconds": 60, "mark": str(mark)}, **ids))
        self.wait_for(mark, "begun")
        return caller

    def cancel(self, **payload: object) -> None:
        """On a connection of its own, which nothing is answered on."""
        caller = self.caller()
        caller.send("cancel", {"protocol_version": "2", "hard_kill": False, **payload})
        caller.close()

    def assert_cancelled(self, caller: Caller, job_id: str = "job-1") -> None:
        answer = caller.receive()
        self.assertEqual((answer["status"], answer["job_id"]), ("error", job_id))
        self.assertEqual(answer["error"], {"message": "Job cancelled", "type": "cancelled"})
        self.assertTrue(caller.is_silent(), "a second answer")

    # RQ-16, RQ-40, RQ-41, RQ-43
    def test_by_request_and_by_job_on_a_connection_of_its_own(self) -> None:
        for function in ("sleep", "plain_sleep"):
            caller = self.begin(function, request_id="a")
            self.cancel(job_id="job-1", request_id="a")
            self.assert_cancelled(caller)
            callers = [self.begin(function, request_id=name) for name in ("b", "c")]
            self.cancel(job_id="job-1", hard_kill=True)
            for caller in callers:
                self.assert_cancelled(caller)

    # RQ-41
    def test_of_one_request_leaves_the_others_of_its_job(self) -> None:
        one, two = self.begin(request_id="one"), self.begin(request_id="two")
        self.cancel(job_id="job-1", request_id="one")
        self.assert_cancelled(one)
        self.assertTrue(two.is_silent())
        self.cancel(job_id="job-1", request_id="two")
        self.assert_cancelled(two)

    def test_of_a_request_with_a_wrong_job_answers_with_the_true_one(self) -> None:
        caller = self.begin()
        self.cancel(job_id="another", request_id="req-1")
        self.assert_cancelled(caller, "job-1")

    def test_on_the_connection_of_the_request(self) -> None:
        caller = self.begin()
        caller.send("cancel", {"protocol_version": "2", "job_id": "job-1"})
        self.assert_cancelled(caller)

    # RQ-39, RQ-44
    def test_of_another_version_or_nobody_is_ignored(self) -> None:
        caller = self.begin()
        for payload in (
            {"protocol_version": "1", "job_id": "job-1", "request_id": "req-1"},
            {"protocol_version": "2", "job_id": "job-9"},
            {"protocol_version": "2", "job_id": "job-1", "request_id": "req-9"},
            {"protocol_version": "2", "request_id": "req-1"},
        ):
            caller.send("cancel", payload)
        caller.send("request", request("echo", {}, "req-2"))
        self.assertEqual(caller.receive()["request_id"], "req-2")
        self.cancel(job_id="job-1")
        self.assert_cancelled(caller)


class Connections(RunnerCase):
    def test_a_probe_that_connects_and_goes_is_nothing(self) -> None:
        for _ in range(5):
            self.caller().close()
        caller = self.caller()
        caller.send_bytes(b"\x00\x00")
        caller.close()
        self.assertEqual(self.caller().ask("echo")["status"], "success")
        self.assertNotIn("Traceback", self.runner.stderr())

    def test_the_end_of_a_connection_ends_its_calls_unanswered(self) -> None:
        for function in ("sleep", "plain_sleep"):
            for half in (True, False):
                caller, mark = self.caller(), self.mark(f"{function}-{half}")
                params = {"seconds": 60, "mark": str(mark)}
                caller.send("request", request(function, params))
                self.wait_for(mark, "begun")
                if half:
                    caller.socket.shutdown(socket.SHUT_WR)
                    self.assertTrue(caller.is_closed(), "an answer")
                else:
                    caller.close()
                self.wait_for(mark, "cancelled")
                answer = self.caller().ask("echo")
                self.assertEqual(answer["status"], "success", "its id is free again")

    # RQ-10
    def test_frames_may_come_in_pieces_and_together(self) -> None:
        caller = self.caller()
        data = json.dumps({"type": "request", "payload": request("echo")}).encode()
        frame = len(data).to_bytes(4, "big") + data
        for byte in range(len(frame)):
            caller.send_bytes(frame[byte : byte + 1])
        self.assertEqual(caller.receive()["status"], "success")
        caller.send_bytes(frame.replace(b"req-1", b"req-2") + frame.replace(b"req-1", b"req-3"))
        answers = {caller.receive()["request_id"], caller.receive()["request_id"]}
        self.assertEqual(answers, {"req-2", "req-3"})

    # RQ-13: answers are matched by their id; each comes when it is ready.
    def test_an_answer_does_not_wait_for_the_one_before(self) -> None:
        caller, go = self.caller(), self.mark("go")
        caller.send("request", request("wait_for_file", {"path": str(go)}, "slow"))
        caller.send("request", request("echo", {}, "fast"))
        self.assertEqual(caller.receive()["request_id"], "fast")
        go.touch()
        self.assertEqual(caller.receive()["request_id"], "slow")

    # A52
    def test_a_frame_of_exactly_16_mib_is_taken_and_no_larger_one_is_sent(self) -> None:
        caller = self.caller()
        data = json.dumps({"type": "request", "payload": request("order", {"item": "X"})}).encode()
        data = data.replace(b'"X"', b'"' + b"x" * (16 * MIB - len(data) + 1) + b'"')
        self.assertEqual(len(data), 16 * MIB)
        caller.send_bytes(len(data).to_bytes(4, "big") + data)
        self.assertEqual(caller.receive()["status"], "success")
        answer = caller.ask("long", size=16 * MIB)
        self.assertEqual((answer["status"], answer["error"]["type"]), ("error", "invalid_result"))
        self.assertIn("larger than 16777216 bytes", answer["error"]["message"])
        answer = caller.ask("fail", details="x" * (16 * MIB - 1000))
        self.assertEqual(answer["error"]["type"], "t")

    # RQ-15
    def test_100_connections_at_once(self) -> None:
        callers = [self.caller() for _ in range(100)]
        for number, caller in enumerate(callers):
            params = {"seconds": 0.2}
            caller.send("request", request("sleep", params, f"req-{number}", f"job-{number}"))
        for number, caller in enumerate(callers):
            answer = caller.receive()
            self.assertEqual((answer["status"], answer["job_id"]), ("success", f"job-{number}"))

    # RQ-17
    def test_noise_on_stdout_breaks_nothing(self) -> None:
        self.assertEqual(self.caller().ask("pid")["result"], self.runner.process.pid)
        self.assertNotEqual(self.runner.process.pid, os.getpid())


class Limits(RunnerCase):
    def test_70_pipelined_run_64_at_a_time_and_none_is_busy(self) -> None:
        caller, go = self.caller(), self.mark("go")
        for number in range(70):
            params = {"path": str(go)}
            caller.send("request", request("wait_for_file", params, f"r{number}", f"j{number}"))
        # It waits behind all of them; its answer to a cancel shows that they were read.
        caller.send("request", request("echo", {}, "last", "last"))
        caller.send("cancel", {"protocol_version": "2", "job_id": "last"})
        self.assertEqual(caller.receive()["error"]["type"], "cancelled")
        go.touch()
        answers = [caller.receive() for _ in range(70)]
        self.assertEqual({answer["status"] for answer in answers}, {"success"})
        self.assertEqual(len({answer["request_id"] for answer in answers}), 70)
        self.assertEqual(caller.ask("most_at_once")["result"], 64)

    def test_a_thread_keeps_its_slot_until_it_is_over(self) -> None:
        type(self).runner.close()
        self.arguments.append("--limit=1")
        type(self).setUpClass()
        caller, mark = self.caller(), self.mark()
        caller.send("request", request("deaf", {"seconds": 1, "mark": str(mark)}, "deaf"))
        self.wait_for(mark, "begun")
        caller.send("request", request("echo", {}, "late", deadline=deadline_in(0.1)))
        self.assertEqual(caller.receive()["status"], "timeout")
        caller.send("cancel", {"protocol_version": "2", "job_id": "job-1", "request_id": "deaf"})
        self.assertEqual(caller.receive()["error"]["type"], "cancelled")
        self.assertEqual(caller.ask("echo")["status"], "success")
        self.assertIn("over", mark.read_text())
