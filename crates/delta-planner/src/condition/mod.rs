//! Conditions: whether a job or a step belongs to a run. `branch == "main" && changed("src/**")`.
//!
//! A small total language over the facts of a trigger. It has truths and texts, no numbers, no
//! functions but `changed`, and no way to do anything. What cannot be known is neither true nor
//! false, and whoever asks then runs the job.

mod evaluate;
mod lex;
mod parse;

use std::fmt;

use crate::glob::Glob;

pub(crate) use evaluate::{Known, Truth};
pub(crate) use parse::{Scope, parse};

/// A condition that has been read. Its `Display` is a condition that reads back as the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    Literal(bool),
    /// An input that is a truth.
    Flag(Fact),
    /// In a step: whether every step before it went well.
    Success,
    /// In a step: whether one before it did not.
    Failure,
    /// A file changed that one of these covers.
    Changed(Vec<Glob>),
    Equal {
        left: Term,
        right: Term,
        /// `==`, or `!=`.
        equal: bool,
    },
    /// `=~`: the whole text is what the pattern means.
    Like {
        left: Term,
        pattern: Glob,
    },
    Not(Box<Condition>),
    All(Vec<Condition>),
    Any(Vec<Condition>),
}

/// A text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    Text(String),
    Fact(Fact),
}

/// What can be asked about a trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    Branch,
    Tag,
    Event,
    Ref,
    Target,
    Source,
    Trust,
    Input(String),
}

impl Condition {
    /// A file changed that one of these covers: how discovery ties a job to a folder.
    pub fn changed(patterns: Vec<Glob>) -> Condition {
        Condition::Changed(patterns)
    }

    /// Whether it asks how the steps before went.
    pub(crate) fn asks_outcome(&self) -> bool {
        match self {
            Condition::Success | Condition::Failure => true,
            Condition::Not(inner) => inner.asks_outcome(),
            Condition::All(all) | Condition::Any(all) => all.iter().any(Condition::asks_outcome),
            _ => false,
        }
    }

    /// What its patterns take in memory, in characters.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Condition::Changed(patterns) => patterns.iter().map(Glob::weight).sum(),
            Condition::Like { pattern, .. } => pattern.weight(),
            Condition::Not(inner) => inner.weight(),
            Condition::All(all) | Condition::Any(all) => all.iter().map(Condition::weight).sum(),
            _ => 0,
        }
    }

    /// How tightly it holds together: what is looser needs parentheses inside of it.
    fn rank(&self) -> u8 {
        match self {
            Condition::Any(_) => 0,
            Condition::All(_) => 1,
            Condition::Equal { .. } | Condition::Like { .. } => 2,
            _ => 3,
        }
    }
}

impl Fact {
    pub fn name(&self) -> &str {
        match self {
            Fact::Branch => "branch",
            Fact::Tag => "tag",
            Fact::Event => "event",
            Fact::Ref => "ref",
            Fact::Target => "target",
            Fact::Source => "source",
            Fact::Trust => "trust",
            Fact::Input(name) => name,
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fact::Input(name) => write!(f, "inputs.{name}"),
            other => f.write_str(other.name()),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::Text(text) => f.write_str(&quoted(text)),
            Term::Fact(fact) => fact.fmt(f),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Literal(truth) => write!(f, "{truth}"),
            Condition::Flag(fact) => fact.fmt(f),
            Condition::Success => f.write_str("success"),
            Condition::Failure => f.write_str("failure"),
            Condition::Changed(patterns) => {
                let patterns: Vec<_> = patterns.iter().map(|it| quoted(&it.to_string())).collect();
                write!(f, "changed({})", patterns.join(", "))
            }
            Condition::Equal { left, right, equal } => {
                write!(f, "{left} {} {right}", if *equal { "==" } else { "!=" })
            }
            Condition::Like { left, pattern } => {
                write!(f, "{left} =~ {}", quoted(&pattern.to_string()))
            }
            Condition::Not(inner) => {
                f.write_str("!")?;
                within(f, inner, 3)
            }
            Condition::All(all) => joined(f, all, " && ", 2),
            Condition::Any(any) => joined(f, any, " || ", 1),
        }
    }
}

fn joined(f: &mut fmt::Formatter<'_>, of: &[Condition], by: &str, rank: u8) -> fmt::Result {
    for (at, one) in of.iter().enumerate() {
        if at > 0 {
            f.write_str(by)?;
        }
        within(f, one, rank)?;
    }
    Ok(())
}

fn within(f: &mut fmt::Formatter<'_>, inner: &Condition, rank: u8) -> fmt::Result {
    if inner.rank() < rank {
        write!(f, "({inner})")
    } else {
        write!(f, "{inner}")
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
