//! Time: every timer of the specification (SM-60 … SM-64), judged in the order of A54.
//!
//! A timer is a question, never an order: it finds something due and yields one record with the
//! reason, or finds nothing and changes nothing. Also here: leases the server takes back.

use super::hold::{job_deadline, stale};
use super::{Stop, Work, cancel, create, settle, turn};
use crate::attempt::{AttemptEvent, AttemptState};
use crate::cause::Cause;
use crate::command::{LeaseProof, Reply};
use crate::fact::{Ending, Fact};
use crate::id::{AttemptId, LeaseKey};
use crate::job::Resolution;
use crate::lease::{LeaseEvent, LeaseState, Revocation};
use crate::run::{RunEvent, RunState};

const NOTHING: Reply = Reply::Done { changed: false };
const CHANGED: Reply = Reply::Done { changed: true };

pub(super) fn attempt(work: &mut Work, id: AttemptId) -> Result<Reply, Stop> {
    let Some(attempt) = work.find_attempt(id)? else {
        return Ok(NOTHING);
    };
    let now = work.now();
    if attempt.state == AttemptState::Created {
        return publish_when_due(work, id);
    }
    if !attempt.state.is_leased() {
        return Ok(NOTHING);
    }
    let canceling = attempt.state == AttemptState::CancelRequested;
    if canceling && attempt.cancel_deadline().is_some_and(|at| now >= at) {
        return force_cancel(work, id);
    }
    if work.run()?.due_at().is_some_and(|at| now >= at) {
        return run(work);
    }
    let attempt = work.attempt(id)?;
    let Some(lease) = attempt.live_lease() else {
        return Ok(NOTHING);
    };
    let (deadline, end) = (
        job_deadline(attempt, work.timeout(id)?, work.context.settings),
        lease.judged_until(work.context.lease_floor),
    );
    // A lease that ended before the deadline was lost then, however late we look; one that ends at
    // the deadline ran out of time.
    if !canceling && deadline.is_some_and(|at| now >= at && end >= at) {
        return time_out(work, id);
    }
    if now < end {
        return Ok(NOTHING);
    }
    let ack_timeout = lease.state == LeaseState::Granted && now >= lease.ack_by;
    if ack_timeout {
        lose(work, id, Some(Revocation::AckTimeout), true)
    } else {
        lose(work, id, None, true)
    }
}

/// A retry is queued when its delay is over.
fn publish_when_due(work: &mut Work, id: AttemptId) -> Result<Reply, Stop> {
    let due = work.now() >= work.attempt(id)?.not_before;
    if !due || work.job(id.job)?.waiting_on > 0 || !work.run()?.state.takes_work() {
        return Ok(NOTHING);
    }
    let before = work.facts.len();
    turn::ready(work, id.job)?;
    Ok(Reply::Done {
        changed: work.facts.len() > before,
    })
}

/// The holder did not answer the cancel in time (SM-51 … SM-53). What it streamed is kept.
fn force_cancel(work: &mut Work, id: AttemptId) -> Result<Reply, Stop> {
    let cause = work.attempt(id)?.cancel.as_ref().map(|cancel| cancel.cause);
    let ending = Ending {
        revocation: Some(Revocation::ForcedCancel),
        closing: None,
    };
    work.move_lease(id, LeaseEvent::Revoked, ending)?;
    work.move_attempt(id, AttemptEvent::Canceled, cause)?;
    settle::attempt_ended(work, id)?;
    Ok(CHANGED)
}

/// J8: heartbeats or not, the job has had its time.
fn time_out(work: &mut Work, id: AttemptId) -> Result<Reply, Stop> {
    let ending = Ending {
        revocation: Some(Revocation::JobTimeout),
        closing: None,
    };
    work.move_lease(id, LeaseEvent::Revoked, ending)?;
    work.move_attempt(id, AttemptEvent::TimedOut, Some(Cause::JobTimeout))?;
    settle::attempt_ended(work, id)?;
    Ok(CHANGED)
}

/// A live lease ends without a result: by expiry (`why` is none) or taken back. The attempt waits
/// for another lease while its budgets last (A6, A69).
fn lose(
    work: &mut Work,
    id: AttemptId,
    why: Option<Revocation>,
    counted: bool,
) -> Result<Reply, Stop> {
    let attempt = work.attempt(id)?;
    let acknowledged = attempt
        .live_lease()
        .is_some_and(|l| l.state == LeaseState::Active);
    let canceling = attempt.cancel.as_ref().map(|cancel| cancel.cause);
    let (mut losses, mut dispatches) = (attempt.losses, attempt.dispatches);
    let event = if why.is_some() {
        LeaseEvent::Revoked
    } else {
        LeaseEvent::Expired
    };
    work.move_lease(
        id,
        event,
        Ending {
            revocation: why,
            closing: None,
        },
    )?;
    if let Some(cause) = canceling {
        // A cancel that nobody is left to answer is over; it is never requeued.
        work.move_attempt(id, AttemptEvent::Canceled, Some(cause))?;
        settle::attempt_ended(work, id)?;
        return Ok(CHANGED);
    }
    if counted {
        losses += u32::from(acknowledged);
        dispatches += u32::from(!acknowledged);
        let (job, index) = (id.job.n, id.index);
        work.emit(Fact::Spent {
            job,
            index,
            losses,
            dispatches,
        })?;
    }
    let settings = work.context.settings;
    let once = work.job(id.job)?.policy.once;
    let given_up = match acknowledged {
        true if once => Some(Cause::LostOnce),
        true if losses >= settings.max_losses => Some(Cause::LeaseLost),
        false if dispatches >= settings.max_dispatches => Some(Cause::NotAccepted),
        _ => None,
    };
    match given_up {
        None => work.move_attempt(id, AttemptEvent::Lost, None)?,
        Some(cause) => {
            work.move_attempt(id, AttemptEvent::GivenUp, Some(cause))?;
            settle::attempt_ended(work, id)?;
        }
    }
    Ok(CHANGED)
}

