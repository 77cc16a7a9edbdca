//! A store whose commits go wrong on order, whatever store is behind it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use delta_core::{AttemptId, JobId, Millis, RunId, Text, Want, World};
use delta_store::memory::Fault;
use delta_store::{Claim, CommitError, Due, Store, StoreError, Wakeups, Writes};

pub struct Faulty {
    pub inner: Box<dyn Store>,
    faults: VecDeque<Fault>,
}

impl Faulty {
    pub fn new(inner: Box<dyn Store>) -> Faulty {
        Faulty {
            inner,
            faults: VecDeque::new(),
        }
    }

    pub fn inject(&mut self, fault: Fault) {
        self.faults.push_back(fault);
    }
}

impl Store for Faulty {
    fn commit(&mut self, writes: &Writes) -> Result<(), CommitError> {
        let Some(fault) = self.faults.pop_front() else {
            return self.inner.commit(writes);
        };
        if fault == Fault::UnknownApplied {
            self.inner.commit(writes)?;
        } else {
            self.inner.rollback();
        }
        Err(match fault {
            Fault::Conflict => CommitError::Conflict,
            Fault::Unavailable => StoreError::Unavailable("ordered".into()).into(),
            Fault::UnknownApplied | Fault::UnknownNotApplied => CommitError::Unknown,
        })
    }

    fn begin(&mut self) -> Result<Millis, StoreError> {
        self.inner.begin()
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
        self.inner.rollback()
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

    fn prune_kept(&mut self, now: Millis, limit: usize) -> Result<Vec<RunId>, StoreError> {
        self.inner.prune_kept(now, limit)
    }

    fn incarnation(&mut self) -> Result<u32, StoreError> {
        self.inner.incarnation()
    }

    fn raise_incarnation(&mut self) -> Result<u32, StoreError> {
        self.inner.raise_incarnation()
    }

    fn identity(&mut self) -> Result<i64, StoreError> {
        self.inner.identity()
    }

    fn is_unused(&mut self) -> Result<bool, StoreError> {
        self.inner.is_unused()
    }

    fn probe(&mut self) -> Result<(), StoreError> {
        self.inner.probe()
    }

    fn newest_moment(&mut self) -> Result<Millis, StoreError> {
        self.inner.newest_moment()
    }

    fn wakeups(&mut self) -> Option<Wakeups> {
        self.inner.wakeups()
    }

    fn flushes(&self) -> u64 {
        self.inner.flushes()
    }
}
