//! A store in memory: for the simulator, for tests, and for a server whose state may vanish.
//!
//! Means the same as the SQL stores, without threads and without a clock of its own once one is
//! set. What was committed outlives [`MemoryStore::crash`]; an open batch does not. Faults at the
//! commit can be ordered in advance.

mod agents;
mod credentials;
mod forges;
mod queues;
mod reader;
mod results;
mod secrets;
mod side_tables;
mod tables;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use delta_core::{AttemptId, JobId, Millis, RunId, Text, Want, World};

use crate::events::Tip;
use crate::{Claim, CommitError, Due, Store, StoreError, Wakeups, Writes};
pub use reader::MemoryReader;
pub use side_tables::MemorySideTables;
use tables::Tables;

/// What goes wrong at a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Another writer was first: nothing is written.
    Conflict,
    /// Everything is written, and the answer is lost.
    UnknownApplied,
    /// Nothing is written, and the answer is lost.
    UnknownNotApplied,
    /// The store is away: nothing is written.
    Unavailable,
}

/// The writing side. Drop it or [`crash`](MemoryStore::crash) it at any moment.
#[derive(Debug)]
pub struct MemoryStore {
    shared: Arc<Mutex<Tables>>,
    faults: VecDeque<Fault>,
    clock: Option<Millis>,
    /// The last event of the batch that was committed last, for when the answer is lost.
    unknown: Option<(RunId, Tip)>,
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        MemoryStore {
            shared: Arc::new(Mutex::new(Tables::new())),
            faults: VecDeque::new(),
            clock: None,
            unknown: None,
        }
    }

    pub fn reader(&self) -> MemoryReader {
        MemoryReader::new(self.shared.clone())
    }

    pub fn side_tables(&self) -> MemorySideTables {
        MemorySideTables::new(self.shared.clone())
    }

    /// From now on the store's clock shows this, and moves only by this call.
    pub fn set_clock(&mut self, now: Millis) {
        self.clock = Some(now);
    }

    /// The process dies and another opens the same state: an open batch is lost, and so are the
    /// faults that were ordered.
    pub fn crash(self) -> MemoryStore {
        self.reopen()
    }

    /// Opens the same state again. There is one writer: the former store must not be used any more.
    pub fn reopen(&self) -> MemoryStore {
        MemoryStore {
            shared: self.shared.clone(),
            faults: VecDeque::new(),
            clock: self.clock,
            unknown: None,
        }
    }

    /// The next commit fails this way; several are taken one after the other.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push_back(fault);
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // Tables change in one step that cannot fail half way.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn begin(&mut self) -> Result<Millis, StoreError> {
        self.unknown = None;
        let since_epoch = || SystemTime::now().duration_since(UNIX_EPOCH);
        let system = || since_epoch().map_or(0, |since| since.as_millis() as i64);
        Ok(self.clock.unwrap_or_else(|| Millis(system())))
    }

    fn load(&mut self, wants: &BTreeSet<Want>, world: &mut World) -> Result<(), StoreError> {
        let tables = self.tables();
        for want in wants {
            tables.answer(want, world);
        }
        Ok(())
    }

    fn claim(&mut self, claim: &Claim, world: &mut World) -> Result<Vec<AttemptId>, StoreError> {
        let tables = self.tables();
        let picked = tables
            .index
            .claim(claim, |id| crate::world_lets_grant(world, id));
        for &id in &picked {
            tables.answer(&Want::Run(id.run()), world);
            tables.answer(&Want::Job(id.job), world);
            tables.answer(&Want::Attempt(id), world);
        }
        Ok(picked)
    }

    fn match_keys(&mut self) -> Result<Vec<Text>, StoreError> {
        Ok(self.tables().index.match_keys())
    }

    fn commit(&mut self, writes: &Writes) -> Result<(), CommitError> {
        let last = self.tables().last_event(writes);
        self.unknown = last;
        match self.faults.pop_front() {
            None => {
                self.tables().apply(writes);
                Ok(())
            }
            Some(Fault::Conflict) => Err(CommitError::Conflict),
            Some(Fault::Unavailable) => {
                let why = "a fault was ordered".to_string();
                Err(StoreError::Unavailable(why).into())
            }
            Some(Fault::UnknownNotApplied) => Err(CommitError::Unknown),
            Some(Fault::UnknownApplied) => {
                self.tables().apply(writes);
                Err(CommitError::Unknown)
            }
        }
    }

    fn resolve_unknown(&mut self, _writes: &Writes) -> Result<bool, StoreError> {
        // A batch of renewals has no event: to run it again does no harm.
        let Some((run, tip)) = self.unknown.take() else {
            return Ok(false);
        };
        Ok(self.tables().has_event(run, tip))
    }

    fn rollback(&mut self) {
        self.unknown = None;
    }

    fn due(&mut self, now: Millis, limit: usize) -> Result<Vec<Due>, StoreError> {
        Ok(self.tables().index.due(now, limit))
    }

    fn leased(&mut self) -> Result<Vec<AttemptId>, StoreError> {
        Ok(self.tables().index.leased())
    }

    fn specs(&mut self, jobs: &[JobId]) -> Result<Vec<Arc<str>>, StoreError> {
        let tables = self.tables();
        let find = |job: &JobId| tables.specs.get(job).cloned();
        let missing = |job: &JobId| StoreError::Corrupt(format!("{job} has no spec"));
        jobs.iter()
            .map(|job| find(job).ok_or_else(|| missing(job)))
            .collect()
    }

    fn prune(&mut self, before: Millis, limit: usize) -> Result<Vec<RunId>, StoreError> {
        Ok(self.tables().prune(before, limit))
    }

    fn prune_kept(&mut self, now: Millis, limit: usize) -> Result<Vec<RunId>, StoreError> {
        Ok(self.tables().prune_kept(now, limit))
    }

    fn incarnation(&mut self) -> Result<u32, StoreError> {
        Ok(self.tables().incarnation)
    }

    fn raise_incarnation(&mut self) -> Result<u32, StoreError> {
        let mut tables = self.tables();
        tables.incarnation += 1;
        Ok(tables.incarnation)
    }

    fn identity(&mut self) -> Result<i64, StoreError> {
        // Nothing else can be in the place of what ends with its process.
        Ok(0)
    }

    fn is_unused(&mut self) -> Result<bool, StoreError> {
        let tables = self.tables();
        Ok(tables.runs.is_empty() && tables.tombstones.is_empty())
    }

    fn probe(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn newest_moment(&mut self) -> Result<Millis, StoreError> {
        Ok(self.tables().newest)
    }

    fn wakeups(&mut self) -> Option<Wakeups> {
        None
    }

    fn flushes(&self) -> u64 {
        self.tables().flushes
    }
}
