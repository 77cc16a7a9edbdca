//! Answers of the server: how they are spelled and what kind each one is.

use std::time::Duration;

use bytes::Bytes;
use delta_wire::ErrorBody;
use delta_wire::runner::{Message, StaleLease, parse, type_of};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

/// The largest answer is a grant with its job spec of 1 MiB, JSON escapes included.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// Why a call has no answer of its own kind.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// It may or may not have arrived.
    #[error("the server was not reached: {0}")]
    Unreachable(String),
    /// 429 or 5xx: it changed nothing, and may work later.
    #[error("the server is busy ({status})")]
    Busy {
        status: u16,
        retry_after: Option<Duration>,
    },
    /// 401 or 403: no later try will do.
    #[error("the server refuses this agent ({status}): {message}")]
    Unauthorized { status: u16, message: String },
    /// Any other refusal: the same request will be refused again.
    #[error("the server refused the request ({status} {code}): {message}")]
    Refused {
        status: u16,
        code: String,
        message: String,
    },
    #[error("the server's answer cannot be understood: {0}")]
    Garbled(String),
    #[error("the token cannot be read: {0}")]
    Credential(String),
}

/// An answer about a lease: its own, or that the lease is over.
#[derive(Debug)]
pub enum Fenced<T> {
    Answer(T),
    Stale(StaleLease),
}

/// The answer to bytes of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutAnswer {
    /// The server has everything up to here.
    Received(u64),
    /// The server goes on from here.
    Expected(u64),
}

/// A whole answer that is neither a refusal of the agent nor of the moment.
pub(crate) struct Answer {
    pub status: StatusCode,
    pub body: Bytes,
}

impl Answer {
    pub fn read<M: Message>(&self) -> Result<M, CallError> {
        let parsed = parse::<M>(&self.body);
        parsed
            .map(|it| it.message)
            .map_err(|problem| CallError::Garbled(problem.to_string()))
    }

    /// 200 and 409 carry the message's own answer or [`StaleLease`].
    pub fn fenced<M: Message>(&self) -> Result<Fenced<M>, CallError> {
        match self.status {
            StatusCode::OK => self.read().map(Fenced::Answer),
            StatusCode::CONFLICT => match type_of(&self.body).as_deref() {
                Ok(StaleLease::TYPE) => self.read().map(Fenced::Stale),
                Ok(kind) if kind == M::TYPE => self.read().map(Fenced::Answer),
                _ => Err(self.refusal()),
            },
            StatusCode::CREATED => self.read().map(Fenced::Answer),
            _ => Err(self.refusal()),
        }
    }

    pub fn put(&self) -> Result<Fenced<PutAnswer>, CallError> {
        let number = |field: &str| {
            let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
            body.get(field)?.as_u64()
        };
        match self.status {
            StatusCode::OK => number("received")
                .map(|count| Fenced::Answer(PutAnswer::Received(count)))
                .ok_or_else(|| CallError::Garbled("no `received` in the answer".into())),
            StatusCode::CONFLICT => match number("expected") {
                Some(expected) => Ok(Fenced::Answer(PutAnswer::Expected(expected))),
                None => self.fenced::<StaleLease>().map(|it| match it {
                    Fenced::Answer(stale) | Fenced::Stale(stale) => Fenced::Stale(stale),
                }),
            },
            _ => Err(self.refusal()),
        }
    }

    fn error(&self) -> Option<ErrorBody> {
        serde_json::from_slice(&self.body).ok()
    }

    pub fn message(&self) -> String {
        self.error()
            .map_or_else(|| "no reason was given".to_owned(), |it| it.message)
    }

    pub fn refusal(&self) -> CallError {
        let code = self.error().map_or_else(String::new, |it| it.code);
        CallError::Refused {
            status: self.status.as_u16(),
            code,
            message: self.message(),
        }
    }
}

pub(crate) async fn read_body(mut response: reqwest::Response) -> Result<Bytes, CallError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        if body.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(CallError::Garbled(format!(
                "more than {MAX_ANSWER_BYTES} bytes"
            )));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.into())
}

/// What the server asks a caller to wait; dates are not used by ours.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds))
}

/// The cause in words, without the URL: nothing of a request belongs into a log line.
pub(crate) fn unreachable(problem: reqwest::Error) -> CallError {
    let problem = problem.without_url();
    let mut words = problem.to_string();
    let mut source = std::error::Error::source(&problem);
    while let Some(inner) = source {
        words.push_str(": ");
        words.push_str(&inner.to_string());
        source = inner.source();
    }
    CallError::Unreachable(words)
}
