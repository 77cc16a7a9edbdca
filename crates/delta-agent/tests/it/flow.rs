//! Log bytes that nobody takes stand in nobody's way.

use std::path::Path;
use std::time::{Duration, Instant};

use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;

use crate::agent::{Agent, hex, sha256, steps};
use crate::bench::until;
use crate::fake_server::{FakeServer, State};

/// Most that may be on its way at a time: what a fast line carries.
const MOST_ON_THE_WAY: usize = 4 * 1024 * 1024;
const PRINTED: usize = 64 * 1024 * 1024;
/// Far less than what is printed, far more than an agent needs.
const MOST_MEMORY: usize = 32 * 1024 * 1024;

/// Log bytes that came, whether they were taken or not.
fn log_bytes(state: &State) -> usize {
    let chunks = state.seen.iter().filter_map(|(_, said)| match said {
        Said::Result(result) => match &result.payload {
            Some(Payload::LogChunk(chunk)) => Some(chunk.data.len()),
            _ => None,
        },
        _ => None,
    });
    chunks.sum()
}

/// Bytes of memory that this process has touched at most.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|it| it.trim().strip_suffix(" kB"));
    let kilobytes: usize = kilobytes.and_then(|it| it.parse().ok()).expect("a number");
    kilobytes * 1024
}

/// Prints a lot, says so, and waits.
fn a_lot(printed: &Path, go: &Path) -> String {
    let (printed, go) = (printed.display(), go.display());
    format!(
        "head -c {PRINTED} /dev/zero | tr '\\0' x; touch {printed}; \
         until [ -e {go} ]; do sleep 0.05; done"
    )
}

// EP-45, F51: renewals come on time while log bytes are not taken, and what waits is on disk.
#[tokio::test]
async fn renewals_flow_while_log_bytes_are_not_taken() {
    let place = tempfile::tempdir().expect("a folder");
    let (printed, go) = (place.path().join("printed"), place.path().join("go"));
    let print = a_lot(&printed, &go);
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.no_logs = true;
        (state.ttl, state.interval) = (Duration::from_secs(4), Duration::from_millis(500));
        state.jobs.push_back(steps(&[&print]));
    });
    let before = peak_memory();
    let agent = Agent::start_unwatched(&server);
    server.wait_for("LogChunk", 1).await;
    while !printed.exists() {
        // Renewals are what keeps the job alive meanwhile.
        let renewals = server.count("Renewal");
        server.wait_for("Renewal", renewals + 1).await;
    }
    // Longer than the lease would live without them.
    let renewals = server.count("Renewal");
    server.wait_for("Renewal", renewals + 12).await;
    assert!(log_bytes(&server.state()) <= MOST_ON_THE_WAY);
    let grown = peak_memory() - before;
    assert!(grown < MOST_MEMORY, "{grown} bytes");
    // Taken at last, all of it comes.
    server.change(|state| {
        state.no_logs = false;
        state.break_line();
    });
    std::fs::write(go, "").expect("a file");
    let result = server.wait_results(1).await.remove(0);
    let log = server.state().last_log().to_vec();
    assert!(log.len() >= PRINTED);
    assert_eq!(hex(&result.log_sha256), sha256(&log));
    agent.shut_down().await;
}

// EP-45, F51: a server that reads nothing at all holds up the log, not the job, and costs no
// memory.
#[tokio::test]
async fn a_server_that_does_not_read_costs_the_agent_nothing() {
    let place = tempfile::tempdir().expect("a folder");
    let (printed, go) = (place.path().join("printed"), place.path().join("go"));
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.ttl = Duration::from_secs(50);
        state.jobs.push_back(steps(&[&a_lot(&printed, &go)]));
    });
    let before = peak_memory();
    let agent = Agent::start_unwatched(&server);
    server.wait_for("WorkAccepted", 1).await;
    server.change(|state| state.not_reading = true);
    until("the job goes on", || printed.exists()).await;
    let grown = peak_memory() - before;
    assert!(grown < MOST_MEMORY, "{grown} bytes");
    server.change(|state| state.not_reading = false);
    std::fs::write(go, "").expect("a file");
    let result = server.wait_results(1).await.remove(0);
    let log = server.state().last_log().to_vec();
    assert!(log.len() >= PRINTED);
    assert_eq!(hex(&result.log_sha256), sha256(&log));
    assert_eq!(server.count("Register"), 1);
    agent.shut_down().await;
}

