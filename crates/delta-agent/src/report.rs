//! What a session says, made from what it knows: heartbeats, the completion, the cancel
//! acknowledgement. Pure but for the clock's text.

use std::sync::atomic::Ordering;
use std::time::Duration;

use delta_core::Cause;
use delta_core::holder::Todo;
use delta_wire::runner::{
    Artifact, CancelAck, Complete, CompleteStatus, GrantedSpec, Heartbeat, LeaseGranted, LogCursor,
    LogDigest, Phase, Progress, Reason, Timings,
};
use delta_wire::{JobSpec, Seconds};

use crate::client::{CallError, Client, Fenced};
use crate::clock::wall_time;
use crate::executor::{Ended, Identity, LogSize, Outcome};
use crate::work::{Visible, WorkEnd};

/// The last message under a lease.
#[derive(Debug, Clone)]
pub(crate) enum Report {
    Complete(Complete),
    CancelAck(CancelAck),
}

/// What the server made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// Taken, or overtaken by a cancel: either way the lease is over in good order.
    Taken,
    /// Say that the lease was accepted first, then this again (A3).
    NotAcked,
    Stale,
}

impl Report {
    pub async fn send(&self, client: &Client) -> Result<Settled, CallError> {
        let (accepted, reason) = match self {
            Report::Complete(message) => match client.complete(message).await? {
                Fenced::Stale(_) => return Ok(Settled::Stale),
                Fenced::Answer(ack) => (ack.accepted, ack.reason),
            },
            Report::CancelAck(message) => match client.cancel_ack(message).await? {
                Fenced::Stale(_) => return Ok(Settled::Stale),
                Fenced::Answer(ack) => (ack.accepted, ack.reason),
            },
        };
        Ok(match reason {
            _ if accepted => Settled::Taken,
            Some(Reason::NotAcked) => Settled::NotAcked,
            Some(reason) if reason.is_stale() => Settled::Stale,
            _ => Settled::Taken,
        })
    }
}

/// Who the attempt is, as its steps may know it.
pub(crate) fn identity(granted: &LeaseGranted) -> Identity {
    let spec = match &granted.spec {
        GrantedSpec::Embedded(spec) => JobSpec::parse(spec.as_text().as_bytes()).ok(),
        GrantedSpec::Referenced(_) => None,
    };
    let name = spec.and_then(|spec| spec.name);
    Identity {
        run_id: granted.run_id.clone(),
        job_id: granted.job_id.clone(),
        job_name: name.unwrap_or_else(|| granted.job_id.clone()),
        attempt: granted.attempt.unwrap_or(1),
        lease_epoch: granted.lease_epoch.unwrap_or(0),
    }
}

pub(crate) fn heartbeat(
    granted: &LeaseGranted,
    runner_id: &str,
    visible: &Visible,
    seq: u64,
    listen: Option<Duration>,
) -> Heartbeat {
    let step = visible
        .step
        .lock()
        .unwrap_or_else(|broken| broken.into_inner())
        .clone();
    let uploading = visible.uploading.load(Ordering::Relaxed);
    Heartbeat {
        lease_id: granted.lease_id.clone(),
        runner_id: runner_id.to_owned(),
        progress: step.map(|(index, text)| Progress {
            percent: None,
            current_step: Some(text),
            step_index: u32::try_from(index).ok(),
            message: None,
        }),
        log_cursor: Some(LogCursor {
            bytes_sent: visible.shipped.load(Ordering::Relaxed),
        }),
        ts: Some(wall_time()),
        seq: Some(seq),
        phase: Some(if uploading {
            Phase::Uploading
        } else {
            Phase::Running
        }),
        wait_seconds: listen.map(Seconds::from),
    }
}

/// The result, as what the holder's machine asks for.
pub(crate) fn make(todo: Todo, granted: &LeaseGranted, runner_id: &str, end: &WorkEnd) -> Report {
    match todo {
        Todo::CancelAck => Report::CancelAck(cancel_ack(granted, runner_id, end)),
        _ => Report::Complete(complete(granted, runner_id, end)),
    }
}

fn complete(granted: &LeaseGranted, runner_id: &str, end: &WorkEnd) -> Complete {
    let ended = &end.ended;
    let (status, exit_code, cause) = match ended.outcome {
        Outcome::Succeeded => (CompleteStatus::Succeeded, Some(0), None),
        Outcome::Failed { exit_code } => (
            CompleteStatus::Failed,
            exit_code.map(i64::from),
            ended.cause,
        ),
        Outcome::Signaled { .. } => (CompleteStatus::Failed, None, ended.cause),
        Outcome::TimedOut => (CompleteStatus::TimedOut, None, ended.cause),
        // A stop that nobody asked for is this agent's doing (A34).
        Outcome::Canceled => (CompleteStatus::Failed, None, Some(Cause::AgentShutdown)),
    };
    Complete {
        lease_id: granted.lease_id.clone(),
        runner_id: runner_id.to_owned(),
        status,
        exit_code,
        timings: Some(Timings {
            started_at: Some(end.started_at.clone()),
            finished_at: Some(end.finished_at.clone()),
        }),
        artifacts: artifacts(end),
        summary: Some(summary(ended)),
        cause: cause.map(|cause| cause.name().to_owned()),
        seq: None,
        log: log_digest(&ended.log),
    }
}

fn cancel_ack(granted: &LeaseGranted, runner_id: &str, end: &WorkEnd) -> CancelAck {
    let final_status = match end.ended.outcome {
        Outcome::Canceled => "CANCELED",
        // It ended by itself while the cancel was on its way; stored, not obeyed (A10).
        Outcome::Succeeded => "SUCCEEDED",
        Outcome::TimedOut => "TIMED_OUT",
        Outcome::Failed { .. } | Outcome::Signaled { .. } => "FAILED",
    };
    CancelAck {
        lease_id: granted.lease_id.clone(),
        runner_id: runner_id.to_owned(),
        final_status: final_status.to_owned(),
        ts: Some(end.finished_at.clone()),
        artifacts: artifacts(end),
        summary: Some(summary(&end.ended)),
        seq: None,
        log: log_digest(&end.ended.log),
    }
}

fn artifacts(end: &WorkEnd) -> Vec<Artifact> {
    let log = end.log_uri.iter();
    log.map(|uri| Artifact {
        kind: "log".to_owned(),
        uri: uri.clone(),
    })
    .collect()
}

fn log_digest(log: &LogSize) -> Option<LogDigest> {
    let sha256 = log.sha256.clone()?;
    Some(LogDigest {
        length: log.bytes,
        sha256,
    })
}

/// One sentence, and a second when the end is not proven (D9).
fn summary(ended: &Ended) -> String {
    if ended.confirmed {
        ended.summary.clone()
    } else {
        format!(
            "{}; unconfirmed: a process could not be ended",
            ended.summary
        )
    }
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
        },
        started_at: now.clone(),
        finished_at: now,
        log_uri: None,
        attempt: None,
    }
}
