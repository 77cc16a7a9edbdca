//! Results of tests: reports that the work writes are read, each case is sent to the server, and
//! what they come to is counted.
//!
//! While the work goes on, reports that grow line by line are read along, so that what was seen is
//! kept whatever happens to this machine. When it is over every report is read from its beginning,
//! and that counts; a case that was sent already is known by its report, its name and its number.
//! A report that cannot be read to its end is an error of its test, or a result of its own where
//! steps wrote it: the exit code decides of those. One that lay there before the first step, and
//! stayed as it was, is none of this attempt's.

pub(crate) mod aside;
mod book;
mod files;
mod read;
mod send;
mod stale;
mod tail;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delta_core::Cause;
use delta_results::{Format, Status};
use delta_wire::JobSpec;
use delta_wire::agent::proto::{RunSummary, TestResult, TestStatus};
use delta_wire::job_spec::{ResultsFormat, TestSpec};
use delta_wire::runner::LeaseToken;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use self::book::{Book, Id};
use self::read::{Said, Source};
use self::send::Sender;
pub(crate) use self::stale::Stale;
use self::tail::Stage;
use super::{Around, Failed, Kept};
use crate::agent::SlotContext;
use crate::attempt::StepRecord;
use crate::mask::Patterns;

/// Results that wait between a reader and the line.
const QUEUE: usize = 256;
/// How long a server that is there may take no result once the work is over. A store that is away
/// is back by then, or the attempt is better done again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Problems of reports that are said in the result of a test; the log says all of them.
const MAX_WORDS: usize = 5;

/// One report, or several by one pattern.
#[derive(Clone, Debug)]
pub(crate) struct ReportSpec {
    format: Format,
    pattern: String,
    /// The test of the job spec that writes it, by its place there.
    test: Option<u32>,
}

/// Where results come from and go to.
pub(crate) struct Place<'a> {
    pub context: &'a SlotContext,
    pub lease: &'a LeaseToken,
    pub line: watch::Receiver<Option<u64>>,
    pub spec: &'a JobSpec,
    pub workspace: &'a Path,
    /// Where the shim sets reports of tests aside.
    pub aside: PathBuf,
    /// What lay there before the first step.
    pub stale: Stale,
    pub patterns: Option<Arc<Patterns>>,
    /// Another agent began it, and may have sent results.
    pub taken_over: bool,
}

/// What is sent and counted while an attempt goes on.
pub(crate) struct Results {
    reports: Vec<ReportSpec>,
    workspace: PathBuf,
    aside: PathBuf,
    stale: Arc<Stale>,
    taken_over: bool,
    stage: Arc<Stage>,
    book: Arc<Book>,
    sending: Option<AbortOnDropHandle<usize>>,
    /// Dropped when no more results are waited for without bound.
    working: Option<DropGuard>,
}

