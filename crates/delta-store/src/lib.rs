//! Where state lives: one short trait about batches, and three stores that mean the same by it.
//!
//! Owns durability, the order of events and the queue. Refuses to decide anything: rows change
//! only by the edits and records the core made. Memory serves the simulator and tests, SQLite one
//! server, PostgreSQL several.

pub mod agents;
pub mod codec;
mod credential;
pub mod doctor;
pub mod events;
pub mod forges;
mod id_map;
mod index;
pub mod memory;
pub mod migrate;
pub mod postgres;
pub mod queues;
pub mod read;
pub mod reference_driver;
pub mod results;
pub mod secrets;
pub mod side_tables;
mod specs;
pub mod sqlite;

use std::collections::BTreeSet;
use std::sync::Arc;

use delta_core::world::Edits;
use delta_core::{AttemptId, JobId, Millis, Record, RunId, Text, Want, World};

/// The writing side of a store: one batch at a time, from one writer per process.
///
/// A batch is `begin`, any number of `load` and `claim`, then `commit` or `rollback`. Several
/// processes may write to one PostgreSQL; every other store has one writer.
pub trait Store: Send {
    /// Opens a batch and says what the store's own clock shows (A23). Rows loaded in it are locked
    /// against other writers until it ends: everything is locked by its run.
    fn begin(&mut self) -> Result<Millis, StoreError>;

    /// Brings what is wanted into `world`; what does not exist is entered as absent. Runs are
    /// locked in the order of their ids. Wants already answered in `world` are skipped.
    fn load(&mut self, wants: &BTreeSet<Want>, world: &mut World) -> Result<(), StoreError>;

    /// Picks up to `limit` queued attempts whose match key is one of `keys`, in queue order, that
    /// no other writer is granting, and loads them with their job and run. Attempts in `skip`
    /// (granted earlier in this batch) are passed over. A row picked and not granted stays queued.
    fn claim(&mut self, claim: &Claim, world: &mut World) -> Result<Vec<AttemptId>, StoreError>;

    /// Distinct match keys that have, or recently had, queued attempts: at least those that do.
    fn match_keys(&mut self) -> Result<Vec<Text>, StoreError>;

    /// Makes the batch durable, all of it or nothing. After `Ok` it survives kill -9 and a power
    /// cut. Versions of each run's events continue without gap or repeat. `Conflict`: another
    /// writer was first, nothing was written, run the batch again. `Unknown`: the answer was lost;
    /// [`Store::resolve_unknown`] says which it was.
    fn commit(&mut self, writes: &Writes) -> Result<(), CommitError>;

    /// After `CommitError::Unknown`: whether the batch is there, found by its events' hashes. Says
    /// the same after any commit, until the next `begin` or `rollback`: an answer may be lost on
    /// the way to the caller too.
    fn resolve_unknown(&mut self, writes: &Writes) -> Result<bool, StoreError>;

    /// Gives the batch up; nothing of it stays.
    fn rollback(&mut self);

    /// Attempts and runs with something due at `now`, oldest first, at most `limit` of them. May
    /// name some that are not due after all: the core looks again.
    fn due(&mut self, now: Millis, limit: usize) -> Result<Vec<Due>, StoreError>;

    /// Attempts with a live lease: read once at start (F41).
    fn leased(&mut self) -> Result<Vec<AttemptId>, StoreError>;

    /// The exact bytes of job specs, in the order asked; a missing one is an error.
    fn specs(&mut self, jobs: &[JobId]) -> Result<Vec<Arc<str>>, StoreError>;

    /// Deletes up to `limit` runs that ended before `before`, whole, leaving a tombstone with the
    /// last event's version and hash. Returns the deleted ids, so that their logs can go too.
    fn prune(&mut self, before: Millis, limit: usize) -> Result<Vec<RunId>, StoreError>;

    /// Deletes up to `limit` runs that say themselves how long they are kept, once that is over at
    /// `now`. Returns the deleted ids.
    fn prune_kept(&mut self, now: Millis, limit: usize) -> Result<Vec<RunId>, StoreError>;

    /// The incarnation of this store (A72): set when it was made, raised after a restore.
    fn incarnation(&mut self) -> Result<u32, StoreError>;

    /// Says that this store was restored from a backup: epochs issued after it are lost to it, so
    /// the incarnation rises and no epoch is ever issued twice. Returns the new one.
    fn raise_incarnation(&mut self) -> Result<u32, StoreError>;

    /// The name that was drawn for this store when it was made: another one in its place has
    /// another, and a copy that was restored has the same.
    fn identity(&mut self) -> Result<i64, StoreError>;

    /// Whether it has never had a run.
    fn is_unused(&mut self) -> Result<bool, StoreError>;

    /// Writes something that means nothing, as durably as a batch: whether one could be written.
    fn probe(&mut self) -> Result<(), StoreError>;

    /// The newest moment stored anywhere: the clock never starts before it.
    fn newest_moment(&mut self) -> Result<Millis, StoreError>;

