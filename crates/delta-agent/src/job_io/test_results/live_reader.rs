//! Reports that are read while the work goes on: those that grow line by line, and those that the
//! shim has set aside. It is a foretaste: what counts is read when the work is over.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use delta_shim::report_files;

use super::dedup::SentResults;
use super::growing_report::{Stage, Tail};
use super::old_reports::OldReports;
use super::report_reader::{Source, place};
use super::report_spec::ReportSpec;

/// Reports that are read along at once; the others are read when the work is over.
const READ_ALONG: usize = 8;

/// Reads along whatever grows line by line, until the work is over.
#[derive(Clone)]
pub struct LiveReader {
    pub reports: Vec<ReportSpec>,
    /// Those that several tests may write: read when their test has ended.
    pub shared: Vec<ReportSpec>,
    pub aside: PathBuf,
    pub root: PathBuf,
    pub stale: Arc<OldReports>,
    pub stage: Arc<Stage>,
    pub book: Arc<SentResults>,
}

impl LiveReader {
    /// Looks for reports from a thread of its own, and reads each from another.
    pub fn begin(self) {
        let looking = self.stage.clone();
        looking.read_along(move || {
            let (mut followed, mut shared) = (Vec::new(), self.shared.clone());
            let mut took = Duration::ZERO;
            loop {
                let looks = !self.reports.is_empty() && followed.len() < READ_ALONG;
                if (!looks && shared.is_empty()) || self.stage.wait_after(took) {
                    return;
                }
                let began = Instant::now();
                if looks {
                    self.look(&mut followed);
                }
                shared.retain(|report| !self.read_aside(report));
                took = began.elapsed();
            }
        });
    }

    /// Reads what a test has left, once it has ended; whether it has.
    fn read_aside(&self, report: &ReportSpec) -> bool {
        let place = place(&self.aside, report, &self.root, false);
        let Ok(found) = report_files::find(&place, &report.pattern) else {
            return false;
        };
        let there = place.is_dir();
        for path in found.iter().filter(|_| there) {
            let source = Source {
                report,
                root: &self.root,
                place: &place,
                path,
            };
            if let Ok(file) = report_files::open(&place, path) {
                source.read(BufReader::new(file), &self.book);
            }
        }
        there
    }

    fn look(&self, followed: &mut Vec<String>) {
        for report in &self.reports {
            for path in report_files::find(&self.root, &report.pattern).unwrap_or_default() {
                if followed.contains(&path) || followed.len() >= READ_ALONG {
                    continue;
                }
                let file = report_files::open(&self.root, &path).ok();
                if let Some(file) = file.filter(|file| !self.stale.has(&path, file)) {
                    followed.push(path.clone());
                    self.follow(file, report.clone(), path);
                }
            }
        }
    }

    fn follow(&self, file: File, report: ReportSpec, path: String) {
        let this = self.clone();
        self.stage.read_along(move || {
            let mut next = Some(file);
            // A report that is written anew is read anew.
            while let Some(file) = next.take() {
                let (before, began) = (report_files::about(&file), Instant::now());
                let (root, stage) = (&this.root, &this.stage);
                let mut tail = Tail::new(file, root.clone(), path.clone(), stage.clone());
                let source = Source {
                    report: &report,
                    root,
                    place: root,
                    path: &path,
                };
                source.read(&mut tail, &this.book);
                // One whose reader gave up and that goes on growing is not read all the time.
                let took = began.elapsed().saturating_sub(tail.waited);
                while next.is_none() && !stage.wait_after(took) {
                    let there = report_files::open(root, &path).ok();
                    next = there.filter(|file| report_files::about(file) != before);
                }
            }
        });
    }
}
