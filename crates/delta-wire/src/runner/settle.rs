//! What the two ends of a lease, Complete and CancelAck, share: references to bytes, the log's
//! digest, the shape of their answers, and the bytes a digest of their meaning is taken of.

use serde::Serialize;

use super::{LeaseToken, MAX_ARTIFACTS, MAX_URI, MAX_WORD, Message, Reason, printable};
use crate::answer::FunctionAnswer;
use crate::evidence::Evidence;
use crate::fields::{Fields, Node};
use crate::invalid::Invalid;
use crate::states::AttemptState;
use crate::step::StepResult;

/// A reference to bytes stored elsewhere. A URI the server did not issue is kept as text and never
/// fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Artifact {
    #[serde(rename = "type")]
    pub kind: String,
    pub uri: String,
}

/// Length and hash of a whole log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogDigest {
    pub length: u64,
    pub sha256: String,
    /// Bytes that the runner dropped: they are in neither.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
}

pub(super) fn artifacts(f: &mut Fields<'_>) -> Result<Vec<Artifact>, Invalid> {
    Ok(f.may("artifacts", |it| it.each(MAX_ARTIFACTS, artifact))?
        .unwrap_or_default())
}

fn artifact(node: Node<'_>) -> Result<Artifact, Invalid> {
    let mut f = node.object()?;
    let kind = f.must("type", |it| it.text(MAX_WORD))?;
    let uri = f.must("uri", |it| printable(it, MAX_URI))?;
    f.close();
    Ok(Artifact { kind, uri })
}

pub(super) fn log_digest(node: Node<'_>) -> Result<LogDigest, Invalid> {
    let mut f = node.object()?;
    let length = f.must("length", Node::count)?;
    let sha256 = f.must("sha256", Node::sha256)?;
    let dropped = f.may("dropped", Node::count)?;
    f.close();
    Ok(LogDigest {
        length,
        sha256,
        dropped,
    })
}

/// An answer to a result: the two differ in their `type` alone.
macro_rules! answer {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        #[serde(tag = "type")]
        pub struct $name {
            pub lease_id: LeaseToken,
            pub accepted: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub reason: Option<Reason>,
            #[serde(skip_serializing_if = "Option::is_none")]
            pub final_status: Option<AttemptState>,
        }

        impl Message for $name {
            const TYPE: &'static str = stringify!($name);

            fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
                Ok($name {
                    lease_id: f.must("lease_id", LeaseToken::read)?,
                    accepted: f.must("accepted", Node::boolean)?,
                    reason: f.may("reason", Reason::read)?,
                    final_status: f.may("final_status", attempt_state)?,
                })
            }
        }
    };
}

answer! {
    /// The answer to Complete (RP-33).
    CompleteAck
}

answer! {
    /// The answer to CancelAck.
    CancelAckAck
}

fn attempt_state(node: Node<'_>) -> Result<AttemptState, Invalid> {
    AttemptState::from_text(&node.string()?)
        .ok_or_else(|| Invalid::here("is not a state of an attempt"))
}

/// Length before content everywhere, so that no two lists of texts share their bytes.
pub(super) struct Meaning(Vec<u8>);

impl Meaning {
    pub(super) fn of(message: &str) -> Self {
        Meaning(format!("delta-ci {message} 1\n").into_bytes())
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn artifacts(&mut self, artifacts: &[Artifact]) {
        self.number(artifacts.len() as u64);
        for artifact in artifacts {
            self.text(&artifact.kind);
            self.text(&artifact.uri);
        }
    }

    pub(super) fn log(&mut self, log: Option<&LogDigest>) {
        self.optional(log.map(|log| log.length.to_string()).as_deref());
        self.optional(log.map(|log| log.sha256.as_str()));
        // Nothing where nothing is said, as it was before runners told of it.
        if let Some(dropped) = log.and_then(|log| log.dropped) {
            self.number(dropped);
        }
    }

    /// Nothing where there are none, as it was before runners told of them.
    pub(super) fn steps(&mut self, steps: &[StepResult]) {
        for step in steps {
            self.text(&step.name);
            self.optional(step.started_at.map(|at| at.to_string()).as_deref());
            self.number(step.duration_ms);
            self.optional(step.exit_code.map(|code| code.to_string()).as_deref());
            self.optional(step.signal.map(|signal| signal.to_string()).as_deref());
            self.number(step.timed_out.into());
            // Said by newer runners only: nothing where they say nothing.
            if let Some(number) = step.number {
                self.number(number.into());
            }
            if let Some(command) = &step.command {
                self.text(command);
            }
            if step.failed {
                self.text("failed");
            }
        }
    }

    /// Whether the end was confirmed counts for the digest only where a runner says it: older ones
    /// do not.
    pub(super) fn confirmed(&mut self, confirmed: Option<bool>) {
        if let Some(confirmed) = confirmed {
            self.text(if confirmed {
                "confirmed"
            } else {
                "unconfirmed"
            });
        }
    }

    /// What was seen at the end counts for the digest only where it is said.
    pub(super) fn evidence(&mut self, evidence: Option<&Evidence>) {
        if let Some(evidence) = evidence {
            self.optional(evidence.signal.map(|it| it.to_string()).as_deref());
            self.optional(evidence.oom_kills.map(|it| it.to_string()).as_deref());
            self.optional(evidence.free_bytes.map(|it| it.to_string()).as_deref());
            self.number(evidence.last_lines.len() as u64);
            for line in &evidence.last_lines {
                self.text(line);
            }
        }
    }

    /// A function's answer counts for the digest only where there is one.
    pub(super) fn answer(&mut self, answer: Option<&FunctionAnswer>) {
        if let Some(answer) = answer {
            self.optional(answer.result.as_ref().map(|it| it.as_str()));
            let error = answer.error.as_ref();
            self.optional(error.map(|it| it.message.as_str()));
            self.optional(error.and_then(|it| it.kind.as_deref()));
            self.optional(error.and_then(|it| it.code.as_deref()));
            self.optional(
                error
                    .and_then(|it| it.details.as_ref())
                    .map(|it| it.as_str()),
            );
            self.optional(answer.retry_after_ms.map(|it| it.to_string()).as_deref());
        }
    }

    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(super) fn optional(&mut self, text: Option<&str>) {
        self.0.push(u8::from(text.is_some()));
        if let Some(text) = text {
            self.text(text);
        }
    }
}
