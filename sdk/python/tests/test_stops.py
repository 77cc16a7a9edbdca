"""What ends a call before its handler does: deadlines and cancels.
"""

from __future__ import annotations

import time

from .harness import Caller, RunnerCase, deadline_in, request


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
            caller.send("request", request(function, params, deadline=deadline_in(3)))
            answer = caller.receive()
            self.assertGreaterEqual(time.monotonic() - begun, 2.9)
            self.assertEqual(answer["status"], "timeout")
            self.assertEqual(answer["error"]["message"], "Job execution timed out.")
            self.assertEqual(answer["error"]["type"], "timeout")
            self.wait_for(mark, "cancelled")

    def test_a_function_that_heeds_nothing_is_not_answered_while_it_goes_on(self) -> None:
        caller = self.caller()
        caller.send("request", request("deaf", self.deaf(), deadline=deadline_in(3)))
        self.wait_for(self.mark(), "begun")
        # Longer than its time: whoever heard an answer now would try it again beside it.
        self.assertTrue(caller.is_silent(5.0), "an answer, and it goes on")
        self.mark("go").touch()
        self.assertEqual(caller.receive()["status"], "timeout")
        self.wait_for(self.mark(), "over")
        self.assertEqual(self.caller().ask("echo")["status"], "success")
        self.assertTrue(caller.is_silent(), "a second answer")

    def test_a_coroutine_that_swallows_its_cancel_is_not_answered_either(self) -> None:
        caller = self.caller()
        caller.send("request", request("stubborn", self.deaf()))
        self.wait_for(self.mark(), "begun")
        caller.send("cancel", {"protocol_version": "2", "job_id": "job-1"})
        self.wait_for(self.mark(), "cancelled")
        self.assertTrue(caller.is_silent(0.5), "an answer, and it goes on")
        self.mark("go").touch()
        self.assertEqual(caller.receive()["error"]["type"], "cancelled")


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
