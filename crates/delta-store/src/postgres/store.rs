//! The writer: one connection, one batch at a time, driven on the caller's thread.
//!
//! A lost connection is made again by the next call that needs one, with a growing pause between
//! failures. Whatever happens, a call returns within its deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use delta_core::{Millis, RunId, Text, World};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Error, SimpleQueryMessage};
use uuid::Uuid;

use super::claim::QueueMemory;
use super::connect::{Planning, Session, Target, bounded};
use super::error::Trouble;
use super::listen::Listener;
use super::resolve::Sent;
use super::schema;
use crate::events::Tip;
use crate::specs::{CACHED_SPEC_BYTES, Specs};
use crate::{AttemptId, Claim, CommitError, Due, JobId, Store, StoreError, Wakeups, Want, Writes};

/// The first pause after a failed connection, doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// A database that comes back is found within a second; one that does not is not hammered.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The writing side. See [`super::open`].
pub struct PgStore {
    /// Taken only by drop.
    runtime: Option<Runtime>,
    pub(super) target: Target,
    session: Option<Session>,
    pub(super) batch: Option<Batch>,
    /// The last commit that was sent, for [`Store::resolve_unknown`].
    pub(super) sent: Option<Sent>,
    pub(super) memory: QueueMemory,
    pub(super) specs: Specs,
    pub(super) listener: Listener,
    /// Names this writer in its notifications.
    pub(super) name: String,
    pause: Duration,
    not_before: Instant,
    pub(super) flushes: u64,
}

/// An open transaction.
pub(super) struct Batch {
    /// Its transaction id, by which the server knows later whether it was committed.
    pub(super) xid: String,
    /// Runs this batch has locked.
    pub(super) locked: BTreeMap<RunId, Locked>,
    /// Runs it has looked for and not found.
    pub(super) absent: BTreeSet<RunId>,
}

pub(super) struct Locked {
    pub(super) tip: Tip,
    pub(super) project: Text,
}

impl PgStore {
    pub(super) fn new(target: Target) -> Result<PgStore, StoreError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(PgStore {
            runtime: Some(runtime),
            target,
            session: None,
            batch: None,
            sent: None,
            memory: QueueMemory::default(),
            specs: Specs::new(CACHED_SPEC_BYTES),
            listener: Listener::default(),
            name: Uuid::new_v4().to_string(),
            pause: FIRST_PAUSE,
            not_before: Instant::now(),
            flushes: 0,
        })
    }

    pub(super) fn migrate(&mut self) -> Result<(), StoreError> {
        let runtime = self.runtime.as_ref().expect("taken only by drop");
        schema::migrate(runtime, &self.target)
    }

    /// Runs `work` on the session there is; a lost session is dropped, and its batch with it.
    pub(super) fn on_session<T>(
        &mut self,
        work: impl AsyncFnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, Trouble> {
        let Some(session) = self.session.take() else {
            return Err(Trouble::Lost("the connection was lost".into()));
        };
        let runtime = self.runtime.as_ref().expect("taken only by drop");
        let answer = runtime.block_on(bounded(work(&session)));
        if answer.as_ref().is_err_and(Trouble::ends_session) {
            self.batch = None;
        } else {
            self.session = Some(session);
        }
        answer
    }

    /// Runs `work` in the open batch. A batch that was lost stays lost: the caller rolls back.
    pub(super) fn in_batch<T>(
        &mut self,
        work: impl AsyncFnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        if self.batch.is_none() {
            return Err(StoreError::Unavailable("the batch was lost".into()));
        }
        Ok(self.on_session(work)?)
    }

    /// Runs `work`, which may be repeated, inside the batch if one is open.
    pub(super) fn anywhere<T>(
        &mut self,
        work: impl AsyncFn(&Session) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        if self.batch.is_some() {
            return self.in_batch(async |session: &Session| work(session).await);
        }
        Ok(self.again_if_lost(work)?)
    }

    /// A session may have died of old age: a second one is tried before giving up.
    pub(super) fn again_if_lost<T>(
        &mut self,
        work: impl AsyncFn(&Session) -> Result<T, Error>,
    ) -> Result<T, Trouble> {
        if self.session.is_some() {
            match self.on_session(async |session: &Session| work(session).await) {
                Err(Trouble::Lost(_)) => {}
                other => return other,
            }
        }
        self.connect()?;
        self.on_session(async |session: &Session| work(session).await)
    }

    pub(super) fn connect(&mut self) -> Result<(), Trouble> {
        if self.session.is_some() {
            return Ok(());
        }
        if Instant::now() < self.not_before {
            return Err(Trouble::Lost(
                "the database could not be reached just now".into(),
            ));
        }
        let runtime = self.runtime.as_ref().expect("taken only by drop");
        match runtime.block_on(self.target.open(Planning::ByKey)) {
            Ok(session) => {
                self.session = Some(session);
                self.pause = FIRST_PAUSE;
                Ok(())
            }
            Err(trouble) => {
                self.not_before = Instant::now() + self.pause;
                self.pause = (self.pause * 2).min(LONGEST_PAUSE);
                tracing::warn!(?trouble, "PostgreSQL cannot be reached");
                Err(trouble)
            }
        }
    }

    pub(super) fn drop_session(&mut self) {
        self.session = None;
    }

    /// Lets other work of this writer's thread go on for a moment.
    pub(super) fn sleep(&self, time: Duration) {
        let runtime = self.runtime.as_ref().expect("taken only by drop");
        runtime.block_on(async { tokio::time::sleep(time).await });
    }
}

