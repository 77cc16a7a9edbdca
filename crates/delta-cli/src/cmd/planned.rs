//! What the planner said about a run, for people: what is wrong, and what was left out and why.

use serde::Deserialize;

use crate::clean;
use crate::client::Client;
use crate::exit::Exit;
use crate::failure::Failure;

/// Jobs that were left out and are listed; the rest is counted.
const MAX_LISTED: usize = 20;

/// As `GET /api/v1/runs/{id}/plan` says it.
#[derive(Debug, Default, Deserialize)]
pub struct Said {
    #[serde(default)]
    pub error: Option<String>,
    #[serde(default)]
    pub omitted: Vec<Omitted>,
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
        text.lines().map(clean::text).collect()
    }

    /// A line for each job that is left out.
    pub fn left_out(&self) -> Vec<String> {
        let shown = self.omitted.iter().take(MAX_LISTED);
        let line = |it: &Omitted| clean::text(&format!("{}: {}", it.name, it.reason));
        let mut lines: Vec<String> = shown.map(line).collect();
        if let more @ 1.. = self.omitted.len().saturating_sub(MAX_LISTED) {
            lines.push(format!("and {more} more"));
        }
        lines
    }
}
