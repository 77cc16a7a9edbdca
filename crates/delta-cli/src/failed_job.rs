//! Why a job failed, for people: one rendering for the end of `run`, for `show` and for `why`. A
//! program that is missing is a hint beside it, and no cause.
//!
//! What is in it was said by runners, jobs and tests, so every line is cleaned; and it is bounded,
//! with the command that has the rest.

mod missing_program;

use delta_core::tool;
use delta_wire::api::{FailedTest, FailureView, JobSummary, TestStatus};
use delta_wire::states::JobState;

use crate::sanitize::{self, Colours};
use crate::terminal::{Terminal, Tone};
use crate::{human_time, state_words};

/// Lines of what a test said; its list of results has all of it.
const SAID_LINES: usize = 3;

/// How much of a failure there is room for.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    pub tests: usize,
    pub lines: usize,
}

impl Room {
    /// Where nothing else is shown.
    pub const ALONE: Room = Room {
        tests: 10,
        lines: 20,
    };
    /// Under a table of jobs.
    pub const AMONG_OTHERS: Room = Room {
        tests: 5,
        lines: 10,
    };
}

/// A job that failed by itself: others' failures are told where they are.
pub fn is_told(job: &JobSummary) -> bool {
    let by_another = job.cause.as_deref() == Some("dependency_failed");
    job.state == JobState::Failed && job.attempts > 0 && !by_another
}

/// `unit FAILED in 2.5s: step 2 `cargo test` ended with exit code 101`, and what is below it.
/// `rest` is what to type for more.
pub fn job(job: &JobSummary, room: Room, rest: Option<&str>, terminal: &Terminal) -> Vec<String> {
    let tone = state_words::job_tone(job.state, job.required);
    let name = terminal.paint_out(Tone::Strong, &sanitize::text(&job.name));
    let mark = terminal.paint_out(tone, "✗");
    let said = terminal.paint_out(tone, &ended(job));
    let mut lines = terminal.broken(&format!("{mark} {name} {said}"));
    if let Some(failure) = &job.failure {
        lines.extend(below(failure, room, rest, terminal));
    }
    lines
}

/// How a job ended, in one line: `FAILED in 2.5s: step 2 `make` ended with exit code 2`.
pub fn ended(job: &JobSummary) -> String {
    let mut text = job.state.as_str().to_owned();
    if let (Some(from), Some(to)) = (job.started_at, job.ended_at) {
        text.push_str(&format!(
            " in {}",
            human_time::short(human_time::between(from, to))
        ));
    }
    let note = match &job.failure {
        Some(failure) => {
            text.push_str(&format!(": {}", sanitize::text(&failure.message)));
            state_words::standing(job)
        }
        None => state_words::note(job),
    };
    if !note.is_empty() {
        text.push_str(&format!(" ({note})"));
    }
    text
}

/// The tests that failed and the last lines, indented.
pub fn below(
    failure: &FailureView,
    room: Room,
    rest: Option<&str>,
    terminal: &Terminal,
) -> Vec<String> {
    let mut lines = Vec::new();
    let shown = failure.tests.iter().take(room.tests);
    for test in shown.clone() {
        lines.extend(of_test(test, terminal));
    }
    let left = failure.tests_failed.saturating_sub(shown.len() as u64);
    if left > 0 && failure.tests_failed > 0 {
        let tests = state_words::count(left, "test");
        let what = if failure.tests.is_empty() {
            format!("{tests} failed")
        } else {
            format!("and {left} more failed")
        };
        let rest = rest.map(|rest| format!(": {rest}")).unwrap_or_default();
        lines.extend(terminal.broken(&format!("    {what}{rest}")));
    }
    let last = &failure.last_lines;
    let mark = terminal.paint_out(Tone::Quiet, "|");
    for line in &last[last.len().saturating_sub(room.lines)..] {
        let line = sanitize::log_line(line.as_bytes(), Colours::Dropped);
        lines.push(format!("    {mark} {line}").trim_end().to_owned());
    }
    if let Some(program) = missing_program::named(failure) {
        let mut hint = format!("hint: `{program}` is not there where the job ran");
        if let Some(install) = tool::advice(program) {
            hint.push_str(&format!("; {install}"));
        }
        let hint = terminal.paint_out(Tone::Warn, &sanitize::text(&hint));
        lines.extend(terminal.broken(&format!("    {hint}")));
    }
    lines
}

