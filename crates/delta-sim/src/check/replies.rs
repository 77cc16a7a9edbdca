//! I15, I16: what was answered stands, and the same question gets the same answer.

use delta_core::lease::{Closing, ClosingKind};
use delta_core::{Command, LeaseState, Reply};

use super::memory::{Message, accepts};
use super::{Memory, Step, Verdict};

/// I15 at the moment of deciding: an accepting answer stands on a record written with it, or on an
/// earlier one. (That the record survives is for the simulator to see.)
pub fn i15_what_is_acknowledged_is_recorded(step: &Step, _: &Memory) -> Verdict {
    let (key, closing) = match step.command {
        Command::Complete { proof, digest, .. } => (proof.key, closing_of(false, digest)),
        Command::CancelAck { proof, digest, .. } => (proof.key, closing_of(true, digest)),
        Command::AckLease { proof, .. } if accepts(step.reply) => {
            let lease = step
                .attempt_after(proof.key.attempt)
                .and_then(|attempt| attempt.lease.as_ref());
            let active = lease.is_some_and(|l| l.state == LeaseState::Active);
            return if active {
                Ok(())
            } else {
                Err(format!("{:?} was acknowledged, yet is not", proof.key))
            };
        }
        _ => return Ok(()),
    };
    if !accepts(step.reply) {
        return Ok(());
    }
    let lease = step
        .attempt_after(key.attempt)
        .and_then(|attempt| attempt.lease.as_ref())
        .filter(|lease| lease.epoch == key.epoch);
    match lease.and_then(|lease| lease.closing) {
        Some(kept) if kept == closing => Ok(()),
        kept => Err(format!(
            "{key:?} was answered yes, but {kept:?} is recorded"
        )),
    }
}

fn closing_of(cancel: bool, digest: &delta_core::Digest) -> Closing {
    let kind = if cancel {
        ClosingKind::CancelAck
    } else {
        ClosingKind::Complete
    };
    Closing {
        kind,
        digest: *digest,
    }
}

/// I16: a message accepted before gets the same answer and adds nothing; an accepting answer that
/// changes nothing answers a repeat.
pub fn i16_repeats_change_nothing(step: &Step, memory: &Memory) -> Verdict {
    let Some(message) = Message::of(step.command) else {
        return Ok(());
    };
    let first = memory.accepted.get(&message);
    if first.is_some() && step.record.is_some() {
        return Err(format!("a repeat of {message:?} was recorded again"));
    }
    match (message, first) {
        // What a heartbeat is told is the time that is left, and a cancel that came since.
        (Message::Beat(..), Some(_)) => {
            if step.edits.is_empty() {
                Ok(())
            } else {
                Err(format!("a repeat of {message:?} renewed the lease"))
            }
        }
        (Message::Beat(..), None) => Ok(()),
        (Message::Ack(_), Some(first)) => {
            if accepts(step.reply) && step.reply != first {
                Err(format!("{message:?}: {first:?}, then {:?}", step.reply))
            } else {
                Ok(())
            }
        }
        (_, Some(first)) => {
            if step.reply == first {
                Ok(())
            } else {
                Err(format!("{message:?}: {first:?}, then {:?}", step.reply))
            }
        }
        (_, None) => {
            if accepts(step.reply) && !step.changed() {
                Err(format!("{message:?} is new, yet {:?}", step.reply))
            } else {
                Ok(())
            }
        }
    }
}

/// For counting: a refusal that tells a runner why.
pub fn is_conflicting(step: &Step) -> bool {
    matches!(step.command, Command::Complete { .. })
        && matches!(
            step.reply,
            Reply::Stale(delta_core::lease::Stale::AlreadyFinal)
        )
}
