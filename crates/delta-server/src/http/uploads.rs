//! Bytes of a lease: where to put them, and putting them (A49). Fenced like everything else: the
//! lease is in the `Delta-Lease` header, and one that is over stores nothing more (LM-13).

use aws_lc_rs::digest::{Context, SHA256};
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use delta_core::lease::Stale;
use delta_core::{JobId, Lease, LeaseKey, LeaseState, Millis};
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
use super::extract::{Heard, Runner, next_piece, read};
use super::runner::{hex, parse, proof, stale};
use super::{App, internal};
use crate::audit::Noticed;
use crate::identity::Principal;
use crate::objects::{AppendError, ArtifactMeta, MAX_ARTIFACT_BYTES, MAX_LOG_BYTES, UploadId};

/// Log bytes of one request: a few seconds of a talkative job, held in memory while it is written.
const MAX_CHUNK_BYTES: usize = 4 * 1024 * 1024;

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create_upload))
        .routes(routes!(put_upload))
        .routes(routes!(job_spec))
}

/// Where to put a log or an artifact.
#[utoipa::path(post, path = "/api/v1/runner/uploads", tag = "runner",
    request_body(content = serde_json::Value, description = "CreateUpload"),
    responses(
        (status = 201, description = "UploadCreated", body = serde_json::Value),
        (status = 409, description = "StaleLease", body = serde_json::Value),
        (status = 413, body = ErrorBody)))]
async fn create_upload(
    State(app): State<App>,
    Heard(Runner(who), body): Heard<Runner>,
) -> Result<Response, ApiError> {
    let wanted: CreateUpload = parse(&app, &body.bytes)?;
    let held = match held(&app, &wanted.lease_id, &who, Some(&wanted.runner_id)).await? {
        Ok(held) => held,
        Err(answer) => return Ok(answer),
    };
    let (id, max_bytes) = match wanted.kind {
        UploadKind::Log => {
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
        (status = 200, description = "received so far", body = serde_json::Value),
        (status = 409, description = "OFFSET_MISMATCH with expected, or StaleLease",
            body = serde_json::Value)))]
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
    // Before the bytes are taken, and again after: they may take long.
    if let Err(answer) = held(&app, &token, &who, None).await? {
        return Ok(answer);
    }
    if id.artifact.is_some() {
        return put_artifact(&app, id, &token, &who, body).await;
    }
    let offset = offset(&headers)?;
    let bytes = read(body, MAX_CHUNK_BYTES).await?;
    if let Err(answer) = held(&app, &token, &who, None).await? {
        return Ok(answer);
    }
    let appended = app.objects.clone();
    let appended =
        tokio::task::spawn_blocking(move || appended.append_log(id.lease, offset, &bytes)).await;
    match appended.map_err(|error| internal("a log could not be written", &error))? {
        Ok(received) => Ok(axum::Json(json!({ "received": received })).into_response()),
        Err(AppendError::Io(error)) => Err(internal("a log could not be written", &error)),
        Err(error @ AppendError::Full) => {
            Err(ApiError::new(ErrorCode::TooLarge, error.to_string()))
        }
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

async fn put_artifact(
    app: &App,
    id: UploadId,
    token: &LeaseToken,
    who: &Principal,
    body: Body,
) -> Result<Response, ApiError> {
    let found =
        app.files(move |objects| Ok((objects.artifact_meta(id), objects.artifact_bytes(id.lease))));
    let (Some(meta), used) = found.await? else {
        return Err(ApiError::not_found("upload"));
    };
    let room = MAX_ARTIFACT_BYTES.saturating_sub(used);
    let part = app.objects.part(id);
    let received = receive(body, &part, room).await;
    let checked = match received {
        Ok((size, hash)) => matches(&meta, size, &hash).map(|()| (size, hash)),
        Err(error) => Err(error),
    };
    let lease = held(app, token, who, None).await;
    match (checked, lease) {
        (Ok((size, hash)), Ok(Ok(_))) => {
            let whole = ArtifactMeta {
                name: meta.name,
                size: Some(size),
                sha256: Some(hash),
            };
            app.files(move |objects| objects.seal(id, &part, &whole))
                .await?;
            Ok(axum::Json(json!({ "received": size })).into_response())
        }
        (checked, lease) => {
            let _ = tokio::fs::remove_file(&part).await;
            checked?;
            lease.map(|it| it.err().unwrap_or_else(|| StatusCode::OK.into_response()))
        }
    }
}

/// Writes a body to a file, at most `room` bytes, and says its size and hash.
async fn receive(
    mut body: Body,
    part: &std::path::Path,
    room: u64,
) -> Result<(u64, String), ApiError> {
    let bad = |error: std::io::Error| internal("an artifact could not be written", &error);
    let mut file = tokio::fs::File::create(part).await.map_err(bad)?;
    let mut context = Context::new(&SHA256);
    let mut size = 0;
    while let Some(data) = next_piece(&mut body).await? {
        size += data.len() as u64;
        if size > room {
            return Err(too_large(MAX_ARTIFACT_BYTES));
        }
        context.update(&data);
        file.write_all(&data).await.map_err(bad)?;
    }
    file.sync_all().await.map_err(bad)?;
    Ok((size, hex(context.finish().as_ref())))
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

/// The work of a lease, where it was too large for the grant (RP-24).
#[utoipa::path(get, path = "/api/v1/runner/jobs/{id}/spec", tag = "runner",
    params(("id" = String, Path), ("Delta-Lease" = String, Header)),
    responses((status = 200, description = "the job spec", body = serde_json::Value),
        (status = 409, description = "StaleLease", body = serde_json::Value)))]
