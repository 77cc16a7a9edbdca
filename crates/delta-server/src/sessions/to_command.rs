//! What an agent's words mean in those of the Runner Protocol, which the core is told in (A30).

use delta_core::attempt::Progress;
use delta_core::{Cause, Text};
use delta_wire::agent::proto::agent_message::Message as FromAgent;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::{LeaseRenewal, RunComplete, RunStatus};
use delta_wire::runner::{
    CancelAck, Complete, CompleteStatus, LogDigest, MAX_LABEL_BYTES, MAX_SUMMARY_BYTES, MAX_WORD,
    Timings,
};
use delta_wire::{Evidence, FunctionAnswer, StepResult};

use super::receive::ProvenLease;
use crate::runner_commands;

pub fn progress(said: &LeaseRenewal) -> Progress {
    let progress = said.progress.clone().unwrap_or_default();
    let label = |text: Option<String>| text.map(|text| Text::from(cut(&text, MAX_LABEL_BYTES)));
    let percent = progress.percent.filter(|percent| !percent.is_nan());
    Progress {
        // Outside of 0..=100 is moved to the nearer end.
        percent: percent.map(|percent| percent.clamp(0.0, 100.0).round() as u8),
        step_index: progress.step_index,
        current_step: label(progress.current_step),
        message: label(progress.message),
        log_bytes: said.log_bytes,
    }
}

pub fn empty_complete(proven: &ProvenLease) -> Complete {
    Complete {
        lease_id: proven.token.clone(),
        runner_id: proven.proof.runner.to_string(),
        status: CompleteStatus::Failed,
        exit_code: None,
        timings: None,
        artifacts: Vec::new(),
        summary: None,
        cause: None,
        seq: None,
        log: None,
        steps: Vec::new(),
        confirmed: None,
        evidence: None,
        answer: None,
    }
}

/// A30: what the agent's word for the end means.
pub fn complete(proven: &ProvenLease, said: &RunComplete, status: RunStatus) -> Complete {
    let (status, implied) = match status {
        RunStatus::Success => (CompleteStatus::Succeeded, None),
        RunStatus::Timeout => (CompleteStatus::TimedOut, None),
        RunStatus::Error => (CompleteStatus::Failed, Some(Cause::AgentError.name())),
        _ => (CompleteStatus::Failed, None),
    };
    let exit_code = match (status, said.exit_code) {
        // The specification's own message has no exit code.
        (CompleteStatus::Succeeded, None) => Some(0),
        (_, code) => code.map(i64::from),
    };
    let cause = (!said.cause.is_empty()).then(|| cut(&said.cause, MAX_WORD));
    // A word that cannot be taken reads as the user's exit, and an error is never that.
    let taken = |word: &String| Cause::from_name(word).is_some_and(Cause::reportable);
    let cause = cause.filter(|word| implied.is_none() || taken(word));
    Complete {
        status,
        exit_code,
        timings: Some(Timings {
            started_at: moment(said.started_at),
            finished_at: moment(said.completed_at),
        }),
        summary: summary(said),
        cause: cause.or_else(|| implied.map(str::to_owned)),
        log: log_digest(said),
        steps: StepResult::of_agent(&said.steps),
        confirmed: said.confirmed,
        evidence: said.evidence.as_ref().map(Evidence::of_agent),
        answer: said.answer.as_ref().map(FunctionAnswer::of_agent),
        ..empty_complete(proven)
    }
}

pub fn cancel_ack(proven: &ProvenLease, said: &RunComplete) -> CancelAck {
    CancelAck {
        lease_id: proven.token.clone(),
        runner_id: proven.proof.runner.to_string(),
        final_status: "CANCELED".to_owned(),
        ts: moment(said.completed_at),
        artifacts: Vec::new(),
        summary: summary(said),
        seq: None,
        log: log_digest(said),
        steps: StepResult::of_agent(&said.steps),
        confirmed: said.confirmed,
    }
}

/// What CANCELLED means when nobody asked for it.
pub fn stopped_itself(proven: &ProvenLease, said: &RunComplete) -> Complete {
    Complete {
        cause: Some(Cause::AgentShutdown.name().to_owned()),
        ..complete(proven, said, RunStatus::Failure)
    }
}

fn summary(said: &RunComplete) -> Option<String> {
    (!said.message.is_empty()).then(|| cut(&said.message, MAX_SUMMARY_BYTES))
}

fn log_digest(said: &RunComplete) -> Option<LogDigest> {
    let length = said.log_length?;
    (said.log_sha256.len() == 32).then(|| LogDigest {
        length,
        sha256: runner_commands::hex(&said.log_sha256),
        dropped: (said.log_dropped > 0).then_some(said.log_dropped),
    })
}

fn moment(at: Option<prost_types::Timestamp>) -> Option<String> {
    let at = at?;
    let millis = at.seconds.checked_mul(1000)?;
    let millis = millis.checked_add(i64::from(at.nanos) / 1_000_000)?;
    Some(delta_wire::Millis(millis).to_rfc3339())
}

/// At most so many bytes, never half a character.
pub fn cut(text: &str, most: usize) -> String {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// The name of a message and the execution it is about, for errors.
pub fn about(said: &FromAgent) -> (&'static str, String) {
    match said {
        FromAgent::Register(_) => ("RegisterRequest", String::new()),
        FromAgent::Heartbeat(_) => ("Heartbeat", String::new()),
        FromAgent::WorkAccepted(it) => ("WorkAccepted", cut(&it.run_id, 256)),
        FromAgent::WorkRejected(it) => ("WorkRejected", cut(&it.run_id, 256)),
        FromAgent::Result(it) => match it.payload {
            Some(Payload::Artifact(_)) => ("Artifact", cut(&it.run_id, 256)),
            _ => ("ResultStream", cut(&it.run_id, 256)),
        },
        FromAgent::DrainComplete(_) => ("DrainComplete", String::new()),
        FromAgent::CreateUpload(it) => ("CreateUpload", cut(&it.run_id, 256)),
    }
}
