//! Why a job failed, told once for everybody: the end of `delta-ci run`, `show`, `why` and whoever
//! reads the API. Made of the attempt's own report and of the results of its tests.
//!
//! Only words: the cause was decided when the attempt ended. A list is bounded: of a run with
//! hundreds of failures the first ones are told in full, the others in a sentence.

use std::time::Duration;

use delta_core::attempt::Report;
use delta_core::{Attempt, Cause, Job};
use delta_store::StoreError;
use delta_store::read::Reader;
use delta_store::results::{ResultQuery, ResultRow, ResultStatus, StoredResult};
use delta_wire::api::{FailedNeed, FailedTest, FailureView, JobSummary};
use delta_wire::states::JobState;
use delta_wire::{Evidence, StepResult, duration};

use super::{test_results, views};

/// Failed jobs of a run that are told in full; each costs two queries.
const IN_FULL: usize = 10;
/// Failed tests of one job that are named.
const NAMED: usize = 10;
/// Needs that are named of one job: what a line of text has room for, and a list as well.
const MAX_NEEDS: usize = 10;
/// Bytes of what a test said: its first lines. All of it is in the list of results.
const MAX_SAID: usize = 1024;
/// Lines of it.
const MAX_SAID_LINES: usize = 8;

/// Why this job failed, without what only the store knows. Nothing of one that did not.
fn of(job: &Job, attempt: &Attempt) -> Option<FailureView> {
    if JobState::of(job.resolution, attempt.state) != JobState::Failed {
        return None;
    }
    let report = attempt.report.as_ref();
    let evidence = evidence(report);
    let step = failed_step(&views::steps(report));
    let exit_code = step.as_ref().and_then(|step| step.exit_code);
    let signal = step.as_ref().and_then(|step| step.signal);
    Some(FailureView {
        attempt: attempt.id.index,
        message: within(
            message(report, attempt.cause.or(job.cause), step.as_ref()),
            job,
            attempt,
        ),
        exit_code: exit_code.or(report.and_then(|it| it.exit_code)),
        signal: signal.or(evidence.signal),
        step,
        tests_failed: 0,
        tests: Vec::new(),
        last_lines: evidence.last_lines,
    })
}

/// A sentence about a job's time says how much there was of it.
fn within(message: String, job: &Job, attempt: &Attempt) -> String {
    if attempt.cause.or(job.cause) != Some(Cause::JobTimeout) {
        return message;
    }
    let limit = u64::try_from(job.policy.timeout.0).unwrap_or_default();
    let limit = duration::format(Duration::from_millis(limit));
    format!("{message} (it may take {limit})")
}

/// Why an attempt failed, with the tests that did.
pub fn in_full(
    reader: &dyn Reader,
    job: &Job,
    attempt: &Attempt,
) -> Result<Option<FailureView>, StoreError> {
    // Of a job that was kept from an earlier run, the failure is that of the one that was executed.
    if let Some(kept) = job.kept
        && let Some(rows) = reader.job(kept)?
        && rows.job.kept.is_none()
        && let Some(last) = rows.attempts.last()
    {
        return in_full(reader, &rows.job, last);
    }
    let Some(mut failure) = of(job, attempt) else {
        return Ok(None);
    };
    let Some(lease) = attempt.lease.as_ref() else {
        return Ok(Some(failure));
    };
    let counts = reader.lease_results(attempt.id.lease(lease.epoch))?.counts;
    failure.tests_failed = counts.failed + counts.errors;
    if failure.tests_failed > 0 {
        let query = ResultQuery {
            run: job.id.run,
            job: Some(job.id.n),
            attempt: Some(attempt.id.index),
            only: vec![ResultStatus::Fail, ResultStatus::Error],
            after: None,
        };
        let found = reader.results(&query, NAMED)?;
        failure.tests = found.into_iter().map(failed_test).collect();
    }
    Ok(Some(failure))
}

