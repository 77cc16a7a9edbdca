//! The tables of the store in memory, and how a batch changes them: all at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use delta_core::{
    Attempt, AttemptId, Digest, Job, JobId, Lease, LeaseKey, Millis, Run, RunId, RunState, Text,
    Want, World,
};

use super::results::MemoryResults;
use crate::agents::AgentRow;
use crate::events::{self, Tip};
use crate::forges::{Approval, ReportRow, RepositoryRow, STAGE_NONE};
use crate::index::Index;
use crate::queues::QueueRow;
use crate::read::{Credential, StoredEvent};
use crate::secrets::{SecretId, SecretRow};
use crate::{Writes, newest_of};

#[derive(Debug)]
pub(super) struct Tables {
    pub runs: BTreeMap<RunId, Arc<Run>>,
    pub jobs: BTreeMap<JobId, Arc<Job>>,
    pub attempts: BTreeMap<AttemptId, Arc<Attempt>>,
    pub past_leases: BTreeMap<LeaseKey, Lease>,
    pub specs: BTreeMap<JobId, Arc<str>>,
    pub events: BTreeMap<RunId, Vec<StoredEvent>>,
    pub tombstones: BTreeMap<RunId, Tip>,
    pub credentials: BTreeMap<Text, Credential>,
    pub agents: BTreeMap<Text, AgentRow>,
    pub results: MemoryResults,
    pub secrets: BTreeMap<SecretId, SecretRow>,
    pub index: Index,
    pub incarnation: u32,
    pub newest: Millis,
    pub flushes: u64,
    pub queues: BTreeMap<Text, QueueRow>,
    pub repositories: BTreeMap<Text, RepositoryRow>,
    pub reports: BTreeMap<RunId, ReportRow>,
    pub approvals: BTreeMap<RunId, Approval>,
    pub plans: BTreeMap<RunId, Text>,
    keys: BTreeMap<Digest, RunId>,
    uniques: BTreeMap<Digest, BTreeSet<RunId>>,
}

impl Tables {
    pub fn new() -> Tables {
        Tables {
            runs: BTreeMap::new(),
            jobs: BTreeMap::new(),
            attempts: BTreeMap::new(),
            past_leases: BTreeMap::new(),
            specs: BTreeMap::new(),
            events: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            credentials: BTreeMap::new(),
            agents: BTreeMap::new(),
            results: MemoryResults::default(),
            secrets: BTreeMap::new(),
            index: Index::default(),
            incarnation: 1,
            newest: Millis::ZERO,
            flushes: 0,
            queues: BTreeMap::new(),
            repositories: BTreeMap::new(),
            reports: BTreeMap::new(),
            approvals: BTreeMap::new(),
            plans: BTreeMap::new(),
            keys: BTreeMap::new(),
            uniques: BTreeMap::new(),
        }
    }

    /// Enters a row, or that there is none; what the batch already knows stays as it is.
    pub fn answer(&self, want: &Want, world: &mut World) {
        match want {
            Want::Run(id) => {
                let known = world.runs.entry(*id);
                known.or_insert_with(|| self.runs.get(id).cloned());
            }
            Want::Job(id) => {
                let known = world.jobs.entry(*id);
                known.or_insert_with(|| self.jobs.get(id).cloned());
            }
            Want::Attempt(id) => {
                let known = world.attempts.entry(*id);
                known.or_insert_with(|| self.attempts.get(id).cloned());
            }
            Want::PastLease(key) => {
                let known = world.past_leases.entry(*key);
                known.or_insert_with(|| self.past_leases.get(key).cloned());
            }
            Want::Key(key) => {
                let known = world.keys.entry(*key);
                known.or_insert_with(|| self.keys.get(key).copied());
            }
            Want::Unique(key) => {
                let newest = || self.uniques.get(key)?.last().copied();
                world.uniques.entry(*key).or_insert_with(newest);
            }
            Want::Holder(principal, runner) => {
                let known = world.holders.entry((principal.clone(), runner.clone()));
                known.or_insert_with(|| self.index.holder(principal, runner));
            }
            Want::LiveJobs(run) => self.live_jobs(*run, world),
            Want::Group(key) => world.put_group(*key, self.index.group(key)),
            Want::Agent(id) => {
                let standing = || Some(self.agents.get(id)?.standing());
                world.agents.entry(id.clone()).or_insert_with(standing);
            }
        }
    }

    fn live_jobs(&self, run: RunId, world: &mut World) {
        if !world.whole.insert(run) {
            return;
        }
        let jobs = self.jobs.range(run.job(0)..=run.job(u32::MAX));
        for (id, job) in jobs.filter(|(_, job)| job.resolution.is_none()) {
            world.jobs.entry(*id).or_insert_with(|| Some(job.clone()));
            self.answer(&Want::Attempt(job.current()), world);
        }
    }

