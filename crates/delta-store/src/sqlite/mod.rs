//! The built-in store: one SQLite file, one writer, several readers.
//!
//! Owns the file while it is open: live rows, the queue, timers and holders are kept in memory, so
//! a batch that only touches live work reads nothing, and each changed row is written once, in one
//! transaction that is on disk before anybody hears of it. After a commit that failed, memory says
//! again what the file says.

mod agents;
mod cache;
mod commit;
mod connection;
mod credentials;
mod forges;
mod open;
mod prune;
mod queues;
mod reader;
mod results;
mod rows;
mod secrets;
mod side_tables;
mod standings;
mod write;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use delta_core::{
    AgentStanding, Attempt, AttemptId, Digest, Job, JobId, Millis, Run, RunId, Text, Want, World,
};
use rusqlite::{Connection, params};

use crate::codec::{column, corrupt};
use crate::events::Tip;
use crate::index::Index;
use crate::specs::Specs;
use crate::{Claim, CommitError, Due, Store, StoreError, Wakeups, Writes};
use cache::Cache;
pub use connection::FILE;
use connection::store_error;
pub use open::{Sides, knows_one_of, open, open_as};
pub use reader::SqliteReader;
pub use side_tables::SqliteSideTables;
use standings::Standings;

/// Rows of each kind kept in memory: more than any server has live at once with 10,000 slots, and
/// at about a kilobyte each a bounded price.
const CACHED_ROWS: usize = 50_000;

/// The writing side.
#[derive(Debug)]
pub struct SqliteStore {
    connection: Connection,
    path: PathBuf,
    /// Shared with the reader, who asks it for the queue.
    index: Arc<Mutex<Index>>,
    runs: Cache<RunId, Arc<Run>>,
    jobs: Cache<JobId, Arc<Job>>,
    attempts: Cache<AttemptId, Arc<Attempt>>,
    tips: Cache<RunId, Tip>,
    specs: Specs,
    /// Shared with the reader, through which agents change.
    standings: Arc<Standings>,
    /// Counts batches, for the caches.
    batch: u64,
    /// Between `begin` and `commit` or `rollback`.
    in_batch: bool,
    /// Memory may differ from the file: read it all again before the next batch.
    doubtful: bool,
    /// A row of events of the batch that was committed last, by its first version and its hash, for
    /// when the answer is lost.
    unknown: Option<(RunId, u64, Digest)>,
    newest: Millis,
    run_count: u64,
    flushes: u64,
    gauges: Arc<Gauges>,
}

/// Numbers the reader shows without reading tables.
#[derive(Debug, Default)]
struct Gauges {
    runs: AtomicU64,
    queued: AtomicU64,
    leased: AtomicU64,
}

impl SqliteStore {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reading inside a batch: the first read opens its transaction, so that not every single one
    /// asks for a lock. A batch that finds everything in memory opens it when it commits.
    fn reading(&self) -> Result<&Connection, StoreError> {
        if self.in_batch && self.connection.is_autocommit() {
            self.run_sql("BEGIN IMMEDIATE")?;
        }
        Ok(&self.connection)
    }

    /// Ends the batch and the transaction, if it has one, without a trace.
    fn end_batch(&mut self) {
        self.in_batch = false;
        if !self.connection.is_autocommit()
            && let Err(error) = self.run_sql("ROLLBACK")
        {
            tracing::warn!(%error, "a batch could not be rolled back");
        }
    }

    fn run(&mut self, id: RunId) -> Result<Option<Arc<Run>>, StoreError> {
        if let Some(run) = self.runs.get(id, self.batch) {
            return Ok(Some(run.clone()));
        }
        let found = rows::run(self.reading()?, id)?.map(Arc::new);
        if let Some(run) = &found {
            self.runs.put(id, run.clone(), self.batch);
        }
        Ok(found)
    }

    fn job(&mut self, id: JobId) -> Result<Option<Arc<Job>>, StoreError> {
        if let Some(job) = self.jobs.get(id, self.batch) {
            return Ok(Some(job.clone()));
        }
        let found = rows::job(self.reading()?, id)?.map(Arc::new);
        if let Some(job) = &found {
            self.jobs.put(id, job.clone(), self.batch);
        }
        Ok(found)
    }

