//! I5, I13, I14: attempts follow one another in order, within their budgets, for a reason.

use delta_core::{AttemptId, AttemptState, Fact, RunState};

use super::{Memory, Step, Verdict};

fn retried(step: &Step) -> impl Iterator<Item = AttemptId> {
    let run = step.run_id();
    step.facts().iter().filter_map(move |fact| match fact {
        Fact::AttemptCreated { job, index, .. } => Some(run.job(*job).attempt(*index)),
        _ => None,
    })
}

/// I5: attempts of a job are 1, 2, …, n in the order they were made, each after a failed one.
pub fn i05_attempts_are_numbered_in_order(step: &Step, memory: &Memory) -> Verdict {
    for id in retried(step) {
        let former = id.job.attempt(id.index - 1);
        if memory.attempts.contains_key(&id) || !memory.attempts.contains_key(&former) {
            return Err(format!("{id} is out of order"));
        }
        let state = step.attempt_after(former).map(|attempt| attempt.state);
        if !matches!(state, Some(AttemptState::Failed | AttemptState::TimedOut)) {
            return Err(format!("{id} follows an attempt that is {state:?}"));
        }
    }
    Ok(())
}

/// I13: attempts, losses and unacknowledged grants stay within their budgets.
pub fn i13_budgets_hold(step: &Step, _: &Memory) -> Verdict {
    let settings = step.settings;
    for (id, attempt) in &step.edits.attempts {
        let Some(job) = step.job_after(id.job) else {
            continue;
        };
        if job.attempts > job.policy.max_attempts.max(1) || id.index > job.attempts {
            return Err(format!("{} attempts of {}", job.attempts, job.id));
        }
        let lost_once = job.policy.once && attempt.losses > 1;
        if attempt.losses > settings.max_losses || lost_once {
            return Err(format!("{id} lost its lease {} times", attempt.losses));
        }
        if attempt.dispatches > settings.max_dispatches {
            return Err(format!("{id} was given out {} times", attempt.dispatches));
        }
        let spent = attempt.losses >= settings.max_losses
            || attempt.dispatches >= settings.max_dispatches
            || (job.policy.once && attempt.losses > 0);
        if spent && !attempt.state.is_final() {
            return Err(format!("{id} goes on with its budget spent"));
        }
    }
    Ok(())
}

/// I14: a retry follows a retryable cause, in a run that is QUEUED or RUNNING.
pub fn i14_retries_are_earned(step: &Step, memory: &Memory) -> Verdict {
    for id in retried(step) {
        let former = step.attempt_after(id.job.attempt(id.index - 1));
        let policy = step.job_after(id.job).map(|job| &job.policy);
        let earned = match (former.and_then(|attempt| attempt.cause), policy) {
            (Some(cause), Some(policy)) => {
                !policy.once
                    && id.index <= policy.max_attempts
                    && policy.retry_on.iter().any(|on| on.covers(cause))
            }
            _ => false,
        };
        if !earned {
            return Err(format!("{id} was not earned"));
        }
        let run = memory.runs.get(&id.run());
        if !matches!(run, Some(RunState::Queued | RunState::Running)) {
            return Err(format!("{id} was made in a run that is {run:?}"));
        }
    }
    Ok(())
}
