//! A lease from grant to release, against a server that behaves.

use std::sync::Arc;
use std::time::Duration;

use delta_agent::workspace::Source;
use delta_agent::{AgentError, AgentSettings, Client, ClientSettings, Secret, TokenSource, run};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::bench::{PATIENCE, Seen, is_running, shim_program};
use crate::fake_server::{FakeServer, TOKEN};

/// An agent at work against a fake server.
pub struct Agent {
    pub seen: Arc<Seen>,
    pub folder: tempfile::TempDir,
    shutdown: watch::Sender<Option<Instant>>,
    running: AbortOnDropHandle<Result<(), AgentError>>,
}

impl Agent {
    pub fn start(server: &FakeServer) -> Agent {
        Agent::start_with(server, |_| {})
    }

    pub fn start_with(server: &FakeServer, change: impl FnOnce(&mut AgentSettings)) -> Agent {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = AgentSettings::recommended("box".into(), folder.path().join("work"));
        settings.shim = shim_program();
        settings.stop_grace = Duration::from_millis(300);
        settings.leftover_grace = Duration::from_millis(100);
        change(&mut settings);
        Agent::start_at(&client_settings(server), folder, settings)
    }

    pub fn start_at(
        server: &ClientSettings,
        folder: tempfile::TempDir,
        settings: AgentSettings,
    ) -> Agent {
        let client = Client::new(server);
        let seen = Arc::new(Seen::default());
        let shutdown = watch::Sender::new(None);
        let client = client.expect("a client");
        let agent = run(
            client,
            settings,
            Arc::clone(&seen) as _,
            shutdown.subscribe(),
        );
        let running = AbortOnDropHandle::new(tokio::spawn(agent));
        Agent {
            seen,
            folder,
            shutdown,
            running,
        }
    }

    pub fn shut_down_in(&self, grace: Duration) {
        self.shutdown.send_replace(Some(Instant::now() + grace));
    }

    pub async fn ended(self) -> Result<(), AgentError> {
        let ended = tokio::time::timeout(PATIENCE, self.running).await;
        ended
            .expect("the agent ends")
            .expect("the agent does not panic")
    }

    pub async fn shut_down(self) {
        self.shut_down_in(Duration::ZERO);
        self.ended().await.expect("a clean end");
    }
}

/// How to reach a fake server.
pub fn client_settings(server: &FakeServer) -> ClientSettings {
    ClientSettings {
        server: server.address.clone(),
        token: TokenSource::Memory(Secret::new(TOKEN)),
        ca_file: None,
    }
}

pub fn steps(steps: &[&str]) -> Value {
    json!({ "name": "unit", "steps": steps })
}

