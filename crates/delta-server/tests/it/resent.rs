//! A last word whose answer got lost, said again on another session (A18, F5).

use delta_core::{Settings, Span};
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AssignWork, CompleteAck, HeldLease, RegisterRequest, RunStatus, StaleLease,
};
use serde_json::Value;

use crate::agent::{Agent, request};
use crate::bench::{Bench, patient_settings};
use crate::restart;

/// What an agent says to come back as itself, with what it thinks it holds.
fn back(agent: &Agent, holds: &[&AssignWork]) -> RegisterRequest {
    let held = |work: &&AssignWork| HeldLease {
        run_id: work.run_id.clone(),
        lease: work.lease.clone(),
    };
    RegisterRequest {
        agent_id: agent.id.clone(),
        resume_secret: agent.registered.resume_secret.clone(),
        leases: holds.iter().map(held).collect(),
        ..request()
    }
}

impl Agent {
    async fn complete_ack(&mut self) -> CompleteAck {
        self.hears(|say| match say {
            Say::CompleteAck(ack) => Some(ack.clone()),
            _ => None,
        })
        .await
    }

    async fn stale(&mut self) -> StaleLease {
        self.hears(|say| match say {
            Say::StaleLease(stale) => Some(stale.clone()),
            _ => None,
        })
        .await
    }
}

/// An agent that has accepted a job of its own run.
async fn at_work(bench: &Bench) -> (Agent, AssignWork, String) {
    let mut agent = Agent::new(bench).await;
    let (run, _) = bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    (agent, work, run)
}

/// Says its last word; the connection is gone before the answer.
async fn gone_with(bench: &Bench, agent: Agent, work: &AssignWork, status: RunStatus, state: &str) {
    agent.say([agent.completed(work, status)]).await;
    let path = format!("/jobs/{}", work.job_id);
    bench.until(&path, "/attempts/0/state", state).await;
}

async fn events(bench: &Bench, run: &str) -> usize {
    let path = format!("/api/v1/runs/{run}/events");
    let page = bench.get(&path).await.expect(200);
    page["events"].as_array().map_or(0, Vec::len)
}

#[tokio::test]
async fn a_result_is_answered_the_same_on_the_next_session() {
    // A18, F5
    let bench = Bench::patient().await;
    let (agent, work, run) = at_work(&bench).await;
    let lists = back(&agent, &[&work]);
    gone_with(&bench, agent, &work, RunStatus::Success, "SUCCEEDED").await;
    let before = events(&bench, &run).await;
    // One that lists what it holds, and one that does not.
    for registration in [
        lists.clone(),
        RegisterRequest {
            leases: vec![],
            ..lists
        },
    ] {
        let listed = registration.leases.len();
        let mut agent = Agent::register(&bench, registration).await.unwrap();
        let resume = agent.registered.resume.iter();
        let resume: Vec<_> = resume.map(|it| (it.live, it.reason.as_str())).collect();
        assert_eq!(resume, vec![(false, "ALREADY_FINAL"); listed]);
        if listed > 0 {
            // A63: it is known, so its heartbeat is no offence; but it is no right either.
            agent.say([agent.heartbeat(&[&work], Some(9))]).await;
            let renewed = agent.hears(|say| match say {
                Say::HeartbeatAck(ack) => Some(ack.leases.clone()),
                Say::StaleLease(stale) => panic!("{stale:?}"),
                _ => None,
            });
            let renewed = renewed.await;
            assert!(renewed[0].stale && renewed[0].reason == "ALREADY_FINAL");
        }
        agent
            .say([agent.completed(&work, RunStatus::Success)])
            .await;
        assert!(agent.complete_ack().await.accepted);
        // First wins: another result is refused, as over HTTP, and so is a cancel.
        for other in [RunStatus::Failure, RunStatus::Cancelled] {
            agent.say([agent.completed(&work, other)]).await;
            assert_eq!(agent.stale().await.reason, "ALREADY_FINAL");
        }
    }
    assert_eq!(events(&bench, &run).await, before, "nothing was changed");
}

#[tokio::test]
async fn a_cancel_and_a_stop_of_the_agent_s_own_are_answered_the_same_on_the_next_session() {
    // A18, A34, F5
    for asked in [true, false] {
        let bench = Bench::patient().await;
        let (agent, work, run) = at_work(&bench).await;
        if asked {
            bench.cancel_run(&run).await;
        }
        let again = back(&agent, &[]);
        let state = if asked { "CANCELED" } else { "FAILED" };
        gone_with(&bench, agent, &work, RunStatus::Cancelled, state).await;
        let mut agent = Agent::register(&bench, again).await.unwrap();
        agent
            .say([agent.completed(&work, RunStatus::Cancelled)])
            .await;
        assert!(agent.complete_ack().await.accepted, "asked for: {asked}");
        agent
            .say([agent.completed(&work, RunStatus::Failure)])
            .await;
        assert_eq!(agent.stale().await.reason, "ALREADY_FINAL");
    }
}

#[tokio::test]
async fn a_result_after_a_cancel_is_answered_the_same_on_the_next_session() {
    // A10, A18
    let bench = Bench::patient().await;
    let (agent, work, run) = at_work(&bench).await;
    bench.cancel_run(&run).await;
    let again = back(&agent, &[&work]);
    gone_with(&bench, agent, &work, RunStatus::Success, "CANCELED").await;
    let mut agent = Agent::register(&bench, again).await.unwrap();
    agent
        .say([agent.completed(&work, RunStatus::Success)])
        .await;
    let ack = agent.complete_ack().await;
    assert_eq!(
        (ack.accepted, ack.final_status.as_str()),
        (false, "CANCELED")
    );
    assert_eq!(ack.reason, "CANCEL_REQUESTED");
}

