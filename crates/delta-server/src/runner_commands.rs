//! What the holder of a lease says, as commands: the same whichever way it came in (RP-16).

use delta_core::attempt::Report;
use delta_core::command::LeaseProof;
use delta_core::rights::Speaker;
use delta_core::{Cause, Command, Span, Text};
use delta_wire::runner::{self as wire, CancelAck, Complete, LeaseToken};

use crate::identity::Principal;
use crate::writer::sha256;

/// What the token claims, for the core to check; nothing when it is none of ours.
pub fn proof(
    token: &LeaseToken,
    who: &Principal,
    runner: impl Into<Text>,
    speaker: Speaker,
) -> Option<LeaseProof> {
    Some(LeaseProof {
        key: token.locator()?.into(),
        token: sha256(token.expose().as_bytes()),
        principal: who.id.clone(),
        runner: runner.into(),
        speaker,
    })
}

pub fn complete(proof: LeaseProof, done: &Complete) -> Command {
    Command::Complete {
        proof,
        digest: sha256(&wire::complete_digest_input(done)),
        status: done.status.into(),
        cause: done.cause.as_deref().and_then(Cause::from_name),
        report: Box::new(completion_report(done)),
    }
}

pub fn cancel_ack(proof: LeaseProof, ack: &CancelAck) -> Command {
    Command::CancelAck {
        proof,
        digest: cancel_ack_digest(ack),
        report: Box::new(Report {
            summary: ack.summary.as_deref().map(Text::from),
            artifacts: kept(&ack.artifacts),
            steps: kept(&ack.steps),
            confirmed: ack.confirmed,
            log: ack.log.as_ref().and_then(log),
            log_dropped: dropped(ack.log.as_ref()),
            finished_at: moment(ack.ts.as_ref()),
            ..Report::default()
        }),
    }
}

fn completion_report(done: &Complete) -> Report {
    let timings = done.timings.as_ref();
    Report {
        exit_code: done.exit_code,
        summary: done.summary.as_deref().map(Text::from),
        artifacts: kept(&done.artifacts),
        steps: kept(&done.steps),
        confirmed: done.confirmed,
        evidence: done.evidence.as_ref().and_then(text),
        answer: done.answer.as_ref().and_then(text),
        retry_after: done
            .answer
            .as_ref()
            .and_then(|it| i64::try_from(it.retry_after_ms?).ok().map(Span)),
        log: done.log.as_ref().and_then(log),
        log_dropped: dropped(done.log.as_ref()),
        started_at: moment(timings.and_then(|it| it.started_at.as_ref())),
        finished_at: moment(timings.and_then(|it| it.finished_at.as_ref())),
    }
}

fn text(value: &impl serde::Serialize) -> Option<Text> {
    serde_json::to_string(value).ok().map(Text::from)
}

fn moment(text: Option<&String>) -> Option<delta_core::Millis> {
    delta_wire::Millis::from_rfc3339(text?).map(Into::into)
}

/// A list as the text it is kept as; nothing for an empty one.
pub fn kept<T: serde::Serialize>(list: &[T]) -> Option<Text> {
    let text = (!list.is_empty()).then(|| serde_json::to_string(list))?;
    text.ok().map(Text::from)
}

fn log(log: &wire::LogDigest) -> Option<(u64, delta_core::Digest)> {
    Some((log.length, unhex(&log.sha256)?))
}

fn dropped(log: Option<&wire::LogDigest>) -> Option<u64> {
    log.and_then(|log| log.dropped).filter(|bytes| *bytes > 0)
}

/// What a CancelAck means: its sequence number and its clock play no part in it (A18).
fn cancel_ack_digest(ack: &CancelAck) -> delta_core::Digest {
    let meaning = CancelAck {
        ts: None,
        seq: None,
        ..ack.clone()
    };
    sha256(&serde_json::to_vec(&meaning).unwrap_or_default())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<delta_core::Digest> {
    let mut digest = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(text.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(digest)
}
