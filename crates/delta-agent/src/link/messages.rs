//! Messages of the Execution Protocol, from what the agent has in hand.

use std::time::SystemTime;

use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::{
    Heartbeat, LeaseRenewal, ResultStream, RunComplete, RunStatus, WorkAccepted, WorkRejected,
};
use delta_wire::runner::{CancelAck, Complete, CompleteStatus, LeaseToken, LogDigest};
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

pub fn result(agent: &str, execution: &str, lease: &LeaseToken, payload: Payload) -> ResultStream {
    ResultStream {
        run_id: execution.to_owned(),
        agent_id: agent.to_owned(),
        lease: lease.expose().to_owned(),
        payload: Some(payload),
    }
}

pub fn completed(done: &Complete) -> RunComplete {
    let infra = done.exit_code.is_none();
    let status = match done.status {
        CompleteStatus::Succeeded => RunStatus::Success,
        CompleteStatus::TimedOut => RunStatus::Timeout,
        CompleteStatus::Failed if infra => RunStatus::Error,
        CompleteStatus::Failed => RunStatus::Failure,
    };
    let timings = done.timings.clone().unwrap_or_default();
    RunComplete {
        status: status.into(),
        exit_code: done.exit_code.and_then(|code| i32::try_from(code).ok()),
        cause: done.cause.clone().unwrap_or_default(),
        started_at: timestamp(timings.started_at.as_deref()),
        completed_at: timestamp(timings.finished_at.as_deref()),
        ..ending(done.summary.as_deref(), done.log.as_ref())
    }
}

pub fn canceled(ack: &CancelAck) -> RunComplete {
    RunComplete {
        status: RunStatus::Cancelled.into(),
        completed_at: timestamp(ack.ts.as_deref()),
        ..ending(ack.summary.as_deref(), ack.log.as_ref())
    }
}

fn ending(message: Option<&str>, log: Option<&LogDigest>) -> RunComplete {
    RunComplete {
        message: message.unwrap_or_default().to_owned(),
        log_length: log.map(|log| log.length),
        log_sha256: log.map(|log| unhex(&log.sha256)).unwrap_or_default().into(),
        ..Default::default()
    }
}

fn timestamp(text: Option<&str>) -> Option<Timestamp> {
    let at = delta_wire::Millis::from_rfc3339(text?)?;
    Some(Timestamp {
        seconds: at.0.div_euclid(1000),
        nanos: i32::try_from(at.0.rem_euclid(1000)).unwrap_or(0) * 1_000_000,
    })
}

/// Our own hash, so it is well formed.
fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    };
    pairs.filter_map(byte).collect()
}
