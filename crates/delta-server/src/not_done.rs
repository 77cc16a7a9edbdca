//! Why something that was asked for was not done, in the words of no protocol: HTTP, gRPC and the
//! duties each say it in their own.
//!
//! Owns what a failure of the store or of the files means to whoever asked, and the words that
//! anybody may hear about a disk. What the engine says itself is for the log.

use std::io;

use delta_core::{Refusal, Text};
use delta_store::StoreError;

/// Said to whoever asks while the disk of the database is full, or fails.
const FULL: &str =
    "the disk of the server's database is full: nothing is lost, and it goes on once there is room";
const FAILING: &str =
    "the disk of the server's database cannot be written to: the server's log says why";

/// Why a command was not carried out, or a question not answered. Nothing changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotDone {
    #[error("too many requests are waiting")]
    Overloaded,
    /// The store is away, or the server is stopping.
    #[error("{0}")]
    Unavailable(Text),
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What is stored cannot be read. Nothing but a person helps here, so it is said and not only
    /// logged.
    #[error("{0}")]
    Corrupt(Text),
    /// Somebody can help, too: room must be made.
    #[error("the server's disk is full")]
    StorageFull,
    #[error("work on files failed")]
    Files,
    /// A mistake of ours, logged where it happened.
    #[error("the request could not be carried out because of an internal error")]
    Internal,
}

impl NotDone {
    pub fn stopping() -> NotDone {
        NotDone::Unavailable("the server is stopping".into())
    }
}

impl From<StoreError> for NotDone {
    fn from(error: StoreError) -> NotDone {
        NotDone::from(&error)
    }
}

impl From<&StoreError> for NotDone {
    fn from(error: &StoreError) -> NotDone {
        match error {
            StoreError::Full(_) => NotDone::Unavailable(FULL.into()),
            StoreError::Failing(_) => NotDone::Unavailable(FAILING.into()),
            StoreError::Unavailable(_) | StoreError::Conflict => {
                NotDone::Unavailable(error.to_string().into())
            }
            StoreError::Corrupt(_) => {
                tracing::error!(%error, "the store failed");
                NotDone::Corrupt(error.to_string().into())
            }
            StoreError::TooNew { .. } | StoreError::TooOld { .. } => {
                tracing::error!(%error, "the store failed");
                NotDone::Internal
            }
        }
    }
}

impl From<io::Error> for NotDone {
    fn from(error: io::Error) -> NotDone {
        if matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ) {
            tracing::error!(%error, "the disk of logs and artifacts is full");
            return NotDone::StorageFull;
        }
        tracing::error!(%error, "work on files failed");
        NotDone::Files
    }
}

/// What everybody may hear of a store whose disk is the trouble.
pub fn disk_words(error: &StoreError) -> Option<&'static str> {
    match error {
        StoreError::Full(_) => Some(FULL),
        StoreError::Failing(_) => Some(FAILING),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_spoken_of_in_our_words_and_damage_in_the_stores() {
        let engines = "disk I/O error at offset 7";
        let failing = NotDone::from(&StoreError::Failing(engines.into())).to_string();
        assert!(!failing.contains(engines), "{failing}");
        let corrupt = NotDone::from(&StoreError::Corrupt("run 7 has no header".into()));
        assert!(
            corrupt.to_string().contains("run 7 has no header"),
            "{corrupt}"
        );
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(NotDone::from(full), NotDone::StorageFull));
        let broken = io::Error::other("EIO");
        assert!(matches!(NotDone::from(broken), NotDone::Files));
    }
}
