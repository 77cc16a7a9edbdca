//! What a function says when it did not do its work.

use std::fmt::Display;
use std::time::Duration;

use delta_runner_protocol::{ErrorInfo, Status};
use serde::Serialize;
use serde_json::value::to_raw_value;

/// A failure, or the wish to be tried again. Any error becomes one with `?`.
#[derive(Debug)]
pub struct Failure {
    pub(crate) status: Status,
    pub(crate) error: ErrorInfo,
    pub(crate) after: Option<Duration>,
}

impl Failure {
    /// The work failed; whether it is tried again is for its policy to say.
    pub fn error(message: impl Display) -> Failure {
        Failure {
            status: Status::Error,
            error: ErrorInfo::new(message.to_string()),
            after: None,
        }
    }

    /// It should be tried again.
    pub fn retry(message: impl Display) -> Failure {
        Failure {
            status: Status::Retry,
            ..Failure::error(message)
        }
    }

    /// Not before so long. Means nothing but for a retry.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Failure {
        self.after = Some(delay);
        self
    }

    /// A word for policy and for whoever counts failures.
    #[must_use]
    pub fn of_type(mut self, kind: impl Into<String>) -> Failure {
        self.error.kind = Some(kind.into());
        self
    }

    #[must_use]
    pub fn code(mut self, code: impl Into<String>) -> Failure {
        self.error.code = Some(code.into());
        self
    }

    /// Whatever helps to understand it. What is no JSON is left out.
    #[must_use]
    pub fn details(mut self, details: impl Serialize) -> Failure {
        self.error.details = to_raw_value(&details).ok();
        self
    }
}

/// Says the error and everything that caused it.
impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Failure {
        let mut words = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            words = format!("{words}: {inner}");
            source = inner.source();
        }
        Failure::error(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_caused_it() {
        let inner = std::io::Error::other("the disk");
        let outer = std::io::Error::other(inner);
        assert_eq!(Failure::from(outer).error.message, "the disk");
        let failure = Failure::retry("later")
            .after(Duration::from_secs(2))
            .code("c");
        assert_eq!(failure.status, Status::Retry);
        assert_eq!(failure.error.code.as_deref(), Some("c"));
    }
}