pub fn sha256(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

// RP-2, RP-61: lease first, AckLease, heartbeats, upload and reference, one Complete.
#[tokio::test]
async fn a_job_is_leased_acknowledged_executed_and_completed() {
    let server = FakeServer::start(&[steps(&["echo hello", "echo world"])]).await;
    let agent = Agent::start(&server);
    let complete = server.wait_for("complete", 1).await.remove(0);
    server.wait_for("lease", 2).await;
    let log = "--- step 1: echo hello\nhello\n--- step 2: echo world\nworld\n";
    assert_eq!(server.log(), log);
    assert_eq!(complete["status"], "SUCCEEDED");
    assert_eq!(complete["exit_code"], 0);
    assert_eq!(complete["runner_id"], "box/1");
    assert_eq!(complete["lease_id"], "lease_canary_1");
    assert_eq!(
        complete["artifacts"],
        json!([{"type": "log", "uri": "delta://logs/1"}])
    );
    assert_eq!(complete["log"]["length"], log.len());
    assert_eq!(complete["log"]["sha256"], sha256(log.as_bytes()));
    let order: Vec<String> = server
        .state()
        .seen
        .iter()
        .map(|(it, _)| it.clone())
        .collect();
    assert_eq!(order[..2], ["lease", "ack-lease"]);
    // RP-35: nothing but a new request for work follows the answer.
    let after = order
        .iter()
        .position(|it| it == "complete")
        .expect("a completion")
        + 1;
    assert_eq!(order[after..], ["lease"]);
    assert!(order[..after].contains(&"heartbeat".to_owned()));
    let left = std::fs::read_dir(agent.folder.path().join("work/attempts")).expect("a folder");
    assert_eq!(left.count(), 0, "the workspace is removed");
    agent.shut_down().await;
}

// RP-18: exit code and cause go out as they were.
#[tokio::test]
async fn a_failure_carries_its_exit_code_and_cause() {
    let server = FakeServer::start(&[steps(&["exit 7"]), steps(&["kill -9 $$"])]).await;
    let agent = Agent::start(&server);
    let complete = server.wait_for("complete", 2).await;
    assert_eq!(complete[0]["status"], "FAILED");
    assert_eq!(complete[0]["exit_code"], 7);
    assert_eq!(complete[0]["cause"], "user_exit");
    assert_eq!(complete[1]["exit_code"], Value::Null);
    assert_eq!(complete[1]["cause"], "user_signal");
    agent.shut_down().await;
}

// RP-37, RP-39, RP-61, A70: a cancel is heard at once, stopped, acknowledged.
#[tokio::test]
async fn a_cancel_is_heard_at_once_and_acknowledged_after_the_work_is_gone() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        (state.ttl, state.interval) = (120.0, 40.0);
        state.jobs.push_back(steps(&[
            "echo $$; trap '' TERM; echo up; while :; do sleep 0.05; done",
        ]));
    });
    let agent = Agent::start(&server);
    agent.seen.wait_for("out up").await;
    let start = Instant::now();
    server.change(|state| state.cancel_deadline = Some(1.0));
    let ack = server.wait_for("cancel-ack", 1).await.remove(0);
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "long before the next heartbeat"
    );
    assert_eq!(ack["final_status"], "CANCELED");
    let log = server.log();
    let pid = log.lines().nth(1).expect("the job's number");
    assert!(!is_running(pid), "{log}");
    assert!(log.ends_with("--- canceled during step 1\n"), "{log}");
    assert_eq!(ack["log"]["sha256"], sha256(log.as_bytes()));
    assert!(server.bodies("complete").is_empty());
    agent.shut_down().await;
}

// RP-50: the runner ends the work at its max runtime.
#[tokio::test]
async fn a_job_past_its_max_runtime_is_reported_as_timed_out() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.max_runtime = 0.3;
        state.jobs.push_back(steps(&["sleep 600"]));
    });
    let agent = Agent::start(&server);
    let complete = server.wait_for("complete", 1).await.remove(0);
    assert_eq!(complete["status"], "TIMED_OUT");
    assert_eq!(complete["cause"], "job_timeout");
    assert_eq!(complete["exit_code"], Value::Null);
    agent.shut_down().await;
}

#[tokio::test]
async fn slots_work_side_by_side_under_their_own_names() {
    let meet = "mkdir -p \"$MEET\"; touch \"$MEET/$DELTA_LEASE_EPOCH\"; \
                while [ \"$(ls \"$MEET\" | wc -l)\" -lt 2 ]; do sleep 0.02; done";
    let place = tempfile::tempdir().expect("a folder");
    let env = json!({ "MEET": place.path().join("meet") });
    let job = json!({ "name": "unit", "steps": [meet], "env": env });
    let server = FakeServer::start(&[job.clone(), job]).await;
    let agent = Agent::start_with(&server, |settings| settings.slots = 2);
    let complete = server.wait_for("complete", 2).await;
    let mut names: Vec<_> = complete.iter().map(|it| it["runner_id"].clone()).collect();
    names.sort_by_key(Value::to_string);
    assert_eq!(names, ["box/1", "box/2"]);
    assert!(complete.iter().all(|it| it["status"] == "SUCCEEDED"));
    agent.shut_down().await;
}

#[tokio::test]
async fn a_workspace_can_begin_as_a_copy_of_a_tree() {
    let tree = tempfile::tempdir().expect("a tree");
    std::fs::write(tree.path().join("given"), "from the tree").expect("a file");
    let server = FakeServer::start(&[steps(&["cat given; echo changed > given"])]).await;
    let source = Source::Copy(tree.path().to_owned());
    let agent = Agent::start_with(&server, |settings| settings.source = source);
    let complete = server.wait_for("complete", 1).await.remove(0);
    assert_eq!(complete["status"], "SUCCEEDED");
    assert!(server.log().contains("from the tree"));
    let kept = std::fs::read_to_string(tree.path().join("given")).expect("a file");
    assert_eq!(kept, "from the tree");
    agent.shut_down().await;
}

