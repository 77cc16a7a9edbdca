"""Connections, one or many at a time, and how much runs at once.
"""

from __future__ import annotations

import json
import os
import socket

from .harness import RunnerCase, deadline_in, eventually, request

MIB = 1024 * 1024


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

    def test_an_abandoned_id_is_free_though_its_thread_goes_on(self) -> None:
        caller = self.caller()
        caller.send("request", request("deaf", self.deaf()))
        self.wait_for(self.mark(), "begun")
        caller.socket.shutdown(socket.SHUT_WR)
        self.assertTrue(caller.is_closed(), "an answer")
        self.assertEqual(self.caller().ask("echo")["status"], "success")
        self.mark("go").touch()
        self.wait_for(self.mark(), "over")

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
        caller = self.caller(self.start("--limit=1"))
        caller.send("request", request("deaf", self.deaf(), "deaf"))
        self.wait_for(self.mark(), "begun")
        caller.send("cancel", {"protocol_version": "2", "job_id": "job-1", "request_id": "deaf"})
        caller.send("request", request("echo", {}, "late", deadline=deadline_in(0.2)))
        late = caller.receive()
        self.assertEqual((late["request_id"], late["status"]), ("late", "timeout"))
        self.mark("go").touch()
        self.assertEqual(caller.receive()["error"]["type"], "cancelled")
        self.assertEqual(caller.ask("echo")["status"], "success")

    def test_one_that_waits_and_is_abandoned_takes_no_turn(self) -> None:
        runner = self.start("--limit=1")
        busy, gone, next_one = (self.caller(runner) for _ in range(3))
        busy.send("request", request("deaf", self.deaf(), "deaf"))
        self.wait_for(self.mark(), "begun")
        late = self.mark("late")
        gone.send("request", request("sleep", {"seconds": 60, "mark": str(late)}, "gone"))
        gone.send("request", request("nosuch", {}, "heard"))
        self.assertEqual(gone.receive()["request_id"], "heard")
        gone.socket.shutdown(socket.SHUT_WR)
        self.assertTrue(gone.is_closed(), "an answer")
        next_one.send("request", request("echo", {}, "next"))
        self.mark("go").touch()
        self.assertEqual(next_one.receive()["status"], "success")
        self.assertFalse(late.exists(), "its handler was called")

    def test_a_call_inherits_nothing_of_the_one_whose_slot_it_takes(self) -> None:
        caller = self.caller(self.start("--limit=1"))
        for number in range(5):
            caller.send("request", request("leave_behind", {}, f"r{number}"))
        self.assertEqual({caller.receive()["result"] for _ in range(5)}, {"nothing"})

    def test_more_than_is_held_of_a_connection_waits_in_it(self) -> None:
        caller, canceller, go = self.caller(), self.caller(), self.mark("go")
        for number in range(1024):
            params = {"path": str(go)}
            caller.send("request", request("wait_for_file", params, f"h{number}", f"h{number}"))
        # Answered as soon as it is read, which it is not before one of the others is answered.
        caller.send("request", request("nosuch", {}, "behind"))

        def is_answered() -> bool:
            canceller.send("cancel", {"protocol_version": "2", "job_id": "h1023"})
            return not caller.is_silent()

        eventually("an answer", is_answered)
        self.assertEqual(caller.receive()["request_id"], "h1023")
        self.assertEqual(caller.receive()["request_id"], "behind")
        go.touch()
        answers = [caller.receive() for _ in range(1023)]
        self.assertEqual({answer["status"] for answer in answers}, {"success"})

    def test_a_caller_may_read_its_answers_late(self) -> None:
        caller = self.caller()
        for number in range(40):
            caller.send("request", request("long", {"size": MIB}, f"l{number}", f"l{number}"))
        answers = [caller.receive() for _ in range(40)]
        self.assertEqual({len(answer["result"]) for answer in answers}, {MIB})
