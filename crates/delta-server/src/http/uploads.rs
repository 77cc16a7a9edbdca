//! Bytes of a lease: where to put them, and putting them (A49). Fenced like everything else: the
//! lease is in the `Delta-Lease` header, and one that is over stores nothing more (LM-13), but for
//! the rest of a log it declared (I25), or the log of a cancel that was just forced (A42).

use aws_lc_rs::digest::{Context, SHA256};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use delta_core::lease::Stale;
use delta_core::rights::{Denied, LogRight, Right};
use delta_core::{JobId, LeaseKey};
use delta_store::read::JobRows;
use delta_wire::runner::{
    CreateUpload, LeaseToken, Reason, UploadCreated, UploadKind, UploadMethod,
};
use delta_wire::{ErrorBody, ErrorCode, Invalid};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Caller, Heard, Path, Runner, drain, read};
use super::internal;
use super::recheck::{BodyPiece, LeaseVigil};
use super::runner::{parse, stale};
use crate::app::App;
use crate::audit::{self, Noticed};
use crate::lease_rights::Evidence;
use crate::not_done::NotDone;
use crate::objects::{
    AppendError, ArtifactMeta, MAX_ARTIFACT_BYTES, MAX_LOG_BYTES, Part, Sealed, UploadId,
};
use crate::runner_commands::hex;

/// Log bytes of one request: a few seconds of a talkative job, held in memory while it is written.
const MAX_CHUNK_BYTES: usize = 4 * 1024 * 1024;
/// What is reserved at a time where nobody said how many bytes will come: each time the lease's
/// files are counted, so it is worth some megabytes.
const RESERVED_AHEAD: u64 = 16 * 1024 * 1024;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create_upload))
        .routes(routes!(put_upload))
        .routes(routes!(show_job_spec))
}

/// Where to put a log or an artifact.
#[utoipa::path(post, path = "/api/v1/runner/uploads", tag = "runner",
    request_body(content = ref("#/components/schemas/CreateUpload")),
    responses(
        (status = 201, description = "where to", body = ref("#/components/schemas/UploadCreated")),
        (status = 409, description = "the lease is over, or not acknowledged yet",
            body = ref("#/components/schemas/NotHeld")),
        (status = 413, body = ErrorBody), (status = 507, body = ErrorBody)))]
async fn create_upload(
    State(app): State<App>,
    Heard(Runner(who), body): Heard<Runner>,
) -> Result<Response, ApiError> {
    let body = body.without_receipt();
    let wanted: CreateUpload = parse(&app, &body.bytes)?;
    let right = match wanted.kind {
        UploadKind::Log => Right::Log,
        UploadKind::Artifact => Right::Artifact,
    };
    let runner = Some(wanted.runner_id.as_str());
    let held = match held(&app, &wanted.lease_id, &who, runner, right).await? {
        Ok(held) => held,
        Err(answer) => return Ok(answer),
    };
    let held = held.key;
    let (id, max_bytes) = match wanted.kind {
        UploadKind::Log => {
            app.files(move |objects| objects.make_log(held)).await?;
            let log = UploadId {
                lease: held,
                artifact: None,
            };
            (log, MAX_LOG_BYTES)
        }
        UploadKind::Artifact => {
            if wanted.size.is_some_and(|size| size > MAX_ARTIFACT_BYTES) {
                return Err(too_large(MAX_ARTIFACT_BYTES));
            }
            let meta = ArtifactMeta {
                name: wanted.name,
                kind: None,
                size: wanted.size,
                sha256: wanted.sha256.map(|hash| hash.to_lowercase()),
            };
            let made = app
                .files(move |objects| objects.new_artifact(held, &meta))
                .await?;
            let made = made.ok_or_else(|| {
                ApiError::new(ErrorCode::TooLarge, "this lease has too many artifacts")
            })?;
            (made, MAX_ARTIFACT_BYTES)
        }
    };
    let answer = UploadCreated {
        upload_id: id.to_string(),
        url: format!("/api/v1/runner/uploads/{id}"),
        uri: format!("delta:{id}"),
        method: UploadMethod::Put,
        max_bytes,
    };
    Ok((StatusCode::CREATED, axum::Json(answer)).into_response())
}

