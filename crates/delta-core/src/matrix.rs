//! The machines as data: every state with every event, rendered for people.
//!
//! `docs/state-machines.md` is this text; a test fails when the two differ, so the documented
//! machines are the executed ones (SM-1).

use std::fmt::Write;

use crate::attempt::{AttemptEvent, AttemptState};
use crate::lease::{LeaseEvent, LeaseState};
use crate::run::{RunEvent, RunState};

/// Edges that the State Machines document does not list and A66 adds: machine, from, to, why.
pub const EXTENSIONS: &[(&str, &str, &str, &str)] = &[
    (
        "attempt",
        "UPLOADING",
        "QUEUED",
        "lease lost while uploading (A1)",
    ),
    ("attempt", "STARTING", "TIMED_OUT", "job timeout (A8)"),
    ("attempt", "UPLOADING", "TIMED_OUT", "job timeout (A8)"),
    (
        "attempt",
        "CREATED",
        "CANCEL_REQUESTED",
        "cancel before it was queued (A10, A12)",
    ),
    (
        "attempt",
        "UPLOADING",
        "CANCEL_REQUESTED",
        "cancel while uploading (A10)",
    ),
    (
        "attempt",
        "CREATED",
        "CANCELED",
        "a need failed, or the run ended (A65, A12)",
    ),
    (
        "attempt",
        "QUEUED",
        "CANCELED",
        "a need failed, or the run ended (A65, A12)",
    ),
    (
        "attempt",
        "LEASED",
        "FAILED",
        "no further lease is allowed (A6, A32)",
    ),
    (
        "attempt",
        "STARTING",
        "FAILED",
        "no further lease is allowed (A6, A32)",
    ),
    (
        "attempt",
        "RUNNING",
        "FAILED",
        "no further lease is allowed (A6, A32)",
    ),
    (
        "attempt",
        "UPLOADING",
        "FAILED",
        "no further lease is allowed (A6, A32)",
    ),
    (
        "attempt",
        "QUEUED",
        "FAILED",
        "no agent within the waiting limit (A33)",
    ),
    (
        "attempt",
        "CREATED",
        "SUCCEEDED",
        "kept from the run that is run again (SM-3)",
    ),
    (
        "attempt",
        "CREATED",
        "FAILED",
        "kept from the run that is run again (SM-3)",
    ),
    (
        "run",
        "QUEUED",
        "TIMEOUT",
        "run timeout before a first grant (A12)",
    ),
    (
        "run",
        "QUEUED",
        "FAILED",
        "every way to success is gone before a first grant (A16, A33)",
    ),
];

/// One machine, in names.
pub struct Machine {
    pub name: &'static str,
    pub states: Vec<&'static str>,
    pub events: Vec<&'static str>,
    /// from, event, to
    pub edges: Vec<(&'static str, &'static str, &'static str)>,
}

pub fn machines() -> [Machine; 3] {
    [run(), attempt(), lease()]
}

fn run() -> Machine {
    let mut edges = Vec::new();
    for state in RunState::ALL {
        for event in RunEvent::ALL {
            if let Ok(next) = state.next(event) {
                edges.push((state.name(), event.name(), next.name()));
            }
        }
    }
    let states = RunState::ALL.iter().map(|s| s.name()).collect();
    Machine {
        name: "run",
        states,
        events: RunEvent::ALL.iter().map(|e| e.name()).collect(),
        edges,
    }
}

fn attempt() -> Machine {
    let mut edges = Vec::new();
    for state in AttemptState::ALL {
        for event in AttemptEvent::ALL {
            if let Ok(next) = state.next(event) {
                edges.push((state.name(), event.name(), next.name()));
            }
        }
    }
    let states = AttemptState::ALL.iter().map(|s| s.name()).collect();
    let events = AttemptEvent::ALL.iter().map(|e| e.name()).collect();
    Machine {
        name: "attempt",
        states,
        events,
        edges,
    }
}

fn lease() -> Machine {
    let mut edges = Vec::new();
    for state in LeaseState::ALL {
        for event in LeaseEvent::ALL {
            if let Ok(next) = state.next(event) {
                edges.push((state.name(), event.name(), next.name()));
            }
        }
    }
    let states = LeaseState::ALL.iter().map(|s| s.name()).collect();
    let events = LeaseEvent::ALL.iter().map(|e| e.name()).collect();
    Machine {
        name: "lease",
        states,
        events,
        edges,
    }
}

impl Machine {
    fn next(&self, state: &str, event: &str) -> Option<&'static str> {
        self.edges
            .iter()
            .find(|(from, by, _)| *from == state && *by == event)
            .map(|edge| edge.2)
    }

    fn is_extension(&self, from: &str, to: &str) -> bool {
        EXTENSIONS
            .iter()
            .any(|(name, f, t, _)| *name == self.name && *f == from && *t == to)
    }