// EP-45: the end of a log that has long arrived is noticed at once.
#[tokio::test]
async fn a_job_that_ends_in_silence_is_reported_at_once() {
    let server = FakeServer::start(&[steps(&["echo up; sleep 1.5"])]).await;
    let agent = Agent::start(&server);
    let start = Instant::now();
    server.wait_for("RunComplete", 1).await;
    // It would wait half a minute for bytes that are not there.
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
    agent.shut_down().await;
}

// A27: bytes that were lost on the way are asked for again, and come.
#[tokio::test]
async fn log_bytes_are_sent_again_when_they_are_asked_for() {
    let print = "for i in $(seq 300); do echo $i; sleep 0.005; done";
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.no_logs = true;
        state.jobs.push_back(steps(&[print]));
    });
    let agent = Agent::start(&server);
    server.wait_for("LogChunk", 2).await;
    // The next chunk is behind a gap.
    server.change(|state| state.no_logs = false);
    let result = server.wait_results(1).await.remove(0);
    let lines: String = (1..=300).map(|i| format!("{i}\n")).collect();
    assert_eq!(server.log(), format!("--- step 1: {print}\n{lines}"));
    assert_eq!(result.log_length, Some(server.log().len() as u64));
    agent.shut_down().await;
}

// D8: a server whose disk is full for a while asks for the same bytes again, and gets them all once
// there is room.
#[tokio::test]
async fn a_log_outlasts_a_server_that_has_no_room_for_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let room = folder.path().join("room");
    let wait = format!("while [ ! -e {} ]; do sleep 0.05; done", room.display());
    let print = format!("echo first; {wait}; echo last");
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.logs_have_no_room = true;
        state.jobs.push_back(steps(&[&print]));
    });
    let agent = Agent::start(&server);
    server.wait_for("LogChunk", 7).await;
    server.change(|state| state.logs_have_no_room = false);
    std::fs::write(&room, "").expect("a file");
    let result = server.wait_results(1).await.remove(0);
    let log = format!("--- step 1: {print}\nfirst\nlast\n");
    assert_eq!(server.log(), log);
    assert_eq!(result.log_length, Some(log.len() as u64));
    agent.shut_down().await;
}

// A27: bytes that were lost with nothing behind them are not asked for; they come by themselves.
#[tokio::test]
async fn log_bytes_that_nobody_answers_are_sent_again() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.no_logs = true;
        state.interval = Duration::from_millis(500);
        state.jobs.push_back(steps(&["echo the only line"]));
    });
    let agent = Agent::start(&server);
    server.wait_for("LogChunk", 1).await;
    server.change(|state| state.no_logs = false);
    let result = server.wait_results(1).await.remove(0);
    let log = "--- step 1: echo the only line\nthe only line\n";
    assert_eq!(server.log(), log);
    assert_eq!(result.log_length, Some(log.len() as u64));
    assert_eq!(server.count("Register"), 1, "on the same line");
    agent.shut_down().await;
}

// D8: a step that ends right after its last byte loses none of it, though its end is heard of
// before its output.
#[tokio::test]
async fn what_a_short_step_prints_last_is_in_the_log() {
    const STEPS: usize = 200;
    let scripts: Vec<String> = (1..=STEPS).map(|n| format!("echo said-{n}-")).collect();
    let scripts: Vec<&str> = scripts.iter().map(String::as_str).collect();
    let server = FakeServer::start(&[]).await;
    server.change(|state| state.jobs.push_back(steps(&scripts)));
    let agent = Agent::start(&server);
    server.wait_results(1).await;
    let log = server.log();
    let lost: Vec<usize> = (1..=STEPS)
        .filter(|n| !log.contains(&format!("\nsaid-{n}-\n")))
        .collect();
    assert!(lost.is_empty(), "nothing of steps {lost:?} in\n{log}");
    agent.shut_down().await;
}
