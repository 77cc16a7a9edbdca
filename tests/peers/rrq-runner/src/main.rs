//! The functions of the table, on the runner of the crate `rrq-runner`, which nobody here wrote. As
//! `rrq-peer frames` it reads frames with the codec of `rrq-protocol` and writes them again.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::time::{Duration, SystemTime};

use rrq_runner::{ExecutionOutcome, ExecutionRequest, Registry, parse_tcp_socket, run_tcp};
use serde::Serialize;
use serde_json::{Value, json};

fn success(request: &ExecutionRequest, result: impl Serialize) -> ExecutionOutcome {
    ExecutionOutcome::success(&request.job_id, &request.request_id, result)
}

fn failure(request: &ExecutionRequest, words: &str) -> ExecutionOutcome {
    ExecutionOutcome::error(&request.job_id, &request.request_id, words)
}

fn param<'a>(request: &'a ExecutionRequest, name: &str) -> &'a Value {
    request.params.get(name).unwrap_or(&Value::Null)
}

fn append(path: &str, line: &str) {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.expect("a file to write to");
}

/// Says so when the runner drops it.
struct Held(String);

impl Drop for Held {
    fn drop(&mut self) {
        append(&self.0, "cancelled");
    }
}

async fn hold(request: ExecutionRequest) -> ExecutionOutcome {
    let path = param(&request, "path").as_str().unwrap_or_default();
    let go = param(&request, "go").as_str().unwrap_or_default();
    append(path, &std::process::id().to_string());
    let held = Held(path.to_owned());
    while !std::path::Path::new(go).exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::mem::forget(held);
    success(&request, "done")
}

/// Every frame of stdin, read and written again.
fn frames() {
    let mut all = Vec::new();
    std::io::stdin().read_to_end(&mut all).expect("frames");
    let mut rest = all.as_slice();
    while let Some(head) = rest.first_chunk::<4>() {
        let (frame, others) = rest.split_at(4 + u32::from_be_bytes(*head) as usize);
        let message = rrq_protocol::decode_frame(frame).expect("a message");
        let again = rrq_protocol::encode_frame(&message).expect("a frame");
        std::io::stdout()
            .write_all(&again)
            .expect("somebody who reads");
        rest = others;
    }
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("frames") {
        return frames();
    }
    let mut registry = Registry::new();
    registry.register("echo", |request| async move {
        let echoed = json!({"params": request.params, "attempt": request.context.attempt});
        success(&request, echoed)
    });
    registry.register("moment", |request| async move {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        success(&request, now.as_secs_f64())
    });
    registry.register("fail", |request| async move { failure(&request, "boom") });
    registry.register("flaky", |request| async move {
        let attempt = request.context.attempt;
        match param(&request, "until").as_u64() {
            Some(until) if u64::from(attempt) < until => failure(&request, "not yet"),
            _ => success(&request, attempt),
        }
    });
    registry.register("later", |request| async move {
        let after = param(&request, "seconds").as_f64();
        match request.context.attempt {
            1 => ExecutionOutcome::retry(&request.job_id, &request.request_id, "later", after),
            attempt => success(&request, attempt),
        }
    });
    registry.register("hold", hold);
    let mut arguments = std::env::args().skip_while(|it| it != "--tcp-socket");
    let socket = arguments.nth(1).expect("--tcp-socket host:port");
    let address = parse_tcp_socket(&socket).expect("an address");
    run_tcp(&registry, address).expect("a runner");
}
