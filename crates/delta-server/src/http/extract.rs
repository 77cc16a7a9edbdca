//! What every request is checked for before a handler sees it: a credential of the right role, of
//! people's also parameters that are known, and a body that is not too large.
//!
//! A message is stamped when its last byte was read (A23), so its body is read while its sender is
//! looked up. Nothing is read of a request whose credential cannot be one, and never more than the
//! message's bound before the credential has proved good.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use delta_core::command::LeaseProof;
use delta_core::rights::{AgentShown, Speaker};
use delta_core::{Millis, Text};
use delta_store::read::Role;
use delta_wire::ErrorCode;
use delta_wire::agent::process_header::{AGENT_HEADER, Shown};
use delta_wire::runner::LeaseToken;
use http_body_util::BodyExt;
use tokio::sync::Notify;

use super::error::ApiError;
use super::known_parameters;
use crate::app::App;
use crate::identity::Principal;
use crate::runner_commands;
use crate::writer::{Receipt, sha256};

/// A runner's message: progress and references, never the bytes they refer to.
pub const MESSAGE_BYTES: usize = 1024 * 1024;
/// A run with its jobs: a thousand of them at four kilobytes each.
pub const RUN_BYTES: usize = 4 * 1024 * 1024;
/// What is kept of a body before it is known who sends it. Nearly every message is smaller; when
/// look-ups take long, thousands of strangers wait with what they have sent.
const STRANGER_BYTES: usize = 64 * 1024;
/// How much of a body that is too large is still read, so that the answer is seen rather than a
/// broken connection.
const DRAINED_BYTES: usize = 64 * 1024 * 1024;
/// How long a body may take to arrive: a megabyte over a slow line.
const BODY_TIME: Duration = Duration::from_secs(30);

/// A caller with the role of a runner.
pub struct Runner(pub Caller);

/// A runner, and what its request shows of the agent behind it.
#[derive(Clone)]
pub struct Caller {
    pub principal: Principal,
    shown: Option<AgentShown>,
}

impl std::ops::Deref for Caller {
    type Target = Principal;
    fn deref(&self) -> &Principal {
        &self.principal
    }
}

impl Caller {
    /// What the token claims, for the core to check; nothing when it is none of ours.
    pub fn proof(&self, token: &LeaseToken, runner: impl Into<Text>) -> Option<LeaseProof> {
        let speaker = Speaker::Request {
            bound: self.principal.agent.clone(),
            shown: self.shown.clone().map(Box::new),
        };
        runner_commands::proof(token, &self.principal, runner, speaker)
    }
}
/// A caller with the role of a user, or more.
pub struct User(pub Principal);
/// A caller with the role of an administrator.
pub struct Admin(pub Principal);
/// A caller with an enrolment to exchange.
pub struct Enrolling(pub Principal);

impl FromRequestParts<App> for Runner {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Runner, ApiError> {
        let principal = app.caller_with(Role::Runner, parts).await?;
        let shown = shown(&parts.headers)?;
        Ok(Runner(Caller { principal, shown }))
    }
}

impl FromRequestParts<App> for User {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<User, ApiError> {
        let who = app.caller_with(Role::User, parts).await?;
        known_parameters::check(parts)?;
        Ok(User(who))
    }
}

impl FromRequestParts<App> for Admin {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Admin, ApiError> {
        let who = app.caller_with(Role::Admin, parts).await?;
        known_parameters::check(parts)?;
        Ok(Admin(who))
    }
}

impl FromRequestParts<App> for Enrolling {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Enrolling, ApiError> {
        let principal = app.caller_with(Role::Enrolment, parts).await?;
        Ok(Enrolling(principal))
    }
}

/// What a request shows of the agent that makes it.
fn shown(headers: &HeaderMap) -> Result<Option<AgentShown>, ApiError> {
    let Some(value) = headers.get(AGENT_HEADER) else {
        return Ok(None);
    };
    let shown = Shown::from_text(value.to_str().unwrap_or_default())?;
    Ok(Some(AgentShown {
        process: shown.process.into(),
        secret: shown.secret.map(|secret| sha256(secret.as_bytes())),
    }))
}

/// The parts of the address that a path names, decoded. What is no text names nothing; said in the
/// shape of every other refusal, which the one that is replaced here has not.
pub struct Path<T>(pub T);

impl<T, S> FromRequestParts<S> for Path<T>
where
    T: serde::de::DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, ApiError> {
        let read = axum::extract::Path::<T>::from_request_parts(parts, state).await;
        read.map(|axum::extract::Path(it)| Path(it))
            .map_err(|_| ApiError::not_found("path"))
    }
}

/// A whole body, and the moment its last byte was read.
pub struct Message {
    pub bytes: Bytes,
    pub at: Millis,
    /// Holds timers back until it is judged (A38): to be handed on with a holder's message, and
    /// dropped where nothing about a lease is judged.
    pub receipt: Receipt,
}

/// A whole body about which no timer has to wait.
pub struct Said {
    pub bytes: Bytes,
    pub at: Millis,
}

impl Message {
    /// For what judges no lease: however long it waits for its turn, timers go on.
    pub fn without_receipt(self) -> Said {
        Said {
            bytes: self.bytes,
            at: self.at,
        }
    }
}