fn of_test(test: &FailedTest, terminal: &Terminal) -> Vec<String> {
    let word = match test.status {
        TestStatus::Error => "ERROR",
        _ => "FAIL",
    };
    let name = if test.suite.is_empty() {
        sanitize::text(&test.name)
    } else {
        sanitize::text(&format!("{} › {}", test.suite, test.name))
    };
    let word = terminal.paint_out(Tone::Bad, &format!("{word:>5}"));
    let mut lines = terminal.broken(&format!("    {word}  {name}"));
    let said = test.message.as_deref().unwrap_or_default();
    let mut said = said.lines().filter(|line| !line.trim().is_empty());
    for line in said.by_ref().take(SAID_LINES) {
        let line = sanitize::log_line(line.as_bytes(), Colours::Dropped);
        lines.extend(terminal.broken(&format!("             {}", line.trim_end())));
    }
    if said.next().is_some() {
        lines.push("             …".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use delta_wire::Millis;

    use super::*;
    use crate::terminal::When;

    fn failure() -> FailureView {
        let test = |name: &str, message: &str| FailedTest {
            suite: "tests.test_add".into(),
            name: name.into(),
            status: TestStatus::Fail,
            message: Some(message.into()),
        };
        FailureView {
            attempt: 1,
            message: "step 2 `cargo test` ended with exit code 101".into(),
            tests_failed: 14,
            tests: vec![
                test("test_add", "assert -1 == 3"),
                test("test_\u{1b}[2Jsub", "1\n\n2\n3\n4"),
            ],
            last_lines: vec!["one".into(), "two \u{1b}[31mred".into()],
            ..FailureView::default()
        }
    }

    fn summary() -> JobSummary {
        JobSummary {
            job_id: "job_1".into(),
            name: "unit".into(),
            state: JobState::Failed,
            required: true,
            attempts: 1,
            cause: Some("user_exit".into()),
            failure: Some(Box::new(failure())),
            failed_needs: Vec::new(),
            log_dropped: None,
            why: None,
            summary: None,
            kept_from: None,
            started_at: Some(Millis(0)),
            ended_at: Some(Millis(2_500)),
        }
    }

    #[test]
    fn a_failure_names_its_step_its_tests_and_its_last_lines() {
        let terminal = Terminal::new(false, When::Never);
        let rest = Some("delta-ci tests latest/unit --failed");
        let lines = job(&summary(), Room::ALONE, rest, &terminal);
        let wanted = "\
✗ unit FAILED in 2.5s: step 2 `cargo test` ended with exit code 101
     FAIL  tests.test_add › test_add
             assert -1 == 3
     FAIL  tests.test_add › test_\u{fffd}[2Jsub
             1
             2
             3
             …
    and 12 more failed: delta-ci tests latest/unit --failed
    | one
    | two red";
        assert_eq!(lines.join("\n"), wanted);
        let narrow = Room { tests: 1, lines: 1 };
        let lines = job(&summary(), narrow, None, &terminal);
        assert_eq!(
            lines[3..],
            [
                "    and 13 more failed".to_owned(),
                "    | two red".to_owned()
            ]
        );
    }

    #[test]
    fn a_program_that_is_missing_is_a_hint_below_the_last_lines() {
        let terminal = Terminal::new(false, When::Never);
        let failure = FailureView {
            last_lines: vec!["make: uv: No such file or directory".into()],
            ..FailureView::default()
        };
        let lines = below(&failure, Room::ALONE, None, &terminal);
        let hint = "    hint: `uv` is not there where the job ran; pip install uv";
        assert_eq!(lines, ["    | make: uv: No such file or directory", hint]);
    }

    #[test]
    fn what_does_not_count_is_said_beside_it() {
        let allowed = JobSummary {
            required: false,
            ..summary()
        };
        assert!(ended(&allowed).ends_with("exit code 101 (allowed to fail)"));
        let other = JobSummary {
            cause: Some("dependency_failed".into()),
            ..summary()
        };
        assert!(is_told(&allowed) && !is_told(&other));
    }
}
