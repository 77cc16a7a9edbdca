//! The connections of everybody but the writer: a few for pages and for the tables beside the core,
//! and some for credentials alone.
//!
//! A call waits for a free connection and for its answer, both with an end. It may be made from
//! any thread that may block.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::connect::{ANSWER_DEADLINE, Call, Planning, Session, Target, bounded};
use super::error::Trouble;
use super::schema;
use super::sql::Sql;
use crate::StoreError;

/// Connections for reading. A page takes about a millisecond, so four serve thousands of pages a
/// second, and a server keeps well under the hundred connections PostgreSQL allows by default.
const CONNECTIONS: usize = 4;

/// Connections for credentials alone: who asks is known however long others read.
const CREDENTIAL_CONNECTIONS: usize = 2;

/// The connections of the reading side and of the tables beside it.
pub(super) struct Pools {
    /// Taken only by drop.
    runtime: Option<Runtime>,
    target: Target,
    pub(super) pages: Pool,
    /// Waits for nothing but other look-ups of credentials.
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

    /// Takes every connection, as long as they are held.
    #[cfg(test)]
    pub(super) fn take_all(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        let all = u32::try_from(CONNECTIONS).ok()?;
        self.free.try_acquire_many(all).ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        // A list of connections has no state to spoil.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pools {
    pub(super) fn new(target: Target) -> Result<Arc<Pools>, StoreError> {
        let mut builder = Builder::new_multi_thread();
        builder
            .worker_threads(1)
            .thread_name("store-read")
            .enable_all();
        let runtime = builder
            .build()
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Arc::new(Pools {
            runtime: Some(runtime),
            target,
            pages: Pool::of(CONNECTIONS),
            credentials: Pool::of(CREDENTIAL_CONNECTIONS),
        }))
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
    pub(super) fn snapshot(&self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>, StoreError> {
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

impl Drop for Pools {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Never waits, so that either side may be dropped anywhere.
            runtime.shutdown_background();
        }
    }
}
