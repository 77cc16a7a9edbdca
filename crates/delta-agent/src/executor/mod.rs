//! Carrying out one attempt: what is asked for, how it is stopped, and how it ended.
//!
//! An executor knows nothing of leases, servers or tokens. It gets work, a place on disk and an
//! order to stop that may change while it runs; it returns an [`Ended`]. Processes are carried out
//! by a shim of their own ([`crate::shim`]), which [`crate::attempt`] starts and follows.

mod environment;
mod log;
mod tail;
mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use delta_core::Cause;
use delta_wire::job_spec::TestSpec;
use delta_wire::step::StepWhen;
use delta_wire::{Evidence, StepSpec};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use environment::{BaseEnvironment, Identity};
pub(crate) use environment::{base, environment, unusable};
pub use log::LogSize;
pub(crate) use log::Spool;
pub(crate) use verdict::{
    NEARLY_FULL_BELOW, Stage, exited, out_of_memory, path_cause, spawn_cause, stopped_at,
};

use crate::container::ContainerOrder;
use crate::shim::Confinement;

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

/// One shell script, or one program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// For a program: what people call it by.
    pub script: String,
    /// The program and its arguments, which no shell reads.
    #[serde(default)]
    pub argv: Option<Vec<String>>,
    /// Where it starts, inside the workspace; where the job does when absent.
    #[serde(default)]
    pub workdir: Option<String>,
    /// The steps behind it are carried out whatever becomes of it.
    #[serde(default)]
    pub goes_on: bool,
    /// For people, where the script's first line does not say it.
    #[serde(default)]
    pub name: Option<String>,
    /// Past this it is ended, and the attempt with it.
    pub timeout: Option<Duration>,
    /// After which outcome of the steps before it is it carried out.
    #[serde(default = "after_success")]
    pub when: StepWhen,
    /// Variables of its own, beside those of the job.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// What reads the script, which is its last argument; `sh -e` when absent.
    #[serde(default)]
    pub shell: Option<Vec<String>>,
    /// Its failure is shown and does not count.
    #[serde(default)]
    pub failure_allowed: bool,
    /// Where it leaves its report, as a pattern inside the workspace: set aside before the next one
    /// begins.
    #[serde(default)]
    pub report: Option<String>,
}

fn after_success() -> StepWhen {
    StepWhen::Success
}

impl Step {
    /// Whether it is its turn, when one before it has failed or none has.
    pub(crate) fn is_due(&self, failed: bool) -> bool {
        match self.when {
            _ if self.goes_on => true,
            StepWhen::Success => !failed,
            StepWhen::Failure => failed,
            StepWhen::Always => true,
        }
    }

    /// What people call it, in one short line.
    pub fn label(&self) -> String {
        delta_wire::step::label(self.name.as_deref(), &self.script)
    }

    /// The first line of its script, or its program, whatever its name is.
    pub fn command(&self) -> String {
        delta_wire::step::label(None, &self.script)
    }

    /// Its script for a shell that starts where the job does. Each word is quoted: the shell reads
    /// none of them.
    pub(crate) fn in_shell(&self) -> String {
        let quoted = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
        let work = match &self.argv {
            Some(words) => {
                let words: Vec<String> = words.iter().map(quoted).collect();
                format!("exec {}", words.join(" "))
            }
            None => self.script.clone(),
        };
        match &self.workdir {
            Some(workdir) => format!("cd -- \"$DELTA_WORKSPACE\"/{}\n{work}", quoted(workdir)),
            None => work,
        }
    }
}

impl From<StepSpec> for Step {
    fn from(spec: StepSpec) -> Step {
        let timeout = spec.timeout.map(|it| it.as_duration());
        Step {
            script: spec.run,
            argv: None,
            workdir: None,
            goes_on: false,
            name: spec.name,
            timeout,
            when: spec.when,
            env: environment::without_own(spec.env),
            shell: spec.shell.map(|shell| shell.words()),
            failure_allowed: spec.continue_on_error,
            report: None,
        }
    }
}

impl From<&TestSpec> for Step {
    fn from(test: &TestSpec) -> Step {
        let execution = &test.execution;
        let mut argv = vec![execution.command.clone()];
        argv.extend_from_slice(&execution.args);
        Step {
            script: execution.command.clone(),
            argv: Some(argv),
            workdir: execution.working_dir.clone(),
            goes_on: true,
            name: Some(test.label().to_owned()),
            timeout: None,
            when: StepWhen::Success,
            env: Vec::new(),
            shell: None,
            failure_allowed: false,
            report: test
                .result_config
                .as_ref()
                .and_then(|it| it.result_file.clone()),
        }
    }
}

/// Why a running attempt is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The server asked for it.
    Canceled,
    /// The job ran as long as it may.
    TimedOut,
    /// A step ran as long as it may.
    StepTimedOut,
    /// Nothing was printed for as long as that may last.
    Silent,
    /// The lease is gone: nobody waits for the result.
    LeaseLost,
    /// This agent is going away.
    Shutdown,
}

impl StopReason {
    /// Which of two counts, whichever came first: who has lost its lease has nobody to report to; a
    /// person's word comes before a clock's, and that before this agent's going away, which would
    /// have the work done again. Of two clocks, the one that ran out first.
    pub(crate) fn rank(self) -> u8 {
        match self {
            StopReason::LeaseLost => 3,
            StopReason::Canceled => 2,
            StopReason::TimedOut | StopReason::StepTimedOut | StopReason::Silent => 1,
            StopReason::Shutdown => 0,
        }
    }
}

/// The order in force. A later order replaces an earlier one, but never moves `kill_at` back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopOrder {
    pub reason: StopReason,
    /// TERM is sent at once; whatever is left at this moment is killed.
    pub kill_at: Instant,
}

/// What an attempt ended with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    /// A step ended with this exit code, or the work could not be begun (no code).
    Failed {
        exit_code: Option<i32>,
    },
    /// The shell of a step was ended by this signal, sent by somebody else.
    Signaled {
        signal: i32,
    },
    TimedOut,
    Canceled,
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