async fn job_spec(
    State(app): State<App>,
    Runner(who): Runner,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let job: JobId = super::jobs::job_id(&id)?;
    let token = lease_header(&headers)?;
    if token.locator().map(|it| LeaseKey::from(it).attempt.job) != Some(job) {
        return Ok(stale(token, Stale::Unknown));
    }
    if let Err(answer) = live(&app, &token, &who, None, Taken::OrGranted).await? {
        return Ok(answer);
    }
    let spec = app.read(move |reader| reader.spec(job)).await?;
    let spec = spec.ok_or_else(|| ApiError::not_found("job"))?;
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, spec.to_string()).into_response())
}

/// Whether a grant that was not acknowledged yet will do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    Acknowledged,
    OrGranted,
}

async fn held(
    app: &App,
    token: &LeaseToken,
    who: &Principal,
    runner: Option<&str>,
) -> Result<Result<LeaseKey, Response>, ApiError> {
    live(app, token, who, runner, Taken::Acknowledged).await
}

/// The lease of a token, if it is alive and the caller's; otherwise the answer to give. Judged on
/// committed rows: they say what the core would (A25, A37, A38).
async fn live(
    app: &App,
    token: &LeaseToken,
    who: &Principal,
    runner: Option<&str>,
    taken: Taken,
) -> Result<Result<LeaseKey, Response>, ApiError> {
    let Some(proof) = proof(token, who, String::new()) else {
        return Ok(Err(stale(token.clone(), Stale::Unknown)));
    };
    let key = proof.key;
    let rows = app.read(move |reader| reader.job(key.attempt.job)).await?;
    let shared = app.writer.shared();
    let judged = rows.as_ref().map_or(Err(Stale::Unknown), |rows| {
        judge(rows, &proof, app.writer.now(), shared.lease_floor)
    });
    match judged {
        Err(why) => {
            if why == Stale::Unknown
                && let Some(lease) = rows.as_ref().and_then(|rows| named(rows, key))
            {
                Noticed::of_unknown(lease, &proof).log();
            }
            Ok(Err(stale(token.clone(), why)))
        }
        Ok((state, holder)) => {
            if runner.is_some_and(|runner| runner != holder) {
                return Err(delta_core::Refusal::RunnerMismatch.into());
            }
            if state == LeaseState::Granted && taken == Taken::Acknowledged {
                let message = format!("{}: acknowledge the lease first", Reason::NotAcked);
                return Err(ApiError::new(ErrorCode::Conflict, message));
            }
            Ok(Ok(key))
        }
    }
}

/// The lease that a token's front names, whosever it is.
fn named(rows: &JobRows, key: LeaseKey) -> Option<&Lease> {
    let latest = rows.attempts.iter().filter(|it| it.id == key.attempt);
    let latest = latest.filter_map(|it| it.lease.as_ref());
    let past = rows.past_leases.iter().filter(|(id, _)| *id == key.attempt);
    let mut all = latest.chain(past.map(|(_, lease)| lease));
    all.find(|lease| lease.epoch == key.epoch)
}

fn judge<'a>(
    rows: &'a JobRows,
    proof: &delta_core::command::LeaseProof,
    now: Millis,
    floor: Millis,
) -> Result<(LeaseState, &'a str), Stale> {
    let own = |lease: &&Lease| {
        lease.epoch == proof.key.epoch
            && lease.token == proof.token
            && lease.principal == proof.principal
    };
    let attempt = rows.attempts.iter().find(|it| it.id == proof.key.attempt);
    let Some(lease) = attempt.and_then(|it| it.lease.as_ref()).filter(own) else {
        let past = rows
            .past_leases
            .iter()
            .filter(|(id, _)| *id == proof.key.attempt);
        let superseded = past.map(|(_, lease)| lease).any(|lease| own(&lease));
        return Err(if superseded {
            Stale::Superseded
        } else {
            Stale::Unknown
        });
    };
    match lease.state {
        LeaseState::Granted | LeaseState::Active if now < lease.expires_at.max(floor) => {
            Ok((lease.state, &lease.runner))
        }
        LeaseState::Granted | LeaseState::Active | LeaseState::Expired => Err(Stale::Expired),
        LeaseState::Revoked => Err(Stale::Revoked),
        LeaseState::Completed | LeaseState::Canceled => Err(Stale::AlreadyFinal),
    }
}

fn lease_header(headers: &HeaderMap) -> Result<LeaseToken, ApiError> {
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
