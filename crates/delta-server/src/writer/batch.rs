//! One batch: what its commands touch, what they decided, and what will be written.
//!
//! Owns the private world of a batch. A command that cannot be decided fails alone and leaves no
//! trace in it; a store that cannot answer fails the whole batch.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use delta_core::world::Edits;
use delta_core::{
    Attempt, AttemptId, Command, Context, Decision, Fact, Millis, Reply, Stop, Want, World, decide,
};
use delta_store::{CommitError, Store, StoreError, Writes};

use super::{Answer, Created, Shared, entropy};
use crate::audit::Noticed;
use crate::not_done::NotDone;

/// Rows loaded one by one for a command before its whole run is loaded at once: releasing a few
/// dependents is cheaper singly, releasing a thousand is not.
const SINGLE_LOADS: u32 = 4;

/// Rows one command may ask for before it counts as a mistake: a thousand jobs with their attempts
/// and leases, several times over.
const MAX_LOADS: u32 = 10_000;

pub(super) struct Batch<'a> {
    pub shared: &'a Shared,
    pub store: &'a mut dyn Store,
    pub world: World,
    pub writes: Writes,
    jitter: Jitter,
}

/// Numbers to spread retries by, from one drawn for the batch: asking the generator for each
/// command cost more than most decisions. Nothing secret hangs on them.
struct Jitter(u64);

impl Jitter {
    /// A step of SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Why a batch did not become durable.
pub(super) enum Failed {
    /// Another writer was first: run it again.
    Again,
    Store(StoreError),
    /// Others write by a clock far ahead of this server's; says so in words for people (A23).
    Unfit(String),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        match error {
            StoreError::Conflict => Failed::Again,
            other => Failed::Store(other),
        }
    }
}

impl<'a> Batch<'a> {
    /// Opens a batch, and refuses one by a clock that disagrees with the store's.
    pub fn begin(shared: &'a Shared, store: &'a mut dyn Store) -> Result<Batch<'a>, Failed> {
        let store_now = store.begin()?;
        let distance = shared.clock.observe(store_now);
        shared.metrics.clock_distance.set(distance);
        if let Some(why) = shared.unfit() {
            store.rollback();
            return Err(Failed::Unfit(why));
        }
        Ok(Batch {
            shared,
            store,
            world: World::default(),
            writes: Writes::default(),
            jitter: Jitter(entropy()),
        })
    }

    pub fn load(&mut self, wants: &BTreeSet<Want>) -> Result<(), StoreError> {
        if wants.is_empty() {
            return Ok(());
        }
        self.store.load(wants, &mut self.world)
    }

    pub fn attempt(&self, id: AttemptId) -> Option<&Attempt> {
        self.world.attempts.get(&id).and_then(Option::as_deref)
    }

    /// Decides a command and takes its changes over. The outer error is the store's.
    pub fn decide(
        &mut self,
        at: Millis,
        command: &Command,
        specs: &[Arc<str>],
    ) -> Result<Result<Answer, NotDone>, StoreError> {
        let decision = match self.judge(at, command)? {
            Ok(decision) => decision,
            Err(refused) => return Ok(Err(refused)),
        };
        let noticed = Noticed::in_answer(&self.world, command, &decision.reply);
        let mut answer = self.take_over(decision, specs);
        answer.noticed = noticed.map(Box::new);
        Ok(Ok(answer))
    }

    /// Why a command would not be carried out as the world is now. Changes nothing.
    pub fn refusal(
        &mut self,
        at: Millis,
        command: &Command,
    ) -> Result<Option<NotDone>, StoreError> {
        Ok(self.judge(at, command)?.err())
    }

    fn judge(
        &mut self,
        at: Millis,
        command: &Command,
    ) -> Result<Result<Decision, NotDone>, StoreError> {
        let settings = &self.shared.settings;
        let context = Context {
            now: at,
            settings,
            entropy: self.jitter.next(),
            lease_floor: self.shared.lease_floor,
        };
        if let Command::CreateRun(new) = command {
            // A fresh id: 74 random bits and a unique index behind them.
            self.world.runs.entry(new.id).or_insert(None);
        }
        for loads in 0..MAX_LOADS {
            // A broken assertion in the core fails its own command, not its neighbours'.
            let decided = catch_unwind(AssertUnwindSafe(|| decide(&self.world, command, &context)));
            match decided {
                Ok(Ok(decision)) => return Ok(Ok(decision)),
                Ok(Err(Stop::Refused(refusal))) => return Ok(Err(refusal.into())),
                Ok(Err(Stop::Missing(want))) => self.load_missing(want, command, loads)?,
                Err(_) => {
                    tracing::error!(command = command.name(), "a decision panicked");
                    return Ok(Err(NotDone::Internal));
                }
            }
        }
        tracing::error!(command = command.name(), "a decision never had enough rows");
        Ok(Err(NotDone::Internal))
    }

    fn load_missing(
        &mut self,
        want: Want,
        command: &Command,
        loads: u32,
    ) -> Result<(), StoreError> {
        let mut wants = BTreeSet::from([want]);
        if loads == SINGLE_LOADS {
            wants.insert(Want::LiveJobs(command.run()));
        }
        self.load(&wants)
    }

    fn take_over(&mut self, decision: Decision, specs: &[Arc<str>]) -> Answer {
        let Decision {
            reply,
            record,
            edits,
        } = decision;
        let created = match &reply {
            Reply::Created {
                replayed: false, ..
            } => created(&edits),
            _ => None,
        };
        // A plan that comes later makes jobs, too.
        for fact in record.iter().flat_map(|record| &record.facts) {
            if let Fact::JobCreated(job) = fact
                && let Some(spec) = specs.get(job.id.n as usize - 1)
            {
                self.writes.specs.push((job.id, spec.clone()));
            }
        }
        if let Reply::Stale(_) = &reply {
            self.shared.metrics.stale.inc();
        }
        self.world.absorb(&edits);
        self.writes.edits.absorb(edits);
        self.writes.records.extend(record);
        Answer {
            reply,
            created,
            noticed: None,
        }
    }

    /// Makes the batch durable; after an error nothing of it is there.
    pub fn commit(mut self) -> Result<Writes, Failed> {
        if self.writes.is_empty() {
            self.store.rollback();
            return Ok(self.writes);
        }
        let notify = self.queued().next().is_some();
        self.writes.notify = notify;
        let started = std::time::Instant::now();
        let committed = match self.store.commit(&self.writes) {
            Ok(()) => Ok(true),
            Err(CommitError::Conflict) => Ok(false),
            Err(CommitError::Unknown) => self.store.resolve_unknown(&self.writes),
            Err(CommitError::Store(error)) => Err(error),
        };
        self.shared.metrics.commit(started.elapsed());
        match committed {
            Ok(true) => Ok(self.writes),
            Ok(false) => {
                self.store.rollback();
                Err(Failed::Again)
            }
            Err(error) => {
                self.store.rollback();
                Err(error.into())
            }
        }
    }

    /// Attempts this batch touched that are queued now: not yet to be seen in the store.
    pub fn queued(&self) -> impl Iterator<Item = &Attempt> {
        let edited = self.writes.edits.attempts.values();
        edited
            .map(|attempt| &**attempt)
            .filter(|attempt| attempt.state == delta_core::AttemptState::Queued)
    }
}

