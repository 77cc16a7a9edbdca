//! Keeping a lease alive: Heartbeat and its answer.

use serde::{Serialize, Serializer};

use super::{LeaseToken, MAX_LABEL_BYTES, Message, Reason, id, ts, wait};
use crate::fields::{Fields, Node};
use crate::invalid::Invalid;
use crate::seconds::Seconds;
use crate::states::spelled;

/// The runner is alive, and how far it is (RP-28).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type")]
pub struct Heartbeat {
    pub lease_id: LeaseToken,
    pub runner_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_cursor: Option<LogCursor>,
    /// As the runner's clock says; information only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts: Option<String>,
    /// Extension (A19): rises with every heartbeat of this lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Extension: the work is done and its files are on their way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Extension (A70): hold the answer this long, so that a cancel is heard at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_seconds: Option<Seconds>,
}

spelled! {
    /// What the runner is doing under the lease.
    Phase {
        Running = "running",
        Uploading = "uploading",
    }
}

/// How far the work is. Everything in it is best effort (RP-18).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Progress {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<Percent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_step: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A share from 0 to 100; what lies outside is moved to the nearer end.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percent(f64);

impl Percent {
    /// Nothing for a value that is not a number.
    pub fn new(value: f64) -> Option<Percent> {
        (!value.is_nan()).then(|| Percent(value.clamp(0.0, 100.0)))
    }

    pub fn get(self) -> f64 {
        self.0
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 {
            serializer.serialize_u64(self.0 as u64)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

/// Log bytes handed over under this lease so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LogCursor {
    pub bytes_sent: u64,
}

impl Message for Heartbeat {
    const TYPE: &'static str = "Heartbeat";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        Ok(Heartbeat {
            lease_id: f.must("lease_id", LeaseToken::read)?,
            runner_id: f.must("runner_id", id)?,
            progress: f.may("progress", progress)?,
            log_cursor: f.may("log_cursor", log_cursor)?,
            ts: f.may("ts", ts)?,
            seq: f.may("seq", Node::count)?,
            phase: f.may("phase", phase)?,
            wait_seconds: f.may("wait_seconds", wait)?,
        })
    }
}

fn progress(node: Node<'_>) -> Result<Progress, Invalid> {
    let mut f = node.object()?;
    let label = |it: Node<'_>| it.cut(MAX_LABEL_BYTES);
    let index = f.may("step_index", |it| it.whole(0, u32::MAX.into()))?;
    let progress = Progress {
        percent: f.may("percent", Node::number)?.and_then(Percent::new),
        current_step: f.may("current_step", label)?,
        step_index: index.and_then(|it| u32::try_from(it).ok()),
        message: f.may("message", label)?,
    };
    f.close();
    Ok(progress)
}

fn log_cursor(node: Node<'_>) -> Result<LogCursor, Invalid> {
    let mut f = node.object()?;
    let bytes_sent = f.must("bytes_sent", Node::count)?;
    f.close();
    Ok(LogCursor { bytes_sent })
}

fn phase(node: Node<'_>) -> Result<Phase, Invalid> {
    Phase::from_text(&node.string()?)
        .ok_or_else(|| Invalid::here("must be `running` or `uploading`"))
}

/// The answer to a heartbeat, whether it renewed the lease or not (RP-29, RP-31, A37).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub struct HeartbeatAck {
    pub lease_id: LeaseToken,
    pub extend_lease: bool,
    /// Absent when the lease was not extended: no time is left to name, and 0 is never written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_lease_ttl_seconds: Option<Seconds>,
    pub cancel_requested: bool,
    /// 0 while no cancel is asked for, as in the specification's example.
    pub cancel_deadline_seconds: Seconds,
    /// Written only when the lease was not extended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

impl HeartbeatAck {
    /// The lease lives on. With a cancel, what is left of its deadline (A53).
    pub fn extended(lease_id: LeaseToken, ttl: Seconds, cancel: Option<Seconds>) -> Self {
        HeartbeatAck {
            lease_id,
            extend_lease: true,
            new_lease_ttl_seconds: Some(ttl),
            cancel_requested: cancel.is_some(),
            cancel_deadline_seconds: cancel.unwrap_or(Seconds::ZERO),
            stale: None,
            reason: None,
        }
    }

    /// The lease is not extended: it is over (A37), or was never acknowledged (A4).
    pub fn refused(lease_id: LeaseToken, reason: Reason) -> Self {
        HeartbeatAck {
            lease_id,
            extend_lease: false,
            new_lease_ttl_seconds: None,
            cancel_requested: false,
            cancel_deadline_seconds: Seconds::ZERO,
            stale: Some(reason.is_stale()),
            reason: Some(reason),
        }
    }

    /// The runner must stop and say nothing more.
    pub fn is_stale(&self) -> bool {
        self.stale == Some(true)
    }
}

impl Message for HeartbeatAck {
    const TYPE: &'static str = "HeartbeatAck";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        let extend_lease = f.must("extend_lease", Node::boolean)?;
        let ttl = f.may("new_lease_ttl_seconds", Node::seconds)?;
        if extend_lease && ttl.is_none_or(Seconds::is_zero) {
            let message = "must be more than 0 when the lease is extended";
            return Err(Invalid::field("new_lease_ttl_seconds", message));
        }
        Ok(HeartbeatAck {
            lease_id: f.must("lease_id", LeaseToken::read)?,
            extend_lease,
            new_lease_ttl_seconds: ttl,
            cancel_requested: f.may("cancel_requested", Node::boolean)?.unwrap_or(false),
            cancel_deadline_seconds: f
                .may("cancel_deadline_seconds", Node::seconds)?
                .unwrap_or(Seconds::ZERO),
            stale: f.may("stale", Node::boolean)?,
            reason: f.may("reason", Reason::read)?,
        })
    }
}
