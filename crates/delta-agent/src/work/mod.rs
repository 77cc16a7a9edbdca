//! One attempt's work: what is asked for, how it is told to stop, and how it ended.
//!
//! Words that leases, attempts, calls of functions and the log share. Nothing of leases, servers or
//! tokens is among them. Work is carried out by a shim of its own (`delta-shim`), which
//! [`crate::attempt`] starts and follows, or by a runner ([`crate::functions`]).

mod environment;
pub(crate) mod steps;

use std::path::PathBuf;
use std::time::Duration;

use delta_core::Cause;
use delta_shim::container::ContainerOrder;
use delta_shim::order::Record;
use delta_shim::sandbox::Confinement;
use delta_shim::spool::LogSize;
use delta_shim::step::Step;
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use delta_wire::Evidence;
pub use environment::{BaseEnvironment, Identity};
pub(crate) use environment::{base, environment, unusable};
use tokio::time::Instant;

/// One attempt's work and where it happens.
#[derive(Debug, Clone)]
pub struct Work {
    pub identity: Identity,
    pub steps: Vec<Step>,
    pub env: Vec<(String, String)>,
    /// The job's own tree.
    pub workspace: PathBuf,
    /// Where steps start, relative to the workspace.
    pub workdir: String,
    /// A folder for temporary files, removed with the attempt.
    pub tmp: PathBuf,
    /// The job's own HOME; nothing when it is to see the agent's.
    pub home: Option<PathBuf>,
    pub base: BaseEnvironment,
    pub confinement: Confinement,
    /// What it is kept from by name, as [`Confinement::to_hide`] said.
    pub hidden: Vec<PathBuf>,
    /// Use a control group where there is one; without it the tree is ended process by process.
    pub control_group: bool,
    /// The container the steps run in; as processes of this machine when absent.
    pub container: Option<ContainerOrder>,
    /// Bytes of log kept.
    pub log_quota: u64,
    /// Bytes of it that were dropped before the work began.
    pub log_dropped: u64,
    /// Between TERM and KILL when time alone ends the work.
    pub stop_grace: Duration,
    /// How long a job that ended may take to end what it left behind.
    pub leftover_grace: Duration,
    /// How long it may print nothing.
    pub silence: Option<Duration>,
}

/// The order in force. A later order replaces an earlier one, but never moves `kill_at` back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopOrder {
    pub reason: StopReason,
    /// TERM is sent at once; whatever is left at this moment is killed.
    pub kill_at: Instant,
}

/// How an attempt ended.
#[derive(Debug, Clone)]
pub struct Ended {
    pub outcome: Outcome,
    /// Absent for success and for a cancel, which the server already knows the cause of.
    pub cause: Option<Cause>,
    /// One sentence for people.
    pub summary: String,
    /// The step that was running when it ended, counted from 0.
    pub step: Option<usize>,
    /// Set when a stop order ended it.
    pub stopped: Option<StopReason>,
    /// False when a process of the job could not be shown to be gone.
    pub confirmed: bool,
    pub log: LogSize,
    /// What was seen at the end of work that failed.
    pub evidence: Evidence,
}

impl Ended {
    /// As a shim wrote it down.
    pub(crate) fn of(record: &Record) -> Ended {
        Ended {
            outcome: record.outcome,
            cause: record.cause.as_deref().and_then(Cause::from_name),
            summary: record.summary.clone(),
            step: record.step,
            stopped: record.stopped,
            confirmed: record.confirmed,
            log: record.log.clone(),
            evidence: record.evidence.clone(),
        }
    }
}
