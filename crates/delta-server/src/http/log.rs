//! Logs for people: as plain text by byte range, never as anything a browser would act on. With
//! `Accept: text/event-stream` a live tail, which is another file's.

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use delta_core::LeaseKey;
use delta_wire::{ErrorBody, ErrorCode, Invalid};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Path, User};
use super::{log_tail, log_view, pieces};
use crate::app::App;
use crate::objects::LogReader;

/// Bytes of a log that are read at a time for one reader.
const PIECE_BYTES: usize = 256 * 1024;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(show_log))
}

/// The log of a job: of its latest attempt with one, or of the attempt named.
///
/// By byte range (`Range`, `If-Range` with the ETag, `HEAD`), or from `offset` on. `Delta-Log` says
/// `open`, `complete` or `incomplete: n bytes missing`, and `Delta-Attempt` whose log it is.
/// With `Accept: text/event-stream`, live: events `log` (whose bytes follow), `bytes` (in base64;
/// its id is the place to go on from, `attempt.epoch.offset`) and `end` (complete or not; `last`
/// when nothing follows). Resumed by `Last-Event-ID`, or by `attempt` and `offset`.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/log", tag = "jobs",
    params(("id" = String, Path), ("attempt" = Option<u32>, Query),
        ("offset" = Option<u64>, Query), ("Range" = Option<String>, Header),
        ("If-Range" = Option<String>, Header), ("If-None-Match" = Option<String>, Header),
        ("Last-Event-ID" = Option<String>, Header)),
    responses((status = 200, description = "the log", content(
            (String = "text/plain"), (String = "text/event-stream"))),
        (status = 206, description = "a part of it", content_type = "text/plain", body = String),
        (status = 304, description = "as it was"),
        (status = 404, body = ErrorBody),
        (status = 416, description = "beyond its end")))]
async fn show_log(
    State(app): State<App>,
    User(who): User,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id = super::jobs::job_id(&id)?;
    let asked = Asked::read(query.as_deref())?;
    let rows = app
        .read(move |reader| super::jobs::source(reader, id))
        .await?;
    let rows = rows.ok_or_else(|| ApiError::not_found("job"))?;
    let accept = headers.get(header::ACCEPT).and_then(|it| it.to_str().ok());
    if accept.is_some_and(|it| it.contains("text/event-stream")) {
        return log_tail::answer(app, who, rows, asked, &headers);
    }
    let found = app
        .files(move |objects| {
            let found = log_view::find(objects, &rows, asked.attempt);
            let found = found.map(|found| Found {
                lease: found.key(),
                length: found.extent.readable,
                said: found.view(objects).to_string(),
            });
            Ok(found.ok_or_else(|| log_view::lost(&rows, asked.attempt)))
        })
        .await?;
    let found = found.map_err(|lost| match lost {
        Some(bytes) => ApiError::new(
            ErrorCode::NotFound,
            format!("the log is gone: it has {bytes} bytes, and none of them is here"),
        ),
        None => ApiError::not_found("log"),
    })?;
    answer(&app, &found, asked.offset, &method, &headers)
}

/// A log that was asked for.
struct Found {
    lease: LeaseKey,
    length: u64,
    said: String,
}

impl Found {
    /// A log only grows, so the length says which log of this lease it is.
    fn etag(&self) -> String {
        let (attempt, epoch) = (self.lease.attempt.index, self.lease.epoch);
        format!("\"{attempt}.{epoch}.{}\"", self.length)
    }

    /// The holder of this tag has the first bytes of what there is now.
    fn begins_as(&self, tag: &str) -> bool {
        let Some((log, length)) = tag.trim_matches('"').rsplit_once('.') else {
            return false;
        };
        let own = self.etag();
        let same = own[1..]
            .strip_prefix(log)
            .is_some_and(|it| it.starts_with('.'));
        same && length
            .parse()
            .is_ok_and(|length: u64| length <= self.length)
    }
}

fn answer(
    app: &App,
    found: &Found,
    offset: Option<u64>,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let length = found.length;
    let etag = found.etag();
    let text = |name| {
        headers
            .get(name)
            .and_then(|it: &HeaderValue| it.to_str().ok())
    };
    let own_headers = [
        (header::ETAG, etag.clone()),
        (
            header::HeaderName::from_static("delta-log"),
            found.said.clone(),
        ),
        (
            header::HeaderName::from_static("delta-attempt"),
            found.lease.attempt.index.to_string(),
        ),
    ];
    if offset.is_none() && text(header::IF_NONE_MATCH) == Some(etag.as_str()) {
        return Ok((StatusCode::NOT_MODIFIED, own_headers).into_response());
    }
    let fits = text(header::IF_RANGE).is_none_or(|tag| found.begins_as(tag));
    let range = match offset {
        Some(_) => None,
        None => text(header::RANGE).filter(|_| fits).and_then(range),
    };
    let range = match range.map(|range| range.within(length)) {
        Some(None) => {
            let whole = [(header::CONTENT_RANGE, format!("bytes */{length}"))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, whole).into_response());
        }
        Some(found) => found,
        None => None,
    };
    let (from, to) = range.unwrap_or((offset.unwrap_or(0).min(length), length));
    let body = if *method == Method::HEAD {
        pieces::body(Some(to - from)).1
    } else {
        stream(app.objects.read_log(found.lease, from), to)
    };
    let mut response = (PLAIN, own_headers, body).into_response();
    if range.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let part = format!("bytes {from}-{}/{length}", to.saturating_sub(1));
        if let Ok(part) = part.parse() {
            response.headers_mut().insert(header::CONTENT_RANGE, part);
        }
    }
    Ok(response)
}

