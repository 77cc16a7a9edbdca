//! What is done around the work: before it the workspace gets what the job spec names, after it
//! what is to be kept goes to the server.
//!
//! It happens in the agent and not in the shim, which knows neither server nor lease. So an agent
//! that dies before the work began has begun nothing, and one that dies after it does this part
//! again. Each part says why it failed, in the words of the causes; none of them is the user's
//! exit.

mod artifacts;
mod caches;
mod inputs;
mod positional_reader;
pub(crate) mod secrets;
mod test_count;
pub(crate) mod test_results;
mod transfer;

use std::sync::{Mutex, OnceLock};

use delta_core::Cause;
use delta_shim::container::ContainerOrder;
use delta_shim::order::StepRecord;
use delta_shim::sandbox::Confinement;
use delta_shim::stop::StopReason;
use delta_shim::verdict::{Limits, Outcome, Stage, stopped_at};
use delta_wire::agent::proto::RunSummary;
use delta_wire::runner::LeaseToken;
use delta_wire::{JobSpec, Secret};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub(crate) use self::test_count::FOUND_NONE;
pub(crate) use self::test_results::Results;
use crate::agent::SlotContext;
use crate::checkout;
pub(crate) use crate::log::Log;
use crate::work::{Ended, Identity};
use crate::workspace::AttemptFolder;

/// Where the source of a run is, as the server says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    pub repository: Option<String>,
    pub git_ref: Option<String>,
    pub commit: Option<String>,
}

/// What each part has in hand.
pub(crate) struct Around<'a> {
    pub context: &'a SlotContext,
    pub lease: &'a LeaseToken,
    pub identity: &'a Identity,
    pub spec: &'a JobSpec,
    pub folder: &'a AttemptFolder,
    pub confinement: Confinement,
    pub log: &'a Log,
    /// What was fetched for it, once it is.
    pub secrets: OnceLock<secrets::Fetched>,
    /// The part before the work that is being done, for a sentence about its end.
    pub at: Mutex<Option<&'static str>>,
    /// The steps that were begun; none before the work.
    pub records: &'a [StepRecord],
    /// Set when the work is to stop: for threads, which are not ended by being dropped.
    pub stopped: CancellationToken,
}

impl Around<'_> {
    /// The part before the work that is being done, or was last.
    pub fn at(&self) -> Option<&'static str> {
        *self.at.lock().unwrap_or_else(|broken| broken.into_inner())
    }

    fn now_at(&self, part: &'static str) {
        *self.at.lock().unwrap_or_else(|broken| broken.into_inner()) = Some(part);
    }
}

/// What the parts before the work leave to the work.
#[derive(Default)]
pub(crate) struct Prepared {
    /// Variables that no file may hold.
    pub secrets: Vec<(String, Secret)>,
    /// What the steps run in, when that is a container.
    pub container: Option<ContainerOrder>,
    /// Every value that must not be seen in the log.
    pub masked: Vec<Secret>,
    pub carried: Carried,
}

/// What the parts before the work leave to those after it, also when that is another agent's turn.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Carried {
    /// The caches as they were looked for, in the order of the spec.
    #[serde(default)]
    pub caches: Vec<caches::Looked>,
    /// Reports of tests that lay there already.
    #[serde(default)]
    pub reports: test_results::OldReports,
}

/// What came of the parts after the work.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub summary: Option<Tested>,
    /// Artifacts that the server has.
    pub artifacts: u32,
    /// What could not be kept: it ends an attempt that succeeded otherwise.
    pub failed: Option<Failed>,
    /// The work failed, and its tool said that it found no test.
    pub found_none: bool,
    /// What is to be known of work that succeeded: reports that are not there, how many tests ran,
    /// artifacts without a file.
    pub remarks: Vec<String>,
}

/// What tests came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tested {
    /// None where what was printed named tests that failed: how many there are is not known.
    pub summary: Option<RunSummary>,
    /// Each step that failed has reported a failed test itself.
    pub failed_it: bool,
}

/// Why a part could not be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failed {
    pub cause: Cause,
    /// One sentence for people.
    pub summary: String,
}

/// Whether there is anything to do after work that ended so. Nobody waits for what a canceled or
/// lost attempt leaves.
pub(crate) fn keeps(spec: &JobSpec, ended: &Ended) -> bool {
    let nothing = spec.results.is_empty()
        && spec.tests.is_empty()
        && spec.count_tests.is_none()
        && spec.artifacts.is_empty()
        && spec.caches.is_empty();
    let waited_for = match ended.stopped {
        None => true,
        Some(StopReason::TimedOut | StopReason::StepTimedOut | StopReason::Silent) => true,
        Some(StopReason::Canceled | StopReason::LeaseLost | StopReason::Shutdown) => false,
    };
    !nothing && waited_for
}

/// Remarks that a summary has room for: a line that people read.
const MAX_REMARKS: usize = 3;

impl Kept {
    /// A summary of work that succeeded, and what is to be known beside it.
    pub fn beside(&self, summary: &str) -> String {
        let remarks = self.remarks.iter().take(MAX_REMARKS).map(String::as_str);
        let parts: Vec<&str> = std::iter::once(summary).chain(remarks).collect();
        parts.join("; ")
    }

    /// What an order to stop leaves of it.
    pub fn stopped(reason: StopReason) -> Kept {
        let (_, cause, _) = stopped_at(reason, Stage::Before(None), Limits::default());
        let failed = cause.map(|cause| Failed {
            cause,
            summary: "the work was stopped while its results were kept".to_owned(),
        });
        Kept {
            failed,
            ..Kept::default()
        }
    }
}

impl Failed {
    /// What an attempt is that failed so.
    pub fn outcome(&self) -> Outcome {
        match self.cause {
            Cause::JobTimeout => Outcome::TimedOut,
            _ => Outcome::Failed { exit_code: None },
        }
    }
}

/// Everything before the work, in this order. Dropping it ends it.
pub(crate) async fn before(around: &Around<'_>) -> Result<Prepared, Failed> {
    let mut prepared = Prepared::default();
    around.now_at("the fetching of its secrets");
    secrets::before(around, &mut prepared).await?;
    around.now_at("the checkout");
    checkout::prepare(around).await?;
    if !around.spec.artifacts.is_empty() {
        artifacts::forget(around).await;
    }
    around.now_at("the fetching of its inputs");
    inputs::fetch(around).await?;
    around.now_at("the restoring of its caches");
    prepared.carried.caches = caches::restore(around).await?;
    prepared.carried.reports = test_results::OldReports::note(around).await;
    Ok(prepared)
}

/// Everything after the work, in this order. Dropping it ends it.
pub(crate) async fn after(around: &Around<'_>, results: Option<Results>) -> Kept {
    let mut kept = Kept::default();
    if let Err(failed) = secrets::after(around).await {
        kept.failed = Some(failed);
        return kept;
    }
    if let Some(results) = results {
        kept = results.finish(around).await;
    }
    test_count::tests(around, &mut kept).await;
    let artifacts = artifacts::keep(around).await;
    kept.artifacts = artifacts.count;
    kept.failed = kept.failed.or(artifacts.failed);
    kept.remarks.extend(artifacts.remarks);
    kept
}

/// Saves the caches of work that succeeded, when all else is done: it changes no result.
pub(crate) async fn save_caches(around: &Around<'_>, carried: &Carried) {
    caches::save(around, &carried.caches).await;
}
