//! Getting and keeping a lease: grant, acknowledgement, heartbeat (J2 … J5, K1).
//!
//! Validity is judged here, by the message's own stamp: a lease past its time is stale whether or
//! not the sweeper has been by.

use super::{Stop, Work};
use crate::attempt::{Attempt, AttemptEvent, AttemptState, Progress};
use crate::command::{CancelNotice, LeaseProof, Refusal, Reply};
use crate::fact::{Ending, Fact, Grant};
use crate::id::{AttemptId, JobId};
use crate::lease::{Lease, LeaseEvent, LeaseState, Revocation, Stale, epoch};
use crate::run::{Run, RunEvent, RunState};
use crate::settings::Settings;
use crate::time::{Millis, Span};
use crate::world::Want;
use crate::{Digest, Text};

pub(super) struct Asked<'a> {
    pub attempt: AttemptId,
    pub principal: &'a Text,
    pub runner: &'a Text,
    pub token: &'a Digest,
    pub epoch: u64,
}

pub(super) fn grant(work: &mut Work, asked: Asked) -> Result<Reply, Stop> {
    let holder = (asked.principal.clone(), asked.runner.clone());
    let held = work.world.holders.get(&holder);
    let held = *held.ok_or(Stop::Missing(Want::Holder(holder.0, holder.1)))?;
    let id = asked.attempt;
    match held {
        Some(other) if other != id => return Err(Refusal::RunnerBusy(other).into()),
        Some(_) => give_back_unacknowledged(work, id)?,
        None => {}
    }
    let attempt = work.attempt(id)?;
    let run = work.run()?;
    // A run past its waiting limit or its timeout has ended, whether or not a sweep has been by:
    // these come before any lease.
    let over = run.due_at().is_some_and(|at| work.now() >= at);
    if attempt.state != AttemptState::Queued || !run.state.takes_work() || over {
        return Err(Refusal::NotQueued(id).into());
    }
    let settings = work.context.settings;
    let number = attempt.lease_number + 1;
    assert_eq!(
        asked.epoch,
        epoch(settings.incarnation, number),
        "{id}: an epoch is never skipped"
    );
    let max_runtime = work.job(id.job)?.policy.timeout;
    if work.run()?.state == RunState::Queued {
        work.move_run(RunEvent::Started, None)?;
    }
    work.move_attempt(id, AttemptEvent::Granted, None)?;
    let now = work.now();
    let run_end = work
        .run()?
        .deadline()
        .map_or(Millis::FAR, |at| at + settings.force_after());
    // The job's clock starts with the acknowledgement: never before this moment, so a lease that
    // ends by then cannot outlive its job.
    let cap = run_end.min(now + job_span(max_runtime, settings));
    work.emit(Fact::LeaseGranted {
        job: id.job.n,
        index: id.index,
        grant: Box::new(Grant {
            epoch: asked.epoch,
            number,
            token: *asked.token,
            principal: asked.principal.clone(),
            runner: asked.runner.clone(),
            ack_by: now + settings.ack_timeout,
            ttl: settings.lease_ttl,
            expires_at: (now + settings.lease_ttl).min(cap),
        }),
    })?;
    let ttl = settings.lease_ttl;
    Ok(Reply::Granted {
        lease: id.lease(asked.epoch),
        number,
        ttl,
        max_runtime,
    })
}

/// A runner that asks again never saw its grant. Same attempt, new token, no budget spent.
fn give_back_unacknowledged(work: &mut Work, id: AttemptId) -> Result<(), Stop> {
    let unacknowledged = work
        .attempt(id)?
        .live_lease()
        .is_some_and(|lease| lease.state == LeaseState::Granted);
    if !unacknowledged {
        return Err(Refusal::RunnerBusy(id).into());
    }
    let ending = Ending {
        revocation: Some(Revocation::Replaced),
        closing: None,
    };
    work.move_lease(id, LeaseEvent::Revoked, ending)?;
    work.move_attempt(id, AttemptEvent::Lost, None)
}

pub(super) fn acknowledge(work: &mut Work, proof: &LeaseProof, job: JobId) -> Result<Reply, Stop> {
    let lease = match work.check_proof(proof)? {
        Ok(lease) => lease,
        Err(stale) => return Ok(Reply::Stale(stale)),
    };
    let id = proof.key.attempt;
    if job != id.job {
        return Err(Refusal::JobMismatch.into());
    }
    if let Some(stale) = stale(work, &lease) {
        return Ok(Reply::Stale(stale));
    }
    let settings = work.context.settings;
    if lease.state == LeaseState::Active {
        let acknowledged = lease.acknowledged_at.unwrap_or(lease.granted_at);
        let ttl = ack_ttl(
            work.run()?,
            work.attempt(id)?,
            work.timeout(id)?,
            settings,
            acknowledged,
        );
        return Ok(Reply::Acknowledged { ttl });
    }
    let now = work.now();
    work.move_lease(id, LeaseEvent::Acknowledged, Ending::default())?;
    work.move_attempt(id, AttemptEvent::Acknowledged, None)?;
    let ttl = ack_ttl(
        work.run()?,
        work.attempt(id)?,
        work.timeout(id)?,
        settings,
        now,
    );
    extend(work, id, now + ttl)?;
    Ok(Reply::Acknowledged { ttl })
}

