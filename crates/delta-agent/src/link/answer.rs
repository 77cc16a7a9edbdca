//! How a call ended: with its own answer, with the lease being over, or not at all.

use std::time::Duration;

use delta_wire::runner::StaleLease;

/// Why a call has no answer of its own kind.
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
    /// The same message will be refused again.
    #[error("the server refused the message ({code}): {message}")]
    Refused { code: String, message: String },
    /// The link is closed for good.
    #[error("the agent is ending")]
    Closed,
}

/// An answer about a lease: its own, or that the lease is over.
#[derive(Debug)]
pub enum Fenced<T> {
    Answer(T),
    Stale(StaleLease),
}
