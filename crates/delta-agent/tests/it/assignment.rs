//! What the agent takes and what it does not, what it says of itself, and how it drains.

use std::time::Duration;

use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{AgentStatus, AssignWork, RunStatus, Undrain};
use serde_json::Value;

use crate::agent::{Agent, steps};
use crate::fake_server::{FakeServer, State, bytes_of};

/// The last heartbeat says so.
pub fn says_draining(state: &State) -> bool {
    says(state, AgentStatus::Draining)
}

fn says(state: &State, status: AgentStatus) -> bool {
    let mut said = state.seen.iter().rev();
    let last = said.find_map(|(_, said)| match said {
        Said::Heartbeat(beat) => Some(beat.status()),
        _ => None,
    });
    last == Some(status)
}

/// A job that ends when the file is there.
fn until(file: &std::path::Path) -> Value {
    let wait = format!(
        "echo up; until [ -e {} ]; do sleep 0.05; done",
        file.display()
    );
    steps(&[&wait])
}

/// Assigns more than the server by itself would.
fn push(server: &FakeServer, change: impl FnOnce(&mut AssignWork)) {
    server.change(|state| {
        let mut work = state.assignment(&steps(&["true"]));
        change(&mut work);
        state.say(vec![bytes_of(Say::AssignWork(work))]);
    });
}

/// Takes a field away.
type Lack = fn(&mut AssignWork);

// EP-39: it is rejected, and the reason names what is missing.
#[tokio::test]
async fn an_assignment_that_lacks_a_field_is_rejected() {
    let lacking: [(&str, Lack); 5] = [
        ("lease_ttl_ms", |work| work.lease_ttl_ms = 0),
        ("lease_heartbeat_interval_ms", |work| {
            work.lease_heartbeat_interval_ms = 0;
        }),
        ("timeout_seconds", |work| work.timeout_seconds = 0),
        ("job_spec", |work| work.job_spec.clear()),
        ("job_id", |work| work.job_id.clear()),
    ];
    let server = FakeServer::start(&[]).await;
    let agent = Agent::start(&server);
    server.wait_for("Heartbeat", 1).await;
    for (n, (field, lack)) in lacking.into_iter().enumerate() {
        push(&server, lack);
        server.wait_for("WorkRejected", n + 1).await;
        let reason = server.rejections().remove(n).reason;
        assert!(reason.contains(field), "{reason}");
    }
    assert_eq!(server.count("WorkAccepted"), 0);
    push(&server, |_| {});
    server.wait_for("RunComplete", 1).await;
    assert_eq!(server.count("Register"), 1, "the stream survived");
    agent.shut_down().await;
}

// A28: what is beyond its slots goes back.
#[tokio::test]
async fn an_assignment_beyond_its_slots_is_rejected() {
    let place = tempfile::tempdir().expect("a folder");
    let go = place.path().join("go");
    let server = FakeServer::start(&[until(&go)]).await;
    let agent = Agent::start(&server);
    agent.seen.wait_for("out up").await;
    push(&server, |_| {});
    server.wait_for("WorkRejected", 1).await;
    let rejected = server.rejections().remove(0);
    assert_eq!(
        (&*rejected.run_id, &*rejected.reason),
        ("exe_2", "resource_exhausted")
    );
    std::fs::write(go, "").expect("a file");
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Success);
    agent.shut_down().await;
}

// EP-42, F43: before it is accepted, work goes back to those who have room for it.
#[tokio::test]
async fn work_is_turned_away_while_the_disk_is_full() {
    let server = FakeServer::start(&[steps(&["true"])]).await;
    let agent = Agent::start_with(&server, |settings| settings.min_free = u64::MAX);
    server.wait_for("WorkRejected", 1).await;
    let rejected = server.rejections().remove(0);
    let full = "resource_exhausted: its disk is full, ";
    assert!(rejected.reason.starts_with(full), "{rejected:?}");
    assert_eq!(server.count("WorkAccepted"), 0);
    agent.shut_down().await;
}

// LM-17: an assignment that is said twice is one.
#[tokio::test]
async fn an_assignment_that_is_repeated_is_taken_once() {
    let place = tempfile::tempdir().expect("a folder");
    let go = place.path().join("go");
    let server = FakeServer::start(&[]).await;
    let agent = Agent::start_with(&server, |settings| settings.slots = 2);
    server.wait_for("Heartbeat", 1).await;
    server.change(|state| {
        let work = bytes_of(Say::AssignWork(state.assignment(&until(&go))));
        state.say(vec![work.clone(), work.clone()]);
        state.held.push(work);
    });
    agent.seen.wait_for("out up").await;
    server.change(State::let_go);
    let beats = server.count("Heartbeat");
    server.wait_for("Heartbeat", beats + 2).await;
    std::fs::write(go, "").expect("a file");
    server.wait_idle().await;
    agent.shut_down().await;
    assert_eq!(server.count("WorkAccepted"), 1);
    assert_eq!(server.count("RunComplete"), 1);
    assert!(server.rejections().is_empty());
}

// A28: a slot is free as soon as its result is taken.
#[tokio::test]
async fn work_may_follow_a_result_at_once() {
    let jobs: Vec<Value> = (0..20).map(|_| steps(&["true"])).collect();
    let server = FakeServer::start(&jobs).await;
    let agent = Agent::start(&server);
    server.wait_for("RunComplete", 20).await;
    assert!(server.rejections().is_empty());
    agent.shut_down().await;
}

