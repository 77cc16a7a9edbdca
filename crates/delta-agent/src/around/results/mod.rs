//! Results of tests: reports that the work writes are read, each case is sent to the server, and
//! what they come to is counted.
//!
//! While the work goes on, reports that grow line by line are read along, so that what was seen is
//! kept whatever happens to this machine. When it is over every report is read from its beginning,
//! and that counts; a case that was sent already is known by its report, its name and its number.
//! A report that cannot be read to its end is said in the log and changes no outcome by itself.

mod files;
mod read;
mod send;
mod tail;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use delta_core::Cause;
use delta_results::{Format, Status};
use delta_wire::JobSpec;
use delta_wire::agent::proto::{RunSummary, TestResult, TestStatus};
use delta_wire::job_spec::{ResultsFormat, TestSpec};
use delta_wire::runner::LeaseToken;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;

use self::read::Source;
use self::send::Sender;
use self::tail::Stage;
use super::{Around, Failed, Kept};
use crate::agent::SlotContext;
use crate::attempt::StepRecord;
use crate::mask::{Masker, Patterns};
use crate::workspace::AttemptFolder;

/// Results of one attempt: as many as the server keeps of a lease.
const MAX_RESULTS: usize = 200_000;
/// Results that wait between a reader and the line.
const QUEUE: usize = 256;

/// One report, or several by one pattern.
#[derive(Clone, Debug)]
pub(crate) struct ReportSpec {
    format: Format,
    pattern: String,
    /// The test of the job spec that writes it.
    test: Option<String>,
}

/// What is sent and counted while an attempt goes on.
pub(crate) struct Results {
    reports: Vec<ReportSpec>,
    workspace: PathBuf,
    stage: Arc<Stage>,
    book: Arc<Book>,
    sending: Option<AbortOnDropHandle<usize>>,
}

/// What was found so far.
pub(super) struct Book {
    /// By test and number: what it came to, and a hash of all of it.
    seen: Mutex<HashMap<u128, (Status, u64)>>,
    duration_ms: Mutex<u64>,
    queue: Mutex<Option<mpsc::Sender<TestResult>>>,
    /// What must not leave this machine (T6).
    patterns: Mutex<Option<Arc<Patterns>>>,
}

impl Book {
    /// Counts a result and sends it, unless it was sent as it is. False when nothing more is taken.
    pub(super) fn enter(&self, key: u128, status: Status, mut result: TestResult) -> bool {
        self.redact(&mut result);
        let content = read::content(&result);
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.get(&key).is_some_and(|(_, sent)| *sent == content) {
                return true;
            }
            if seen.len() >= MAX_RESULTS && !seen.contains_key(&key) {
                return false;
            }
            if seen.insert(key, (status, content)).is_none() {
                let mut sum = self
                    .duration_ms
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                *sum = sum.saturating_add(u64::try_from(result.duration_ms).unwrap_or(0));
            }
        }
        let queue = self
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        queue.is_some_and(|queue| queue.blocking_send(result).is_ok())
    }

    fn mask(&self, patterns: Option<Arc<Patterns>>) {
        *self.patterns.lock().unwrap_or_else(PoisonError::into_inner) = patterns;
    }

    /// Everything in it that a job wrote.
    fn redact(&self, result: &mut TestResult) {
        let patterns = self.patterns.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(patterns) = patterns.as_ref() else {
            return;
        };
        let texts = [
            &mut result.name,
            &mut result.suite,
            &mut result.error_message,
            &mut result.stack_trace,
        ];
        for text in texts.into_iter().chain(result.metadata.values_mut()) {
            *text = Masker::text(patterns, text);
        }
    }

    fn close(&self) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn summary(&self) -> RunSummary {
        let mut summary = RunSummary::default();
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (status, _) in seen.values() {
            summary.total_tests += 1;
            match status {
                Status::Pass => summary.passed += 1,
                Status::Fail => summary.failed += 1,
                Status::Skip => summary.skipped += 1,
                Status::Error => summary.errors += 1,
            }
        }
        let sum = *self
            .duration_ms
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        summary.duration_ms = i64::try_from(sum).unwrap_or(i64::MAX);
        summary
    }
}

/// Reports that a job spec names.
fn reports(spec: &JobSpec) -> Vec<ReportSpec> {
    let own = spec.results.iter().map(|it| ReportSpec {
        format: format(it.format),
        pattern: it.path.clone(),
        test: None,
    });
    let of_tests = spec.tests.iter().filter_map(|test| {
        let config = test.result_config.as_ref()?;
        Some(ReportSpec {
            format: format(config.result_format),
            pattern: config.result_file.clone()?,
            test: Some(test.test_id.clone()),
        })
    });
    own.chain(of_tests).collect()
}

fn format(format: ResultsFormat) -> Format {
    match format {
        ResultsFormat::Junit => Format::Junit,
        ResultsFormat::Jest => Format::Jest,
        ResultsFormat::Playwright => Format::Playwright,
        ResultsFormat::Tap => Format::Tap,
        ResultsFormat::Json => Format::Json,
    }
}

