//! The events of a run: pages of JSON, or a live stream (SSE) that can be resumed by version.
//!
//! A stream is woken by the writer after a commit; between commits nothing is read. It ends when
//! the run is over and everything was sent.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use delta_core::RunId;
use delta_store::read::StoredEvent;
use delta_wire::api::{EventList, EventView};
use delta_wire::{ErrorBody, ErrorCode, Invalid};
use serde_json::value::RawValue;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio_util::io::ReaderStream;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Path, User};
use super::recheck::Vigil;
use super::{runs, views};
use crate::app::App;
use crate::runner_commands::hex;
use crate::watch::Watch;

/// Events of one page, and of one read of a stream.
const PAGE: usize = 200;
/// A word between events now and then, below the idle limit of common proxies: it also finds out
/// that nobody listens any more.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Bytes of a stream that wait for a slow reader before the stream itself waits.
const BUFFER_BYTES: usize = 64 * 1024;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list_events))
}

/// What happened to a run, from `after` on. With `Accept: text/event-stream`, live.
#[utoipa::path(get, path = "/api/v1/runs/{id}/events", tag = "runs",
    params(("id" = String, Path), ("after" = Option<u64>, Query),
        ("Last-Event-ID" = Option<u64>, Header)),
    responses((status = 200, description = "a page, or a stream whose data are EventViews", content(
            (EventList = "application/json"), (String = "text/event-stream"))),
        (status = 404, body = ErrorBody)))]
async fn list_events(
    State(app): State<App>,
    User(who): User,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = runs::run_id(&id)?;
    let after = after(query.as_deref(), &headers)?;
    // 404 before anything is streamed.
    runs::find(&app, id).await?;
    let accept = headers.get(header::ACCEPT).and_then(|it| it.to_str().ok());
    if accept.is_some_and(|it| it.contains("text/event-stream")) {
        return stream(app, Vigil::new(who), id, after);
    }
    let stored = app
        .read(move |reader| reader.events(id, after, PAGE + 1))
        .await?;
    let more = stored.len() > PAGE;
    let page: Result<Vec<_>, _> = stored.iter().take(PAGE).map(view).collect();
    let events = page?;
    let next_after = events.last().filter(|_| more).map(|event| event.version);
    Ok(axum::Json(EventList { events, next_after }).into_response())
}

/// Where to go on: what the browser remembers wins over what the address says.
fn after(query: Option<&str>, headers: &HeaderMap) -> Result<u64, ApiError> {
    if let Some(last) = headers.get("last-event-id") {
        let number = last.to_str().ok().and_then(|text| text.parse().ok());
        let wrong = || Invalid::field("Last-Event-ID", "is not the version of an event");
        return Ok(number.ok_or_else(wrong)?);
    }
    let mut after = 0;
    for (name, value) in super::query_pairs(query)? {
        if name != "after" {
            return Err(Invalid::field(name, "is not known; known here: after").into());
        }
        let number = super::counted(&value);
        let wrong = || Invalid::field("after", "is not the version of an event");
        after = number.ok_or_else(wrong)?;
    }
    Ok(after)
}

fn stream(app: App, vigil: Vigil, id: RunId, after: u64) -> Result<Response, ApiError> {
    let watchers = &app.writer.shared().watchers;
    let watch = watchers
        .watch(id)
        .ok_or_else(|| ApiError::new(ErrorCode::Overloaded, "too many event streams are open"))?;
    let (write, read) = tokio::io::duplex(BUFFER_BYTES);
    tokio::spawn(async move {
        // An error is a reader that has gone, or a store that is away: it will come again.
        if let Err(why) = feed(app, vigil, id, after, watch, write).await {
            tracing::debug!(run = %id, why, "an event stream ended early");
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(ReaderStream::new(read))).into_response())
}

async fn feed(
    app: App,
    mut vigil: Vigil,
    id: RunId,
    mut after: u64,
    mut watch: Watch,
    mut write: DuplexStream,
) -> Result<(), String> {
    loop {
        if vigil.is_over(&app).await {
            return Ok(());
        }
        let page = app.read(move |reader| reader.events(id, after, PAGE)).await;
        let page = page.map_err(|error| error.to_string())?;
        for stored in &page {
            let view = view(stored).map_err(|error| error.body.message)?;
            let json = serde_json::to_string(&view).map_err(|error| error.to_string())?;
            let text = format!("id: {}\nevent: record\ndata: {json}\n\n", stored.version);
            send(&mut write, &text).await?;
            after = stored.version;
        }
        if !page.is_empty() {
            continue;
        }
        if is_over(&app, id, after).await? {
            return Ok(());
        }
        tokio::select! {
            () = watch.changed() => {}
            () = app.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep_until(vigil.next()) => {}
            () = tokio::time::sleep(KEEP_ALIVE) => send(&mut write, ": still here\n\n").await?,
        }
    }
}

/// Nothing will happen to this run any more, and all of it was sent.
async fn is_over(app: &App, id: RunId, sent: u64) -> Result<bool, String> {
    let rows = app.read(move |reader| reader.run(id)).await;
    let rows = rows.map_err(|error| error.to_string())?;
    Ok(rows.is_none_or(|rows| {
        let run = &rows.run;
        run.state.has_ended() && run.live_jobs == 0 && rows.version <= sent
    }))
}

async fn send(write: &mut DuplexStream, text: &str) -> Result<(), String> {
    write
        .write_all(text.as_bytes())
        .await
        .map_err(|error| error.to_string())
}

/// An event as it was stored: its facts pass through unread.
fn view(stored: &StoredEvent) -> Result<EventView, ApiError> {
    #[derive(serde::Deserialize)]
    struct Stored {
        command: String,
        actor: String,
        facts: Box<RawValue>,
    }
    let read: Stored = serde_json::from_slice(&stored.bytes)
        .map_err(|error| super::internal("an event cannot be read", &error))?;
    Ok(EventView {
        version: stored.version,
        at: views::at(stored.at),
        command: read.command,
        actor: read.actor,
        facts: read.facts,
        hash: Some(hex(&stored.hash)),
    })
}
