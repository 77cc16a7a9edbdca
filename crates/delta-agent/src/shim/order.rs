//! What the agent and a shim tell each other: the order and the record are files in the attempt's
//! state folder, commands and events are lines of JSON on its socket.
//!
//! A shim may be older or newer than the agent that finds it, so fields are only ever added, and
//! what is not known is left alone. Neither lease nor credential has a place here.

use std::ffi::OsString;
use std::time::Duration;

use delta_core::Cause;
use delta_core::time::Millis;
use delta_wire::Evidence;
use serde::{Deserialize, Serialize};

use super::Confinement;
use super::mark::Mark;
use crate::container::ContainerOrder;
use crate::executor::{Ended, LogSize, Outcome, Step, StopReason};

pub(crate) const ORDER_FILE: &str = "order.json";
pub(crate) const RECORD_FILE: &str = "end.json";
pub(crate) const SPOOL_FILE: &str = "spool";
pub(crate) const RESERVE_FILE: &str = "reserve";
pub(crate) const SOCKET_FILE: &str = "control";
/// Where the shim says what went wrong inside itself.
pub(crate) const COMPLAINTS_FILE: &str = "complaints";
/// The control group of the attempt, for whoever must end it without the shim.
pub(crate) const GROUP_FILE: &str = "group";
/// The group that counts its memory, where that is another.
pub(crate) const MEMORY_FILE: &str = "memory";

/// Bytes of one line on the socket: far more than any message has.
pub(crate) const MAX_LINE_BYTES: usize = 16 * 1024;

/// Everything a shim needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The boot whose clock the deadlines are counted on.
    pub boot: String,
    /// Whoever speaks on the socket must know it: the job can reach the socket, not this file.
    pub key: String,
    pub steps: Vec<Step>,
    pub env: Vec<(OsString, OsString)>,
    pub workspace: OsString,
    pub workdir: String,
    pub tmp: OsString,
    pub home: Option<OsString>,
    pub confinement: Confinement,
    /// What the job is kept from by name: the agent's state and credentials.
    #[serde(default)]
    pub hidden: Vec<OsString>,
    pub control_group: bool,
    /// By which its processes are found should the shim be lost.
    #[serde(default)]
    pub mark: Option<Mark>,
    /// The container that steps run in, when they do not run as processes of this machine.
    #[serde(default)]
    pub container: Option<ContainerOrder>,
    pub log_quota: u64,
    /// Bytes that were dropped of it before.
    #[serde(default)]
    pub log_dropped: u64,
    pub stop_grace: Duration,
    pub leftover_grace: Duration,
    #[serde(default)]
    pub silence: Option<Duration>,
    pub deadlines: Deadlines,
    pub abandoned: Abandoned,
    /// Further variables, and what is masked, come as standard output: never in a file.
    #[serde(default)]
    pub has_secrets: bool,
}

/// Moments on the clock that counts (see [`crate::clock`]), in milliseconds since the boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Deadlines {
    /// The lease's local end: past it the work must be gone, whoever is or is not there.
    pub until: i64,
    pub must_finish_by: i64,
}

impl Deadlines {
    pub fn until(&self) -> Millis {
        Millis(self.until)
    }
}

/// What becomes of the work when the agent goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Abandoned {
    /// It goes on until the lease's local end: the next agent takes it over.
    GoesOn,
    /// It is ended at once: for an agent that has no successor.
    Ends,
}

/// An order to stop, as the shim keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopAt {
    pub reason: StopReason,
    pub kill_at: i64,
}

impl StopAt {
    /// The reason with the higher rank counts, the earlier of two that are equal; the moment of
    /// KILL never moves back.
    pub(crate) fn stricter(old: Option<StopAt>, new: StopAt) -> StopAt {
        let Some(old) = old else { return new };
        let reason = match new.reason.rank() > old.reason.rank() {
            true => new.reason,
            false => old.reason,
        };
        let kill_at = old.kill_at.min(new.kill_at);
        StopAt { reason, kill_at }
    }
}

