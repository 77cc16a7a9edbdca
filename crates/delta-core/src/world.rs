//! The rows a decision may look at, and the copy it writes on.
//!
//! A [`World`] holds whatever its owner loaded: a server loads what a batch touches, the simulator
//! everything. A decision that needs a row nobody loaded stops and names it ([`Want`]); the owner
//! loads it and asks again. Rows known not to exist are remembered as absent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::attempt::Attempt;
use crate::fact::Unfit;
use crate::group::{Member, Members};
use crate::id::{AttemptId, JobId, LeaseKey, RunId};
use crate::job::Job;
use crate::lease::Lease;
use crate::rights::AgentStanding;
use crate::run::Run;
use crate::{Digest, Text};

/// Something a decision needs to see.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Want {
    Run(RunId),
    Job(JobId),
    Attempt(AttemptId),
    /// A lease that is not the attempt's latest.
    PastLease(LeaseKey),
    /// The run made under an idempotency key.
    Key(Digest),
    /// The newest run with a unique key.
    Unique(Digest),
    /// The attempt whose live lease this principal's runner holds.
    Holder(Text, Text),
    /// Every unresolved job of a run with its current attempt.
    LiveJobs(RunId),
    /// The members of a concurrency group. Nobody else looks at them before this batch is over.
    Group(Digest),
    /// Whether an agent may still be heard.
    Agent(Text),
}

/// Where facts are applied.
pub trait Rows {
    fn put_run(&mut self, run: Run);
    fn put_job(&mut self, job: Job);
    fn put_attempt(&mut self, attempt: Attempt);
    fn put_past_lease(&mut self, attempt: AttemptId, lease: Lease);
    fn edit_run(&mut self, id: RunId) -> Result<&mut Run, Unfit>;
    fn edit_job(&mut self, id: JobId) -> Result<&mut Job, Unfit>;
    fn edit_attempt(&mut self, id: AttemptId) -> Result<&mut Attempt, Unfit>;
}

/// Rows in memory, shared with whoever else has them. `None` means: known not to exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct World {
    pub runs: BTreeMap<RunId, Option<Arc<Run>>>,
    pub jobs: BTreeMap<JobId, Option<Arc<Job>>>,
    pub attempts: BTreeMap<AttemptId, Option<Arc<Attempt>>>,
    pub past_leases: BTreeMap<LeaseKey, Option<Lease>>,
    pub keys: BTreeMap<Digest, Option<RunId>>,
    pub uniques: BTreeMap<Digest, Option<RunId>>,
    pub holders: BTreeMap<(Text, Text), Option<AttemptId>>,
    pub groups: BTreeMap<Digest, Members>,
    pub agents: BTreeMap<Text, Option<AgentStanding>>,
    /// Runs all of whose unresolved jobs are here.
    pub whole: BTreeSet<RunId>,
}

/// Rows changed by one decision, in full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    pub runs: BTreeMap<RunId, Arc<Run>>,
    pub jobs: BTreeMap<JobId, Arc<Job>>,
    pub attempts: BTreeMap<AttemptId, Arc<Attempt>>,
    pub past_leases: BTreeMap<LeaseKey, Lease>,
}

impl Edits {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.jobs.is_empty() && self.attempts.is_empty()
    }

    /// Later edits win.
    pub fn absorb(&mut self, later: Edits) {
        self.runs.extend(later.runs);
        self.jobs.extend(later.jobs);
        self.attempts.extend(later.attempts);
        self.past_leases.extend(later.past_leases);
    }
}

impl World {
    /// Makes the edits of an accepted decision visible to the next one.
    pub fn absorb(&mut self, edits: &Edits) {
        for (id, run) in &edits.runs {
            let is_new = !self.runs.contains_key(id) || self.runs[id].is_none();
            if is_new {
                self.whole.insert(*id);
                if let Some((key, _)) = run.header.idempotency {
                    self.keys.insert(key, Some(*id));
                }
                if let Some(unique) = run.header.unique {
                    self.uniques.insert(unique.key, Some(*id));
                }
            }
            if let Some(group) = &run.header.concurrency {
                self.note_member(&group.key, id.job(0), run.member());
            }
            self.runs.insert(*id, Some(run.clone()));
        }
        for (id, job) in &edits.jobs {
            if let Some(group) = &job.policy.concurrency {
                self.note_member(&group.key, *id, job.member());
            }
            self.jobs.insert(*id, Some(job.clone()));
        }
        for (id, attempt) in &edits.attempts {
            self.note_holder(*id, attempt);
            self.attempts.insert(*id, Some(attempt.clone()));
        }
        for (key, lease) in &edits.past_leases {
            self.past_leases.insert(*key, Some(lease.clone()));
        }
    }

    /// Enters the members of a group as a store has them. What is in sight already is newer.
    pub fn put_group(&mut self, key: Digest, members: Members) {
        if self.groups.contains_key(&key) {
            return;
        }
        self.groups.insert(key, members);
        let runs = self.runs.values().flatten().filter_map(|run| {
            let group = run.header.concurrency.as_ref()?;
            (group.key == key).then(|| (run.id.job(0), run.member()))
        });
        let jobs = self.jobs.values().flatten().filter_map(|job| {
            let group = job.policy.concurrency.as_ref()?;
            (group.key == key).then(|| (job.id, job.member()))
        });
        let known: Vec<(JobId, Option<Member>)> = runs.chain(jobs).collect();
        for (id, member) in known {
            self.note_member(&key, id, member);
        }
    }

    /// Who is in a group that is in sight, after a member changed.
    fn note_member(&mut self, key: &Digest, id: JobId, member: Option<Member>) {
        let Some(members) = self.groups.get_mut(key) else {
            return;
        };
        match member {
            Some(member) => members.insert(id, member),
            None => members.remove(&id),
        };
    }

