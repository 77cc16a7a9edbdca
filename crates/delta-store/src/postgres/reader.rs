//! The reading side: a few connections shared by all callers, each call one page.
//!
//! A call waits for a free connection and for its answer, both with an end. It may be made from
//! any thread that may block.

use std::sync::{Arc, Mutex, PoisonError};

use delta_core::group::Members;
use delta_core::{Digest, Job, JobId, Millis, Run, RunId};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::connect::{ANSWER_DEADLINE, Call, Planning, Session, Target, bounded};
use super::error::Trouble;
use super::integrity;
use super::rows;
use super::schema;
use super::sql::Sql;
use super::sweep::read_spec;
use super::value::{Fields, escape, uuid};
use crate::StoreError;
use crate::codec::corrupt;
use crate::doctor::Integrity;
use crate::events::{EventRow, Unfolding};
use crate::read::{
    Credential, JobRows, QueueDepth, Reader, RunFilter, RunKind, RunRows, StoreStats, StoredEvent,
};

/// Connections for reading. A page takes about a millisecond, so four serve thousands of pages a
/// second, and a server keeps well under the hundred connections PostgreSQL allows by default.
const CONNECTIONS: usize = 4;

/// Connections for credentials alone: who asks is known however long others read.
const CREDENTIAL_CONNECTIONS: usize = 2;

/// The reading side. See [`super::open`].
pub struct PgReader {
    /// Taken only by drop.
    runtime: Option<Runtime>,
    target: Target,
    pub(super) pages: Pool,
    pub(super) credentials: Pool,
}

/// Connections that wait for work, and how many there may be.
pub(super) struct Pool {
    idle: Mutex<Vec<Session>>,
    free: Semaphore,
}

