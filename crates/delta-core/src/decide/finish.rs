//! Ending a lease with a result: `Complete` and `CancelAck` (J6, J10, K3, K4).
//!
//! First committed wins: a cancel before the completion makes it CANCELED, a completion
//! before the cancel makes the cancel a no-op. A repeat of the message that ended the lease gets
//! the same answer and changes nothing.

use super::hold::stale;
use super::{Stop, Work, settle};
use crate::Digest;
use crate::attempt::{AttemptEvent, AttemptState, Report};
use crate::cause::{Cause, Class};
use crate::command::{LeaseProof, Reply, Status};
use crate::fact::{Ending, Fact};
use crate::id::AttemptId;
use crate::lease::{Closing, ClosingKind, Lease, LeaseEvent, LeaseState};

/// What a completion says.
pub(super) struct Said<'a> {
    pub status: Status,
    pub cause: Option<Cause>,
    pub report: &'a Report,
}

pub(super) fn complete(
    work: &mut Work,
    proof: &LeaseProof,
    digest: Digest,
    said: Said,
) -> Result<Reply, Stop> {
    let closing = Closing {
        kind: ClosingKind::Complete,
        digest,
    };
    if let Some(reply) = not_open(work, proof, &closing)? {
        return Ok(reply);
    }
    let id = proof.key.attempt;
    if work.attempt(id)?.state == AttemptState::CancelRequested {
        cancel_with(work, id, closing, said.report)?;
        return Ok(Reply::CompletedAfterCancel);
    }
    walk_to_uploading(work, id)?;
    let (event, cause) = outcome(&said);
    report(work, id, said.report)?;
    let ending = Ending {
        revocation: None,
        closing: Some(closing),
    };
    work.move_lease(id, LeaseEvent::Completed, ending)?;
    work.move_attempt(id, event, cause)?;
    settle::attempt_ended(work, id)?;
    Ok(Reply::Completed)
}

pub(super) fn cancel_ack(
    work: &mut Work,
    proof: &LeaseProof,
    digest: Digest,
    said: &Report,
) -> Result<Reply, Stop> {
    let closing = Closing {
        kind: ClosingKind::CancelAck,
        digest,
    };
    if let Some(reply) = not_open(work, proof, &closing)? {
        return Ok(reply);
    }
    let id = proof.key.attempt;
    if work.attempt(id)?.state != AttemptState::CancelRequested {
        return Ok(Reply::CancelNotRequested);
    }
    cancel_with(work, id, closing, said)?;
    Ok(Reply::CancelAcknowledged)
}

/// The answer when the lease is not open for a result, if it is not.
fn not_open(work: &Work, proof: &LeaseProof, closing: &Closing) -> Result<Option<Reply>, Stop> {
    let lease = match work.check_proof(proof)? {
        Ok(lease) => lease,
        Err(stale) => return Ok(Some(Reply::Stale(stale))),
    };
    if let Some(reply) = replay(&lease, closing) {
        return Ok(Some(reply));
    }
    if let Some(stale) = stale(work, &lease) {
        return Ok(Some(Reply::Stale(stale)));
    }
    Ok((lease.state == LeaseState::Granted).then_some(Reply::NotAcknowledged))
}

/// The answer the same message got before.
fn replay(lease: &Lease, closing: &Closing) -> Option<Reply> {
    if lease.closing.as_ref() != Some(closing) {
        return None;
    }
    Some(match (closing.kind, lease.state) {
        (ClosingKind::Complete, LeaseState::Completed) => Reply::Completed,
        (ClosingKind::Complete, _) => Reply::CompletedAfterCancel,
        (ClosingKind::CancelAck, _) => Reply::CancelAcknowledged,
    })
}

fn cancel_with(
    work: &mut Work,
    id: AttemptId,
    closing: Closing,
    said: &Report,
) -> Result<(), Stop> {
    report(work, id, said)?;
    let cause = work.attempt(id)?.cancel.as_ref().map(|cancel| cancel.cause);
    let ending = Ending {
        revocation: None,
        closing: Some(closing),
    };
    work.move_lease(id, LeaseEvent::Canceled, ending)?;
    work.move_attempt(id, AttemptEvent::Canceled, cause)?;
    settle::attempt_ended(work, id)
}

fn report(work: &mut Work, id: AttemptId, report: &Report) -> Result<(), Stop> {
    let report = Box::new(report.clone());
    work.emit(Fact::Reported {
        job: id.job.n,
        index: id.index,
        report,
    })
}

/// The edges a quick job skipped are walked one by one, so that history holds listed edges.
fn walk_to_uploading(work: &mut Work, id: AttemptId) -> Result<(), Stop> {
    if work.attempt(id)?.state == AttemptState::Starting {
        work.move_attempt(id, AttemptEvent::Running, None)?;
    }
    if work.attempt(id)?.state == AttemptState::Running {
        work.move_attempt(id, AttemptEvent::Uploading, None)?;
    }
    Ok(())
}

/// The server's reading of what was said (A9, A57, A58).
fn outcome(said: &Said) -> (AttemptEvent, Option<Cause>) {
    let cause = said.cause.filter(|cause| cause.reportable());
    match (said.status, said.report.exit_code) {
        (Status::Succeeded, Some(0)) => (AttemptEvent::Succeeded, None),
        (Status::Succeeded, _) => (AttemptEvent::Failed, Some(Cause::Inconsistent)),
        (Status::TimedOut, _) => {
            let named = cause.filter(|cause| cause.class() == Class::Timeout);
            (
                AttemptEvent::TimedOut,
                Some(named.unwrap_or(Cause::JobTimeout)),
            )
        }
        (Status::Failed, _) => match cause {
            Some(cause) if cause.class() == Class::Timeout => (AttemptEvent::TimedOut, Some(cause)),
            cause => (AttemptEvent::Failed, Some(cause.unwrap_or(Cause::UserExit))),
        },
    }
}
