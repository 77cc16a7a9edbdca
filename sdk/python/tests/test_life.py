"""How a runner begins and ends: its address, its signals, its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

from .harness import PATIENCE_SECONDS, ROOT, Caller, RunnerCase, RunnerProcess, eventually, request

#: Longer than any test waits: whoever waits for the end of it fails.
FOREVER = "600"


class Begin(RunnerCase):
    # RQ-7
    def test_the_address_comes_from_the_environment_or_the_flag_which_wins(self) -> None:
        runner = self.start(env={"RRQ_RUNNER_TCP_SOCKET": "127.0.0.3:0"})
        self.assertEqual(runner.address[0], "127.0.0.3")
        self.assertEqual(self.caller(runner).ask("echo")["status"], "success")
        both = {"RRQ_RUNNER_TCP_SOCKET": "127.0.0.1:1"}
        runner = self.start("--tcp-socket", "127.0.0.2:0", env=both)
        self.assertEqual(runner.address[0], "127.0.0.2")
        self.assertEqual(self.caller(runner).ask("echo")["status"], "success")

    # RQ-7
    def test_a_program_that_runs_itself_has_the_flag_too(self) -> None:
        program = "import tests.handlers, delta_runner; delta_runner.run(tests.handlers.app)"
        environment = {**os.environ, "RRQ_RUNNER_TCP_SOCKET": "127.0.0.1:1"}
        for arguments in (["--tcp-socket", "127.0.0.2:0"], ["--own", "--tcp-socket=127.0.0.2:0"]):
            process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments], cwd=ROOT, env=environment,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert process.stderr is not None
            try:
                self.assertIn("listening on 127.0.0.2:", process.stderr.readline())
            finally:
                process.kill()
                process.wait()
                process.stderr.close()

    # RQ-7, RQ-8
    def test_any_other_address_and_no_application_are_refused(self) -> None:
        good = ["--tcp-socket", "127.0.0.1:0"]
        for arguments, words in (
            (["tests.handlers:app"], "--tcp-socket host:port or RRQ_RUNNER_TCP_SOCKET is needed"),
            (["tests.handlers:app", "--tcp-socket", "0.0.0.0:9000"], "no loopback address"),
            (["tests.handlers:app", "--tcp-socket", "9000"], "is not host:port"),
            (["tests.nothing:app", *good], "there is no module 'tests.nothing'"),
            (["tests.handlers:order", *good], "is no delta_runner.App"),
            (["tests.handlers:app", "--limit", "0", *good], "--limit: is a number from 1"),
            (["tests.handlers:app", "--grace", "nan", *good], "--grace: is a number of seconds"),
        ):
            command = [sys.executable, "-m", "delta_runner", *arguments]
            ended = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
            )
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(words, ended.stderr)

    def test_a_port_is_free_again_after_a_kill(self) -> None:
        runner = self.start()
        caller, mark = self.caller(runner), self.mark()
        caller.send("request", request("sleep", {"seconds": 600, "mark": str(mark)}))
        self.wait_for(mark, "begun")
        runner.process.kill()
        self.assertEqual(runner.ended(), -signal.SIGKILL)
        self.assertTrue(caller.is_closed())
        again = self.start("--tcp-socket", f"127.0.0.1:{runner.address[1]}", env={})
        self.assertEqual(self.caller(again).ask("echo")["status"], "success")

    def test_tracebacks_are_sent_only_where_that_is_asked_for(self) -> None:
        answer = self.caller(self.start("--tracebacks")).ask("boom")
        self.assertIn("raise RuntimeError", answer["error"]["details"]["traceback"])
        self.assertNotIn("details", self.caller().ask("boom")["error"])


class End(RunnerCase):
    def begin(self, runner: RunnerProcess, function: str = "sleep", **more: Any) -> Caller:
        """A call that has begun and does not end by itself."""
        caller, mark = self.caller(runner), self.mark()
        caller.send("request", request(function, {"seconds": 600, "mark": str(mark)}, **more))
        self.wait_for(mark, "begun")
        return caller

    def test_sigterm_lets_end_what_runs_and_begins_nothing_new(self) -> None:
        runner, go = self.start("--limit=1", "--grace", FOREVER), self.mark("go")
        caller = self.caller(runner)
        # The first is answered, so the second has the only slot when the third is read.
        self.assertEqual(caller.ask("echo")["status"], "success")
        caller.send("request", request("wait_for_file", {"path": str(go)}, "runs"))
        caller.send("request", request("echo", {}, "waits"))
        # An answer that needs no slot: all before it was read.
        self.assertEqual(caller.ask("nosuch")["error"]["type"], "handler_not_found")
        runner.process.send_signal(signal.SIGTERM)
        for request_id in ("waits", "new"):
            answer = caller.receive()
            self.assertEqual((answer["request_id"], answer["status"]), (request_id, "retry"))
            self.assertEqual(answer["error"]["type"], "shutting_down")
            if request_id == "waits":
                caller.send("request", request("echo", {}, "new"))
        runner.refuses()
        go.touch()
        self.assertEqual(caller.receive()["result"], "found")
        self.assertTrue(caller.is_closed())
        self.assertEqual(runner.ended(), 0)

    def test_what_runs_after_the_grace_is_cancelled_and_answered(self) -> None:
        for function in ("sleep", "plain_sleep"):
            self.mark().unlink(missing_ok=True)
            runner = self.start("--grace", "0.2")
            caller = self.begin(runner, function)
            runner.process.send_signal(signal.SIGTERM)
            error = caller.receive()["error"]
            self.assertEqual(error["type"], "cancelled")
            self.assertEqual(error["message"], "The runner is shutting down")
            self.assertEqual(runner.ended(), 0)
            self.assertIn("cancelled", self.mark().read_text())

    def test_a_second_signal_cuts_the_grace(self) -> None:
        runner = self.start("--grace", FOREVER)
        caller = self.begin(runner)
        runner.process.send_signal(signal.SIGTERM)
        caller.send("request", request("echo", {}, "new"))
        eventually("an end that has begun", lambda: self.ends(caller))
        runner.process.send_signal(signal.SIGINT)
        self.assertEqual(caller.receive()["error"]["type"], "cancelled")
        self.assertEqual(runner.ended(), 0)

    def ends(self, caller: Caller) -> bool:
        """Whether the runner takes nothing new any more."""
        ended: bool = caller.receive()["status"] == "retry"
        if not ended:
            caller.send("request", request("echo", {}, "new"))
        return ended

    def test_a_function_that_heeds_nothing_does_not_keep_the_process(self) -> None:
        runner = self.start("--grace", "0.1")
        caller = self.caller(runner)
        caller.send("request", request("deaf", self.deaf()))
        self.wait_for(self.mark(), "begun")
        runner.process.send_signal(signal.SIGTERM)
        # No answer: what goes on until the very end was not cancelled.
        self.assertTrue(caller.is_closed())
        self.assertEqual(runner.ended(), 0)
        self.assertIn("left behind", runner.stderr())


#: Starts a runner, says which process it is and where it listens, and waits to be killed.
PARENT = """
import subprocess, sys, threading
def start():
    global child
    child = subprocess.Popen([sys.executable, "-m", "delta_runner", *sys.argv[1:]],
                             stderr=subprocess.PIPE, text=True)
