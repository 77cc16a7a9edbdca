//! What was found so far, by what it is known by: each result is sent once, and again only where it
//! has changed.
//!
//! What is read along is a foretaste. The last round decides: of a report that it reads, what it
//! does not find any more is taken back. What was read of a report that is gone by then stands.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delta_results::Status;
use delta_shim::mask::{Masker, Patterns};
use delta_wire::agent::proto::{RunSummary, TestResult};
use tokio::sync::mpsc;

use super::report_reader;

/// Results of one attempt: as many as the server keeps of a lease.
const MAX_RESULTS: usize = 200_000;

/// What a result is known by: nothing of it changes when a report is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id {
    /// The test of the job spec it is of, by its place there.
    pub test: Option<u32>,
    /// A hash of report, suite and name; nothing where the exit code is the result.
    pub case: Option<[u8; 16]>,
    pub n: u32,
}

/// Who says that a test failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unhappy {
    /// A test of the job spec, by its place there.
    Test(u32),
    /// A report of the job, with when it was written last.
    Report(Option<i64>),
}

/// What became of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    Taken,
    /// There are as many as there may be.
    Full,
    /// Nobody sends any more.
    Unsent,
}

pub struct SentResults {
    state: Mutex<State>,
    /// What tests of the job spec are called, by their place there.
    tests: Vec<String>,
    queue: Mutex<Option<mpsc::Sender<TestResult>>>,
    unsent: AtomicUsize,
    /// What must not leave this machine.
    patterns: Mutex<Option<Arc<Patterns>>>,
}

#[derive(Default)]
struct State {
    seen: HashMap<Id, SeenResult>,
    /// Reports by number: that of a test, or of the job.
    reports: HashMap<(Option<u32>, String), u32>,
    /// When reports of the job were written last, as far as that is known.
    written: HashMap<u32, i64>,
    /// Reports that the last round has read; nothing before it.
    last: Option<HashSet<u32>>,
    /// Results that the last round has seen.
    kept: usize,
}

struct SeenResult {
    status: Status,
    /// A hash of all of it.
    content: u64,
    duration_ms: u64,
    report: u32,
    kept: bool,
}

