//! Results of tests: reports that the work writes are read, each case is sent to the server, and
//! what they come to is counted.
//!
//! While the work goes on, reports that grow line by line are read along, so that what was seen is
//! kept whatever happens to this machine. When it is over every report is read from its beginning,
//! and that counts; a case that was sent already is known by its report, its name and its number.
//! A report that cannot be read to its end is an error of its test, or a result of its own where
//! steps wrote it: the exit code decides of those. One that lay there before the first step, and
//! stayed as it was, is none of this attempt's. Where no report tells of work that failed, the
//! tests that its tools named in what they printed are sent, and not counted.

mod dedup;
mod failed_by_tests;
mod growing_report;
mod live_reader;
mod old_reports;
mod printed;
mod report_reader;
mod report_spec;
mod sender;
mod verdict;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delta_core::Cause;
use delta_results::Status;
use delta_shim::mask::Patterns;
use delta_shim::order::StepRecord;
use delta_shim::report_files;
use delta_wire::JobSpec;
use delta_wire::agent::proto::TestResult;
use delta_wire::job_spec::TestSpec;
use delta_wire::runner::LeaseToken;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use self::dedup::{Id, SentResults};
use self::growing_report::Stage;
pub(crate) use self::old_reports::OldReports;
use self::report_reader::{ReportContent, Source};
use self::report_spec::{ReportSpec, reports};
use self::sender::Sender;
use self::verdict::{failed, sentence, verdict, wire_status};
use super::{Around, Failed, Kept, Tested};
use crate::agent::SlotContext;

/// Results that wait between a reader and the line.
const QUEUE: usize = 256;
/// How long a server that is there may take no result once the work is over. A store that is away
/// is back by then, or the attempt is better done again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Problems of reports that are said in the result of a test; the log says all of them.
const MAX_WORDS: usize = 5;

/// Where results come from and go to.
pub(crate) struct ResultsContext<'a> {
    pub context: &'a SlotContext,
    pub lease: &'a LeaseToken,
    pub line: watch::Receiver<Option<u64>>,
    pub spec: &'a JobSpec,
    pub workspace: &'a Path,
    /// Where the shim sets reports of tests aside.
    pub aside: PathBuf,
    /// What lay there before the first step.
    pub stale: OldReports,
    pub patterns: Option<Arc<Patterns>>,
    /// Another agent began it, and may have sent results.
    pub taken_over: bool,
}

/// What is sent and counted while an attempt goes on.
pub(crate) struct Results {
    reports: Vec<ReportSpec>,
    workspace: PathBuf,
    aside: PathBuf,
    stale: Arc<OldReports>,
    taken_over: bool,
    stage: Arc<Stage>,
    book: Arc<SentResults>,
    sending: Option<AbortOnDropHandle<usize>>,
    /// Dropped when no more results are waited for without bound.
    working: Option<DropGuard>,
}