impl Pool {
    fn of(connections: usize) -> Pool {
        Pool {
            idle: Mutex::default(),
            free: Semaphore::new(connections),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        // A list of connections has no state to spoil.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PgReader {
    pub(super) fn new(target: Target) -> Result<PgReader, StoreError> {
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(1)
            .thread_name("store-read")
            .enable_all();
        let runtime = builder.build();
        let runtime = runtime.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(PgReader {
            runtime: Some(runtime),
            target,
            pages: Pool::of(CONNECTIONS),
            credentials: Pool::of(CREDENTIAL_CONNECTIONS),
        })
    }

    pub(super) fn check_schema(&self) -> Result<(), StoreError> {
        let runtime = self.runtime.as_ref().expect("taken only by drop");
        schema::check(runtime, &self.target)
    }

    /// Runs `work` on a free connection, within the deadline. An idle connection may have died:
    /// then a new one is tried before giving up, which is why `work` must be repeatable.
    pub(super) fn ask<T>(
        &self,
        pool: &Pool,
        work: impl AsyncFn(&Session) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let runtime = self.runtime.as_ref().expect("taken only by drop");
        let answer =
            async { tokio::time::timeout(ANSWER_DEADLINE, self.on_a_session(pool, work)).await };
        match runtime.block_on(answer) {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Trouble::Silent.into()),
        }
    }

    /// Runs `work` on a connection of its own, however long it takes.
    pub(super) fn alone<T>(
        &self,
        planning: Planning,
        work: impl AsyncFnOnce(&Session) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let runtime = self.runtime.as_ref().expect("taken only by drop");
        runtime.block_on(async {
            let session = self.target.open(planning).await?;
            work(&session).await
        })
    }

    async fn on_a_session<T>(
        &self,
        pool: &Pool,
        work: impl AsyncFn(&Session) -> Result<T, Error>,
    ) -> Result<T, Trouble> {
        // Never closed, so that this is about waiting only.
        let _free = pool.free.acquire().await;
        let idle = pool.lock().pop();
        if let Some(session) = idle {
            let answer = bounded(work(&session)).await;
            if !answer.as_ref().is_err_and(Trouble::ends_session) {
                pool.lock().push(session);
                return answer;
            }
            // The others are of the same age.
            pool.lock().clear();
        }
        let session = self.target.open(Planning::Each).await?;
        let answer = bounded(work(&session)).await;
        if !answer.as_ref().is_err_and(Trouble::ends_session) {
            pool.lock().push(session);
        }
        answer
    }

    pub(super) fn rows(
        &self,
        sql: Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        self.ask(&self.pages, async |session: &Session| {
            session.rows(sql, params).await
        })
    }

    /// Several queries that see one moment.
    fn snapshot(&self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>, StoreError> {
        const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        self.ask(&self.pages, async |session: &Session| {
            let (begun, rows, ended) = tokio::join!(
                biased;
                session.client.batch_execute(BEGIN),
                session.ask(calls),
                session.client.batch_execute("COMMIT"),
            );
            begun?;
            let rows = rows?;
            ended.map(|()| rows)
        })
    }
}

impl Reader for PgReader {
    fn run(&self, id: RunId) -> Result<Option<RunRows>, StoreError> {
        let id = uuid(id);
        let found = self.snapshot(&[(Sql::ReadRun, vec![&id]), (Sql::ReadRunJobs, vec![&id])])?;
        let Some(row) = found[0].first() else {
            return Ok(None);
        };
        let mut fields = Fields::of(row);
        let run = rows::read_run(&mut fields)?;
        let version = fields.opt_int()?.unwrap_or(0) as u64;
        let mut jobs = Vec::with_capacity(found[1].len());
        for row in &found[1] {
            let mut fields = Fields::of(row);
            jobs.push((
                rows::read_job(&mut fields)?,
                rows::read_attempt(&mut fields)?,
            ));
        }
        Ok(Some(RunRows { run, version, jobs }))
    }

    fn job(&self, id: JobId) -> Result<Option<JobRows>, StoreError> {
        let (run, n) = (uuid(id.run), i64::from(id.n));
        let found = self.snapshot(&[
            (Sql::ReadJobRun, vec![&run]),
            (Sql::ReadJob, vec![&run, &n]),
            (Sql::ReadJobAttempts, vec![&run, &n]),
            (Sql::ReadJobLeases, vec![&run, &n]),
        ])?;
        let (Some(run), Some(job)) = (found[0].first(), found[1].first()) else {
            return Ok(None);
        };
        let run: Run = rows::read_run(&mut Fields::of(run))?;
        let job: Job = rows::read_job(&mut Fields::of(job))?;
        let attempts = found[2]
            .iter()
            .map(|row| rows::read_attempt(&mut Fields::of(row)));
        let mut past_leases = Vec::with_capacity(found[3].len());
        for row in &found[3] {
            let mut fields = Fields::of(row);
            let id = fields.attempt()?;
            past_leases.extend(rows::read_lease(&mut fields)?.map(|lease| (id, lease)));
        }
        Ok(Some(JobRows {
            run,
            job,
            attempts: attempts.collect::<Result<_, _>>()?,
            past_leases,
        }))
    }

    fn runs(&self, filter: &RunFilter, limit: usize) -> Result<Vec<Run>, StoreError> {
        let before = filter.before.map(uuid);
        let state = filter.state.map(|state| state.name());
        // Only a state that can be had both ways leaves the index to the ids.
        let ended = filter.state.map(|state| state.has_ended());
        let outcome = filter.outcome.map(|outcome| outcome.name());
        let [repository, git_ref, commit] = [&filter.repository, &filter.git_ref, &filter.commit]
            .map(|text| text.as_deref().map(escape));
        let queue = filter.queue.as_deref().map(escape);
        let functions = match filter.kind {
            RunKind::Any => None,
            RunKind::Plain => Some(false),
            RunKind::Functions | RunKind::DeadLetters => Some(true),
        };
        let dead = filter.kind == RunKind::DeadLetters;
        let rerun_of = filter.rerun_of.map(|id| id.to_string());
        let most = limit as i64;
        let found = self.rows(
            Sql::ListRuns,
            &[
                &before,
                &state,
                &ended,
                &outcome,
                &repository,
                &git_ref,
                &commit,
                &queue,
                &functions,
                &dead,
                &rerun_of,
                &most,
            ],
        )?;
        found
            .iter()
            .map(|row| rows::read_run(&mut Fields::of(row)))
            .collect()
    }

    fn events(&self, id: RunId, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        // Versions have no gaps, so the last event of the page is known before it is read.
        let first = i64::try_from(after.saturating_add(1)).unwrap_or(i64::MAX);
        let last = i64::try_from(after.saturating_add(limit as u64)).unwrap_or(i64::MAX);
        let found = self.rows(Sql::Events, &[&uuid(id), &first, &last])?;
        let mut unfolding = Unfolding::new(after, limit);
        for row in &found {
            let mut fields = Fields::of(row);
            unfolding.add(&EventRow {
                run: fields.run()?,
                first: fields.unsigned()?,
                records: fields.small()?,
                at: fields.millis()?,
                hash: fields.digest()?,
                bytes: fields.bytes()?.to_vec(),
            });
        }
        Ok(unfolding.events)
    }

    fn spec(&self, id: JobId) -> Result<Option<Arc<str>>, StoreError> {
        let found = self.rows(Sql::Spec, &[&uuid(id.run), &i64::from(id.n)])?;
        let Some(row) = found.first() else {
            return Ok(None);
        };
        Fields::of(row).opt_bytes()?.map(read_spec).transpose()
    }

    fn queue(&self) -> Result<Vec<QueueDepth>, StoreError> {
        let found = self.rows(Sql::QueueDepths, &[])?;
        let read = |row| -> Result<QueueDepth, StoreError> {
            let mut fields = Fields::of(row);
            Ok(QueueDepth {
                match_key: fields.text()?,
                attempts: fields.unsigned()?,
                oldest: fields.millis()?,
            })
        };
        found.iter().map(read).collect()
    }

    fn ahead(&self, match_key: &str, order_key: i64) -> Result<u64, StoreError> {
        let found = self.rows(Sql::Ahead, &[&escape(match_key), &order_key])?;
        let row = found
            .first()
            .ok_or_else(|| corrupt("the queue", "it has no count"))?;
        Fields::of(row).unsigned()
    }

    fn group(&self, key: &Digest) -> Result<Members, StoreError> {
        let found = self.rows(Sql::Line, &[&vec![key.to_vec()]])?;
        let members = found.iter().map(|row| {
            let (_, member) = rows::read_member(&mut Fields::of(row))?;
            Ok((member.id, member))
        });
        members.collect()
    }

    fn run_ids(&self, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, StoreError> {
        let found = self.rows(Sql::RunIds, &[&after.map(uuid), &(limit as i64)])?;
        found.iter().map(|row| Fields::of(row).run()).collect()
    }

    fn pruned(&self, among: &[RunId]) -> Result<Vec<RunId>, StoreError> {
        let among: Vec<uuid::Uuid> = among.iter().map(|id| uuid(*id)).collect();
        let found = self.rows(Sql::Pruned, &[&among])?;
        found.iter().map(|row| Fields::of(row).run()).collect()
    }

    fn credential(&self, hash: &Digest) -> Result<Option<Credential>, StoreError> {
        self.credential_by_hash(hash)
    }

    fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        self.all_credentials()
    }

    fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.write_credential(credential)
    }

    fn revoke_credential(&self, id: &str, at: Millis) -> Result<bool, StoreError> {
        self.mark_revoked(id, at)
    }

    fn exchange_enrolment(
        &self,
        id: &str,
        at: Millis,
        fresh: &Credential,
    ) -> Result<bool, StoreError> {
        self.exchange(id, at, fresh)
    }

    fn integrity(&self, progress: &mut dyn FnMut(&str)) -> Result<Integrity, StoreError> {
        integrity::look(self, progress)
    }

    fn ping(&self) -> Result<(), StoreError> {
        self.rows(Sql::Ping, &[]).map(|_| ())
    }

    fn stats(&self) -> Result<StoreStats, StoreError> {
        let found = self.rows(Sql::Stats, &[])?;
        let row = found
            .first()
            .ok_or_else(|| corrupt("the store", "it has no tables"))?;
        let mut fields = Fields::of(row);
        Ok(StoreStats {
            runs: fields.unsigned()?,
            queued: fields.unsigned()?,
            leased: fields.unsigned()?,
            wal_bytes: 0,
        })
    }
}

impl Drop for PgReader {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Never waits, so that a reader may be dropped anywhere.
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use delta_testkit::postgres::fresh_database;

    use super::*;

    #[test]
    fn credentials_are_looked_up_while_every_other_connection_is_busy() {
        let database = fresh_database().expect("a database");
        let (_store, reader) = crate::postgres::open(&database.url).expect("opens");
        let busy = reader.pages.free.try_acquire_many(CONNECTIONS as u32);
        assert!(busy.is_ok());
        assert_eq!(reader.credential(&[7; 32]).expect("an answer"), None);
    }
}
