//! The status of a commit: a state, a line for people and a link, under a name of its own.
//!
//! Commit statuses and not GitHub's check runs: those can be written by installed GitHub Apps only,
//! while a status takes any token that may write statuses, and Gitea and Forgejo know the very same
//! thing. The newest status of a name counts, so that writing one twice changes nothing.

use crate::names::Commit;

/// GitHub refuses a longer one.
pub const MAX_DESCRIPTION: usize = 140;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    Pending,
    Success,
    /// The work failed.
    Failure,
    /// Something around it did, or it was stopped.
    Error,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Success => "success",
            State::Failure => "failure",
            State::Error => "error",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub commit: Commit,
    /// What it is a status of; the newest of each name counts.
    pub context: String,
    pub state: State,
    pub description: String,
    pub link: Option<String>,
}

impl Status {
    /// A line that every forge takes: one line, cut where it must be.
    pub fn line(text: &str) -> String {
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let line: String = text.chars().map(plain).collect();
        let line = line.trim();
        if line.chars().count() > MAX_DESCRIPTION {
            let cut: String = line.chars().take(MAX_DESCRIPTION - 1).collect();
            cut + "…"
        } else {
            line.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_one_line_that_fits() {
        assert_eq!(Status::line(" two\nlines\u{1b}[0m "), "two lines [0m");
        let long = Status::line(&"ä".repeat(500));
        assert_eq!(long.chars().count(), MAX_DESCRIPTION);
        assert!(long.ends_with('…'));
    }
}
