//! Why a job failed, as people and tools are told everywhere: the step and what it ended with, the
//! tests that failed with what they said, the last lines.
//!
//! All texts are those of runners and jobs: untrusted, and bounded by whoever makes the view.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::results::TestStatus;
use crate::states::JobState;
use crate::step::StepResult;

/// Why a job failed, as far as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailureView {
    /// The attempt it is about: the last one.
    pub attempt: u32,
    /// One sentence, with the runner's own words in it.
    #[schema(example = "step 2 `cargo test` ended with exit code 101")]
    pub message: String,
    /// The step that the work failed by, where it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// The signal that ended the work or a program in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// How many tests failed or could not be carried out.
    #[serde(default, skip_serializing_if = "is_none")]
    pub tests_failed: u64,
    /// The first of them. They, and the last lines, are told of the first failed jobs of a run, and
    /// of a job that is asked for by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<FailedTest>,
    /// The last lines of the log when it failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_lines: Vec<String>,
}

/// A test that failed or could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailedTest {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub suite: String,
    pub name: String,
    pub status: TestStatus,
    /// The beginning of what it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A job that another one needed and that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailedNeed {
    pub job_id: String,
    pub name: String,
    pub state: JobState,
    /// Why, in one sentence; of one that was not begun itself, with the name of the job at the
    /// beginning of it.
    #[schema(example = "step 2 `cargo test` ended with exit code 101")]
    pub message: String,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}
