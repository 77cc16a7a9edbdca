//! What follows when something ends: retry or resolution, dependents, the run (R6 … R11, J11).

use super::{Stop, Work, cancel, turn};
use crate::attempt::{AttemptEvent, AttemptState};
use crate::cause::Cause;
use crate::command::{Refusal, Reply};
use crate::fact::Fact;
use crate::id::{AttemptId, JobId};
use crate::job::{Resolution, resolution_of};
use crate::policy::retry_delay;
use crate::run::{RunCancel, RunEvent, RunState};
use crate::time::Span;

/// The longest delay that an attempt may ask for.
const LONGEST_HINT: Span = Span::hours(24);

/// An attempt has reached a final state: retry it, or resolve its job and what hangs on it.
pub(super) fn attempt_ended(work: &mut Work, id: AttemptId) -> Result<(), Stop> {
    let attempt = work.attempt(id)?;
    let (state, cause) = (attempt.state, attempt.cause);
    let policy = &work.job(id.job)?.policy;
    let failed = matches!(state, AttemptState::Failed | AttemptState::TimedOut);
    let retryable = failed && cause.is_some_and(|cause| policy.retries(cause, id.index));
    // No new attempt once the run is ending; a lost cause under fail_fast is ending too.
    let run = work.run()?;
    let stopping = run.header.fail_fast && run.will_fail();
    if retryable && run.state.takes_work() && !stopping {
        return retry(work, id);
    }
    let resolution = resolution_of(state).expect("an ended attempt resolves its job");
    resolve(work, id.job, resolution, cause)?;
    run_settled(work)
}

/// A new attempt with the next index, queued when its delay is over (SM-57, SM-58).
fn retry(work: &mut Work, id: AttemptId) -> Result<(), Stop> {
    let backoff = work
        .job(id.job)?
        .policy
        .backoff
        .unwrap_or_else(|| work.context.settings.backoff());
    let report = work.attempt(id)?.report.as_ref();
    // What a function asks for is a hint: bounded, and only where it is a delay.
    let asked = report
        .and_then(|report| report.retry_after)
        .map(|span| Span(span.0.clamp(0, LONGEST_HINT.0)));
    let delay = asked.unwrap_or_else(|| retry_delay(backoff, id.index, work.context.entropy));
    let (job, index) = (id.job.n, id.index + 1);
    work.emit(Fact::AttemptCreated {
        job,
        index,
        not_before: work.now() + delay,
    })?;
    if delay == Span::ZERO {
        work.move_attempt(id.job.attempt(index), AttemptEvent::Published, None)?;
    }
    Ok(())
}

/// Resolves a job, meets or drops what needs it, and so on down the line.
pub(super) fn resolve(
    work: &mut Work,
    id: JobId,
    resolution: Resolution,
    cause: Option<Cause>,
) -> Result<(), Stop> {
    work.emit(Fact::JobResolved {
        job: id.n,
        resolution,
        cause,
    })?;
    // While a cancel goes through the run, what waits ends by the cancel, not by the need.
    let stopped = work.run()?.cancel.as_ref().map(|cancel| cancel.cause);
    let drop_cause = stopped.unwrap_or(Cause::DependencyFailed);
    let mut ended = vec![id];
    if resolution == Resolution::Failed {
        ended.extend(stop_the_matrix(work, id)?);
    }
    while let Some(done) = ended.pop() {
        let job = work.job(done)?;
        let (met, dependents) = (job.meets_needs(), job.dependents.clone());
        for &n in dependents.iter() {
            let dependent = work.run.job(n);
            if work.job(dependent)?.resolution.is_some() {
                continue;
            }
            if met {
                need_met(work, dependent)?;
            } else if drop_waiting(work, dependent, drop_cause)? {
                ended.push(dependent);
            }
        }
    }
    let run = work.run()?;
    if run.header.fail_fast && run.will_fail() && run.state.takes_work() {
        cancel_the_rest(work)?;
    }
    Ok(())
}

fn need_met(work: &mut Work, id: JobId) -> Result<(), Stop> {
    work.emit(Fact::NeedMet { job: id.n })?;
    let job = work.job(id)?;
    let (ready, current) = (job.waiting_on == 0, job.current());
    let waiting = work.attempt(current)?.state == AttemptState::Created;
    if ready && waiting && work.run()?.state.takes_work() {
        turn::ready(work, id)?;
    }
    Ok(())
}

