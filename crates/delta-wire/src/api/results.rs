//! Results of tests: what people ask for and what they are shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::invalid::Invalid;
use crate::states::spelled;
use crate::time::Millis;

/// Results of one page when the caller does not say, and at most: a trace may have 64 KiB, so that
/// a page stays below some ten megabytes.
pub const DEFAULT_RESULTS: usize = 50;
pub const MAX_RESULTS: usize = 200;
/// Characters of a filter's value: as long as a name may be.
pub const MAX_VALUE: usize = 1024;
/// Words that results are chosen by: statuses, and one for those that are no success.
pub const STATUSES: [&str; 5] = ["pass", "fail", "skip", "error", "failed"];

spelled! {
    /// What a test came to; `error` is one that could not be carried out.
    TestStatus {
        Fail = "fail",
        Error = "error",
        Skip = "skip",
        Pass = "pass",
    }
}

spelled! {
    /// What is known of a test beyond one result. `flaky`: it passed and failed on the same commit,
    /// or in the same run. `broken`: it failed, and passed in none of the results that were looked
    /// at.
    TestVerdict {
        Flaky = "flaky",
        Broken = "broken",
    }
}

/// How many results there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TestCounts {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
    pub errors: u64,
}

impl TestCounts {
    pub fn total(&self) -> u64 {
        self.passed + self.failed + self.skipped + self.errors
    }

    pub fn unhappy(&self) -> u64 {
        self.failed + self.errors
    }
}

/// What the results of one attempt come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TestTotals {
    #[schema(example = "job_0190f3c2e7a87c1fb2d45a6b7c8d9e0f_1")]
    pub job_id: String,
    pub attempt: u32,
    pub counts: TestCounts,
    /// What the agent said they come to, where it is not the same: the results count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed: Option<TestCounts>,
    /// Results beyond the bounds, which are not kept.
    #[serde(default)]
    pub dropped: u64,
}

/// One result. Texts are from the job: untrusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TestView {
    pub job_id: String,
    pub attempt: u32,
    pub test_id: String,
    #[schema(example = "api::users")]
    pub suite: String,
    #[schema(example = "a_user_is_found")]
    pub name: String,
    pub status: TestStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Of those that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<TestVerdict>,
    /// When it was received.
    pub at: Millis,
}

/// A page of results: by job, what failed first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TestList {
    /// What all results come to, whatever the filter: one entry per attempt that has some.
    pub totals: Vec<TestTotals>,
    pub tests: Vec<TestView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One result of a test at some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastTest {
    pub run_id: String,
    pub job_id: String,
    pub attempt: u32,
    pub suite: String,
    pub status: TestStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    pub at: Millis,
}

/// What the latest 200 results say of one test: its suite in its repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TestStanding {
    pub suite: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    pub counts: TestCounts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<TestVerdict>,
    /// Commits on which it passed and failed; runs where there is no commit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flaky_on: Vec<String>,
}

/// A test over time, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TestHistory {
    pub name: String,
    pub standings: Vec<TestStanding>,
    pub results: Vec<PastTest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Which results of a run or a job.
#[derive(Clone, Debug, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListTests {
    /// `pass`, `fail`, `skip`, `error`, or `failed` for `fail` and `error`; several with commas.
    #[param(value_type = Option<String>)]
    pub status: Vec<TestStatus>,
    /// Of a job: which attempt; the latest when absent.
    pub attempt: Option<u32>,
    /// How many of them.
    #[param(value_type = Option<usize>)]
    pub limit: usize,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl ListTests {
    pub fn parse<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<ListTests, Invalid> {
        let mut list = ListTests {
            status: Vec::new(),
            attempt: None,
            limit: DEFAULT_RESULTS,
            cursor: None,
        };
        for (name, value) in pairs {
            match name {
                "status" => list.status = statuses(value)?,
                "attempt" => {
                    let number = value.parse().map_err(|_| not_a_number(name))?;
                    list.attempt = Some(number);
                }
                "limit" => list.limit = limit(value)?,
                "cursor" => list.cursor = Some(text(name, value)?),
                _ => return Err(unknown(name, "status, attempt, limit, cursor")),
            }
        }
        Ok(list)
    }
}

/// Which test.
#[derive(Clone, Debug, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FindTest {
    pub name: String,
    pub suite: Option<String>,
    pub repository: Option<String>,
    /// How many of them.
    #[param(value_type = Option<usize>)]
    pub limit: usize,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl FindTest {
    pub fn parse<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<FindTest, Invalid> {
        let mut find = FindTest {
            name: String::new(),
            suite: None,
            repository: None,
            limit: DEFAULT_RESULTS,
            cursor: None,
        };
        for (name, value) in pairs {
            match name {
                "name" => find.name = text(name, value)?,
                "suite" => find.suite = Some(text(name, value)?),
                "repository" => find.repository = Some(text(name, value)?),
                "limit" => find.limit = limit(value)?,
                "cursor" => find.cursor = Some(text(name, value)?),
                _ => return Err(unknown(name, "name, suite, repository, limit, cursor")),
            }
        }
        if find.name.is_empty() {
            Err(Invalid::missing("name"))
        } else {
            Ok(find)
        }
    }
}

fn statuses(value: &str) -> Result<Vec<TestStatus>, Invalid> {
    let mut all = Vec::new();
    for word in value.split(',') {
        match (word, TestStatus::from_text(word)) {
            ("failed", _) => all.extend([TestStatus::Fail, TestStatus::Error]),
            (_, Some(status)) => all.push(status),
            _ => {
                let words = format!("must be of {}", STATUSES.join(", "));
                return Err(Invalid::field("status", words));
            }
        }
    }
    Ok(all)
}

fn limit(value: &str) -> Result<usize, Invalid> {
    let limit = value.parse().ok();
    let limit = limit.filter(|it| (1..=MAX_RESULTS).contains(it));
    let words = format!("must be a whole number from 1 to {MAX_RESULTS}");
    limit.ok_or_else(|| Invalid::field("limit", words))
}

fn text(name: &str, value: &str) -> Result<String, Invalid> {
    if value.is_empty() || value.chars().count() > MAX_VALUE {
        Err(Invalid::field(
            name,
            format!("must have 1 to {MAX_VALUE} characters"),
        ))
    } else {
        Ok(value.to_owned())
    }
}

fn not_a_number(name: &str) -> Invalid {
    Invalid::field(name, "is not a number")
}

fn unknown(name: &str, known: &str) -> Invalid {
    Invalid::field(name, format!("is not known; known here: {known}"))
}