#[tokio::test]
async fn a_result_is_answered_the_same_by_the_server_s_next_process() {
    // A18, F5, F12
    let bench = restart::start(patient_settings()).await;
    let (agent, work, run) = at_work(&bench).await;
    let again = back(&agent, &[&work]);
    gone_with(&bench, agent, &work, RunStatus::Success, "SUCCEEDED").await;
    let bench = restart::restart(bench, patient_settings()).await;
    let before = events(&bench, &run).await;
    let mut agent = Agent::register(&bench, again).await.unwrap();
    agent
        .say([agent.completed(&work, RunStatus::Success)])
        .await;
    assert!(agent.complete_ack().await.accepted);
    assert_eq!(events(&bench, &run).await, before);
}

#[tokio::test]
async fn the_rest_of_a_log_is_taken_on_the_next_session() {
    // I25, A27
    let bench = Bench::patient().await;
    let (agent, work, _) = at_work(&bench).await;
    agent.say([agent.log(&work, Some(0), b"half ")]).await;
    let again = back(&agent, &[&work]);
    let whole = b"half and half";
    let result = agent.completed_with_log(&work, whole);
    agent.say([result.clone()]).await;
    let path = format!("/jobs/{}", work.job_id);
    bench.until(&path, "/attempts/0/state", "SUCCEEDED").await;
    drop(agent);
    let mut agent = Agent::register(&bench, again).await.unwrap();
    agent.say([agent.log(&work, Some(5), &whole[5..])]).await;
    agent
        .hears(|say| matches!(say, Say::LogAck(ack) if ack.received == 13).then_some(()))
        .await;
    // Not a byte more than was declared.
    agent.say([agent.log(&work, Some(13), b"!")]).await;
    assert_eq!(agent.stale().await.run_id, work.run_id);
    agent.say([result]).await;
    assert!(agent.complete_ack().await.accepted);
    assert_eq!(bench.log(&work.job_id).await, whole);
}

#[tokio::test]
async fn somebody_else_s_lease_is_answered_like_one_that_never_was() {
    // T32, A25, A37
    let mut bench = Bench::patient().await;
    let (agent, work, run) = at_work(&bench).await;
    gone_with(&bench, agent, &work, RunStatus::Success, "SUCCEEDED").await;
    let before = events(&bench, &run).await;
    let never = AssignWork {
        run_id: work.run_id.replace("exec_", "exec_f"),
        ..work.clone()
    };
    let mut wrong = work.clone();
    let last = wrong.lease.pop().unwrap();
    wrong.lease.push(if last == '0' { '1' } else { '0' });
    let shared = bench.runner.clone();
    let another = bench.token("runner").await;
    // Another agent with the same credential, and one with another.
    for token in [shared, another] {
        bench.runner = token;
        let held = |work: &AssignWork| HeldLease {
            run_id: work.run_id.clone(),
            lease: work.lease.clone(),
        };
        let registration = RegisterRequest {
            leases: vec![held(&work), held(&wrong), held(&never)],
            ..request()
        };
        let mut other = Agent::register(&bench, registration).await.unwrap();
        let resume = other.registered.resume.iter();
        let reasons: Vec<_> = resume.map(|it| it.reason.as_str()).collect();
        assert_eq!(reasons, ["UNKNOWN_LEASE"; 3]);
        for shown in [&work, &wrong] {
            other
                .say([other.completed(shown, RunStatus::Success)])
                .await;
            assert_eq!(other.stale().await.reason, "UNKNOWN_LEASE");
        }
    }
    assert_eq!(events(&bench, &run).await, before);
    let view: Value = bench.show(&run).await;
    assert_eq!(view["outcome"], "SUCCESS");
}

#[tokio::test]
async fn a_lease_that_was_lost_meanwhile_is_said_to_be() {
    // A37, RP-44: as over HTTP, and not the same for one that expired and one with a successor.
    let settings = Settings {
        lease_ttl: Span(600),
        heartbeat_interval: Span(200),
        ..patient_settings()
    };
    let bench = Bench::memory(settings).await;
    let (agent, work, _) = at_work(&bench).await;
    let again = back(&agent, &[&work]);
    drop(agent);
    let path = format!("/jobs/{}", work.job_id);
    bench.until(&path, "/state", "QUEUED").await;
    // It is to take nothing itself.
    bench.order(&again.agent_id, "drain").await.expect(200);
    for reason in ["LEASE_EXPIRED", "LEASE_SUPERSEDED"] {
        let mut agent = Agent::register(&bench, again.clone()).await.unwrap();
        let point = &agent.registered.resume[0];
        assert_eq!((point.live, point.reason.as_str()), (false, reason));
        let done = agent.completed(&work, RunStatus::Success);
        // A63: to list it is answered, too.
        let listed = agent.heartbeat(&[&work], None);
        for (said, why) in [(done, reason), (listed, "UNKNOWN_LEASE")] {
            agent.say([said]).await;
            let told = agent.stale().await;
            assert_eq!((&told.run_id, told.reason.as_str()), (&work.run_id, why));
        }
        if reason == "LEASE_EXPIRED" {
            Agent::new(&bench).await.work().await;
        }
    }
    assert_ne!(bench.job_state(&work.job_id).await, "SUCCEEDED");
}
