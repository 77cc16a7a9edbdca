//! Function jobs from assignment to result, against a server that behaves.

use std::time::Duration;

use delta_agent::AgentSettings;
use delta_wire::agent::proto::RunStatus;
use serde_json::{Value, json};

use super::bench::{one_pool, settings};
use crate::agent::{Agent, hex, sha256, steps};
use crate::bench::until;
use crate::fake_server::FakeServer;

fn function(name: &str, params: Value) -> Value {
    json!({ "function": { "name": name, "params": params } })
}

fn with_pool(more: &'static str) -> impl FnOnce(&mut AgentSettings) {
    move |agent: &mut AgentSettings| {
        let runners = settings(&one_pool(more), &std::env::temp_dir());
        agent.slots = runners.room();
        agent.runners = Some(runners);
    }
}

// A46, A68: what it offers, and that nothing of a call is on the disk.
#[tokio::test]
async fn a_function_is_assigned_called_and_answered() {
    let jobs = [
        function("h#echo", json!({"k": 1})),
        function(
            "h#say",
            json!({"status": "error", "error": {"message": "boom", "type": "t"}}),
        ),
        function(
            "h#say",
            json!({"status": "retry", "retry_after_seconds": 2}),
        ),
        function("h#nosuch", json!({})),
        function("h#close", json!({})),
        function("h#say", json!({"status": "timeout"})),
    ];
    let server = FakeServer::start(&[]).await;
    let agent = Agent::start_with(&server, with_pool("size: 2\n    in_flight: 3"));
    for (count, job) in jobs.into_iter().enumerate() {
        server.change(|state| state.jobs.push_back(job));
        server.wait_results(count + 1).await;
    }
    let results = server.results();
    let offered = server.registrations()[0].capabilities.clone().unwrap();
    assert_eq!(offered.work, ["function"]);
    assert_eq!(offered.max_parallel, 6);
    let mut names = offered.runtimes.iter().map(|it| it.name.as_str());
    assert!(names.any(|name| name == "runner:h"), "{offered:?}");

    assert_eq!(results[0].status(), RunStatus::Success);
    assert_eq!(results[0].exit_code, Some(0));
    assert_eq!(results[0].log_length, Some(0));
    assert_eq!(hex(&results[0].log_sha256), sha256(b""));
    let answer = results[0].answer.clone().unwrap();
    let request: Value = serde_json::from_str(&answer.result).unwrap();
    assert_eq!(request["context"]["lease_epoch"], 1, "A72");
    assert_eq!(request["context"]["worker_id"], "box/1");
    let text = request.to_string();
    assert!(!text.contains("canary"), "no lease token: {text}");

    assert_eq!(results[1].status(), RunStatus::Failure);
    assert_eq!(
        (results[1].cause.as_str(), results[1].exit_code),
        ("user_exit", Some(1))
    );
    assert_eq!(results[1].message, "boom");
    let error = results[1].answer.clone().unwrap().error.unwrap();
    assert_eq!(
        (error.message.as_str(), error.r#type.as_str()),
        ("boom", "t")
    );
    assert_eq!(
        results[2].answer.clone().unwrap().retry_after_ms,
        Some(2000)
    );
    assert_eq!(results[3].cause, "handler_not_found");
    assert_eq!(
        (results[4].status(), results[4].cause.as_str()),
        (RunStatus::Error, "agent_error")
    );
    assert_eq!(
        (results[5].status(), results[5].cause.as_str()),
        (RunStatus::Timeout, "job_timeout")
    );
    assert!(agent.has_forgotten());
    agent.has_no_workspace().await;
    assert_eq!(server.count("LogChunk"), 0);
    agent.shut_down().await;
}

#[tokio::test]
async fn many_calls_are_under_way_at_once() {
    const AT_ONCE: usize = 64;
    let folder = tempfile::tempdir().expect("a folder");
    let (begun, go) = (folder.path().join("begun"), folder.path().join("go"));
    std::fs::create_dir(&begun).expect("a folder");
    let hold = |number: usize| json!({"begun": begun.join(number.to_string()), "path": go});
    let jobs: Vec<Value> = (0..100)
        .map(|number| function("h#until", hold(number)))
        .collect();
    let server = FakeServer::start(&jobs).await;
    let agent = Agent::start_with(&server, with_pool("in_flight: 64\n    pipeline: true"));
    // None ends before so many have begun, and no more begin before one has ended.
    let under_way = || std::fs::read_dir(&begun).expect("a folder").count();
    until("as many as may be", || under_way() == AT_ONCE).await;
    std::fs::write(&go, "").expect("a file");
    let results = server.wait_results(100).await;
    assert!(results.iter().all(|it| it.status() == RunStatus::Success));
    assert_eq!(under_way(), 100);
    assert!(server.rejections().is_empty());
    agent.shut_down().await;
}

// RP-39, EP-23: canceled by the server, and acknowledged when nothing of it runs.
#[tokio::test]
async fn a_cancel_of_a_function_is_heard_and_acknowledged() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        (state.ttl, state.interval) = (Duration::from_secs(120), Duration::from_secs(40));
        state.jobs.push_back(function("h#wait", json!({})));
    });
    let agent = Agent::start_with(&server, with_pool(""));
    server.wait_for("Renewal", 1).await;
    server.cancel("exe_1", Duration::from_secs(60));
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Cancelled);
    assert_eq!(result.confirmed, Some(true));
    agent.shut_down().await;
}

