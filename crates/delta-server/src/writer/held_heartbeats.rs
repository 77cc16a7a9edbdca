//! Heartbeats whose answer is held back (A70): renewed and committed, but answered only when there
//! is news of their lease or their wait is over. So a cancel is heard at once, without a poll.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use delta_core::{AttemptId, Command, Fact, LeaseEvent, LeaseKey, Record, Reply, Span};

use super::Answer;
use super::outbox::{AnswerTo, Bells};

/// One heartbeat in waiting.
pub(super) struct Held {
    /// As it came, without its sequence number: judged again when there is news.
    pub command: Command,
    pub ttl: Span,
    pub since: Instant,
    pub until: Instant,
    pub answer: AnswerTo,
}

/// At most one heartbeat per lease is held, so live leases bound it.
#[derive(Default)]
pub(super) struct HeldHeartbeats {
    by_lease: BTreeMap<LeaseKey, Held>,
    deadlines: BTreeSet<(Instant, LeaseKey)>,
}

impl HeldHeartbeats {
    /// A newer heartbeat sends the older one home.
    pub fn hold(&mut self, lease: LeaseKey, held: Held) {
        self.release(lease);
        self.deadlines.insert((held.until, lease));
        self.by_lease.insert(lease, held);
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    pub fn release_due(&mut self, now: Instant) {
        while let Some((at, lease)) = self.deadlines.first().copied() {
            if at > now {
                break;
            }
            self.release(lease);
        }
    }

    pub fn release_all(&mut self) {
        while let Some((_, lease)) = self.deadlines.first().copied() {
            self.release(lease);
        }
    }

    pub fn take(&mut self, lease: LeaseKey) -> Option<Held> {
        let held = self.by_lease.remove(&lease)?;
        self.deadlines.remove(&(held.until, lease));
        Some(held)
    }

    fn release(&mut self, lease: LeaseKey) {
        if let Some(held) = self.take(lease) {
            // What is left is counted from now, since not every runner counts from its sending.
            let waited = i64::try_from(held.since.elapsed().as_millis()).unwrap_or(i64::MAX);
            let reply = Reply::Renewed {
                ttl: Span((held.ttl.0.saturating_sub(waited)).max(1)),
                cancel: None,
            };
            let answer = Answer {
                reply,
                created: None,
                noticed: None,
            };
            held.answer.send(Ok(answer), &mut Bells::default());
        }
    }

    /// Held heartbeats whose lease these records say something about, with the command to judge.
    pub fn with_news(&self, records: &[Record]) -> Vec<(LeaseKey, Command)> {
        if self.by_lease.is_empty() {
            return Vec::new();
        }
        let attempts: BTreeSet<AttemptId> = records.iter().flat_map(attempts_with_news).collect();
        attempts
            .into_iter()
            .flat_map(|id| self.of_attempt(id))
            .collect()
    }

    fn of_attempt(&self, id: AttemptId) -> impl Iterator<Item = (LeaseKey, Command)> {
        let range = id.lease(0)..=id.lease(u64::MAX);
        let held = self.by_lease.range(range);
        // A connection that is gone was not told of anything (A70).
        held.filter(|(_, held)| !held.answer.is_closed())
            .map(|(lease, held)| (*lease, held.command.clone()))
    }
}

fn attempts_with_news(record: &Record) -> impl Iterator<Item = AttemptId> {
    record.facts.iter().filter_map(|fact| match fact {
        Fact::CancelAsked { job, index, .. } => Some(record.run.job(*job).attempt(*index)),
        Fact::LeaseMoved {
            job, index, event, ..
        } if *event != LeaseEvent::Acknowledged => Some(record.run.job(*job).attempt(*index)),
        _ => None,
    })
}