/// Store bytes: a log grows at `Upload-Offset`, an artifact comes whole.
#[utoipa::path(put, path = "/api/v1/runner/uploads/{id}", tag = "runner",
    params(("id" = String, Path), ("Delta-Lease" = String, Header),
        ("Upload-Offset" = Option<u64>, Header)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "received so far",
            body = ref("#/components/schemas/UploadReceived")),
        (status = 409, description = "the log goes on elsewhere, or the lease is over",
            body = ref("#/components/schemas/NotStored")), (status = 507, body = ErrorBody)))]
async fn put_upload(
    State(app): State<App>,
    Runner(who): Runner,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let id: UploadId = id.parse().map_err(|()| ApiError::not_found("upload"))?;
    let token = lease_header(&headers)?;
    if token.locator().map(LeaseKey::from) != Some(id.lease) {
        return Ok(stale(token, Stale::Unknown));
    }
    let right = match id.artifact {
        None => Right::Log,
        Some(_) => Right::Artifact,
    };
    // Before the bytes are taken, and again after: they may take long.
    if let Err(answer) = held(&app, &token, &who, None, right).await? {
        return Ok(answer);
    }
    if right == Right::Artifact {
        let vigil = LeaseVigil::new(&app, token.clone(), &who, right);
        let received = receive(&app, id, &headers, body, vigil).await?;
        if let Err(answer) = held(&app, &token, &who, None, right).await? {
            return Ok(answer);
        }
        return match received {
            Received::Whole(received) => {
                let (part, whole) = *received;
                seal(&app, part, whole).await
            }
            Received::NotAnnounced => Err(ApiError::not_found("upload")),
            // It is good again: whoever sends it does so once more.
            Received::BrokenOff => Err(NotDone::Unavailable(BROKEN_OFF.into()).into()),
        };
    }
    let offset = offset(&headers)?;
    let bytes = read(body, MAX_CHUNK_BYTES).await?;
    let held = match held(&app, &token, &who, None, right).await? {
        Ok(held) => held,
        Err(answer) => return Ok(answer),
    };
    if !held.log.covers(offset, bytes.len()) {
        return Ok(stale(token, Stale::AlreadyFinal));
    }
    store(&app, id.lease, offset, bytes).await
}

/// Answered when the bytes are on disk.
async fn store(
    app: &App,
    lease: LeaseKey,
    offset: u64,
    bytes: bytes::Bytes,
) -> Result<Response, ApiError> {
    let objects = app.objects.clone();
    let stored = tokio::task::spawn_blocking(move || objects.store_log(lease, offset, &bytes));
    let stored = stored.await;
    match stored.map_err(|error| internal("a log could not be written", &error))? {
        Ok(cursors) => Ok(axum::Json(json!({ "received": cursors.stored })).into_response()),
        Err(AppendError::Unknown) => Err(ApiError::not_found("upload")),
        Err(error @ AppendError::Busy) => {
            Err(ApiError::new(ErrorCode::Unavailable, error.to_string()))
        }
        Err(AppendError::Io(error)) => Err(NotDone::from(error).into()),
        Err(error @ AppendError::Gap { expected }) => {
            Ok(mismatch("OFFSET_MISMATCH", &error, expected))
        }
        Err(error @ AppendError::Differs { .. }) => {
            Err(ApiError::new(ErrorCode::LogConflict, error.to_string()))
        }
    }
}

/// The error shape, and where to go on.
fn mismatch(code: &str, error: &AppendError, expected: u64) -> Response {
    let body = json!({
        "code": code, "message": error.to_string(), "field": "Upload-Offset",
        "retryable": false, "expected": expected,
    });
    let header = [("upload-offset", expected.to_string())];
    (StatusCode::CONFLICT, header, axum::Json(body)).into_response()
}

/// Said where the right to an upload was gone for a moment only.
pub(super) const BROKEN_OFF: &str = "the lease was not good for a moment; send it again";

/// What came of an upload. A part that is not kept goes when it is dropped.
enum Received {
    Whole(Box<(Part, ArtifactMeta)>),
    NotAnnounced,
    /// The right to it ended on the way.
    BrokenOff,
}

