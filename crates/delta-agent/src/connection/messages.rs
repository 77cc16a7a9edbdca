//! Messages of the Execution Protocol, from what the agent has in hand.

use std::time::SystemTime;

use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::{Heartbeat, LeaseRenewal, ResultStream, WorkAccepted, WorkRejected};
use delta_wire::runner::LeaseToken;
use prost::Message as _;
use prost_types::Timestamp;

use super::state::State;

pub fn now() -> Option<Timestamp> {
    Some(SystemTime::now().into())
}

pub fn heartbeat(state: &State, leases: Vec<LeaseRenewal>) -> Heartbeat {
    Heartbeat {
        agent_id: state.agent_id.clone(),
        timestamp: now(),
        status: state.status().into(),
        active_runs: state.held.keys().cloned().collect(),
        resources: None,
        leases,
        runners: Vec::new(),
    }
}

pub fn accepted(agent: &str, execution: &str, lease: &LeaseToken) -> WorkAccepted {
    WorkAccepted {
        run_id: execution.to_owned(),
        agent_id: agent.to_owned(),
        accepted_at: now(),
        lease: lease.expose().to_owned(),
    }
}

pub fn rejected(agent: &str, execution: &str, lease: &str, reason: &str) -> WorkRejected {
    WorkRejected {
        run_id: execution.to_owned(),
        agent_id: agent.to_owned(),
        reason: reason.to_owned(),
        lease: lease.to_owned(),
    }
}

/// Bytes of a result of a test, about.
pub fn length(said: &Said) -> usize {
    match said {
        Said::Result(result) => result.encoded_len(),
        _ => 0,
    }
}

pub fn result(agent: &str, execution: &str, lease: &LeaseToken, payload: Payload) -> ResultStream {
    ResultStream {
        run_id: execution.to_owned(),
        agent_id: agent.to_owned(),
        lease: lease.expose().to_owned(),
        payload: Some(payload),
    }
}
