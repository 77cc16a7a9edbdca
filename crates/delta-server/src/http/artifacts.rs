//! Artifacts for people: which there are, and their bytes, as a file to keep and never as anything
//! a browser would act on (RP-56).
//!
//! A name is compared with those the server stored, and is no part of any path.

use std::io;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use delta_core::{Attempt, Job, LeaseKey};
use delta_store::StoreError;
use delta_store::read::{JobRows, Reader};
use delta_wire::api::{ArtifactList, ArtifactView, JobArtifact};
use delta_wire::{ErrorBody, Invalid};
use tokio::io::{AsyncReadExt, AsyncSeekExt, SeekFrom};
use tokio_util::io::ReaderStream;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Path, User};
use super::internal;
use super::log::range;
use super::recheck::LeaseVigil;
use crate::app::App;
use crate::objects::references::{ArtifactReference, references, winner};
use crate::objects::{ArtifactMeta, Objects, UploadId};

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list_artifacts))
        .routes(routes!(list_run_artifacts))
        .routes(routes!(show_artifact))
}

/// The artifacts of a job that are stored here, attempt by attempt.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/artifacts", tag = "jobs",
    params(("id" = String, Path)),
    responses((status = 200, body = ArtifactList), (status = 404, body = ErrorBody)))]
async fn list_artifacts(
    State(app): State<App>,
    _who: User,
    Path(id): Path<String>,
) -> Result<axum::Json<ArtifactList>, ApiError> {
    let found = stored(&app, &id).await?;
    let artifacts = found.into_iter().map(|(_, artifact)| artifact).collect();
    Ok(axum::Json(ArtifactList { artifacts }))
}

/// The artifacts of all jobs of a run, of each job's latest attempt.
#[utoipa::path(get, path = "/api/v1/runs/{id}/artifacts", tag = "runs",
    params(("id" = String, Path)),
    responses((status = 200, body = ArtifactList), (status = 404, body = ErrorBody)))]
async fn list_run_artifacts(
    State(app): State<App>,
    _who: User,
    Path(id): Path<String>,
) -> Result<axum::Json<ArtifactList>, ApiError> {
    let rows = super::runs::find(&app, super::runs::run_id(&id)?).await?;
    let jobs = app.read(move |reader| sources(reader, rows.jobs)).await?;
    let artifacts = app.files(move |objects| {
        let mut found = Vec::new();
        for (job, attempt) in &jobs {
            of_attempt(objects, job, attempt, &mut found)?;
        }
        Ok(found.into_iter().map(|(_, artifact)| artifact).collect())
    });
    let artifacts = artifacts.await?;
    Ok(axum::Json(ArtifactList { artifacts }))
}

/// The bytes of an artifact: of the latest attempt with one of that name, or of the attempt named.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/artifacts/{name}", tag = "jobs",
    params(("id" = String, Path),
        ("name" = String, Path, description = "with each `/` written as `%2F`"),
        ("attempt" = Option<u32>, Query), ("Range" = Option<String>, Header),
        ("If-Range" = Option<String>, Header), ("If-None-Match" = Option<String>, Header)),
    responses(
        (status = 200, description = "the bytes; the ETag is their SHA-256",
            content_type = "application/octet-stream", body = Vec<u8>),
        (status = 206, description = "a part of them",
            content_type = "application/octet-stream", body = Vec<u8>),
        (status = 304, description = "as it was"),
        (status = 404, body = ErrorBody),
        (status = 416, description = "beyond its end")))]
