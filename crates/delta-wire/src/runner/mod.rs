//! The Runner Protocol: its messages, field for field as the specification shows them, and our
//! marked extensions (`attempt`, `lease_epoch`, `seq`, `phase`, `wait_seconds`, `cause`, `log`).
//!
//! [`parse`] reads any message and names the field that is wrong; unknown fields are ignored and
//! counted (A71). Messages are written with serde; `type` is their first field.

pub mod cancel;
pub mod complete;
pub mod heartbeat;
pub mod lease;
pub mod reason;
pub mod results;
pub mod settle;
pub mod token;
pub mod upload;

use crate::fields::{Fields, Node, read_text};
use crate::invalid::Invalid;

pub use cancel::{CancelAck, CancelRequested, cancel_ack_digest_input};
pub use complete::{Complete, CompleteStatus, Timings, complete_digest_input};
pub use heartbeat::{Heartbeat, HeartbeatAck, LogCursor, Percent, Phase, Progress};
pub use lease::{AckLease, AckLeaseAck, GrantedSpec, JobSpecRef, Lease, LeaseGranted};
pub use reason::{Reason, StaleLease};
pub use results::{TestResults, TestResultsAck};
pub use settle::{Artifact, CancelAckAck, CompleteAck, LogDigest};
pub use token::{CancelToken, LeaseToken, Locator, MAX_TOKEN};
pub use upload::{
    CreateUpload, MAX_ARTIFACT_BYTES, UploadCreated, UploadKind, UploadMethod, upload_name,
};

/// What a request is answered with when it is refused: the one shape of an error.
pub type RunnerError = crate::error::ErrorBody;

/// Characters of a `runner_id`, a `job_id` or a `run_id`: room for a host name and a slot.
pub const MAX_ID: usize = 128;
/// Tags of one runner. They are matched against every waiting job.
pub const MAX_CAPABILITIES: usize = 64;
/// Characters of one tag.
pub const MAX_CAPABILITY: usize = 128;
/// Seconds a request may wait for an answer: below the idle limit of common proxies (A67).
pub const MAX_WAIT_SECONDS: u64 = 30;
/// Bytes of a summary: a screen of text; what is beyond is cut off.
pub const MAX_SUMMARY_BYTES: usize = 4 * 1024;
/// Bytes of a label in a progress report: one line; what is beyond is cut off.
pub const MAX_LABEL_BYTES: usize = 1024;
/// Artifacts one message may name: they are stored with the attempt, in one row each.
pub const MAX_ARTIFACTS: usize = 1000;
/// Characters of a URI: what browsers and object stores agree on.
pub const MAX_URI: usize = 2048;
/// Characters of a short word: a kind, a cause, a status.
pub const MAX_WORD: usize = 64;

/// A message of the protocol.
pub trait Message: Sized {
    /// The value of its `type` field.
    const TYPE: &'static str;

    /// Reads everything but `type`.
    fn read(fields: &mut Fields<'_>) -> Result<Self, Invalid>;
}

/// A message that was read, and how many fields in it nobody knows.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed<M> {
    pub message: M,
    pub unknown_fields: u32,
}

/// Reads one message. The answer to a refusal is 422 with the field's name.
pub fn parse<M: Message>(body: &[u8]) -> Result<Parsed<M>, Invalid> {
    let (message, unknown_fields) = read_text(body, |node| {
        let mut fields = node.object()?;
        fields.must("type", |it| type_tag(it, M::TYPE))?;
        let message = M::read(&mut fields)?;
        fields.close();
        Ok(message)
    })?;
    Ok(Parsed {
        message,
        unknown_fields,
    })
}

/// The `type` of a message whose kind is not known beforehand, as in an answer.
pub fn type_of(body: &[u8]) -> Result<String, Invalid> {
    read_text(body, |node| {
        node.object()?.must("type", |it| it.text(MAX_WORD))
    })
    .map(|(tag, _)| tag)
}

fn type_tag(node: Node<'_>, expected: &str) -> Result<(), Invalid> {
    let found = node.text(MAX_WORD)?;
    if found == expected {
        Ok(())
    } else {
        Err(Invalid::here(format!("must be `{expected}`")))
    }
}

/// An identity as this protocol writes it: printable, without spaces.
fn id(node: Node<'_>) -> Result<String, Invalid> {
    printable(node, MAX_ID)
}

fn printable(node: Node<'_>, most: usize) -> Result<String, Invalid> {
    let text = node.text(most)?;
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(Invalid::here("must be printable, without spaces"));
    }
    Ok(text)
}

/// A time as the runner wrote it. It only informs, so any short text is kept.
fn ts(node: Node<'_>) -> Result<String, Invalid> {
    node.cut(MAX_WORD)
}

fn summary(node: Node<'_>) -> Result<String, Invalid> {
    node.cut(MAX_SUMMARY_BYTES)
}

/// Seconds a request is willing to wait.
fn wait(node: Node<'_>) -> Result<crate::seconds::Seconds, Invalid> {
    let seconds = node.seconds()?;
    if seconds > crate::seconds::Seconds::from_secs(MAX_WAIT_SECONDS) {
        return Err(Invalid::here(format!(
            "must be at most {MAX_WAIT_SECONDS} seconds"
        )));
    }
    Ok(seconds)
}