/// One message, one round trip: the store's clock and the transaction's name come with BEGIN.
const BEGIN: &str = "BEGIN; SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8, \
     pg_current_xact_id()::text";

async fn begin(session: &Session) -> Result<(Option<i64>, Option<String>), Error> {
    let answer = session.client.simple_query(BEGIN).await?;
    let row = answer.into_iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let field = |at| row.as_ref().and_then(|row| row.get(at));
    Ok((
        field(0).and_then(|text| text.parse().ok()),
        field(1).map(str::to_owned),
    ))
}

impl Store for PgStore {
    fn begin(&mut self) -> Result<Millis, StoreError> {
        assert!(self.batch.is_none(), "a batch is open already");
        let (Some(now), Some(xid)) = self.again_if_lost(begin)? else {
            return Err(StoreError::Corrupt(
                "the server's clock cannot be read".into(),
            ));
        };
        self.sent = None;
        self.batch = Some(Batch {
            xid,
            locked: BTreeMap::new(),
            absent: BTreeSet::new(),
        });
        Ok(Millis(now))
    }

    fn load(&mut self, wants: &BTreeSet<Want>, world: &mut World) -> Result<(), StoreError> {
        self.load_wants(wants, world)
    }

    fn claim(&mut self, claim: &Claim, world: &mut World) -> Result<Vec<AttemptId>, StoreError> {
        self.claim_queued(claim, world)
    }

    fn match_keys(&mut self) -> Result<Vec<Text>, StoreError> {
        self.queued_keys()
    }

    fn commit(&mut self, writes: &Writes) -> Result<(), CommitError> {
        self.commit_batch(writes)
    }

    fn resolve_unknown(&mut self, _writes: &Writes) -> Result<bool, StoreError> {
        self.resolve_sent()
    }

    fn rollback(&mut self) {
        if self.batch.take().is_some() {
            // A session that cannot even roll back is dropped, which does the same.
            let done = self.on_session(async |session: &Session| {
                session.client.batch_execute("ROLLBACK").await
            });
            if done.is_err() {
                self.session = None;
            }
        }
    }

    fn due(&mut self, now: Millis, limit: usize) -> Result<Vec<Due>, StoreError> {
        self.find_due(now, limit)
    }

    fn leased(&mut self) -> Result<Vec<AttemptId>, StoreError> {
        self.find_leased()
    }

    fn specs(&mut self, jobs: &[JobId]) -> Result<Vec<std::sync::Arc<str>>, StoreError> {
        self.find_specs(jobs)
    }

    fn prune(&mut self, before: Millis, limit: usize) -> Result<Vec<RunId>, StoreError> {
        self.prune_runs(before, limit)
    }

    fn prune_kept(&mut self, now: Millis, limit: usize) -> Result<Vec<RunId>, StoreError> {
        self.prune_kept_runs(now, limit)
    }

    fn incarnation(&mut self) -> Result<u32, StoreError> {
        self.read_incarnation("SELECT incarnation FROM store")
    }

    fn raise_incarnation(&mut self) -> Result<u32, StoreError> {
        let raise = "UPDATE store SET incarnation = incarnation + 1 RETURNING incarnation";
        self.read_incarnation(raise)
    }

    fn identity(&mut self) -> Result<i64, StoreError> {
        self.read_number("SELECT identity FROM store")
    }

    fn is_unused(&mut self) -> Result<bool, StoreError> {
        let unused = "SELECT (NOT EXISTS (SELECT FROM runs) \
                      AND NOT EXISTS (SELECT FROM tombstones))::int::bigint";
        Ok(self.read_number(unused)? == 1)
    }

    fn probe(&mut self) -> Result<(), StoreError> {
        self.read_number("UPDATE store SET probes = probes + 1 RETURNING probes")
            .map(drop)
    }

    fn newest_moment(&mut self) -> Result<Millis, StoreError> {
        self.find_newest_moment()
    }

    fn wakeups(&mut self) -> Option<Wakeups> {
        let (listener, target, name) = (&mut self.listener, &self.target, &self.name);
        Some(listener.wakeups(target.clone(), name.clone()))
    }

    fn flushes(&self) -> u64 {
        self.flushes
    }
}

impl Drop for PgStore {
    fn drop(&mut self) {
        // An orderly end gives its locks back at once; on a thread that may not block, and after a
        // crash, the server does that when it misses us.
        if self.batch.is_some() && tokio::runtime::Handle::try_current().is_err() {
            Store::rollback(self);
        }
        self.session = None;
        if let Some(runtime) = self.runtime.take() {
            // Never waits, so that a store may be dropped anywhere.
            runtime.shutdown_background();
        }
    }
}
