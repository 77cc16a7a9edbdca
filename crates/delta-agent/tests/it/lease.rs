//! A lease from assignment to release, against a server that behaves.

use std::time::Duration;

use delta_agent::local::LocalTree;
use delta_agent::workspace::Source;
use delta_wire::agent::proto::RunStatus;
use serde_json::json;
use tokio::time::Instant;

pub use crate::agent::sha256;
use crate::agent::{Agent, hex, steps};
use crate::bench::{is_running, until};
use crate::fake_server::FakeServer;

// RP-2, RP-61: accepted first, renewed, its log sent, one result.
#[tokio::test]
async fn a_job_is_assigned_accepted_executed_and_completed() {
    // Long enough to be renewed: shorter work is reported without.
    let folder = tempfile::tempdir().expect("a folder");
    let go = folder.path().join("go");
    let world = format!(
        "echo world\nuntil [ -e {} ]; do sleep 0.02; done",
        go.display()
    );
    let server = FakeServer::start(&[steps(&["echo hello", &world])]).await;
    let agent = Agent::start(&server);
    until("it is renewed", || server.names().contains(&"Renewal")).await;
    std::fs::write(&go, "").expect("told to go on");
    let result = server.wait_results(1).await.remove(0);
    server.wait_idle().await;
    let log = "--- step 1: echo hello\nhello\n--- step 2: echo world …\nworld\n";
    assert_eq!(server.log(), log);
    assert_eq!(result.status(), RunStatus::Success);
    assert_eq!(result.exit_code, Some(0));
    assert_eq!(result.log_length, Some(log.len() as u64));
    assert_eq!(hex(&result.log_sha256), sha256(log.as_bytes()));
    assert!(result.started_at.is_some() && result.completed_at.is_some());
    let order = server.names();
    assert_eq!(order[0], "Register");
    let at = |name| order.iter().position(|it| *it == name).expect(name);
    assert!(at("WorkAccepted") < at("LogChunk") && at("LogChunk") < at("RunComplete"));
    assert!(at("Renewal") < at("RunComplete"), "{order:?}");
    // RP-35: nothing about it follows the answer.
    let after = &order[at("RunComplete") + 1..];
    assert!(after.iter().all(|it| *it == "Heartbeat"), "{after:?}");
    agent.has_no_workspace().await;
    agent.shut_down().await;
}

// RP-18: exit code and cause go out as they were.
#[tokio::test]
async fn a_failure_carries_its_exit_code_and_cause() {
    let server = FakeServer::start(&[steps(&["exit 7"]), steps(&["kill -9 $$"])]).await;
    let agent = Agent::start(&server);
    let results = server.wait_results(2).await;
    assert_eq!(results[0].status(), RunStatus::Failure);
    assert_eq!(results[0].exit_code, Some(7));
    assert_eq!(results[0].cause, "user_exit");
    assert_eq!(results[1].exit_code, None);
    assert_eq!(results[1].cause, "user_signal");
    assert!(server.rejections().is_empty(), "the slot is free again");
    agent.shut_down().await;
}

// RP-37, RP-39, RP-61, A70, EP-23: a cancel is heard at once, stopped, acknowledged.
#[tokio::test]
async fn a_cancel_is_heard_at_once_and_acknowledged_after_the_work_is_gone() {
    let stubborn = "echo $$; trap '' TERM; echo up; while :; do sleep 0.05; done";
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        (state.ttl, state.interval) = (Duration::from_secs(120), Duration::from_secs(40));
        state.jobs.push_back(steps(&[stubborn]));
    });
    let agent = Agent::start(&server);
    agent.seen.wait_for("out up").await;
    let start = Instant::now();
    server.cancel("exe_1", Duration::from_secs(1));
    let result = server.wait_results(1).await.remove(0);
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "long before the next renewal"
    );
    assert_eq!(result.status(), RunStatus::Cancelled);
    let log = server.log();
    let pid = log.lines().nth(1).expect("the job's number");
    assert!(!is_running(pid), "{log}");
    assert!(log.ends_with("--- canceled during step 1\n"), "{log}");
    assert_eq!(hex(&result.log_sha256), sha256(log.as_bytes()));
    agent.shut_down().await;
    assert_eq!(server.results().len(), 1);
}

