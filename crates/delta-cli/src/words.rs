//! States as people read them: a tone for each, and one line about how something stands.

use delta_wire::api::{JobSummary, RunView};
use delta_wire::states::{AttemptState, JobState, RunOutcome, RunState};

use crate::table::Cell;
use crate::terminal::Tone;

/// A run's outcome once it has one, else its state.
pub fn run(view: &RunView) -> Cell {
    match view.outcome {
        Some(outcome) => Cell::toned(outcome.as_str(), outcome_tone(outcome)),
        None => {
            let tone = match view.state {
                RunState::Running => Tone::Busy,
                RunState::CancelRequested | RunState::PlanFailed => Tone::Warn,
                _ => Tone::Quiet,
            };
            Cell::toned(view.state.as_str(), tone)
        }
    }
}

pub fn outcome_tone(outcome: RunOutcome) -> Tone {
    match outcome {
        RunOutcome::Success => Tone::Good,
        RunOutcome::Failed | RunOutcome::Timeout => Tone::Bad,
        RunOutcome::Canceled => Tone::Warn,
    }
}

pub fn job(state: JobState, required: bool) -> Cell {
    Cell::toned(state.as_str(), job_tone(state, required))
}

pub fn job_tone(state: JobState, required: bool) -> Tone {
    match state {
        JobState::Succeeded => Tone::Good,
        JobState::Failed if required => Tone::Bad,
        JobState::Failed | JobState::Canceled | JobState::CancelRequested => Tone::Warn,
        JobState::Starting | JobState::Running | JobState::Uploading => Tone::Busy,
        JobState::Created | JobState::Queued | JobState::Leased => Tone::Quiet,
    }
}

pub fn attempt(state: AttemptState) -> Cell {
    let tone = match state {
        AttemptState::Succeeded => Tone::Good,
        AttemptState::Failed | AttemptState::TimedOut => Tone::Bad,
        AttemptState::Canceled | AttemptState::CancelRequested | AttemptState::Stale => Tone::Warn,
        AttemptState::Starting | AttemptState::Running | AttemptState::Uploading => Tone::Busy,
        _ => Tone::Quiet,
    };
    Cell::toned(state.as_str(), tone)
}

/// Nothing more will happen to the job.
pub fn is_over(state: JobState) -> bool {
    matches!(
        state,
        JobState::Succeeded | JobState::Failed | JobState::Canceled
    )
}

/// Why a job ended as it did, and whether that counts.
pub fn note(job: &JobSummary) -> String {
    let mut parts: Vec<String> = Vec::new();
    if let Some(cause) = &job.cause {
        parts.push(crate::clean::text(cause));
    }
    if job.state == JobState::Failed && !job.required {
        parts.push("allowed to fail".into());
    }
    if job.state == JobState::Succeeded && job.attempts > 1 {
        parts.push(format!("needed {} attempts", job.attempts));
    }
    parts.join(", ")
}