// EP-6, EP-7: at the interval the server asked for, with the status and what is held.
#[tokio::test]
async fn heartbeats_tell_what_the_agent_does() {
    let place = tempfile::tempdir().expect("a folder");
    let go = place.path().join("go");
    let server = FakeServer::start(&[]).await;
    let agent = Agent::start(&server);
    // One a second; at the usual thirty nobody would wait for so many.
    server.wait_for("Heartbeat", 4).await;
    for beat in server.heartbeats() {
        assert_eq!(beat.status(), AgentStatus::Idle);
        assert!(beat.active_runs.is_empty() && beat.timestamp.is_some());
    }
    server.change(|state| state.jobs.push_back(until(&go)));
    server
        .wait_until(|state| says(state, AgentStatus::Busy))
        .await;
    let busy = server.heartbeats().pop().expect("a heartbeat");
    assert_eq!(busy.active_runs, ["exe_1"]);
    std::fs::write(go, "").expect("a file");
    server.wait_idle().await;
    let idle = server.heartbeats().pop().expect("a heartbeat");
    assert!(idle.active_runs.is_empty());
    agent.shut_down().await;
}

// EP-26: BUSY follows the acceptance and IDLE the result, however far off the next heartbeat is.
// Work that is over sooner says so by its result alone.
#[tokio::test]
async fn an_agent_says_at_once_that_it_is_busy_and_that_it_is_idle_again() {
    let place = tempfile::tempdir().expect("a folder");
    let go = place.path().join("go");
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        // Nobody here waits that long.
        state.heartbeat_seconds = 3600;
        state.interval = Duration::from_secs(600);
        state.ttl = Duration::from_secs(3600);
        state.jobs.push_back(until(&go));
    });
    let agent = Agent::start(&server);
    // The one in between is a renewal.
    server.wait_for("Renewal", 1).await;
    std::fs::write(go, "").expect("a file");
    server.wait_for("Heartbeat", 2).await;
    let said: Vec<&str> = server
        .state()
        .seen
        .iter()
        .filter_map(|(name, said)| match said {
            Said::Heartbeat(beat) => Some(beat.status().as_str_name()),
            Said::Result(_) if *name == "LogChunk" => None,
            _ => Some(*name),
        })
        .collect();
    let flow = [
        "Register",
        AgentStatus::Idle.as_str_name(),
        "WorkAccepted",
        AgentStatus::Busy.as_str_name(),
        "RunComplete",
        AgentStatus::Idle.as_str_name(),
    ];
    assert_eq!(said, flow);
    agent.shut_down().await;
}

// EP-24, EP-25, A50: nothing new is taken, what runs finishes, and then it says so once.
#[tokio::test]
async fn a_drain_lets_work_finish_and_takes_no_more() {
    let place = tempfile::tempdir().expect("a folder");
    let go = place.path().join("go");
    let server = FakeServer::start(&[until(&go)]).await;
    let agent = Agent::start_with(&server, |settings| settings.slots = 2);
    agent.seen.wait_for("out up").await;
    server.drain("abc");
    server.wait_until(says_draining).await;
    let draining = server.heartbeats().pop().expect("a heartbeat");
    assert_eq!(draining.active_runs, ["exe_1"]);
    push(&server, |_| {});
    server.wait_for("WorkRejected", 1).await;
    assert_eq!(server.rejections().remove(0).reason, "draining");
    assert!(server.drains_complete().is_empty(), "work is left");
    std::fs::write(go, "").expect("a file");
    server.wait_for("DrainComplete", 1).await;
    let order = server.names();
    let at = |name| order.iter().position(|it| *it == name);
    assert!(at("RunComplete") < at("DrainComplete"), "{order:?}");
    let result = server.results().remove(0);
    assert_eq!(result.status(), RunStatus::Success);
    // The same order again, and time to say it again.
    server.drain("abc");
    let beats = server.count("Heartbeat");
    server.wait_for("Heartbeat", beats + 3).await;
    assert_eq!(server.drains_complete(), ["abc"]);
    server.say(Say::Undrain(Undrain {
        drain_id: "abc".to_owned(),
    }));
    server.change(|state| {
        state.assigning = true;
        state.jobs.push_back(steps(&["true"]));
    });
    server.wait_for("RunComplete", 2).await;
    agent.shut_down().await;
}

// EP-25: an agent with nothing to do is drained at once.
#[tokio::test]
async fn an_idle_agent_is_drained_at_once() {
    let server = FakeServer::start(&[]).await;
    let agent = Agent::start(&server);
    server.wait_for("Heartbeat", 1).await;
    server.drain("one");
    server.wait_for("DrainComplete", 1).await;
    server.drain("two");
    server.wait_for("DrainComplete", 2).await;
    assert_eq!(server.drains_complete(), ["one", "two"]);
    agent.shut_down().await;
}

// The job spec's own limit of one step, and what every step came to.
#[tokio::test]
async fn a_step_that_takes_too_long_ends_the_job_and_every_step_is_reported() {
    let spec = serde_json::json!({ "name": "unit", "steps": [
        "echo one",
        { "run": "trap '' TERM; sleep 600", "name": "slow", "timeout_seconds": 0.2 },
        "echo never",
    ]});
    let server = FakeServer::start(&[spec]).await;
    let agent = Agent::start(&server);
    let result = server.wait_results(1).await.remove(0);
    assert_eq!(result.status(), RunStatus::Timeout);
    assert_eq!(result.cause, "step_timeout");
    let [one, slow] = &result.steps[..] else {
        panic!("two steps were begun: {:?}", result.steps);
    };
    assert_eq!((one.name.as_str(), one.exit_code), ("echo one", Some(0)));
    assert!(one.started_at.is_some() && !one.timed_out);
    assert_eq!((slow.name.as_str(), slow.exit_code), ("slow", None));
    assert!(slow.timed_out && slow.duration_ms >= 200, "{slow:?}");
    agent.shut_down().await;
}
