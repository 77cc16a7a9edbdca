//! One report: opened, read by the reader of its format, each case turned into a result.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};
use delta_core::Cause;
use delta_results::{Case, Counts, Limits, Problem, Status, Totals};
use delta_shim::mask::Masker;
use delta_shim::{report_archive, report_files};
use delta_wire::agent::proto::TestResult;
use prost::Message as _;

use super::dedup::{Entered, Id, SentResults};
use super::old_reports::OldReports;
use super::report_spec::ReportSpec;
use super::verdict::wire_status;
use crate::job_io::test_count::in_words as tests;

/// What is to be said of a report.
#[derive(Debug, PartialEq, Eq)]
pub struct ReportContent {
    pub words: String,
    /// Results may be missing: it was not read as it was meant.
    pub unread: bool,
    /// Where that is this machine's doing, and not the job's.
    pub cause: Option<Cause>,
}

impl ReportContent {
    pub fn plain(words: String) -> ReportContent {
        ReportContent {
            words,
            unread: false,
            cause: None,
        }
    }

    pub fn unread(words: String, cause: Option<Cause>) -> ReportContent {
        ReportContent {
            words,
            unread: true,
            cause,
        }
    }
}

/// Where a report is.
pub struct Source<'a> {
    pub report: &'a ReportSpec,
    /// The workspace, which is cut off paths in it.
    pub root: &'a Path,
    /// The folder it lies in: the workspace, or where it was set aside.
    pub place: &'a Path,
    pub path: &'a str,
}

impl Source<'_> {
    /// Whether it can be read and is this attempt's.
    pub fn is_there(&self, stale: &OldReports) -> bool {
        report_files::open(self.place, self.path).is_ok_and(|file| !stale.has(self.path, &file))
    }

    /// Reads it from its beginning to its end, for the last time; what is to be said of it.
    pub fn read_whole(&self, book: &SentResults, stale: &OldReports) -> Option<ReportContent> {
        let said = |words: &str| format!("report {}: {words}", self.path);
        let file = match report_files::open(self.place, self.path) {
            Ok(file) => file,
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => {
                let words = format!("no report of tests is at {}", self.path);
                return Some(ReportContent::plain(words));
            }
            Err(problem) => {
                let cause = self.cause_of(&problem);
                return Some(self.unread(book, &problem.to_string(), cause));
            }
        };
        if stale.has(self.path, &file) {
            let words = said("it was there before the first step, and is not counted");
            return Some(ReportContent::plain(words));
        }
        let number = book.report(self.report.test, self.path);
        book.decides(number);
        if let Some(at) = report_files::written(&file) {
            book.written(number, at);
        }
        let (report, worst) = self.read(BufReader::new(file), book);
        let mut cause = None;
        let problem = match report.problem {
            Some(problem) => {
                if let Problem::Io(problem) = &problem {
                    cause = self.cause_of(problem);
                }
                problem.to_string()
            }
            None if report.totals.lacks_failures() => {
                "it says that it has more failures than are in it".to_owned()
            }
            None if worst == Entered::Full => "there are more results than are kept".to_owned(),
            // Tools count in different ways; nothing is missing.
            None if report.totals.is_contradicted() => {
                let words = contradiction(&report.totals);
                return Some(ReportContent::plain(said(&words)));
            }
            None => return None,
        };
        Some(self.unread(book, &problem, cause))
    }

    /// What was set aside is ours: that it cannot be read is no fault of the job.
    fn cause_of(&self, problem: &io::Error) -> Option<Cause> {
        (self.place != self.root).then(|| report_archive::cause_of(problem))
    }

    /// Not all of it counts. Of a test that is the work it becomes the result of that test; a
    /// report of steps has a result of its own then, so that people see what the log alone says.
    fn unread(&self, book: &SentResults, problem: &str, cause: Option<Cause>) -> ReportContent {
        let name = format!("report {}", self.path);
        let words = format!("{name}: {problem}");
        if self.report.test.is_none() {
            let id = Id {
                test: None,
                case: Some(hash(&[self.path.as_bytes()])),
                n: 0,
            };
            let result = TestResult {
                name,
                status: wire_status(Status::Error).into(),
                duration_ms: -1,
                error_message: problem.to_owned(),
                metadata: HashMap::from([("report".to_owned(), self.path.to_owned())]),
                ..Default::default()
            };
            book.enter(id, book.report(None, self.path), Status::Error, result);
        }
        ReportContent::unread(words, cause)
    }

    /// Reads what there is; whether results were left out.
    pub fn read(
        &self,
        input: impl io::BufRead,
        book: &SentResults,
    ) -> (delta_results::Report, Entered) {
        let number = book.report(self.report.test, self.path);
        let mut numbers: HashMap<[u8; 16], u32> = HashMap::new();
        let mut worst = Entered::Taken;
        let mut sink = |case: Case| {
            let hash = self.hash(&case);
            let count = numbers.entry(hash).or_default();
            let id = Id {
                test: self.report.test,
                case: Some(hash),
                n: *count,
            };
            *count += 1;
            let (status, result) = (case.status, self.result(case, id.n));
            match book.enter(id, number, status, result) {
                Entered::Taken => {}
                other => worst = other,
            }
        };
        let patterns = book.patterns();
        let redact = |text: &mut String, end_is_missing: bool| {
            let Some(patterns) = &patterns else {
                return;
            };
            *text = if end_is_missing {
                Masker::beginning(patterns, text)
            } else {
                Masker::text(patterns, text)
            };
        };
        let root = self.root.to_string_lossy();
        let limits = Limits::default();
        let format = self.report.format;
        let read = delta_results::read_redacted(format, input, &root, &limits, &redact, &mut sink);
        (read, worst)
    }

    /// What a test of this report is known by: equal whenever the report is read.
    fn hash(&self, case: &Case) -> [u8; 16] {
        hash(&[
            self.path.as_bytes(),
            case.suite.as_bytes(),
            case.name.as_bytes(),
        ])
    }

    /// What is sent of a case.
    fn result(&self, case: Case, n: u32) -> TestResult {
        let mut metadata: HashMap<String, String> = case.metadata.into_iter().collect();
        metadata.insert("report".to_owned(), self.path.to_owned());
        TestResult {
            name: case.name,
            suite: case.suite,
            status: wire_status(case.status).into(),
            duration_ms: case
                .duration_ms
                .map_or(-1, |it| i64::try_from(it).unwrap_or(i64::MAX)),
            error_message: case.message.unwrap_or_default(),
            stack_trace: case.trace.unwrap_or_default(),
            metadata,
            n,
            ..Default::default()
        }
    }
}

