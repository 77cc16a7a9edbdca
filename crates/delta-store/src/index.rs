//! The live part of a store by what it is asked for: the queue, what is due, who holds what.
//!
//! Kept in memory by the stores that own their data; rebuilt when one is opened. Follows from the
//! rows alone: putting a row twice does no harm, and nothing here decides.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use delta_core::deadlines::attempt_due_at;
use delta_core::group::{self, Members};
use delta_core::{
    Attempt, AttemptId, AttemptState, Digest, Job, JobId, Member, Millis, Run, RunId, Text,
};

use crate::id_map::IdMap;
use crate::read::QueueDepth;
use crate::{Claim, Due};

#[derive(Debug, Default)]
pub(crate) struct Index {
    queue: BTreeMap<Text, Line>,
    queued: IdMap<AttemptId, Place>,
    attempts_due: Timers<AttemptId>,
    runs_due: Timers<RunId>,
    leased: BTreeMap<AttemptId, (Text, Text)>,
    holders: HashMap<(Text, Text), AttemptId>,
    groups: BTreeMap<Digest, Members>,
}

/// Members of groups about which something is to be done. They come first, being few, and leave
/// room for the rest however many they are.
pub(crate) fn turns_due<'m>(
    groups: impl Iterator<Item = &'m Members>,
    limit: usize,
) -> Vec<(Millis, Due)> {
    let room = limit.div_ceil(2);
    let due = groups.flat_map(|members| group::due(members, room));
    due.take(room)
        .map(|id| (Millis::ZERO, Due::Turn(id)))
        .collect()
}

/// Attempts of one match key that wait.
#[derive(Debug, Default)]
struct Line {
    order: BTreeSet<(i64, AttemptId)>,
    /// How many wait since when: the oldest is not the first where priorities differ, and whoever
    /// asks for it must not make the writer wait while a long line is walked.
    since: BTreeMap<Millis, u32>,
}

impl Line {
    fn enter(&mut self, order: i64, id: AttemptId, since: Millis) {
        if self.order.insert((order, id)) {
            *self.since.entry(since).or_default() += 1;
        }
    }

    fn leave(&mut self, order: i64, id: AttemptId, since: Millis) {
        if !self.order.remove(&(order, id)) {
            return;
        }
        if let Entry::Occupied(mut count) = self.since.entry(since) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn oldest(&self) -> Option<Millis> {
        self.since.keys().next().copied()
    }
}

#[derive(Debug)]
struct Place {
    key: Text,
    order: i64,
    since: Millis,
}

/// How one row changed its place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Entered,
    Left,
    Stayed,
}

/// Moments in order, each thing at most once.
#[derive(Debug)]
struct Timers<K> {
    order: BTreeSet<(Millis, K)>,
    moment: IdMap<K, Millis>,
}

impl<K> Default for Timers<K> {
    fn default() -> Timers<K> {
        Timers {
            order: BTreeSet::new(),
            moment: IdMap::default(),
        }
    }
}

impl<K: Copy + Ord + Hash> Timers<K> {
    fn set(&mut self, key: K, at: Option<Millis>) {
        let before = match at {
            Some(at) => self.moment.insert(key, at),
            None => self.moment.remove(&key),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, key));
        }
        if let Some(at) = at {
            self.order.insert((at, key));
        }
    }

    fn due(&self, now: Millis, limit: usize) -> impl Iterator<Item = (Millis, K)> {
        self.order
            .iter()
            .take_while(move |(at, _)| *at <= now)
            .take(limit)
            .copied()
    }
}

impl Index {
    pub fn put_run(&mut self, run: &Run) {
        self.runs_due.set(run.id, run.due_at());
        if let Some(group) = &run.header.concurrency {
            self.put_member(&group.key, run.id.job(0), run.member());
        }
    }

    pub fn put_job(&mut self, job: &Job) {
        if let Some(group) = &job.policy.concurrency {
            self.put_member(&group.key, job.id, job.member());
        }
    }

    fn put_member(&mut self, key: &Digest, id: JobId, member: Option<Member>) {
        if let Some(member) = member {
            self.groups.entry(*key).or_default().insert(id, member);
        } else if let Some(members) = self.groups.get_mut(key) {
            members.remove(&id);
            if members.is_empty() {
                self.groups.remove(key);
            }
        }
    }

    pub fn group(&self, key: &Digest) -> Members {
        self.groups.get(key).cloned().unwrap_or_default()
    }

    /// What putting this row would do to the queue.
    pub fn queue_change(&self, attempt: &Attempt) -> Queue {
        let queued = attempt.state == AttemptState::Queued;
        match (self.queued.contains_key(&attempt.id), queued) {
            (false, true) => Queue::Entered,
            (true, false) => Queue::Left,
            _ => Queue::Stayed,
        }
    }

