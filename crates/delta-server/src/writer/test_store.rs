//! A memory store that a test can disturb from outside: its clock, what happens at a commit, and
//! how it answers readers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use delta_core::{AttemptId, Digest, JobId, LeaseKey, Millis, Run, RunId, Text, Want, World};
use delta_store::agents::{AgentReader, AgentRow};
use delta_store::forges::{Approval, ForgeReader, ReportRow, RepositoryRow};
use delta_store::memory::{MemoryReader, MemoryStore};
use delta_store::queues::{QueueReader, QueueRow};
use delta_store::read::{
    Credential, CredentialReader, JobRows, QueueDepth, Reader, RunFilter, RunRows, StoreStats,
    StoredEvent,
};
use delta_store::results::{
    LeaseResults, PastResult, ResultQuery, ResultReader, StoredResult, TestQuery,
};
use delta_store::secrets::{SecretAbout, SecretId, SecretPlace, SecretReader, SecretRow};
use delta_store::{Claim, CommitError, Due, Store, StoreError, Wakeups, Writes};
use tokio::sync::oneshot;

/// What a test does to the store while the writer has it.
#[derive(Default)]
pub struct Levers {
    /// Milliseconds its clock is ahead of the system's.
    pub clock_ahead: AtomicI64,
    /// Milliseconds by which another server's writes are ahead of ours.
    pub others_ahead: AtomicI64,
    pub panics: AtomicBool,
    /// What stands first in the queue cannot be read.
    pub queue_damaged: AtomicBool,
    /// Commits of more than one command that are answered with a conflict.
    pub conflicts: AtomicU32,
    /// Milliseconds a commit takes.
    pub slow_commit: AtomicU32,
    /// Nobody hears whose token it is.
    pub lookups_hang: AtomicBool,
    /// Readers are answered with an error that names the database.
    pub away: AtomicBool,
    /// How often the clock was read.
    pub begun: AtomicU32,
    /// The next commit stands still here before it does anything.
    gate: Mutex<Option<Gate>>,
}

/// Where a commit stands still: it says that it is there, and waits until its other end is dropped.
type Gate = (oneshot::Sender<()>, mpsc::Receiver<()>);

impl Levers {
    /// Stops the next commit: resolves when it is about to begin, and lets it go when the sender is
    /// dropped.
    pub fn stop_commit(&self) -> (oneshot::Receiver<()>, mpsc::Sender<()>) {
        let (arrives, arrived) = oneshot::channel();
        let (let_go, waits) = mpsc::channel();
        *self.gate.lock().unwrap() = Some((arrives, waits));
        (arrived, let_go)
    }
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
        let gate = self.levers.gate.lock().unwrap().take();
        if let Some((arrives, waits)) = gate {
            let _ = arrives.send(());
            let _ = waits.recv();
        }
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
        if self.levers.queue_damaged.load(Ordering::Relaxed) {
            return Err(StoreError::Corrupt("an attempt".into()));
        }
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
        let ahead = self.levers.others_ahead.load(Ordering::Relaxed);
        Ok(Millis(self.inner.newest_moment()?.0 + ahead))
    }

    fn wakeups(&mut self) -> Option<Wakeups> {
        None
    }

    fn flushes(&self) -> u64 {
        self.inner.flushes()
    }
}

/// What a database's driver says; not for everybody.
pub const DRIVER_WORDS: &str = "connection to db.internal:5432 refused";

pub struct TestReader {
    pub inner: MemoryReader,
    pub levers: Arc<Levers>,
}

impl TestReader {
    fn there(&self) -> Result<&MemoryReader, StoreError> {
        if self.levers.away.load(Ordering::Relaxed) {
            Err(StoreError::Unavailable(DRIVER_WORDS.into()))
        } else {
            Ok(&self.inner)
        }
    }
}

impl Reader for TestReader {
    fn pruned(&self, among: &[RunId]) -> Result<Vec<RunId>, StoreError> {
        self.there()?.pruned(among)
    }

    fn run(&self, id: RunId) -> Result<Option<RunRows>, StoreError> {
        self.there()?.run(id)
    }

    fn job(&self, id: JobId) -> Result<Option<JobRows>, StoreError> {
        self.there()?.job(id)
    }

