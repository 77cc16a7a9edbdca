//! The one shape of an error answer, `{code, message, field?, retryable}`, and the closed list of
//! codes with the HTTP status each one travels under.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a request was not carried out, for programs. The message is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// No credential, or one that is unknown, revoked or expired.
    Unauthenticated,
    /// A good credential whose role does not reach this far.
    Forbidden,
    /// The agent behind the request was shut out for good.
    AgentRevoked,
    /// Another process is this agent by now, or this one has not registered yet.
    AgentSuperseded,
    /// The lease is an agent's, and the request does not prove to be of that agent.
    AgentUnproven,
    NotFound,
    MethodNotAllowed,
    /// The request is well formed, but the thing is in a state that does not allow it.
    Conflict,
    /// An `Idempotency-Key` came again with another body.
    IdempotencyConflict,
    /// This runner already holds an acknowledged lease.
    RunnerBusy,
    /// The log bytes overlap stored ones and differ.
    LogConflict,
    TooLarge,
    UnsupportedMediaType,
    /// A field is missing, of the wrong type or out of range.
    Invalid,
    /// A queue is full: come back after `Retry-After`.
    Overloaded,
    /// The disk that logs and artifacts are kept on is full: somebody must make room.
    StorageFull,
    /// The store is away, or the server is stopping: come back after `Retry-After`.
    Unavailable,
    Internal,
}

impl ErrorCode {
    pub const ALL: [ErrorCode; 18] = [
        ErrorCode::Unauthenticated,
        ErrorCode::Forbidden,
        ErrorCode::AgentRevoked,
        ErrorCode::AgentSuperseded,
        ErrorCode::AgentUnproven,
        ErrorCode::NotFound,
        ErrorCode::MethodNotAllowed,
        ErrorCode::Conflict,
        ErrorCode::IdempotencyConflict,
        ErrorCode::RunnerBusy,
        ErrorCode::LogConflict,
        ErrorCode::TooLarge,
        ErrorCode::UnsupportedMediaType,
        ErrorCode::Invalid,
        ErrorCode::Overloaded,
        ErrorCode::StorageFull,
        ErrorCode::Unavailable,
        ErrorCode::Internal,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            ErrorCode::Unauthenticated => "UNAUTHENTICATED",
            ErrorCode::Forbidden => "FORBIDDEN",
            ErrorCode::AgentRevoked => "AGENT_REVOKED",
            ErrorCode::AgentSuperseded => "AGENT_SUPERSEDED",
            ErrorCode::AgentUnproven => "AGENT_UNPROVEN",
            ErrorCode::NotFound => "NOT_FOUND",
            ErrorCode::MethodNotAllowed => "METHOD_NOT_ALLOWED",
            ErrorCode::Conflict => "CONFLICT",
            ErrorCode::IdempotencyConflict => "IDEMPOTENCY_CONFLICT",
            ErrorCode::RunnerBusy => "RUNNER_BUSY",
            ErrorCode::LogConflict => "LOG_CONFLICT",
            ErrorCode::TooLarge => "TOO_LARGE",
            ErrorCode::UnsupportedMediaType => "UNSUPPORTED_MEDIA_TYPE",
            ErrorCode::Invalid => "INVALID",
            ErrorCode::Overloaded => "OVERLOADED",
            ErrorCode::StorageFull => "STORAGE_FULL",
            ErrorCode::Unavailable => "UNAVAILABLE",
            ErrorCode::Internal => "INTERNAL",
        }
    }

    pub fn from_text(text: &str) -> Option<ErrorCode> {
        ErrorCode::ALL
            .into_iter()
            .find(|code| code.as_str() == text)
    }

    /// The HTTP status it travels under.
    pub fn status(self) -> u16 {
        match self {
            ErrorCode::Unauthenticated => 401,
            ErrorCode::Forbidden
            | ErrorCode::AgentRevoked
            | ErrorCode::AgentSuperseded
            | ErrorCode::AgentUnproven => 403,
            ErrorCode::NotFound => 404,
            ErrorCode::MethodNotAllowed => 405,
            ErrorCode::Conflict
            | ErrorCode::IdempotencyConflict
            | ErrorCode::RunnerBusy
            | ErrorCode::LogConflict => 409,
            ErrorCode::TooLarge => 413,
            ErrorCode::UnsupportedMediaType => 415,
            ErrorCode::Invalid => 422,
            ErrorCode::Overloaded => 429,
            ErrorCode::Internal => 500,
            ErrorCode::Unavailable => 503,
            ErrorCode::StorageFull => 507,
        }
    }

    /// Whether the same request may succeed later without anybody changing it.
    pub fn retryable(self) -> bool {
        matches!(
            self,
            ErrorCode::RunnerBusy
                | ErrorCode::AgentSuperseded
                | ErrorCode::Overloaded
                | ErrorCode::StorageFull
                | ErrorCode::Unavailable
                | ErrorCode::Internal
        )
    }
}

/// The body of every answer that is not a success, of the people's API and the runners' alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// One word from the closed list; text, so that an older client can read a newer server.
    #[schema(example = "INVALID")]
    pub code: String,
    #[schema(example = "jobs[2].neds: is not known; did you mean `needs`?")]
    pub message: String,
    /// The field that is wrong, as a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    pub retryable: bool,
}

impl ErrorBody {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        ErrorBody {
            code: code.as_str().to_owned(),
            message: message.into(),
            field: None,
            retryable: code.retryable(),
        }
    }

    /// Names the field that is wrong.
    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// The code, where this build knows it.
    pub fn known_code(&self) -> Option<ErrorCode> {
        ErrorCode::from_text(&self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_own_spelling() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_text(code.as_str()), Some(code));
        }
    }
}
