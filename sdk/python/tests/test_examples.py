"""What is printed in the README and lies in `examples` works as it stands."""

from __future__ import annotations

import re
import smtplib
import socket
import threading
from typing import Any, List

from .harness import ROOT, RunnerCase


class Examples(RunnerCase):
    def test_the_readme_works_as_printed(self) -> None:
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        self.assertEqual(len(blocks), 2)
        compile(blocks[1], "a producer", "exec")
        (self.folder / "jobs.py").write_text(blocks[0])
        caller = self.caller(self.start(app="jobs:app", folder=self.folder))
        self.assertEqual(caller.ask("send_email", to="a@b.c")["result"], {"sent_to": "a@b.c"})
        self.assertEqual(caller.ask("send_email", to="abc")["error"]["type"], "bad_address")
        answer = caller.ask("send_email", to="a@b.c", subject="Later")
        self.assertEqual((answer["status"], answer["retry_after_seconds"]), ("retry", 30.0))
        self.assertEqual(caller.ask("numbers.sum", numbers=[1, 2.5])["result"], 3.5)

    def test_mail_is_printed_without_a_server(self) -> None:
        caller = self.caller(self.start(app="examples.mail:app"))
        params = {"to": ["ada@example.org"], "subject": "Hi"}
        self.assertEqual(caller.ask("send_email", **params)["result"], {"sent": 1, "attempt": 1})
        self.assertEqual(caller.ask("mail.digest", users=["a", "b"])["result"], {"users": 2})
        answer = caller.ask("send_email", to="ada@example.org", subject="Hi")
        message = "params.to must be a list, not a string"
        self.assertEqual(answer["error"], {"message": message, "type": "invalid_params"})
        answer = caller.ask("send_email", to=[], subject="Hi")
        self.assertEqual(answer["error"]["type"], "no_recipient")

    def test_mail_goes_to_a_server_and_is_tried_again_where_that_goes_away(self) -> None:
        with Mailbox() as mailbox:
            where = {"SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(mailbox.port)}
            runner = self.start("--tcp-socket=127.0.0.1:0", app="examples.mail:app", env=where)
            caller = self.caller(runner)
            params = {"to": ["ada@example.org"], "subject": "Hi", "body": "words"}
            self.assertEqual(caller.ask("send_email", **params)["status"], "success")
            self.assertIn("Message-ID: <job-1@mail.example.org>", mailbox.mail)
            self.assertIn("words", mailbox.mail)
            answer = caller.ask("send_email", **params)
            self.assertEqual((answer["status"], answer["retry_after_seconds"]), ("retry", 30.0))


class Mailbox:
    """A mail server that takes one mail and hangs up on whoever comes next."""

    def __enter__(self) -> Mailbox:
        self.mail: List[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        # Wakes it if nobody came.
        with socket.socket() as wake:
            wake.connect_ex(("127.0.0.1", self.port))
        self._thread.join(10)
        self._server.close()

    def _serve(self) -> None:
        connection, _ = self._server.accept()
        with connection, connection.makefile("rwb") as file:
            self._take(file)
        self._server.accept()[0].close()

    def _take(self, file: Any) -> None:
        def say(words: str) -> None:
            file.write(words.encode() + smtplib.bCRLF)
            file.flush()

        say("220 mailbox")
        in_mail = False
        for line in file:
            text = line.decode().rstrip()
            if in_mail and text != ".":
                self.mail.append(text)
                continue
            in_mail = text.upper() == "DATA"
            if text.upper() == "QUIT":
                say("221 bye")
                return
            say("354 go on" if in_mail else "250 ok")
