//! The reading side of the store in memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delta_core::group::Members;
use delta_core::{Attempt, Digest, Job, JobId, LeaseKey, Run, RunId};

use super::tables::Tables;
use crate::StoreError;
use crate::doctor::Integrity;
use crate::events::Tip;
use crate::read::{JobRows, QueueDepth, Reader, RunFilter, RunRows, StoreStats, StoredEvent};

/// Shares the tables with its [`MemoryStore`](super::MemoryStore), and changes none.
#[derive(Clone, Debug)]
pub struct MemoryReader {
    shared: Arc<Mutex<Tables>>,
}

impl MemoryReader {
    pub(super) fn new(shared: Arc<Mutex<Tables>>) -> MemoryReader {
        MemoryReader { shared }
    }

    /// What retention left of a run.
    pub fn tombstone(&self, id: RunId) -> Option<Tip> {
        self.tables().tombstones.get(&id).copied()
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader for MemoryReader {
    fn run(&self, id: RunId) -> Result<Option<RunRows>, StoreError> {
        let tables = self.tables();
        let Some(run) = tables.runs.get(&id) else {
            return Ok(None);
        };
        let jobs = tables.jobs.range(id.job(0)..=id.job(u32::MAX));
        let with_current = |job: &Job| {
            let current = tables.attempts.get(&job.current())?;
            Some((job.clone(), Attempt::clone(current)))
        };
        Ok(Some(RunRows {
            run: Run::clone(run),
            version: tables.tip(id).version,
            jobs: jobs.filter_map(|(_, job)| with_current(job)).collect(),
        }))
    }

    fn job(&self, id: JobId) -> Result<Option<JobRows>, StoreError> {
        let tables = self.tables();
        let found = (tables.runs.get(&id.run), tables.jobs.get(&id));
        let (Some(run), Some(job)) = found else {
            return Ok(None);
        };
        let all = id.attempt(0)..=id.attempt(u32::MAX);
        let leases = first_lease(id)..=last_lease(id);
        Ok(Some(JobRows {
            run: Run::clone(run),
            job: Job::clone(job),
            attempts: tables
                .attempts
                .range(all)
                .map(|(_, attempt)| Attempt::clone(attempt))
                .collect(),
            past_leases: tables
                .past_leases
                .range(leases)
                .map(|(key, lease)| (key.attempt, lease.clone()))
                .collect(),
        }))
    }

    fn runs(&self, filter: &RunFilter, limit: usize) -> Result<Vec<Run>, StoreError> {
        let tables = self.tables();
        let newest_first = tables.runs.values().rev();
        let fit = newest_first.filter(|run| filter.admits(run));
        Ok(fit.take(limit).map(|run| Run::clone(run)).collect())
    }

    fn events(&self, id: RunId, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        let tables = self.tables();
        let events = tables.events.get(&id).map_or(&[][..], Vec::as_slice);
        let later = events.iter().skip_while(|event| event.version <= after);
        Ok(later.take(limit).cloned().collect())
    }

    fn spec(&self, id: JobId) -> Result<Option<Arc<str>>, StoreError> {
        Ok(self.tables().specs.get(&id).cloned())
    }

    fn queue(&self) -> Result<Vec<QueueDepth>, StoreError> {
        Ok(self.tables().index.depths())
    }

    fn ahead(&self, match_key: &str, order_key: i64) -> Result<u64, StoreError> {
        Ok(self.tables().index.ahead(match_key, order_key))
    }

    fn group(&self, key: &Digest) -> Result<Members, StoreError> {
        Ok(self.tables().index.group(key))
    }

    fn run_ids(&self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, StoreError> {
        let tables = self.tables();
        let later = tables
            .runs
            .keys()
            .filter(|id| after.is_none_or(|a| **id > a));
        Ok(later.take(limit).copied().collect())
    }

    fn pruned(&self, among: &[RunId]) -> Result<Vec<RunId>, StoreError> {
        let tables = self.tables();
        let gone = among.iter().filter(|id| tables.tombstones.contains_key(id));
        Ok(gone.copied().collect())
    }

    fn integrity(&self, _progress: &mut dyn FnMut(&str)) -> Result<Integrity, StoreError> {
        Ok(Integrity {
            checked: "there are no files".to_owned(),
            ..Integrity::default()
        })
    }

    fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn stats(&self) -> Result<StoreStats, StoreError> {
        let tables = self.tables();
        Ok(StoreStats {
            runs: tables.runs.len() as u64,
            queued: tables.index.queued_count(),
            leased: tables.index.leased_count(),
            wal_bytes: 0,
        })
    }
}

fn first_lease(job: JobId) -> LeaseKey {
    job.attempt(0).lease(0)
}

fn last_lease(job: JobId) -> LeaseKey {
    job.attempt(u32::MAX).lease(u64::MAX)
}
