//! The reading side: a few read-only connections, one short read transaction per call, so that no
//! reader keeps the log from starting over. Credentials are looked up through a connection of their
//! own: who asks is known however long others read. The queue is the writer's, in memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use delta_core::group::Members;
use delta_core::{AttemptId, Digest, JobId, Lease, Run, RunId, RunState};
use rusqlite::{Connection, ToSql, params};

use super::connection::{open_reader, store_error};
use super::rows::columns;
use super::side_tables::{SharedConnection, SqliteSideTables};
use super::{Gauges, rows};
use crate::StoreError;
use crate::codec::{column, corrupt};
use crate::doctor::{Integrity, TOLD_FAULTS};
use crate::events::Unfolding;
use crate::index::Index;
use crate::read::{
    JobRows, QueueDepth, Reader, RunFilter, RunKind, RunRows, StoreStats, StoredEvent,
};

/// Connections for reading: calls are short, and two cores answer no more than this at a time.
const READERS: usize = 4;

#[derive(Debug)]
pub struct SqliteReader {
    readers: Vec<Mutex<Connection>>,
    next: AtomicUsize,
    /// For looking credentials up, and for nothing else.
    lookup: Mutex<Connection>,
    path: PathBuf,
    gauges: Arc<Gauges>,
    /// The writer's: the queue is in memory only.
    index: Arc<Mutex<Index>>,
    /// Closed after those above, in the order of the fields: whoever closes the file last empties
    /// its log into it, and a connection that only reads cannot.
    _closed_last: SharedConnection,
}