    /// `key` is the match key of the attempt's job; asked for only when it enters the queue.
    pub fn put_attempt<'k>(&mut self, attempt: &Attempt, key: impl FnOnce() -> &'k Text) {
        let id = attempt.id;
        self.attempts_due.set(id, attempt_due_at(attempt));
        self.put_holder(attempt);
        match self.queue_change(attempt) {
            Queue::Entered => {
                let since = attempt.queued_at.unwrap_or(attempt.created_at);
                self.enter(id, key().clone(), attempt.order_key, since);
            }
            Queue::Left => self.leave(id),
            Queue::Stayed => {}
        }
    }

    pub fn enter(&mut self, id: AttemptId, key: Text, order: i64, since: Millis) {
        let line = self.queue.entry(key.clone()).or_default();
        line.enter(order, id, since);
        self.queued.insert(id, Place { key, order, since });
    }

    fn leave(&mut self, id: AttemptId) {
        let Some(place) = self.queued.remove(&id) else {
            return;
        };
        if let Some(line) = self.queue.get_mut(&place.key) {
            line.leave(place.order, id, place.since);
            if line.order.is_empty() {
                self.queue.remove(&place.key);
            }
        }
    }

    fn put_holder(&mut self, attempt: &Attempt) {
        let holder = attempt
            .live_lease()
            .map(|lease| (lease.principal.clone(), lease.runner.clone()));
        if self.leased.get(&attempt.id) == holder.as_ref() {
            return;
        }
        if let Some(former) = self.leased.remove(&attempt.id)
            && self.holders.get(&former) == Some(&attempt.id)
        {
            self.holders.remove(&former);
        }
        if let Some(holder) = holder {
            self.leased.insert(attempt.id, holder.clone());
            self.holders.insert(holder, attempt.id);
        }
    }

    /// Forgets a run that was deleted; its attempts have all ended.
    pub fn forget_run(&mut self, id: RunId) {
        self.runs_due.set(id, None);
    }

    /// The first attempts in queue order over all the keys; `fit` has the last word on each.
    pub fn claim(&self, claim: &Claim, fit: impl Fn(AttemptId) -> bool) -> Vec<AttemptId> {
        let keys: BTreeSet<&Text> = claim.keys.iter().collect();
        let mut lines: Vec<_> = keys
            .into_iter()
            .filter_map(|key| self.queue.get(key))
            .map(|line| line.order.iter().peekable())
            .collect();
        let mut picked = Vec::new();
        while picked.len() < claim.limit {
            // Few keys are fit for one agent, so the smallest head is found by looking at each.
            let heads = lines.iter_mut().enumerate();
            let first = heads.filter_map(|(n, line)| line.peek().map(|head| (**head, n)));
            let Some(((_, id), n)) = first.min() else {
                break;
            };
            lines[n].next();
            if !claim.skip.contains(&id) && fit(id) {
                picked.push(id);
            }
        }
        picked
    }

    pub fn match_keys(&self) -> Vec<Text> {
        self.queue.keys().cloned().collect()
    }

    pub fn holder(&self, principal: &Text, runner: &Text) -> Option<AttemptId> {
        let holder = (principal.clone(), runner.clone());
        self.holders.get(&holder).copied()
    }

    pub fn leased_count(&self) -> u64 {
        self.leased.len() as u64
    }

    pub fn leased(&self) -> Vec<AttemptId> {
        self.leased.keys().copied().collect()
    }

    pub fn due(&self, now: Millis, limit: usize) -> Vec<Due> {
        let attempts = self.attempts_due.due(now, limit);
        let runs = self.runs_due.due(now, limit);
        let mut found: Vec<(Millis, Due)> = attempts
            .map(|(at, id)| (at, Due::Attempt(id)))
            .chain(runs.map(|(at, id)| (at, Due::Run(id))))
            .collect();
        found.extend(turns_due(self.groups.values(), limit));
        found.sort_unstable();
        found.truncate(limit);
        found.into_iter().map(|(_, due)| due).collect()
    }

    pub fn depths(&self) -> Vec<QueueDepth> {
        let depth = |(key, line): (&Text, &Line)| QueueDepth {
            match_key: key.clone(),
            attempts: line.order.len() as u64,
            oldest: line.oldest().unwrap_or_default(),
        };
        self.queue.iter().map(depth).collect()
    }

    pub fn ahead(&self, key: &str, order: i64) -> u64 {
        let line = self.queue.get(key);
        line.map_or(0, |line| {
            line.order
                .iter()
                .take_while(|(place, _)| *place < order)
                .count() as u64
        })
    }

    pub fn queued_count(&self) -> u64 {
        self.queued.len() as u64
    }
}
