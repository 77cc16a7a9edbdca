"""A runner that sends mail: `delta-runner examples.mail:app --tcp-socket 127.0.0.1:9000`.

Mail goes to the server named by SMTP_HOST (and SMTP_PORT), from MAIL_FROM; without a server it is
printed, so that the example runs anywhere.
"""

from __future__ import annotations

import asyncio
import os
import smtplib
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Dict, List

from delta_runner import App, Context, Failure, Retry

app = App()


@dataclass
class Mail:
    """The parameters of `send_email`; each is checked before the handler is called."""

    to: List[str]
    subject: str
    body: str = ""
    headers: Dict[str, str] = field(default_factory=dict)


@app.handler
def send_email(mail: Mail, context: Context) -> Dict[str, object]:
    """A plain function: it runs in a thread and may block."""
    if not mail.to:
        raise Failure("nobody to write to", type="no_recipient", details={"to": mail.to})
    message = EmailMessage()
    message["From"] = os.environ.get("MAIL_FROM", "jobs@example.org")
    message["To"], message["Subject"] = ", ".join(mail.to), mail.subject
    # The same for every attempt, so that a mail sent twice is shown once.
    message["Message-ID"] = f"<{context.job_id}@mail.example.org>"
    for name, value in mail.headers.items():
        message[name] = value
    message.set_content(mail.body)
    context.raise_if_cancelled()
    try:
        deliver(message)
    except smtplib.SMTPServerDisconnected as gone:
        raise Retry("the mail server is away", after=30) from gone
    return {"sent": len(mail.to), "attempt": context.attempt}


@app.handler("mail.digest")
async def digest(users: List[str], pause_seconds: float = 0.0) -> Dict[str, int]:
    """An async function: a cancel ends it at its next `await`."""
    for user in users:
        await asyncio.sleep(pause_seconds)
        print(f"digest for {user}", flush=True)
    return {"users": len(users)}


def deliver(message: EmailMessage) -> None:
    host = os.environ.get("SMTP_HOST")
    if host is None:
        print(message, flush=True)
        return
    with smtplib.SMTP(host, int(os.environ.get("SMTP_PORT", "25")), timeout=30) as server:
        server.send_message(message)
