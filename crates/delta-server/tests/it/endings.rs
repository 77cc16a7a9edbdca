//! How work ends: by the agent's word, by its silence, or because it does not know of it.

use std::time::Duration;

use delta_core::{Settings, Span};
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{AssignWork, RunComplete, RunStatus, WorkRejected};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::bench::{Bench, job, patient_settings};

/// Long enough for work to be handed out where it is.
const A_WHILE: Duration = Duration::from_millis(500);

/// An agent with work of a job that has one attempt.
async fn assigned(bench: &Bench) -> (Agent, AssignWork) {
    let mut agent = Agent::new(bench).await;
    bench.create(json!([job("unit")])).await;
    let work = agent.work().await;
    (agent, work)
}

async fn attempt(bench: &Bench, work: &AssignWork) -> Value {
    bench.show_job(&work.job_id).await["attempts"][0].clone()
}

async fn taken(agent: &mut Agent) {
    agent
        .hears(|say| matches!(say, Say::CompleteAck(ack) if ack.accepted).then_some(()))
        .await;
}

async fn stale(agent: &mut Agent, run_id: &str) -> String {
    agent
        .hears(|say| match say {
            Say::StaleLease(stale) if stale.run_id == run_id => Some(stale.reason.clone()),
            _ => None,
        })
        .await
}

#[tokio::test]
async fn each_word_for_the_end_ends_the_attempt_as_it_should() {
    // EP-14, A30; CANCELLED with and without a cancel: see `sessions`.
    for (status, state, cause) in [
        (RunStatus::Success, "SUCCEEDED", Value::Null),
        (RunStatus::Failure, "FAILED", json!("user_exit")),
        (RunStatus::Error, "FAILED", json!("agent_error")),
        (RunStatus::Timeout, "TIMED_OUT", json!("job_timeout")),
    ] {
        let bench = Bench::patient().await;
        let (mut agent, work) = assigned(&bench).await;
        agent.accepts(&work).await;
        agent.say([agent.completed(&work, status)]).await;
        taken(&mut agent).await;
        let attempt = attempt(&bench, &work).await;
        let ended = (&attempt["state"], &attempt["cause"]);
        assert_eq!(ended, (&json!(state), &cause), "{status:?} {attempt}");
    }
}

#[tokio::test]
async fn an_error_is_never_the_users_whatever_word_comes_with_it() {
    // A30, A57
    for (status, word, cause) in [
        (RunStatus::Error, "gremlins", "agent_error"),
        (RunStatus::Error, "lease_lost", "agent_error"),
        (RunStatus::Error, "clone", "clone"),
        (RunStatus::Error, "spec_error", "spec_error"),
        (RunStatus::Failure, "gremlins", "user_exit"),
        (RunStatus::Failure, "lease_lost", "user_exit"),
    ] {
        let bench = Bench::patient().await;
        let (mut agent, work) = assigned(&bench).await;
        agent.accepts(&work).await;
        let complete = RunComplete {
            status: status.into(),
            cause: word.to_owned(),
            ..Default::default()
        };
        let complete = agent.result(&work, Payload::RunComplete(complete));
        agent.say([complete]).await;
        taken(&mut agent).await;
        let attempt = attempt(&bench, &work).await;
        assert_eq!(attempt["cause"], cause, "{status:?} {word} {attempt}");
    }
}

#[tokio::test]
async fn an_agent_whose_disk_was_full_rests_and_others_go_on() {
    // F43
    let bench = Bench::patient().await;
    let mut full = Agent::new(&bench).await;
    bench.run_with(2).await;
    let work = full.work().await;
    full.accepts(&work).await;
    let complete = RunComplete {
        status: RunStatus::Failure.into(),
        exit_code: Some(1),
        cause: "disk_full".to_owned(),
        ..Default::default()
    };
    let complete = full.result(&work, Payload::RunComplete(complete));
    full.say([complete]).await;
    taken(&mut full).await;
    assert!(full.hears_no_work(A_WHILE).await, "the other job waits");
    Agent::new(&bench).await.work().await;
}

#[tokio::test]
async fn work_that_is_not_accepted_in_time_goes_back_to_the_queue() {
    // EP-22, RP-27
    let settings = Settings {
        ack_timeout: Span(300),
        ..patient_settings()
    };
    let bench = Bench::memory(settings).await;
    let (mut agent, work) = assigned(&bench).await;
    assert_eq!(work.accept_within_ms, 300);
    assert_eq!(stale(&mut agent, &work.run_id).await, "LEASE_REVOKED");
    let again = agent.work().await;
    assert_eq!((&again.job_id, again.attempt), (&work.job_id, 1));
    assert!(again.lease_epoch > work.lease_epoch, "another lease");
    // Too late for the first one.
    agent.say([agent.accepted(&work)]).await;
    stale(&mut agent, &work.run_id).await;
    agent.accepts(&again).await;
    let attempt = attempt(&bench, &work).await;
    assert_eq!(
        (&attempt["losses"], &attempt["dispatches"]),
        (&json!(0), &json!(1))
    );
}

#[tokio::test]
async fn work_that_is_rejected_after_it_was_accepted_has_failed() {
    // A32, EP-9
    let bench = Bench::patient().await;
    let (mut agent, work) = assigned(&bench).await;
    agent.accepts(&work).await;
    let rejected = Said::WorkRejected(WorkRejected {
        run_id: work.run_id.clone(),
        agent_id: agent.id.clone(),
        reason: "resource_exhausted".into(),
        lease: work.lease.clone(),
    });
    agent.say([rejected]).await;
    taken(&mut agent).await;
    let attempt = attempt(&bench, &work).await;
    let ended = (&attempt["state"], &attempt["cause"], &attempt["summary"]);
    let expected = (
        json!("FAILED"),
        json!("declined"),
        json!("rejected: resource_exhausted"),
    );
    assert_eq!(ended, (&expected.0, &expected.1, &expected.2));
}

#[tokio::test]
async fn work_that_heartbeats_leave_out_is_taken_back_and_what_they_invent_is_stale() {
    // A63
    let settings = Settings {
        heartbeat_interval: Span(200),
        ..patient_settings()
    };
    let bench = Bench::memory(settings).await;
    let (mut agent, work) = assigned(&bench).await;
    agent.accepts(&work).await;
    let invented = AssignWork {
        run_id: "exec_00000000000000000000000000000001_0_1_1".into(),
        ..work.clone()
    };
    let mut beat = agent.heartbeat(&[&invented], None);
    if let Said::Heartbeat(beat) = &mut beat {
        beat.leases.clear();
    }
    agent.say([beat]).await;
    assert_eq!(stale(&mut agent, &invented.run_id).await, "UNKNOWN_LEASE");
    // One more heartbeat without it would be too early to count: it is said until it counts.
    let told = async {
        loop {
            agent.say([agent.heartbeat(&[], None)]).await;
            let pause = std::time::Duration::from_millis(100);
            if let Ok(reason) = tokio::time::timeout(pause, stale(&mut agent, &work.run_id)).await {
                break reason;
            }
        }
    };
    let told = tokio::time::timeout(crate::bench::PATIENCE, told).await;
    assert_eq!(told.unwrap(), "LEASE_REVOKED");
    let lease = attempt(&bench, &work).await["leases"][0].clone();
    let ended = (&lease["state"], &lease["reason"]);
    assert_eq!(ended, (&json!("REVOKED"), &json!("DISOWNED")), "{lease}");
}
