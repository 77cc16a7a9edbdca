//! Queues: how much waits in each, and what people set about them.

use std::collections::BTreeMap;

use axum::extract::State;
use delta_core::requirement::queue_of;
use delta_core::{Millis, Text};
use delta_store::StoreError;
use delta_store::side_tables::SideTables;
use delta_wire::api::{CancelRequest, PausedView, QueueList, QueueView, RouteQueue};
use delta_wire::job_spec::is_name;
use delta_wire::{ErrorBody, Invalid};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Heard, Path, User};
use super::runs::by;
use super::views;
use crate::app::App;
use crate::audit;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_queues))
        .routes(routes!(show_queue, route_queue))
        .routes(routes!(pause_queue))
        .routes(routes!(resume_queue))
}

/// Every queue that something waits in, that was used in the last minute, or that something is set
/// about.
#[utoipa::path(get, path = "/api/v1/queues", tag = "queues",
    responses((status = 200, body = QueueList)))]
async fn list_queues(
    State(app): State<App>,
    _who: User,
) -> Result<axum::Json<QueueList>, ApiError> {
    let queues = all(&app).await?.into_values().collect();
    Ok(axum::Json(QueueList { queues }))
}

/// One queue; one that nobody has used is empty.
#[utoipa::path(get, path = "/api/v1/queues/{name}", tag = "queues",
    params(("name" = String, Path)),
    responses((status = 200, body = QueueView), (status = 422, body = ErrorBody)))]
async fn show_queue(
    State(app): State<App>,
    _who: User,
    Path(name): Path<String>,
) -> Result<axum::Json<QueueView>, ApiError> {
    view(&app, &checked(name)?).await
}

/// Give nothing of a queue to agents any more. What runs goes on; what comes waits.
#[utoipa::path(post, path = "/api/v1/queues/{name}/pause", tag = "queues",
    params(("name" = String, Path)), request_body = CancelRequest,
    responses((status = 200, body = QueueView), (status = 422, body = ErrorBody)))]
async fn pause_queue(
    State(app): State<App>,
    Path(name): Path<String>,
    Heard(User(who), body): Heard<User>,
) -> Result<axum::Json<QueueView>, ApiError> {
    let name = checked(name)?;
    let body = body.without_receipt();
    let reason = CancelRequest::parse(&body.bytes)?.reason;
    let paused = (body.at, by(&who.id, reason.as_deref()));
    set(&app, &name, move |tables, name| {
        tables.pause_queue(name, Some(&paused))
    })
    .await?;
    audit::done("queue.pause", &who, &name);
    view(&app, &name).await
}

/// Give it out again.
#[utoipa::path(post, path = "/api/v1/queues/{name}/resume", tag = "queues",
    params(("name" = String, Path)),
    responses((status = 200, body = QueueView), (status = 422, body = ErrorBody)))]
async fn resume_queue(
    State(app): State<App>,
    Path(name): Path<String>,
    Heard(User(who), _): Heard<User>,
) -> Result<axum::Json<QueueView>, ApiError> {
    let name = checked(name)?;
    set(&app, &name, |tables, name| tables.pause_queue(name, None)).await?;
    audit::done("queue.resume", &who, &name);
    view(&app, &name).await
}

/// Say which runner serves functions of this queue that name none; it counts for calls from now on.
#[utoipa::path(put, path = "/api/v1/queues/{name}", tag = "queues",
    params(("name" = String, Path)), request_body = RouteQueue,
    responses((status = 200, body = QueueView), (status = 422, body = ErrorBody)))]
async fn route_queue(
    State(app): State<App>,
    Path(name): Path<String>,
    Heard(User(who), body): Heard<User>,
) -> Result<axum::Json<QueueView>, ApiError> {
    let name = checked(name)?;
    let request = RouteQueue::parse(&body.without_receipt().bytes)?;
    let runner: Option<Text> = request.runner.map(Into::into);
    set(&app, &name, move |tables, name| {
        tables.route_queue(name, runner.as_ref())
    })
    .await?;
    audit::done("queue.route", &who, &name);
    view(&app, &name).await
}

fn checked(name: String) -> Result<String, ApiError> {
    if is_name(&name) {
        Ok(name)
    } else {
        Err(Invalid::field("name", "must be letters, digits and . _ -").into())
    }
}

/// Changes one thing that is set about a queue, on disk before it counts.
async fn set(
    app: &App,
    name: &str,
    change: impl FnOnce(&dyn SideTables, &Text) -> Result<(), StoreError> + Send + 'static,
) -> Result<(), ApiError> {
    let (name, app2): (Text, App) = (name.into(), app.clone());
    let changed = app.read_and_write(move |sides| {
        change(&*sides.tables, &name)?;
        app2.queues.read(&*sides.reader, &app2.writer)
    });
    Ok(changed.await?)
}

async fn view(app: &App, name: &str) -> Result<axum::Json<QueueView>, ApiError> {
    let found = all(app).await?.remove(name);
    Ok(axum::Json(found.unwrap_or_else(|| empty(name))))
}

fn empty(name: &str) -> QueueView {
    QueueView {
        name: name.to_owned(),
        depth: 0,
        oldest_seconds: None,
        enqueued_per_minute: 0,
        succeeded_per_minute: 0,
        failed_per_minute: 0,
        paused: None,
        runner: None,
    }
}

async fn all(app: &App) -> Result<BTreeMap<String, QueueView>, ApiError> {
    let (depths, stored) = app
        .read(|reader| Ok((reader.queue()?, reader.queues()?)))
        .await?;
    let now = app.writer.now();
    let mut all: BTreeMap<String, QueueView> = BTreeMap::new();
    let mut oldest: BTreeMap<String, Millis> = BTreeMap::new();
    for depth in depths {
        let Some(name) = queue_of(&depth.match_key) else {
            continue;
        };
        let view = all.entry(name.to_owned()).or_insert_with(|| empty(name));
        view.depth += depth.attempts;
        let since = oldest.entry(name.to_owned()).or_insert(depth.oldest);
        *since = (*since).min(depth.oldest);
        view.oldest_seconds = Some(now.since(*since).0.max(0) as f64 / 1000.0);
    }
    for (name, counts) in app.writer.shared().rates.last_minute(now) {
        let view = all.entry(name.to_string()).or_insert_with(|| empty(&name));
        view.enqueued_per_minute = counts.enqueued;
        view.succeeded_per_minute = counts.succeeded;
        view.failed_per_minute = counts.failed;
    }
    for row in stored {
        let view = all
            .entry(row.name.to_string())
            .or_insert_with(|| empty(&row.name));
        view.paused = row.paused.map(|(at, by): (Millis, Text)| PausedView {
            at: views::at(at),
            by: by.to_string(),
        });
        view.runner = row.runner.map(|it| it.to_string());
    }
    Ok(all)
}
