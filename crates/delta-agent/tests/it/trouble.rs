//! A lease when things go wrong: answers lost, the lease gone, the server away or hostile.

use std::time::Duration;

use delta_agent::AgentError;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::bench::is_running;
use crate::fake_server::FakeServer;
use crate::lease::{Agent, steps};

/// The job's own number, which it printed first.
async fn job_number(server: &FakeServer) -> String {
    let lines = |log: &[u8]| log.iter().filter(|byte| **byte == b'\n').count();
    server.wait_until(|state| lines(&state.log) >= 2).await;
    server
        .log()
        .lines()
        .nth(1)
        .expect("the job's number")
        .to_owned()
}

// A18, A67: every message is sent again until it is answered, the completion unchanged.
#[tokio::test]
async fn lost_answers_are_asked_for_again_with_the_same_message() {
    let server = FakeServer::start(&[steps(&["echo one; sleep 0.3; echo two; exit 3"])]).await;
    server.change(|state| {
        for action in ["ack-lease", "complete", "uploads", "the-log", "heartbeat"] {
            state.lose.insert(action.into(), 2);
        }
    });
    let agent = Agent::start(&server);
    let complete = server.wait_for("complete", 3).await;
    assert_eq!(complete[0], complete[1]);
    assert_eq!(complete[1], complete[2]);
    server.wait_for("lease", 2).await;
    assert_eq!(
        server.bodies("complete").len(),
        3,
        "an answered completion is not sent again"
    );
    let log = server.log();
    let wanted = "--- step 1: echo one; sleep 0.3; echo two; exit 3\none\ntwo\n\
                  --- step 1 ended with exit code 3\n";
    assert_eq!(
        log, wanted,
        "the log is byte-exact although its answers were lost"
    );
    assert!(server.bodies("ack-lease").len() >= 3);
    agent.shut_down().await;
}

// RP-45: stop work, stop heartbeats, free resources, never Complete.
#[tokio::test]
async fn a_stale_lease_ends_the_work_without_a_word() {
    let server =
        FakeServer::start(&[steps(&["echo $$; trap '' TERM; sleep 600 & wait; wait"])]).await;
    let agent = Agent::start(&server);
    let pid = job_number(&server).await;
    server.change(|state| state.stale = true);
    server.wait_for("lease", 2).await;
    assert!(!is_running(&pid));
    let heartbeats = server.bodies("heartbeat").len();
    let left = std::fs::read_dir(agent.folder.path().join("work/attempts")).expect("a folder");
    assert_eq!(left.count(), 0, "the workspace is removed");
    agent.shut_down().await;
    assert!(server.bodies("complete").is_empty() && server.bodies("cancel-ack").is_empty());
    assert_eq!(server.bodies("heartbeat").len(), heartbeats);
}

// RP-58, D7: out of touch for a whole TTL, the holder stops by itself.
#[tokio::test]
async fn an_agent_out_of_touch_stops_by_its_own_clock() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        (state.ttl, state.interval) = (1.0, 0.25);
        state.lose.insert("heartbeat".into(), u32::MAX);
        state.jobs.push_back(steps(&["echo $$; sleep 600"]));
    });
    let start = Instant::now();
    let agent = Agent::start(&server);
    let pid = job_number(&server).await;
    server.wait_for("lease", 2).await;
    assert!(
        start.elapsed() >= Duration::from_millis(900),
        "{:?}",
        start.elapsed()
    );
    assert!(!is_running(&pid));
    assert!(server.bodies("heartbeat").len() >= 3, "it went on trying");
    agent.shut_down().await;
    assert!(server.bodies("complete").is_empty());
}

// RP-3: heartbeats carry a lease far beyond its TTL, on answers of any length.
#[tokio::test]
async fn a_short_lease_is_kept_alive_by_heartbeats() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        (state.ttl, state.interval) = (1.0, 0.4);
        state.jobs.push_back(steps(&["sleep 2.5; echo done"]));
    });
    let agent = Agent::start(&server);
    let complete = server.wait_for("complete", 1).await.remove(0);
    assert_eq!(complete["status"], "SUCCEEDED");
    let heartbeats = server.bodies("heartbeat");
    let seqs: Vec<u64> = heartbeats
        .iter()
        .filter_map(|it| it["seq"].as_u64())
        .collect();
    assert!(seqs.len() >= 5 && seqs.is_sorted(), "{seqs:?}");
    assert_eq!(heartbeats.last().expect("one")["progress"]["step_index"], 0);
    agent.shut_down().await;
}

// A3: NOT_ACKED means acknowledge, then the very same completion.
#[tokio::test]
async fn a_completion_before_its_acknowledgement_is_repaired() {
    let server = FakeServer::start(&[steps(&["true"])]).await;
    let refusal = json!({
        "type": "CompleteAck", "lease_id": "lease_canary_1", "accepted": false,
        "reason": "NOT_ACKED",
    });
    server.change(|state| {
        state
            .instead
            .insert("complete".into(), [(409, "", refusal)].into());
    });
    let agent = Agent::start(&server);
    let complete = server.wait_for("complete", 2).await;
    assert_eq!(complete[0], complete[1]);
    assert_eq!(server.bodies("ack-lease").len(), 2);
    agent.shut_down().await;
}