/// Reports that a job spec names.
fn reports(spec: &JobSpec) -> Vec<ReportSpec> {
    let own = spec.results.iter().map(|it| ReportSpec {
        format: format(it.format),
        pattern: it.path.clone(),
        test: None,
    });
    let of_tests = spec.tests.iter().zip(0..).filter_map(|(test, place)| {
        let config = test.result_config.as_ref()?;
        Some(ReportSpec {
            format: format(config.result_format),
            pattern: config.result_file.clone()?,
            test: Some(place),
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
    pub fn begin(place: Place<'_>) -> Option<Results> {
        let (spec, context) = (place.spec, place.context);
        let reports = reports(spec);
        if reports.is_empty() && spec.tests.is_empty() {
            return None;
        }
        let over = CancellationToken::new();
        let sender = Sender {
            link: context.link.clone(),
            execution: context.execution.clone(),
            lease: place.lease.clone(),
            line: place.line,
            acks: context.link.result_acks(&context.execution),
            over: over.clone(),
            patience: context.settings.results_patience,
        };
        let (queue, results) = mpsc::channel(QUEUE);
        // An agent that took the attempt over knows its secrets only when the work has ended.
        let may_read = place.patterns.is_some() || spec.secret_names().is_empty();
        let tests = spec.tests.iter().map(|it| it.test_id.clone()).collect();
        let begun = Results {
            reports,
            workspace: place.workspace.to_owned(),
            aside: place.aside,
            stale: Arc::new(place.stale),
            taken_over: place.taken_over,
            stage: Arc::default(),
            book: Arc::new(Book::new(queue, tests, place.patterns)),
            sending: Some(AbortOnDropHandle::new(tokio::spawn(sender.send(results)))),
            working: Some(over.drop_guard()),
        };
        if may_read {
            begun.read_along();
        }
        Some(begun)
    }

    fn read_along(&self) {
        let all = &self.reports;
        let (shared, own): (Vec<ReportSpec>, Vec<ReportSpec>) =
            all.iter().cloned().partition(|it| it.is_shared(all));
        let along = read::Along {
            reports: own.into_iter().filter(ReportSpec::grows).collect(),
            shared,
            aside: self.aside.clone(),
            root: self.workspace.clone(),
            stale: self.stale.clone(),
            stage: self.stage.clone(),
            book: self.book.clone(),
        };
        along.begin();
    }

    /// Reads everything anew, sees it off, and says what it came to.
    pub async fn finish(mut self, around: &Around<'_>) -> Kept {
        self.stage.end();
        self.working = None;
        self.book.mask(around.log.patterns());
        let (stage, taken_over, stale) = (self.stage.clone(), self.taken_over, self.stale.clone());
        let places = self.places(around.records);
        let (looked_at, root) = (places.clone(), self.workspace.clone());
        self.off_the_loop(move |book| {
            // What they read is older than what is read now.
            stage.wait_for_readers();
            // What is gone can be read by nobody again: what was sent of it stands.
            let there =
                |(report, place): &(ReportSpec, PathBuf)| report.is_in(place, &root, &stale);
            book.begin_last_round(taken_over && looked_at.iter().all(there));
        })
        .await;
        let mut problems: Vec<(Option<u32>, Said)> = Vec::new();
        for (report, place) in places {
            let test = report.test;
            let said = self.read_all(report, place).await.into_iter();
            problems.extend(said.map(|said| (test, said)));
        }
        self.off_the_loop(Book::withdraw_the_rest).await;
        let (records, spec) = (around.records, around.spec);
        for (place, test) in (0..).zip(&spec.tests) {
            let record = records
                .iter()
                .find(|it| u32::try_from(it.index) == Ok(place));
            let own = problems
                .iter()
                .filter(|(of, it)| *of == Some(place) && it.unread);
            let unread = own.map(|(_, said)| said.words.as_str());
            let lost = record.and_then(|it| it.report_lost.as_deref());
            let unread: Vec<&str> = lost.into_iter().chain(unread).take(MAX_WORDS).collect();
            if record.is_some() || !unread.is_empty() {
                self.result_of(test, place, record, &unread).await;
            }
        }
        self.book.close();
        for (_, problem) in &problems {
            around.log.mark(&problem.words);
        }
        let missing = self.missing().await;
        let summary = self.book.summary();
        if summary.total_tests > 0 {
            around.log.mark(&sentence(&summary));
        }
        Kept {
            summary: (summary.total_tests > 0).then_some(summary),
            failed: failed(spec, &summary).or(missing),
            ..Kept::default()
        }
    }

    /// Every report with the folder it is read from.
    fn places(&self, records: &[StepRecord]) -> Vec<(ReportSpec, PathBuf)> {
        let place = |report: &ReportSpec| {
            let ended = records
                .iter()
                .any(|it| report.test.is_some() && u32::try_from(it.index).ok() == report.test);
            let alone = !ended && !report.is_shared(&self.reports);
            let place = read::place(&self.aside, report, &self.workspace, alone);
            (report.clone(), place)
        };
        self.reports.iter().map(place).collect()
    }

    /// Does something with the book that may wait for the line.
    async fn off_the_loop(&self, work: impl FnOnce(&Book) + Send + 'static) {
        let book = self.book.clone();
        if let Err(problem) = tokio::task::spawn_blocking(move || work(&book)).await {
            tracing::error!(error = %problem, "results were not dealt with");
        }
    }

    /// Waits until the server has all of them. An attempt whose results it has not taken is no
    /// success: what is shown of it would be less than what there was, and nobody could tell.
    async fn missing(&mut self) -> Option<Failed> {
        let left = match self.sending.take()?.await {
            Ok(left) => left + self.book.unsent(),
            Err(_) => usize::MAX,
        };
        let summary = match left {
            0 => return None,
            usize::MAX => "results of tests could not be stored".to_owned(),
            left => format!("{left} results of tests could not be stored"),
        };
        Some(Failed {
            cause: Cause::AgentError,
            summary,
        })
    }

    /// Every report of a pattern, and what is to be said of them.
    async fn read_all(&self, report: ReportSpec, place: PathBuf) -> Vec<Said> {
        let (workspace, book, stale) = (
            self.workspace.clone(),
            self.book.clone(),
            self.stale.clone(),
        );
        let reading = tokio::task::spawn_blocking(move || {
            let found = match files::find(&place, &report.pattern) {
                Ok(found) => found,
                Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                Err(problem) => {
                    let words = format!("reports {}: {problem}", report.pattern);
                    return vec![Said::unread(words)];
                }
            };
            let mut problems = Vec::new();
            for path in &found {
                let source = Source {
                    report: &report,
                    root: &workspace,
                    place: &place,
                    path,
                };
                problems.extend(source.read_whole(&book, &stale));
            }
            if found.is_empty() {
                let words = format!("no report of tests is at {}", report.pattern);
                problems.push(Said::plain(words));
            }
            problems
        });
        reading
            .await
            .unwrap_or_else(|_| vec![Said::unread("a report could not be read".to_owned())])
    }

    /// The result of a test that has no report, or whose report has no result or was not read as
    /// it was meant: a test without a result never counts as passed (A68), nor does one of which
    /// only a part is known.
    async fn result_of(
        &self,
        test: &TestSpec,
        place: u32,
        record: Option<&StepRecord>,
        unread: &[&str],
    ) {
        let config = test.result_config.as_ref();
        let reported = config.is_some_and(|config| config.result_file.is_some());
        if reported && unread.is_empty() && self.book.has_results_of(place) {
            return;
        }
        let (status, message) = match record {
            // What it came to is known, and is worse than its report.
            Some(it) if it.exit_code != Some(0) || unread.is_empty() => verdict(it, reported),
            _ => (Status::Error, unread.join("; ")),
        };
        let took = record.map(|it| i64::try_from(it.took.as_millis()).unwrap_or(i64::MAX));
        let result = TestResult {
            name: test.label().to_owned(),
            suite: test.suite.clone().unwrap_or_default(),
            status: wire_status(status).into(),
            duration_ms: took.unwrap_or(-1),
            error_message: message,
            ..Default::default()
        };
        let id = Id {
            test: Some(place),
            case: None,
            n: 0,
        };
        self.off_the_loop(move |book| {
            let report = book.report(id.test, "");
            book.enter(id, report, status, result);
        })
        .await;
    }
}

impl ReportSpec {
    /// It is written line by line, so that it can be read along.
    fn grows(&self) -> bool {
        matches!(self.format, Format::Tap | Format::Json | Format::Junit)
    }

    /// At least one of its pattern can be read.
    fn is_in(&self, place: &Path, root: &Path, stale: &Stale) -> bool {
        let found = files::find(place, &self.pattern).unwrap_or_default();
        found.iter().any(|path| {
            let source = Source {
                report: self,
                root,
                place,
                path,
            };
            source.is_there(stale)
        })
    }

    /// Another test may write the same file: whose it is can be told when one of them has ended.
    fn is_shared(&self, all: &[ReportSpec]) -> bool {
        let of_another = |it: &&ReportSpec| it.test.is_some() && it.test != self.test;
        let mut others = all.iter().filter(of_another);
        let apart = |it: &ReportSpec| {
            files::is_one_path(&it.pattern)
                && files::is_one_path(&self.pattern)
                && files::plain(&it.pattern) != files::plain(&self.pattern)
        };
        self.test.is_some() && !others.all(apart)
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