/// The time an acknowledgement gives; the same for every repeat of it.
fn ack_ttl(run: &Run, attempt: &Attempt, timeout: Span, s: &Settings, at: Millis) -> Span {
    let Some(lease) = &attempt.lease else {
        return Span::ZERO;
    };
    let uncanceled = Attempt {
        cancel: None,
        ..attempt.clone()
    };
    lease_cap(run, &uncanceled, timeout, s)
        .min(at + lease.ttl)
        .since(at)
}

pub(super) fn heartbeat(
    work: &mut Work,
    proof: &LeaseProof,
    seq: Option<u64>,
    progress: &Progress,
    uploading: bool,
) -> Result<Reply, Stop> {
    let lease = match work.check_proof(proof)? {
        Ok(lease) => lease,
        Err(stale) => return Ok(Reply::Stale(stale)),
    };
    if let Some(stale) = stale(work, &lease) {
        return Ok(Reply::Stale(stale));
    }
    if lease.state == LeaseState::Granted {
        return Ok(Reply::NotAcknowledged);
    }
    let (id, now) = (proof.key.attempt, work.now());
    let repeated = matches!((seq, lease.heartbeat_seq), (Some(seq), Some(last)) if seq <= last);
    if !repeated {
        advance(work, id, uploading)?;
        if work.attempt(id)?.cancel.is_some() {
            work.renew(id, |attempt| {
                attempt.cancel_told_at.get_or_insert(now);
            })?;
        }
        let settings = work.context.settings;
        let cap = lease_cap(work.run()?, work.attempt(id)?, work.timeout(id)?, settings);
        extend(work, id, cap.min(now + lease.ttl))?;
        work.renew(id, |attempt| {
            attempt.progress = progress.clone();
            if let Some(lease) = &mut attempt.lease {
                lease.heartbeat_seq = seq.or(lease.heartbeat_seq);
            }
        })?;
    }
    let attempt = work.attempt(id)?;
    // What the holder is told ends at the cap even where the lease was longer before the cancel.
    let cap = lease_cap(
        work.run()?,
        attempt,
        work.timeout(id)?,
        work.context.settings,
    );
    let until = attempt
        .lease
        .as_ref()
        .map_or(now, |lease| lease.expires_at.min(cap));
    let cancel = attempt.cancel.as_ref().map(|cancel| CancelNotice {
        cause: cancel.cause,
        remaining: attempt.cancel_deadline().unwrap_or(now).since(now),
    });
    Ok(Reply::Renewed {
        ttl: until.since(now),
        cancel,
    })
}

/// J4, J5: a heartbeat shows that work runs; the holder may say that it uploads.
fn advance(work: &mut Work, id: AttemptId, uploading: bool) -> Result<(), Stop> {
    if work.attempt(id)?.state == AttemptState::Starting {
        work.move_attempt(id, AttemptEvent::Running, None)?;
    }
    if uploading && work.attempt(id)?.state == AttemptState::Running {
        work.move_attempt(id, AttemptEvent::Uploading, None)?;
    }
    Ok(())
}

/// While a lease lives, its end only moves later.
fn extend(work: &mut Work, id: AttemptId, until: Millis) -> Result<(), Stop> {
    work.renew(id, |attempt| {
        if let Some(lease) = &mut attempt.lease {
            lease.expires_at = lease.expires_at.max(until);
        }
    })
}

/// No renewal reaches past this moment (A53, A54): the job's own deadline, the end that a run
/// timeout would force, and the end of a cancel.
pub fn lease_cap(run: &Run, attempt: &Attempt, timeout: Span, settings: &Settings) -> Millis {
    let job = job_deadline(attempt, timeout, settings).unwrap_or(Millis::FAR);
    let run = run
        .deadline()
        .map_or(Millis::FAR, |at| at + settings.force_after());
    let cancel = attempt.cancel_deadline().unwrap_or(Millis::FAR);
    job.min(run).min(cancel)
}

/// When the server ends the attempt itself: late enough for the holder's own report of the timeout
/// to arrive first. The clock starts at the acknowledgement.
pub(crate) fn job_deadline(attempt: &Attempt, timeout: Span, s: &Settings) -> Option<Millis> {
    let lease = attempt.live_lease()?;
    // The replica that was told may be a little behind the one that granted.
    let began = lease.acknowledged_at?.max(lease.granted_at);
    Some(began + job_span(timeout, s))
}

/// From the acknowledgement to the end the server makes.
fn job_span(timeout: Span, s: &Settings) -> Span {
    timeout.plus(s.cancel_deadline).plus(s.timeout_buffer)
}

/// Whether a lease that is the caller's own is past its time.
pub(super) fn stale(work: &Work, lease: &Lease) -> Option<Stale> {
    work.bond(lease).stale(work.now())
}

impl Work<'_> {
    pub(super) fn timeout(&self, id: AttemptId) -> Result<Span, Stop> {
        Ok(self.job(id.job)?.policy.timeout)
    }
}