    fn attempt(&mut self, id: AttemptId) -> Result<Option<Arc<Attempt>>, StoreError> {
        if let Some(attempt) = self.attempts.get(id, self.batch) {
            return Ok(Some(attempt.clone()));
        }
        let found = rows::attempt(self.reading()?, id)?.map(Arc::new);
        if let Some(attempt) = &found {
            self.attempts.put(id, attempt.clone(), self.batch);
        }
        Ok(found)
    }

    fn tip(&mut self, run: RunId) -> Result<Tip, StoreError> {
        if let Some(tip) = self.tips.get(run, self.batch) {
            return Ok(*tip);
        }
        rows::tip(self.reading()?, run)
    }

    fn standing(&mut self, id: &Text) -> Result<Option<AgentStanding>, StoreError> {
        let round = match self.standings.get(id) {
            Ok(standing) => return Ok(standing),
            Err(round) => round,
        };
        let found = agents::one(self.reading()?, id)?.map(|row| row.standing());
        self.standings.put(round, id, found.clone());
        Ok(found)
    }

    /// Enters a row, or that there is none; what the batch already knows stays as it is.
    fn answer(&mut self, want: &Want, world: &mut World) -> Result<(), StoreError> {
        match want {
            Want::Run(id) if !world.runs.contains_key(id) => {
                world.runs.insert(*id, self.run(*id)?);
            }
            Want::Job(id) if !world.jobs.contains_key(id) => {
                world.jobs.insert(*id, self.job(*id)?);
            }
            Want::Attempt(id) if !world.attempts.contains_key(id) => {
                world.attempts.insert(*id, self.attempt(*id)?);
            }
            Want::PastLease(key) if !world.past_leases.contains_key(key) => {
                let found = rows::past_lease(self.reading()?, *key)?;
                world.past_leases.insert(*key, found);
            }
            Want::Key(key) if !world.keys.contains_key(key) => {
                let sql = "SELECT run_id FROM runs WHERE idempotency_key = ?1";
                let found = rows::one(self.reading()?, sql, [key], rows::read_run_id)?;
                world.keys.insert(*key, found);
            }
            Want::Unique(key) if !world.uniques.contains_key(key) => {
                let sql = "SELECT run_id FROM runs WHERE unique_key = ?1 \
                           ORDER BY run_id DESC LIMIT 1";
                let found = rows::one(self.reading()?, sql, [key], rows::read_run_id)?;
                world.uniques.insert(*key, found);
            }
            Want::Holder(principal, runner) => {
                let known = world.holders.entry((principal.clone(), runner.clone()));
                known.or_insert_with(|| self.index().holder(principal, runner));
            }
            Want::Group(key) => world.put_group(*key, self.index().group(key)),
            Want::Agent(id) if !world.agents.contains_key(id) => {
                world.agents.insert(id.clone(), self.standing(id)?);
            }
            Want::LiveJobs(run) if world.whole.insert(*run) => self.live_jobs(*run, world)?,
            _ => {}
        }
        Ok(())
    }

    /// Whether the events of the last batch are in the file. A batch of renewals has none: to run
    /// it again does no harm.
    fn is_there(&self) -> Result<bool, StoreError> {
        let Some((run, first, hash)) = self.unknown else {
            return Ok(false);
        };
        let sql = "SELECT 1 FROM events WHERE run_id = ?1 AND first = ?2 AND hash = ?3";
        let key = params![column::run_bytes(run), column::signed(first), hash];
        Ok(rows::one(&self.connection, sql, key, |_| Ok(()))?.is_some())
    }

    fn live_jobs(&mut self, run: RunId, world: &mut World) -> Result<(), StoreError> {
        let sql = concat!(
            "SELECT ",
            rows::columns!(job),
            " FROM jobs WHERE run_id = ?1 AND resolution IS NULL ORDER BY job"
        );
        let key = [column::run_bytes(run)];
        for job in rows::all(self.reading()?, sql, key, rows::read_job)? {
            let current = job.current();
            let known = world.jobs.entry(job.id);
            known.or_insert_with(|| Some(Arc::new(job)));
            self.answer(&Want::Attempt(current), world)?;
        }
        Ok(())
    }
}

