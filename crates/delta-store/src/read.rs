//! The reading side of a store: pages of results for people and tools, never inside a batch, and
//! no read that outlives one page. Nothing is written through it: that is the writer's, or
//! [`SideTables`](crate::side_tables::SideTables).

use std::sync::Arc;

use delta_core::group::Members;
use delta_core::{
    Attempt, AttemptId, Digest, Job, JobId, Lease, Millis, Run, RunId, RunState, Text,
};

use crate::StoreError;
use crate::agents::AgentReader;
pub use crate::credential::{Credential, CredentialReader, DEFAULT_POOL, Labels, Role, Scope};
use crate::doctor::Integrity;
use crate::forges::ForgeReader;
use crate::queues::QueueReader;
use crate::results::ResultReader;
use crate::secrets::SecretReader;

/// Shared by all request handlers; each call is short and synchronous.
pub trait Reader:
    AgentReader
    + CredentialReader
    + ForgeReader
    + QueueReader
    + ResultReader
    + SecretReader
    + Send
    + Sync
{
    fn run(&self, id: RunId) -> Result<Option<RunRows>, StoreError>;
    fn job(&self, id: JobId) -> Result<Option<JobRows>, StoreError>;
    /// Newest first; at most `limit`.
    fn runs(&self, filter: &RunFilter, limit: usize) -> Result<Vec<Run>, StoreError>;
    /// Events of a run with a version above `after`, in order.
    fn events(&self, id: RunId, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError>;
    fn spec(&self, id: JobId) -> Result<Option<Arc<str>>, StoreError>;
    /// Queued attempts per match key: how many, and since when the oldest waits.
    fn queue(&self) -> Result<Vec<QueueDepth>, StoreError>;
    /// Queued attempts with the same match key that come before this order key.
    fn ahead(&self, match_key: &str, order_key: i64) -> Result<u64, StoreError>;
    /// The members of a concurrency group, the oldest first.
    fn group(&self, key: &Digest) -> Result<Members, StoreError>;
    /// Runs in id order after `after`, ended or not: for the doctor.
    fn run_ids(&self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, StoreError>;
    /// Those of these runs that retention deleted. A run the store never had is not among them.
    fn pruned(&self, among: &[RunId]) -> Result<Vec<RunId>, StoreError>;

    /// Asks the engine about its own files; `progress` is told what is looked at. Takes as long as
    /// reading all of them does.
    fn integrity(&self, progress: &mut dyn FnMut(&str)) -> Result<Integrity, StoreError>;
    /// Answers at all.
    fn ping(&self) -> Result<(), StoreError>;
    fn stats(&self) -> Result<StoreStats, StoreError>;
}

/// A run with every job and each job's current attempt.
#[derive(Clone, Debug)]
pub struct RunRows {
    pub run: Run,
    pub version: u64,
    pub jobs: Vec<(Job, Attempt)>,
}

/// A job with all its attempts and all leases that were superseded.
#[derive(Clone, Debug)]
pub struct JobRows {
    pub run: Run,
    pub job: Job,
    pub attempts: Vec<Attempt>,
    pub past_leases: Vec<(AttemptId, Lease)>,
}

#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// Only runs older than this one: the cursor.
    pub before: Option<RunId>,
    pub state: Option<RunState>,
    pub outcome: Option<RunState>,
    pub repository: Option<Text>,
    pub git_ref: Option<Text>,
    pub commit: Option<Text>,
    pub kind: RunKind,
    /// Functions of this queue.
    pub queue: Option<Text>,
    /// Those that ran this one again.
    pub rerun_of: Option<RunId>,
}

/// Which runs are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunKind {
    #[default]
    Any,
    /// Those that are no functions.
    Plain,
    Functions,
    /// Functions that failed for good and were not put aside.
    DeadLetters,
}

impl RunFilter {
    pub fn admits(&self, run: &Run) -> bool {
        fn same(wanted: &Option<Text>, found: &Option<Text>) -> bool {
            wanted.is_none() || wanted == found
        }
        self.before.is_none_or(|before| run.id < before)
            && self.state.is_none_or(|state| run.state == state)
            && self
                .outcome
                .is_none_or(|outcome| run.outcome == Some(outcome))
            && same(&self.repository, &run.header.repository)
            && same(&self.git_ref, &run.header.git_ref)
            && same(&self.commit, &run.header.commit)
            && (self.rerun_of.is_none() || self.rerun_of == run.header.rerun_of)
            && (self.queue.is_none() || self.queue == run.header.queue)
            && match self.kind {
                RunKind::Any => true,
                RunKind::Plain => run.header.queue.is_none(),
                RunKind::Functions => run.header.queue.is_some(),
                RunKind::DeadLetters => run.is_dead_letter(),
            }
    }
}

/// One event as stored: the exact bytes that were hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    pub version: u64,
    pub at: Millis,
    pub bytes: Vec<u8>,
    pub hash: Digest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    pub match_key: Text,
    pub attempts: u64,
    pub oldest: Millis,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    pub runs: u64,
    pub queued: u64,
    pub leased: u64,
    /// Bytes of the write-ahead log, where there is one.
    pub wal_bytes: u64,
}
