//! One report: opened, read by the reader of its format, each case turned into a result.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use delta_results::{Case, Format, Limits};
use delta_wire::agent::proto::TestResult;
use prost::Message as _;

use super::tail::{Stage, Tail};
use super::{Book, ReportSpec, files, wire_status};

/// Reports that are read along at once; the others are read when the work is over.
const READ_ALONG: usize = 8;

/// Where a report is.
pub struct Source<'a> {
    pub report: &'a ReportSpec,
    pub root: &'a Path,
    pub path: &'a str,
}

impl Source<'_> {
    /// Reads it from its beginning to its end; what is to be said of it.
    pub fn read_whole(&self, book: &Book) -> Vec<String> {
        let said = |words: &str| format!("report {}: {words}", self.path);
        let file = match files::open(self.root, self.path) {
            Ok(file) => file,
            Err(problem) if problem.kind() == std::io::ErrorKind::NotFound => {
                return vec![format!("no report of tests is at {}", self.path)];
            }
            Err(problem) => return vec![said(&problem.to_string())],
        };
        let (report, full) = self.read(BufReader::new(file), book);
        let mut words = Vec::new();
        words.extend(report.problem.as_ref().map(|it| said(&it.to_string())));
        if report.problem.is_none() && report.totals.is_contradicted() {
            words.push(said("its cases are not what it says they come to"));
        }
        if full {
            words.push(said("there are more results than are kept"));
        }
        words
    }

    /// Reads what there is; whether results were left out.
    fn read(&self, input: impl std::io::BufRead, book: &Book) -> (delta_results::Report, bool) {
        let mut numbers: HashMap<u128, u32> = HashMap::new();
        let mut full = false;
        let mut sink = |case: Case| {
            let id = self.id(&case);
            let count = numbers.entry(id).or_default();
            let n = *count;
            *count += 1;
            let (status, result) = (case.status, self.result(case, id, n));
            full |= !book.enter(self.numbered(id, n), status, result);
        };
        let root = self.root.to_string_lossy();
        let read = delta_results::read(
            self.report.format,
            input,
            &root,
            &Limits::default(),
            &mut sink,
        );
        (read, full)
    }

    /// The same for the same test of the same report, whenever it is read.
    fn id(&self, case: &Case) -> u128 {
        hash(&[
            self.path.as_bytes(),
            case.suite.as_bytes(),
            case.name.as_bytes(),
        ])
    }

    fn numbered(&self, id: u128, n: u32) -> u128 {
        let number = hash(&[&id.to_be_bytes(), &n.to_be_bytes()]);
        match &self.report.test {
            None => number,
            // The front tells which test of the job spec it is of.
            Some(test) => (test_mark(test) << 64) | (number & u128::from(u64::MAX)),
        }
    }

    /// What is sent of a case.
    fn result(&self, case: Case, id: u128, n: u32) -> TestResult {
        let test_id = match &self.report.test {
            None => format!("{id:032x}"),
            Some(test) => format!("{test}/{id:032x}"),
        };
        let mut metadata: HashMap<String, String> = case.metadata.into_iter().collect();
        metadata.insert("report".to_owned(), self.path.to_owned());
        TestResult {
            test_id,
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
        }
    }
}

/// What a result by exit code is known by.
pub fn key(test: &str, n: u32) -> u128 {
    (test_mark(test) << 64) | u128::from(n)
}

/// Half a number for a test of the job spec.
pub fn test_mark(test: &str) -> u128 {
    hash(&[test.as_bytes()]) >> 64
}

pub fn is_of_test(key: u128, mark: u128) -> bool {
    key >> 64 == mark
}

/// A hash of everything that is sent; metadata in any order.
pub fn content(result: &TestResult) -> u64 {
    let mut plain = result.clone();
    let mut metadata: Vec<_> = plain.metadata.drain().collect();
    metadata.sort();
    let text = metadata.into_iter().flat_map(|(name, value)| [name, value]);
    let text: Vec<String> = text.collect();
    hash(&[&plain.encode_to_vec(), text.join("\0").as_bytes()]) as u64
}

fn hash(parts: &[&[u8]]) -> u128 {
    let mut hash = Context::new(&SHA256);
    for part in parts {
        hash.update(&(part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let digest = hash.finish();
    let mut front = [0; 16];
    front.copy_from_slice(&digest.as_ref()[..16]);
    u128::from_be_bytes(front)
}

/// Reads along whatever grows line by line, from a thread of its own, until the work is over.
pub fn along(reports: &[ReportSpec], root: &Path, stage: &Arc<Stage>, book: &Arc<Book>) {
    let growing =
        |it: &&ReportSpec| matches!(it.format, Format::Tap | Format::Json | Format::Junit);
    let reports: Vec<ReportSpec> = reports.iter().filter(growing).cloned().collect();
    if reports.is_empty() {
        return;
    }
    let (root, stage, book) = (root.to_owned(), stage.clone(), book.clone());
    let looking = stage.clone();
    let look = move || {
        let mut followed: Vec<(ReportSpec, String)> = Vec::new();
        let mut took = Duration::ZERO;
        while followed.len() < READ_ALONG && !stage.wait_after(took) {
            let began = Instant::now();
            for report in &reports {
                for path in files::find(&root, &report.pattern).unwrap_or_default() {
                    let known = followed.iter().any(|(_, known)| *known == path);
                    if known || followed.len() >= READ_ALONG {
                        continue;
                    }
                    if let Ok(file) = files::open(&root, &path) {
                        let (report, path) = (report.clone(), path.clone());
                        followed.push((report.clone(), path.clone()));
                        follow(
                            file,
                            report,
                            path,
                            root.clone(),
                            stage.clone(),
                            book.clone(),
                        );
                    }
                }
            }
            took = began.elapsed();
        }
    };
    looking.read_along(look);
}

fn follow(
    file: File,
    report: ReportSpec,
    path: String,
    root: PathBuf,
    stage: Arc<Stage>,
    book: Arc<Book>,
) {
    let reading = stage.clone();
    reading.read_along(move || {
        let mut next = Some(file);
        // A report that is written anew is read anew.
        while let Some(file) = next.take() {
            let before = about(&file);
            let tail = Tail::new(file, root.clone(), path.clone(), stage.clone());
            let source = Source {
                report: &report,
                root: &root,
                path: &path,
            };
            source.read(tail, &book);
            while next.is_none() && !stage.wait() {
                let there = files::open(&root, &path).ok();
                next = there.filter(|file| about(file) != before);
            }
        }
    });
}

/// Changes whenever a file is written anew.
fn about(file: &File) -> Option<(u64, u64, u64, i64, i64)> {
    let about = file.metadata().ok()?;
    Some((
        about.dev(),
        about.ino(),
        about.len(),
        about.mtime(),
        about.mtime_nsec(),
    ))
}