/// Receives an artifact into a part of its own, as far as the lease has room and for as long as it
/// is good, and says what it is.
async fn receive(
    app: &App,
    id: UploadId,
    headers: &HeaderMap,
    mut body: Body,
    vigil: LeaseVigil,
) -> Result<Received, ApiError> {
    let begun = app.files(move |objects| match objects.announced(id)? {
        Some(meta) => Ok(Some((meta, objects.part(id)?))),
        None => Ok(None),
    });
    let Some((meta, part)) = begun.await? else {
        return Ok(Received::NotAnnounced);
    };
    let length = content_length(headers);
    let filled = fill(app, part, meta, length, &mut body, vigil).await;
    if filled.is_err() {
        // Its part is gone, and the space it took.
        drain(&mut body).await;
    }
    filled
}

async fn fill(
    app: &App,
    mut part: Part,
    meta: ArtifactMeta,
    length: Option<u64>,
    body: &mut Body,
    mut vigil: LeaseVigil,
) -> Result<Received, ApiError> {
    let bad = |error: std::io::Error| ApiError::from(NotDone::from(error));
    if let Some(size) = meta.size.or(length) {
        part = reserve(app, part, size, size).await?;
    }
    let mut file = tokio::fs::File::from_std(part.file.try_clone().map_err(bad)?);
    let mut context = Context::new(&SHA256);
    let mut size = 0;
    loop {
        let data = match vigil.next_piece(body).await? {
            BodyPiece::Bytes(data) => data,
            BodyPiece::End => break,
            BodyPiece::RightGone => return Ok(Received::BrokenOff),
        };
        size += data.len() as u64;
        if size > part.reserved {
            part = reserve(app, part, size, size + RESERVED_AHEAD).await?;
        }
        context.update(&data);
        file.write_all(&data).await.map_err(bad)?;
    }
    file.flush().await.map_err(bad)?;
    let hash = hex(context.finish().as_ref());
    matches(&meta, size, &hash)?;
    let whole = ArtifactMeta {
        name: meta.name,
        kind: meta.kind,
        size: Some(size),
        sha256: Some(hash),
    };
    Ok(Received::Whole(Box::new((part, whole))))
}

async fn reserve(app: &App, mut part: Part, least: u64, most: u64) -> Result<Part, ApiError> {
    let reserved = app.files(move |objects| {
        let fits = objects.reserve(&mut part, least, most)?;
        Ok(fits.then_some(part))
    });
    reserved.await?.ok_or_else(|| too_large(MAX_ARTIFACT_BYTES))
}

/// Makes what was received the artifact; answered when it is on disk.
async fn seal(app: &App, part: Part, whole: ArtifactMeta) -> Result<Response, ApiError> {
    let size = whole.size;
    let sealed = app.files(move |objects| objects.seal(part, &whole));
    match sealed.await? {
        Sealed::Done => Ok(axum::Json(json!({ "received": size })).into_response()),
        Sealed::Differs => {
            let message = "this upload has other bytes already";
            Err(ApiError::new(ErrorCode::Conflict, message))
        }
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(header::CONTENT_LENGTH)?;
    text.to_str().ok()?.parse().ok()
}

fn matches(meta: &ArtifactMeta, size: u64, hash: &str) -> Result<(), ApiError> {
    let wrong = |field: &str, said: &str, found: &str| {
        let message = format!("was announced as {said}, and the bytes have {found}");
        Err(Invalid::field(field, message).into())
    };
    match (&meta.size, &meta.sha256) {
        (Some(said), _) if *said != size => wrong("size", &said.to_string(), &size.to_string()),
        (_, Some(said)) if said != hash => wrong("sha256", said, hash),
        _ => Ok(()),
    }
}

/// The work of a lease, where it was too large for the grant.
#[utoipa::path(get, path = "/api/v1/runner/jobs/{id}/spec", tag = "runner",
    params(("id" = String, Path), ("Delta-Lease" = String, Header)),
    responses((status = 200, description = "the job spec",
            body = ref("#/components/schemas/LeaseGranted.job_spec")),
        (status = 409, description = "the lease is over, or not acknowledged yet",
            body = ref("#/components/schemas/NotHeld"))))]
