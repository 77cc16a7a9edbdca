//! The reference driver: commands in, answers out, by the shortest way through a store.
//!
//! Begin, load, decide, commit, and again where another writer was first or an answer was lost.
//! The server's writer does the same faster, with lanes and groups; the simulator, the doctor's
//! tests and the conformance suite use this one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use delta_core::lease::epoch;
use delta_core::{
    AttemptId, Command, Context, Digest, Fact, Job, JobId, Refusal, Reply, Stop, Text, Want, World,
    decide,
};

use crate::{Claim, CommitError, Store, StoreError, Writes};

/// How often a batch is run again: conflicts this many times in a row mean something else is wrong.
const MAX_TRIES: usize = 50;

pub type Answer = Result<Reply, Refusal>;

/// A batch that was carried out.
#[derive(Clone, Debug)]
pub struct Applied {
    pub answers: Vec<Answer>,
    pub writes: Writes,
}

/// A runner that asks for work.
#[derive(Clone, Debug)]
pub struct LeaseAsk {
    pub keys: Vec<Text>,
    pub principal: Text,
    pub runner: Text,
    /// SHA-256 of the token to hand out.
    pub token: Digest,
}

/// A lease that was given.
#[derive(Clone, Debug)]
pub struct Given {
    pub attempt: AttemptId,
    pub epoch: u64,
    pub answer: Answer,
}

/// One batch: each command in order, one answer each.
pub fn apply(
    store: &mut dyn Store,
    commands: &[Command],
    context: &Context,
) -> Result<Vec<Answer>, StoreError> {
    apply_with_specs(store, commands, &[], context).map(|applied| applied.answers)
}

