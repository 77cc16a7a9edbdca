//! `GET /api/v1/runs`: which runs, how many, from where on.

use utoipa::IntoParams;

use super::create_run::MAX_SOURCE as MAX_VALUE;
use super::cursor::Cursor;
use crate::invalid::{Invalid, Problems};
use crate::nearest::nearest;
use crate::states::{RunOutcome, RunState};

/// Runs of one page when the caller does not say: a screen or two.
pub const DEFAULT_LIMIT: u32 = 50;
/// Runs of one page at most: no read outlives a page of results.
pub const MAX_LIMIT: u32 = 200;
const KNOWN: [&str; 7] = [
    "state",
    "outcome",
    "repository",
    "ref",
    "commit",
    "limit",
    "cursor",
];

/// A page of runs, newest first.
#[derive(Clone, Debug, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListRuns {
    pub state: Option<RunState>,
    pub outcome: Option<RunOutcome>,
    pub repository: Option<String>,
    #[param(rename = "ref")]
    pub git_ref: Option<String>,
    pub commit: Option<String>,
    /// How many of them.
    #[param(value_type = Option<u32>)]
    pub limit: u32,
    /// `next_cursor` of the page before.
    #[param(value_type = Option<String>)]
    pub cursor: Option<Cursor>,
}

impl ListRuns {
    /// Reads decoded query parameters; unknown ones are refused, each at most once.
    pub fn parse<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<ListRuns, Problems> {
        let mut problems = Problems::new();
        let mut seen: Vec<&str> = Vec::new();
        let mut list = ListRuns {
            state: None,
            outcome: None,
            repository: None,
            git_ref: None,
            commit: None,
            limit: DEFAULT_LIMIT,
            cursor: None,
        };
        for (name, value) in pairs {
            if seen.contains(&name) {
                problems.push(Invalid::field(name, "is given twice"));
            } else if let Err(problem) = list.set(name, value) {
                problems.push(problem);
            }
            seen.push(name);
        }
        if problems.is_empty() {
            Ok(list)
        } else {
            Err(problems)
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Invalid> {
        let words =
            |all: Vec<&str>| Invalid::field(name, format!("must be one of {}", all.join(", ")));
        match name {
            "state" => {
                let all = || RunState::ALL.iter().map(|it| it.as_str()).collect();
                self.state = Some(RunState::from_text(value).ok_or_else(|| words(all()))?);
            }
            "outcome" => {
                let all = || RunOutcome::ALL.iter().map(|it| it.as_str()).collect();
                self.outcome = Some(RunOutcome::from_text(value).ok_or_else(|| words(all()))?);
            }
            "repository" => self.repository = Some(text(name, value)?),
            "ref" => self.git_ref = Some(text(name, value)?),
            "commit" => self.commit = Some(text(name, value)?),
            "limit" => {
                let limit = value.parse().ok().filter(|it| (1..=MAX_LIMIT).contains(it));
                self.limit = limit.ok_or_else(|| {
                    Invalid::field(
                        name,
                        format!("must be a whole number from 1 to {MAX_LIMIT}"),
                    )
                })?;
            }
            "cursor" => self.cursor = Some(Cursor::decode(value)?),
            _ => {
                let message = match nearest(name, KNOWN) {
                    Some(known) => format!("is not known; did you mean `{known}`?"),
                    None => format!("is not known; known here: {}", KNOWN.join(", ")),
                };
                return Err(Invalid::field(name, message));
            }
        }
        Ok(())
    }
}

fn text(name: &str, value: &str) -> Result<String, Invalid> {
    if value.is_empty() || value.chars().count() > MAX_VALUE {
        return Err(Invalid::field(
            name,
            format!("must have 1 to {MAX_VALUE} characters"),
        ));
    }
    Ok(value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read() {
        let list = ListRuns::parse([("state", "RUNNING"), ("limit", "7"), ("ref", "main")]);
        let list = list.unwrap();
        assert_eq!(list.state, Some(RunState::Running));
        assert_eq!((list.limit, list.git_ref.as_deref()), (7, Some("main")));
    }

    #[test]
    fn every_wrong_filter_is_named() {
        let pairs = [
            ("stat", "RUNNING"),
            ("limit", "0"),
            ("outcome", "GOOD"),
            ("cursor", "x"),
        ];
        let text = ListRuns::parse(pairs).unwrap_err().to_string();
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(
            text.starts_with("stat: is not known; did you mean `state`?"),
            "{text}"
        );
    }
}
