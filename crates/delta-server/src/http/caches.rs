//! Caches: found, fetched and saved by the holder of a lease, in the scopes of its run; listed and
//! removed by people.
//!
//! Which scope a run has is the server's business (T7): nothing in a request says it.

use aws_lc_rs::digest::{Context, SHA256};
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use delta_core::rights::Right;
use delta_core::run::RunHeader;
use delta_wire::api::{
    CacheChecked, CacheFound, CacheList, CacheSaved, CacheView, FindCache, cache_key,
};
use delta_wire::{ErrorBody, ErrorCode, Invalid, Millis};
use tokio::io::AsyncWriteExt;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::extract::{Admin, Caller, Heard, Path, Runner, User, drain};
use super::internal;
use super::recheck::{BodyPiece, LeaseVigil};
use super::uploads::{BROKEN_OFF, held_for, lease_header};
use crate::app::App;
use crate::audit;
use crate::caches::{Cache, CachePart, MAX_CACHE_BYTES, NoRoom, Saved, Saving, Scope};
use crate::not_done::NotDone;
use crate::runner_commands::hex;

/// Each check reads a whole cache: one after the other, however many are asked for.
static CHECKS: Semaphore = Semaphore::const_new(1);

pub fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(find_cache))
        .routes(routes!(save_cache))
        .routes(routes!(fetch_cache))
        .routes(routes!(check_cache))
        .routes(routes!(list_caches))
        .routes(routes!(remove_cache))
}

/// The cache of this key that the run may read; else the newest of a prefix.
#[utoipa::path(post, path = "/api/v1/runner/jobs/{id}/caches/find", tag = "runner",
    params(("id" = String, Path), ("Delta-Lease" = String, Header)), request_body = FindCache,
    responses((status = 200, body = CacheFound),
        (status = 409, description = "the lease is over, or not acknowledged yet",
            body = ref("#/components/schemas/NotHeld"))))]
async fn find_cache(
    State(app): State<App>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Heard(Runner(who), body): Heard<Runner>,
) -> Result<Response, ApiError> {
    let asker = match asker(&app, &who, &id, &headers).await? {
        Ok(asker) => asker,
        Err(answer) => return Ok(answer),
    };
    let body = body.without_receipt();
    let wanted: FindCache = serde_json::from_slice(&body.bytes)
        .map_err(|error| Invalid::here(format!("cannot be read: {error}")))?;
    if let Some((field, words)) = wanted.wrong() {
        return Err(Invalid::field(field, words).into());
    }
    let (scopes, saving) = (Scope::readable(&asker.run), wanted.saving);
    let found = app.files(move |objects| {
        let caches = objects.caches();
        caches.find(&scopes, &wanted.key, &wanted.restore_keys)
    });
    let found = found.await?;
    let metrics = app.metrics();
    match found {
        _ if saving => 0,
        Some(_) => metrics.cache_hits.inc(),
        None => metrics.cache_misses.inc(),
    };
    let cache = found.as_ref().map(view);
    Ok(axum::Json(CacheFound { cache }).into_response())
}

/// The bytes of a cache that the run may read.
#[utoipa::path(get, path = "/api/v1/runner/jobs/{id}/caches/{cache}", tag = "runner",
    params(("id" = String, Path), ("cache" = String, Path), ("Delta-Lease" = String, Header)),
    responses(
        (status = 200, content_type = "application/octet-stream", body = Vec<u8>),
        (status = 404, body = ErrorBody),
        (status = 409, description = "the lease is over, or not acknowledged yet",
            body = ref("#/components/schemas/NotHeld"))))]
async fn fetch_cache(
    State(app): State<App>,
    Runner(who): Runner,
    Path((id, cache)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let cache = match readable(&app, &who, &id, &headers, cache).await? {
        Ok(cache) => cache,
        Err(answer) => return Ok(answer),
    };
    let size = cache.meta.size;
    let path = app.files(move |objects| {
        // Here and not where it is looked for: one that nobody fetches may age.
        objects.caches().used(&cache);
        Ok(objects.caches().bytes_of(&cache))
    });
    let path = path.await?;
    let file = match tokio::fs::File::open(path).await {
        // Evicted meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(ApiError::not_found("cache"));
        }
        file => file.map_err(|error| internal("a cache could not be read", &error))?,
    };
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    let vigil = LeaseVigil::new(&app, lease_header(&headers)?, &who, Right::Artifact);
    let body = vigil.body(size, file);
    let mut response = (kind, body).into_response();
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, size.into());
    Ok(response)
}

/// A cache that could not be restored: the server looks at its bytes, and removes it where they are
/// not those that were saved.
#[utoipa::path(post, path = "/api/v1/runner/jobs/{id}/caches/{cache}/check", tag = "runner",
    params(("id" = String, Path), ("cache" = String, Path), ("Delta-Lease" = String, Header)),
    responses(
        (status = 200, body = CacheChecked),
        (status = 404, body = ErrorBody),
        (status = 409, description = "the lease is over, or not acknowledged yet",
            body = ref("#/components/schemas/NotHeld"))))]
