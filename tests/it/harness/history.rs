//! What clients were told, and whether the server still says so: nothing acknowledged is lost,
//! nothing is finalised twice.
//!
//! The checks read the public API only, so that they hold for any store.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::person::Person;
use super::runner::Grant;

/// Edges that end an attempt.
const FINAL: [&str; 7] = [
    "succeeded",
    "failed",
    "given_up",
    "no_agent",
    "timed_out",
    "canceled",
    "dropped",
];

/// Every acknowledged answer.
#[derive(Debug, Default)]
pub struct History {
    /// Run by idempotency key.
    pub created: BTreeMap<String, String>,
    pub granted: Vec<Grant>,
    pub acknowledged: Vec<Grant>,
    /// With the status that was accepted.
    pub completed: Vec<(Grant, String)>,
    /// How often a message had to be sent again because nobody answered.
    pub repeated: u64,
}

impl History {
    /// Compares everything with what the server says now. All runs must be over.
    #[track_caller]
    pub fn check(&self, person: &Person) {
        let distinct: BTreeSet<&String> = self.created.values().collect();
        assert_eq!(
            distinct.len(),
            self.created.len(),
            "a key made two runs, or two keys one"
        );
        let stored: BTreeSet<String> = person.run_ids().into_iter().collect();
        for run in &distinct {
            assert!(stored.contains(*run), "an acknowledged run is gone: {run}");
        }
        let mut walked = BTreeMap::new();
        for run in &stored {
            walked.insert(run.clone(), walk(person, run));
        }
        for grant in &self.granted {
            let known = &walked[&grant.run].epochs;
            assert!(
                known.contains(&key(grant)),
                "a granted lease is gone: {grant:?}"
            );
        }
        for grant in &self.acknowledged {
            let known = &walked[&grant.run].acknowledged;
            assert!(
                known.contains(&key(grant)),
                "an acknowledgement is gone: {grant:?}"
            );
        }
        for (grant, status) in &self.completed {
            let at = (job_number(grant), grant.attempt);
            let found = walked[&grant.run].finals.get(&at).map(String::as_str);
            let wanted = status.to_ascii_lowercase();
            assert_eq!(
                found,
                Some(wanted.as_str()),
                "an accepted result is gone: {grant:?}"
            );
        }
    }
}

fn key(grant: &Grant) -> (u64, u64, u64) {
    (job_number(grant), grant.attempt, grant.epoch)
}

fn job_number(grant: &Grant) -> u64 {
    let number = grant
        .job
        .rsplit('_')
        .next()
        .and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("no number in {}", grant.job))
}

/// What the events of a run say.
#[derive(Debug, Default)]
pub struct Walked {
    /// (job, attempt) to the edge that ended it.
    pub finals: BTreeMap<(u64, u64), String>,
    /// (job, attempt, epoch) of every grant.
    pub epochs: BTreeSet<(u64, u64, u64)>,
    pub acknowledged: BTreeSet<(u64, u64, u64)>,
    pub events: u64,
}

/// Walks the events of a run: versions 1..n (I18), one final edge per attempt (I1), one live lease
/// at a time (I3), rising epochs (I4), no success after a cancel (I11).
#[track_caller]
pub fn walk(person: &Person, run: &str) -> Walked {
    let mut walked = Walked::default();
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
    let mut canceling: BTreeSet<(u64, u64)> = BTreeSet::new();
    for event in person.events(run) {
        walked.events += 1;
        assert_eq!(
            event["version"], walked.events,
            "{run}: versions without a gap"
        );
        for fact in event["facts"].as_array().expect("facts") {
            let (kind, it) = only(fact);
            let at = (number(it, "job"), number(it, "index"));
            let what = it["event"].as_str().unwrap_or_default();
            match kind {
                "lease_granted" => {
                    let epoch = number(&it["grant"], "epoch");
                    assert_eq!(live.insert(at.0, epoch), None, "{run}: two live leases");
                    let before = newest.insert(at.0, epoch);
                    assert!(before < Some(epoch), "{run}: epochs rise");
                    walked.epochs.insert((at.0, at.1, epoch));
                }
                "lease_moved" if what == "acknowledged" => {
                    walked.acknowledged.insert((at.0, at.1, live[&at.0]));
                }
                "lease_moved" => {
                    assert!(live.remove(&at.0).is_some(), "{run}: a lease ended twice");
                }
                "attempt_moved" if FINAL.contains(&what) => {
                    let before = walked.finals.insert(at, what.to_owned());
                    assert_eq!(before, None, "{run}: {at:?} was finalised twice");
                    let late = what == "succeeded" && canceling.contains(&at);
                    assert!(!late, "{run}: {at:?} succeeded after a cancel");
                }
                "attempt_moved" => {
                    let ended = walked.finals.get(&at);
                    assert_eq!(ended, None, "{run}: {at:?} moved after its end");
                    if what == "cancel_requested" {
                        canceling.insert(at);
                    }
                }
                _ => {}
            }
        }
    }
    walked
}

/// The kind of a fact and what it says.
fn only(fact: &Value) -> (&str, &Value) {
    let fields = fact.as_object().expect("a fact is an object");
    let (kind, it) = fields.iter().next().expect("a fact has a kind");
    (kind, it)
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
}
