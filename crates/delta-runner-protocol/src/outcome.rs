//! What came of a call (RQ-29 … RQ-38).

use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::member::{self, Members, Wrong};
use crate::{BUSY, HANDLER_NOT_FOUND, SHUTTING_DOWN};

/// The longest a runner may ask a job to wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Success,
    /// The runner wants it to be tried again.
    Retry,
    /// The runner ended it for its time.
    Timeout,
    Error,
}

/// The answer to one request.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    pub request_id: String,
    pub job_id: String,
    pub status: Status,
    /// As it was written, so that it is stored byte for byte (RQ-30).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<f64>,
}

/// What went wrong, for people and for policy.
#[derive(Clone, Debug, Serialize)]
pub struct ErrorInfo {
    pub message: String,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Box<RawValue>>,
}

impl ErrorInfo {
    pub fn new(message: impl Into<String>) -> ErrorInfo {
        ErrorInfo {
            message: message.into(),
            kind: None,
            code: None,
            details: None,
        }
    }

    pub fn of_type(kind: &str, message: impl Into<String>) -> ErrorInfo {
        ErrorInfo {
            kind: Some(kind.to_owned()),
            ..ErrorInfo::new(message)
        }
    }
}

/// How long a job should wait before the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryAfter {
    pub delay: Duration,
    /// The runner said something else, which no schedule has.
    pub clamped: bool,
}

/// What a runner sent as an answer. What is wrong with it concerns its own request alone.
#[derive(Debug)]
pub struct Response {
    /// Absent where it cannot be told which request it answers (RQ-34).
    pub request_id: Option<String>,
    /// Absent where it names no job.
    pub job_id: Option<String>,
    pub outcome: Result<Outcome, String>,
}

impl Outcome {
    /// Nobody handles that function: no other try will help (RQ-37).
    pub fn is_handler_not_found(&self) -> bool {
        let kind = self.error.as_ref().and_then(|error| error.kind.as_deref());
        self.status == Status::Error && kind == Some(HANDLER_NOT_FOUND)
    }

    /// The runner has not begun it, because it has too much to do. It says so as an error like any
    /// other, in these words and no others; whoever sends it again loses nothing.
    pub fn is_busy(&self) -> bool {
        let bare = |error: &&ErrorInfo| error.kind.is_none() && error.details.is_none();
        let error = self.error.as_ref().filter(bare);
        self.status == Status::Error && error.is_some_and(|error| error.message == BUSY)
    }

    /// The runner is about to end and has not begun it: whoever sends it elsewhere loses nothing.
    pub fn is_shutting_down(&self) -> bool {
        let kind = self.error.as_ref().and_then(|error| error.kind.as_deref());
        self.status == Status::Retry && kind == Some(SHUTTING_DOWN)
    }

    /// The delay that a retry asks for, within what a schedule has (RQ-38, A48).
    pub fn retry_after(&self) -> Option<RetryAfter> {
        let said = self
            .retry_after_seconds
            .filter(|_| self.status == Status::Retry)?;
        let most = MAX_RETRY_AFTER.as_secs_f64();
        let within = if said.is_nan() {
            0.0
        } else {
            said.clamp(0.0, most)
        };
        Some(RetryAfter {
            delay: Duration::try_from_secs_f64(within).unwrap_or(MAX_RETRY_AFTER),
            clamped: within != said,
        })
    }
}

impl Response {
    pub(crate) fn read(payload: &RawValue) -> Response {
        let members = match member::object(payload, "payload") {
            Ok(members) => members,
            Err(why) => {
                return Response {
                    request_id: None,
                    job_id: None,
                    outcome: Err(why),
                };
            }
        };
        Response {
            request_id: member::text(&members, "request_id").ok(),
            job_id: member::text(&members, "job_id").ok(),
            outcome: read(&members),
        }
    }
}

fn read(members: &Members<'_>) -> Result<Outcome, Wrong> {
    let status = match &*member::text(members, "status")? {
        "success" => Status::Success,
        "retry" => Status::Retry,
        "timeout" => Status::Timeout,
        "error" => Status::Error,
        other => {
            let other: String = other.chars().take(40).collect();
            return Err(format!("status {other:?} is none of the protocol's"));
        }
    };
    let retry_after = match member::given(members, "retry_after_seconds") {
        Some(raw) => Some(member::read::<f64>(raw).ok_or("retry_after_seconds must be a number")?),
        None => None,
    };
    let error = match member::given(members, "error") {
        Some(raw) => Some(error(&member::object(raw, "error")?)?),
        None => None,
    };
    Ok(Outcome {
        request_id: member::text(members, "request_id")?,
        job_id: member::text(members, "job_id")?,
        status,
        result: member::given(members, "result").map(RawValue::to_owned),
        error,
        retry_after_seconds: retry_after,
    })
}

/// Whatever is odd about an error, its message is worth having.
fn error(members: &Members<'_>) -> Result<ErrorInfo, Wrong> {
    let name = |name| member::may_text(members, name).ok().flatten();
    Ok(ErrorInfo {
        message: name("message").unwrap_or_default(),
        kind: name("type"),
        code: name("code"),
        details: member::given(members, "details").map(RawValue::to_owned),
    })
}
