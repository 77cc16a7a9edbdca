//! Two-phase cancel (SM-48 … SM-50, A10, A11, A41): ask, then wait for the holder or force the end.
//! What nobody executes ends at once.

use super::{Stop, Work, settle};
use crate::Text;
use crate::attempt::{AttemptCancel, AttemptEvent, AttemptState};
use crate::cause::Cause;
use crate::command::Reply;
use crate::fact::{Ending, Fact};
use crate::id::{AttemptId, JobId};
use crate::lease::{LeaseEvent, Revocation};
use crate::run::{RunCancel, RunEvent, RunState};

pub(super) fn run(work: &mut Work, cause: Cause, by: &Text) -> Result<Reply, Stop> {
    let run = work.run()?;
    let fresh = run.cancel.is_none();
    let cancel = RunCancel {
        at: work.now(),
        cause,
        by: by.clone(),
    };
    match run.state {
        RunState::Created | RunState::Planning if fresh => {
            work.emit(Fact::RunCancelAsked(cancel))?;
        }
        RunState::Queued | RunState::Running => {
            // Every unresolved job must be in sight before the first of them is touched.
            work.live_jobs()?;
            work.emit(Fact::RunCancelAsked(cancel))?;
            work.move_run(RunEvent::CancelRequested, None)?;
            every_job(work, cause, by)?;
        }
        _ => return Ok(Reply::Done { changed: false }),
    }
    Ok(Reply::Done { changed: true })
}

pub(super) fn job(work: &mut Work, id: JobId, cause: Cause, by: &Text) -> Result<Reply, Stop> {
    let job = work.job(id)?;
    let current = job.current();
    if job.resolution.is_some() {
        return Ok(Reply::Done { changed: false });
    }
    let before = work.facts.len();
    one(work, current, cause, by)?;
    Ok(Reply::Done {
        changed: work.facts.len() > before,
    })
}

/// Cancels whatever is unresolved; the run settles when the last of it has ended.
pub(super) fn every_job(work: &mut Work, cause: Cause, by: &Text) -> Result<(), Stop> {
    for id in work.live_jobs()? {
        let job = work.job(id)?;
        if job.resolution.is_none() {
            let current = job.current();
            one(work, current, cause, by)?;
        }
    }
    settle::run_settled(work)
}

pub(super) fn one(work: &mut Work, id: AttemptId, cause: Cause, by: &Text) -> Result<(), Stop> {
    let state = work.attempt(id)?.state;
    if state.is_final() || state == AttemptState::CancelRequested {
        return Ok(());
    }
    ask(work, id, cause, by)?;
    match state {
        AttemptState::Created | AttemptState::Queued => {}
        AttemptState::Leased => {
            let revocation = Some(Revocation::CanceledUnacknowledged);
            work.move_lease(
                id,
                LeaseEvent::Revoked,
                Ending {
                    revocation,
                    closing: None,
                },
            )?;
        }
        _ => return Ok(()),
    }
    work.move_attempt(id, AttemptEvent::Canceled, Some(cause))?;
    settle::attempt_ended(work, id)
}

fn ask(work: &mut Work, id: AttemptId, cause: Cause, by: &Text) -> Result<(), Stop> {
    let settings = work.context.settings;
    let cancel = AttemptCancel {
        cause,
        by: by.clone(),
        requested_at: work.now(),
        grace: settings.cancel_deadline,
        force_at: work.now() + settings.force_after(),
    };
    work.emit(Fact::CancelAsked {
        job: id.job.n,
        index: id.index,
        cancel,
    })?;
    work.move_attempt(id, AttemptEvent::CancelRequested, None)
}
