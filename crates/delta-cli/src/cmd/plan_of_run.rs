//! What the planner said about a run, for people: what is wrong, and what was left out and why.

use serde::Deserialize;

use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::sanitize;

/// Jobs that were left out and are listed; the rest is counted.
const MAX_LISTED: usize = 20;

/// As `GET /api/v1/runs/{id}/plan` says it.
#[derive(Debug, Default, Deserialize)]
pub struct Said {
    #[serde(default)]
    pub error: Option<String>,
    #[serde(default)]
    pub omitted: Vec<Omitted>,
    /// Seen, and gives no job.
    #[serde(default)]
    remarks: Vec<Omitted>,
    /// Of lists that were too long to keep.
    #[serde(default)]
    cut: Cut,
}

#[derive(Debug, Default, Deserialize)]
struct Cut {
    #[serde(default)]
    omitted: usize,
    #[serde(default)]
    remarks: usize,
}

#[derive(Debug, Deserialize)]
pub struct Omitted {
    pub name: String,
    pub reason: String,
}

/// Nothing where a run was not planned, as one that was made with its jobs.
pub async fn of(client: &Client, run: &str) -> Result<Said, Failure> {
    match client.get(&format!("/api/v1/runs/{run}/plan")).await {
        Err(failure) if failure.exit == Exit::NotFound => Ok(Said::default()),
        answer => answer,
    }
}

impl Said {
    /// What is wrong, as its lines.
    pub fn faults(&self) -> Vec<String> {
        let text = self.error.as_deref().unwrap_or_default();
        text.lines().map(sanitize::text).collect()
    }

    /// A line for each job that is left out, and for what was seen and is none.
    pub fn left_out(&self) -> Vec<String> {
        let all = self.omitted.iter().chain(&self.remarks);
        let shown = all.take(MAX_LISTED);
        let line = |it: &Omitted| sanitize::text(&format!("{}: {}", it.name, it.reason));
        let mut lines: Vec<String> = shown.map(line).collect();
        let listed = self.omitted.len() + self.remarks.len();
        let more = listed.saturating_sub(MAX_LISTED) + self.cut.omitted + self.cut.remarks;
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_too_long_to_keep_is_counted() {
        let left_out = |count: usize, cut: &str| {
            let one = r#"{"name": "unit", "reason": "the file does not run on `push`"}"#;
            let list = vec![one; count].join(",");
            let text = format!(r#"{{"omitted": [{list}], {cut} "jobs": []}}"#);
            let said: Said = serde_json::from_str(&text).unwrap();
            assert!(said.faults().is_empty());
            said.left_out()
        };
        assert_eq!(left_out(2, "").len(), 2);
        let more = left_out(30, r#""cut": {"jobs": 3, "omitted": 900},"#);
        assert_eq!(more.len(), MAX_LISTED + 1);
        assert_eq!(more.last().map(String::as_str), Some("and 910 more"));
    }
}