impl SqliteReader {
    pub(super) fn open(
        path: &Path,
        gauges: Arc<Gauges>,
        index: Arc<Mutex<Index>>,
        tables: &SqliteSideTables,
    ) -> Result<SqliteReader, StoreError> {
        let reader = |_| open_reader(path).map(Mutex::new);
        Ok(SqliteReader {
            readers: (0..READERS).map(reader).collect::<Result<_, _>>()?,
            next: AtomicUsize::new(0),
            lookup: Mutex::new(open_reader(path)?),
            path: path.to_path_buf(),
            gauges,
            index,
            _closed_last: tables.connection(),
        })
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that is free, or the next in turn.
    pub(super) fn reader(&self) -> MutexGuard<'_, Connection> {
        let start = self.next.fetch_add(1, Relaxed);
        for n in 0..READERS {
            match self.readers[(start + n) % READERS].try_lock() {
                Ok(free) => return free,
                Err(TryLockError::Poisoned(free)) => return free.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let turn = self.readers[start % READERS].lock();
        turn.unwrap_or_else(PoisonError::into_inner)
    }

    /// Several statements that see one moment.
    fn snapshot<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let connection = self.reader();
        let transaction = connection.unchecked_transaction().map_err(store_error)?;
        read(&transaction)
    }

    /// The connection for looking credentials up.
    pub(super) fn lookup(&self) -> MutexGuard<'_, Connection> {
        self.lookup.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader for SqliteReader {
    fn run(&self, id: RunId) -> Result<Option<RunRows>, StoreError> {
        self.snapshot(|c| {
            let Some(run) = rows::run(c, id)? else {
                return Ok(None);
            };
            let sql = concat!(
                "SELECT ",
                columns!(job),
                " FROM jobs WHERE run_id = ?1 ORDER BY job"
            );
            let found = rows::all(c, sql, [column::run_bytes(id)], rows::read_job)?;
            let mut jobs = Vec::with_capacity(found.len());
            for job in found {
                let current = rows::attempt(c, job.current())?.ok_or_else(|| {
                    corrupt("a job", format!("{} has no current attempt", job.id))
                })?;
                jobs.push((job, current));
            }
            let version = rows::tip(c, id)?.version;
            Ok(Some(RunRows { run, version, jobs }))
        })
    }

    fn job(&self, id: JobId) -> Result<Option<JobRows>, StoreError> {
        self.snapshot(|c| {
            let (Some(run), Some(job)) = (rows::run(c, id.run)?, rows::job(c, id)?) else {
                return Ok(None);
            };
            let key = params![column::run_bytes(id.run), id.n];
            let sql = concat!(
                "SELECT ",
                columns!(attempt),
                ", ",
                columns!(lease),
                " FROM attempts WHERE run_id = ?1 AND job = ?2 ORDER BY attempt"
            );
            let attempts = rows::all(c, sql, key, rows::read_attempt)?;
            Ok(Some(JobRows {
                run,
                job,
                attempts,
                past_leases: past_leases(c, id)?,
            }))
        })
    }

    fn runs(&self, filter: &RunFilter, limit: usize) -> Result<Vec<Run>, StoreError> {
        let (sql, values) = runs_query(filter, limit);
        let values: Vec<&dyn ToSql> = values.iter().map(|value| &**value).collect();
        rows::all(&self.reader(), &sql, &values[..], rows::read_run)
    }

    fn events(&self, id: RunId, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        let mut unfolding = Unfolding::new(after, limit);
        let run = column::run_bytes(id);
        self.snapshot(|c| {
            // The row that holds the first event asked for, and the one before it.
            let from = "SELECT min(first) FROM (SELECT first FROM events \
                        WHERE run_id = ?1 AND first <= ?2 ORDER BY first DESC LIMIT 2)";
            let key = params![run, clamped(after.saturating_add(1))];
            let from: Option<i64> =
                rows::one(c, from, key, |row| row.get(0).map_err(store_error))?.flatten();
            let sql = "SELECT run_id, first, records, at, hash, record FROM events \
                       WHERE run_id = ?1 AND first >= ?2 ORDER BY first";
            let mut statement = c.prepare_cached(sql).map_err(store_error)?;
            let mut found = statement.query(params![run, from]).map_err(store_error)?;
            while !unfolding.is_full()
                && let Some(row) = found.next().map_err(store_error)?
            {
                unfolding.add(&rows::read_events(row)?);
            }
            Ok(())
        })?;
        Ok(unfolding.events)
    }

    fn spec(&self, id: JobId) -> Result<Option<Arc<str>>, StoreError> {
        rows::spec(&self.reader(), id)
    }

    fn queue(&self) -> Result<Vec<QueueDepth>, StoreError> {
        Ok(self.index().depths())
    }

    fn ahead(&self, match_key: &str, order_key: i64) -> Result<u64, StoreError> {
        Ok(self.index().ahead(match_key, order_key))
    }

    fn group(&self, key: &Digest) -> Result<Members, StoreError> {
        Ok(self.index().group(key))
    }

    fn run_ids(&self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, StoreError> {
        let sql = "SELECT run_id FROM runs WHERE run_id > ?1 ORDER BY run_id LIMIT ?2";
        // An empty blob sorts before every id.
        let after = after.map_or(Vec::new(), |id| column::run_bytes(id).to_vec());
        let key = params![after, limit as i64];
        rows::all(&self.reader(), sql, key, rows::read_run_id)
    }

    fn pruned(&self, among: &[RunId]) -> Result<Vec<RunId>, StoreError> {
        let sql = "SELECT run_id FROM tombstones WHERE run_id = ?1";
        let reader = self.reader();
        let find =
            |id: &RunId| rows::one(&reader, sql, [column::run_bytes(*id)], rows::read_run_id);
        among.iter().filter_map(|id| find(id).transpose()).collect()
    }

    fn integrity(&self, progress: &mut dyn FnMut(&str)) -> Result<Integrity, StoreError> {
        progress("every page and index of the file");
        // Another connection: what the others have read stays in their memory, whatever the disk
        // says, and this one is at it for long.
        let connection = open_reader(&self.path)?;
        let mut found = Integrity {
            checked: "SQLite looked at every page and index of its file".to_owned(),
            ..Integrity::default()
        };
        let most = TOLD_FAULTS + 1;
        let asked = connection.prepare(&format!("PRAGMA integrity_check({most})"));
        let said = asked.and_then(|mut asked| {
            let lines = asked.query_map([], |row| row.get::<_, String>(0))?;
            lines.collect::<Result<Vec<_>, _>>()
        });
        match said.map_err(store_error) {
            Ok(lines) => {
                let faults = lines.into_iter().filter(|line| line != "ok");
                faults.for_each(|line| found.fault(line));
            }
            Err(StoreError::Corrupt(why) | StoreError::Failing(why)) => found.fault(why),
            Err(other) => return Err(other),
        }
        Ok(found)
    }

    fn ping(&self) -> Result<(), StoreError> {
        rows::one(&self.reader(), "SELECT 1", [], rows::read_number).map(drop)
    }

    fn stats(&self) -> Result<StoreStats, StoreError> {
        let log = self.path.with_extension("db-wal");
        Ok(StoreStats {
            runs: self.gauges.runs.load(Relaxed),
            queued: self.gauges.queued.load(Relaxed),
            leased: self.gauges.leased.load(Relaxed),
            wal_bytes: log.metadata().map_or(0, |found| found.len()),
        })
    }
}

fn past_leases(c: &Connection, id: JobId) -> Result<Vec<(AttemptId, Lease)>, StoreError> {
    let sql = concat!(
        "SELECT run_id, job, attempt, ",
        columns!(lease),
        " FROM past_leases WHERE run_id = ?1 AND job = ?2 ORDER BY attempt, lease_epoch"
    );
    let key = params![column::run_bytes(id.run), id.n];
    rows::all(c, sql, key, rows::read_past_lease)
}

fn runs_query(filter: &RunFilter, limit: usize) -> (String, Vec<Box<dyn ToSql>>) {
    let mut sql = String::from(concat!("SELECT ", columns!(run), " FROM runs WHERE true"));
    let mut values: Vec<Box<dyn ToSql>> = Vec::new();
    let mut add = |condition: &str, value: Box<dyn ToSql>| {
        values.push(value);
        sql.push_str(&format!(" AND {condition} ?{}", values.len()));
    };
    if let Some(before) = filter.before {
        add("run_id <", Box::new(column::run_bytes(before)));
    }
    if let Some(state) = filter.state {
        add("state =", Box::new(state.name()));
    }
    if let Some(outcome) = filter.outcome {
        add("outcome =", Box::new(outcome.name()));
    }
    let texts = [
        ("repository =", &filter.repository),
        ("git_ref =", &filter.git_ref),
        ("commit_id =", &filter.commit),
        ("queue =", &filter.queue),
    ];
    for (condition, wanted) in texts {
        if let Some(wanted) = wanted {
            add(condition, Box::new(wanted.to_string()));
        }
    }
    if let Some(old) = filter.rerun_of {
        add("rerun_of =", Box::new(old.to_string()));
    }
    // What is true of all these runs anyway lets SQLite see that a partial index holds them.
    sql.push_str(match filter.kind {
        RunKind::Any => "",
        RunKind::Plain => " AND queue IS NULL",
        RunKind::Functions => " AND queue IS NOT NULL",
        RunKind::DeadLetters => {
            " AND queue IS NOT NULL AND (outcome = 'FAILED' OR outcome = 'TIMEOUT') \
             AND state <> 'REPORTED' AND live_jobs = 0"
        }
    });
    let mut add = |condition: &str, value: Box<dyn ToSql>| {
        values.push(value);
        sql.push_str(&format!(" AND {condition} ?{}", values.len()));
    };
    add("true ORDER BY run_id DESC LIMIT", Box::new(limit as i64));
    let among = match (filter.state, filter.outcome) {
        (Some(state), _) if !state.has_ended() => "(ended_at IS NULL OR live_jobs > 0)",
        (_, Some(outcome)) if outcome != RunState::Success => "outcome <> 'SUCCESS'",
        _ => "true",
    };
    sql = sql.replacen("WHERE true", &format!("WHERE {among}"), 1);
    (sql, values)
}

/// Versions above what SQL can count do not exist.
fn clamped(version: u64) -> i64 {
    i64::try_from(version).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credential::CredentialReader as _;

    /// How SQLite would carry a list out.
    fn plan(reader: &SqliteReader, filter: &RunFilter) -> String {
        let (sql, values) = runs_query(filter, 10);
        let values: Vec<&dyn ToSql> = values.iter().map(|value| &**value).collect();
        let connection = reader.reader();
        let mut statement = connection
            .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
            .unwrap();
        let steps: Vec<String> = statement
            .query_map(&values[..], |row| row.get::<_, String>(3))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        steps.join("\n")
    }

    #[test]
    fn lists_of_people_are_served_by_an_index_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let (_store, reader, _) = super::super::open(dir.path()).unwrap();
        let outcome = |outcome| RunFilter {
            outcome: Some(outcome),
            ..RunFilter::default()
        };
        let by_ref = RunFilter {
            git_ref: Some("main".into()),
            ..RunFilter::default()
        };
        let live = RunFilter {
            state: Some(RunState::Queued),
            ..RunFilter::default()
        };
        for (filter, index) in [
            (outcome(RunState::Failed), "runs_unhappy"),
            (outcome(RunState::Timeout), "runs_unhappy"),
            (by_ref, "runs_ref"),
            (live, "runs_live"),
        ] {
            let plan = plan(&reader, &filter);
            assert!(plan.contains(index), "{filter:?}: {plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{filter:?}: {plan}");
        }
    }

    #[test]
    fn credentials_are_looked_up_while_every_other_connection_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        let (_store, reader, _) = super::super::open(dir.path()).unwrap();
        let busy: Vec<_> = reader
            .readers
            .iter()
            .map(|reader| reader.lock().unwrap())
            .collect();
        assert_eq!(reader.credential(&[7; 32]).unwrap(), None);
        drop(busy);
    }
}