starter = threading.Thread(target=start)
starter.start()
starter.join()
print(child.pid, child.stderr.readline().split()[-1], flush=True)
sys.stdin.read()
"""


@unittest.skipUnless(sys.platform == "linux", "looks into /proc")
class Parent(RunnerCase):
    def family(self, *arguments: str) -> Any:
        """A parent, the id of its runner, and a connection to that."""
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, "tests.handlers:app", *arguments,
             "--tcp-socket", "127.0.0.1:0"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert parent.stdout is not None and parent.stdin is not None
        self.addCleanup(parent.stdin.close)
        self.addCleanup(parent.stdout.close)
        self.addCleanup(parent.wait)
        self.addCleanup(parent.kill)
        pid, address = parent.stdout.readline().split()
        self.addCleanup(end, int(pid))
        connection = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
        self.addCleanup(connection.close)
        return parent, int(pid), connection

    def test_a_runner_dies_with_its_parent_in_mid_job(self) -> None:
        parent, pid, connection = self.family()
        caller = Caller.over(connection)
        caller.send("request", request("deaf", self.deaf()))
        self.wait_for(self.mark(), "begun")
        self.assertTrue(is_alive(pid))
        parent.kill()
        eventually("the end of the runner", lambda: not is_alive(pid))
        self.assertTrue(caller.is_closed())

    def test_a_runner_outlives_its_parent_where_that_is_asked_for(self) -> None:
        parent, pid, connection = self.family("--outlive-parent")
        parent.kill()
        parent.wait()
        eventually("an orphan", lambda: parent_of(pid) != parent.pid)
        self.assertEqual(Caller.over(connection).ask("echo")["status"], "success")

    def test_the_end_of_the_thread_that_started_it_is_no_end_of_the_parent(self) -> None:
        # That thread is over by now, and the kernel has sent its signal; here is another.
        _, pid, connection = self.family()
        os.kill(pid, signal.SIGUSR2)
        self.assertEqual(Caller.over(connection).ask("echo")["status"], "success")


def state_of(pid: int) -> Any:
    """The fields of a process after its name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(pid: int) -> bool:
    state = state_of(pid)
    return state is not None and state[0] != "Z"


def end(pid: int) -> None:
    if is_alive(pid):
        os.kill(pid, signal.SIGKILL)


def parent_of(pid: int) -> int:
    return int(state_of(pid)[1])
