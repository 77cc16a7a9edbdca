//! The functions of a web application: they send mail.

use delta_runner::{Context, Failure, Runner};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

#[derive(Deserialize)]
struct Mail {
    to: String,
    subject: String,
}

#[derive(Serialize)]
struct Sent {
    sent_to: String,
}

async fn send_email(mail: Mail, context: Context) -> Result<Sent, Failure> {
    if !mail.to.contains('@') || mail.to.contains(char::is_whitespace) {
        return Err(Failure::error(format!("{:?} is no address", mail.to)).of_type("bad_address"));
    }
    let (id, to, subject) = (
        &context.job_id,
        &mail.to,
        mail.subject.replace(['\r', '\n'], " "),
    );
    // The same id for every attempt, so that a mail sent twice is shown once.
    let text = format!("Message-ID: <{id}@example.org>\r\nTo: {to}\r\nSubject: {subject}\r\n\r\n");
    deliver(&mail.to, &text).await?;
    Ok(Sent { sent_to: mail.to })
}

/// SMTP as it was meant: say a line, hear a line. An error is tried again.
async fn deliver(to: &str, text: &str) -> Result<(), Failure> {
    let server = std::env::var("SMTP_SERVER")?;
    let mut stream = BufReader::new(TcpStream::connect(server).await?);
    let (to, text) = (format!("RCPT TO:<{to}>"), format!("{text}Welcome!\r\n."));
    let from = "MAIL FROM:<web@example.org>";
    for say in ["", "HELO example.org", from, &to, "DATA", &text, "QUIT"] {
        if !say.is_empty() {
            stream.write_all(format!("{say}\r\n").as_bytes()).await?;
        }
        let mut answer = String::new();
        stream.read_line(&mut answer).await?;
        if !answer.starts_with(['2', '3']) {
            return Err(Failure::error(format!("the mail server said {answer:?}")));
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    Runner::new().handle("send_email", send_email).main().await
}
