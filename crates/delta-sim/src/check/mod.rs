//! The invariants I1 … I20, each a named function, judged after every committed command.
//!
//! These functions judge the model checker and the simulator. They see what was asked, what was
//! answered and what was stored, never how it was decided: a server with a mistake in it is judged
//! like any other. Refuses to repair anything; the first broken invariant ends the story.

pub mod edges;
pub mod finality;
pub mod groups;
pub mod leases;
pub mod memory;
pub mod replies;
pub mod retries;
pub mod runs;

use delta_core::world::Edits;
use delta_core::{
    Attempt, AttemptId, Command, Fact, Job, JobId, Lease, LeaseKey, Millis, Record, Reply, Run,
    RunId, Settings, World,
};

pub use memory::Memory;

/// One committed command: the question, the answer, and the rows before and after.
pub struct Step<'a> {
    pub now: Millis,
    /// As it came from outside, whatever a server made of it.
    pub command: &'a Command,
    pub reply: &'a Reply,
    pub record: Option<&'a Record>,
    pub before: &'a World,
    pub edits: &'a Edits,
    pub settings: &'a Settings,
    pub lease_floor: Millis,
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

impl std::error::Error for Violation {}

/// What an invariant says of a step.
pub type Verdict = Result<(), String>;

/// An invariant over one step and what was remembered of all earlier ones.
pub type Invariant = fn(&Step, &Memory) -> Verdict;

/// I1 … I16, I19 and the state half of I20. I15, I17, I18 and the rest of I20 need clients and a
/// store: the simulator judges those.
pub const STEPWISE: &[(&str, Invariant)] = &[
    ("I1", finality::i01_finalised_at_most_once),
    ("I2", leases::i02_accepted_only_on_the_current_live_lease),
    ("I3", leases::i03_at_most_one_live_lease),
    ("I4", leases::i04_epochs_rise_and_tokens_are_unique),
    ("I5", retries::i05_attempts_are_numbered_in_order),
    ("I6", edges::i06_only_listed_edges),
    ("I7", finality::i07_what_has_ended_stays),
    ("I8", runs::i08_success_needs_every_required_job),
    ("I9", runs::i09_failure_has_a_reason),
    ("I10", runs::i10_canceled_only_when_asked_and_settled),
    ("I11", finality::i11_no_success_after_a_cancel),
    ("I12", finality::i12_success_is_one_completed_lease),
    ("I13", retries::i13_budgets_hold),
    ("I14", retries::i14_retries_are_earned),
    ("I15", replies::i15_what_is_acknowledged_is_recorded),
    ("I16", replies::i16_repeats_change_nothing),
    ("I19", leases::i19_expiry_only_grows_up_to_its_cap),
    ("I20", leases::i20_leased_means_one_live_lease),
    ("G1", groups::g1_one_of_a_group_is_at_work),
];

/// How often each invariant was judged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(pub [u64; STEPWISE.len()]);

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for ((name, _), count) in STEPWISE.iter().zip(self.0) {
            write!(f, "{name} {count}  ")?;
        }
        Ok(())
    }
}

/// Judges a step by every invariant and remembers it.
pub fn judge(step: &Step, memory: &mut Memory, tally: &mut Tally) -> Result<(), Violation> {
    holds(step, memory, tally)?;
    memory.remember(step);
    Ok(())
}

/// Judges a step by every invariant.
pub fn holds(step: &Step, memory: &Memory, tally: &mut Tally) -> Result<(), Violation> {
    for (n, (invariant, holds)) in STEPWISE.iter().enumerate() {
        tally.0[n] += 1;
        holds(step, memory).map_err(|what| Violation { invariant, what })?;
    }
    Ok(())
}

impl<'a> Step<'a> {
    pub fn facts(&self) -> &'a [Fact] {
        self.record.map_or(&[], |record| record.facts.as_slice())
    }

    pub fn changed(&self) -> bool {
        self.record.is_some() || !self.edits.is_empty()
    }

    pub fn run_id(&self) -> RunId {
        self.command.run()
    }

    pub fn run_after(&self, id: RunId) -> Option<&'a Run> {
        let known = || self.before.runs.get(&id).and_then(Option::as_deref);
        self.edits.runs.get(&id).map(|row| &**row).or_else(known)
    }

    pub fn job_after(&self, id: JobId) -> Option<&'a Job> {
        let known = || self.before.jobs.get(&id).and_then(Option::as_deref);
        self.edits.jobs.get(&id).map(|row| &**row).or_else(known)
    }

    pub fn attempt_before(&self, id: AttemptId) -> Option<&'a Attempt> {
        self.before.attempts.get(&id).and_then(Option::as_deref)
    }

    pub fn attempt_after(&self, id: AttemptId) -> Option<&'a Attempt> {
        let known = || self.attempt_before(id);
        self.edits
            .attempts
            .get(&id)
            .map(|row| &**row)
            .or_else(known)
    }

    /// The lease as it was before: the attempt's latest, or a past one.
    pub fn lease_before(&self, key: LeaseKey) -> Option<&'a Lease> {
        let latest = self
            .attempt_before(key.attempt)
            .and_then(|a| a.lease.as_ref())
            .filter(|lease| lease.epoch == key.epoch);
        latest.or_else(|| self.before.past_leases.get(&key).and_then(Option::as_ref))
    }

    /// Jobs of the command's run as they are after the step, in order.
    pub fn jobs_after(&self) -> impl Iterator<Item = &'a Job> + '_ {
        let run = self.run_id();
        let count = self.run_after(run).map_or(0, |run| run.jobs);
        (1..=count).filter_map(move |n| self.job_after(run.job(n)))
    }

    /// Attempts of a job after the step, in order.
    pub fn attempts_after(&self, job: &'a Job) -> impl Iterator<Item = &'a Attempt> + '_ {
        (1..=job.attempts).filter_map(move |n| self.attempt_after(job.id.attempt(n)))
    }

    /// All leases of an attempt after the step, the latest last.
    pub fn leases_after(&self, attempt: &'a Attempt) -> Vec<&'a Lease> {
        let range = attempt.id.lease(0)..=attempt.id.lease(u64::MAX);
        let mut all: std::collections::BTreeMap<LeaseKey, &Lease> = self
            .before
            .past_leases
            .range(range.clone())
            .filter_map(|(key, lease)| lease.as_ref().map(|lease| (*key, lease)))
            .collect();
        all.extend(self.edits.past_leases.range(range).map(|(k, l)| (*k, l)));
        all.into_values().chain(attempt.lease.as_ref()).collect()
    }
}
