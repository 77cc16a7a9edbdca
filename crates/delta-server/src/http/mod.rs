//! The HTTP rim: what arrives is checked and turned into commands, what comes back is spelled as
//! the wire wants it. No handler changes state or decides anything.
//!
//! One file per group of endpoints. The same router serves TCP (bearer token) and the admin socket.

mod agents;
mod approvals;
mod artifacts;
mod caches;
mod dead_letters;
mod described;
mod enrol;
mod error;
mod events;
mod extract;
mod failures;
mod function_tail;
mod functions;
mod inputs;
mod jobs;
mod lease;
mod log;
mod log_tail;
mod log_view;
mod pieces;
mod queues;
mod repositories;
mod rerun;
mod runner;
mod runs;
mod secrets;
pub mod signpost;
mod system;
mod tests;
mod tokens;
mod uploads;
mod views;
mod vigil;
mod waiting;
mod webhooks;

use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use delta_core::{Millis, RunId, Span};
use delta_store::StoreError;
use delta_store::read::Reader;
use delta_trace::Tracer;
use delta_wire::ErrorCode;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use uuid::timestamp::context::ContextV7;

pub use artifacts::lost as lost_artifacts;
pub use error::ApiError;
pub use extract::{anybody, runner};
pub use system::ready;

use crate::agents::{Agents, PoolSandboxes};
use crate::caches::CacheLimits;
use crate::forges::fetching::Fetching;
use crate::functions::{Known, Queues};
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::objects::Objects;
use crate::presence::Presence;
use crate::secrets::Keyring;
use crate::writer::Writer;

/// What handlers share. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Parts>);

pub struct Parts {
    pub writer: Writer,
    pub reader: Arc<dyn Reader>,
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
    pub planning: Arc<tokio::sync::Notify>,
    /// How git servers are reached; set where this server plans.
    pub fetching: std::sync::OnceLock<Arc<Fetching>>,
    /// Places for deliveries that are being read.
    pub webhooks: webhooks::Places,
    /// Ended when the server stops: long answers end with it.
    pub stop: CancellationToken,
    pub ids: Mutex<ContextV7>,
    pub openapi: String,
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
        reader: Arc<dyn Reader>,
        identity: Identity,
        equipment: Equipment,
        stop: CancellationToken,
    ) -> App {
        let (_, openapi) = routes().split_for_parts();
        App(Arc::new(Parts {
            identity,
            writer,
            reader,
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
            fetching: Default::default(),
            webhooks: webhooks::Places::default(),
            stop,
            ids: Mutex::new(ContextV7::new()),
            openapi: described::complete(&openapi).to_string(),
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
    ) -> Result<T, ApiError> {
        let reader = self.reader.clone();
        let read = tokio::task::spawn_blocking(move || read(reader.as_ref())).await;
        Ok(read.map_err(|error| internal("a read failed", &error))??)
    }

    /// Works on files off the async threads.
    pub async fn files<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Objects) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, ApiError> {
        let objects = self.objects.clone();
        let done = tokio::task::spawn_blocking(move || work(&objects)).await;
        let done = done.map_err(|error| internal("work on files failed", &error))?;
        done.map_err(|error| not_stored(&error))
    }
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Delta CI",
        description = "Runs, jobs and the Runner Protocol.",
        license(name = "Apache-2.0")
    ),
    components(schemas(
        delta_wire::api::CreateFunction,
        delta_wire::api::LogBegin,
        delta_wire::api::LogEnd
    ))
)]
struct Described;

fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Described::openapi())
        .merge(lease::routes())
        .merge(runner::routes())
        .merge(uploads::routes())
        .merge(runs::routes())
        .merge(rerun::routes())
        .merge(events::routes())
        .merge(functions::routes())
        .merge(queues::routes())
        .merge(dead_letters::routes())
        .merge(jobs::routes())
        .merge(log::routes())
        .merge(artifacts::routes())
        .merge(inputs::routes())
        .merge(tests::routes())
        .merge(caches::routes())
        .merge(agents::routes())
        .merge(tokens::routes())
        .merge(secrets::routes())
        .merge(repositories::routes())
        .merge(webhooks::routes())
        .merge(approvals::routes())
        .merge(enrol::routes())
        .merge(system::routes())
        .merge(signpost::routes())
}

/// The whole API.
pub fn router(app: App) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .merge(crate::agents::routes(&app))
        .fallback(unknown_path)
        .method_not_allowed_fallback(async || {
            ApiError::new(ErrorCode::MethodNotAllowed, "this path knows other methods")
        })
        .with_state(app)
}

/// A call of gRPC is answered in its own words.
async fn unknown_path(headers: HeaderMap) -> Response {
    let call = crate::agents::not_spoken(&headers);
    call.unwrap_or_else(|| ApiError::not_found("path").into_response())
}

/// Something went wrong that the caller can do nothing about; the log says what.
fn internal(what: &str, error: &dyn std::error::Error) -> ApiError {
    tracing::error!(%error, "{what}");
    ApiError::new(ErrorCode::Internal, what)
}

/// Files could not be worked on. A full disk is said as such: somebody can help there.
fn not_stored(error: &std::io::Error) -> ApiError {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    if matches!(error.kind(), StorageFull | QuotaExceeded) {
        tracing::error!(%error, "the disk of logs and artifacts is full");
        return ApiError::new(ErrorCode::StorageFull, "the server's disk is full");
    }
    internal("work on files failed", error)
}

/// The decoded pairs of a query string.
fn query_pairs(query: Option<&str>) -> Result<Vec<(String, String)>, ApiError> {
    let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(
        &format!("/?{}", query.unwrap_or_default())
            .parse()
            .map_err(|_| ApiError::new(ErrorCode::Invalid, "the query cannot be read"))?,
    );
    let pairs = pairs.map_err(|_| ApiError::new(ErrorCode::Invalid, "the query cannot be read"))?;
    Ok(pairs.0)
}

/// Makes a token for whoever started this server.
pub async fn make_token(
    app: &App,
    role: delta_store::read::Role,
    name: delta_core::Text,
    now: Millis,
) -> Result<String, ApiError> {
    tokens::make(app, role, name, now).await
}
