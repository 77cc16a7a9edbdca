//! What duties ask of the store: what is due, what is held, what can go.

use std::collections::BTreeMap;
use std::sync::Arc;

use delta_core::group::Members;
use delta_core::{AttemptId, Digest, JobId, Millis, RunId};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use super::connect::Session;
use super::error::Trouble;
use super::rows::read_member;
use super::sql::Sql;
use super::store::PgStore;
use super::value::{Fields, uuid};
use crate::codec::{column, corrupt};
use crate::index::turns_due;
use crate::{Due, StoreError};

/// Tables with rows of a run, children first. A run whose jobs are all resolved has nothing in the
/// queue and no holder.
const OF_A_RUN: [&str; 11] = [
    "lines",
    "plans",
    "reports",
    "approvals",
    "results",
    "result_claims",
    "delayed",
    "past_leases",
    "attempts",
    "jobs",
    "events",
];

impl PgStore {
    pub(super) fn find_due(&mut self, now: Millis, limit: usize) -> Result<Vec<Due>, StoreError> {
        // A sweep looks at the queue again, whatever was heard of it.
        self.memory.forget();
        let (now, most) = (now.0, limit as i64);
        let found = self.anywhere(async |session: &Session| {
            let calls = [Sql::DueRuns, Sql::DueLeases, Sql::DueDelayed];
            let call = |sql| (sql, vec![&now as _, &most as _]);
            session.ask(&calls.map(call)).await
        })?;
        let mut due = Vec::new();
        for (at, rows) in found.iter().enumerate() {
            for row in rows {
                let mut fields = Fields::of(row);
                let moment = fields.millis()?;
                due.push(match at {
                    0 => (moment, Due::Run(fields.run()?)),
                    _ => (moment, Due::Attempt(fields.attempt()?)),
                });
            }
        }
        due.extend(turns_due(self.find_lines()?.values(), limit));
        due.sort_unstable();
        due.truncate(limit);
        Ok(due.into_iter().map(|(_, due)| due).collect())
    }

    /// Groups in which somebody waits.
    fn find_lines(&mut self) -> Result<BTreeMap<Digest, Members>, StoreError> {
        let rows =
            self.anywhere(async |session: &Session| session.rows(Sql::DueLines, &[]).await)?;
        let mut groups: BTreeMap<Digest, Members> = BTreeMap::new();
        for row in &rows {
            let (key, member) = read_member(&mut Fields::of(row))?;
            groups.entry(key).or_default().insert(member.id, member);
        }
        Ok(groups)
    }

    pub(super) fn find_leased(&mut self) -> Result<Vec<AttemptId>, StoreError> {
        let rows = self.anywhere(async |session: &Session| session.rows(Sql::Leased, &[]).await)?;
        rows.iter().map(|row| Fields::of(row).attempt()).collect()
    }

    pub(super) fn find_specs(&mut self, jobs: &[JobId]) -> Result<Vec<Arc<str>>, StoreError> {
        let known = |id: &JobId| Some((*id, self.specs.get(*id)?));
        let mut found: BTreeMap<JobId, Arc<str>> = jobs.iter().filter_map(known).collect();
        let unknown: Vec<JobId> = jobs
            .iter()
            .copied()
            .filter(|id| !found.contains_key(id))
            .collect();
        if !unknown.is_empty() {
            self.read_specs(&unknown, &mut found)?;
        }
        let missing = |id: &JobId| corrupt("a job", format!("{id} has no spec"));
        let find = |id| found.get(id).cloned().ok_or_else(|| missing(id));
        jobs.iter().map(find).collect()
    }

    fn read_specs(
        &mut self,
        jobs: &[JobId],
        found: &mut BTreeMap<JobId, Arc<str>>,
    ) -> Result<(), StoreError> {
        let runs: Vec<Uuid> = jobs.iter().map(|id| uuid(id.run)).collect();
        let numbers: Vec<i64> = jobs.iter().map(|id| id.n.into()).collect();
        let rows = self.anywhere(async |session: &Session| {
            session.rows(Sql::Specs, &[&runs, &numbers]).await
        })?;
        for row in &rows {
            let mut fields = Fields::of(row);
            let id = fields.job()?;
            if let Some(bytes) = fields.opt_bytes()? {
                found.insert(id, read_spec(bytes)?);
            }
        }
        Ok(())
    }

    pub(super) fn find_newest_moment(&mut self) -> Result<Millis, StoreError> {
        let newest = async |session: &Session| session.rows(Sql::NewestMoment, &[]).await;
        first(&self.anywhere(newest)?)?
            .opt_millis()
            .map(Option::unwrap_or_default)
    }

