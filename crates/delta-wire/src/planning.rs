//! What a server and the processes that plan for it say to each other: one JSON text each way, over
//! a pipe. They are the same binary; nobody else speaks this.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::Trigger;

/// The words that start such a process. Nobody types them.
pub const FETCH_WORKER: &str = "fetch-worker";
pub const PLAN_WORKER: &str = "plan-worker";

/// Bring a commit into a repository that is kept, or say which commit a ref is.
#[derive(Clone, Serialize, Deserialize)]
pub struct FetchOrder {
    /// The folder of the repository, made when it is not there.
    pub mirror: String,
    pub url: String,
    pub git_ref: Option<String>,
    /// None where nothing is to be brought, and only the ref looked at.
    pub commit: Option<String>,
    /// The branch that a request wants to go to.
    pub base: Option<String>,
    /// As the text of a secret has it.
    pub credential: Option<String>,
}

impl std::fmt::Debug for FetchOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FetchOrder")
            .field("url", &self.url)
            .field("commit", &self.commit)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FetchAnswer {
    Fetched {
        commit: String,
        /// Where the ref stands now; none when it is gone.
        head: Option<String>,
        /// Where the branch stands that a request wants to go to.
        base: Option<String>,
    },
    Failed(String),
}

/// Plan a commit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanOrder {
    pub mirror: String,
    pub commit: String,
    pub git_ref: Option<String>,
    /// What the commit is compared with, to see what changed.
    pub base: Option<String>,
    /// Why there is nothing to compare it with, where there is not.
    #[serde(default)]
    pub no_base: Option<String>,
    pub trigger: Trigger,
    pub trusted: bool,
    /// Seconds of processor time, and bytes of memory.
    pub cpu_seconds: u64,
    pub memory_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanAnswer {
    /// The body of `POST /api/v1/runs`, and why each job is in it or not.
    Jobs { request: Value, plan: Value },
    /// There are jobs, and none of them is for this trigger.
    Nothing { plan: Value },
    /// Nothing is configured and nothing was found.
    Empty(String),
    /// What is wrong.
    Fault(String),
}