/// Tells the failed jobs of a run: the first in full, the others in a sentence.
pub fn tell(
    reader: &dyn Reader,
    rows: &[(Job, Attempt)],
    jobs: &mut [JobSummary],
) -> Result<(), StoreError> {
    let mut told = 0;
    for ((job, attempt), summary) in rows.iter().zip(jobs) {
        let failure = if told < IN_FULL {
            in_full(reader, job, attempt)?
        } else {
            of(job, attempt).map(|it| FailureView {
                last_lines: Vec::new(),
                ..it
            })
        };
        told += usize::from(failure.is_some());
        summary.failure = failure.map(Box::new);
        summary.failed_needs = needs(job, rows);
    }
    Ok(())
}

/// The jobs that this one needed and that did not succeed, of one that ended because of them.
pub fn needs(job: &Job, rows: &[(Job, Attempt)]) -> Vec<FailedNeed> {
    if job.cause != Some(Cause::DependencyFailed) {
        return Vec::new();
    }
    let unmet = unmet(job, rows).take(MAX_NEEDS);
    unmet.map(|need| failed_need(need, rows)).collect()
}

/// Needs of a job that were not met, as far as they have ended.
fn unmet<'a>(job: &'a Job, rows: &'a [(Job, Attempt)]) -> impl Iterator<Item = &'a (Job, Attempt)> {
    let needs = job.policy.needs.iter();
    // Jobs are numbered from 1 in the order of their rows, which is checked all the same.
    let rows = needs.filter_map(|n| match rows.get((*n as usize).wrapping_sub(1)) {
        Some(row) if row.0.id.n == *n => Some(row),
        _ => rows.iter().find(|(it, _)| it.id.n == *n),
    });
    rows.filter(|(need, _)| need.resolution.is_some() && !need.meets_needs())
}

fn failed_need((need, attempt): &(Job, Attempt), rows: &[(Job, Attempt)]) -> FailedNeed {
    // What was not begun has its reason where the first of them failed.
    let (mut root, mut last) = (need, attempt);
    while root.cause == Some(Cause::DependencyFailed)
        && let Some((earlier, its)) = unmet(root, rows).next()
    {
        (root, last) = (earlier, its);
    }
    let cause = || {
        root.cause
            .map(|cause| cause.sentence().trim_end_matches('.'))
    };
    let words = of(root, last).map(|failure| failure.message);
    let words = words.or_else(|| cause().map(str::to_owned));
    let words = words.unwrap_or_else(|| "nobody said why".to_owned());
    FailedNeed {
        job_id: need.id.to_string(),
        name: need.name.to_string(),
        state: JobState::of(need.resolution, attempt.state),
        message: if root.id == need.id {
            words
        } else {
            format!("because of `{}`: {words}", root.name)
        },
    }
}

fn evidence(report: Option<&Report>) -> Evidence {
    let kept = report.and_then(|report| report.evidence.as_ref());
    let read = kept.and_then(|text| serde_json::from_str(text).ok());
    read.unwrap_or_default()
}

/// The one the runner names; of one that names none, the last that did not end well.
fn failed_step(steps: &[StepResult]) -> Option<StepResult> {
    let named = steps.iter().find(|step| step.failed);
    let unhappy = |step: &&StepResult| {
        step.timed_out || step.signal.is_some() || step.exit_code.is_some_and(|code| code != 0)
    };
    let silent = steps.iter().all(|step| step.number.is_none());
    let guessed = steps.iter().rev().find(unhappy).filter(|_| silent);
    named.or(guessed).cloned()
}

