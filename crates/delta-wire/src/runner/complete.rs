//! The end of the work: Complete, and the bytes its digest is taken of.

use serde::Serialize;

use super::settle::{Artifact, LogDigest, Meaning, artifacts, log_digest};
use super::{LeaseToken, MAX_WORD, Message, id, summary, ts};
use crate::answer::{FunctionAnswer, answer};
use crate::evidence::{Evidence, evidence};
use crate::fields::{Fields, Node};
use crate::invalid::Invalid;
use crate::states::spelled;
use crate::step::{self, StepResult};

/// What the work ended with (RP-32).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub struct Complete {
    pub lease_id: LeaseToken,
    pub runner_id: String,
    pub status: CompleteStatus,
    /// As the runner saw it, kept verbatim. Null when no process ended by itself; never null for
    /// SUCCEEDED.
    pub exit_code: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    pub artifacts: Vec<Artifact>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Extension (A57): why, from the closed list of causes; an unknown word counts as user_exit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Extension: rises per lease and kind, so that an old or repeated message is told apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// Extension: the log as the runner has it, so that the server can say whether it has it all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogDigest>,
    /// Extension: what each step came to, in order; empty says nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepResult>,
    /// Extension: whether the runner saw that nothing of the work is left; absent says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
    /// Extension: what was seen at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// Extension: what a function answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<FunctionAnswer>,
}

spelled! {
    /// What a runner may claim (A58).
    CompleteStatus {
        Succeeded = "SUCCEEDED",
        Failed = "FAILED",
        TimedOut = "TIMED_OUT",
    }
}

/// When the work began and ended by the runner's clock; information only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timings {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
}

impl Message for Complete {
    const TYPE: &'static str = "Complete";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        let status = f.must("status", status)?;
        // A Windows exit code is unsigned and 32 bits wide, a Unix one may be written negative.
        let exit_code = f.may("exit_code", |it| it.whole(i32::MIN.into(), u32::MAX.into()))?;
        if status == CompleteStatus::Succeeded && exit_code.is_none() {
            return Err(Invalid::field(
                "exit_code",
                "is missing, and SUCCEEDED needs one",
            ));
        }
        Ok(Complete {
            lease_id: f.must("lease_id", LeaseToken::read)?,
            runner_id: f.must("runner_id", id)?,
            status,
            exit_code,
            timings: f.may("timings", timings)?,
            artifacts: artifacts(f)?,
            summary: f.may("summary", summary)?,
            cause: f.may("cause", |it| it.text(MAX_WORD))?,
            seq: f.may("seq", Node::count)?,
            log: f.may("log", log_digest)?,
            steps: step::results(f)?,
            confirmed: f.may("confirmed", Node::boolean)?,
            evidence: evidence(f)?,
            answer: answer(f)?,
        })
    }
}

fn status(node: Node<'_>) -> Result<CompleteStatus, Invalid> {
    CompleteStatus::from_text(&node.string()?)
        .ok_or_else(|| Invalid::here("must be SUCCEEDED, FAILED or TIMED_OUT"))
}

fn timings(node: Node<'_>) -> Result<Timings, Invalid> {
    let mut f = node.object()?;
    let timings = Timings {
        started_at: f.may("started_at", ts)?,
        finished_at: f.may("finished_at", ts)?,
    };
    f.close();
    Ok(timings)
}

/// What a Complete means, as bytes that are equal exactly when the meaning is (A18): the order of
/// fields, unknown fields, the sequence number and the secret play no part in it.
pub fn complete_digest_input(complete: &Complete) -> Vec<u8> {
    let mut bytes = Meaning::of("complete");
    bytes.text(&complete.runner_id);
    bytes.text(complete.status.as_str());
    bytes.optional(complete.exit_code.map(|code| code.to_string()).as_deref());
    let timings = complete.timings.as_ref();
    bytes.optional(timings.and_then(|it| it.started_at.as_deref()));
    bytes.optional(timings.and_then(|it| it.finished_at.as_deref()));
    bytes.artifacts(&complete.artifacts);
    bytes.optional(complete.summary.as_deref());
    bytes.optional(complete.cause.as_deref());
    bytes.log(complete.log.as_ref());
    bytes.steps(&complete.steps);
    bytes.confirmed(complete.confirmed);
    bytes.evidence(complete.evidence.as_ref());
    bytes.answer(complete.answer.as_ref());
    bytes.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::parse;

    fn digest_input(text: &str) -> Vec<u8> {
        complete_digest_input(&parse::<Complete>(text.as_bytes()).unwrap().message)
    }

    const PLAIN: &str = r#"{"type":"Complete","lease_id":"l","runner_id":"r",
        "status":"FAILED","exit_code":1,"summary":"no"}"#;

    // A18
    #[test]
    fn the_same_meaning_gives_the_same_bytes() {
        let reordered = r#"{"summary":"no","seq":7,"exit_code":1,"new":true,"status":"FAILED",
            "artifacts":[],"runner_id":"r","lease_id":"l","type":"Complete"}"#;
        assert_eq!(digest_input(PLAIN), digest_input(reordered));
    }

    // A18
    #[test]
    fn another_meaning_gives_other_bytes() {
        for (from, to) in [
            (r#""exit_code":1"#, r#""exit_code":2"#),
            (r#""exit_code":1"#, r#""exit_code":null"#),
            (r#""summary":"no""#, r#""cause":"no""#),
            ("FAILED", "TIMED_OUT"),
            (r#""runner_id":"r""#, r#""runner_id":"s""#),
        ] {
            assert_ne!(
                digest_input(PLAIN),
                digest_input(&PLAIN.replace(from, to)),
                "{to}"
            );
        }
    }
}
