//! What an error of PostgreSQL means to a batch: try again, wait, or call a person.

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::{CommitError, StoreError};

/// How an answer was bad.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// Another writer was first: the transaction is over and nothing of it stays.
    Conflict,
    /// No answer, or the connection is of no more use. What was sent may have been done.
    Lost(String),
    /// The deadline passed. As `Lost`, but another connection would hang just the same.
    Silent,
    /// Refused at this moment; the transaction is over and nothing of it stays.
    Refused(String),
    /// Refused since its disk has no room; the transaction is over.
    Full(String),
    /// Refused since its disk fails; the transaction is over.
    Failing(String),
    /// A statement or a row that does not fit: ours or somebody's mistake.
    Wrong(String),
}

impl Trouble {
    pub(super) fn of(error: &Error) -> Trouble {
        let Some(said) = error.as_db_error() else {
            return Trouble::Lost(chain(error));
        };
        let text = format!("{} ({})", said.message(), said.code().code());
        let code = said.code();
        let conflicts = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::LOCK_NOT_AVAILABLE,
            SqlState::UNIQUE_VIOLATION,
        ];
        if conflicts.contains(code) {
            return Trouble::Conflict;
        }
        match &code.code()[..2] {
            // A standby after a failover: only another connection helps.
            _ if *code == SqlState::READ_ONLY_SQL_TRANSACTION => Trouble::Lost(text),
            // 57P..: the server or this session is being shut down; 25P03, 25P04: our transaction
            // was idle or open for too long and the session with it.
            "57" if *code != SqlState::QUERY_CANCELED => Trouble::Lost(text),
            "25" if matches!(code.code(), "25P03" | "25P04") => Trouble::Lost(text),
            "08" => Trouble::Lost(text),
            "53" if *code == SqlState::DISK_FULL => Trouble::Full(text),
            "58" if *code == SqlState::IO_ERROR => Trouble::Failing(text),
            // Too slow, out of memory or connections, an error of the machine below.
            "57" | "53" | "58" => Trouble::Refused(text),
            _ => Trouble::Wrong(text),
        }
    }
}

impl Trouble {
    /// The session is of no more use, and what was sent may have been done.
    pub(super) fn ends_session(&self) -> bool {
        matches!(self, Trouble::Lost(_) | Trouble::Silent)
    }
}

impl From<Trouble> for StoreError {
    fn from(trouble: Trouble) -> StoreError {
        match trouble {
            Trouble::Conflict => StoreError::Conflict,
            Trouble::Lost(why) | Trouble::Refused(why) => StoreError::Unavailable(why),
            Trouble::Full(why) => StoreError::Full(why),
            Trouble::Failing(why) => StoreError::Failing(why),
            Trouble::Silent => StoreError::Unavailable("the database does not answer".into()),
            Trouble::Wrong(why) => StoreError::Corrupt(why),
        }
    }
}

impl From<Trouble> for CommitError {
    fn from(trouble: Trouble) -> CommitError {
        match trouble {
            Trouble::Conflict => CommitError::Conflict,
            other => CommitError::Store(other.into()),
        }
    }
}

/// The error with its causes: tokio-postgres says "error connecting to server" and no more.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