/// Ends a job that was never granted. False when it is no longer waiting.
pub(super) fn drop_waiting(work: &mut Work, id: JobId, cause: Cause) -> Result<bool, Stop> {
    let current = work.job(id)?.current();
    let state = work.attempt(current)?.state;
    if !matches!(state, AttemptState::Created | AttemptState::Queued) {
        return Ok(false);
    }
    work.move_attempt(current, AttemptEvent::Dropped, Some(cause))?;
    let resolution = Resolution::Canceled;
    work.emit(Fact::JobResolved {
        job: id.n,
        resolution,
        cause: Some(cause),
    })?;
    Ok(true)
}

/// `fail_fast` of a matrix: the first required cell that fails stops the others, and nothing else.
/// Returns those that ended at once.
fn stop_the_matrix(work: &mut Work, failed: JobId) -> Result<Vec<JobId>, Stop> {
    let policy = work.job(failed)?.policy.clone();
    let mut ended = Vec::new();
    if policy.fail_fast_group.is_none() || !policy.required || !work.run()?.state.takes_work() {
        return Ok(ended);
    }
    for id in work.live_jobs()? {
        let job = work.job(id)?;
        let is_cell = job.policy.fail_fast_group == policy.fail_fast_group;
        if !is_cell || job.resolution.is_some() {
            continue;
        }
        let current = job.current();
        if drop_waiting(work, id, Cause::MatrixFailFast)? {
            ended.push(id);
        } else {
            cancel::one(work, current, Cause::MatrixFailFast, &"server".into())?;
        }
    }
    Ok(ended)
}

/// `fail_fast`: the first lost required job stops the others.
fn cancel_the_rest(work: &mut Work) -> Result<(), Stop> {
    let by: crate::Text = "server".into();
    let waiting: Vec<JobId> = work.live_jobs()?;
    for id in &waiting {
        if work.job(*id)?.resolution.is_none() {
            drop_waiting(work, *id, Cause::FailFast)?;
        }
    }
    cancel::every_job(work, Cause::FailFast, &by)
}

/// Ends the run when no job is live, and publishes the outcome where nobody reports it.
pub(super) fn run_settled(work: &mut Work) -> Result<(), Stop> {
    let run = work.run()?;
    if run.live_jobs > 0 {
        return Ok(());
    }
    let failed = run.required_failed > 0;
    let lost = run.will_fail();
    match run.state {
        RunState::Running if lost => {
            let cause = if failed {
                Cause::RequiredJobFailed
            } else {
                Cause::RequiredJobCanceled
            };
            work.move_run(RunEvent::Failed, Some(cause))?;
        }
        RunState::Running => work.move_run(RunEvent::Succeeded, None)?,
        RunState::Queued => {
            // A16: the last job of a run that never started was canceled, by hand or by its group.
            let (at, cause) = (work.now(), why_canceled(work));
            work.emit(Fact::RunCancelAsked(RunCancel {
                at,
                cause,
                by: "server".into(),
            }))?;
            work.move_run(RunEvent::CancelRequested, None)?;
            work.move_run(RunEvent::Canceled, Some(cause))?;
        }
        RunState::CancelRequested => {
            let cause = run.cancel.as_ref().map(|cancel| cancel.cause);
            work.move_run(RunEvent::Canceled, cause)?;
        }
        _ => {}
    }
    publish_outcome(work)
}

/// Why the last job ended without a start: what this decision said of it.
fn why_canceled(work: &Work) -> Cause {
    let said = work.facts.iter().rev().find_map(|fact| match fact {
        Fact::JobResolved { cause, .. } => *cause,
        _ => None,
    });
    let by_group = |cause: &Cause| matches!(cause, Cause::Superseded | Cause::GroupFull);
    said.filter(by_group).unwrap_or(Cause::CanceledByUser)
}

/// Without a reporter, REPORTED follows in the same transaction; with one it waits (R11).
pub(super) fn publish_outcome(work: &mut Work) -> Result<(), Stop> {
    let run = work.run()?;
    let ended = run.state.has_ended() && run.state != RunState::Reported;
    // A dead letter waits for somebody to put it aside.
    let waits = run.header.needs_report || run.is_dead_letter();
    if ended && run.live_jobs == 0 && !waits {
        work.move_run(RunEvent::Reported, None)?;
    }
    Ok(())
}

/// The reporter has published the outcome.
pub(super) fn report(work: &mut Work) -> Result<Reply, Stop> {
    let run = work.run()?;
    if run.state == RunState::Reported {
        return Ok(Reply::Done { changed: false });
    }
    if !run.state.has_ended() || run.live_jobs > 0 {
        let what = format!("a run that is {} cannot be reported yet", run.state.name());
        return Err(Refusal::WrongState(what).into());
    }
    work.move_run(RunEvent::Reported, None)?;
    Ok(Reply::Done { changed: true })
}