/// One batch, with the specs of the jobs it may create.
pub fn apply_with_specs(
    store: &mut dyn Store,
    commands: &[Command],
    specs: &[(JobId, Arc<str>)],
    context: &Context,
) -> Result<Applied, StoreError> {
    let runs: BTreeSet<Want> = commands.iter().map(|c| Want::Run(c.run())).collect();
    let (answers, writes) = batch(store, &mut |store, work| {
        // All at once, so that a store that locks can do so in the order of ids.
        store.load(&runs, &mut work.world)?;
        let ask = |command| work.ask(store, command, specs, context);
        commands.iter().map(ask).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(Applied { answers, writes })
}

/// Gives a runner its unacknowledged attempt again, or else the first one queued that fits.
pub fn lease(
    store: &mut dyn Store,
    ask: &LeaseAsk,
    context: &Context,
) -> Result<Option<Given>, StoreError> {
    let given = lease_many(store, std::slice::from_ref(ask), context)?;
    Ok(given.into_iter().next().flatten())
}

/// Gives many runners an attempt each in one batch, the first to ask the first in line.
pub fn lease_many(
    store: &mut dyn Store,
    asks: &[LeaseAsk],
    context: &Context,
) -> Result<Vec<Option<Given>>, StoreError> {
    let (given, _) = batch(store, &mut |store, work| {
        let mut given = Vec::with_capacity(asks.len());
        for (n, ask) in asks.iter().enumerate() {
            given.push(match work.pick(store, ask, asks.len() - n)? {
                Some(attempt) => Some(work.grant(store, ask, attempt, context)?),
                None => None,
            });
        }
        Ok(given)
    })?;
    Ok(given)
}

/// A batch in the making.
#[derive(Default)]
struct Work {
    world: World,
    writes: Writes,
    /// Attempts claimed and not yet given, by the keys they were claimed for.
    lines: BTreeMap<Vec<Text>, VecDeque<AttemptId>>,
    granted: BTreeSet<AttemptId>,
}

impl Work {
    fn load(&mut self, store: &mut dyn Store, want: Want) -> Result<(), StoreError> {
        store.load(&BTreeSet::from([want]), &mut self.world)
    }

    /// The attempt a runner is to get: the one it holds, or the next in line. `left` runners are
    /// still to be served, so that many are claimed at once.
    fn pick(
        &mut self,
        store: &mut dyn Store,
        ask: &LeaseAsk,
        left: usize,
    ) -> Result<Option<AttemptId>, StoreError> {
        let holder = (ask.principal.clone(), ask.runner.clone());
        self.load(store, Want::Holder(holder.0.clone(), holder.1.clone()))?;
        if let Some(held) = self.world.holders.get(&holder).copied().flatten() {
            self.load(store, Want::Run(held.run()))?;
            self.load(store, Want::Attempt(held))?;
            return Ok(Some(held));
        }
        let mut claimed = false;
        loop {
            let line = self.lines.entry(ask.keys.clone()).or_default();
            while let Some(next) = line.pop_front() {
                if self.granted.insert(next) {
                    return Ok(Some(next));
                }
            }
            if std::mem::replace(&mut claimed, true) {
                return Ok(None);
            }
            let claim = Claim {
                keys: ask.keys.clone(),
                limit: left,
                skip: self.granted.clone(),
            };
            line.extend(store.claim(&claim, &mut self.world)?);
        }
    }

    fn grant(
        &mut self,
        store: &mut dyn Store,
        ask: &LeaseAsk,
        attempt: AttemptId,
        context: &Context,
    ) -> Result<Given, StoreError> {
        let row = self.world.attempts.get(&attempt).and_then(Option::as_deref);
        let number = row.map_or(0, |row| row.lease_number) + 1;
        let epoch = epoch(context.settings.incarnation, number);
        let command = Command::Grant {
            attempt,
            principal: ask.principal.clone(),
            runner: ask.runner.clone(),
            token: ask.token,
            epoch,
        };
        let answer = self.ask(store, &command, &[], context)?;
        Ok(Given {
            attempt,
            epoch,
            answer,
        })
    }

    fn ask(
        &mut self,
        store: &mut dyn Store,
        command: &Command,
        specs: &[(JobId, Arc<str>)],
        context: &Context,
    ) -> Result<Answer, StoreError> {
        let mut loaded = BTreeSet::new();
        loop {
            match decide(&self.world, command, context) {
                Ok(decision) => {
                    self.world.absorb(&decision.edits);
                    self.writes.edits.absorb(decision.edits);
                    if let Some(record) = decision.record {
                        self.writes.specs.extend(created(&record.facts, specs));
                        self.writes.records.push(record);
                    }
                    return Ok(Ok(decision.reply));
                }
                Err(Stop::Refused(refusal)) => return Ok(Err(refusal)),
                Err(Stop::Missing(want)) => {
                    if !loaded.insert(want.clone()) {
                        let why = format!("{want:?} is missing though it was loaded");
                        return Err(StoreError::Corrupt(why));
                    }
                    self.load(store, want)?;
                }
            }
        }
    }
}

/// The specs of the jobs these facts create: one each, the one whose digest the job carries. Two
/// plans for one run may stand in one batch, and only one of them is accepted.
fn created(facts: &[Fact], specs: &[(JobId, Arc<str>)]) -> impl Iterator<Item = (JobId, Arc<str>)> {
    let spec_of = |job: &Job| {
        let fits = |(id, text): &&(JobId, Arc<str>)| {
            *id == job.id && crate::events::sha256(text.as_bytes()) == job.spec
        };
        specs.iter().find(fits).cloned()
    };
    facts.iter().filter_map(move |fact| match fact {
        Fact::JobCreated(job) => spec_of(job),
        _ => None,
    })
}

/// Runs `body` in a batch and commits it, again after a conflict or a commit that was lost.
fn batch<T>(
    store: &mut dyn Store,
    body: &mut dyn FnMut(&mut dyn Store, &mut Work) -> Result<T, StoreError>,
) -> Result<(T, Writes), StoreError> {
    for _ in 0..MAX_TRIES {
        store.begin()?;
        let mut work = Work::default();
        let done = match body(store, &mut work) {
            Ok(done) => done,
            Err(StoreError::Conflict) => {
                store.rollback();
                continue;
            }
            Err(error) => {
                store.rollback();
                return Err(error);
            }
        };
        match store.commit(&work.writes) {
            Ok(()) => return Ok((done, work.writes)),
            Err(CommitError::Conflict) | Err(CommitError::Store(StoreError::Conflict)) => {}
            Err(CommitError::Unknown) => {
                if store.resolve_unknown(&work.writes)? {
                    return Ok((done, work.writes));
                }
            }
            Err(CommitError::Store(error)) => return Err(error),
        }
    }
    Err(StoreError::Unavailable(format!(
        "{MAX_TRIES} conflicts in a row"
    )))
}