    pub fn tip(&self, run: RunId) -> Tip {
        let last = self.events.get(&run).and_then(|events| events.last());
        last.map_or(Tip::NONE, |event| Tip {
            version: event.version,
            hash: event.hash,
        })
    }

    /// The last event this batch would write, and where.
    pub fn last_event(&self, writes: &Writes) -> Option<(RunId, Tip)> {
        let run = writes.records.last()?.run;
        let records = writes.records.iter().filter(|record| record.run == run);
        let tip = records.fold(self.tip(run), |tip, record| {
            tip.next(&events::encode(record))
        });
        Some((run, tip))
    }

    pub fn has_event(&self, run: RunId, tip: Tip) -> bool {
        let events = self.events.get(&run).map_or(&[][..], Vec::as_slice);
        events
            .iter()
            .any(|event| event.version == tip.version && event.hash == tip.hash)
    }

    pub fn apply(&mut self, writes: &Writes) {
        for record in &writes.records {
            let bytes = events::encode(record);
            let tip = self.tip(record.run).next(&bytes);
            self.events
                .entry(record.run)
                .or_default()
                .push(StoredEvent {
                    version: tip.version,
                    at: record.at,
                    bytes,
                    hash: tip.hash,
                });
        }
        for (id, run) in &writes.edits.runs {
            if let Some((key, _)) = run.header.idempotency {
                self.keys.insert(key, *id);
            }
            if let Some(unique) = run.header.unique {
                self.uniques.entry(unique.key).or_default().insert(*id);
            }
            if run.header.needs_report && !self.runs.contains_key(id) {
                self.reports.insert(*id, first_report(run));
            }
            self.index.put_run(run);
            self.runs.insert(*id, run.clone());
        }
        for (id, job) in &writes.edits.jobs {
            self.index.put_job(job);
            self.jobs.insert(*id, job.clone());
        }
        for (id, attempt) in &writes.edits.attempts {
            let jobs = &self.jobs;
            let key = || &jobs[&id.job].policy.requires;
            self.index.put_attempt(attempt, key);
            self.attempts.insert(*id, attempt.clone());
        }
        let past = writes.edits.past_leases.iter();
        self.past_leases
            .extend(past.map(|(key, lease)| (*key, lease.clone())));
        self.specs.extend(writes.specs.iter().cloned());
        self.newest = self.newest.max(newest_of(writes));
        self.flushes += u64::from(!writes.is_empty());
    }

    pub fn prune(&mut self, before: Millis, limit: usize) -> Vec<RunId> {
        self.delete(|run| run.ended_at.filter(|at| *at < before), limit)
    }

    pub fn prune_kept(&mut self, now: Millis, limit: usize) -> Vec<RunId> {
        self.delete(|run| run.keep_until().filter(|at| *at < now), limit)
    }

    /// Deletes the first of those that something is said about.
    fn delete(&mut self, said: impl Fn(&Run) -> Option<Millis>, limit: usize) -> Vec<RunId> {
        // What its forge has not heard of is owed, and not forgotten.
        let owes =
            |run: &Run| run.state != RunState::Reported && self.reports.contains_key(&run.id);
        let ended = self
            .runs
            .values()
            .filter(|run| run.live_jobs == 0)
            .filter(|run| !owes(run));
        let mut old: Vec<(Millis, RunId)> = ended
            .filter_map(|run| said(run).map(|at| (at, run.id)))
            .collect();
        old.sort_unstable();
        old.truncate(limit);
        let ids: Vec<RunId> = old.into_iter().map(|(_, id)| id).collect();
        for &id in &ids {
            self.delete_run(id);
        }
        ids
    }

    fn delete_run(&mut self, id: RunId) {
        self.tombstones.insert(id, self.tip(id));
        self.events.remove(&id);
        self.results.forget(id);
        self.reports.remove(&id);
        self.approvals.remove(&id);
        self.plans.remove(&id);
        self.index.forget_run(id);
        if let Some(run) = self.runs.remove(&id) {
            if let Some((key, _)) = run.header.idempotency {
                self.keys.remove(&key);
            }
            if let Some(unique) = run.header.unique {
                self.uniques.entry(unique.key).or_default().remove(&id);
            }
        }
        self.jobs.retain(|job, _| job.run != id);
        self.specs.retain(|job, _| job.run != id);
        self.attempts.retain(|attempt, _| attempt.run() != id);
        self.past_leases.retain(|key, _| key.attempt.run() != id);
    }
}

/// What is owed about a run that was just made.
fn first_report(run: &Run) -> ReportRow {
    ReportRow {
        run: run.id,
        stage: STAGE_NONE,
        tries: 0,
        next_at: run.created_at,
        why: "".into(),
    }
}
