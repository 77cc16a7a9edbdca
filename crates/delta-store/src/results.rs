//! Results of tests, as the store knows them: rows beside those of the core, written outside of any
//! batch by the lease that reports them.
//!
//! Each lease has rows of its own, so that one that is over never touches another's. What is read
//! back is of the latest lease of each attempt alone.

use delta_core::{LeaseKey, Millis, RunId, Text};

use crate::StoreError;
use crate::events::sha256;

/// Rows of one name that a history looks through: the newest. It keeps a name that every project
/// uses from costing more than a moment.
pub const LOOKED_THROUGH: usize = 5_000;

/// What a test came to; what went wrong comes first in lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResultStatus {
    Fail,
    /// It could not be carried out.
    Error,
    Skip,
    Pass,
}

impl ResultStatus {
    pub const ALL: [ResultStatus; 4] = [
        ResultStatus::Fail,
        ResultStatus::Error,
        ResultStatus::Skip,
        ResultStatus::Pass,
    ];

    pub fn is_unhappy(self) -> bool {
        matches!(self, ResultStatus::Fail | ResultStatus::Error)
    }

    /// Its number in the stores.
    pub(crate) fn code(self) -> i64 {
        self as i64
    }

    pub(crate) fn from_code(code: i64) -> Result<ResultStatus, StoreError> {
        let found = usize::try_from(code)
            .ok()
            .and_then(|at| ResultStatus::ALL.get(at).copied());
        found.ok_or_else(|| StoreError::Corrupt(format!("a result has the status {code}")))
    }
}

/// One result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultRow {
    pub key: [u8; 16],
    pub status: ResultStatus,
    pub test_id: Text,
    pub suite: Text,
    pub name: Text,
    pub duration_ms: Option<u64>,
    pub message: Option<Text>,
    pub trace: Option<Text>,
    /// A JSON object of texts.
    pub metadata: Option<Text>,
    /// When it was received.
    pub at: Millis,
}

/// What tells results of one lease apart: the test, and which of its results it is.
pub fn result_key(test_id: &str, n: u32) -> [u8; 16] {
    let mut bytes = n.to_be_bytes().to_vec();
    bytes.extend_from_slice(test_id.as_bytes());
    let mut key = [0; 16];
    key.copy_from_slice(&sha256(&bytes)[..16]);
    key
}

impl ResultRow {
    /// Bytes of its texts.
    pub fn size(&self) -> u64 {
        let texts = [Some(&self.test_id), Some(&self.suite), Some(&self.name)];
        let more = [&self.message, &self.trace, &self.metadata].map(Option::as_ref);
        let lengths = texts.into_iter().chain(more).flatten();
        lengths.map(|text| text.len() as u64).sum()
    }
}

/// How many there are of each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultCounts {
    pub failed: u64,
    pub errors: u64,
    pub skipped: u64,
    pub passed: u64,
}

impl ResultCounts {
    pub fn of(&mut self, status: ResultStatus) -> &mut u64 {
        match status {
            ResultStatus::Fail => &mut self.failed,
            ResultStatus::Error => &mut self.errors,
            ResultStatus::Skip => &mut self.skipped,
            ResultStatus::Pass => &mut self.passed,
        }
    }

    pub fn total(&self) -> u64 {
        self.failed + self.errors + self.skipped + self.passed
    }
}

/// What a lease said of its results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultClaim {
    /// What they came to, in its own words.
    pub counts: Option<ResultCounts>,
    /// Those that were beyond a bound.
    pub dropped: u64,
}

/// What one lease has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseResults {
    pub lease: LeaseKey,
    pub counts: ResultCounts,
    pub bytes: u64,
    pub claim: Option<ResultClaim>,
}

/// Where a page begins: after this result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResultPlace {
    pub job: u32,
    pub status: ResultStatus,
    pub id: i64,
}

/// Which results of a run are asked for.
#[derive(Clone, Debug)]
pub struct ResultQuery {
    pub run: RunId,
    /// All jobs of the run when absent.
    pub job: Option<u32>,
    /// The latest of each job when absent.
    pub attempt: Option<u32>,
    /// None means all of them.
    pub only: Vec<ResultStatus>,
    pub after: Option<ResultPlace>,
}

/// A result as it is read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResult {
    pub id: i64,
    pub lease: LeaseKey,
    pub row: ResultRow,
}

impl StoredResult {
    pub fn place(&self) -> ResultPlace {
        ResultPlace {
            job: self.lease.attempt.job.n,
            status: self.row.status,
            id: self.id,
        }
    }
}

