//! A memory store that a test can disturb from outside: its clock, and what happens at a commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use delta_core::{AttemptId, JobId, Millis, RunId, Text, Want, World};
use delta_store::memory::MemoryStore;
use delta_store::{Claim, CommitError, Due, Store, StoreError, Wakeups, Writes};

/// What a test does to the store while the writer has it.
#[derive(Default)]
pub struct Levers {
    /// Milliseconds its clock is ahead of the system's.
    pub clock_ahead: AtomicI64,
    pub panics: AtomicBool,
    /// Commits of more than one command that are answered with a conflict.
    pub conflicts: AtomicU32,
    /// Milliseconds a commit takes.
    pub slow_commit: AtomicU32,
    /// How often the clock was read.
    pub begun: AtomicU32,
}

pub struct TestStore {
    pub inner: MemoryStore,
    pub levers: Arc<Levers>,
}

impl Store for TestStore {
    fn begin(&mut self) -> Result<Millis, StoreError> {
        self.levers.begun.fetch_add(1, Ordering::Relaxed);
        let ahead = self.levers.clock_ahead.load(Ordering::Relaxed);
        Ok(Millis(self.inner.begin()?.0 + ahead))
    }

    fn commit(&mut self, writes: &Writes) -> Result<(), CommitError> {
        assert!(
            !self.levers.panics.load(Ordering::Relaxed),
            "a fault was ordered"
        );
        let slow = self.levers.slow_commit.load(Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(slow.into()));
        let left = |n: u32| n.checked_sub(1);
        let conflicts = &self.levers.conflicts;
        let order = Ordering::Relaxed;
        if writes.records.len() > 1 && conflicts.fetch_update(order, order, left).is_ok() {
            return Err(CommitError::Conflict);
        }
        self.inner.commit(writes)
    }

    fn load(&mut self, wants: &BTreeSet<Want>, world: &mut World) -> Result<(), StoreError> {
        self.inner.load(wants, world)
    }

    fn claim(&mut self, claim: &Claim, world: &mut World) -> Result<Vec<AttemptId>, StoreError> {
        self.inner.claim(claim, world)
    }

    fn match_keys(&mut self) -> Result<Vec<Text>, StoreError> {
        self.inner.match_keys()
    }

    fn resolve_unknown(&mut self, writes: &Writes) -> Result<bool, StoreError> {
        self.inner.resolve_unknown(writes)
    }

    fn rollback(&mut self) {
        self.inner.rollback();
    }

    fn due(&mut self, now: Millis, limit: usize) -> Result<Vec<Due>, StoreError> {
        self.inner.due(now, limit)
    }

    fn leased(&mut self) -> Result<Vec<AttemptId>, StoreError> {
        self.inner.leased()
    }

    fn specs(&mut self, jobs: &[JobId]) -> Result<Vec<Arc<str>>, StoreError> {
        self.inner.specs(jobs)
    }

    fn prune(&mut self, before: Millis, limit: usize) -> Result<Vec<RunId>, StoreError> {
        self.inner.prune(before, limit)
    }

    fn incarnation(&mut self) -> Result<u32, StoreError> {
        self.inner.incarnation()
    }

    fn raise_incarnation(&mut self) -> Result<u32, StoreError> {
        self.inner.raise_incarnation()
    }

    fn newest_moment(&mut self) -> Result<Millis, StoreError> {
        self.inner.newest_moment()
    }

    fn wakeups(&mut self) -> Option<Wakeups> {
        None
    }

    fn flushes(&self) -> u64 {
        self.inner.flushes()
    }
}