async fn check_cache(
    State(app): State<App>,
    Runner(who): Runner,
    Path((id, cache)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let cache = match readable(&app, &who, &id, &headers, cache).await? {
        Ok(cache) => cache,
        Err(answer) => return Ok(answer),
    };
    let turn = CHECKS.acquire().await;
    let turn = turn.map_err(|error| internal("no cache can be checked", &error))?;
    let id = cache.id.clone();
    let removed = app.files(move |objects| {
        let _turn = turn;
        objects.caches().check(&cache)
    });
    let removed = removed.await?;
    if removed {
        tracing::warn!(cache = %id, "a cache was removed: its bytes are not those that were saved");
    }
    Ok(axum::Json(CacheChecked { removed }).into_response())
}

/// Save a cache in the run's own scope, once per key.
#[utoipa::path(put, path = "/api/v1/runner/jobs/{id}/caches", tag = "runner",
    params(("id" = String, Path), ("key" = String, Query), ("sha256" = String, Query),
        ("work_millis" = Option<u64>, Query, description = "How long the steps took"),
        ("Delta-Lease" = String, Header)),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = CacheSaved),
        (status = 409, description = "the lease is over, or not acknowledged yet",
            body = ref("#/components/schemas/NotHeld")),
        (status = 413, body = ErrorBody), (status = 507, body = ErrorBody)))]
async fn save_cache(
    State(app): State<App>,
    Runner(who): Runner,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    mut body: Body,
) -> Result<Response, ApiError> {
    let asker = match asker(&app, &who, &id, &headers).await? {
        Ok(asker) => asker,
        Err(answer) => return Ok(answer),
    };
    let said = said(query.as_deref())?;
    let size = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|it| it.to_str().ok());
    let size: Option<u64> = size.and_then(|it| it.parse().ok());
    let size = size.ok_or_else(|| Invalid::missing("Content-Length"))?;
    if size > MAX_CACHE_BYTES {
        let words = format!("a cache has at most {MAX_CACHE_BYTES} bytes");
        return Err(ApiError::new(ErrorCode::TooLarge, words));
    }
    let scope = Scope::own(&asker.run);
    let vigil = LeaseVigil::new(&app, lease_header(&headers)?, &who, Right::Artifact);
    let part = match receive(&app, &mut body, &scope, size, &said.sha256, vigil).await {
        Ok(part) => part,
        Err(error) => {
            drain(&mut body).await;
            return Err(error);
        }
    };
    // The bytes took long; the lease may be over by now.
    if let Err(answer) = held_for(&app, &who, &id, &headers, Right::Artifact).await? {
        return Ok(answer);
    }
    let part = part.ok_or_else(|| NotDone::Unavailable(BROKEN_OFF.into()))?;
    let (saving, limits) = (
        Saving {
            key: said.key,
            scope,
            size,
            sha256: said.sha256,
            saved_at: app.writer.now().0,
            run_id: asker.run_id,
            job: asker.job,
            work_millis: said.work_millis,
        },
        app.cache_limits,
    );
    let saved = app.files(move |objects| {
        let caches = objects.caches();
        let saved = caches.save(part, saving)? == Saved::Done;
        let evicted = if saved {
            caches.evict(limits, std::time::SystemTime::now())?.0
        } else {
            0
        };
        Ok((saved, evicted))
    });
    let (saved, evicted) = saved.await?;
    app.metrics().caches_saved.inc_by(u64::from(saved));
    app.metrics().caches_evicted.inc_by(evicted as u64);
    Ok((StatusCode::OK, axum::Json(CacheSaved { saved })).into_response())
}

/// Receives a cache into a part of its own; none when the right to save it ended on the way.
async fn receive(
    app: &App,
    body: &mut Body,
    scope: &Scope,
    size: u64,
    sha256: &str,
    mut vigil: LeaseVigil,
) -> Result<Option<CachePart>, ApiError> {
    let bad = |error: std::io::Error| ApiError::from(NotDone::from(error));
    let (scope, limits) = (scope.clone(), app.cache_limits);
    let part = app.files(move |objects| objects.caches().part(&scope, size, limits));
    let refused = |no: NoRoom| ApiError::new(ErrorCode::TooLarge, no.to_string());
    let part = part.await?.map_err(refused)?;
    let mut file = tokio::fs::File::from_std(part.file.try_clone().map_err(bad)?);
    let (mut context, mut came) = (Context::new(&SHA256), 0);
    loop {
        let data = match vigil.next_piece(body).await? {
            BodyPiece::Bytes(data) => data,
            BodyPiece::End => break,
            BodyPiece::RightGone => return Ok(None),
        };
        came += data.len() as u64;
        if came > size {
            break;
        }
        context.update(&data);
        file.write_all(&data).await.map_err(bad)?;
    }
    file.flush().await.map_err(bad)?;
    if came != size {
        return Err(Invalid::field("Content-Length", "is not how many bytes came").into());
    }
    if hex(context.finish().as_ref()) == *sha256 {
        Ok(Some(part))
    } else {
        Err(Invalid::field("sha256", "is not that of the bytes").into())
    }
}