    pub(super) fn read_incarnation(&mut self, text: &str) -> Result<u32, StoreError> {
        column::small(self.read_number(text)?)
    }

    /// One number, from a statement that is not asked often enough to be prepared.
    pub(super) fn read_number(&mut self, text: &str) -> Result<i64, StoreError> {
        let rows =
            self.anywhere(async |session: &Session| session.client.query(text, &[]).await)?;
        first(&rows)?.int()
    }

    /// A transaction of its own. When its answer is lost the server is asked what became of it, so
    /// that nobody forgets the logs of a run that is gone.
    pub(super) fn prune_runs(
        &mut self,
        before: Millis,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        self.delete_runs(OLD_RUNS, before, limit)
    }

    /// Runs that say themselves how long they are kept.
    pub(super) fn prune_kept_runs(
        &mut self,
        now: Millis,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        self.delete_runs(KEPT_RUNS, now, limit)
    }

    fn delete_runs(
        &mut self,
        which: &str,
        before: Millis,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        assert!(self.batch.is_none(), "a batch is open");
        let most = limit as i64;
        let begun = self.again_if_lost(async |session: &Session| {
            session.client.batch_execute("BEGIN").await?;
            session.client.query(which, &[&before.0, &most]).await
        });
        let rows = self.or_rollback(begun)?;
        let (mut ids, mut xid) = (Vec::with_capacity(rows.len()), String::new());
        for row in &rows {
            let mut fields = Fields::of(row);
            ids.push(fields.run()?);
            xid = fields.plain()?.to_owned();
        }
        let gone: Vec<Uuid> = ids.iter().map(|id| uuid(*id)).collect();
        let done = self.on_session(async |session: &Session| {
            if !gone.is_empty() {
                delete(session, &gone).await?;
            }
            session.client.batch_execute("COMMIT").await
        });
        match done {
            Err(trouble) if trouble.ends_session() && !ids.is_empty() => match self.ended(&xid)? {
                Some(true) => Ok(ids),
                _ => Err(trouble.into()),
            },
            other => self.or_rollback(other).map(|()| ids),
        }
    }

    fn or_rollback<T>(&mut self, answer: Result<T, Trouble>) -> Result<T, StoreError> {
        if answer.is_err() {
            let rolled_back = self.on_session(async |session: &Session| {
                session.client.batch_execute("ROLLBACK").await
            });
            if rolled_back.is_err() {
                self.drop_session();
            }
        }
        Ok(answer?)
    }
}

/// What is owed to a forge is not forgotten: here and below.
const OLD_RUNS: &str = "SELECT id, pg_current_xact_id()::text FROM runs \
     WHERE ended AND moment < $1 AND live_jobs = 0 AND (state = 'REPORTED' OR NOT EXISTS \
     (SELECT 1 FROM reports WHERE reports.run_id = runs.id)) ORDER BY moment, id LIMIT $2 \
     FOR UPDATE SKIP LOCKED";

const KEPT_RUNS: &str = "SELECT id, pg_current_xact_id()::text FROM runs \
     WHERE keep_until < $1 AND live_jobs = 0 AND (state = 'REPORTED' OR NOT EXISTS \
     (SELECT 1 FROM reports WHERE reports.run_id = runs.id)) ORDER BY keep_until, id LIMIT $2 \
     FOR UPDATE SKIP LOCKED";

const TOMBSTONES: &str = "INSERT INTO tombstones (project, run_id, version, hash) \
     SELECT r.project, r.id, e.version, e.hash FROM runs r, \
     LATERAL (SELECT first + records - 1 AS version, hash FROM events WHERE run_id = r.id \
              ORDER BY first DESC LIMIT 1) e \
     WHERE r.id = ANY ($1) ON CONFLICT (run_id) DO NOTHING";

async fn delete(session: &Session, runs: &Vec<Uuid>) -> Result<(), Error> {
    session.client.execute(TOMBSTONES, &[runs]).await?;
    for table in OF_A_RUN {
        let text = format!("DELETE FROM {table} WHERE run_id = ANY ($1)");
        session.client.execute(&text, &[runs]).await?;
    }
    session
        .client
        .execute("DELETE FROM runs WHERE id = ANY ($1)", &[runs])
        .await?;
    Ok(())
}

pub(super) fn read_spec(bytes: &[u8]) -> Result<Arc<str>, StoreError> {
    let text = std::str::from_utf8(bytes).map_err(|error| corrupt("a job spec", error))?;
    Ok(text.into())
}

fn first(rows: &[Row]) -> Result<Fields<'_>, StoreError> {
    let row = rows
        .first()
        .ok_or_else(|| corrupt("the store", "a row is missing"))?;
    Ok(Fields::of(row))
}
