//! What is wrong with a message, and where: one field and one sentence each.
//!
//! A runner's message is refused at its first problem; the people's API lists all of them at once.

use std::borrow::Cow;

use crate::error::{ErrorBody, ErrorCode};

/// How many problems one answer lists. A person mends a handful at a time; the rest is noise.
pub const MAX_PROBLEMS: usize = 50;

/// One problem of one field, spelled as a path such as `jobs[2].needs[0]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", self.place(), on_one_line(message))]
pub struct Invalid {
    /// Empty when the whole value is meant.
    pub field: String,
    pub message: String,
}

impl Invalid {
    /// A problem of the value itself; the reader above puts the name in front.
    pub fn here(message: impl Into<String>) -> Self {
        Invalid {
            field: String::new(),
            message: message.into(),
        }
    }

    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Invalid {
            field: field.into(),
            message: message.into(),
        }
    }

    pub fn missing(field: &str) -> Self {
        Invalid::field(field, "is missing")
    }

    /// The problem as seen from one level up: `outer` is put in front of its name.
    pub fn within(mut self, outer: &str) -> Self {
        self.field = join(outer, &self.field);
        self
    }

    /// The field's path, or `body` for the message as a whole.
    pub fn place(&self) -> &str {
        if self.field.is_empty() {
            "body"
        } else {
            &self.field
        }
    }
}

impl From<Invalid> for ErrorBody {
    fn from(invalid: Invalid) -> Self {
        ErrorBody::new(ErrorCode::Invalid, invalid.to_string()).at(invalid.place())
    }
}

/// Every problem found in one request, in reading order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Invalid>,
}

impl Problems {
    pub fn new() -> Self {
        Problems::default()
    }

    pub fn push(&mut self, problem: Invalid) {
        if self.list.len() < MAX_PROBLEMS {
            self.list.push(problem);
        }
    }

    /// Keeps the value, or notes why there is none.
    pub fn note<T>(&mut self, result: Result<T, Invalid>) -> Option<T> {
        result.map_err(|problem| self.push(problem)).ok()
    }

    /// Keeps a value of which several things may be wrong, or notes all of them.
    pub fn note_all<T>(&mut self, result: Result<T, Problems>) -> Option<T> {
        let noted = result.map_err(|found| found.list.into_iter().for_each(|it| self.push(it)));
        noted.ok()
    }

    /// The problems as seen from one level up: `outer` is put in front of their names.
    pub fn within(self, outer: &str) -> Self {
        let mut seen = Problems::new();
        seen.extend_within(outer, self);
        seen
    }

    /// Where one is enough.
    pub fn into_first(self) -> Invalid {
        let first = self.list.into_iter().next();
        first.unwrap_or_else(|| Invalid::here("cannot be read"))
    }

    /// Takes over the problems of a value that lies at `outer`.
    pub fn extend_within(&mut self, outer: &str, inner: Problems) {
        for problem in inner.list {
            self.push(problem.within(outer));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Invalid> {
        self.list.iter()
    }
}

impl From<Invalid> for Problems {
    fn from(problem: Invalid) -> Self {
        Problems {
            list: vec![problem],
        }
    }
}

impl std::fmt::Display for Problems {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// One body for all of them: `field` is the first, the message has a line for each.
impl From<Problems> for ErrorBody {
    fn from(problems: Problems) -> Self {
        let body = ErrorBody::new(ErrorCode::Invalid, problems.to_string());
        match problems.list.first() {
            Some(first) => body.at(first.place()),
            None => body,
        }
    }
}

/// What somebody wrote may be repeated in a message; it is one line of an answer all the same.
fn on_one_line(message: &str) -> Cow<'_, str> {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    if message.contains(breaks) {
        message.replace(breaks, "\u{fffd}").into()
    } else {
        message.into()
    }
}

fn join(outer: &str, inner: &str) -> String {
    if inner.is_empty() {
        outer.to_owned()
    } else if inner.starts_with('[') {
        format!("{outer}{inner}")
    } else {
        format!("{outer}.{inner}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_join_as_a_person_would_write_them() {
        let inner = Invalid::here("is empty")
            .within("[0]")
            .within("needs")
            .within("[2]");
        assert_eq!(
            inner.within("jobs").to_string(),
            "jobs[2].needs[0]: is empty"
        );
        assert_eq!(
            Invalid::here("is not JSON").to_string(),
            "body: is not JSON"
        );
    }

    #[test]
    fn a_problem_is_one_line_whatever_it_repeats() {
        let mut problems = Problems::new();
        problems.push(Invalid::field(
            "needs",
            "no job is named `a\nb\u{c}c\u{2028}d`",
        ));
        problems.push(Invalid::missing("jobs"));
        let said = ErrorBody::from(problems).message;
        assert_eq!(
            said,
            "needs: no job is named `a\u{fffd}b\u{fffd}c\u{fffd}d`\njobs: is missing"
        );
    }

    #[test]
    fn several_problems_make_one_body_that_names_the_first() {
        let mut problems = Problems::new();
        problems.push(Invalid::missing("jobs"));
        problems.push(Invalid::field("ref", "is empty"));
        let body = ErrorBody::from(problems);
        assert_eq!(body.field.as_deref(), Some("jobs"));
        assert_eq!(body.message, "jobs: is missing\nref: is empty");
    }
}
