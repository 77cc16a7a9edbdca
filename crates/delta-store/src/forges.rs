//! Repositories and what is owed to their forges: rows of their own, beside runs.
//!
//! A report is the outbox's row of one run: written in the commit that makes the run, taken by a
//! reporter for a while, and gone when everything about the run was told. What there is to tell
//! follows from the run; the row only says how far the telling has come.

use delta_core::{Millis, Run, RunId, RunState, Text};

use crate::StoreError;

/// A repository that people have registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryRow {
    /// What people and addresses call it.
    pub name: Text,
    /// What its runs call it: the address they clone.
    pub clone_url: Text,
    /// Forge and policy, as the server wrote them down.
    pub about: Text,
    /// Rises with every write; part of what the secret is sealed with.
    pub version: u64,
    /// The key that its webhook secret is sealed with.
    pub key: Text,
    pub sealed: Vec<u8>,
    pub created_at: Millis,
    pub updated_at: Millis,
    pub updated_by: Text,
}

/// How far the telling about a run has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportRow {
    pub run: RunId,
    /// What was told: see [`stage_of`].
    pub stage: u32,
    /// Tries since something was told; counted before each, so that a lost one is known.
    pub tries: u32,
    /// Not before this.
    pub next_at: Millis,
    /// What was in the way the last time.
    pub why: Text,
}

/// Nothing was told yet.
pub const STAGE_NONE: u32 = 0;
pub const STAGE_QUEUED: u32 = 1;
pub const STAGE_RUNNING: u32 = 2;
/// The forge has the outcome.
pub const STAGE_FINAL: u32 = 3;
/// Whoever else wanted to know has been told of the outcome, and the forge has not taken it yet.
pub const STAGE_NOTIFIED: u32 = 4;
/// The run is REPORTED and whoever else wanted to know has been told.
pub const STAGE_DONE: u32 = 5;

/// What is to be told about a run as it is now. The outcome is told when nothing of it is live.
pub fn stage_of(run: &Run) -> u32 {
    use RunState as S;
    match run.state {
        S::Created | S::Planning | S::PlanFailed | S::Queued => STAGE_QUEUED,
        S::Running | S::CancelRequested => STAGE_RUNNING,
        S::Success | S::Failed | S::Canceled | S::Timeout if run.live_jobs > 0 => STAGE_RUNNING,
        S::Success | S::Failed | S::Canceled | S::Timeout | S::Reported => STAGE_DONE,
    }
}

/// [`stage_of`] in SQL, over the columns of a run that is called `r`.
pub(crate) const STAGE_SQL: &str = "CASE \
     WHEN r.state IN ('CREATED', 'PLANNING', 'PLAN_FAILED', 'QUEUED') THEN 1 \
     WHEN r.state IN ('RUNNING', 'CANCEL_REQUESTED') OR r.live_jobs > 0 THEN 2 ELSE 5 END";

/// Somebody let a run go on that waited for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    pub by: Text,
    pub at: Millis,
}

/// Repositories and what is owed to their forges, read.
pub trait ForgeReader {
    /// All of them, by name.
    fn repositories(&self) -> Result<Vec<RepositoryRow>, StoreError>;

    fn repository(&self, name: &str) -> Result<Option<RepositoryRow>, StoreError>;

    /// Reports with something to tell at `now`, the most overdue first.
    fn reports_due(&self, now: Millis, limit: usize) -> Result<Vec<ReportRow>, StoreError>;

    fn report(&self, run: RunId) -> Result<Option<ReportRow>, StoreError>;

    fn approval(&self, run: RunId) -> Result<Option<Approval>, StoreError>;

    fn plan(&self, run: RunId) -> Result<Option<Text>, StoreError>;
}

/// Repositories and what is owed to their forges, written. Beside the writer: a registration is
/// read when a delivery comes and copied into the run it makes. The row of a report is made by the
/// writer in the commit that makes its run; here is only noted how far the telling has come. What
/// an approval or a plan does to a run is a command's; its words are kept here for people.
pub trait ForgeTables {
    /// Writes one in place of the one with version `instead_of`, or a new one; false when it is not
    /// so any more. The moment it was made stays.
    fn put_repository(
        &self,
        row: &RepositoryRow,
        instead_of: Option<u64>,
    ) -> Result<bool, StoreError>;

    /// False when there is none.
    fn remove_repository(&self, name: &str) -> Result<bool, StoreError>;

    /// Takes a report until `until` and counts the try, if it still is as `seen`; of several who
    /// try, each until a moment of its own, one gets true.
    fn take_report(&self, seen: &ReportRow, until: Millis) -> Result<bool, StoreError>;

    /// Writes how far it has come; one that is gone stays gone.
    fn put_report(&self, row: &ReportRow) -> Result<(), StoreError>;

    /// Everything was told.
    fn remove_report(&self, run: RunId) -> Result<(), StoreError>;

    /// Notes that somebody let a run go on; the first one counts.
    fn approve(&self, run: RunId, approval: &Approval) -> Result<(), StoreError>;

    /// Keeps what the planner said about a run: reasons, or what is wrong.
    fn put_plan(&self, run: RunId, text: &str) -> Result<(), StoreError>;
}
