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

use crate::container::ContainerOrder;
use crate::processes::mark::Mark;
use crate::sandbox::Confinement;
use crate::spool::LogSize;
use crate::step::Step;
use crate::stop::{StopAt, StopReason};
use crate::verdict::Outcome;

pub const ORDER_FILE: &str = "order.json";
pub const RECORD_FILE: &str = "end.json";
pub const SPOOL_FILE: &str = "spool";
pub(crate) const RESERVE_FILE: &str = "reserve";
pub const SOCKET_FILE: &str = "control";
/// Where the shim says what went wrong inside itself.
pub const COMPLAINTS_FILE: &str = "complaints";
/// The number of the step at work, counted from 1; not there before the first.
pub const STEP_FILE: &str = "step";
/// The control group of the attempt, for whoever must end it without the shim.
pub const GROUP_FILE: &str = "group";
/// The group that counts its memory, where that is another.
pub const MEMORY_FILE: &str = "memory";

/// Bytes of one line on the socket: far more than any message has.
pub(crate) const MAX_LINE_BYTES: usize = 16 * 1024;

/// Everything a shim needs to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
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
pub struct Deadlines {
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

/// From an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
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
pub enum Event {
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
pub struct State {
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
    pub fn report_lost_to(&self) -> Option<Cause> {
        let cause = self.report_lost_cause.as_deref()?;
        // One of a newer version is none of the job's either.
        Some(Cause::from_name(cause).unwrap_or(Cause::AgentError))
    }
}

/// How it ended, written once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
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

    /// A shim goes on under the next agent: neither its order nor its record may change in meaning.
    #[test]
    fn what_an_earlier_version_wrote_is_read_and_written_as_it_was() {
        let text = |text: &str| serde_json::json!({"Unix": text.as_bytes()});
        let order = serde_json::json!({
            "boot": "12d214e6", "key": "6b0710a7",
            "steps": [{
                "script": "make", "argv": null, "workdir": null, "goes_on": false, "name": null,
                "timeout": {"secs": 5, "nanos": 0}, "when": "always", "env": [["A", "b"]],
                "shell": ["bash", "-c"], "failure_allowed": false, "report": "out/*.xml"
            }],
            "env": [[text("CI"), text("true")]],
            "workspace": text("/w/workspace"), "workdir": ".", "tmp": text("/w/tmp"), "home": null,
            "confinement": {"sandbox": "host", "user": null, "apart": false, "filtered": true},
            "hidden": [text("/s")], "control_group": true, "mark": 3_509_426_406_483_693_737_u64,
            "container": {
                "runtime": {
                    "program": "/usr/bin/docker", "kind": "docker", "version": "1",
                    "env": [[text("PATH"), text("/bin")]], "host": null
                },
                "owner": "me", "image": "box", "pull": "if_missing", "entrypoint": [],
                "network": "bridge", "memory_mb": 64, "cpus": 0.5, "pids": 10, "user": "1:1",
                "capabilities": ["KILL"],
                "mounts": [{"source": text("/w"), "target": "/t", "read_only": true}],
                "services": [{
                    "name": "db", "image": "db", "env": [], "command": [],
                    "ready": {
                        "sign": {"port": 5432},
                        "timeout": {"secs": 60, "nanos": 0}, "every": {"secs": 1, "nanos": 0}
                    }
                }]
            },
            "log_quota": 7, "log_dropped": 0, "stop_grace": {"secs": 10, "nanos": 0},
            "leftover_grace": {"secs": 2, "nanos": 0}, "silence": null,
            "deadlines": {"until": 8, "must_finish_by": 9}, "abandoned": "goes_on",
            "has_secrets": false
        });
        let read: Order = serde_json::from_value(order.clone()).expect("an order");
        assert_eq!(serde_json::to_value(&read).expect("a text"), order);
        let step = serde_json::json!({
            "index": 0, "started_at": "2026-01-04T08:00:00Z", "took": {"secs": 1, "nanos": 5},
            "exit_code": 1, "signal": null, "timed_out": false, "report_lost": null
        });
        let record = serde_json::json!({
            "outcome": {"failed": {"exit_code": 1}}, "cause": "user_exit",
            "summary": "step 1 ended with exit code 1", "step": 0, "stopped": "step_timed_out",
            "confirmed": true, "log": {"bytes": 3, "dropped": 0, "lost": 0, "sha256": "00"},
            "started_at": "2026-01-04T08:00:00Z", "finished_at": "2026-01-04T08:00:01Z",
            "steps": [step], "deadlines": {"until": 8, "must_finish_by": 9},
            "evidence": {"signal": 9, "last_lines": ["error"]}
        });
        let read: Record = serde_json::from_value(record.clone()).expect("a record");
        assert_eq!(serde_json::to_value(&read).expect("a text"), record);
        for line in [
            serde_json::json!({"hello": {"key": "k"}}),
            serde_json::json!({"extend": {"until": 7}}),
            serde_json::json!({"stop": {"reason": "lease_lost", "kill_at": 7}}),
        ] {
            let read: Command = serde_json::from_value(line.clone()).expect("a command");
            assert!(!matches!(read, Command::Unknown(_)), "{line}");
            assert_eq!(serde_json::to_value(&read).expect("a text"), line);
        }
        let state = serde_json::json!({
            "bytes": 1, "step": 0, "steps": [], "deadlines": {"until": 8, "must_finish_by": 9},
            "stop": null
        });
        for line in [
            serde_json::json!({"state": state}),
            serde_json::json!({"grew": 7}),
            serde_json::json!({"mark": 7}),
            serde_json::json!({"step_began": {"index": 1}}),
            serde_json::json!("ended"),
        ] {
            let read: Event = serde_json::from_value(line.clone()).expect("an event");
            assert!(!matches!(read, Event::Unknown(_)), "{line}");
            assert_eq!(serde_json::to_value(&read).expect("a text"), line);
        }
    }
}