impl SentResults {
    pub fn new(
        queue: mpsc::Sender<TestResult>,
        tests: Vec<String>,
        patterns: Option<Arc<Patterns>>,
    ) -> SentResults {
        SentResults {
            state: Mutex::default(),
            tests,
            queue: Mutex::new(Some(queue)),
            unsent: AtomicUsize::new(0),
            patterns: Mutex::new(patterns),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a report.
    pub fn report(&self, test: Option<u32>, path: &str) -> u32 {
        let mut state = self.state();
        let next = u32::try_from(state.reports.len()).unwrap_or(u32::MAX);
        *state.reports.entry((test, path.to_owned())).or_insert(next)
    }

    /// Counts a result and sends it, unless it was sent as it is.
    pub fn enter(&self, id: Id, report: u32, status: Status, mut result: TestResult) -> Entered {
        result.test_id = self.test_id(id);
        self.redact(&mut result);
        let content = report_reader::content(&result);
        {
            let mut state = self.state();
            let state = &mut *state;
            let last = state.last.is_some();
            let known = state.seen.get(&id);
            let (new, count) = if last {
                (!known.is_some_and(|it| it.kept), state.kept)
            } else {
                (known.is_none(), state.seen.len())
            };
            // A test of the job spec has one of its own at most, and it may decide.
            if new && id.case.is_some() && count >= MAX_RESULTS {
                return Entered::Full;
            }
            let same = known.is_some_and(|it| it.content == content);
            state.kept += usize::from(last && new);
            let seen = SeenResult {
                status,
                content,
                duration_ms: u64::try_from(result.duration_ms).unwrap_or(0),
                report,
                kept: last,
            };
            state.seen.insert(id, seen);
            if same {
                return Entered::Taken;
            }
        }
        self.send(result)
    }

    /// May wait for the line.
    fn send(&self, result: TestResult) -> Entered {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queue.clone();
        if queue.is_some_and(|queue| queue.blocking_send(result).is_ok()) {
            Entered::Taken
        } else {
            self.unsent.fetch_add(1, Ordering::Relaxed);
            Entered::Unsent
        }
    }

    /// From here on everything is read for the last time. An agent that took the attempt over does
    /// not know what the one before it has sent: where all reports are there to be read again it
    /// takes all of it back.
    pub fn begin_last_round(&self, anew: bool) {
        {
            let mut state = self.state();
            state.last = Some(HashSet::new());
            if anew {
                state.seen.clear();
            }
        }
        if anew {
            self.send(TestResult {
                withdrawn: true,
                ..Default::default()
            });
        }
    }

    /// The last round has this report in hand: what it finds in it is what there is.
    pub fn decides(&self, report: u32) {
        if let Some(last) = &mut self.state().last {
            last.insert(report);
        }
    }

    /// When a report was written last, in milliseconds of this machine's clock.
    pub fn written(&self, report: u32, at: i64) {
        self.state().written.insert(report, at);
    }

    /// Who reported a failure, each of them once.
    pub fn unhappy(&self) -> HashSet<Unhappy> {
        let state = self.state();
        let unhappy = |it: &SeenResult| matches!(it.status, Status::Fail | Status::Error);
        let seen = state.seen.iter().filter(|(_, it)| unhappy(it));
        let of = |(id, it): (&Id, &SeenResult)| match id.test {
            Some(test) => Unhappy::Test(test),
            None => Unhappy::Report(state.written.get(&it.report).copied()),
        };
        seen.map(of).collect()
    }

    /// The last round has in hand whatever this test has reported.
    pub fn decides_all_of(&self, test: u32) {
        let mut state = self.state();
        let State { reports, last, .. } = &mut *state;
        let own = reports.iter().filter(|((of, _), _)| *of == Some(test));
        if let Some(last) = last {
            last.extend(own.map(|(_, number)| *number));
        }
    }

    /// Takes back what the last round has not found where it was found before.
    pub fn withdraw_the_rest(&self) {
        let mut gone = Vec::new();
        {
            let mut state = self.state();
            let State { seen, last, .. } = &mut *state;
            let read = last.get_or_insert_default();
            seen.retain(|id, it| {
                let stays = it.kept || !read.contains(&it.report);
                if !stays {
                    gone.push(*id);
                }
                stays
            });
        }
        for id in gone {
            self.send(TestResult {
                test_id: self.test_id(id),
                n: id.n,
                withdrawn: true,
                ..Default::default()
            });
        }
    }

    /// What the server calls it.
    fn test_id(&self, id: Id) -> String {
        let place = id.test.and_then(|test| usize::try_from(test).ok());
        let test = place.and_then(|place| self.tests.get(place));
        let case = id
            .case
            .map(|case| format!("{:032x}", u128::from_be_bytes(case)));
        match (test, case) {
            (None, case) => case.unwrap_or_default(),
            (Some(test), None) => test.clone(),
            (Some(test), Some(case)) => format!("{test}/{case}"),
        }
    }

    pub fn mask(&self, patterns: Option<Arc<Patterns>>) {
        *self.patterns.lock().unwrap_or_else(PoisonError::into_inner) = patterns;
    }

    pub fn patterns(&self) -> Option<Arc<Patterns>> {
        let patterns = self.patterns.lock();
        patterns.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything in it that a job wrote. Reports were read without what nobody may see, before
    /// their texts were cut; this is the one gate that all results pass.
    fn redact(&self, result: &mut TestResult) {
        let Some(patterns) = self.patterns() else {
            return;
        };
        let texts = [
            &mut result.name,
            &mut result.suite,
            &mut result.error_message,
            &mut result.stack_trace,
        ];
        for text in texts {
            *text = Masker::text(&patterns, text);
        }
        let metadata = std::mem::take(&mut result.metadata).into_iter();
        let metadata = metadata.map(|(name, value)| {
            let clear = |text: &str| Masker::text(&patterns, text);
            (clear(&name), clear(&value))
        });
        result.metadata = metadata.collect();
    }

    pub fn close(&self) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How many could not even be handed to whoever sends them.
    pub fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    pub fn has_results_of(&self, test: u32) -> bool {
        self.state().seen.keys().any(|id| id.test == Some(test))
    }

    pub fn summary(&self) -> RunSummary {
        let mut summary = RunSummary::default();
        for it in self.state().seen.values() {
            summary.total_tests += 1;
            let took = i64::try_from(it.duration_ms).unwrap_or(i64::MAX);
            summary.duration_ms = summary.duration_ms.saturating_add(took);
            match it.status {
                Status::Pass => summary.passed += 1,
                Status::Fail => summary.failed += 1,
                Status::Skip => summary.skipped += 1,
                Status::Error => summary.errors += 1,
            }
        }
        summary
    }
}