impl Store for SqliteStore {
    fn begin(&mut self) -> Result<Millis, StoreError> {
        self.end_batch();
        if self.doubtful {
            self.reload()?;
        }
        self.in_batch = true;
        self.batch += 1;
        self.unknown = None;
        self.runs.trim();
        self.jobs.trim();
        self.attempts.trim();
        self.tips.trim();
        Ok(system_clock())
    }

    fn load(&mut self, wants: &BTreeSet<Want>, world: &mut World) -> Result<(), StoreError> {
        wants.iter().try_for_each(|want| self.answer(want, world))
    }

    fn claim(&mut self, claim: &Claim, world: &mut World) -> Result<Vec<AttemptId>, StoreError> {
        let fit = |id| crate::world_lets_grant(world, id);
        let picked = self.index().claim(claim, fit);
        for &id in &picked {
            self.answer(&Want::Run(id.run()), world)?;
            self.answer(&Want::Job(id.job), world)?;
            self.answer(&Want::Attempt(id), world)?;
        }
        Ok(picked)
    }

    fn match_keys(&mut self) -> Result<Vec<Text>, StoreError> {
        Ok(self.index().match_keys())
    }

    fn commit(&mut self, writes: &Writes) -> Result<(), CommitError> {
        let done = self.commit_batch(writes);
        self.end_batch();
        done
    }

    fn resolve_unknown(&mut self, _writes: &Writes) -> Result<bool, StoreError> {
        let there = self.is_there()?;
        self.unknown = None;
        Ok(there)
    }

    fn rollback(&mut self) {
        self.end_batch();
        self.unknown = None;
    }

    fn due(&mut self, now: Millis, limit: usize) -> Result<Vec<Due>, StoreError> {
        Ok(self.index().due(now, limit))
    }

    fn leased(&mut self) -> Result<Vec<AttemptId>, StoreError> {
        Ok(self.index().leased())
    }

    fn specs(&mut self, jobs: &[JobId]) -> Result<Vec<Arc<str>>, StoreError> {
        let find = |job: &JobId| match self.specs.get(*job) {
            Some(spec) => Ok(spec),
            None => rows::spec(&self.connection, *job)?
                .ok_or_else(|| corrupt("a job spec", format!("{job} has none"))),
        };
        jobs.iter().map(find).collect()
    }

    fn prune(&mut self, before: Millis, limit: usize) -> Result<Vec<RunId>, StoreError> {
        self.prune_runs(before, limit)
    }

    fn prune_kept(&mut self, now: Millis, limit: usize) -> Result<Vec<RunId>, StoreError> {
        self.prune_kept_runs(now, limit)
    }

    fn incarnation(&mut self) -> Result<u32, StoreError> {
        column::small(self.meta("incarnation")?)
    }

    fn raise_incarnation(&mut self) -> Result<u32, StoreError> {
        let next = column::small(self.meta("incarnation")? + 1)?;
        write::Write::to(&self.connection).set_meta("incarnation", next.into())?;
        self.flushes += 1;
        Ok(next)
    }

    fn identity(&mut self) -> Result<i64, StoreError> {
        self.meta("identity")
    }

    fn is_unused(&mut self) -> Result<bool, StoreError> {
        let sql = "SELECT NOT EXISTS (SELECT 1 FROM runs) \
                   AND NOT EXISTS (SELECT 1 FROM tombstones)";
        let found = rows::one(&self.connection, sql, [], rows::read_number)?;
        Ok(found == Some(1))
    }

    fn probe(&mut self) -> Result<(), StoreError> {
        // Another number each time: SQLite writes no page that stays the same.
        let next = self.meta("probes")?.wrapping_add(1);
        write::Write::to(&self.connection).set_meta("probes", next)?;
        self.flushes += 1;
        Ok(())
    }

    fn newest_moment(&mut self) -> Result<Millis, StoreError> {
        Ok(self.newest)
    }

    fn wakeups(&mut self) -> Option<Wakeups> {
        None
    }

    fn flushes(&self) -> u64 {
        self.flushes
    }
}

fn system_clock() -> Millis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    Millis(since_epoch.map_or(0, |since| since.as_millis() as i64))
}
