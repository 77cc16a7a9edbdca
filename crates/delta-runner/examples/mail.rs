//! A runner as an application has it. A worker starts it and says where to listen; by hand:
//! `cargo run -p delta-runner --example mail -- --tcp-socket 127.0.0.1:9000`

use std::process::ExitCode;
use std::time::Duration;

use delta_runner::{Context, Failure, Runner};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Mail {
    to: String,
    #[serde(default)]
    body: String,
}

#[derive(Serialize)]
struct Sent {
    to: String,
    bytes: usize,
    attempt: u32,
}

async fn send_email(mail: Mail, context: Context) -> Result<Sent, Failure> {
    if !mail.to.contains('@') {
        return Err(Failure::error(format!("{:?} is no address", mail.to)).of_type("bad_address"));
    }
    if mail.to.ends_with("@busy.example") && context.attempt == 1 {
        return Err(Failure::retry("the server is busy").after(Duration::from_secs(1)));
    }
    Ok(Sent {
        bytes: mail.body.len(),
        to: mail.to,
        attempt: context.attempt,
    })
}

#[derive(Deserialize)]
struct Digest {
    rounds: u64,
}

/// Work for a processor: it looks now and then whether anybody still wants it.
fn digest(digest: Digest, context: Context) -> Result<u64, Failure> {
    let mut state = 1_u64;
    for round in 0..digest.rounds {
        if round % 1024 == 0 && context.is_cancelled() {
            return Err(Failure::error("canceled"));
        }
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(round);
    }
    Ok(state)
}

#[tokio::main]
async fn main() -> ExitCode {
    Runner::new()
        .handle("send_email", send_email)
        .handle_blocking("digest", digest)
        .main()
        .await
}
