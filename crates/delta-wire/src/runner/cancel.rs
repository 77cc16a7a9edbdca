//! Two-phase cancel: CancelRequested and CancelAck.

use serde::Serialize;

use super::settle::{Artifact, LogDigest, Meaning, artifacts, log_digest};
use super::{CancelToken, LeaseToken, MAX_WORD, Message, id, summary, ts};
use crate::fields::{Fields, Node};
use crate::invalid::Invalid;
use crate::seconds::Seconds;
use crate::step::{self, StepResult};

/// The server asks for a stop (RP-36).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub struct CancelRequested {
    pub lease_id: LeaseToken,
    pub job_id: String,
    pub reason: String,
    pub deadline_seconds: Seconds,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts: Option<String>,
    /// Extension (A61): will prove that a cancel on a topic of its own comes from whoever granted
    /// the lease. There is no such topic yet: never issued, and not asked for on a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_token: Option<CancelToken>,
}

impl Message for CancelRequested {
    const TYPE: &'static str = "CancelRequested";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        Ok(CancelRequested {
            lease_id: f.must("lease_id", LeaseToken::read)?,
            job_id: f.must("job_id", id)?,
            reason: f.must("reason", |it| it.text(MAX_WORD))?,
            deadline_seconds: f.must("deadline_seconds", Node::positive_seconds)?,
            ts: f.may("ts", ts)?,
            cancel_token: f.may("cancel_token", CancelToken::read)?,
        })
    }
}

/// The runner has stopped (RP-39).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub struct CancelAck {
    pub lease_id: LeaseToken,
    pub runner_id: String,
    /// What the runner says it ended with; stored, not obeyed.
    pub final_status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts: Option<String>,
    pub artifacts: Vec<Artifact>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Extension: rises per lease and kind, so that an old or repeated message is told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Extension: the log up to the stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogDigest>,
    /// Extension: what each step came to, in order; empty says nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepResult>,
    /// Extension: whether the runner saw that nothing of the work is left; absent says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
}

impl Message for CancelAck {
    const TYPE: &'static str = "CancelAck";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        Ok(CancelAck {
            lease_id: f.must("lease_id", LeaseToken::read)?,
            runner_id: f.must("runner_id", id)?,
            final_status: f.must("final_status", |it| it.text(MAX_WORD))?,
            ts: f.may("ts", ts)?,
            artifacts: artifacts(f)?,
            summary: f.may("summary", summary)?,
            seq: f.may("seq", Node::count)?,
            log: f.may("log", log_digest)?,
            steps: step::results(f)?,
            confirmed: f.may("confirmed", Node::boolean)?,
        })
    }
}

/// What a CancelAck means, as bytes that are equal exactly when the meaning is (A18).
pub fn cancel_ack_digest_input(ack: &CancelAck) -> Vec<u8> {
    let mut bytes = Meaning::of("cancel-ack");
    bytes.text(&ack.runner_id);
    bytes.text(&ack.final_status);
    bytes.optional(ack.ts.as_deref());
    bytes.artifacts(&ack.artifacts);
    bytes.optional(ack.summary.as_deref());
    bytes.log(ack.log.as_ref());
    bytes.steps(&ack.steps);
    bytes.confirmed(ack.confirmed);
    bytes.into_bytes()
}