async fn show_artifact(
    State(app): State<App>,
    _who: User,
    Path((id, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let only = attempt_asked(query.as_deref())?;
    let fits =
        |it: &JobArtifact| it.name == name && only.is_none_or(|attempt| it.attempt == attempt);
    let found = stored(&app, &id).await?.into_iter().rev();
    let found = found.into_iter().find(|(_, artifact)| fits(artifact));
    let (upload, artifact) = found.ok_or_else(|| ApiError::not_found("artifact"))?;
    let kept = Kept {
        id: upload,
        name: artifact.name,
        size: artifact.size,
        sha256: artifact.sha256,
    };
    serve(&app, &kept, &headers, None).await
}

/// An artifact that is served.
pub(super) struct Kept {
    pub id: UploadId,
    pub name: String,
    pub size: u64,
    pub sha256: String,
}

/// Its bytes, or the part of them that is asked for. What is sealed never changes, so that its
/// hash is its tag.
pub(super) async fn serve(
    app: &App,
    kept: &Kept,
    headers: &HeaderMap,
    vigil: Option<LeaseVigil>,
) -> Result<Response, ApiError> {
    let (size, etag) = (kept.size, format!("\"{}\"", kept.sha256));
    let text = |name| {
        headers
            .get(name)
            .and_then(|it: &HeaderValue| it.to_str().ok())
    };
    let tag = [(header::ETAG, etag.clone())];
    if text(header::IF_NONE_MATCH) == Some(etag.as_str()) {
        return Ok((StatusCode::NOT_MODIFIED, tag).into_response());
    }
    let fits = text(header::IF_RANGE).is_none_or(|it| it == etag);
    let asked = text(header::RANGE).filter(|_| fits).and_then(range);
    let part = asked.map(|range| range.within(size));
    if part == Some(None) {
        let whole = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
        return Ok((StatusCode::RANGE_NOT_SATISFIABLE, whole).into_response());
    }
    let (from, to) = part.flatten().unwrap_or((0, size));
    let bad = |error: std::io::Error| internal("an artifact could not be read", &error);
    let file = tokio::fs::File::open(app.objects.artifact_path(kept.id)).await;
    let mut file = file.map_err(bad)?;
    if from > 0 {
        file.seek(SeekFrom::Start(from)).await.map_err(bad)?;
    }
    let file = file.take(to - from);
    let body = match vigil {
        Some(vigil) => vigil.body(to - from, file),
        None => Body::from_stream(ReaderStream::with_capacity(file, PIECE_BYTES)),
    };
    let mut response = (KEPT, tag, body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, (to - from).into());
    headers.insert(header::CONTENT_DISPOSITION, attachment(&kept.name));
    if part.is_some() {
        let words = format!("bytes {from}-{}/{size}", to - 1);
        if let Ok(words) = words.parse() {
            headers.insert(header::CONTENT_RANGE, words);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// Bytes that are read at a time for one reader.
const PIECE_BYTES: usize = 256 * 1024;

/// Untrusted bytes stay bytes: no type, no sniffing, no rendering, no scripts.
const KEPT: [(header::HeaderName, &str); 5] = [
    (header::ACCEPT_RANGES, "bytes"),
    (header::CACHE_CONTROL, "private, no-store"),
    (header::CONTENT_TYPE, "application/octet-stream"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; sandbox",
    ),
];

/// A file to be saved under the last part of the artifact's name (RFC 6266, RFC 8187).
fn attachment(name: &str) -> HeaderValue {
    let last = name.rsplit('/').next().unwrap_or_default();
    let mut encoded = String::from("attachment; filename*=UTF-8''");
    for byte in last.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    HeaderValue::try_from(encoded).unwrap_or(HeaderValue::from_static("attachment"))
}

fn attempt_asked(query: Option<&str>) -> Result<Option<u32>, ApiError> {
    let mut asked = None;
    for (name, value) in super::query_pairs(query)? {
        if name != "attempt" {
            return Err(Invalid::field(name, "is not known; known here: attempt").into());
        }
        let number = value.parse();
        asked = Some(number.map_err(|_| Invalid::field(name, "is not a number"))?);
    }
    Ok(asked)
}

/// What can be fetched of a job, in the order in which it was named. Of several with one name in
/// one attempt the last counts.
async fn stored(app: &App, id: &str) -> Result<Vec<(UploadId, JobArtifact)>, ApiError> {
    let id = super::jobs::job_id(id)?;
    let rows = app
        .read(move |reader| super::jobs::source(reader, id))
        .await?;
    let rows = rows.ok_or_else(|| ApiError::not_found("job"))?;
    Ok(app.files(move |objects| of_job(objects, &rows)).await?)
}

/// Each job with the attempt that left something: a kept job's is that of the run before.
pub(super) fn sources(
    reader: &dyn Reader,
    jobs: Vec<(Job, Attempt)>,
) -> Result<Vec<(Job, Attempt)>, StoreError> {
    let mut found = Vec::with_capacity(jobs.len());
    for (job, attempt) in jobs {
        let kept = match job.kept {
            Some(kept) => reader.job(kept)?,
            None => None,
        };
        found.push(match kept {
            Some(mut rows) => match rows.attempts.pop() {
                Some(last) => (rows.job, last),
                None => (job, attempt),
            },
            None => (job, attempt),
        });
    }
    Ok(found)
}

fn of_job(objects: &Objects, rows: &JobRows) -> io::Result<Vec<(UploadId, JobArtifact)>> {
    let mut found = Vec::new();
    for attempt in &rows.attempts {
        of_attempt(objects, &rows.job, attempt, &mut found)?;
    }
    Ok(found)
}

fn of_attempt(
    objects: &Objects,
    job: &Job,
    attempt: &Attempt,
    found: &mut Vec<(UploadId, JobArtifact)>,
) -> io::Result<()> {
    for (upload, view) in named(attempt, |id| objects.artifact(id))? {
        let (Some(upload), Some(name), Some(size), Some(sha256)) =
            (upload, view.name, view.size, view.sha256)
        else {
            continue;
        };
        let (job_id, attempt) = (job.id.to_string(), attempt.id.index);
        found.retain(|(_, it)| (&it.job_id, it.attempt, &it.name) != (&job_id, attempt, &name));
        found.push((
            upload,
            JobArtifact {
                job_id,
                job: job.name.to_string(),
                attempt,
                kind: view.kind,
                name,
                size,
                sha256,
            },
        ));
    }
    Ok(())
}

/// What is shown of the artifacts of an attempt. An attempt is shown though its files are out of
/// reach: then without them.
pub fn views(objects: &Objects, attempt: &Attempt) -> Vec<ArtifactView> {
    let reached = |id| Ok(objects.artifact(id).unwrap_or_default());
    let named = named(attempt, reached).unwrap_or_default();
    named.into_iter().map(|(_, view)| view).collect()
}

/// What an attempt left to the jobs that need it. Nothing is left out because it is out of reach:
/// the job would be told that it was never there (D10).
pub(super) fn left(objects: &Objects, attempt: &Attempt) -> io::Result<Vec<Named>> {
    named(attempt, |id| objects.artifact_of_result(id))
}

/// A reference, and the place of its bytes where they are stored here.
pub(super) type Named = (Option<UploadId>, ArtifactView);

/// References as the runner gave them. Ours are shown with what is known of the bytes, and only
/// when all of them are there; others are text (A49).
fn named(
    attempt: &Attempt,
    meta: impl Fn(UploadId) -> io::Result<Option<ArtifactMeta>>,
) -> io::Result<Vec<Named>> {
    let references = references(attempt).into_iter();
    let views = references.map(|reference| view(reference, winner(attempt), &meta));
    views.filter_map(Result::transpose).collect()
}

/// One of what an attempt left, if it is named and stored here; the others are not looked at.
pub(super) fn left_one(
    objects: &Objects,
    attempt: &Attempt,
    id: UploadId,
) -> io::Result<Option<ArtifactView>> {
    one(references(attempt), winner(attempt), id, |id| {
        objects.artifact_of_result(id)
    })
}

fn one(
    references: Vec<ArtifactReference>,
    winner: Option<LeaseKey>,
    id: UploadId,
    meta: impl Fn(UploadId) -> io::Result<Option<ArtifactMeta>>,
) -> io::Result<Option<ArtifactView>> {
    let mut references = references.into_iter();
    let Some(reference) = references.find(|it| it.upload() == Some(id)) else {
        return Ok(None);
    };
    let found = view(reference, winner, meta)?;
    Ok(found.and_then(|(own, view)| own.is_some().then_some(view)))
}

fn view(
    reference: ArtifactReference,
    winner: Option<LeaseKey>,
    meta: impl Fn(UploadId) -> io::Result<Option<ArtifactMeta>>,
) -> io::Result<Option<Named>> {
    let own = reference.upload().filter(|id| Some(id.lease) == winner);
    let file = own.filter(|id| id.artifact.is_some());
    let meta = match file {
        Some(id) => meta(id)?,
        None => None,
    };
    if file.is_some() && meta.is_none() {
        return Ok(None);
    }
    let view = ArtifactView {
        kind: reference.r#type,
        uri: reference.uri,
        external: own.is_none(),
        name: meta.as_ref().map(|meta| meta.name.clone()),
        size: meta.as_ref().and_then(|meta| meta.size),
        sha256: meta.and_then(|meta| meta.sha256),
    };
    Ok(Some((file, view)))
}

#[cfg(test)]
mod tests {
    use delta_core::RunId;

    use super::*;

    #[test]
    fn a_file_is_saved_under_the_last_part_of_its_name_whatever_it_is() {
        // RP-56
        for (name, saved) in [
            ("a.txt", "a.txt"),
            ("site/index.html", "index.html"),
            ("x/\"; filename=evil.sh", "%22%3B%20filename%3Devil.sh"),
            ("größe", "gr%C3%B6%C3%9Fe"),
        ] {
            let wanted = format!("attachment; filename*=UTF-8''{saved}");
            assert_eq!(attachment(name), wanted, "{name}");
        }
    }

    // D4, D15
    #[test]
    fn one_artifact_is_found_without_a_look_at_the_others() {
        let lease = |epoch| RunId(7).job(1).attempt(1).lease(epoch);
        let upload = |epoch, artifact| UploadId {
            lease: lease(epoch),
            artifact: Some(artifact),
        };
        let named = |id: UploadId| ArtifactReference {
            r#type: "file".into(),
            uri: format!("delta:{id}"),
        };
        let looks = std::cell::Cell::new(0);
        let find = |id: UploadId| {
            let mut all: Vec<_> = (0..1000).map(|n| named(upload(2, n))).collect();
            all.push(named(upload(1, 5000)));
            let found = one(all, Some(lease(2)), id, |id| {
                looks.set(looks.get() + 1);
                Ok(Some(ArtifactMeta {
                    name: id.to_string(),
                    kind: None,
                    size: Some(1),
                    sha256: None,
                }))
            });
            found.expect("nothing is out of reach")
        };
        let found = find(upload(2, 500)).expect("an artifact");
        assert_eq!(found.name, Some(upload(2, 500).to_string()));
        assert_eq!(looks.get(), 1);
        // Not named; named, and of a lease that lost.
        assert_eq!(find(upload(2, 5000)), None);
        assert_eq!(find(upload(1, 5000)), None);
        assert_eq!(looks.get(), 1);
    }
}