fn created(edits: &Edits) -> Option<Box<Created>> {
    let run = edits.runs.values().next()?.clone();
    let jobs = edits.jobs.values().filter_map(|job| {
        let attempt = edits.attempts.get(&job.current())?;
        Some((job.clone(), attempt.clone()))
    });
    let jobs = jobs.collect();
    Some(Box::new(Created { run, jobs }))
}

/// What a command is sure to look at, so that a batch loads it in one go.
pub(super) fn wants(command: &Command, wants: &mut BTreeSet<Want>) {
    let attempt = |wants: &mut BTreeSet<Want>, id: AttemptId| {
        wants.insert(Want::Run(id.run()));
        wants.insert(Want::Job(id.job));
        wants.insert(Want::Attempt(id));
    };
    match command {
        Command::CreateRun(new) => {
            wants.extend(new.header.idempotency.map(|(key, _)| Want::Key(key)));
            wants.extend(new.header.unique.map(|it| Want::Unique(it.key)));
        }
        Command::Plan { run, .. }
        | Command::FailPlan { run, .. }
        | Command::RunDue { run }
        | Command::Report { run } => {
            wants.insert(Want::Run(*run));
        }
        Command::CancelRun { run, .. } | Command::GiveUp { run, .. } => {
            wants.insert(Want::Run(*run));
            wants.insert(Want::LiveJobs(*run));
        }
        Command::TakeTurn { member } => {
            wants.insert(Want::Run(member.run));
            if member.n > 0 {
                wants.insert(Want::Job(*member));
            }
        }
        Command::CancelJob { job, .. } => {
            wants.insert(Want::Run(job.run));
            wants.insert(Want::Job(*job));
        }
        Command::Grant { attempt: id, .. }
        | Command::AttemptDue { attempt: id }
        | Command::Clamp { attempt: id } => attempt(wants, *id),
        Command::Revoke { lease, .. } => attempt(wants, lease.attempt),
        Command::AckLease { proof, .. }
        | Command::Heartbeat { proof, .. }
        | Command::Complete { proof, .. }
        | Command::CancelAck { proof, .. }
        | Command::Decline { proof } => {
            attempt(wants, proof.key.attempt);
            wants.extend(proof.speaker.agent(&proof.runner).map(Want::Agent));
        }
    }
}