/// Which test is asked for.
#[derive(Clone, Debug)]
pub struct TestQuery {
    pub name: Text,
    pub suite: Option<Text>,
    pub repository: Option<Text>,
    /// Only what came before this one.
    pub before: Option<i64>,
}

/// A result of a test at some time, without what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastResult {
    pub id: i64,
    pub lease: LeaseKey,
    /// The job's name: its number may be another job's in another run.
    pub job: Text,
    /// Its report says of failures before it: it was tried again.
    pub retried: bool,
    /// Read from what its tool printed, which names tests that failed and no others.
    pub printed: bool,
    /// Names the test: in another lease it has the same key.
    pub key: [u8; 16],
    pub status: ResultStatus,
    pub suite: Text,
    pub duration_ms: Option<u64>,
    pub message: Option<Text>,
    pub at: Millis,
    pub repository: Option<Text>,
    pub git_ref: Option<Text>,
    pub commit: Option<Text>,
}

/// What metadata of a result has, where its report says of failures before it.
pub const RETRIED: &str = "\"earlier_failures\":";

/// What metadata of a result has that no report told of.
pub const PRINTED: &str = "\"read_from\":\"output\"";

/// Results of tests, read.
pub trait ResultReader {
    /// Which of these a lease has already, with the bytes of each.
    fn sizes_of_results(
        &self,
        lease: LeaseKey,
        keys: &[[u8; 16]],
    ) -> Result<Vec<([u8; 16], u64)>, StoreError>;

    /// What a lease has, whether it is the latest of its attempt or not.
    fn lease_results(&self, lease: LeaseKey) -> Result<LeaseResults, StoreError>;

    /// What every lease of a run has that is the latest of its attempt, in order. Those without a
    /// result or a word about them are left out.
    fn run_results(&self, run: RunId) -> Result<Vec<LeaseResults>, StoreError>;

    /// A page, by job, status and arrival.
    fn results(&self, query: &ResultQuery, limit: usize) -> Result<Vec<StoredResult>, StoreError>;

    /// One test over time, newest first, among the latest [`LOOKED_THROUGH`] of its name.
    fn test_history(&self, query: &TestQuery, limit: usize) -> Result<Vec<PastResult>, StoreError>;
}

/// Results of tests, written. Beside the writer: there may be thousands in a second, each under the
/// key of its own lease, which no other lease touches. Whether the lease is good was judged before,
/// and a result that comes as it ends changes nothing that was decided.
pub trait ResultTable {
    /// Writes results of a lease. One that is there already is replaced, so that repeats do no
    /// harm; of several with one key the last counts. The caller has seen that the lease is good.
    fn put_results(&self, lease: LeaseKey, rows: &[ResultRow]) -> Result<(), StoreError>;

    /// Takes back results of a lease, all of them when it is not said which. What is not there does
    /// no harm.
    fn withdraw_results(
        &self,
        lease: LeaseKey,
        keys: Option<&[[u8; 16]]>,
    ) -> Result<(), StoreError>;

    /// Notes what a lease said of its results; the last word counts.
    fn put_result_claim(&self, lease: LeaseKey, claim: &ResultClaim) -> Result<(), StoreError>;
}

/// Without those that a later one of the same key replaces: one statement writes a row once.
pub(crate) fn last_of_each(rows: &[ResultRow]) -> Vec<&ResultRow> {
    let mut seen = std::collections::HashSet::with_capacity(rows.len());
    let mut kept: Vec<&ResultRow> = Vec::with_capacity(rows.len());
    kept.extend(rows.iter().rev().filter(|row| seen.insert(row.key)));
    kept.reverse();
    kept
}

/// Statuses as bits, for a filter in SQL.
pub(crate) fn mask(only: &[ResultStatus]) -> i64 {
    if only.is_empty() {
        0b1111
    } else {
        only.iter()
            .fold(0, |mask, status| mask | 1 << status.code())
    }
}

/// Rows of (lease, status, how many, bytes) put together, one entry per lease.
pub(crate) fn fold(
    counted: impl Iterator<Item = (LeaseKey, ResultStatus, u64, u64)>,
    claims: impl Iterator<Item = (LeaseKey, ResultClaim)>,
) -> Vec<LeaseResults> {
    let mut found = std::collections::BTreeMap::new();
    let empty = |lease| LeaseResults {
        lease,
        counts: ResultCounts::default(),
        bytes: 0,
        claim: None,
    };
    for (lease, status, count, bytes) in counted {
        let one = found.entry(lease).or_insert_with(|| empty(lease));
        *one.counts.of(status) += count;
        one.bytes += bytes;
    }
    for (lease, claim) in claims {
        let one = found.entry(lease).or_insert_with(|| empty(lease));
        one.claim = Some(claim);
    }
    found.into_values().collect()
}
