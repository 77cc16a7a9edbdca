//! What attempts left behind, for people: the log as plain text, never as anything a browser would
//! act on, and what is known of its completeness.

use std::io::SeekFrom;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use delta_core::{Attempt, LeaseKey};
use delta_store::read::JobRows;
use delta_wire::api::LogView;
use delta_wire::{ErrorBody, Invalid};
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::User;
use super::views::Left;
use super::{App, artifacts, internal};
use crate::objects::Objects;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(show_log))
}

/// The log of a job: of its latest attempt with one, or of the attempt named.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/log", tag = "jobs",
    params(("id" = String, Path), ("attempt" = Option<u32>, Query),
        ("offset" = Option<u64>, Query), ("Range" = Option<String>, Header)),
    responses((status = 200, description = "the log", content_type = "text/plain", body = String),
        (status = 206, description = "a part of it", content_type = "text/plain", body = String),
        (status = 404, body = ErrorBody),
        (status = 416, description = "beyond its end")))]
async fn show_log(
    State(app): State<App>,
    _who: User,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = super::jobs::job_id(&id)?;
    let asked = Asked::read(query.as_deref())?;
    let rows = app.read(move |reader| reader.job(id)).await?;
    let rows = rows.ok_or_else(|| ApiError::not_found("job"))?;
    let found = app
        .files(move |objects| Ok(find(objects, &rows, asked.attempt)))
        .await?;
    let (lease, length) = found.ok_or_else(|| ApiError::not_found("log"))?;
    let range = match (asked.offset, range(&headers)) {
        (Some(offset), _) => Some((offset.min(length), length)),
        (None, Some((from, to))) if from < length => Some((from, to.min(length))),
        (None, Some(_)) => {
            let whole = [(header::CONTENT_RANGE, format!("bytes */{length}"))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, whole).into_response());
        }
        (None, None) => None,
    };
    let (from, to) = range.unwrap_or((0, length));
    let body = body(&app, lease, from, to).await?;
    let mut response = (PLAIN, body).into_response();
    if asked.offset.is_none() && range.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let part = format!("bytes {from}-{}/{length}", to.saturating_sub(1));
        if let Ok(part) = part.parse() {
            response.headers_mut().insert(header::CONTENT_RANGE, part);
        }
    }
    Ok(response)
}

/// Untrusted text stays text (RP-56): no sniffing, no rendering, no scripts.
const PLAIN: [(header::HeaderName, &str); 5] = [
    (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (
        header::CONTENT_DISPOSITION,
        "attachment; filename=\"log.txt\"",
    ),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; sandbox",
    ),
    (header::ACCEPT_RANGES, "bytes"),
];

async fn body(app: &App, lease: LeaseKey, from: u64, to: u64) -> Result<Body, ApiError> {
    let bad = |error: std::io::Error| internal("a log could not be read", &error);
    let path = app.objects.log_path(lease);
    let mut file = tokio::fs::File::open(path).await.map_err(bad)?;
    file.seek(SeekFrom::Start(from)).await.map_err(bad)?;
    Ok(Body::from_stream(ReaderStream::new(file.take(to - from))))
}

/// What a log request asks for.
#[derive(Clone, Copy, Default)]
struct Asked {
    attempt: Option<u32>,
    offset: Option<u64>,
}

impl Asked {
    fn read(query: Option<&str>) -> Result<Asked, ApiError> {
        let mut asked = Asked::default();
        for (name, value) in super::query_pairs(query)? {
            let wrong = || Invalid::field(&name, "is not a number");
            match name.as_str() {
                "attempt" => asked.attempt = Some(value.parse().map_err(|_| wrong())?),
                "offset" => asked.offset = Some(value.parse().map_err(|_| wrong())?),
                _ => {
                    let known = "is not known; known here: attempt, offset";
                    return Err(Invalid::field(name, known).into());
                }
            }
        }
        Ok(asked)
    }
}

/// `bytes=a-b` or `bytes=a-`, as a half-open range. Anything else is answered with everything.
fn range(headers: &HeaderMap) -> Option<(u64, u64)> {
    let text = headers.get(header::RANGE)?.to_str().ok()?;
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    let from: u64 = from.parse().ok()?;
    let to = match to {
        "" => u64::MAX,
        to => to.parse::<u64>().ok()?.checked_add(1)?,
    };
    (from < to).then_some((from, to))
}

/// The log of the latest attempt with bytes, and of its latest lease with bytes.
fn find(objects: &Objects, rows: &JobRows, only: Option<u32>) -> Option<(LeaseKey, u64)> {
    let attempts = rows.attempts.iter().rev();
    let mut wanted = attempts.filter(|it| only.is_none_or(|only| it.id.index == only));
    wanted.find_map(|attempt| log_of(objects, rows, attempt))
}

fn log_of(objects: &Objects, rows: &JobRows, attempt: &Attempt) -> Option<(LeaseKey, u64)> {
    let past = rows.past_leases.iter().filter(|(id, _)| *id == attempt.id);
    let leases = past.map(|(_, lease)| lease).chain(&attempt.lease);
    let mut epochs: Vec<u64> = leases.map(|lease| lease.epoch).collect();
    epochs.sort_unstable();
    let mut newest_first = epochs
        .into_iter()
        .rev()
        .map(|epoch| attempt.id.lease(epoch));
    newest_first.find_map(|lease| Some((lease, objects.log_length(lease)?)))
}

/// What is shown of the bytes an attempt left.
pub fn left(objects: &Objects, rows: &JobRows, attempt: &Attempt) -> Left {
    Left {
        log: log_view(objects, rows, attempt),
        artifacts: artifacts::views(objects, attempt),
    }
}

fn log_view(objects: &Objects, rows: &JobRows, attempt: &Attempt) -> Option<LogView> {
    let report = attempt.report.as_ref();
    let declared = report.and_then(|report| report.log);
    let stored = log_of(objects, rows, attempt);
    if stored.is_none() && declared.is_none_or(|(length, _)| length == 0) {
        return None;
    }
    let length = stored.map_or(0, |(_, length)| length);
    let said = declared.map_or(attempt.progress.log_bytes.unwrap_or(0), |(length, _)| {
        length
    });
    let winner = attempt
        .lease
        .as_ref()
        .map(|lease| attempt.id.lease(lease.epoch));
    let own = stored.map(|(lease, _)| lease) == winner;
    let complete = match declared {
        Some((length_said, hash)) => {
            let hash_fits =
                || winner.is_some_and(|lease| objects.log_has_hash(lease, length, &hash));
            own && length == length_said && hash_fits()
        }
        // A22: without a word about it, what heartbeats said was handed over must be there.
        None => own && report.is_some() && length >= said,
    };
    Some(LogView {
        length,
        complete,
        missing: (said > length).then(|| said - length),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Option<(u64, u64)> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, text.parse().unwrap());
        range(&headers)
    }

    #[test]
    fn simple_ranges_are_understood_and_others_ignored() {
        assert_eq!(asked("bytes=0-9"), Some((0, 10)));
        assert_eq!(asked("bytes=5-"), Some((5, u64::MAX)));
        for odd in [
            "bytes=-5",
            "bytes=9-3",
            "bytes=0-1,4-5",
            "lines=0-1",
            "bytes=a-b",
        ] {
            assert_eq!(asked(odd), None, "{odd}");
        }
    }
}
