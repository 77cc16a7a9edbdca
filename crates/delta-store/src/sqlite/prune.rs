//! Retention: whole runs go, and each leaves a tombstone that says where its chain ended.

use std::collections::BTreeSet;

use delta_core::{Millis, RunId};
use rusqlite::params;

use super::connection::store_error;
use super::{SqliteStore, rows, system_clock, write};
use crate::StoreError;
use crate::codec::column;

/// Every table that has rows of a run, the run itself last.
const TABLES: [&str; 12] = [
    "plans",
    "reports",
    "approvals",
    "results",
    "result_claims",
    "delayed",
    "past_leases",
    "attempts",
    "job_specs",
    "jobs",
    "events",
    "runs",
];

/// Its forge has heard of its end, or nobody is to hear of it: what is owed is not forgotten.
const OWES_NOTHING: &str = "(state = 'REPORTED' OR NOT EXISTS \
     (SELECT 1 FROM reports WHERE reports.run_id = runs.run_id))";

impl SqliteStore {
    pub(super) fn prune_runs(
        &mut self,
        before: Millis,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        let sql = format!(
            "SELECT run_id FROM runs INDEXED BY runs_ended \
             WHERE ended_at < ?1 AND live_jobs = 0 AND {OWES_NOTHING} \
             ORDER BY ended_at, run_id LIMIT ?2"
        );
        self.delete(&sql, before, limit)
    }

    /// Runs that say themselves how long they are kept.
    pub(super) fn prune_kept_runs(
        &mut self,
        now: Millis,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        let sql = format!(
            "SELECT run_id FROM runs INDEXED BY runs_kept \
             WHERE keep_until < ?1 AND live_jobs = 0 AND {OWES_NOTHING} \
             ORDER BY keep_until, run_id LIMIT ?2"
        );
        self.delete(&sql, now, limit)
    }

    fn delete(
        &mut self,
        sql: &str,
        before: Millis,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        let key = params![before.0, limit as i64];
        let old = rows::all(&self.connection, sql, key, rows::read_run_id)?;
        if old.is_empty() {
            return Ok(old);
        }
        let left = self.run_count.saturating_sub(old.len() as u64);
        // Immediate: a token may be written by another connection at this moment, and a transaction
        // that begins by reading cannot wait for it.
        let immediate = rusqlite::TransactionBehavior::Immediate;
        let transaction = rusqlite::Transaction::new_unchecked(&self.connection, immediate)
            .map_err(store_error)?;
        for &id in &old {
            self.bury(id)?;
        }
        write::Write::to(&self.connection).set_meta("runs", left as i64)?;
        transaction.commit().map_err(store_error)?;
        self.flushes += 1;
        self.run_count = left;
        self.forget(&old);
        Ok(old)
    }

    fn bury(&self, id: RunId) -> Result<(), StoreError> {
        let tip = rows::tip(&self.connection, id)?;
        let run = column::run_bytes(id);
        let execute = |sql: &str, values: &[&dyn rusqlite::ToSql]| {
            let mut statement = self.connection.prepare_cached(sql).map_err(store_error)?;
            statement.execute(values).map(drop).map_err(store_error)
        };
        execute(
            "INSERT INTO tombstones (run_id, project, version, hash, ended_at, deleted_at) \
             SELECT run_id, project, ?2, ?3, ended_at, ?4 FROM runs WHERE run_id = ?1",
            params![run, column::signed(tip.version), tip.hash, system_clock().0],
        )?;
        for table in TABLES {
            let sql = format!("DELETE FROM {table} WHERE run_id = ?1");
            execute(&sql, params![run])?;
        }
        Ok(())
    }

    fn forget(&mut self, gone: &[RunId]) {
        for &id in gone {
            self.index().forget_run(id);
            self.runs.remove(id);
            self.tips.remove(id);
        }
        let gone: BTreeSet<RunId> = gone.iter().copied().collect();
        self.specs.retain(|job| !gone.contains(&job.run));
        self.jobs.retain(|job| !gone.contains(&job.run));
        self.attempts
            .retain(|attempt| !gone.contains(&attempt.run()));
        self.show_gauges();
    }
}
