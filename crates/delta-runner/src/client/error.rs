//! Why a producer did not get what it asked for.

use std::path::PathBuf;

use super::call::Call;

/// Everything that can go wrong for a producer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("which server? give one, or set DELTA_SERVER")]
    NoServer,
    #[error("{0:?} is no address of a server; such as http://127.0.0.1:7878")]
    Address(String),
    #[error("the token in {0} cannot be read")]
    TokenFile(PathBuf, #[source] std::io::Error),
    #[error("there is no HTTP")]
    Http(#[source] reqwest::Error),
    #[error("the parameters cannot be written as JSON")]
    Params(#[source] serde_json::Error),
    /// In the server's words.
    #[error("{message}")]
    Refused {
        status: u16,
        message: String,
        code: Option<String>,
        /// What is wrong in the request.
        field: Option<String>,
    },
    #[error("the server cannot be reached")]
    Unreachable(#[source] reqwest::Error),
    #[error("the server's answer cannot be understood")]
    Answer(#[source] serde_json::Error),
    /// The time to wait is over; the call goes on.
    #[error("{} has not ended: {}", .0.id, .0.state)]
    NotEnded(Box<Call>),
    #[error(transparent)]
    Failed(#[from] FunctionFailed),
    #[error("the result is not of the type that was asked for")]
    Result(#[source] serde_json::Error),
}

impl ClientError {
    /// Whether the same request may be answered in a moment.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            ClientError::Refused { status, .. } => matches!(status, 429 | 502 | 503 | 504),
            ClientError::Unreachable(error) => !error.is_builder(),
            _ => false,
        }
    }
}

/// The call has ended, and not with a result.
#[derive(Debug, thiserror::Error)]
#[error("{}", message(.call))]
pub struct FunctionFailed {
    pub call: Box<Call>,
}

/// What the handler or its runner said, or else the agent, or the server.
fn message(call: &Call) -> &str {
    let said = call.error.as_ref().map(|error| error.message.as_str());
    let told = said.or(call.summary.as_deref()).or(call.cause.as_deref());
    told.unwrap_or(&call.state)
}
