//! What a condition says about a trigger, and why, in words.

use std::collections::BTreeMap;

use super::{Condition, Fact, Term};
use crate::facts::{Changed, Facts};
use crate::glob::Glob;
use crate::trigger::listed;

/// True, false, or not to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    Yes,
    No,
    Unknown,
}

impl Truth {
    fn of(truth: bool) -> Truth {
        if truth { Truth::Yes } else { Truth::No }
    }

    fn not(self) -> Truth {
        match self {
            Truth::Yes => Truth::No,
            Truth::No => Truth::Yes,
            Truth::Unknown => Truth::Unknown,
        }
    }
}

/// What a condition is judged by.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a> {
    pub facts: &'a Facts,
    pub inputs: &'a BTreeMap<String, String>,
    /// Take everything as changed: whether a job is left out for its changes alone.
    pub all_changed: bool,
    /// For a step: whether those before it went well.
    pub success: bool,
}

impl Condition {
    pub(crate) fn judge(&self, known: Known<'_>) -> Truth {
        match self {
            Condition::Literal(truth) => Truth::of(*truth),
            Condition::Flag(fact) => Truth::of(known.text(fact) == "true"),
            Condition::Success => Truth::of(known.success),
            Condition::Failure => Truth::of(!known.success),
            Condition::Changed(patterns) => known.changed(patterns),
            Condition::Equal { left, right, equal } => {
                Truth::of((known.term(left) == known.term(right)) == *equal)
            }
            Condition::Like { left, pattern } => Truth::of(pattern.matches(known.term(left))),
            Condition::Not(inner) => inner.judge(known).not(),
            Condition::All(all) => fold(all, known, Truth::No, Truth::Yes),
            Condition::Any(any) => fold(any, known, Truth::Yes, Truth::No),
        }
    }

    /// Why it holds or does not: the parts that decide, with what they were compared with.
    pub(crate) fn why(&self, known: Known<'_>) -> String {
        let truth = self.judge(known);
        match self {
            Condition::All(all) if truth == Truth::No => decisive(all, known, Truth::No),
            Condition::Any(any) if truth == Truth::Yes => decisive(any, known, Truth::Yes),
            Condition::All(all) | Condition::Any(all) => {
                let parts = all.iter().filter(|it| it.judge(known) == truth);
                let parts: Vec<String> = parts.take(MOST_PARTS).map(|it| it.why(known)).collect();
                parts.join(", and ")
            }
            Condition::Not(inner) => inner.why(known),
            Condition::Literal(truth) => format!("its `if` is `{truth}`"),
            Condition::Flag(fact) => format!("{fact} is {}", known.text(fact)),
            Condition::Success | Condition::Failure => format!("`{self}`"),
            Condition::Changed(patterns) => known.why_changed(patterns),
            Condition::Equal { left, right, .. } => {
                let facts = [left, right].into_iter().filter_map(|term| match term {
                    Term::Fact(fact) => Some(known.shown(fact)),
                    Term::Text(_) => None,
                });
                let facts: Vec<String> = facts.collect();
                if facts.is_empty() {
                    format!("`{self}` never changes")
                } else {
                    facts.join(", and ")
                }
            }
            Condition::Like { left, .. } => match left {
                Term::Fact(fact) => known.shown(fact),
                Term::Text(_) => format!("`{self}` never changes"),
            },
        }
    }
}

/// Parts of a condition that one sentence gives.
const MOST_PARTS: usize = 4;

/// `all` and `any`: the first part that decides, unless one could have and is unknown.
fn fold(parts: &[Condition], known: Known<'_>, decides: Truth, otherwise: Truth) -> Truth {
    let mut truth = otherwise;
    for part in parts {
        match part.judge(known) {
            it if it == decides => return decides,
            Truth::Unknown => truth = Truth::Unknown,
            _ => {}
        }
    }
    truth
}

fn decisive(parts: &[Condition], known: Known<'_>, truth: Truth) -> String {
    let decides = parts.iter().find(|it| it.judge(known) == truth);
    decides.map(|it| it.why(known)).unwrap_or_default()
}

impl<'a> Known<'a> {
    fn term(&self, term: &'a Term) -> &'a str {
        match term {
            Term::Text(text) => text,
            Term::Fact(fact) => self.text(fact),
        }
    }

    fn text(&self, fact: &Fact) -> &'a str {
        let facts = self.facts;
        let text = match fact {
            Fact::Branch => facts.branch.as_deref(),
            Fact::Tag => facts.tag.as_deref(),
            Fact::Event => Some(facts.event.name()),
            Fact::Ref => facts.git_ref.as_deref(),
            Fact::Target => facts.target.as_deref(),
            Fact::Source => facts.source.as_deref(),
            Fact::Trust if facts.trusted => Some("trusted"),
            Fact::Trust => Some("untrusted"),
            Fact::Input(name) => self.inputs.get(name).map(String::as_str),
        };
        text.unwrap_or_default()
    }

    fn shown(&self, fact: &Fact) -> String {
        match self.text(fact) {
            "" => format!("there is no {fact}"),
            text => format!("{fact} is `{}`", crate::diagnostic::shown(text)),
        }
    }

    fn changed(&self, patterns: &[Glob]) -> Truth {
        match &self.facts.changed {
            _ if self.all_changed => Truth::Yes,
            // Whoever asks for everything wants what asks for a change, and what asks for none.
            Changed::All => Truth::Unknown,
            Changed::Unknown(_) => Truth::Unknown,
            Changed::Files(files) => {
                Truth::of(patterns.iter().any(|it| files.covered_by(it).is_some()))
            }
        }
    }

    fn why_changed(&self, patterns: &[Glob]) -> String {
        match &self.facts.changed {
            Changed::All => "everything is taken as changed".to_owned(),
            Changed::Unknown(why) => format!("what changed is not known: {why}"),
            Changed::Files(files) => match patterns.iter().find_map(|it| files.covered_by(it)) {
                Some(path) => format!("`{}` changed", crate::diagnostic::shown(path)),
                None => format!("nothing changed under {}", listed(patterns)),
            },
        }
    }
}