/// The folder that a report is read from at last: what a test has written is where the shim has put
/// it. One whose shim was lost before its test ended is where the test has left it, `alone` if no
/// other may have written it.
pub fn place(aside: &Path, report: &ReportSpec, workspace: &Path, alone: bool) -> PathBuf {
    let put = report.test.map(|test| aside.join(test.to_string()));
    match put {
        Some(put) if !alone || put.is_dir() => put,
        _ => workspace.to_owned(),
    }
}

/// A hash of everything that is sent; metadata in any order.
pub fn content(result: &TestResult) -> u64 {
    let mut plain = result.clone();
    let mut metadata: Vec<_> = plain.metadata.drain().collect();
    metadata.sort();
    let text = metadata.into_iter().flat_map(|(name, value)| [name, value]);
    let text: Vec<String> = text.collect();
    let [a, b, c, d, e, f, g, h, ..] = hash(&[&plain.encode_to_vec(), text.join("\0").as_bytes()]);
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The front of a hash, in which no two lists of parts are one.
pub fn hash(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Context::new(&SHA256);
    for part in parts {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = hash.finish();
    let mut front = [0; 16];
    front.copy_from_slice(&digest.as_ref()[..16]);
    front
}

/// A report whose own count is not what is in it.
fn contradiction(totals: &Totals) -> String {
    let counted = |counts: Counts| {
        let (all, bad) = (counts.total(), counts.unhappy());
        format!("{}, {bad} of them failed", tests(all))
    };
    let (claimed, seen) = (totals.claimed.unwrap_or_default(), totals.seen);
    let (claimed, seen) = (counted(claimed), counted(seen));
    format!("it says that it has {claimed}; in it are {seen}, and those count")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use delta_results::Format;
    use delta_shim::mask::Patterns;
    use tokio::sync::mpsc;

    use super::*;

    const SECRET: &str = "hunter2-hunter2-hunter2";

    /// What is sent of one report.
    fn sent(format: Format, text: &str) -> Vec<TestResult> {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("report"), text).unwrap();
        let (queue, mut results) = mpsc::channel(64);
        let patterns = Patterns::of([SECRET]).map(Arc::new);
        let book = SentResults::new(queue, Vec::new(), patterns);
        book.begin_last_round(false);
        let report = ReportSpec {
            format,
            pattern: "report".to_owned(),
            test: None,
        };
        let source = Source {
            report: &report,
            root: root.path(),
            place: root.path(),
            path: "report",
        };
        let said = source.read_whole(&book, &OldReports::default());
        assert_eq!(said, None);
        std::iter::from_fn(|| results.try_recv().ok()).collect()
    }

    /// No part of a secret that is worth something.
    fn shows_none(result: &TestResult) {
        let texts = [
            &result.name,
            &result.suite,
            &result.error_message,
            &result.stack_trace,
        ];
        let metadata = result
            .metadata
            .iter()
            .flat_map(|(name, value)| [name, value]);
        for text in texts.into_iter().chain(metadata) {
            assert!(!text.contains("hunt"), "{}", &text[text.len().min(900)..]);
        }
    }

    // T6: half a secret is not known for one, so secrets go before a text is cut.
    #[test]
    fn a_secret_that_lies_where_a_text_is_cut_is_not_seen() {
        // Every place where a cut may fall, and texts that masks make shorter than their bound.
        for before in (1000..1024).chain([0]) {
            let name = match before {
                0 => SECRET.repeat(400),
                _ => format!("{}{SECRET}{}", "x".repeat(before), "y".repeat(500)),
            };
            let message = format!("{}{SECRET} and more", "m".repeat(before + 4096 - 1024));
            let trace = match before {
                0 => SECRET.repeat(5000),
                _ => format!(
                    "{}{SECRET}{}",
                    "t".repeat(before + 65536 - 1024),
                    "z".repeat(99)
                ),
            };
            let junit = format!(
                "<testsuite name=\"{name}\"><testcase name=\"{name}\"><properties>\
                 <property name=\"{name}\" value=\"{name}\"/></properties>\
                 <failure message=\"{message}\">{trace}</failure></testcase></testsuite>"
            );
            let tap = format!("not ok 1 - {name}\n# {trace}\n# more\n");
            let go = format!(
                "{{\"Action\":\"run\",\"Package\":\"p\",\"Test\":\"T\"}}\n\
                 {{\"Action\":\"output\",\"Package\":\"p\",\"Test\":\"T\",\"Output\":\"{trace}\"}}\n\
                 {{\"Action\":\"fail\",\"Package\":\"p\",\"Test\":\"T\",\"Elapsed\":0.1}}\n"
            );
            let reports = [
                (Format::Junit, junit),
                (Format::Tap, tap),
                (Format::Json, go),
            ];
            for (format, text) in reports {
                let sent = sent(format, &text);
                assert_eq!(sent.len(), 1, "{format:?}");
                shows_none(&sent[0]);
                // The first places leave room for the mask.
                let masked = sent[0].stack_trace.contains("***");
                assert!(masked || before > 1010, "{format:?}");
            }
        }
    }

    // EP-12: a trace of ten megabytes is cut before it is sent, and fits into a frame.
    #[test]
    fn a_trace_of_ten_megabytes_is_cut_here() {
        let trace = "0123456789".repeat(1 << 20);
        let text = format!(
            "<testsuite name=\"s\"><testcase name=\"n\"><failure>{trace}</failure></testcase>\
             <testcase name=\"after\"/></testsuite>"
        );
        let sent = sent(Format::Junit, &text);
        let names: Vec<&str> = sent.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["n", "after"]);
        assert!(sent[0].stack_trace.ends_with(" [cut]"));
        assert!(sent[0].encoded_len() < delta_wire::agent::MAX_FRAME_BYTES / 16);
    }
}
