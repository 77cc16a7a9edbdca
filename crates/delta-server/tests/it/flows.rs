//! The message flows that the Execution Protocol draws, recorded: every message both ways, by name
//! and in order, compared with a file each. `>` is said by the agent, `<` by the control plane.
//!
//! The specification's own messages must appear in its order; our answers stand between them.

use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AgentStatus, AssignWork, DrainComplete, HeldLease, RegisterRequest, RunStatus,
};
use serde_json::Value;

use crate::agent::{Agent, request};
use crate::bench::Bench;

/// A message of the agent as it is recorded.
pub fn said(said: &Said) -> String {
    match said {
        Said::Register(it) if it.agent_id.is_empty() => "> RegisterRequest".into(),
        Said::Register(_) => "> RegisterRequest(agent_id)".into(),
        Said::Heartbeat(it) => {
            let active = if it.active_runs.is_empty() {
                ""
            } else {
                ", active"
            };
            format!("> Heartbeat({}{active})", it.status().as_str_name())
        }
        Said::WorkAccepted(_) => "> WorkAccepted".into(),
        Said::WorkRejected(_) => "> WorkRejected".into(),
        Said::Result(it) => match &it.payload {
            Some(Payload::LogChunk(_)) => "> ResultStream(log_chunk)".into(),
            Some(Payload::TestResult(_)) => "> ResultStream(test_result)".into(),
            Some(Payload::Artifact(_)) => "> ResultStream(artifact)".into(),
            Some(Payload::RunComplete(it)) => {
                format!(
                    "> ResultStream(run_complete: {})",
                    it.status().as_str_name()
                )
            }
            None => "> ResultStream".into(),
        },
        Said::DrainComplete(_) => "> DrainComplete".into(),
        Said::CreateUpload(_) => "> CreateUpload".into(),
    }
}

/// A message of the control plane as it is recorded.
pub fn told(say: &Say) -> String {
    let name = match say {
        Say::RegisterResponse(_) => "RegisterResponse",
        Say::AssignWork(_) => "AssignWork",
        Say::CancelWork(_) => "CancelWork",
        Say::Drain(_) => "Drain",
        Say::HeartbeatAck(_) => "HeartbeatAck",
        Say::WorkAck(_) => "WorkAck",
        Say::LogAck(_) => "LogAck",
        Say::CompleteAck(_) => "CompleteAck",
        Say::StaleLease(_) => "StaleLease",
        Say::ProtocolError(_) => "ProtocolError",
        Say::UploadCreated(_) => "UploadCreated",
        Say::Undrain(_) => "Undrain",
        Say::TestResultAck(_) => "TestResultAck",
    };
    format!("< {name}")
}

#[track_caller]
fn compare(flow: &str, trace: &[String]) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/flows");
    let path = format!("{folder}/{flow}.txt");
    let trace = format!("{}\n", trace.join("\n"));
    if std::env::var_os("DELTA_BLESS").is_some() {
        return std::fs::write(&path, trace).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap();
    let how = "read the change, then DELTA_BLESS=1 cargo test -p delta-server flows";
    assert_eq!(trace, recorded, "{flow}: {how}");
}

impl Agent {
    fn traced(&self) -> Vec<String> {
        self.trace.lock().unwrap().clone()
    }

    async fn logs(&mut self, work: &AssignWork, offset: u64, data: &[u8]) {
        self.say([self.log(work, Some(offset), data)]).await;
        let end = offset + data.len() as u64;
        self.hears(|say| matches!(say, Say::LogAck(ack) if ack.received == end).then_some(()))
            .await;
    }

    async fn renews(&mut self, status: AgentStatus, work: &AssignWork) {
        let mut heartbeat = self.heartbeat(&[work], Some(1));
        if let Said::Heartbeat(heartbeat) = &mut heartbeat {
            heartbeat.set_status(status);
        }
        self.say([heartbeat]).await;
        let extended = self.hears(|say| match say {
            Say::HeartbeatAck(ack) => Some(ack.leases[0].extended),
            _ => None,
        });
        assert!(extended.await);
    }

    async fn completes(&mut self, work: &AssignWork, status: RunStatus) {
        self.say([self.completed(work, status)]).await;
        self.hears(|say| matches!(say, Say::CompleteAck(ack) if ack.accepted).then_some(()))
            .await;
    }
}

#[tokio::test]
async fn the_normal_flow_is_as_drawn() {
    // EP-26
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    agent.say([agent.heartbeat(&[], None)]).await;
    bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    agent.renews(AgentStatus::Busy, &work).await;
    agent.logs(&work, 0, b"one\n").await;
    agent.logs(&work, 4, b"two\n").await;
    agent.completes(&work, RunStatus::Failure).await;
    agent.say([agent.heartbeat(&[], None)]).await;
    compare("normal", &agent.traced());
}

#[tokio::test]
async fn the_flow_of_a_cancel_is_as_drawn() {
    // EP-27
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let (run, _) = bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    bench.cancel_run(&run).await;
    agent
        .hears(|say| matches!(say, Say::CancelWork(_)).then_some(()))
        .await;
    agent.completes(&work, RunStatus::Cancelled).await;
    compare("cancel", &agent.traced());
}

#[tokio::test]
async fn the_flow_of_a_drain_is_as_drawn() {
    // EP-28
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    bench.run_with(2).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    bench.order(&agent.id, "drain").await.expect(200);
    let drain = agent.hears(|say| match say {
        Say::Drain(drain) => Some(drain.drain_id.clone()),
        _ => None,
    });
    let drain_id = drain.await;
    agent.renews(AgentStatus::Draining, &work).await;
    agent.completes(&work, RunStatus::Success).await;
    let complete = DrainComplete { drain_id };
    agent.say([Said::DrainComplete(complete)]).await;
    let drained = |view: &Value| view["drain"]["drained_at"].is_string();
    bench.agent_until(&agent.id, "drained", drained).await;
    compare("drain", &agent.traced());
}

#[tokio::test]
async fn the_flow_of_a_recovery_is_as_drawn() {
    // EP-29
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    agent.logs(&work, 0, b"one\n").await;
    let mut trace = agent.traced();
    let back = RegisterRequest {
        agent_id: agent.id.clone(),
        resume_secret: agent.registered.resume_secret.clone(),
        leases: vec![HeldLease {
            run_id: work.run_id.clone(),
            lease: work.lease.clone(),
        }],
        ..request()
    };
    drop(agent);
    trace.push("(connection lost)".into());
    let mut agent = Agent::register(&bench, back).await.unwrap();
    agent.logs(&work, 4, b"two\n").await;
    agent.completes(&work, RunStatus::Success).await;
    trace.extend(agent.traced());
    compare("recovery", &trace);
}
