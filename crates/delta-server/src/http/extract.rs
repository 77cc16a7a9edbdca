//! What every request is checked for before a handler sees it: a credential of the right role, and
//! a body that is not too large.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use delta_core::Millis;
use delta_store::read::Role;
use delta_wire::ErrorCode;
use http_body_util::BodyExt;

use super::App;
use super::error::ApiError;
use crate::identity::Principal;

/// A runner's message: progress and references, never the bytes they refer to.
pub const MESSAGE_BYTES: usize = 1024 * 1024;
/// A run with its jobs: a thousand of them at four kilobytes each.
pub const RUN_BYTES: usize = 4 * 1024 * 1024;
/// How much of a body that is too large is still read, so that the answer is seen rather than a
/// broken connection.
const DRAINED_BYTES: usize = 64 * 1024 * 1024;
/// How long a body may take to arrive: a megabyte over a slow line.
const BODY_TIME: Duration = Duration::from_secs(30);

/// A caller with the role of a runner.
pub struct Runner(pub Principal);
/// A caller with the role of a user, or more.
pub struct User(pub Principal);
/// A caller with the role of an administrator.
pub struct Admin(pub Principal);

impl FromRequestParts<App> for Runner {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Runner, ApiError> {
        authenticate(parts, app, Role::Runner).await.map(Runner)
    }
}

impl FromRequestParts<App> for User {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<User, ApiError> {
        authenticate(parts, app, Role::User).await.map(User)
    }
}

impl FromRequestParts<App> for Admin {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Admin, ApiError> {
        authenticate(parts, app, Role::Admin).await.map(Admin)
    }
}

async fn authenticate(parts: &Parts, app: &App, needed: Role) -> Result<Principal, ApiError> {
    let who = match bearer(&parts.headers) {
        Some(token) => app.identity.whose(token, app.writer.now()).await?,
        // Only the admin socket puts a principal there.
        None => parts.extensions.get::<Principal>().cloned(),
    };
    let Some(who) = who else {
        return Err(unauthenticated(app));
    };
    if !who.may(needed) {
        let message = format!(
            "this needs a token of role {}, and yours is a {} token",
            needed.name(),
            who.role.name()
        );
        return Err(ApiError::new(ErrorCode::Forbidden, message));
    }
    Ok(who)
}

/// Looks again at the token of a runner whose request was parked: it may be revoked by now.
pub async fn still_a_runner(headers: &HeaderMap, app: &App) -> Result<(), ApiError> {
    let token = bearer(headers).unwrap_or_default();
    let who = app.identity.whose(token, app.writer.now()).await?;
    if who.is_some_and(|who| who.may(Role::Runner)) {
        return Ok(());
    }
    Err(unauthenticated(app))
}

fn unauthenticated(app: &App) -> ApiError {
    app.metrics().unauthenticated.inc();
    ApiError::new(ErrorCode::Unauthenticated, "a valid bearer token is needed")
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// A whole body of at most `LIMIT` bytes, and the moment its last byte was read (A23).
pub struct Whole<const LIMIT: usize> {
    pub bytes: Bytes,
    pub at: Millis,
}

pub type Message = Whole<MESSAGE_BYTES>;

impl<const LIMIT: usize> FromRequest<App> for Whole<LIMIT> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let read = tokio::time::timeout(BODY_TIME, read(request.into_body(), LIMIT));
        let bytes = read.await.map_err(|_| {
            let message = format!("the body did not arrive within {} s", BODY_TIME.as_secs());
            ApiError::new(ErrorCode::Unavailable, message)
        })??;
        Ok(Whole {
            bytes,
            at: app.writer.now(),
        })
    }
}

/// The next piece of a body; a sender that falls silent is not waited for.
pub async fn next_piece(body: &mut Body) -> Result<Option<Bytes>, ApiError> {
    loop {
        let frame = tokio::time::timeout(BODY_TIME, body.frame()).await;
        let frame = frame.map_err(|_| {
            let message = format!("nothing of the body came for {} s", BODY_TIME.as_secs());
            ApiError::new(ErrorCode::Unavailable, message)
        })?;
        let Some(frame) = frame else {
            return Ok(None);
        };
        let frame = frame.map_err(|_| {
            ApiError::new(ErrorCode::Invalid, "the body ended before it was complete").at("body")
        })?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
}

/// Reads a body of at most `limit` bytes.
pub async fn read(mut body: Body, limit: usize) -> Result<Bytes, ApiError> {
    let mut first: Option<Bytes> = None;
    let mut whole: Vec<u8> = Vec::new();
    let mut length = 0;
    while let Some(data) = next_piece(&mut body).await? {
        length += data.len();
        if length > DRAINED_BYTES {
            break;
        }
        if length > limit {
            continue;
        }
        // Nearly every message is one frame: no copy then.
        match &first {
            None if whole.is_empty() => first = Some(data),
            None => whole.extend_from_slice(&data),
            Some(before) => {
                whole.extend_from_slice(before);
                whole.extend_from_slice(&data);
                first = None;
            }
        }
    }
    if length > limit {
        let message = format!("the body has more than {limit} bytes");
        return Err(ApiError::new(ErrorCode::TooLarge, message));
    }
    Ok(first.unwrap_or_else(|| whole.into()))
}