// A10: the cancel won; the lease is over in good order.
#[tokio::test]
async fn a_completion_overtaken_by_a_cancel_ends_the_lease() {
    let server = FakeServer::start(&[steps(&["true"])]).await;
    let refusal = json!({
        "type": "CompleteAck", "lease_id": "lease_canary_1", "accepted": false,
        "reason": "CANCEL_REQUESTED", "final_status": "CANCELED",
    });
    server.change(|state| {
        state
            .instead
            .insert("complete".into(), [(409, "", refusal)].into());
    });
    let agent = Agent::start(&server);
    server.wait_for("lease", 2).await;
    assert_eq!(server.bodies("complete").len(), 1);
    agent.shut_down().await;
}

#[tokio::test]
async fn a_stale_answer_to_the_acknowledgement_lets_nothing_start() {
    let place = tempfile::tempdir().expect("a folder");
    let touch = format!("touch {}/started", place.path().display());
    let server = FakeServer::start(&[steps(&[&touch])]).await;
    let stale = json!({
        "type": "StaleLease", "lease_id": "lease_canary_1", "reason": "LEASE_REVOKED",
    });
    server.change(|state| {
        state
            .instead
            .insert("ack-lease".into(), [(409, "", stale)].into());
    });
    let agent = Agent::start(&server);
    server.wait_for("lease", 2).await;
    agent.shut_down().await;
    assert!(!place.path().join("started").exists());
    assert!(server.bodies("complete").is_empty() && server.bodies("heartbeat").is_empty());
}

#[tokio::test]
async fn the_servers_offset_is_obeyed() {
    let server = FakeServer::start(&[steps(&["echo one; sleep 0.5; echo two"])]).await;
    let agent = Agent::start(&server);
    server.wait_for("the-log", 1).await;
    // As after a restart that kept less than it had answered for.
    server.change(|state| state.log.truncate(5));
    let complete = server.wait_for("complete", 1).await.remove(0);
    let log = server.log();
    assert!(log.ends_with("one\ntwo\n"), "{log}");
    assert_eq!(complete["log"]["length"], log.len());
    agent.shut_down().await;
}

#[tokio::test]
async fn a_server_that_takes_no_log_still_gets_the_result() {
    let server = FakeServer::start(&[steps(&["echo one"])]).await;
    let refusal = json!({ "code": "TOO_LARGE", "message": "no", "retryable": false });
    server.change(|state| {
        state
            .instead
            .insert("uploads".into(), [(413, "", refusal)].into());
    });
    let agent = Agent::start(&server);
    let complete = server.wait_for("complete", 1).await.remove(0);
    assert_eq!(
        (&complete["status"], &complete["artifacts"]),
        (&json!("SUCCEEDED"), &json!([]))
    );
    agent.shut_down().await;
}

// A35: exit only when the credential is refused.
#[tokio::test]
async fn a_refused_credential_ends_the_agent() {
    for status in [401, 403] {
        let server = FakeServer::start(&[]).await;
        let refusal =
            json!({ "code": "UNAUTHENTICATED", "message": "revoked", "retryable": false });
        server.change(|state| {
            state
                .instead
                .insert("lease".into(), [(status, "", refusal)].into());
        });
        let ended = Agent::start(&server).ended().await;
        let refused = matches!(&ended, Err(AgentError::Unauthorized(why)) if why == "revoked");
        assert!(refused, "{ended:?}");
    }
}

#[tokio::test]
async fn a_credential_refused_during_work_ends_the_work_and_the_agent() {
    let server = FakeServer::start(&[]).await;
    let refusal = json!({ "code": "FORBIDDEN", "message": "revoked", "retryable": false });
    server.change(|state| {
        (state.ttl, state.interval) = (10.0, 0.2);
        state.jobs.push_back(steps(&["echo $$; sleep 600"]));
    });
    let agent = Agent::start(&server);
    let pid = job_number(&server).await;
    server.change(|state| {
        let refusals = std::iter::repeat_n((403, "", refusal), 50).collect();
        state.instead.insert("heartbeat".into(), refusals);
    });
    let ended = agent.ended().await;
    assert!(
        matches!(ended, Err(AgentError::Unauthorized(_))),
        "{ended:?}"
    );
    assert!(!is_running(&pid));
    assert!(server.bodies("complete").is_empty());
}

#[tokio::test]
async fn a_busy_server_is_given_the_time_it_asks_for() {
    let server = FakeServer::start(&[steps(&["true"])]).await;
    let busy = |status| (status, "retry-after: 1\r\n", Value::Null);
    server.change(|state| {
        state
            .instead
            .insert("lease".into(), [busy(429), busy(503)].into());
    });
    let start = Instant::now();
    let agent = Agent::start(&server);
    server.wait_for("complete", 1).await;
    assert!(
        start.elapsed() >= Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(server.bodies("lease").len(), 3);
    agent.shut_down().await;
}

#[tokio::test]
async fn garbage_is_survived() {
    let server = FakeServer::start(&[steps(&["sleep 0.2"])]).await;
    server.change(|state| {
        let garbage = [
            (200, "", json!("garbage")),
            (200, "", json!({"type": "Other"})),
        ];
        for action in ["ack-lease", "heartbeat", "uploads", "the-log", "complete"] {
            state.instead.insert(action.into(), garbage.clone().into());
        }
    });
    let agent = Agent::start(&server);
    let complete = server.wait_for("complete", 3).await;
    assert_eq!(complete[2]["status"], "SUCCEEDED");
    server.wait_for("lease", 2).await;
    agent.shut_down().await;
}
