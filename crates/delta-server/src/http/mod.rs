//! The HTTP rim: what arrives is checked and turned into commands, what comes back is spelled as
//! the wire wants it. No handler changes state or decides anything.
//!
//! One file per group of endpoints. The same router serves TCP (bearer token) and the admin socket.

mod agents;
mod approvals;
mod artifacts;
mod caches;
mod dead_letters;
mod enrol;
mod error;
mod events;
mod extract;
mod failures;
mod function_tail;
mod functions;
mod inputs;
mod jobs;
mod known_parameters;
mod lease;
mod log;
mod log_tail;
mod log_view;
mod openapi;
mod pieces;
mod queues;
mod recheck;
mod repositories;
mod rerun;
mod runner;
mod runs;
mod secrets;
mod status_link;
mod system;
mod test_results;
mod tokens;
mod uploads;
mod views;
mod waiting;
mod webhooks;

use axum::Router;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use delta_wire::ErrorCode;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;

use crate::app::App;
use error::ApiError;

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
        .merge(test_results::routes())
        .merge(caches::routes())
        .merge(agents::routes())
        .merge(tokens::routes())
        .merge(secrets::routes())
        .merge(repositories::routes())
        .merge(webhooks::routes())
        .merge(approvals::routes())
        .merge(enrol::routes())
        .merge(system::routes())
        .merge(status_link::routes())
}

/// The whole API.
pub fn router(app: App) -> Router {
    let (router, _) = routes().split_for_parts();
    router
        .merge(crate::sessions::routes(&app))
        .fallback(unknown_path)
        .method_not_allowed_fallback(async || {
            ApiError::new(ErrorCode::MethodNotAllowed, "this path knows other methods")
        })
        .with_state(app)
}

/// A call of gRPC is answered in its own words.
async fn unknown_path(headers: HeaderMap) -> Response {
    let call = crate::sessions::not_spoken(&headers);
    call.unwrap_or_else(|| ApiError::not_found("path").into_response())
}

/// Something went wrong that the caller can do nothing about; the log says what.
fn internal(what: &str, error: &dyn std::error::Error) -> ApiError {
    tracing::error!(%error, "{what}");
    ApiError::new(ErrorCode::Internal, what)
}

/// A number of bytes or events, as far as the store counts.
fn counted(value: &str) -> Option<u64> {
    let number: i64 = value.parse().ok()?;
    u64::try_from(number).ok()
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