impl Results {
    /// Begins to read along; nothing where the job says nothing of tests.
    pub fn begin(
        context: &SlotContext,
        lease: &LeaseToken,
        line: watch::Receiver<Option<u64>>,
        spec: &JobSpec,
        folder: &AttemptFolder,
        patterns: Option<Arc<Patterns>>,
    ) -> Option<Results> {
        let reports = reports(spec);
        if reports.is_empty() && spec.tests.is_empty() {
            return None;
        }
        let sender = Sender {
            link: context.link.clone(),
            execution: context.execution.clone(),
            lease: lease.clone(),
            line,
            acks: context.link.result_acks(&context.execution),
        };
        let (queue, results) = mpsc::channel(QUEUE);
        // An agent that took the attempt over knows its secrets only when the work has ended.
        let may_read = patterns.is_some() || spec.secret_names().is_empty();
        let book = Arc::new(Book {
            seen: Mutex::default(),
            duration_ms: Mutex::default(),
            queue: Mutex::new(Some(queue)),
            patterns: Mutex::new(patterns),
        });
        let begun = Results {
            reports,
            workspace: folder.workspace.clone(),
            stage: Arc::default(),
            book,
            sending: Some(AbortOnDropHandle::new(tokio::spawn(sender.send(results)))),
        };
        if may_read {
            read::along(&begun.reports, &begun.workspace, &begun.stage, &begun.book);
        }
        Some(begun)
    }

    /// Reads everything anew, sees it off, and says what it came to.
    pub async fn finish(mut self, around: &Around<'_>) -> Kept {
        self.stage.end();
        self.book.mask(around.log.patterns());
        // What they read is older than what is read now.
        let stage = self.stage.clone();
        let _ = tokio::task::spawn_blocking(move || stage.wait_for_readers()).await;
        let mut problems = Vec::new();
        for report in self.reports.clone() {
            problems.extend(self.read_all(report).await);
        }
        let (records, spec) = (around.records, around.spec);
        for (index, test) in spec.tests.iter().enumerate() {
            if let Some(record) = records.iter().find(|it| it.index == index) {
                self.by_exit_code(test, record).await;
            }
        }
        self.book.close();
        for problem in &problems {
            around.log.mark(problem);
        }
        if let Some(sending) = self.sending.take() {
            match sending.await {
                Ok(0) | Err(_) => {}
                Ok(left) => around
                    .log
                    .mark(&format!("{left} results could not be sent")),
            }
        }
        let summary = self.book.summary();
        if summary.total_tests > 0 {
            around.log.mark(&sentence(&summary));
        }
        Kept {
            summary: (summary.total_tests > 0).then_some(summary),
            failed: failed(spec, &summary),
            ..Kept::default()
        }
    }

    /// Every report of a pattern, and what is to be said of them.
    async fn read_all(&self, report: ReportSpec) -> Vec<String> {
        let (workspace, book) = (self.workspace.clone(), self.book.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let found = match files::find(&workspace, &report.pattern) {
                Ok(found) => found,
                Err(problem) => return vec![format!("reports {}: {problem}", report.pattern)],
            };
            let mut problems = Vec::new();
            for path in &found {
                let source = Source {
                    report: &report,
                    root: &workspace,
                    path,
                };
                problems.extend(source.read_whole(&book));
            }
            if found.is_empty() {
                problems.push(format!("no report of tests is at {}", report.pattern));
            }
            problems
        });
        reading
            .await
            .unwrap_or_else(|_| vec!["a report could not be read".to_owned()])
    }

    /// The result of a test that has no report, or whose report has no result: a test without a
    /// result never counts as passed (A68).
    async fn by_exit_code(&self, test: &TestSpec, record: &StepRecord) {
        let config = test.result_config.as_ref();
        let reported = config.is_some_and(|config| config.result_file.is_some());
        if reported && self.has_results_of(&test.test_id) {
            return;
        }
        let (status, message) = verdict(record, reported);
        let result = TestResult {
            test_id: test.test_id.clone(),
            name: test.label().to_owned(),
            suite: test.suite.clone().unwrap_or_default(),
            status: wire_status(status).into(),
            duration_ms: i64::try_from(record.took.as_millis()).unwrap_or(i64::MAX),
            error_message: message,
            ..Default::default()
        };
        let (book, key) = (self.book.clone(), read::key(&test.test_id, 0));
        // It may wait for the line.
        let _ = tokio::task::spawn_blocking(move || book.enter(key, status, result)).await;
    }

    fn has_results_of(&self, test: &str) -> bool {
        let seen = self
            .book
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mark = read::test_mark(test);
        seen.keys().any(|key| read::is_of_test(*key, mark))
    }
}

/// Those who read along end with it.
impl Drop for Results {
    fn drop(&mut self) {
        self.stage.end();
        self.book.close();
    }
}

fn verdict(record: &StepRecord, reported: bool) -> (Status, String) {
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

fn wire_status(status: Status) -> TestStatus {
    match status {
        Status::Pass => TestStatus::Pass,
        Status::Fail => TestStatus::Fail,
        Status::Skip => TestStatus::Skip,
        Status::Error => TestStatus::Error,
    }
}

/// Where the tests are the work, one that fails fails the attempt, whatever the exit codes say.
fn failed(spec: &JobSpec, summary: &RunSummary) -> Option<Failed> {
    let unhappy = summary.failed + summary.errors;
    if spec.tests.is_empty() || (unhappy == 0 && summary.total_tests > 0) {
        return None;
    }
    Some(Failed {
        cause: Cause::UserExit,
        summary: match summary.total_tests {
            0 => "no test has a result".to_owned(),
            total => format!("{unhappy} of {total} tests failed"),
        },
    })
}

fn sentence(summary: &RunSummary) -> String {
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