// A70: the flag in a renewal is enough where the message was lost.
#[tokio::test]
async fn a_cancel_is_heard_with_a_renewal_too() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.interval = Duration::from_millis(200);
        state.jobs.push_back(steps(&["echo up; sleep 600"]));
    });
    let agent = Agent::start(&server);
    agent.seen.wait_for("out up").await;
    server.change(|state| state.cancel_deadline = Some(Duration::from_secs(30)));
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Cancelled);
    agent.shut_down().await;
}

// RP-50, EP-41: the agent ends the work at its max runtime.
#[tokio::test]
async fn a_job_past_its_max_runtime_is_reported_as_timed_out() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.timeout_seconds = 1;
        state.jobs.push_back(steps(&["sleep 600"]));
    });
    let agent = Agent::start(&server);
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Timeout);
    assert_eq!(result.cause, "job_timeout");
    assert_eq!(result.exit_code, None);
    agent.shut_down().await;
}

#[tokio::test]
async fn slots_work_side_by_side() {
    let meet = "mkdir -p \"$MEET\"; touch \"$MEET/$DELTA_LEASE_EPOCH\"; \
                while [ \"$(ls \"$MEET\" | wc -l)\" -lt 2 ]; do sleep 0.02; done";
    let place = tempfile::tempdir().expect("a folder");
    let env = json!({ "MEET": place.path().join("meet") });
    let job = json!({ "name": "unit", "steps": [meet], "env": env });
    let server = FakeServer::start(&[job.clone(), job]).await;
    let agent = Agent::start_with(&server, |settings| settings.slots = 2);
    let results = server.wait_results(2).await;
    assert!(results.iter().all(|it| it.status() == RunStatus::Success));
    agent.shut_down().await;
}

#[tokio::test]
async fn a_workspace_can_begin_as_a_copy_of_a_tree() {
    let tree = tempfile::tempdir().expect("a tree");
    std::fs::write(tree.path().join("given"), "from the tree").expect("a file");
    let server = FakeServer::start(&[steps(&["cat given; echo changed > given"])]).await;
    let source = Source::Copy(LocalTree::of(tree.path()));
    let agent = Agent::start_with(&server, |settings| settings.source = source);
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Success);
    assert!(server.log().contains("from the tree"));
    let kept = std::fs::read_to_string(tree.path().join("given")).expect("a file");
    assert_eq!(kept, "from the tree");
    agent.shut_down().await;
}

#[tokio::test]
async fn a_job_without_a_checkout_gets_no_copy_either() {
    let tree = tempfile::tempdir().expect("a tree");
    std::fs::write(tree.path().join("given"), "from the tree").expect("a file");
    let job = json!({ "name": "unit", "steps": ["test -z \"$(ls -A)\""], "checkout": false });
    let server = FakeServer::start(&[job]).await;
    let source = Source::Copy(LocalTree::of(tree.path()));
    let agent = Agent::start_with(&server, |settings| settings.source = source);
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Success, "{}", server.log());
    agent.shut_down().await;
}

// RP-54: neither lease nor credential is within the job's sight.
#[tokio::test]
async fn no_token_is_within_the_jobs_sight() {
    let look = "env; cat /proc/$$/environ; cat /proc/$$/cmdline; ls -R \"$TMPDIR\" ..";
    let server = FakeServer::start(&[steps(&[look])]).await;
    let agent = Agent::start(&server);
    server.wait_for("RunComplete", 1).await;
    let log = server.log();
    assert!(log.contains("DELTA_LEASE_EPOCH=1"), "{log}");
    assert!(!log.contains("canary"), "{log}");
    agent.shut_down().await;
}

