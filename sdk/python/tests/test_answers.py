"""What is answered: every way a call of a handler can end, from a real process.
"""

from __future__ import annotations

from .harness import RunnerCase, eventually, request


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
        for function in ("odd_result", "not_a_number", "trap"):
            answer = caller.ask(function)
            self.assertEqual(answer["status"], "error")
            self.assertEqual(answer["error"]["type"], "invalid_result")

    def test_an_exception_without_words_is_answered_too(self) -> None:
        for function in ("speechless", "plain_speechless"):
            self.assertEqual(self.caller().ask(function)["error"], {"message": "Speechless"})

    # A72, RQ-24 … RQ-28
    def test_a_handler_knows_its_call(self) -> None:
        caller = self.caller()
        deadline, trace = "2099-01-01T00:00:00Z", {"traceparent": "x"}
        payload = request("describe", attempt=3, hello=[1], lease_epoch=2**32 + 1)
        payload["context"].update(deadline=deadline, trace_context=trace)
        caller.send("request", payload)
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
