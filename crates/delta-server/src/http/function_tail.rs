//! A call followed live (SSE): how it stands now, again whenever that changes, and its end with its
//! result. Woken by the writer after a commit; between commits nothing is read.

use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use delta_core::RunId;
use delta_wire::ErrorCode;
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio_util::io::ReaderStream;

use super::error::ApiError;
use super::functions::{detail, find};
use super::recheck::Vigil;
use crate::app::App;
use crate::watch::Watch;

/// A word now and then, below the idle limit of common proxies: it also finds out that nobody
/// listens any more.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Bytes that wait for a slow reader before the stream itself waits.
const BUFFER_BYTES: usize = 64 * 1024;

/// Follows a call that was found.
pub fn stream(app: App, vigil: Vigil, run: RunId) -> Result<Response, ApiError> {
    let watchers = &app.writer.shared().watchers;
    let watch = watchers
        .watch(run)
        .ok_or_else(|| ApiError::new(ErrorCode::Overloaded, "too many callers wait"))?;
    let (write, read) = tokio::io::duplex(BUFFER_BYTES);
    tokio::spawn(async move {
        // An error is a reader that has gone, or a store that is away: it will come again.
        if let Err(why) = feed(app, vigil, run, watch, write).await {
            tracing::debug!(%run, why, "a call is no longer followed");
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
    run: RunId,
    mut watch: Watch,
    mut write: DuplexStream,
) -> Result<(), String> {
    let mut sent = String::new();
    while !vigil.is_over(&app).await {
        let said = |error: ApiError| error.body.message;
        let rows = find(&app, run).await.map_err(said)?;
        let over = rows.job.resolution.is_some();
        let detail = detail(&app, rows).await.map_err(said)?;
        let json = serde_json::to_string(&detail).map_err(|error| error.to_string())?;
        if json != sent {
            send(&mut write, &event(&json)).await?;
            sent = json;
        }
        if over {
            return Ok(());
        }
        tokio::select! {
            () = watch.changed() => {}
            () = app.stop.cancelled() => return Ok(()),
            () = tokio::time::sleep_until(vigil.next()) => {}
            () = tokio::time::sleep(KEEP_ALIVE) => send(&mut write, ": still here\n\n").await?,
        }
    }
    Ok(())
}

/// A result is kept as its handler wrote it, which may be on several lines.
fn event(json: &str) -> String {
    let lines = json.split(['\n', '\r']);
    let data: String = lines.map(|line| format!("data: {line}\n")).collect();
    format!("event: call\n{data}\n")
}

async fn send(write: &mut DuplexStream, text: &str) -> Result<(), String> {
    let written = write.write_all(text.as_bytes()).await;
    written.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_of_several_lines_is_one_event() {
        let sent = event("{\"result\":{\n\r \"a\": 1}}");
        assert_eq!(
            sent,
            "event: call\ndata: {\"result\":{\ndata: \ndata:  \"a\": 1}}\n\n"
        );
    }
}