// RP-54: neither lease nor credential is within the job's sight.
#[tokio::test]
async fn no_token_is_within_the_jobs_sight() {
    let look = "env; cat /proc/$$/environ; cat /proc/$$/cmdline; ls -R \"$TMPDIR\" ..";
    let server = FakeServer::start(&[steps(&[look])]).await;
    let agent = Agent::start(&server);
    server.wait_for("complete", 1).await;
    let log = server.log();
    assert!(log.contains("DELTA_LEASE_EPOCH=1"), "{log}");
    assert!(!log.contains("canary"), "{log}");
    agent.shut_down().await;
}

#[tokio::test]
async fn work_of_another_kind_is_a_spec_error() {
    let server = FakeServer::start(&[
        json!({ "steps": ["true"], "image": "rust:1.95" }),
        json!({ "function": { "name": "f" } }),
        json!({ "steps": ["true"], "workdir": "missing" }),
    ])
    .await;
    let agent = Agent::start(&server);
    for complete in server.wait_for("complete", 3).await {
        assert_eq!(complete["status"], "FAILED");
        assert_eq!(complete["cause"], "spec_error", "{complete}");
        assert_eq!(complete["exit_code"], Value::Null);
    }
    agent.shut_down().await;
}

// RP-24: a spec by reference is fetched with the lease and checked by its digest.
#[tokio::test]
async fn a_large_spec_is_fetched_and_checked() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.spec_hash = Some(String::new());
        state.lose.insert("spec".into(), 2);
        state
            .jobs
            .push_back(steps(&["echo fetched as $DELTA_JOB_NAME"]));
    });
    let agent = Agent::start(&server);
    let complete = server.wait_for("complete", 1).await.remove(0);
    assert_eq!(complete["status"], "SUCCEEDED");
    assert!(
        server.log().ends_with("fetched as unit\n"),
        "{}",
        server.log()
    );
    server.change(|state| {
        state.spec_hash = Some("0".repeat(64));
        state.jobs.push_back(steps(&["echo never"]));
    });
    let complete = server.wait_for("complete", 2).await.remove(1);
    assert_eq!(
        (&complete["status"], &complete["cause"]),
        (&json!("FAILED"), &json!("start_up"))
    );
    agent.shut_down().await;
}

#[tokio::test]
async fn an_idle_agent_ends_at_once() {
    let server = FakeServer::start(&[]).await;
    let agent = Agent::start(&server);
    server.wait_for("lease", 1).await;
    let start = Instant::now();
    agent.shut_down_in(Duration::from_secs(600));
    agent.ended().await.expect("a clean end");
    assert!(start.elapsed() < Duration::from_secs(5));
}

// A34: an agent that goes away says so; the server retries elsewhere.
#[tokio::test]
async fn a_shutdown_stops_running_work_at_its_moment_and_reports_it() {
    let server = FakeServer::start(&[steps(&["echo up; sleep 600"])]).await;
    let agent = Agent::start(&server);
    agent.seen.wait_for("out up").await;
    agent.shut_down_in(Duration::from_millis(200));
    agent.ended().await.expect("a clean end");
    let complete = server.bodies("complete").remove(0);
    assert_eq!(complete["status"], "FAILED");
    assert_eq!(complete["cause"], "agent_shutdown");
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_the_deadline_of_a_cancel() {
    let stubborn = "trap 'echo heard' TERM; echo up; while :; do sleep 0.05; done";
    let server = FakeServer::start(&[steps(&[stubborn])]).await;
    let agent = Agent::start(&server);
    agent.seen.wait_for("out up").await;
    server.change(|state| state.cancel_deadline = Some(600.0));
    agent.seen.wait_for("out heard").await;
    agent.shut_down_in(Duration::ZERO);
    agent.ended().await.expect("a clean end");
    let ack = server.bodies("cancel-ack").remove(0);
    assert_eq!(ack["final_status"], "CANCELED");
}

#[tokio::test]
async fn a_shutdown_lets_work_finish_inside_its_grace() {
    let server = FakeServer::start(&[steps(&["echo up; sleep 0.5; echo done"])]).await;
    let agent = Agent::start(&server);
    agent.seen.wait_for("out up").await;
    agent.shut_down_in(Duration::from_secs(600));
    agent.ended().await.expect("a clean end");
    assert_eq!(server.bodies("complete").remove(0)["status"], "SUCCEEDED");
    assert_eq!(server.bodies("lease").len(), 1, "no new work is taken");
}
