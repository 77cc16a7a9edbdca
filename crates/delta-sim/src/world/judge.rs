//! The judge of a simulated story: feeds every committed command to the invariants, and compares
//! what clients were told, what subscribers saw, the events and the tables (I15, I17, I18, I20).

use std::collections::{BTreeMap, BTreeSet};

use delta_core::{AttemptState, Command, LeaseKey, Millis, Reply, RunId, Settings, World};
use delta_store::memory::MemoryStore;
use delta_store::read::Reader;
use delta_store::{Claim, Store, doctor};

use super::server::Done;
use super::sometimes::Seen;
use crate::check::{self, Memory, Step, Tally, Violation};

fn broken(invariant: &'static str, what: String) -> Violation {
    Violation { invariant, what }
}

#[derive(Default)]
pub struct Judge {
    /// All rows, by adding up what was committed.
    pub shadow: World,
    pub memory: Memory,
    pub tally: Tally,
    pub seen: Seen,
    /// What clients were told: the question and the answer.
    told: Vec<(Command, Reply)>,
    /// Versions each subscriber was given, in order.
    delivered: BTreeMap<RunId, Vec<u64>>,
}

impl Judge {
    pub fn committed(&mut self, done: &Done, settings: &Settings) -> Result<(), Violation> {
        let step = Step {
            now: done.at,
            command: &done.command,
            reply: &done.reply,
            record: done.record.as_ref(),
            before: &self.shadow,
            edits: &done.edits,
            settings,
            lease_floor: Millis::ZERO,
        };
        self.seen.observe(&step, &self.memory);
        check::judge(&step, &mut self.memory, &mut self.tally)?;
        self.shadow.absorb(&done.edits);
        Ok(())
    }

    /// A client has an answer: it must stand from now on.
    pub fn told(
        &mut self,
        store: &MemoryStore,
        command: &Command,
        reply: &Reply,
    ) -> Result<(), Violation> {
        stands(store, command, reply)?;
        self.told.push((command.clone(), reply.clone()));
        Ok(())
    }

    pub fn cursor(&self, run: RunId) -> u64 {
        let last = self.delivered.get(&run).and_then(|all| all.last());
        last.copied().unwrap_or(0)
    }

    /// I18: a subscriber gets 1, 2, …, n.
    pub fn delivered(&mut self, run: RunId, version: u64) -> Result<(), Violation> {
        let all = self.delivered.entry(run).or_default();
        let expected = all.len() as u64 + 1;
        all.push(version);
        if version == expected {
            Ok(())
        } else {
            Err(broken(
                "I18",
                format!("a subscriber of {run} got version {version} instead of {expected}"),
            ))
        }
    }

    /// Judged when nothing is in hand: after a start, and at the end.
    pub fn at_rest(&self, store: &mut MemoryStore) -> Result<(), Violation> {
        self.i17_events_tell_the_tables(store)?;
        self.i20_queued_is_claimable(store)
    }

    /// I17: the events, folded, are the tables; and the tables are what was committed.
    fn i17_events_tell_the_tables(&self, store: &MemoryStore) -> Result<(), Violation> {
        let reader = store.reader();
        let report = doctor::examine(&reader, &mut |_| {})
            .map_err(|error| broken("I17", error.to_string()))?;
        if let Some(first) = report.first_difference {
            return Err(broken("I17", format!("{first:?}")));
        }
        for (id, run) in &self.shadow.runs {
            let stored = reader.run(*id).ok().flatten().map(|rows| rows.run);
            if stored.as_ref() != run.as_deref() {
                return Err(broken("I17", format!("{id} is not what was committed")));
            }
        }
        Ok(())
    }

    /// I20: what is QUEUED can be claimed now, and nothing else can.
    fn i20_queued_is_claimable(&self, store: &mut MemoryStore) -> Result<(), Violation> {
        let fail = |what: String| broken("I20", what);
        let lost = |error: delta_store::StoreError| broken("I20", error.to_string());
        store.begin().map_err(lost)?;
        let claim = Claim {
            keys: store.match_keys().map_err(lost)?,
            limit: usize::MAX,
            skip: BTreeSet::new(),
        };
        let claimable = store.claim(&claim, &mut World::default()).map_err(lost)?;
        store.rollback();
        let claimable: BTreeSet<_> = claimable.into_iter().collect();
        let attempts = self.shadow.attempts.values().flatten();
        let queued: BTreeSet<_> = attempts
            .filter(|attempt| attempt.state == AttemptState::Queued)
            .map(|attempt| attempt.id)
            .collect();
        if queued == claimable {
            Ok(())
        } else {
            Err(fail(format!("queued {queued:?}, claimable {claimable:?}")))
        }
    }

    /// The last look: everything ever told still stands, and every subscriber saw everything.
    pub fn at_the_end(&self, store: &mut MemoryStore) -> Result<(), Violation> {
        self.at_rest(store)?;
        for (command, reply) in &self.told {
            stands(store, command, reply)?;
        }
        let reader = store.reader();
        for (run, versions) in &self.delivered {
            let stored = reader
                .run(*run)
                .ok()
                .flatten()
                .map_or(0, |rows| rows.version);
            if versions.len() as u64 != stored {
                let got = versions.len();
                let what = format!("a subscriber of {run} got {got} of {stored} events");
                return Err(broken("I18", what));
            }
        }
        Ok(())
    }
}

/// I15: what a client was told is stored.
fn stands(store: &MemoryStore, command: &Command, reply: &Reply) -> Result<(), Violation> {
    let reader = store.reader();
    let kept = match (command, reply) {
        (_, Reply::Created { run, .. }) => reader.run(*run).ok().flatten().is_some(),
        (_, Reply::Granted { lease, .. }) => lease_row(&reader, *lease).is_some(),
        (Command::AckLease { proof, .. }, Reply::Acknowledged { .. }) => {
            lease_row(&reader, proof.key).is_some_and(|lease| lease.acknowledged_at.is_some())
        }
        (
            Command::Complete { proof, digest, .. } | Command::CancelAck { proof, digest, .. },
            Reply::Completed | Reply::CompletedAfterCancel | Reply::CancelAcknowledged,
        ) => lease_row(&reader, proof.key)
            .and_then(|lease| lease.closing)
            .is_some_and(|closing| closing.digest == *digest),
        (Command::CancelRun { run, .. }, Reply::Done { changed: true }) => {
            let row = reader.run(*run).ok().flatten();
            row.is_some_and(|rows| rows.run.cancel.is_some())
        }
        _ => true,
    };
    if kept {
        Ok(())
    } else {
        let what = format!(
            "{} was answered {reply:?} and is not stored",
            command.name()
        );
        Err(broken("I15", what))
    }
}

fn lease_row(reader: &dyn Reader, key: LeaseKey) -> Option<delta_core::Lease> {
    let rows = reader.job(key.attempt.job).ok().flatten()?;
    let latest = rows
        .attempts
        .iter()
        .filter(|attempt| attempt.id == key.attempt)
        .filter_map(|attempt| attempt.lease.clone());
    let past = rows
        .past_leases
        .iter()
        .filter(|(attempt, _)| *attempt == key.attempt)
        .map(|(_, lease)| lease.clone());
    latest.chain(past).find(|lease| lease.epoch == key.epoch)
}