/// From an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    Hello {
        key: String,
    },
    Extend {
        until: i64,
    },
    Stop(StopAt),
    #[serde(untagged)]
    Unknown(serde_json::Value),
}

/// To every agent that said hello.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// Everything so far, once after the hello.
    State(State),
    /// Bytes in the spool.
    Grew(u64),
    /// The spool up to here is a mark of ours, not the job's.
    Mark(u64),
    StepBegan {
        index: usize,
    },
    StepEnded(StepRecord),
    /// The record is on disk, and the shim is about to go.
    Ended,
    #[serde(untagged)]
    Unknown(serde_json::Value),
}

/// Where an attempt stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    pub bytes: u64,
    pub step: Option<usize>,
    pub steps: Vec<StepRecord>,
    pub deadlines: Deadlines,
    pub stop: Option<StopAt>,
}

/// One step that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecord {
    pub index: usize,
    /// By this machine's clock, for information.
    pub started_at: String,
    pub took: Duration,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// It took longer than it may.
    #[serde(default)]
    pub timed_out: bool,
    /// Why what it reported is not all there, where it is a test.
    #[serde(default)]
    pub report_lost: Option<String>,
    /// The name of the cause, where that was not the job's doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_lost_cause: Option<String>,
}

impl StepRecord {
    /// What of this machine its report was lost to.
    pub(crate) fn report_lost_to(&self) -> Option<Cause> {
        let cause = self.report_lost_cause.as_deref()?;
        // One of a newer version is none of the job's either.
        Some(Cause::from_name(cause).unwrap_or(Cause::AgentError))
    }
}

/// How it ended, written once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub outcome: Outcome,
    pub cause: Option<String>,
    pub summary: String,
    pub step: Option<usize>,
    pub stopped: Option<StopReason>,
    pub confirmed: bool,
    pub log: LogSize,
    pub started_at: String,
    pub finished_at: String,
    pub steps: Vec<StepRecord>,
    pub deadlines: Deadlines,
    #[serde(default)]
    pub evidence: Evidence,
}

impl Record {
    pub fn ended(&self) -> Ended {
        Ended {
            outcome: self.outcome,
            cause: self.cause.as_deref().and_then(Cause::from_name),
            summary: self.summary.clone(),
            step: self.step,
            stopped: self.stopped,
            confirmed: self.confirmed,
            log: self.log.clone(),
            evidence: self.evidence.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_newer_version_says_is_left_alone() {
        let event: Event = serde_json::from_str(r#"{"sang":{"a":"song"}}"#).expect("an event");
        assert!(matches!(event, Event::Unknown(_)), "{event:?}");
        let command: Command = serde_json::from_str(r#"{"dance":1}"#).expect("a command");
        assert!(matches!(command, Command::Unknown(_)), "{command:?}");
        let stop = r#"{"stop":{"reason":"canceled","kill_at":7,"why":"new"}}"#;
        let command: Command = serde_json::from_str(stop).expect("a command");
        assert!(matches!(command, Command::Stop(StopAt { kill_at: 7, .. })));
    }

    #[test]
    fn the_reason_with_the_higher_rank_counts_whichever_came_first() {
        use StopReason::{Canceled, LeaseLost, Shutdown, Silent, StepTimedOut, TimedOut};
        let order = |reason, kill_at| StopAt { reason, kill_at };
        for (higher, lower) in [
            (LeaseLost, Canceled),
            (LeaseLost, Shutdown),
            (Canceled, TimedOut),
            (Canceled, StepTimedOut),
            (Canceled, Silent),
            (Canceled, Shutdown),
            (TimedOut, Shutdown),
            (StepTimedOut, Shutdown),
            (Silent, Shutdown),
        ] {
            for (first, second) in [(higher, lower), (lower, higher)] {
                let both = StopAt::stricter(Some(order(first, 10)), order(second, 90));
                assert_eq!(both, order(higher, 10), "the kill is never moved back");
            }
        }
        // What is stopped for one clock is not told of another that ran out meanwhile.
        let both = StopAt::stricter(Some(order(StepTimedOut, 90)), order(TimedOut, 10));
        assert_eq!(both, order(StepTimedOut, 10));
    }
}
