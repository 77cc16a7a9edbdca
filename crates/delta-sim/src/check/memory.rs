//! What the checkers remember of earlier steps: kept apart from the rows on purpose, so that a
//! server that rewrites its rows is caught by what it once said.

use std::collections::{BTreeMap, BTreeSet};

use delta_core::{
    AttemptEvent, AttemptId, AttemptState, Command, Digest, Fact, JobId, LeaseEvent, LeaseKey,
    LeaseState, Reply, RunEvent, RunId, RunState,
};

use super::Step;
use super::edges::{attempt_edge, lease_edge, run_edge};

/// A runner message by what makes it the same message again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    Ack(LeaseKey),
    Beat(LeaseKey, u64),
    Complete(LeaseKey, Digest),
    CancelAck(LeaseKey, Digest),
}

impl Message {
    /// `None` for what carries nothing to tell a repeat by, or is not a runner's message.
    pub fn of(command: &Command) -> Option<Message> {
        match command {
            Command::AckLease { proof, .. } => Some(Message::Ack(proof.key)),
            Command::Heartbeat { proof, seq, .. } => Some(Message::Beat(proof.key, (*seq)?)),
            Command::Complete { proof, digest, .. } => Some(Message::Complete(proof.key, *digest)),
            Command::CancelAck { proof, digest, .. } => {
                Some(Message::CancelAck(proof.key, *digest))
            }
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub finals: BTreeMap<AttemptId, u32>,
    pub runs: BTreeMap<RunId, RunState>,
    pub outcomes: BTreeMap<RunId, RunState>,
    pub attempts: BTreeMap<AttemptId, AttemptState>,
    pub leases: BTreeMap<LeaseKey, LeaseState>,
    /// Epochs per job in the order they were granted.
    pub epochs: BTreeMap<JobId, Vec<u64>>,
    pub tokens: BTreeSet<Digest>,
    pub cancel_asked: BTreeSet<AttemptId>,
    pub run_cancel_asked: BTreeSet<RunId>,
    pub plan_failed: BTreeSet<RunId>,
    /// Whose turn it is in each group.
    pub turns: BTreeMap<Digest, JobId>,
    /// The first accepting answer to each message.
    pub accepted: BTreeMap<Message, Reply>,
}

/// Whether an answer says yes.
pub fn accepts(reply: &Reply) -> bool {
    matches!(
        reply,
        Reply::Acknowledged { .. }
            | Reply::Renewed { .. }
            | Reply::Completed
            | Reply::CompletedAfterCancel
            | Reply::CancelAcknowledged
    )
}

impl Memory {
    /// Whether there is anything to remember of a step.
    pub fn gains_from(&self, step: &Step) -> bool {
        let fresh = |message| !self.accepted.contains_key(&message);
        let answered = accepts(step.reply) && Message::of(step.command).is_some_and(fresh);
        step.record.is_some() || answered
    }

    pub fn remember(&mut self, step: &Step) {
        let run = step.run_id();
        for fact in step.facts() {
            self.remember_fact(run, fact);
        }
        super::groups::remember(step, &mut self.turns);
        if let (Some(message), true) = (Message::of(step.command), accepts(step.reply)) {
            self.accepted
                .entry(message)
                .or_insert_with(|| step.reply.clone());
        }
    }

    /// Objects that a fact brings into being.
    pub(super) fn remember_created(&mut self, run: RunId, fact: &Fact) {
        let creates = matches!(
            fact,
            Fact::RunCreated(_)
                | Fact::JobCreated(_)
                | Fact::AttemptCreated { .. }
                | Fact::LeaseGranted { .. }
        );
        if creates {
            self.remember_fact(run, fact);
        }
    }

    fn remember_fact(&mut self, run: RunId, fact: &Fact) {
        match fact {
            Fact::RunCreated(made) => {
                self.runs.insert(made.id, made.state);
            }
            Fact::JobCreated(job) => {
                self.attempts
                    .insert(job.id.attempt(1), AttemptState::Created);
            }
            Fact::RunMoved { event, .. } => self.move_run(run, *event),
            Fact::RunCancelAsked(_) => {
                self.run_cancel_asked.insert(run);
            }
            Fact::AttemptCreated { job, index, .. } => {
                let id = run.job(*job).attempt(*index);
                self.attempts.insert(id, AttemptState::Created);
            }
            Fact::AttemptMoved {
                job, index, event, ..
            } => self.move_attempt(run.job(*job).attempt(*index), *event),
            Fact::CancelAsked { job, index, .. } => {
                self.cancel_asked.insert(run.job(*job).attempt(*index));
            }
            Fact::LeaseGranted { job, index, grant } => {
                let key = run.job(*job).attempt(*index).lease(grant.epoch);
                self.leases.insert(key, LeaseState::Granted);
                self.epochs
                    .entry(run.job(*job))
                    .or_default()
                    .push(grant.epoch);
                self.tokens.insert(grant.token);
            }
            Fact::LeaseMoved {
                job, index, event, ..
            } => self.move_lease(run.job(*job).attempt(*index), *event),
            _ => {}
        }
    }

    fn move_run(&mut self, run: RunId, event: RunEvent) {
        let Some(to) = self.runs.get(&run).and_then(|from| run_edge(*from, event)) else {
            return;
        };
        if to == RunState::PlanFailed {
            self.plan_failed.insert(run);
        }
        if to.has_ended() && to != RunState::Reported {
            self.outcomes.insert(run, to);
        }
        self.runs.insert(run, to);
    }

    fn move_attempt(&mut self, id: AttemptId, event: AttemptEvent) {
        let from = self.attempts.get(&id);
        let Some(to) = from.and_then(|from| attempt_edge(*from, event)) else {
            return;
        };
        if to.is_final() {
            *self.finals.entry(id).or_default() += 1;
        }
        self.attempts.insert(id, to);
    }

    fn move_lease(&mut self, attempt: AttemptId, event: LeaseEvent) {
        let Some(key) = self.latest_lease(attempt) else {
            return;
        };
        if let Some(to) = lease_edge(self.leases[&key], event) {
            self.leases.insert(key, to);
        }
    }

    /// The lease granted last to this attempt.
    pub fn latest_lease(&self, attempt: AttemptId) -> Option<LeaseKey> {
        let range = attempt.lease(0)..=attempt.lease(u64::MAX);
        self.leases.range(range).next_back().map(|(key, _)| *key)
    }
}