    /// Wakes when another writer queued attempts (PostgreSQL); `None` where there is no other.
    fn wakeups(&mut self) -> Option<Wakeups>;

    /// Durable flushes so far, for measurements.
    fn flushes(&self) -> u64;
}

/// Called by the store, from a thread of its own, when another writer queued work.
pub type WakeFn = Box<dyn Fn() + Send + Sync>;

/// Where to hand the function that is to be called.
pub type Wakeups = Box<dyn FnOnce(WakeFn) + Send>;

/// What to pick from the queue.
#[derive(Clone, Debug)]
pub struct Claim {
    pub keys: Vec<Text>,
    pub limit: usize,
    pub skip: BTreeSet<AttemptId>,
}

/// What one batch changed.
#[derive(Clone, Debug, Default)]
pub struct Writes {
    /// Changed rows, as they are at the end of the batch.
    pub edits: Edits,
    /// Accepted commands in the order they were decided.
    pub records: Vec<Record>,
    /// Job specs of the jobs this batch created.
    pub specs: Vec<(JobId, Arc<str>)>,
    /// Whether other servers on the same database are to look at it at once.
    pub notify: bool,
}

/// The newest moment a batch speaks of: its records, and for renewals the moment they were given.
pub(crate) fn newest_of(writes: &Writes) -> Millis {
    let records = writes.records.iter().map(|record| record.at);
    let leases = writes
        .edits
        .attempts
        .values()
        .filter_map(|a| a.lease.as_ref());
    let renewed = leases.map(|lease| lease.expires_at - lease.ttl);
    records.chain(renewed).max().unwrap_or_default()
}

/// A queued attempt is no longer up for a claim when the batch has already moved it.
pub(crate) fn world_lets_grant(world: &World, id: AttemptId) -> bool {
    match world.attempts.get(&id) {
        Some(Some(attempt)) => attempt.state == delta_core::AttemptState::Queued,
        Some(None) => false,
        None => true,
    }
}

/// How a batch changed the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueChanges {
    pub entered: BTreeSet<AttemptId>,
    pub left: BTreeSet<AttemptId>,
}

impl Writes {
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty() && self.records.is_empty()
    }

    /// Reads the records: what is queued at the end of the batch and was not before, and the other
    /// way round. An attempt that entered and left within the batch is in neither.
    pub fn queue_changes(&self) -> QueueChanges {
        use delta_core::{AttemptEvent as E, AttemptState, Fact};
        let mut changes = QueueChanges::default();
        let mut was_queued = BTreeSet::new();
        let mut seen = BTreeSet::new();
        for record in &self.records {
            for fact in &record.facts {
                let Fact::AttemptMoved {
                    job, index, event, ..
                } = fact
                else {
                    continue;
                };
                let id = record.run.job(*job).attempt(*index);
                let leaves = matches!(event, E::Granted | E::NoAgent);
                let enters = matches!(event, E::Published | E::Lost);
                let unclear = matches!(event, E::CancelRequested | E::Dropped);
                if leaves && seen.insert(id) {
                    was_queued.insert(id);
                }
                if enters {
                    seen.insert(id);
                }
                if unclear && seen.insert(id) {
                    // From CREATED or QUEUED: deleting what is not there does no harm.
                    was_queued.insert(id);
                }
            }
        }
        for id in seen {
            let queued = self
                .edits
                .attempts
                .get(&id)
                .is_some_and(|attempt| attempt.state == AttemptState::Queued);
            match (was_queued.contains(&id), queued) {
                (false, true) => changes.entered.insert(id),
                (true, false) => changes.left.insert(id),
                _ => false,
            };
        }
        changes
    }
}

/// Something a sweep found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    Run(RunId),
    Attempt(AttemptId),
    /// A member of a concurrency group; number 0 of a run is the run itself.
    Turn(JobId),
}

/// A store that cannot answer. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Try again later: the database is away, overloaded or restarting.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// Its disk has no room: ask again when somebody has made some.
    #[error("the disk of the store is full: {0}")]
    Full(String),
    /// Its disk does not take what is written, or does not give back what was.
    #[error("the disk of the store fails: {0}")]
    Failing(String),
    /// Another writer was first; run the batch again.
    #[error("another writer was first")]
    Conflict,
    /// What is stored cannot be read: a person must look.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// The store was made by a newer version of Delta CI.
    #[error(
        "the store has schema version {found}, this program knows up to {known}: \
         use the newer program"
    )]
    TooNew { found: u32, known: u32 },
    /// The store was made by an older version, and whoever opened it wants nothing changed.
    #[error(
        "the store has schema version {found}, this program reads {known}: \
         a server of this version brings it there when it starts"
    )]
    TooOld { found: u32, known: u32 },
}

/// A batch that was not, or perhaps not, committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    #[error("another writer was first")]
    Conflict,
    #[error("the answer to the commit was lost")]
    Unknown,
    #[error(transparent)]
    Store(#[from] StoreError),
}
