//! About the server itself: health, readiness, metrics, the doctor and the description of the API.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use delta_wire::{ErrorBody, ErrorCode};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::Admin;
use super::openapi;
use crate::app::App;
use crate::readiness;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(show_health))
        .routes(routes!(show_readiness))
        .routes(routes!(show_metrics))
        .routes(routes!(show_openapi))
        .routes(routes!(examine_store))
}

/// The process lives and can still write. Not ready is no reason to restart it; this is.
#[utoipa::path(get, path = "/healthz", tag = "system",
    responses((status = 200, description = "alive", content_type = "text/plain", body = String),
        (status = 503, body = ErrorBody)))]
async fn show_health(State(app): State<App>) -> Result<&'static str, ApiError> {
    if app.writer.is_dead() {
        return Err(ApiError::new(
            ErrorCode::Unavailable,
            "the writer has ended",
        ));
    }
    Ok("ok\n")
}

/// Whether requests should be sent here now, and if not, why.
#[utoipa::path(get, path = "/readyz", tag = "system",
    responses((status = 200, description = "ready", content_type = "text/plain", body = String),
        (status = 503, body = ErrorBody)))]
async fn show_readiness(State(app): State<App>) -> Result<&'static str, ApiError> {
    let ready = readiness::ready(&app).await;
    ready.map_err(|why| ApiError::new(ErrorCode::Unavailable, why))?;
    Ok("ready\n")
}

/// Prometheus metrics.
#[utoipa::path(get, path = "/metrics", tag = "system",
    responses((status = 200, description = "OpenMetrics text",
        content_type = "application/openmetrics-text", body = String)))]
async fn show_metrics(State(app): State<App>) -> Result<Response, ApiError> {
    let [hold, dispatch, people] = app.writer.depths().map(|n| i64::try_from(n).unwrap_or(0));
    let metrics = app.metrics();
    metrics.lane_hold.set(hold);
    metrics.lane_dispatch.set(dispatch);
    metrics.lane_people.set(people);
    let streams = app.writer.shared().watchers.streams();
    metrics
        .event_streams
        .set(i64::try_from(streams).unwrap_or(i64::MAX));
    let spans = app.tracer.counts();
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    metrics.spans_sent.set(whole(spans.sent));
    metrics.spans_lost.set(whole(spans.lost));
    if let Ok(stats) = app.read(|reader| reader.stats()).await {
        metrics
            .wal_bytes
            .set(i64::try_from(stats.wal_bytes).unwrap_or(i64::MAX));
    }
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], metrics.encode()).into_response())
}

/// What the doctor found.
#[derive(Serialize, ToSchema)]
struct Examined {
    /// Events and tables agree everywhere, the database is whole, and nothing is missing.
    healthy: bool,
    runs: u64,
    events: u64,
    /// Runs that changed too often to be compared.
    busy: u64,
    /// Runs with a difference.
    different: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_difference: Option<DifferenceView>,
    /// What the database was asked about its own files.
    integrity: String,
    /// What is damaged in them, the first of it.
    damage: Vec<String>,
    /// There is more.
    more_damage: bool,
    /// Logs, artifacts and caches that are named and not stored any more.
    missing_objects: u64,
    /// The first of them.
    first_missing: Vec<String>,
}

/// Where events and tables disagree.
#[derive(Serialize, ToSchema)]
struct DifferenceView {
    run_id: String,
    /// The event it was found at.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    what: String,
    expected: String,
    found: String,
}

/// Fold the events of every run and compare with the tables; ask the database about its files, and
/// look for logs, artifacts and caches that are named and gone.
#[utoipa::path(get, path = "/api/v1/doctor", tag = "system",
    responses((status = 200, body = Examined), (status = 503, body = ErrorBody)))]
async fn examine_store(
    State(app): State<App>,
    _who: Admin,
) -> Result<axum::Json<Examined>, ApiError> {
    let objects = app.objects.clone();
    let findings = app
        .read(move |reader| crate::doctor::examine(reader, &objects))
        .await?;
    let (report, integrity) = (findings.report, findings.integrity);
    let missing = findings.missing;
    Ok(axum::Json(Examined {
        healthy: report.different == 0 && integrity.faults.is_empty() && missing.count == 0,
        runs: report.runs,
        events: report.events,
        busy: report.busy,
        different: report.different,
        first_difference: report.first_difference.map(|it| DifferenceView {
            run_id: it.run.to_string(),
            version: it.version,
            what: it.what,
            expected: it.expected,
            found: it.found,
        }),
        integrity: integrity.checked,
        damage: integrity.faults,
        more_damage: integrity.more,
        missing_objects: missing.count,
        first_missing: missing.told,
    }))
}

/// This document.
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "system",
    responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value)))]
async fn show_openapi() -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::OK, json, openapi::document()).into_response()
}
