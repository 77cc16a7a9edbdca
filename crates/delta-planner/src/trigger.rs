//! What starts a pipeline, and what a person may give along.
//!
//! A file that says nothing runs on everything. A person who asks is never refused: `on` decides
//! what starts a run by itself.

use std::collections::BTreeMap;

use crate::facts::{Changed, Event, Facts};
use crate::glob::Glob;

/// The triggers of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Triggers {
    pub push: On,
    pub pull_request: On,
    pub tag: On,
    /// What a person may give along, in file order.
    pub inputs: Vec<Input>,
}

/// Whether one kind of event starts a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum On {
    Never,
    When {
        /// Branches or tags; empty is all of them.
        names: Vec<Glob>,
        /// At least one of them must have changed; empty asks nothing.
        paths: Vec<Glob>,
    },
}

impl Default for On {
    fn default() -> On {
        On::When {
            names: Vec::new(),
            paths: Vec::new(),
        }
    }
}

/// Something that a person gives along.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    pub name: String,
    pub kind: InputKind,
    pub required: bool,
    pub default: Option<String>,
    pub description: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputKind {
    Text,
    /// `true` or `false`.
    Truth,
    Number,
    /// One of these.
    Choice(Vec<String>),
}

impl InputKind {
    pub fn name(&self) -> &'static str {
        match self {
            InputKind::Text => "text",
            InputKind::Truth => "boolean",
            InputKind::Number => "number",
            InputKind::Choice(_) => "choice",
        }
    }

    /// Why a value is not one of this kind.
    pub fn check(&self, value: &str) -> Result<(), String> {
        let known = match self {
            InputKind::Text if value.contains('\0') => Err("must not hold a NUL character".into()),
            InputKind::Text => Ok(()),
            InputKind::Truth if matches!(value, "true" | "false") => Ok(()),
            InputKind::Truth => Err("must be `true` or `false`".into()),
            InputKind::Number if is_number(value) => Ok(()),
            InputKind::Number => Err("must be a number".into()),
            InputKind::Choice(options) if options.iter().any(|it| it == value) => Ok(()),
            InputKind::Choice(options) => Err(format!("must be one of {}", options.join(", "))),
        };
        known.and(if value.len() > MAX_INPUT_BYTES {
            Err(format!("has more than {MAX_INPUT_BYTES} bytes"))
        } else {
            Ok(())
        })
    }
}

/// Bytes of one input: a paragraph of release notes, not a file.
pub const MAX_INPUT_BYTES: usize = 4096;

/// Inputs that do not fit what the file declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFault {
    pub name: String,
    /// As the end of a sentence about it.
    pub why: String,
}

impl std::fmt::Display for InputFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "input `{}` {}", self.name, self.why)
    }
}

impl Triggers {
    /// Whether this event starts a run: yes with nothing, or why not.
    pub fn admits(&self, facts: &Facts) -> Result<(), String> {
        let (on, name) = match facts.event {
            Event::Manual => return Ok(()),
            Event::Push => (&self.push, &facts.branch),
            Event::PullRequest => (&self.pull_request, &facts.target),
            Event::Tag => (&self.tag, &facts.tag),
        };
        let On::When { names, paths } = on else {
            return Err(format!("the file does not run on `{}`", facts.event));
        };
        let name = name.as_deref().unwrap_or_default();
        if !names.is_empty() && !names.iter().any(|it| it.matches(name)) {
            let event = facts.event;
            return Err(format!(
                "the file runs on `{event}` for {} only, this is `{name}`",
                listed(names)
            ));
        }
        match &facts.changed {
            Changed::Files(files)
                if !paths.is_empty() && !paths.iter().any(|it| files.covered_by(it).is_some()) =>
            {
                Err(format!("nothing changed under {}", listed(paths)))
            }
            _ => Ok(()),
        }
    }

    /// The value of every declared input, or everything that is wrong with what was given.
    pub fn inputs(&self, facts: &Facts) -> Result<BTreeMap<String, String>, Vec<InputFault>> {
        let mut faults = Vec::new();
        let fault = |name: &str, why: String| InputFault {
            name: name.to_owned(),
            why,
        };
        let known = self.inputs.iter().map(|it| it.name.as_str());
        for name in facts.inputs.keys() {
            if known.clone().any(|it| it == name) {
                continue;
            }
            let near = delta_wire::nearest::nearest(name, known.clone());
            let hint = near.map(|it| format!("; did you mean `{it}`?"));
            let hint = hint.unwrap_or_default();
            faults.push(fault(name, format!("is not declared by the file{hint}")));
        }
        let mut values = BTreeMap::new();
        for input in &self.inputs {
            let given = facts.inputs.get(&input.name);
            let empty = match input.kind {
                InputKind::Truth => "false",
                _ => "",
            };
            match given.or(input.default.as_ref()) {
                Some(value) => match input.kind.check(value) {
                    Ok(()) => drop(values.insert(input.name.clone(), value.clone())),
                    Err(why) => faults.push(fault(&input.name, why)),
                },
                None if input.required && facts.event == Event::Manual => {
                    faults.push(fault(&input.name, "is missing".to_owned()));
                }
                None => drop(values.insert(input.name.clone(), empty.to_owned())),
            }
        }
        if faults.is_empty() {
            Ok(values)
        } else {
            Err(faults)
        }
    }
}

fn is_number(text: &str) -> bool {
    text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Patterns in a sentence; of many, the first few.
pub(crate) fn listed(patterns: &[Glob]) -> String {
    const MOST: usize = 4;
    let shown = patterns.iter().take(MOST).map(|it| format!("`{it}`"));
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if patterns.len() > MOST {
        text.push_str(&format!(" and {} more", patterns.len() - MOST));
    }
    text
}
