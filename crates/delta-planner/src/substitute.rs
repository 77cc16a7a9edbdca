//! `{matrix.name}` in the keys of a job, replaced by the value of the cell.
//!
//! Only in texts that are names, paths, patterns and values of variables. Never in a script: there
//! the value is a variable, `$MATRIX_NAME`, and stays data whatever is in it.

use delta_wire::nearest::nearest;

use crate::diagnostic::{Collector, shown};
use crate::expression::is_shell;
use crate::matrix::Values;
use crate::merge::Budget;
use crate::yaml::{Node, Place, Value};

/// The keys of a job whose texts may hold a value of the matrix.
pub const KEYS: [&str; 12] = [
    "artifacts",
    "caches",
    "concurrency",
    "container",
    "env",
    "environment",
    "image",
    "inputs",
    "requires",
    "results",
    "shell",
    "workdir",
];

/// The keys of a step of which the same is true.
const STEP_KEYS: [&str; 3] = ["name", "env", "shell"];

/// What begins a value of the matrix.
const OPEN: &str = "{matrix.";

/// A job of one cell. `cell` is none for a job without a matrix, in which nothing may be replaced.
pub(crate) fn cell(
    job: &Node,
    cell: Option<&Values>,
    budget: &mut Budget,
    out: &mut Collector<'_>,
) -> Node {
    let mut replace = Replace { cell, budget, out };
    let mut job = job.clone();
    let shell = is_shell_of(&job, true);
    let Value::Map(pairs) = &mut job.value else {
        return job;
    };
    for (key, value) in pairs {
        match name(key) {
            Some("steps") => replace.steps(value, shell),
            Some(key) if KEYS.contains(&key) => replace.all(value),
            _ => {}
        }
    }
    job
}

struct Replace<'a, 'o, 't> {
    cell: Option<&'a Values>,
    /// A name of ten letters may stand for a value of hundreds, in every cell again.
    budget: &'o mut Budget,
    out: &'o mut Collector<'t>,
}

