"""The producer's side, against a server that says what these tests tell it to."""

import json
import threading
import unittest
import unittest.mock
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from delta_runner import Client, FunctionFailed, ServerError

QUEUED = {"id": "run_1", "function": "f", "queue": "default", "state": "QUEUED", "attempts": 1}
DONE = {**QUEUED, "state": "SUCCEEDED", "result": {"a": 1}, "ended_at": "2026-01-31T12:00:00Z"}
FAILED = {
    **QUEUED,
    "state": "FAILED",
    "cause": "user_exit",
    "dead_letter": True,
    "error": {"message": "boom", "type": "ValueError", "details": {"n": 1}},
    "ended_at": "2026-01-31T12:00:00Z",
}


class Told:
    """Answers in turn; the last one again and again. Keeps what was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        told = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"null")
                told.asked.append((self.command, self.path, dict(self.headers), body))
                answer = told.answers[0] if len(told.answers) == 1 else told.answers.pop(0)
                status, said, *headers = answer
                text = json.dumps(said).encode()
                headers = {"Content-Length": str(len(text)), **dict(*headers)}
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self, Client(f"http://127.0.0.1:{self.server.server_port}", "secret")

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class ClientTest(unittest.TestCase):
    def test_a_call_is_made_with_a_key_of_its_own_and_its_options(self):
        with Told((201, QUEUED)) as (told, client):
            call = client.enqueue("python#f", {"a": 1}, queue="mail", max_attempts=5)
            client.enqueue("python#f")
        method, path, headers, body = told.asked[0]
        self.assertEqual((method, path), ("POST", "/api/v1/functions"))
        self.assertEqual(headers["Authorization"], "Bearer secret")
        expected = {"function": "python#f", "params": {"a": 1}, "queue": "mail", "max_attempts": 5}
        self.assertEqual(body, expected)
        self.assertNotEqual(headers["Idempotency-Key"], told.asked[1][2]["Idempotency-Key"])
        self.assertEqual((call.id, call.ended), ("run_1", False))

    def test_a_server_that_is_away_for_a_moment_is_asked_again_under_the_same_key(self):
        away = (503, {"code": "UNAVAILABLE", "message": "the store is away"})
        with Told(away, away, (201, QUEUED)) as (told, client):
            client.enqueue("f")
        keys = {asked[2]["Idempotency-Key"] for asked in told.asked}
        self.assertEqual((len(told.asked), len(keys)), (3, 1))

    def test_an_answer_that_is_cut_midway_is_asked_for_again_and_else_a_server_error(self):
        cut = (201, QUEUED, {"Content-Length": "4000"})
        with Told(cut, (201, QUEUED)) as (told, client):
            self.assertEqual(client.enqueue("f").id, "run_1")
        keys = {asked[2]["Idempotency-Key"] for asked in told.asked}
        self.assertEqual((len(told.asked), len(keys)), (2, 1))
        with Told(cut) as (_, client), unittest.mock.patch("time.sleep"):
            with self.assertRaises(ServerError):
                client.enqueue("f")

    def test_a_socket_that_is_silent_too_long_is_a_server_error(self):
        # What Python 3.9 raises is an OSError, and no TimeoutError.
        with Told((201, QUEUED)) as (_, client), unittest.mock.patch("time.sleep"):
            client._opener.open = unittest.mock.Mock(side_effect=OSError("timed out"))
            with self.assertRaises(ServerError):
                client.enqueue("f")

    def test_the_servers_wish_to_wait_is_heard_within_bounds(self):
        busy = {"code": "OVERLOADED", "message": "later"}
        for wish, waited in (("3", 3.0), ("86400", 30.0), ("soon", 0.2), ("-5", 0.2), ("²", 0.2)):
            answers = (429, busy, {"Retry-After": wish}), (201, QUEUED)
            with Told(*answers) as (_, client), unittest.mock.patch("time.sleep") as slept:
                client.enqueue("f")
            self.assertEqual(slept.call_args_list, [unittest.mock.call(waited)], wish)

    def test_a_redirect_is_not_followed_and_takes_the_token_nowhere(self):
        with Told((201, QUEUED)) as (other, _):
            place = f"http://127.0.0.1:{other.server.server_port}/api/v1/functions"
            for status in (301, 302, 303, 307, 308):
                with Told((status, {}, {"Location": place})) as (told, client):
                    for ask in (lambda: client.enqueue("f"), lambda: client.get("run_1")):
                        with self.assertRaises(ServerError) as raised:
                            ask()
                        self.assertEqual(raised.exception.status, status)
                        self.assertIn(place, str(raised.exception))
                self.assertEqual(len(told.asked), 2, "asked once each")
        self.assertEqual(other.asked, [])

    def test_a_refusal_has_the_servers_words_and_is_not_repeated(self):
        refused = (422, {"code": "INVALID", "message": "queue: must be letters"})
        with Told(refused) as (told, client):
            with self.assertRaises(ServerError) as raised:
                client.enqueue("f", queue="a b")
        self.assertEqual(len(told.asked), 1)
        self.assertEqual((raised.exception.status, raised.exception.code), (422, "INVALID"))
        self.assertIn("queue", str(raised.exception))

    def test_a_result_is_waited_for(self):
        with Told((200, QUEUED), (200, DONE)) as (told, client):
            self.assertEqual(client.result("run_1"), {"a": 1})
        self.assertIn("wait=", told.asked[0][1])

    def test_a_failure_is_raised_with_what_the_handler_said(self):
        with Told((200, FAILED)) as (_, client):
            with self.assertRaises(FunctionFailed) as raised:
                client.result("run_1")
        failure = raised.exception
        self.assertEqual((str(failure), failure.type), ("boom", "ValueError"))
        self.assertEqual((failure.details, failure.call.dead_letter), ({"n": 1}, True))

    def test_without_words_of_the_handler_the_agent_says_why(self):
        lost = {**FAILED, "error": None, "summary": "the runner closed the connection"}
        with Told((200, lost)) as (_, client):
            with self.assertRaises(FunctionFailed) as raised:
                client.result("run_1")
        self.assertEqual(str(raised.exception), "the runner closed the connection")

    def test_waiting_ends_when_its_time_is_over(self):
        with Told((200, QUEUED)) as (_, client):
            with self.assertRaises(TimeoutError):
                client.wait("run_1", timeout=0.05)

    def test_many_calls_are_one_request(self):
        with Told((201, {"functions": [QUEUED, {**QUEUED, "id": "run_2"}]})) as (told, client):
            calls = client.enqueue_many([{"function": "f"}, {"function": "g", "params": {"a": 1}}])
        self.assertEqual([call.id for call in calls], ["run_1", "run_2"])
        self.assertEqual(len(told.asked[0][3]["functions"]), 2)

    def test_a_key_of_the_callers_own_is_sent_as_it_is(self):
        with Told((201, QUEUED)) as (told, client):
            client.enqueue("f", idempotency_key="order-17")
        self.assertEqual(told.asked[0][2]["Idempotency-Key"], "order-17")
        self.assertNotIn("idempotency_key", told.asked[0][3])
        with Told((201, {"functions": [QUEUED]})) as (told, client):
            client.enqueue_many([{"function": "f"}], idempotency_key="order-18")
        self.assertEqual(told.asked[0][2]["Idempotency-Key"], "order-18")

    def test_a_cancel_is_of_the_run(self):
        with Told((200, {})) as (told, client):
            client.cancel("run_1", reason="wrong")
        self.assertEqual(told.asked[0][1], "/api/v1/runs/run_1/cancel")
        self.assertEqual(told.asked[0][3], {"reason": "wrong"})

    def test_without_a_server_it_says_what_is_missing(self):
        with self.assertRaisesRegex(ValueError, "DELTA_SERVER"):
            Client(server="")


if __name__ == "__main__":
    unittest.main()