/// `step 2 `cargo test` ended with exit code 101`: the runner's sentence, in which the step has its
/// name, or one made of what is known.
fn message(report: Option<&Report>, cause: Option<Cause>, step: Option<&StepResult>) -> String {
    let said = report.and_then(|it| it.summary.as_deref());
    let said = said.map(str::trim).filter(|it| !it.is_empty());
    let Some(step) = step else {
        let cause = || cause.map(|cause| cause.sentence().trim_end_matches('.'));
        let words = said.or_else(cause).unwrap_or("nobody said why");
        return words.to_owned();
    };
    let number = step.number.map(|number| number.to_string());
    let plain = match &number {
        Some(number) => format!("step {number}"),
        None => "step".to_owned(),
    };
    let name = format!("{plain} `{}`", step.name);
    match said {
        Some(said) => match said.strip_prefix(&plain) {
            Some(rest) if rest.starts_with([' ', ':', ',']) => format!("{name}{rest}"),
            _ => format!("{name}: {said}"),
        },
        None => format!("{name} {}", ended(step)),
    }
}

fn ended(step: &StepResult) -> String {
    match (step.timed_out, step.signal, step.exit_code) {
        (true, ..) => "took longer than it may".to_owned(),
        (_, Some(signal), _) => format!("was ended by signal {signal}"),
        (_, _, Some(code)) => format!("ended with exit code {code}"),
        (_, _, None) => "did not end by itself".to_owned(),
    }
}

fn failed_test(it: StoredResult) -> FailedTest {
    FailedTest {
        suite: it.row.suite.to_string(),
        name: it.row.name.to_string(),
        status: test_results::status_view(it.row.status),
        message: first_lines(&it.row),
    }
}

/// The beginning of what a test said: its message, or of one without, its trace.
fn first_lines(row: &ResultRow) -> Option<String> {
    let text = row.message.as_deref().or(row.trace.as_deref())?;
    let lines = text.lines().map(str::trim_end);
    let lines = lines.skip_while(|line| line.is_empty());
    let lines: Vec<&str> = lines.take(MAX_SAID_LINES).collect();
    let mut said = lines.join("\n");
    said.truncate(said.floor_char_boundary(MAX_SAID));
    (!said.trim().is_empty()).then_some(said)
}

#[cfg(test)]
mod told {
    use delta_core::Text;

    use super::*;

    fn step(number: Option<u32>, name: &str, exit_code: i64, failed: bool) -> StepResult {
        StepResult {
            number,
            name: name.to_owned(),
            exit_code: Some(exit_code),
            failed,
            ..StepResult::default()
        }
    }

    fn said(summary: Option<&str>, step: Option<&StepResult>) -> String {
        let report = Report {
            summary: summary.map(Text::from),
            ..Report::default()
        };
        message(Some(&report), Some(Cause::UserExit), step)
    }

    #[test]
    fn the_step_has_its_name_in_the_runners_own_sentence() {
        let second = step(Some(2), "cargo test", 101, true);
        for (summary, words) in [
            (
                Some("step 2 ended with exit code 101"),
                "step 2 `cargo test` ended with exit code 101",
            ),
            (
                Some("step 2: no shell could be started: oh"),
                "step 2 `cargo test`: no shell could be started: oh",
            ),
            // Another step's number, and other people's words.
            (
                Some("step 20 is odd"),
                "step 2 `cargo test`: step 20 is odd",
            ),
            (Some("it broke"), "step 2 `cargo test`: it broke"),
            (None, "step 2 `cargo test` ended with exit code 101"),
        ] {
            assert_eq!(said(summary, Some(&second)), words);
        }
        assert_eq!(said(Some("the disk is full"), None), "the disk is full");
        assert_eq!(
            said(None, None),
            "A command of the job ended with a failure"
        );
    }

    #[test]
    fn a_failure_that_was_allowed_is_not_the_one() {
        let steps = [
            step(Some(1), "lint", 1, false),
            step(Some(3), "test", 2, true),
            step(Some(4), "report", 5, false),
        ];
        assert_eq!(failed_step(&steps), Some(steps[1].clone()));
        // What failed was none of them: the artifacts, say.
        assert_eq!(failed_step(&steps[..1]), None);
        // A runner that names none and numbers none.
        let old = [step(None, "a", 0, false), step(None, "b", 7, false)];
        assert_eq!(failed_step(&old), Some(old[1].clone()));
    }
}
