//! Why a call has no answer.

use std::time::Duration;

/// Why a call has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// It may or may not have arrived.
    #[error("the server was not reached: {0}")]
    Unreachable(String),
    /// It changed nothing, and may work later.
    #[error("the server is busy: {message}")]
    Busy {
        message: String,
        retry_after: Option<Duration>,
    },
    /// Nothing but somebody who makes room helps.
    #[error("the server's disk is full")]
    StorageFull,
    /// Sending the message again does not help: it will be refused again.
    #[error("the server refused the message ({code}): {message}")]
    Refused { code: String, message: String },
}