// RP-50, RQ-32
#[tokio::test]
async fn a_function_past_its_max_runtime_is_reported_as_timed_out() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.timeout_seconds = 1;
        state.jobs.push_back(function("h#never", json!({})));
    });
    let agent = Agent::start_with(&server, with_pool("grace: 300ms"));
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(
        (result.status(), result.cause.as_str()),
        (RunStatus::Timeout, "job_timeout")
    );
    agent.shut_down().await;
}

// RP-45: out of touch for a whole time to live, it ends the call and says nothing.
#[tokio::test]
async fn a_call_whose_lease_is_over_is_not_reported() {
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        (state.ttl, state.interval) = (Duration::from_secs(2), Duration::from_millis(500));
        state
            .jobs
            .push_back(function("h#wait", json!({"seconds": 5})));
    });
    let agent = Agent::start_with(&server, with_pool(""));
    server.wait_for("Renewal", 1).await;
    server.change(|state| state.stale = true);
    agent
        .seen
        .wait_for("ended Failed { exit_code: None }")
        .await;
    agent.shut_down().await;
    assert!(server.results().is_empty());
}

// EP-51, A34
#[tokio::test]
async fn an_agent_that_is_shut_down_says_so_of_its_calls() {
    let server = FakeServer::start(&[function("h#wait", json!({}))]).await;
    let agent = Agent::start_with(&server, with_pool(""));
    server.wait_for("Renewal", 1).await;
    agent.shut_down().await;
    let results = server.results();
    assert_eq!(results[0].cause, "agent_shutdown");
}

// A call does not outlive its agent: the next one knows nothing of it, and says so.
#[tokio::test]
async fn the_next_agent_holds_no_lease_of_a_call() {
    let server = FakeServer::start(&[function("h#wait", json!({}))]).await;
    let agent = Agent::start_with(&server, with_pool(""));
    server.wait_for("Renewal", 1).await;
    assert!(agent.has_forgotten(), "nothing is written down");
    let next = agent.replaced(&server).await;
    server
        .wait_until(|state| state.count("Register") == 2)
        .await;
    assert!(server.registrations()[1].leases.is_empty());
    next.shut_down().await;
}

// A46: whoever runs steps here may reach the runners' sockets.
#[tokio::test]
async fn an_agent_with_pools_takes_steps_only_when_it_is_mixed() {
    let server = FakeServer::start(&[steps(&["true"])]).await;
    let agent = Agent::start_with(&server, with_pool(""));
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(
        (result.status(), result.cause.as_str()),
        (RunStatus::Error, "start_up")
    );
    assert!(result.message.contains("--mixed"), "{result:?}");
    agent.shut_down().await;

    let server = FakeServer::start(&[steps(&["true"]), function("h#echo", json!({}))]).await;
    let agent = Agent::start_with(&server, |settings| {
        with_pool("")(settings);
        settings.mixed = true;
    });
    let results = server.wait_results(2).await;
    assert!(
        results.iter().all(|it| it.status() == RunStatus::Success),
        "{results:?}"
    );
    let offered = server.registrations()[0].capabilities.clone().unwrap();
    assert_eq!(offered.work, ["steps", "tests", "function"]);
    agent.shut_down().await;
}