async fn show_job_spec(
    State(app): State<App>,
    Runner(who): Runner,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let job = match held_for(&app, &who, &id, &headers, Right::Spec).await? {
        Ok(held) => held.key.attempt.job,
        Err(answer) => return Ok(answer),
    };
    let spec = app.read(move |reader| reader.spec(job)).await?;
    let spec = spec.ok_or_else(|| ApiError::not_found("job"))?;
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, spec.to_string()).into_response())
}

/// The lease in the header of a request about a job, if it is one of that job's; otherwise the
/// answer to give.
pub(super) async fn held_for(
    app: &App,
    who: &Caller,
    id: &str,
    headers: &HeaderMap,
    right: Right,
) -> Result<Result<Held, Response>, ApiError> {
    let job: JobId = super::jobs::job_id(id)?;
    let token = lease_header(headers)?;
    if token.locator().map(|it| LeaseKey::from(it).attempt.job) != Some(job) {
        return Ok(Err(stale(token, Stale::Unknown)));
    }
    held(app, &token, who, None, right).await
}

/// The lease of a token, if it is the caller's and gives this right; otherwise the answer to give.
/// Judged on committed rows, by the core's own rule (I23, A25, A37, A38), and by who the caller is
/// now: a body may have taken long.
pub(super) async fn held(
    app: &App,
    token: &LeaseToken,
    who: &Caller,
    runner: Option<&str>,
    right: Right,
) -> Result<Result<Held, Response>, ApiError> {
    app.still_admitted(who).await?;
    let Some(proof) = who.proof(token, String::new()) else {
        return Ok(Err(stale(token.clone(), Stale::Unknown)));
    };
    let key = proof.key;
    let asked = proof.clone();
    let evidence = app
        .read(move |reader| Evidence::find(reader, &asked))
        .await?;
    let (now, shared) = (app.writer.now(), app.writer.shared());
    let (lease, log) = match evidence.judge(&proof, right, now, shared) {
        Ok(given) => given,
        Err(Denied::Stale(why)) => {
            if why == Stale::Unknown
                && let Some(lease) = evidence.named(key)
            {
                Noticed::of_unknown(lease, &proof).log();
            }
            return Ok(Err(stale(token.clone(), why)));
        }
        Err(Denied::Barred(why)) => {
            audit::barred(why, key, &proof);
            return Err(delta_core::Refusal::Barred(why).into());
        }
        Err(Denied::NotAcknowledged) => {
            let message = format!("{}: acknowledge the lease first", Reason::NotAcked);
            return Err(ApiError::new(ErrorCode::Conflict, message));
        }
    };
    if runner.is_some_and(|runner| runner != &*lease.runner) {
        return Err(delta_core::Refusal::RunnerMismatch.into());
    }
    let rows = evidence.rows.ok_or_else(|| ApiError::not_found("job"))?;
    Ok(Ok(Held { key, log, rows }))
}

/// A lease that gives the right it was shown for.
pub(super) struct Held {
    pub key: LeaseKey,
    log: LogRight,
    /// What it was judged by.
    pub rows: JobRows,
}

pub(super) fn lease_header(headers: &HeaderMap) -> Result<LeaseToken, ApiError> {
    let text = headers
        .get("delta-lease")
        .and_then(|value| value.to_str().ok());
    let text = text.ok_or_else(|| Invalid::missing("Delta-Lease"))?;
    Ok(LeaseToken::from_text(text).map_err(|problem| problem.within("Delta-Lease"))?)
}

fn offset(headers: &HeaderMap) -> Result<u64, ApiError> {
    let text = headers
        .get("upload-offset")
        .and_then(|value| value.to_str().ok());
    let text = text.ok_or_else(|| Invalid::missing("Upload-Offset"))?;
    let number = text
        .parse()
        .map_err(|_| Invalid::field("Upload-Offset", "is not a number"));
    Ok(number?)
}

fn too_large(limit: u64) -> ApiError {
    let message = format!("the artifacts of one lease have at most {limit} bytes");
    ApiError::new(ErrorCode::TooLarge, message)
}