/// A message of at most `LIMIT` bytes and who sent it: `W` says which role that takes.
pub struct Heard<W, const LIMIT: usize = MESSAGE_BYTES>(pub W, pub Message);

impl<W, const LIMIT: usize> FromRequest<App> for Heard<W, LIMIT>
where
    W: FromRequestParts<App, Rejection = ApiError> + Send,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let (mut parts, mut body) = request.into_parts();
        let somebody = app
            .identity
            .could_be_somebody(&parts.headers, &parts.extensions);
        if !somebody {
            return Err(app.unauthenticated().into());
        }
        let (who, start, receipt) = {
            let known = Notify::new();
            let read = async {
                let start = start(&mut body, LIMIT, Some(&known));
                let start = tokio::time::timeout(BODY_TIME, start).await;
                (
                    start.unwrap_or_else(|_| Err(too_slow())),
                    app.writer.receive(),
                )
            };
            let who = W::from_request_parts(&mut parts, app);
            tokio::pin!(read, who);
            // Whichever is first; a caller who proves to be nobody is not read to the end. Somebody
            // who is refused for what they ask is, or they would see no answer.
            let (who, (start, receipt)) = tokio::select! {
                who = &mut who => match who {
                    Err(refused) if refused.code != ErrorCode::Invalid => return Err(refused),
                    who => {
                        known.notify_one();
                        let body = read.await;
                        (who?, body)
                    }
                },
                start = &mut read => (who.await?, start),
            };
            (who, start, receipt)
        };
        let bytes = match start? {
            Start::Whole(bytes) => bytes,
            Start::TooLong(length) => {
                // It will not be judged.
                drop(receipt);
                return Err(too_long(&mut body, length, LIMIT).await);
            }
        };
        let at = receipt.at();
        Ok(Heard(who, Message { bytes, at, receipt }))
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

/// Reads a body to its end and keeps nothing of it, so that whoever sends it sees the answer rather
/// than a broken connection. One that falls silent is not waited for.
pub async fn drain(body: &mut Body) {
    while let Ok(Some(_)) = next_piece(body).await {}
}

/// Reads a body of at most `limit` bytes.
pub async fn read(mut body: Body, limit: usize) -> Result<Bytes, ApiError> {
    match start(&mut body, limit, None).await? {
        Start::Whole(bytes) => Ok(bytes),
        Start::TooLong(length) => Err(too_long(&mut body, length, limit).await),
    }
}

/// What a body turned out to be within its bound.
enum Start {
    Whole(Bytes),
    /// There is more than the bound; so many bytes were read.
    TooLong(usize),
}

/// Reads a body as far as its bound goes; of a caller who is not known yet, only the beginning.
async fn start(
    body: &mut Body,
    limit: usize,
    mut known: Option<&Notify>,
) -> Result<Start, ApiError> {
    let mut first: Option<Bytes> = None;
    let mut whole: Vec<u8> = Vec::new();
    let mut length = 0;
    while let Some(data) = next_piece(body).await? {
        length += data.len();
        if length > limit {
            return Ok(Start::TooLong(length));
        }
        if length > STRANGER_BYTES
            && let Some(known) = known.take()
        {
            known.notified().await;
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
    Ok(Start::Whole(first.unwrap_or_else(|| whole.into())))
}

/// Reads on for a while without keeping anything, so that the refusal is seen.
async fn too_long(body: &mut Body, mut length: usize, limit: usize) -> ApiError {
    let drain = async {
        while let Ok(Some(data)) = next_piece(body).await {
            length += data.len();
            if length > DRAINED_BYTES {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(BODY_TIME, drain).await;
    let message = format!("the body has more than {limit} bytes");
    ApiError::new(ErrorCode::TooLarge, message)
}

fn too_slow() -> ApiError {
    let message = format!("the body did not arrive within {} s", BODY_TIME.as_secs());
    ApiError::new(ErrorCode::Unavailable, message)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio_util::io::ReaderStream;

    use super::*;

    #[tokio::test]
    async fn of_a_stranger_only_the_beginning_is_read() {
        // F18: look-ups that hang must not fill the memory.
        let (mut sender, receiver) = tokio::io::duplex(1024);
        let mut body = Body::from_stream(ReaderStream::new(receiver));
        let known = Notify::new();
        let read = start(&mut body, MESSAGE_BYTES, Some(&known));
        let send = async {
            // Fits into what is kept, what was read beyond it, and the pipe.
            let beginning = vec![b'x'; STRANGER_BYTES];
            sender.write_all(&beginning).await.unwrap();
            let rest = vec![b'x'; STRANGER_BYTES];
            {
                let waits = sender.write_all(&rest);
                tokio::pin!(waits);
                let pause = Duration::from_millis(50);
                assert!(tokio::time::timeout(pause, &mut waits).await.is_err());
                known.notify_one();
                waits.await.unwrap();
            }
            drop(sender);
        };
        let (read, ()) = tokio::join!(read, send);
        let Start::Whole(bytes) = read.unwrap() else {
            panic!("it is within the limit");
        };
        assert_eq!(bytes.len(), 2 * STRANGER_BYTES);
    }
}
