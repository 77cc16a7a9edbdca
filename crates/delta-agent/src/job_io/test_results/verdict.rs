//! What tests come to: each of them, and all of them together.

use delta_core::Cause;
use delta_results::Status;
use delta_shim::order::StepRecord;
use delta_wire::JobSpec;
use delta_wire::agent::proto::{RunSummary, TestStatus};

use crate::job_io::Failed;
use crate::job_io::test_count::in_words as tests;

pub fn verdict(record: &StepRecord, reported: bool) -> (Status, String) {
    match (record.exit_code, record.signal) {
        _ if record.timed_out => (Status::Error, "it took longer than it may".to_owned()),
        (Some(0), _) if reported => (
            Status::Error,
            "it succeeded, and its report has no result".to_owned(),
        ),
        (Some(0), _) => (Status::Pass, String::new()),
        (Some(code), _) => (Status::Fail, format!("it ended with exit code {code}")),
        (None, Some(signal)) => (Status::Error, format!("it was ended by signal {signal}")),
        (None, None) => (Status::Error, "it could not be carried out".to_owned()),
    }
}

pub fn wire_status(status: Status) -> TestStatus {
    match status {
        Status::Pass => TestStatus::Pass,
        Status::Fail => TestStatus::Fail,
        Status::Skip => TestStatus::Skip,
        Status::Error => TestStatus::Error,
    }
}

/// Where the tests are the work, one that fails fails the attempt, whatever the exit codes say.
/// Where nothing is wrong but that this machine lost reports, for these causes, it is not the
/// job's fault.
pub fn failed(spec: &JobSpec, summary: &RunSummary, ours: &[Cause]) -> Option<Failed> {
    let unhappy = summary.failed + summary.errors;
    if spec.tests.is_empty() || (unhappy == 0 && summary.total_tests > 0) {
        return None;
    }
    if let Some(cause) = ours
        .first()
        .filter(|_| usize::try_from(unhappy) == Ok(ours.len()))
    {
        return Some(Failed {
            cause: *cause,
            summary: format!("reports of {} could not be kept", tests(unhappy)),
        });
    }
    Some(match summary.total_tests {
        0 => Failed {
            cause: Cause::NoTests,
            summary: "no test has a result".to_owned(),
        },
        total => Failed {
            cause: Cause::UserExit,
            summary: format!("{unhappy} of {} failed", tests(total)),
        },
    })
}

pub fn sentence(summary: &RunSummary) -> String {
    let counts = [
        (summary.passed, "passed"),
        (summary.failed, "failed"),
        (summary.errors, "could not be carried out"),
        (summary.skipped, "skipped"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let words: Vec<String> = counts
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    format!("tests: {}", words.join(", "))
}