    /// A row per state, a column per event; a dot is a refusal.
    pub fn table(&self) -> String {
        let mut text = format!("| state | {} |\n", self.events.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(self.events.len()));
        for state in &self.states {
            let cells: Vec<&str> = self
                .events
                .iter()
                .map(|event| self.next(state, event).unwrap_or("·"))
                .collect();
            let _ = writeln!(text, "| **{state}** | {} |", cells.join(" | "));
        }
        text
    }

    /// A diagram; edges beyond the State Machines document carry a plus.
    pub fn diagram(&self) -> String {
        let mut text = String::from("```mermaid\nstateDiagram-v2\n");
        let _ = writeln!(text, "    [*] --> {}", self.states[0]);
        for (from, event, to) in &self.edges {
            let mark = if self.is_extension(from, to) {
                " +"
            } else {
                ""
            };
            let _ = writeln!(text, "    {from} --> {to}: {event}{mark}");
        }
        for state in &self.states {
            if !self.edges.iter().any(|(from, ..)| from == state) {
                let _ = writeln!(text, "    {state} --> [*]");
            }
        }
        text.push_str("```\n");
        text
    }
}

/// The whole of `docs/state-machines.md`.
pub fn document() -> String {
    let mut text = String::from(
        "# State machines\n\nRendered from the machines in `delta-core`; do not edit by hand. \
         A row is a state, a column an event, a dot a refusal. In the diagrams a plus marks an \
         edge that the State Machines document does not list.\n",
    );
    for machine in machines() {
        let _ = write!(
            text,
            "\n## The {} machine\n\n{}\n{}",
            machine.name,
            machine.diagram(),
            machine.table()
        );
    }
    text.push_str("\n## Edges added to the specification\n\n| machine | from | to | when |\n");
    text.push_str("|---|---|---|---|\n");
    for (machine, from, to, why) in EXTENSIONS {
        let _ = writeln!(text, "| {machine} | {from} | {to} | {why} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the State Machines document lists: machine, from, to.
    const SPECIFIED: &[(&str, &str, &[&str])] = &[
        ("run", "CREATED", &["PLANNING"]),
        ("run", "PLANNING", &["PLAN_FAILED", "QUEUED"]),
        ("run", "PLAN_FAILED", &["FAILED"]),
        ("run", "QUEUED", &["CANCEL_REQUESTED", "RUNNING"]),
        (
            "run",
            "RUNNING",
            &["CANCEL_REQUESTED", "FAILED", "SUCCESS", "TIMEOUT"],
        ),
        ("run", "CANCEL_REQUESTED", &["CANCELED"]),
        ("run", "SUCCESS", &["REPORTED"]),
        ("run", "FAILED", &["REPORTED"]),
        ("run", "CANCELED", &["REPORTED"]),
        ("run", "TIMEOUT", &["REPORTED"]),
        ("attempt", "CREATED", &["QUEUED"]),
        ("attempt", "QUEUED", &["CANCEL_REQUESTED", "LEASED"]),
        (
            "attempt",
            "LEASED",
            &["CANCEL_REQUESTED", "QUEUED", "STARTING"],
        ),
        (
            "attempt",
            "STARTING",
            &["CANCEL_REQUESTED", "QUEUED", "RUNNING"],
        ),
        (
            "attempt",
            "RUNNING",
            &["CANCEL_REQUESTED", "QUEUED", "TIMED_OUT", "UPLOADING"],
        ),
        ("attempt", "UPLOADING", &["FAILED", "SUCCEEDED"]),
        ("attempt", "CANCEL_REQUESTED", &["CANCELED"]),
        ("lease", "GRANTED", &["ACTIVE", "EXPIRED", "REVOKED"]),
        (
            "lease",
            "ACTIVE",
            &["CANCELED", "COMPLETED", "EXPIRED", "REVOKED"],
        ),
    ];

    #[test]
    fn the_machines_are_the_specification_plus_the_listed_extensions() {
        // SM-1, RP-1, I6, A66: edge by edge, nothing more and nothing less.
        use std::collections::BTreeSet;
        for machine in machines() {
            let have: BTreeSet<(&str, &str)> = machine
                .edges
                .iter()
                .map(|(from, _, to)| (*from, *to))
                .collect();
            let mut want: BTreeSet<(&str, &str)> = BTreeSet::new();
            for (name, from, tos) in SPECIFIED {
                if *name == machine.name {
                    want.extend(tos.iter().map(|to| (*from, *to)));
                }
            }
            for (name, from, to, _) in EXTENSIONS {
                if *name == machine.name {
                    want.insert((from, to));
                }
            }
            assert_eq!(have, want, "{}", machine.name);
        }
    }

    #[test]
    fn the_document_shows_the_machines_as_they_are() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/state-machines.md");
        if std::env::var_os("DELTA_BLESS").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == document(),
            "docs/state-machines.md is out of date: DELTA_BLESS=1 cargo test -p delta-core matrix"
        );
    }
}