#[tokio::test]
async fn work_of_another_kind_is_a_spec_error() {
    let server = FakeServer::start(&[
        json!({ "function": { "name": "f" } }),
        json!({ "steps": ["true"], "workdir": "missing" }),
    ])
    .await;
    let agent = Agent::start(&server);
    for result in server.wait_results(2).await {
        assert_eq!(result.status(), RunStatus::Error);
        assert_eq!(result.cause, "spec_error", "{result:?}");
        assert_eq!(result.exit_code, None);
    }
    agent.shut_down().await;
}

// EP-43: another agent may have what this one lacks.
#[tokio::test]
async fn an_image_where_nothing_makes_containers_is_a_failure_to_start() {
    let server = FakeServer::start(&[json!({ "steps": ["true"], "image": "rust:1.95" })]).await;
    let agent = Agent::start(&server);
    for result in server.wait_results(1).await {
        assert_eq!(result.status(), RunStatus::Error);
        assert_eq!(result.cause, "start_up", "{result:?}");
        assert!(result.message.contains("docker"), "{result:?}");
    }
    agent.shut_down().await;
}

#[tokio::test]
async fn an_idle_agent_ends_at_once() {
    let server = FakeServer::start(&[]).await;
    let agent = Agent::start(&server);
    server.wait_for("Heartbeat", 1).await;
    let start = Instant::now();
    agent.shut_down_in(Duration::from_secs(600));
    agent.ended().await.expect("a clean end");
    assert!(start.elapsed() < Duration::from_secs(30));
}

// EP-51, A34: an agent that goes away waits, stops what is left and says so; the server retries
// elsewhere.
#[tokio::test]
async fn a_shutdown_stops_running_work_at_its_moment_and_reports_it() {
    let server = FakeServer::start(&[steps(&["echo up; sleep 600"])]).await;
    let agent = Agent::start(&server);
    agent.seen.wait_for("out up").await;
    agent.shut_down_in(Duration::from_millis(200));
    agent.ended().await.expect("a clean end");
    let result = server.results().remove(0);
    assert_eq!(result.status(), RunStatus::Error);
    assert_eq!(result.cause, "agent_shutdown");
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_the_deadline_of_a_cancel() {
    let stubborn = "trap 'echo heard' TERM; echo up; while :; do sleep 0.05; done";
    let server = FakeServer::start(&[steps(&[stubborn])]).await;
    let agent = Agent::start(&server);
    agent.seen.wait_for("out up").await;
    server.cancel("exe_1", Duration::from_secs(600));
    agent.seen.wait_for("out heard").await;
    agent.shut_down_in(Duration::ZERO);
    agent.ended().await.expect("a clean end");
    let result = server.results().remove(0);
    assert_eq!(result.status(), RunStatus::Cancelled);
}

// EP-51, EP-6: meanwhile it says that it is draining, and takes nothing.
#[tokio::test]
async fn a_shutdown_lets_work_finish_inside_its_grace() {
    let place = tempfile::tempdir().expect("a folder");
    let go = place.path().join("go");
    let wait = format!(
        "echo up; until [ -e {} ]; do sleep 0.05; done",
        go.display()
    );
    let server = FakeServer::start(&[steps(&[&wait])]).await;
    let agent = Agent::start_with(&server, |settings| settings.slots = 2);
    agent.seen.wait_for("out up").await;
    agent.shut_down_in(Duration::from_secs(600));
    server.wait_until(crate::assignment::says_draining).await;
    server.change(|state| state.jobs.push_back(steps(&["echo never"])));
    server.wait_for("WorkRejected", 1).await;
    std::fs::write(go, "").expect("a file");
    agent.ended().await.expect("a clean end");
    assert_eq!(server.results().remove(0).status(), RunStatus::Success);
    assert_eq!(server.rejections()[0].reason, "draining");
    assert_eq!(server.count("WorkAccepted"), 1);
}