    fn runs(&self, filter: &RunFilter, limit: usize) -> Result<Vec<Run>, StoreError> {
        self.there()?.runs(filter, limit)
    }

    fn events(&self, id: RunId, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        self.there()?.events(id, after, limit)
    }

    fn spec(&self, id: JobId) -> Result<Option<Arc<str>>, StoreError> {
        self.there()?.spec(id)
    }

    fn queue(&self) -> Result<Vec<QueueDepth>, StoreError> {
        self.there()?.queue()
    }

    fn group(&self, key: &delta_core::Digest) -> Result<delta_core::group::Members, StoreError> {
        self.there()?.group(key)
    }

    fn ahead(&self, match_key: &str, order_key: i64) -> Result<u64, StoreError> {
        self.there()?.ahead(match_key, order_key)
    }

    fn run_ids(&self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, StoreError> {
        self.there()?.run_ids(after, limit)
    }

    fn integrity(
        &self,
        progress: &mut dyn FnMut(&str),
    ) -> Result<delta_store::doctor::Integrity, StoreError> {
        self.there()?.integrity(progress)
    }

    fn ping(&self) -> Result<(), StoreError> {
        self.there()?.ping()
    }

    fn stats(&self) -> Result<StoreStats, StoreError> {
        self.there()?.stats()
    }
}

impl CredentialReader for TestReader {
    fn credential(&self, hash: &Digest) -> Result<Option<Credential>, StoreError> {
        while self.levers.lookups_hang.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.there()?.credential(hash)
    }

    fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        self.there()?.credentials()
    }
}

impl ResultReader for TestReader {
    fn sizes_of_results(
        &self,
        lease: LeaseKey,
        keys: &[[u8; 16]],
    ) -> Result<Vec<([u8; 16], u64)>, StoreError> {
        self.there()?.sizes_of_results(lease, keys)
    }

    fn lease_results(&self, lease: LeaseKey) -> Result<LeaseResults, StoreError> {
        self.there()?.lease_results(lease)
    }

    fn run_results(&self, run: RunId) -> Result<Vec<LeaseResults>, StoreError> {
        self.there()?.run_results(run)
    }

    fn results(&self, query: &ResultQuery, limit: usize) -> Result<Vec<StoredResult>, StoreError> {
        self.there()?.results(query, limit)
    }

    fn test_history(&self, query: &TestQuery, limit: usize) -> Result<Vec<PastResult>, StoreError> {
        self.there()?.test_history(query, limit)
    }
}

impl QueueReader for TestReader {
    fn queues(&self) -> Result<Vec<QueueRow>, StoreError> {
        self.there()?.queues()
    }
}

impl ForgeReader for TestReader {
    fn repositories(&self) -> Result<Vec<RepositoryRow>, StoreError> {
        self.there()?.repositories()
    }

    fn repository(&self, name: &str) -> Result<Option<RepositoryRow>, StoreError> {
        self.there()?.repository(name)
    }

    fn reports_due(&self, now: Millis, limit: usize) -> Result<Vec<ReportRow>, StoreError> {
        self.there()?.reports_due(now, limit)
    }

    fn report(&self, run: RunId) -> Result<Option<ReportRow>, StoreError> {
        self.there()?.report(run)
    }

    fn approval(&self, run: RunId) -> Result<Option<Approval>, StoreError> {
        self.there()?.approval(run)
    }

    fn plan(&self, run: RunId) -> Result<Option<Text>, StoreError> {
        self.there()?.plan(run)
    }
}

impl AgentReader for TestReader {
    fn agent(&self, id: &str) -> Result<Option<AgentRow>, StoreError> {
        self.there()?.agent(id)
    }

    fn agents(&self, after: &str, limit: usize) -> Result<Vec<AgentRow>, StoreError> {
        self.there()?.agents(after, limit)
    }
}

impl SecretReader for TestReader {
    fn secrets(&self) -> Result<Vec<SecretAbout>, StoreError> {
        self.there()?.secrets()
    }

    fn secret(&self, id: &SecretId) -> Result<Option<SecretRow>, StoreError> {
        self.there()?.secret(id)
    }

    fn secrets_for(
        &self,
        names: &[Text],
        place: SecretPlace<'_>,
    ) -> Result<Vec<SecretRow>, StoreError> {
        self.there()?.secrets_for(names, place)
    }
}
