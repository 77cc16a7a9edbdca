//! What a session says, made from what it knows: renewals and the result. Pure but for the clock's
//! text.

use std::sync::atomic::Ordering;

use delta_core::Cause;
use delta_core::holder::Todo;
use delta_shim::clock::wall_time;
use delta_shim::order::StepRecord;
use delta_shim::spool::LogSize;
use delta_shim::step::Step;
use delta_shim::verdict::Outcome;
use delta_wire::Evidence;
use delta_wire::agent::proto::{Progress, RunComplete, RunStatus, StepResult};
use delta_wire::runner::LeaseGranted;
use prost_types::Timestamp;

use crate::attempt::run::{Visible, WorkEnd};
use crate::connection::Renewal;
use crate::work::{Ended, Identity};

/// Who the attempt is, as its steps may know it. Its spec may have a better name; it is read when
/// the work begins.
pub(crate) fn identity(granted: &LeaseGranted, job_name: String) -> Identity {
    let job_name = if job_name.is_empty() {
        granted.job_id.clone()
    } else {
        job_name
    };
    Identity {
        run_id: granted.run_id.clone(),
        job_id: granted.job_id.clone(),
        job_name,
        attempt: granted.attempt.unwrap_or(1),
        lease_epoch: granted.lease_epoch.unwrap_or(0),
    }
}

pub(crate) fn renewal(visible: &Visible, seq: u64) -> Renewal {
    let step = visible
        .step
        .lock()
        .unwrap_or_else(|broken| broken.into_inner())
        .clone();
    let progress = step.map(|(index, text)| Progress {
        percent: None,
        current_step: Some(text),
        step_index: u32::try_from(index).ok(),
        message: None,
    });
    Renewal {
        seq,
        progress,
        uploading: visible.uploading.load(Ordering::Relaxed),
        log_bytes: visible.shipped.load(Ordering::Relaxed),
    }
}

/// The result, as what the holder's machine asks for.
pub(crate) fn make(todo: Todo, end: &WorkEnd) -> RunComplete {
    let ended = &end.ended;
    let (status, exit_code, cause) = match (todo, ended.outcome) {
        // What it came to meanwhile does not matter any more.
        (Todo::CancelAck, _) => (RunStatus::Cancelled, None, None),
        (_, Outcome::Succeeded) => (RunStatus::Success, Some(0), None),
        (_, Outcome::Failed { exit_code: None }) => (RunStatus::Error, None, ended.cause),
        (_, Outcome::Failed { exit_code }) => (RunStatus::Failure, exit_code, ended.cause),
        (_, Outcome::Signaled { .. }) => (RunStatus::Failure, None, ended.cause),
        (_, Outcome::TimedOut) => (RunStatus::Timeout, None, ended.cause),
        // A stop that nobody asked for is this agent's doing.
        (_, Outcome::Canceled) => (RunStatus::Error, None, Some(Cause::AgentShutdown)),
    };
    let (log_length, log_sha256) = log_digest(&ended.log);
    let failed = !matches!(ended.outcome, Outcome::Succeeded | Outcome::Canceled);
    let failed = ended.step.filter(|_| failed).and_then(number);
    RunComplete {
        status: status.into(),
        summary: end.summary.and_then(|it| it.summary),
        completed_at: timestamp(&end.finished_at),
        exit_code,
        cause: cause.map_or_else(String::new, |cause| cause.name().to_owned()),
        message: ended.summary.clone(),
        log_length,
        log_sha256: log_sha256.into(),
        log_dropped: ended.log.dropped,
        started_at: timestamp(&end.started_at),
        steps: steps(&end.steps, failed),
        confirmed: Some(ended.confirmed),
        evidence: (!ended.evidence.is_empty()).then(|| ended.evidence.clone().into()),
        artifacts: end.artifacts,
        answer: end.answer.clone().map(Into::into),
        failed_by_tests: end.summary.map(|it| it.failed_it),
    }
}

/// The number that people know a step by.
fn number(index: usize) -> Option<u32> {
    u32::try_from(index + 1).ok()
}

/// The steps, and among them the one that the work failed by.
fn steps(steps: &[StepResult], failed: Option<u32>) -> Vec<StepResult> {
    let of_one = |step: &StepResult| StepResult {
        failed: failed.is_some() && step.number == failed,
        ..step.clone()
    };
    steps.iter().map(of_one).collect()
}

/// What a step came to.
pub(crate) fn step(record: &StepRecord, steps: &[Step]) -> StepResult {
    let step = steps.get(record.index);
    StepResult {
        number: number(record.index),
        name: step.map(Step::label).unwrap_or_default(),
        command: step.and_then(Step::command).unwrap_or_default(),
        failed: false,
        started_at: timestamp(&record.started_at),
        duration_ms: u64::try_from(record.took.as_millis()).unwrap_or(u64::MAX),
        exit_code: record.exit_code,
        signal: record.signal,
        timed_out: record.timed_out,
    }
}

fn log_digest(log: &LogSize) -> (Option<u64>, Vec<u8>) {
    let Some(sha256) = &log.sha256 else {
        // A hash that no log has: it is not known whether this is all of it.
        return (Some(log.bytes), vec![0; 32]);
    };
    // Our own hash, so it is well formed.
    let pairs = sha256.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    (Some(log.bytes + log.lost), pairs.filter_map(byte).collect())
}

fn timestamp(text: &str) -> Option<Timestamp> {
    delta_wire::Millis::from_rfc3339(text).map(delta_wire::Millis::to_proto)
}

/// What is reported when the agent's own code failed.
pub(crate) fn broken() -> WorkEnd {
    let now = wall_time();
    WorkEnd {
        ended: Ended {
            outcome: Outcome::Failed { exit_code: None },
            cause: Some(Cause::StartUp),
            summary: "the agent failed".to_owned(),
            step: None,
            stopped: None,
            confirmed: false,
            log: LogSize::default(),
            evidence: Evidence::default(),
        },
        started_at: now.clone(),
        finished_at: now,
        steps: Vec::new(),
        summary: None,
        artifacts: 0,
        answer: None,
        remains: None,
        folder: None,
    }
}

#[cfg(test)]
mod tests {
    use delta_shim::stop::StopReason;
    use delta_shim::verdict::{Limits, Stage, stopped_at};

    use super::*;

    #[test]
    fn work_that_ended_for_want_of_a_renewal_is_not_the_users_failure() {
        // D10: a lease that lives after all is answered, and the attempt tried again.
        let (outcome, cause, summary) =
            stopped_at(StopReason::LeaseLost, Stage::Step(1), Limits::default());
        let mut end = broken();
        end.ended = Ended {
            outcome,
            cause,
            summary,
            ..end.ended
        };
        let said = make(Todo::Complete, &end);
        assert_eq!(said.status(), RunStatus::Error);
        assert_eq!(said.cause, Cause::AgentError.name());
    }
}