/// Every cache that is kept.
#[utoipa::path(get, path = "/api/v1/caches", tag = "caches",
    responses((status = 200, body = CacheList)))]
async fn list_caches(
    State(app): State<App>,
    _who: User,
) -> Result<axum::Json<CacheList>, ApiError> {
    let mut found = app.files(|objects| objects.caches().all()).await?;
    found.sort_by_key(|it| std::cmp::Reverse(it.used_at));
    let caches = found.iter().map(view).collect();
    Ok(axum::Json(CacheList { caches }))
}

/// Remove a cache.
#[utoipa::path(delete, path = "/api/v1/caches/{id}", tag = "caches",
    params(("id" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
async fn remove_cache(
    State(app): State<App>,
    Admin(who): Admin,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let named = id.clone();
    let removed = app.files(move |objects| objects.caches().remove(&named));
    if removed.await? {
        audit::done("cache.remove", &who, &id);
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("cache"))
    }
}

/// Whoever asks, by its lease.
struct Asker {
    run: RunHeader,
    run_id: String,
    job: String,
}

async fn asker(
    app: &App,
    who: &Caller,
    id: &str,
    headers: &HeaderMap,
) -> Result<Result<Asker, Response>, ApiError> {
    let rows = match held_for(app, who, id, headers, Right::Artifact).await? {
        Ok(held) => held.rows,
        Err(answer) => return Ok(Err(answer)),
    };
    Ok(Ok(Asker {
        run_id: rows.run.id.to_string(),
        run: rows.run.header,
        job: rows.job.name.to_string(),
    }))
}

/// A cache that whoever asks may read.
async fn readable(
    app: &App,
    who: &Caller,
    id: &str,
    headers: &HeaderMap,
    cache: String,
) -> Result<Result<Cache, Response>, ApiError> {
    let asker = match asker(app, who, id, headers).await? {
        Ok(asker) => asker,
        Err(answer) => return Ok(Err(answer)),
    };
    let scopes = Scope::readable(&asker.run);
    let found = app.files(move |objects| objects.caches().get(&scopes, &cache));
    let found = found.await?.ok_or_else(|| ApiError::not_found("cache"))?;
    Ok(Ok(found))
}

/// What a save says of itself.
struct Said {
    key: String,
    sha256: String,
    work_millis: Option<u64>,
}

fn said(query: Option<&str>) -> Result<Said, ApiError> {
    const KNOWN: &str = "is not known; known here: key, sha256, work_millis";
    let (mut key, mut sha256, mut work_millis) = (None, None, None);
    for (name, value) in super::query_pairs(query)? {
        match name.as_str() {
            "key" => key = Some(value),
            "sha256" => sha256 = Some(value.to_lowercase()),
            "work_millis" => {
                let number = value.parse::<u64>();
                let wrong = |_| Invalid::field("work_millis", "is a number of milliseconds");
                work_millis = Some(number.map_err(wrong)?);
            }
            _ => return Err(Invalid::field(name, KNOWN).into()),
        }
    }
    let key = key.filter(|it| cache_key(it));
    let key = key.ok_or_else(|| Invalid::field("key", "is no key of a cache"))?;
    let hexadecimal = |it: &String| it.len() == 64 && it.bytes().all(|it| it.is_ascii_hexdigit());
    let sha256 = sha256.filter(hexadecimal);
    let sha256 = sha256.ok_or_else(|| Invalid::field("sha256", "is 64 digits of hexadecimal"))?;
    Ok(Said {
        key,
        sha256,
        work_millis,
    })
}

fn view(cache: &Cache) -> CacheView {
    let meta = &cache.meta;
    let filled = |text: &String| (!text.is_empty()).then(|| text.clone());
    let used = cache.used_at.duration_since(std::time::UNIX_EPOCH);
    let used = used.map_or(0, |it| i64::try_from(it.as_millis()).unwrap_or(i64::MAX));
    CacheView {
        id: cache.id.clone(),
        key: meta.key.clone(),
        repository: filled(&meta.scope.repository),
        created_by: filled(&meta.scope.created_by),
        git_ref: filled(&meta.scope.git_ref),
        trusted: meta.scope.trusted,
        size: meta.size,
        sha256: meta.sha256.clone(),
        saved_at: Millis(meta.saved_at),
        used_at: Millis(used),
        run_id: meta.run_id.clone(),
        job: meta.job.clone(),
        work_millis: meta.work_millis,
    }
}
