//! What went wrong, said so that a person can act: what happened, why, and what to type next.

use std::error::Error;
use std::fmt;

use crate::exit::Exit;
use crate::sanitize;

/// A command that did not work. Printed to stderr, once, by `main`.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    pub what: String,
    pub why: Option<String>,
    pub next: Option<String>,
}

pub type Done = Result<Exit, Failure>;

impl Failure {
    pub fn new(exit: Exit, what: impl Into<String>) -> Failure {
        Failure {
            exit,
            what: what.into(),
            why: None,
            next: None,
        }
    }

    pub fn because(mut self, why: impl fmt::Display) -> Failure {
        self.why = Some(why.to_string());
        self
    }

    /// The reason is an error with reasons of its own.
    pub fn caused_by(self, error: &(dyn Error + 'static)) -> Failure {
        let reasons = chain(error);
        self.because(reasons)
    }

    /// What to type, or to do, now.
    pub fn next(mut self, next: impl Into<String>) -> Failure {
        self.next = Some(next.into());
        self
    }

    /// For people. Some words in it may come from a server, so it is cleaned.
    pub fn text(&self) -> String {
        let mut text = format!("error: {}", sanitize::text(&self.what));
        if let Some(why) = &self.why {
            text.push_str(&format!("\n  why: {}", lines(why)));
        }
        if let Some(next) = &self.next {
            text.push_str(&format!("\n  next: {}", lines(next)));
        }
        text
    }

    /// For programs.
    pub fn json(&self) -> String {
        serde_json::json!({
            "error": {
                "code": self.exit.word(),
                "exit_code": self.exit.code(),
                "message": self.what,
                "why": self.why,
                "next": self.next,
            }
        })
        .to_string()
    }
}

/// Keeps the line breaks of a longer explanation, indented under its first line.
fn lines(text: &str) -> String {
    let clean: Vec<String> = text.lines().map(sanitize::text).collect();
    clean.join("\n       ")
}

/// An error and what caused it, in one line.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some libraries repeat their cause in their own words.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// A failure of this machine, where nothing better is known.
pub fn internal(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Failure {
    let what = what.into();
    move |error| Failure::new(Exit::Internal, what).caused_by(&error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_why_and_what_to_type() {
        let failure = Failure::new(Exit::NotFound, "there is no run \u{1b}[31mrun_1")
            .because("looked at 3 runs")
            .next("delta-ci runs");
        let lines = [
            "error: there is no run \u{fffd}[31mrun_1",
            "  why: looked at 3 runs",
            "  next: delta-ci runs",
        ];
        assert_eq!(failure.text(), lines.join("\n"));
        assert!(failure.json().contains("\"exit_code\":5"));
    }

    #[test]
    fn causes_are_listed_once() {
        let inner = std::io::Error::other("the disk is full");
        let outer = std::io::Error::other(inner);
        assert_eq!(chain(&outer), "the disk is full");
    }
}
