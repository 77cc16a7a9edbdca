//! The end of a run for people: failures first, each with its step, its failed tests and its last
//! lines, then all jobs in a table, then the outcome.

use delta_wire::api::{JobSummary, RunView};
use delta_wire::states::{JobState, RunOutcome};

use super::screen::Screen;
use crate::cmd::show;
use crate::failed_job::{self, Room};
use crate::terminal::{self, Terminal, Tone};
use crate::{columns, human_time, sanitize, state_words};

/// Failures that are shown; those of the others are in the table and in the history.
const MAX_SHOWN: usize = 10;

/// Last lines that all failures together may have: what is above scrolls away.
const MAX_LINES: usize = 60;

/// Failed tests that all failures together may name, for the same reason.
const MAX_TESTS: usize = 30;

/// Last lines of a failure whose output has been printed above.
const REPEATED_LINES: usize = 10;

/// Prints it to stdout. `kept`: the run can be asked for later.
pub fn show(view: &RunView, kept: bool, screen: &Screen, terminal: &Terminal) {
    terminal.data("");
    let jobs = ordered(&view.jobs);
    show_failures(&jobs, kept, screen, terminal);
    let folded = screen.folded() && jobs.len() + 4 > usize::from(terminal::size().0);
    let in_table = jobs.iter().filter(|it| !folded || !went_well(it));
    let in_table: Vec<&JobSummary> = in_table.copied().collect();
    // Ids alone are half a line, and of a run that is not kept nobody can ask for them.
    let columns = if terminal.out_is_terminal() {
        &columns::JOBS_HERE
    } else {
        &columns::JOBS
    };
    if !in_table.is_empty() {
        show::show_jobs(&in_table, columns, terminal);
    }
    if in_table.len() < jobs.len() {
        let count = (jobs.len() - in_table.len()) as u64;
        let line = format!("and {} that succeeded", state_words::count(count, "job"));
        terminal.sentence(&terminal.paint_out(Tone::Quiet, &line));
    }
    let (word, tone) = match view.summary.outcome {
        Some(outcome) => (outcome.as_str(), state_words::outcome_tone(outcome)),
        None => (RunOutcome::Canceled.as_str(), Tone::Warn),
    };
    let summary = &view.summary;
    let took = human_time::taken(summary.started_at, summary.ended_at, human_time::now());
    let (id, word) = (
        sanitize::text(&summary.run_id),
        terminal.paint_out(tone, word),
    );
    terminal.sentence(&format!("{id}: {word} in {took}"));
}

fn show_failures(jobs: &[&JobSummary], kept: bool, screen: &Screen, terminal: &Terminal) {
    let failed: Vec<&&JobSummary> = jobs.iter().filter(|it| failed_job::is_told(it)).collect();
    let shown = failed.len().min(MAX_SHOWN);
    let share = |most: usize| most.checked_div(shown).unwrap_or(0);
    let lines = if screen.folded() {
        Room::ALONE.lines
    } else {
        REPEATED_LINES
    };
    let room = Room {
        tests: share(MAX_TESTS).min(Room::ALONE.tests),
        lines: share(MAX_LINES).min(lines),
    };
    for job in &failed[..shown] {
        let rest = format!(
            "delta-ci tests latest/{} --failed",
            sanitize::text(&job.name)
        );
        let rest = kept.then_some(rest.as_str());
        for line in failed_job::job(job, room, rest, terminal) {
            terminal.data(&line);
        }
        terminal.data("");
    }
    if failed.len() > shown {
        let more = (failed.len() - shown) as u64;
        let line = format!(
            "✗ and {} that failed, see below",
            state_words::count(more, "job")
        );
        terminal.sentence(&terminal.paint_out(Tone::Bad, &line));
        terminal.data("");
    }
}

fn went_well(job: &JobSummary) -> bool {
    job.state == JobState::Succeeded
}

/// Failures that count, failures that do not, what was stopped, and the rest; each in file order.
fn ordered(jobs: &[JobSummary]) -> Vec<&JobSummary> {
    let mut all: Vec<&JobSummary> = jobs.iter().collect();
    all.sort_by_key(|job| match job.state {
        JobState::Failed if job.required && job.attempts > 0 => 0,
        JobState::Failed if job.required => 1,
        JobState::Failed => 2,
        JobState::Succeeded => 4,
        _ => 3,
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_come_first() {
        let job = |name: &str, state, required, attempts| JobSummary {
            job_id: String::new(),
            name: name.to_owned(),
            state,
            required,
            attempts,
            cause: None,
            failure: None,
            failed_needs: Vec::new(),
            log_dropped: None,
            why: None,
            summary: None,
            kept_from: None,
            started_at: None,
            ended_at: None,
        };
        let jobs = [
            job("good", JobState::Succeeded, true, 1),
            job("stopped", JobState::Canceled, true, 0),
            job("allowed", JobState::Failed, false, 1),
            job("bad", JobState::Failed, true, 3),
            job("fine", JobState::Succeeded, true, 1),
        ];
        let names: Vec<&str> = ordered(&jobs).iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["bad", "allowed", "stopped", "good", "fine"]);
    }
}
