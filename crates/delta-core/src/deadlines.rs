//! When things are due, and the promise that everything ends (`must_end_by`, L1, L2, I28).
//!
//! Nothing here decides; it computes from rows what the sweeper looks for and what people are
//! shown.

use crate::attempt::{Attempt, AttemptState};
use crate::run::{Run, RunState};
use crate::settings::Settings;
use crate::time::{Millis, Span};

/// The earliest moment at which `AttemptDue` could find something, for the sweeper. The deadlines
/// of the job and the run never fall before it: a renewal is capped by them (A54).
pub fn attempt_due_at(attempt: &Attempt) -> Option<Millis> {
    match attempt.state {
        AttemptState::Created => attempt.waits_for_a_moment().then_some(attempt.not_before),
        state if state.is_leased() => {
            let end = attempt.live_lease()?.ends_at();
            Some(
                attempt
                    .cancel_deadline()
                    .map_or(end, |cancel| cancel.min(end)),
            )
        }
        _ => None,
    }
}

/// The latest moment at which the run can still be without its outcome settled, whatever fails.
/// `None` once no job is live.
pub fn run_must_end_by(run: &Run, settings: &Settings) -> Option<Millis> {
    let header = &run.header;
    // A forced cancel, seen by a sweeper that is one sweep late, twice: for the run and the job.
    let settle = settings.force_after().plus(settings.sweep.times(2));
    let running = header.run_timeout.plus(settle);
    match run.state {
        RunState::Created | RunState::Planning => {
            let turn = header.concurrency.as_ref().map(|_| header.wait_timeout);
            let waiting = header.wait_timeout.plus(turn.unwrap_or(Span::ZERO));
            let waiting = header.planning_timeout.plus(waiting);
            Some(run.created_at + waiting.plus(running))
        }
        RunState::Queued => {
            let turn = if run.waits_for_turn() {
                header.wait_timeout
            } else {
                Span::ZERO
            };
            Some(run.waits_since()? + turn.plus(header.wait_timeout).plus(running))
        }
        RunState::Running => Some(run.started_at? + running),
        RunState::CancelRequested => Some(run.cancel.as_ref()?.at + settle),
        _ if run.live_jobs > 0 => Some(run.ended_at? + settle),
        _ => None,
    }
}

/// The latest moment at which the attempt can still be live: a cancel bounds it more closely than
/// the run does.
pub fn attempt_must_end_by(run: &Run, attempt: &Attempt, settings: &Settings) -> Option<Millis> {
    if attempt.state.is_final() {
        return None;
    }
    let sweeps = Span(settings.sweep.0 * 2);
    let cancel = attempt.cancel_deadline().map(|at| at + sweeps);
    let run = run_must_end_by(run, settings);
    match (cancel, run) {
        (Some(cancel), Some(run)) => Some(cancel.min(run)),
        (cancel, run) => cancel.or(run),
    }
}