pub(super) fn decline(work: &mut Work, proof: &LeaseProof) -> Result<Reply, Stop> {
    let lease = match work.check_proof(proof)? {
        Ok(lease) => lease,
        Err(stale) => return Ok(Reply::Stale(stale)),
    };
    if let Some(stale) = stale(work, &lease) {
        return Ok(Reply::Stale(stale));
    }
    if lease.state == LeaseState::Active {
        // After the acknowledgement only a completion can say so.
        return Ok(NOTHING);
    }
    lose(work, proof.key.attempt, Some(Revocation::Rejected), true)
}

/// Takes back a live lease; one that has ended or was replaced stays as it is.
pub(super) fn revoke(work: &mut Work, key: LeaseKey, why: Revocation) -> Result<Reply, Stop> {
    let Some(attempt) = work.find_attempt(key.attempt)? else {
        return Ok(NOTHING);
    };
    let Some(lease) = attempt
        .live_lease()
        .filter(|lease| lease.epoch == key.epoch)
    else {
        return Ok(NOTHING);
    };
    // An undelivered grant costs nothing; taking a job from its holder counts as a loss.
    let replaced = why == Revocation::Replaced;
    if replaced && lease.state == LeaseState::Active {
        return Ok(NOTHING);
    }
    lose(work, key.attempt, Some(why), !replaced)
}

pub(super) fn run(work: &mut Work) -> Result<Reply, Stop> {
    let Some(run) = work.find_run()? else {
        return Ok(NOTHING);
    };
    if run.due_at().is_none_or(|at| work.now() < at) {
        return Ok(NOTHING);
    }
    match run.state {
        RunState::Created => {
            work.move_run(RunEvent::PlanningStarted, None)?;
            create::fail_plan(work, Cause::PlanTimeout)
        }
        RunState::Planning => create::fail_plan(work, Cause::PlanTimeout),
        RunState::Queued => {
            let cause = waited_for(work)?;
            nobody_came(work, cause)
        }
        RunState::Running => run_timeout(work),
        _ => Ok(NOTHING),
    }
}

/// RQ-45: a function of a runner that no agent has fails at once.
pub(super) fn give_up(work: &mut Work, cause: Cause) -> Result<Reply, Stop> {
    match work.run()?.state {
        RunState::Queued => {
            publish_early(work)?;
            nobody_came(work, cause)
        }
        _ => Ok(NOTHING),
    }
}

/// Nothing waits for its moment any more: it would be dropped, and not have failed.
fn publish_early(work: &mut Work) -> Result<(), Stop> {
    for id in work.live_jobs()? {
        let current = work.job(id)?.current();
        if work.attempt(current)?.state == AttemptState::Created && work.job(id)?.waiting_on == 0 {
            work.move_attempt(current, AttemptEvent::Published, None)?;
        }
    }
    Ok(())
}

/// What a run that was never granted has waited for: an agent, or others of a group.
fn waited_for(work: &Work) -> Result<Cause, Stop> {
    let mut in_line = work.run()?.waits_for_turn();
    for id in work.live_jobs()? {
        let job = work.job(id)?;
        if work.attempt(job.current())?.state == AttemptState::Queued {
            return Ok(Cause::NoAgent);
        }
        in_line |= job.waits_for_turn();
    }
    Ok(if in_line {
        Cause::NoTurn
    } else {
        Cause::NoAgent
    })
}

/// A33: no grant within the waiting limit, or none to be expected.
fn nobody_came(work: &mut Work, cause: Cause) -> Result<Reply, Stop> {
    for id in work.live_jobs()? {
        let current = work.job(id)?.current();
        if work.attempt(current)?.state == AttemptState::Queued {
            work.move_attempt(current, AttemptEvent::NoAgent, Some(cause))?;
            work.emit(Fact::JobResolved {
                job: id.n,
                resolution: Resolution::Failed,
                cause: Some(cause),
            })?;
        } else {
            settle::drop_waiting(work, id, cause)?;
        }
    }
    work.move_run(RunEvent::Failed, Some(cause))?;
    settle::publish_outcome(work)?;
    Ok(CHANGED)
}

/// The outcome is fixed at once; what runs is asked to stop, what waits is dropped.
fn run_timeout(work: &mut Work) -> Result<Reply, Stop> {
    let live = work.live_jobs()?;
    work.move_run(RunEvent::TimedOut, Some(Cause::RunTimeout))?;
    for id in live {
        settle::drop_waiting(work, id, Cause::RunTimeout)?;
    }
    cancel::every_job(work, Cause::RunTimeout, &"server".into())?;
    Ok(CHANGED)
}

/// After the clock went back across a restart, no lease outlives now + ttl.
pub(super) fn clamp(work: &mut Work, id: AttemptId) -> Result<Reply, Stop> {
    let Some(attempt) = work.find_attempt(id)? else {
        return Ok(NOTHING);
    };
    let Some(lease) = attempt.live_lease() else {
        return Ok(NOTHING);
    };
    let latest = work.now() + lease.ttl;
    if lease.expires_at <= latest {
        return Ok(NOTHING);
    }
    let (job, index) = (id.job.n, id.index);
    work.emit(Fact::LeaseClamped {
        job,
        index,
        expires_at: latest,
    })?;
    Ok(CHANGED)
}
