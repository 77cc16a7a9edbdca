//! Agents that say too much, too often, or come back after something happened to their work.

use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{Heartbeat, RegisterRequest, RunStatus, WorkAccepted};
use tonic::Code;

use crate::agent::{Agent, request};
use crate::bench::{Bench, forcing_settings};

#[tokio::test]
async fn every_log_chunk_that_is_taken_is_stored_however_many_come_at_once() {
    // EP-45, D8: reading stops when enough waits, and no chunk that was read is dropped.
    let bench = Bench::patient().await;
    let (_, jobs) = bench.run_with(1).await;
    let mut agent = Agent::new(&bench).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    const FRAMES: usize = 6;
    const CHUNKS: usize = 4_000;
    for _ in 0..FRAMES {
        agent
            .say((0..CHUNKS).map(|_| agent.log(&work, None, b"12345678")))
            .await;
    }
    let length = (FRAMES * CHUNKS * 8) as u64;
    let stored = |say: &Say| match say {
        Say::LogAck(ack) => (ack.received == length).then_some(()),
        _ => None,
    };
    agent.hears(stored).await;
    agent
        .say([agent.completed(&work, RunStatus::Success)])
        .await;
    agent
        .hears(|say| matches!(say, Say::CompleteAck(_)).then_some(()))
        .await;
    assert_eq!(bench.log(&jobs[0]).await.len() as u64, length);
}

#[tokio::test]
async fn a_heartbeat_names_no_more_than_an_agent_can_hold() {
    // D15, T24
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let heartbeat = Heartbeat {
        agent_id: agent.id.clone(),
        active_runs: vec![String::new(); 100_000],
        ..Default::default()
    };
    agent.say([Said::Heartbeat(heartbeat)]).await;
    let field = agent.hears(|say| match say {
        Say::ProtocolError(error) => Some(error.field.clone()),
        _ => None,
    });
    assert_eq!(field.await, "active_runs");
}

#[tokio::test]
async fn whoever_sends_nothing_but_nonsense_is_sent_away() {
    // A36: a message without its fields costs an answer; a hundred of them end the session.
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    agent
        .say((0..1_000).map(|_| Said::WorkAccepted(WorkAccepted::default())))
        .await;
    assert_eq!(agent.ends().await.unwrap().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn a_lease_is_renewed_no_faster_than_it_is_answered() {
    // D15: of many renewals at once the first and the newest count.
    let bench = Bench::patient().await;
    bench.run_with(1).await;
    let mut agent = Agent::new(&bench).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    agent
        .say((1..=1_000).map(|seq| agent.heartbeat(&[&work], Some(seq))))
        .await;
    let mut answered = Vec::new();
    while answered.last() != Some(&1_000) {
        let seqs = agent.hears(|say| match say {
            Say::HeartbeatAck(ack) => Some(ack.leases.iter().filter_map(|it| it.seq).collect()),
            _ => None,
        });
        let seqs: Vec<u64> = seqs.await;
        answered.extend(seqs);
    }
    assert_eq!(answered.first(), Some(&1));
    assert!(
        answered.len() < 100,
        "{} renewals were judged",
        answered.len()
    );
}

#[tokio::test]
async fn a_cancel_asked_while_the_agent_was_away_is_told_when_it_is_back() {
    // RP-36, EP-29
    let bench = Bench::patient().await;
    let (run, _) = bench.run_with(1).await;
    let mut agent = Agent::new(&bench).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    let back = RegisterRequest {
        agent_id: agent.id.clone(),
        resume_secret: agent.registered.resume_secret.clone(),
        ..request()
    };
    drop(agent);
    bench.cancel_run(&run).await;
    let mut agent = Agent::register(&bench, back).await.unwrap();
    let told = agent.hears(|say| match say {
        Say::CancelWork(cancel) => Some(cancel.clone()),
        _ => None,
    });
    let told = told.await;
    assert_eq!((told.run_id, told.deadline_ms > 0), (work.run_id, true));
}

#[tokio::test]
async fn the_log_of_a_forced_cancel_is_taken_on_the_stream_too() {
    // A42
    let bench = Bench::memory(forcing_settings()).await;
    let (run, jobs) = bench.run_with(1).await;
    let mut agent = Agent::new(&bench).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    bench.cancel_run(&run).await;
    let forced = |say: &Say| matches!(say, Say::StaleLease(_)).then_some(());
    let beats = async {
        // Alive, and deaf to the cancel.
        for seq in 1.. {
            agent.say([agent.heartbeat(&[&work], Some(seq))]).await;
            let heard =
                tokio::time::timeout(std::time::Duration::from_millis(50), agent.hears(forced));
            if heard.await.is_ok() {
                break;
            }
        }
    };
    beats.await;
    // A heartbeat that was under way meanwhile is answered, and takes nothing away.
    agent.say([agent.heartbeat(&[&work], Some(u64::MAX))]).await;
    let over = |say: &Say| match say {
        Say::HeartbeatAck(ack) => ack.leases.iter().any(|it| it.stale).then_some(()),
        _ => None,
    };
    agent.hears(over).await;
    agent
        .say([agent.log(&work, Some(0), b"the last words")])
        .await;
    agent
        .hears(|say| matches!(say, Say::LogAck(_)).then_some(()))
        .await;
    assert_eq!(bench.log(&jobs[0]).await, b"the last words");
}