impl Results {
    /// Begins to read along; nothing where the job says nothing of tests.
    pub fn begin(place: ResultsContext<'_>) -> Option<Results> {
        let (spec, context) = (place.spec, place.context);
        let reports = reports(spec);
        if reports.is_empty() && spec.tests.is_empty() && !printed::tells(spec) {
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
            book: Arc::new(SentResults::new(queue, tests, place.patterns)),
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
        let along = live_reader::LiveReader {
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
        let mut problems: Vec<(Option<u32>, ReportContent)> = Vec::new();
        for (report, place) in places {
            let test = report.test;
            let said = self.read_all(report, place).await.into_iter();
            problems.extend(said.map(|said| (test, said)));
        }
        let kept = around.records.iter().filter(|it| it.report_lost.is_none());
        let kept: Vec<usize> = kept.map(|it| it.index).collect();
        self.off_the_loop(move |book| {
            // All that such a test has written was set aside: what was read along and is not there
            // was written by another.
            for test in kept.into_iter().filter_map(|it| u32::try_from(it).ok()) {
                book.decides_all_of(test);
            }
            book.withdraw_the_rest();
        })
        .await;
        let spec = around.spec;
        let ours = self.results_of_tests(around, &problems).await;
        let summary = self.book.summary();
        let counted = summary.total_tests > 0;
        if !counted && printed::tells(spec) {
            self.enter_printed(around).await;
        }
        self.book.close();
        for (_, problem) in &problems {
            around.log.mark(&problem.words);
        }
        let missing = self.missing().await;
        if counted {
            around.log.mark(&sentence(&summary));
        }
        let unhappy = self.book.unhappy();
        let tested = Tested {
            summary: counted.then_some(summary),
            // Whoever prints the name of a test explains no exit code with it.
            failed_it: counted && failed_by_tests::failed_by_tests(spec, around.records, &unhappy),
        };
        let of_job = problems.iter().filter(|(test, _)| test.is_none());
        Kept {
            summary: (counted || !unhappy.is_empty()).then_some(tested),
            remarks: of_job.map(|(_, said)| said.words.clone()).collect(),
            failed: failed(spec, &summary, &ours).or(missing),
            ..Kept::default()
        }
    }

    /// Names the tests by which work failed, as far as what was printed does.
    async fn enter_printed(&self, around: &Around<'_>) {
        let steps = printed::failed_steps(around.spec, around.records);
        if steps.is_empty() {
            return;
        }
        let log = around.log.path().to_owned();
        self.off_the_loop(move |book| {
            if let Err(problem) = printed::enter(&log, &steps, book) {
                tracing::warn!(error = %problem, "the log could not be read for tests");
            }
        })
        .await;
    }

    /// Results that tests have themselves. Causes of those that have no other fault than that this
    /// machine could not keep their report.
    async fn results_of_tests(
        &self,
        around: &Around<'_>,
        problems: &[(Option<u32>, ReportContent)],
    ) -> Vec<Cause> {
        let mut ours = Vec::new();
        for (place, test) in (0..).zip(&around.spec.tests) {
            let mut records = around.records.iter();
            let record = records.find(|it| u32::try_from(it.index) == Ok(place));
            let own = problems
                .iter()
                .filter(|(of, it)| *of == Some(place) && it.unread);
            let lost = record.filter(|it| it.report_lost.is_some());
            let causes = lost.map(StepRecord::report_lost_to).into_iter();
            let causes: Option<Vec<Cause>> =
                causes.chain(own.clone().map(|(_, it)| it.cause)).collect();
            if record.is_some_and(|it| it.exit_code == Some(0)) {
                ours.extend(causes.unwrap_or_default().first());
            }
            let lost = lost.and_then(|it| it.report_lost.as_deref()).into_iter();
            let unread = lost.chain(own.map(|(_, said)| said.words.as_str()));
            let unread: Vec<&str> = unread.take(MAX_WORDS).collect();
            if record.is_some() || !unread.is_empty() {
                self.result_of(test, place, record, &unread).await;
            }
        }
        ours
    }

    /// Every report with the folder it is read from.
    fn places(&self, records: &[StepRecord]) -> Vec<(ReportSpec, PathBuf)> {
        let place = |report: &ReportSpec| {
            let ended = records
                .iter()
                .any(|it| report.test.is_some() && u32::try_from(it.index).ok() == report.test);
            let alone = !ended && !report.is_shared(&self.reports);
            let place = report_reader::place(&self.aside, report, &self.workspace, alone);
            (report.clone(), place)
        };
        self.reports.iter().map(place).collect()
    }

    /// Does something with the book that may wait for the line.
    async fn off_the_loop(&self, work: impl FnOnce(&SentResults) + Send + 'static) {
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
            1 => "1 result of a test could not be stored".to_owned(),
            left => format!("{left} results of tests could not be stored"),
        };
        Some(Failed {
            cause: Cause::AgentError,
            summary,
        })
    }

    /// Every report of a pattern, and what is to be said of them.
    async fn read_all(&self, report: ReportSpec, place: PathBuf) -> Vec<ReportContent> {
        let (workspace, book, stale) = (
            self.workspace.clone(),
            self.book.clone(),
            self.stale.clone(),
        );
        let reading = tokio::task::spawn_blocking(move || {
            let found = match report_files::find(&place, &report.pattern) {
                Ok(found) => found,
                Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                Err(problem) => {
                    let words = format!("reports {}: {problem}", report.pattern);
                    return vec![ReportContent::unread(words, None)];
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
                problems.push(ReportContent::plain(words));
            }
            problems
        });
        reading.await.unwrap_or_else(|_| {
            let words = "a report could not be read".to_owned();
            vec![ReportContent::unread(words, Some(Cause::AgentError))]
        })
    }

    /// The result of a test that has no report, or whose report has no result or was not read as
    /// it was meant: a test without a result never counts as passed, nor does one of which
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

/// Those who read along end with it.
impl Drop for Results {
    fn drop(&mut self) {
        self.stage.end();
        self.book.close();
    }
}
