//! I8, I9, I10: what a run's outcome promises about its jobs.

use delta_core::lease::Revocation;
use delta_core::{Attempt, AttemptState, Cause, LeaseState, Resolution, Run, RunState};

use super::{Memory, Step, Verdict};

/// The command's run, if this step gave it this outcome.
fn ended_as<'a>(step: &Step<'a>, outcome: RunState) -> Option<&'a Run> {
    let run = step.edits.runs.get(&step.run_id())?;
    let before = step.before.runs.get(&run.id).and_then(Option::as_ref);
    let fresh = before.is_none_or(|before| before.outcome.is_none());
    (fresh && run.outcome == Some(outcome)).then_some(run)
}

/// I8: SUCCESS means exactly one SUCCEEDED attempt of every required job, and no live lease.
pub fn i08_success_needs_every_required_job(step: &Step, _: &Memory) -> Verdict {
    if ended_as(step, RunState::Success).is_none() {
        return Ok(());
    }
    for job in step.jobs_after() {
        let succeeded = step
            .attempts_after(job)
            .filter(|attempt| attempt.state == AttemptState::Succeeded)
            .count();
        if job.policy.required && succeeded != 1 {
            return Err(format!("{} succeeded {succeeded} times", job.id));
        }
        if step.attempts_after(job).any(|a| a.live_lease().is_some()) {
            return Err(format!("{} is still held", job.id));
        }
    }
    Ok(())
}

/// I9: FAILED means that planning failed, nobody came, or a required job is lost for good; TIMEOUT
/// that the time was over.
pub fn i09_failure_has_a_reason(step: &Step, memory: &Memory) -> Verdict {
    if let Some(run) = ended_as(step, RunState::Timeout) {
        let due = run.deadline();
        if due.is_none_or(|at| step.now < at) {
            return Err(format!("{} timed out before {due:?}", run.id));
        }
    }
    let Some(run) = ended_as(step, RunState::Failed) else {
        return Ok(());
    };
    let planning = memory.plan_failed.contains(&run.id) || run.started_at.is_none();
    if planning && run.jobs == 0 {
        return Ok(());
    }
    if matches!(run.cause, Some(Cause::NoAgent | Cause::NoTurn)) {
        let due = run.queued_at.map(|at| at + run.header.wait_timeout);
        return if due.is_some_and(|at| step.now >= at) {
            Ok(())
        } else {
            Err(format!("{} gave up waiting before {due:?}", run.id))
        };
    }
    let lost = step.jobs_after().any(|job| {
        let last = step.attempt_after(job.current());
        let for_good = last.is_some_and(|attempt| match attempt.state {
            AttemptState::Failed | AttemptState::TimedOut => attempt
                .cause
                .is_some_and(|cause| !job.policy.retries(cause, attempt.id.index)),
            AttemptState::Canceled => true,
            _ => false,
        });
        let resolved = matches!(
            job.resolution,
            Some(Resolution::Failed | Resolution::Canceled)
        );
        job.policy.required && resolved && for_good
    });
    if lost {
        Ok(())
    } else {
        Err(format!("{} failed without a lost required job", run.id))
    }
}

/// I10: CANCELED means that somebody asked, that every attempt has ended, and that each cancel was
/// acknowledged, out of time, or had no holder left.
pub fn i10_canceled_only_when_asked_and_settled(step: &Step, memory: &Memory) -> Verdict {
    for attempt in step.edits.attempts.values() {
        forced_in_time(step, attempt)?;
    }
    let Some(run) = ended_as(step, RunState::Canceled) else {
        return Ok(());
    };
    let asked_here = step
        .facts()
        .iter()
        .any(|fact| matches!(fact, delta_core::Fact::RunCancelAsked(_)));
    if !asked_here && !memory.run_cancel_asked.contains(&run.id) {
        return Err(format!("{} was canceled by nobody", run.id));
    }
    for job in step.jobs_after() {
        for attempt in step.attempts_after(job) {
            if !attempt.state.is_final() {
                return Err(format!("{} is {:?}", attempt.id, attempt.state));
            }
        }
    }
    Ok(())
}

/// A cancel that met an active lease waited for its holder or for its deadline.
fn forced_in_time(step: &Step, after: &Attempt) -> Verdict {
    let before = step.attempt_before(after.id);
    let fresh = before.is_some_and(|before| before.state != AttemptState::Canceled);
    let was_active = before
        .and_then(Attempt::live_lease)
        .is_some_and(|lease| lease.state == LeaseState::Active);
    if after.state != AttemptState::Canceled || !fresh || !was_active {
        return Ok(());
    }
    let lease = after.lease.as_ref();
    let state = lease.map(|lease| lease.state);
    let deadline = after.cancel_deadline();
    let settled = match (state, lease.and_then(|lease| lease.revocation)) {
        (Some(LeaseState::Canceled | LeaseState::Expired), _) => true,
        (Some(LeaseState::Revoked), Some(Revocation::ForcedCancel)) => {
            deadline.is_some_and(|at| step.now >= at)
        }
        (Some(LeaseState::Revoked), Some(Revocation::Operator | Revocation::Disowned)) => true,
        _ => false,
    };
    if settled {
        Ok(())
    } else {
        Err(format!(
            "{} was canceled at {:?} with its lease {state:?}, deadline {deadline:?}",
            after.id, step.now
        ))
    }
}
