//! What people and tools are shown of runs, jobs, attempts, leases and events.
//!
//! Leases appear by their public number and epoch, never by their token (A24).

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::create_run::Trust;
use super::failure::{FailedNeed, FailureView};
use super::log::LogView;
use crate::evidence::Evidence;
use crate::states::{AttemptState, JobState, LeaseState, RunOutcome, RunState};
use crate::step::StepResult;
use crate::time::Millis;

/// A run with a line for each of its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    #[serde(flatten)]
    pub summary: RunSummary,
    /// Number of its newest event; rises without gaps.
    pub version: u64,
    /// Runs that ran this one again, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reruns: Vec<String>,
    /// What keeps its forge, or whoever else is to be told, from having heard of it so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untold: Option<String>,
    pub jobs: Vec<JobSummary>,
}

/// A run in a list: everything about it but its jobs and its version, which `GET /runs/{id}` tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunSummary {
    #[schema(example = "run_0197f3c4a1b27c3d9e8f0a1b2c3d4e5f")]
    pub run_id: String,
    pub state: RunState,
    /// Null until the run has one; it stays when the state is REPORTED.
    pub outcome: Option<RunOutcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// 1, and one more with every rerun.
    pub run_attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerun_of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<Trust>,
    pub created_at: Millis,
    pub started_at: Option<Millis>,
    pub ended_at: Option<Millis>,
    /// The latest moment the run can end; absent once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub must_end_by: Option<Millis>,
    /// What to expect of it while it is not over, such as `will fail`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    /// The group of which one run at a time is at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<GroupView>,
    /// Who asked for it to stop, if somebody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<CancelView>,
}

/// A concurrency group, as the run or the job names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupView {
    pub group: String,
    pub cancel_older: bool,
}

/// One line about a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobSummary {
    pub job_id: String,
    pub name: String,
    pub state: JobState,
    pub required: bool,
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<FailureView>>,
    /// Which of the jobs it needs did not succeed, of one that was not begun because of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_needs: Vec<FailedNeed>,
    /// Bytes that its last attempt printed and that are not in its log: it was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_dropped: Option<u64>,
    /// What it waits for, while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    /// What the runner said of its latest attempt: untrusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// The job of an earlier run whose result this is: it was not run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
}

/// Jobs of one name, in the newest run that has any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NamedJobs {
    /// The run; absent when none has such a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Millis>,
    /// The job of exactly that name, or the cells of a matrix of that name.
    pub jobs: Vec<JobSummary>,
    /// Jobs of that name in other runs that have not ended, newest first: a name alone may mean
    /// each of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfinished: Vec<JobSummary>,
    /// How many runs were looked at, from the newest on.
    pub looked_at: u64,
}

/// A page of runs, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    pub runs: Vec<RunSummary>,
    /// Null on the last page.
    pub next_cursor: Option<String>,
}

/// Why something is as it is: a word for programs, a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Why {
    #[schema(example = "no_fit_agent")]
    pub code: String,
    #[schema(example = "No agent offers `gpu`.")]
    pub message: String,
}

/// A cancel: who asked for it, when, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelView {
    pub at: Millis,
    /// The credential that asked, or `server` for a rule of the run itself.
    pub by: String,
    /// Text of whoever asked: untrusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A job with all its attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    pub job_id: String,
    pub run_id: String,
    pub name: String,
    pub state: JobState,
    pub required: bool,
    pub needs: Vec<String>,
    pub requires: Vec<String>,
    pub max_attempts: u32,
    pub priority: i32,
    pub once: bool,
    /// The group of which one job at a time is at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<GroupView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Box<FailureView>>,
    /// Which of the jobs it needs did not succeed, of one that was not begun because of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_needs: Vec<FailedNeed>,
    /// The job of an earlier run whose result this is: its attempts, log and artifacts are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub must_end_by: Option<Millis>,
    pub attempts: Vec<AttemptView>,
}

/// One try of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    /// From 1.
    pub attempt: u32,
    pub state: AttemptState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i64>,
    /// Text from the runner: untrusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    pub created_at: Millis,
    /// Not before this moment is it queued, after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
    /// What the runner's own clock said when it reported its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported: Option<ReportedView>,
    /// Leases that were lost under work.
    pub losses: u32,
    /// Grants that were never taken up.
    pub dispatches: u32,
    /// Who asked for it to stop, if somebody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<CancelView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressView>,
    /// Whether it is proven that nothing of the work runs any more: false after a cancel that was
    /// forced, and when the runner could not end a process; absent when nobody said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
    /// What the runner saw at the end, beside the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
    /// What each step came to, in order, as the runner saw it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogView>,
    #[serde(default)]
    pub artifacts: Vec<ArtifactView>,
    pub leases: Vec<LeaseView>,
}

/// Times by the runner's clock: shown beside the server's, never obeyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReportedView {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reported_at: Option<Millis>,
    /// When the server had read the report, by its own clock.
    pub received_at: Millis,
    /// Between the two moments of the runner; 0 where its clock went back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The runner's clock and the server's are more than five minutes apart.
    pub skewed: bool,
}

/// How far a live attempt says it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProgressView {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_step: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_index: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Bytes an attempt left behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactView {
    #[serde(rename = "type")]
    pub kind: String,
    pub uri: String,
    /// The reference was not issued here: it is text, and never fetched.
    pub external: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// An artifact of a job that is stored here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobArtifact {
    pub job_id: String,
    pub job: String,
    pub attempt: u32,
    #[serde(rename = "type")]
    pub kind: String,
    pub name: String,
    pub size: u64,
    pub sha256: String,
}

/// An artifact of a job that another one needs, as that one's agent sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputArtifact {
    /// What to ask for.
    pub id: String,
    /// The name of the job it is of.
    pub job: String,
    pub name: String,
    pub size: u64,
    pub sha256: String,
}

/// What a job gets from those it needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputList {
    pub inputs: Vec<InputArtifact>,
    /// Names of needed jobs that were kept from a run that is deleted by now, with all they left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleted: Vec<String>,
    /// Names of needed jobs that did not succeed: they may have left less than they should.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_succeeded: Vec<String>,
}

/// What can be fetched of a job, or of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactList {
    pub artifacts: Vec<JobArtifact>,
}

/// One lease of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseView {
    /// The n-th lease of the job.
    pub number: u64,
    pub epoch: u64,
    pub state: LeaseState,
    /// Whether its execution was lost and its results are ignored: the STALE of the state machines.
    pub stale: bool,
    /// Why it ended before its work did, such as `LEASE_EXPIRED`, `ACK_TIMEOUT`, `FORCED_CANCEL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub runner_id: String,
    pub granted_at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Millis>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Millis>,
}

/// One accepted command of a run and the facts it made.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// From 1, without gaps.
    pub version: u64,
    pub at: Millis,
    pub command: String,
    pub actor: String,
    /// The facts as stored, in the order they happened.
    #[schema(value_type = Vec<Object>)]
    pub facts: Box<RawValue>,
    /// The hash that chains this event to all before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// Events of a run after a given version.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    pub events: Vec<EventView>,
    /// Pass it as `after` to go on; null when there was nothing more.
    pub next_after: Option<u64>,
}
