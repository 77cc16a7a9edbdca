//! What every room of the server shares: the writer, the store's other side, identity, files, and
//! what is remembered in memory.
//!
//! Owns the ways off the async threads: [`App::read`], [`App::write`] and [`App::files`]. Knows no
//! protocol: HTTP and the sessions stand above it, and it imports neither's messages.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use delta_core::{Millis, RunId, Span};
use delta_store::StoreError;
use delta_store::read::{Credential, Reader};
use delta_store::side_tables::SideTables;
use delta_trace::Tracer;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::timestamp::context::ContextV7;

use crate::caches::CacheLimits;
use crate::forges::fetching::Fetching;
use crate::functions::{Known, Queues};
use crate::identity::Identity;
use crate::keyed_limit::KeyedLimit;
use crate::metrics::Metrics;
use crate::not_done::NotDone;
use crate::objects::Objects;
use crate::presence::Presence;
use crate::secrets::Keyring;
use crate::sessions::{Agents, PoolSandboxes};
use crate::store_sides::StoreSides;
use crate::writer::Writer;
use crate::writer::proof::Proof;

/// Deliveries of forges that are read at once: each may hold its largest body in memory.
const DELIVERIES: usize = 32;
/// Deliveries of one address that are read at once: one sender leaves room for others.
pub const DELIVERIES_OF_AN_ADDRESS: usize = 8;

/// What handlers, sessions and duties share. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Parts>);

pub struct Parts {
    pub writer: Writer,
    pub sides: StoreSides,
    pub identity: Identity,
    pub presence: Presence,
    pub agents: Arc<Agents>,
    pub objects: Arc<Objects>,
    pub secret_keys: Arc<Keyring>,
    /// How often a session looks at its agent's row again.
    pub recheck: Duration,
    pub pool_sandboxes: PoolSandboxes,
    pub cache_limits: CacheLimits,
    pub tracer: Tracer,
    /// The shortest that the result of a function is kept.
    pub shortest_keep: Span,
    /// This server's address, as people and forges reach it.
    pub public_url: Option<String>,
    pub queues: Queues,
    pub known_runners: Known,
    /// Rung when a run waits for its plan.
    pub planning: Arc<Notify>,
    /// How git servers are reached; set where this server plans.
    pub fetching: OnceLock<Arc<Fetching>>,
    /// Places for deliveries that are being read.
    pub webhooks: KeyedLimit<IpAddr>,
    /// Whether the disk of logs and artifacts takes what is written.
    pub files_proof: Proof,
    /// Ended when the server stops: long answers end with it.
    pub stop: CancellationToken,
    ids: Mutex<ContextV7>,
}

/// What a server works with beside its store, as its configuration says.
pub struct Equipment {
    pub objects: Arc<Objects>,
    pub secret_keys: Arc<Keyring>,
    pub recheck: Duration,
    pub pool_sandboxes: PoolSandboxes,
    pub cache_limits: CacheLimits,
    pub tracer: Tracer,
    pub shortest_keep: Span,
    pub public_url: Option<String>,
}

impl Deref for App {
    type Target = Parts;
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl App {
    pub fn new(
        writer: Writer,
        sides: StoreSides,
        identity: Identity,
        equipment: Equipment,
        stop: CancellationToken,
    ) -> App {
        App(Arc::new(Parts {
            identity,
            writer,
            sides,
            presence: Presence::default(),
            agents: Arc::default(),
            objects: equipment.objects,
            secret_keys: equipment.secret_keys,
            recheck: equipment.recheck,
            pool_sandboxes: equipment.pool_sandboxes,
            cache_limits: equipment.cache_limits,
            tracer: equipment.tracer,
            shortest_keep: equipment.shortest_keep,
            public_url: equipment.public_url,
            queues: Queues::default(),
            known_runners: Known::default(),
            planning: Arc::default(),
            fetching: OnceLock::new(),
            webhooks: KeyedLimit::new(DELIVERIES_OF_AN_ADDRESS, DELIVERIES),
            files_proof: Proof::new(),
            stop,
            ids: Mutex::new(ContextV7::new()),
        }))
    }

    pub fn metrics(&self) -> &Metrics {
        &self.writer.shared().metrics
    }

    /// A fresh id that sorts after those before it.
    pub fn fresh_run_id(&self, now: Millis) -> RunId {
        let context = self.ids.lock().unwrap_or_else(|e| e.into_inner());
        let millis = u64::try_from(now.0).unwrap_or(0);
        let nanos = (millis % 1000) as u32 * 1_000_000;
        let stamp = uuid::Timestamp::from_unix(&*context, millis / 1000, nanos);
        RunId(uuid::Uuid::new_v7(stamp).as_u128())
    }

    /// Reads from the store off the async threads: a read may wait for a disk or a network.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, NotDone> {
        self.read_and_write(move |sides| read(&*sides.reader)).await
    }

    /// Writes a table beside those of the core, off the async threads. What a rule of the core is
    /// about is the writer's.
    pub async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&dyn SideTables) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, NotDone> {
        self.read_and_write(move |sides| write(&*sides.tables))
            .await
    }

    /// Both in one go, for what is written by what is there. Somebody else may write in between:
    /// the tables themselves say who was first.
    pub async fn read_and_write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&StoreSides) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, NotDone> {
        let sides = self.sides.clone();
        let done = tokio::task::spawn_blocking(move || work(&sides)).await;
        Ok(done.map_err(|error| broken("work on the store failed", &error))??)
    }

    /// Works on files off the async threads.
    pub async fn files<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Objects) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, NotDone> {
        let objects = self.objects.clone();
        let done = tokio::task::spawn_blocking(move || work(&objects)).await;
        Ok(done.map_err(|error| broken("work on files failed", &error))??)
    }

    /// Stores a credential, and believes nothing that was remembered of it.
    pub async fn put_credential(&self, credential: Credential) -> Result<(), NotDone> {
        let put = self.write(move |tables| tables.put_credential(&credential));
        put.await?;
        self.identity.forget();
        Ok(())
    }
}

/// A task off the async threads ended without an answer.
pub fn broken(what: &str, error: &tokio::task::JoinError) -> NotDone {
    tracing::error!(%error, "{what}");
    NotDone::Internal
}