/// Untrusted text stays text (RP-56): no sniffing, no rendering, no scripts.
const PLAIN: [(header::HeaderName, &str); 6] = [
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
    (header::CACHE_CONTROL, "private, no-cache"),
];

/// The bytes up to `to`, read as fast as somebody takes them.
fn stream(log: LogReader, to: u64) -> Body {
    let (sender, body) = pieces::body(Some(to - log.at()));
    tokio::spawn(async move {
        let mut log = log;
        while log.at() < to {
            let most = usize::try_from(to - log.at()).unwrap_or(usize::MAX);
            let piece = match read_piece(log, most.min(PIECE_BYTES)).await {
                Ok((rest, piece)) if !piece.is_empty() => {
                    log = rest;
                    piece
                }
                // Its run was deleted meanwhile, or the disk is in trouble.
                read => {
                    let eof = std::io::ErrorKind::UnexpectedEof.into();
                    let _ = sender.send(Err(read.err().unwrap_or(eof))).await;
                    return;
                }
            };
            if sender.send(Ok(piece)).await.is_err() {
                return;
            }
        }
    });
    body
}

/// Reads off the async threads, at most so many bytes; none at the end of what was received.
pub async fn read_piece(mut log: LogReader, most: usize) -> std::io::Result<(LogReader, Bytes)> {
    let read = tokio::task::spawn_blocking(move || {
        let mut piece = vec![0; most];
        let read = log.fill(&mut piece)?;
        piece.truncate(read);
        Ok((log, Bytes::from(piece)))
    });
    read.await.map_err(std::io::Error::other)?
}

/// What a log request asks for.
#[derive(Clone, Copy, Default)]
pub struct Asked {
    pub attempt: Option<u32>,
    pub offset: Option<u64>,
}

impl Asked {
    fn read(query: Option<&str>) -> Result<Asked, ApiError> {
        let mut asked = Asked::default();
        for (name, value) in super::query_pairs(query)? {
            let wrong = || Invalid::field(&name, "is not a number");
            match name.as_str() {
                "attempt" => asked.attempt = Some(value.parse().map_err(|_| wrong())?),
                "offset" => asked.offset = Some(super::counted(&value).ok_or_else(wrong)?),
                _ => {
                    let known = "is not known; known here: attempt, offset";
                    return Err(Invalid::field(name, known).into());
                }
            }
        }
        Ok(asked)
    }
}

/// A range as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Range {
    /// Half open.
    From(u64, u64),
    Last(u64),
}

impl Range {
    /// The range in a log of this length, half open; `None` when it has none of these bytes.
    pub fn within(self, length: u64) -> Option<(u64, u64)> {
        let (from, to) = match self {
            Range::From(from, to) => (from, to.min(length)),
            Range::Last(bytes) => (length.saturating_sub(bytes), length),
        };
        (from < to).then_some((from, to))
    }
}

/// `bytes=a-b`, `bytes=a-` or `bytes=-n`. Anything else is answered with everything.
pub(super) fn range(text: &str) -> Option<Range> {
    let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
    if from.is_empty() {
        return to.parse().ok().map(Range::Last);
    }
    let from: u64 = from.parse().ok()?;
    let to = match to {
        "" => u64::MAX,
        to => to.parse::<u64>().ok()?.checked_add(1)?,
    };
    (from < to).then_some(Range::From(from, to))
}

#[cfg(test)]
mod tests {
    use delta_core::RunId;

    use super::*;

    #[test]
    fn simple_ranges_are_understood_and_others_ignored() {
        assert_eq!(range("bytes=0-9"), Some(Range::From(0, 10)));
        assert_eq!(range("bytes=5-"), Some(Range::From(5, u64::MAX)));
        assert_eq!(range("bytes=-5"), Some(Range::Last(5)));
        for odd in [
            "bytes=9-3",
            "bytes=0-1,4-5",
            "lines=0-1",
            "bytes=a-b",
            "bytes=-",
        ] {
            assert_eq!(range(odd), None, "{odd}");
        }
        assert_eq!(Range::From(2, 9).within(5), Some((2, 5)));
        assert_eq!(Range::From(5, 9).within(5), None);
        assert_eq!(Range::Last(9).within(5), Some((0, 5)));
        assert_eq!(Range::Last(0).within(5), None);
    }

    #[test]
    fn a_tag_holds_for_the_same_log_grown_and_for_no_other() {
        let found = Found {
            lease: RunId(7).job(1).attempt(2).lease(33),
            length: 10,
            said: "open".into(),
        };
        assert_eq!(found.etag(), "\"2.33.10\"");
        for good in ["\"2.33.10\"", "\"2.33.4\""] {
            assert!(found.begins_as(good), "{good}");
        }
        for bad in [
            "\"2.33.11\"",
            "\"2.3.4\"",
            "\"1.33.4\"",
            "W/\"2.33.4\"",
            "",
            "\"4\"",
        ] {
            assert!(!found.begins_as(bad), "{bad}");
        }
    }
}