    /// Who holds what, after an attempt changed. A lease that had ended before says nothing of its
    /// runner, which may hold another attempt that is not in sight.
    fn note_holder(&mut self, id: AttemptId, attempt: &Attempt) {
        let Some(lease) = &attempt.lease else { return };
        let holder = (lease.principal.clone(), lease.runner.clone());
        if lease.state.is_live() {
            self.holders.insert(holder, Some(id));
            return;
        }
        let before = self.attempts.get(&id).and_then(Option::as_deref);
        let ended_now = before
            .and_then(Attempt::live_lease)
            .is_some_and(|was| was.principal == lease.principal && was.runner == lease.runner);
        if ended_now || self.holders.get(&holder) == Some(&Some(id)) {
            self.holders.insert(holder, None);
        }
    }

    /// Unresolved jobs of a run, in order.
    pub fn live_jobs(&self, run: RunId) -> Vec<JobId> {
        self.jobs
            .range(run.job(0)..=run.job(u32::MAX))
            .filter_map(|(id, job)| job.as_ref().filter(|j| j.resolution.is_none()).map(|_| *id))
            .collect()
    }
}

impl Rows for World {
    fn put_run(&mut self, run: Run) {
        self.whole.insert(run.id);
        self.runs.insert(run.id, Some(Arc::new(run)));
    }

    fn put_job(&mut self, job: Job) {
        self.jobs.insert(job.id, Some(Arc::new(job)));
    }

    fn put_attempt(&mut self, attempt: Attempt) {
        self.attempts.insert(attempt.id, Some(Arc::new(attempt)));
    }

    fn put_past_lease(&mut self, attempt: AttemptId, lease: Lease) {
        self.past_leases
            .insert(attempt.lease(lease.epoch), Some(lease));
    }

    fn edit_run(&mut self, id: RunId) -> Result<&mut Run, Unfit> {
        self.runs
            .get_mut(&id)
            .and_then(Option::as_mut)
            .map(Arc::make_mut)
            .ok_or(Unfit::Missing(Want::Run(id)))
    }

    fn edit_job(&mut self, id: JobId) -> Result<&mut Job, Unfit> {
        self.jobs
            .get_mut(&id)
            .and_then(Option::as_mut)
            .map(Arc::make_mut)
            .ok_or(Unfit::Missing(Want::Job(id)))
    }

    fn edit_attempt(&mut self, id: AttemptId) -> Result<&mut Attempt, Unfit> {
        let found = self.attempts.get_mut(&id).and_then(Option::as_mut);
        found
            .map(Arc::make_mut)
            .ok_or(Unfit::Missing(Want::Attempt(id)))
    }
}

/// Small builders for this crate's tests.
#[cfg(test)]
pub(crate) mod test_support {
    use super::*;
    use crate::attempt::{AttemptState, Progress};
    use crate::lease::LeaseState;
    use crate::policy::Policy;
    use crate::settings::Settings;
    use crate::time::{Millis, Span};

    pub fn policy() -> Policy {
        Policy::plain(&Settings::recommended())
    }

    pub fn attempt() -> Attempt {
        Attempt {
            id: RunId(1).job(1).attempt(1),
            state: AttemptState::Created,
            created_at: Millis(0),
            not_before: Millis(0),
            queued_at: None,
            order_key: 0,
            ended_at: None,
            cause: None,
            losses: 0,
            dispatches: 0,
            cancel: None,
            report: None,
            lease: None,
            lease_number: 0,
            cancel_told_at: None,
            progress: Progress::default(),
        }
    }

    pub fn lease(state: LeaseState) -> Lease {
        Lease {
            epoch: 1,
            number: 1,
            token: [0; 32],
            state,
            principal: "p".into(),
            runner: "r".into(),
            granted_at: Millis(0),
            ack_by: Millis(0),
            acknowledged_at: None,
            ended_at: None,
            revocation: None,
            closing: None,
            ttl: Span(0),
            expires_at: Millis(0),
            heartbeat_seq: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::AttemptState;
    use crate::lease::LeaseState;

    fn held(n: u32, state: LeaseState) -> Attempt {
        let lease = test_support::lease(state);
        let id = RunId(1).job(n).attempt(1);
        let state = AttemptState::Queued;
        Attempt {
            id,
            state,
            lease: Some(lease),
            ..test_support::attempt()
        }
    }

    fn edit(attempt: Attempt) -> Edits {
        Edits {
            attempts: BTreeMap::from([(attempt.id, Arc::new(attempt))]),
            ..Edits::default()
        }
    }

    #[test]
    fn a_lease_that_ended_long_ago_says_nothing_of_its_runner() {
        // RP-9: the runner may hold another attempt that nobody has loaded.
        let mut world = World::default();
        let old = held(1, LeaseState::Expired);
        world.attempts.insert(old.id, Some(Arc::new(old.clone())));
        world.absorb(&edit(old));
        assert_eq!(world.holders.get(&("p".into(), "r".into())), None);
    }

    #[test]
    fn a_lease_that_ends_here_frees_its_runner() {
        let mut world = World::default();
        let live = held(1, LeaseState::Active);
        world.attempts.insert(live.id, Some(Arc::new(live)));
        world.absorb(&edit(held(1, LeaseState::Completed)));
        assert_eq!(world.holders.get(&("p".into(), "r".into())), Some(&None));
        world.absorb(&edit(held(2, LeaseState::Granted)));
        world.absorb(&edit(held(1, LeaseState::Completed)));
        let second = RunId(1).job(2).attempt(1);
        assert_eq!(
            world.holders.get(&("p".into(), "r".into())),
            Some(&Some(second))
        );
    }
}