impl Replace<'_, '_, '_> {
    fn all(&mut self, node: &mut Node) {
        match &mut node.value {
            Value::Scalar { text, .. } if text.contains(OPEN) => {
                *text = self.text(text, node.place);
            }
            Value::Scalar { .. } => {}
            Value::List(items) => items.iter_mut().for_each(|item| self.all(item)),
            Value::Map(pairs) => pairs.iter_mut().for_each(|(_, value)| self.all(value)),
        }
    }

    /// `shell` says that a step of which nothing is said is read by a shell.
    fn steps(&mut self, node: &mut Node, shell: bool) {
        let Value::List(items) = &mut node.value else {
            return;
        };
        for item in items {
            let shell = is_shell_of(item, shell);
            match &mut item.value {
                Value::Scalar { text, .. } => self.script(text, item.place, shell),
                Value::Map(pairs) => {
                    for (key, value) in pairs {
                        match (name(key), &value.value) {
                            (Some("run"), Value::Scalar { text, .. }) => {
                                self.script(text, value.place, shell);
                            }
                            (Some(key), _) if STEP_KEYS.contains(&key) => self.all(value),
                            _ => {}
                        }
                    }
                }
                Value::List(_) => {}
            }
        }
    }

    /// A script in which a value of this cell would have to be replaced, by its name or by one that
    /// is almost it. Any other name is text: a script may hold a template of its own.
    ///
    /// In a job without a matrix it is said where a shell would take it for a word as it stands.
    fn script(&mut self, text: &str, place: Place, shell: bool) {
        let mut rest = text;
        let bare = bare(text);
        while let Some(at) = rest.find(OPEN) {
            // `${{` is for whoever reads expressions.
            let doubled = rest[..at].ends_with('{');
            let bare = text.len() - rest.len() + at <= bare && !doubled;
            rest = &rest[at + OPEN.len()..];
            // No name has another beginning inside of it.
            let Some(end) = rest.find(['{', '}']) else {
                return;
            };
            let (axis, behind) = rest.split_at(end);
            if !behind.starts_with('}') {
                continue;
            }
            if self.cell.is_none() && shell && bare && is_name(axis) {
                let variable = crate::plan::variable("MATRIX", axis);
                let reason = format!("`{OPEN}{axis}}}` is text, and the job has no `matrix`");
                let hint = format!(
                    "give the job one, `matrix: {{{axis}: [...]}}`, and write \"${variable}\""
                );
                return self.out.warn(place, reason, Some(hint));
            }
            let cell = self.cell.filter(|_| !doubled);
            let meant = cell.and_then(|cell| match value(cell, axis) {
                Some(_) => Some(axis),
                None => nearest(axis, cell.iter().map(|(name, _)| name.as_str())),
            });
            if let Some(meant) = meant {
                let variable = crate::plan::variable("MATRIX", meant);
                let reason = format!("`{OPEN}{}}}` in a script is not replaced", shown(axis));
                let hint = format!("write \"${variable}\": values reach scripts as variables");
                return self.out.push(place, reason, Some(hint));
            }
        }
    }

    fn text(&mut self, text: &str, place: Place) -> String {
        let mut replaced = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(OPEN) {
            let (before, after) = (&rest[..at], &rest[at + OPEN.len()..]);
            let Some((axis, behind)) = after.split_once('}') else {
                break;
            };
            replaced.push_str(before);
            match self.cell.and_then(|cell| value(cell, axis)) {
                Some(value) if !self.budget.grow(value.len(), place, self.out) => {
                    return text.to_owned();
                }
                Some(value) => replaced.push_str(value),
                None => {
                    self.unknown(axis, place);
                    return text.to_owned();
                }
            }
            rest = behind;
        }
        replaced.push_str(rest);
        replaced
    }

    fn unknown(&mut self, axis: &str, place: Place) {
        let axis_shown = shown(axis);
        let Some(cell) = self.cell else {
            let reason = format!("`{OPEN}{axis_shown}}}` in a job that has no `matrix`");
            let hint = format!("give the job one: `matrix: {{{axis_shown}: [...]}}`");
            return self.out.push(place, reason, Some(hint));
        };
        let reason = format!("a cell of the matrix has no `{axis_shown}`");
        let near = nearest(axis, cell.iter().map(|(name, _)| name.as_str()));
        let hint = match near {
            Some(near) => format!("did you mean `{OPEN}{near}}}`?"),
            None => "give every cell a value of this name".to_owned(),
        };
        self.out.push(place, reason, Some(hint));
    }
}

/// Whether a job or a step says that a shell reads its scripts; `usual` where it says nothing.
fn is_shell_of(node: &Node, usual: bool) -> bool {
    let Value::Map(pairs) = &node.value else {
        return usual;
    };
    let own = pairs.iter().find(|(key, _)| name(key) == Some("shell"));
    own.map_or(usual, |(_, value)| is_shell(value))
}

/// Whether a text could be the name of a value.
fn is_name(axis: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    !axis.is_empty() && axis.chars().all(letter)
}

/// How much of a script is read by the shell itself: in quotes, and in a text below `<<`, it may be
/// of another language.
fn bare(script: &str) -> usize {
    let plain = |c: char| matches!(c, '\'' | '"' | '`' | '\\' | '#' | '$');
    let first = script.find(plain).unwrap_or(script.len());
    script[..first].find("<<").unwrap_or(first)
}

fn value<'v>(cell: &'v Values, axis: &str) -> Option<&'v str> {
    let found = cell.iter().find(|(name, _)| name == axis);
    found.map(|(_, value)| value.as_str())
}

fn name(key: &Node) -> Option<&str> {
    match &key.value {
        Value::Scalar { text, .. } => Some(text),
        _ => None,
    }
}
