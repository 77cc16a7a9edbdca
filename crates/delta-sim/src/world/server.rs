//! A simulated server: collects requests, decides them in one batch against the store, commits, and
//! only then answers. Holds nothing that matters: a crash loses its inbox and its batch, no more.

use std::collections::BTreeSet;
use std::sync::Arc;

use delta_core::command::{Context, LeaseProof};
use delta_core::lease::epoch;
use delta_core::requirement::Capabilities;
use delta_core::world::Edits;
use delta_core::{
    Command, Decision, Digest, Fact, JobId, LeaseState, Millis, Record, Refusal, Reply, Settings,
    Stop, Text, Want, World, decide,
};
use delta_store::memory::MemoryStore;
use delta_store::{Claim, CommitError, Due, Store, StoreError, Writes};

use super::bug::Bug;
use crate::rng::Rng;

/// What a client asks.
#[derive(Clone, Debug)]
pub enum Ask {
    Do(Command),
    Lease {
        principal: Text,
        runner: Text,
        capabilities: Capabilities,
        /// Which of its requests this is: an agent listens only to the answer to its last.
        nonce: u64,
    },
}

/// A request as it waits in the inbox: stamped when it was read (A23).
#[derive(Clone, Debug)]
pub struct Request {
    pub from: u64,
    pub ask: Ask,
    pub at: Millis,
    pub specs: Vec<(JobId, Arc<str>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Reply(Reply),
    /// A lease, with the token that nobody else ever sees.
    Granted(Reply, Digest),
    Refused(Refusal),
    /// No work now.
    Nothing,
    /// Try again later.
    Away,
}

/// A decision that was committed, as the checkers see it.
#[derive(Clone, Debug)]
pub struct Done {
    pub command: Command,
    pub at: Millis,
    pub reply: Reply,
    pub record: Option<Record>,
    pub edits: Edits,
}

/// What became of a batch.
pub struct Batch {
    pub answers: Vec<(u64, Answer)>,
    pub done: Vec<Done>,
    /// Commits that met another writer, were lost and applied, were lost and not, were refused.
    pub troubles: [u64; 4],
}

/// A batch decided and not yet committed.
#[derive(Default)]
struct Draft {
    world: World,
    writes: Writes,
    done: Vec<Done>,
    answers: Vec<(u64, Answer)>,
}

pub struct Server<'a> {
    pub store: &'a mut MemoryStore,
    pub settings: &'a Settings,
    pub bug: Option<Bug>,
    pub entropy: u64,
}

/// A batch that meets this many faults in a row is given up: its clients try again.
const TRIES: usize = 8;

impl Server<'_> {
    pub fn process(&mut self, requests: &[Request]) -> Batch {
        let mut troubles = [0; 4];
        let mut renewed = Vec::new();
        for _ in 0..TRIES {
            let drafted = self.store.begin().and_then(|_| self.draft(requests));
            let draft = match drafted {
                Ok(draft) => draft,
                Err(_) => {
                    self.store.rollback();
                    break;
                }
            };
            match self.store.commit(&draft.writes) {
                Ok(()) => return finished(renewed, draft, troubles),
                Err(CommitError::Conflict) => troubles[0] += 1,
                Err(CommitError::Unknown) => {
                    if self.store.resolve_unknown(&draft.writes).unwrap_or(false) {
                        troubles[1] += 1;
                        return finished(renewed, draft, troubles);
                    }
                    troubles[2] += 1;
                    // Renewals leave no event to find them by. Applied or not, the batch is run
                    // again; the judge must know which it was.
                    if draft.writes.records.is_empty() && self.is_stored(&draft.writes.edits) {
                        renewed.extend(draft.done);
                    }
                }
                Err(CommitError::Store(_)) => {
                    troubles[3] += 1;
                    break;
                }
            }
        }
        let away = |request: &Request| (request.from, Answer::Away);
        Batch {
            answers: requests.iter().map(away).collect(),
            done: renewed,
            troubles,
        }
    }

    fn is_stored(&mut self, edits: &Edits) -> bool {
        let mut world = World::default();
        let wants = edits.attempts.keys().map(|id| Want::Attempt(*id)).collect();
        let loaded = self.store.load(&wants, &mut world).is_ok();
        let same = |(id, row)| world.attempts.get(id) == Some(&Some(Clone::clone(row)));
        loaded && edits.attempts.iter().all(same)
    }

    /// What a server that answers too early would say, with nothing written.
    pub fn rehearse(&mut self, requests: &[Request]) -> Vec<(u64, Answer)> {
        let drafted = self.store.begin().and_then(|_| self.draft(requests));
        self.store.rollback();
        drafted.map(|draft| draft.answers).unwrap_or_default()
    }

    /// Everything due, as requests of the server's own.
    pub fn sweep(&mut self, now: Millis) -> Vec<Request> {
        let due = self.store.due(now, 100).unwrap_or_default();
        due.into_iter()
            .map(|due| match due {
                Due::Run(run) => Command::RunDue { run },
                Due::Attempt(attempt) => Command::AttemptDue { attempt },
                Due::Turn(member) => Command::TakeTurn { member },
            })
            .map(|command| own(command, now))
            .collect()
    }

    /// Start-up: the clock never starts before what is stored, and no lease outlives now + ttl.
    pub fn start(&mut self, wall: Millis) -> (Millis, Vec<Request>) {
        let newest = self.store.newest_moment().unwrap_or(wall);
        let now = wall.max(newest);
        let leased = self.store.leased().unwrap_or_default();
        let clamps = leased
            .into_iter()
            .map(|attempt| own(Command::Clamp { attempt }, now));
        (now, clamps.collect())
    }

    fn draft(&mut self, requests: &[Request]) -> Result<Draft, StoreError> {
        let mut draft = Draft::default();
        for request in requests {
            let answer = match &request.ask {
                Ask::Do(command) => self.one(&mut draft, request, command)?,
                Ask::Lease { .. } => self.lease(&mut draft, request)?,
            };
            draft.answers.push((request.from, answer));
        }
        Ok(draft)
    }

    fn lease(&mut self, draft: &mut Draft, request: &Request) -> Result<Answer, StoreError> {
        let Ask::Lease {
            principal,
            runner,
            capabilities,
            ..
        } = &request.ask
        else {
            return Ok(Answer::Nothing);
        };
        let holder = (principal.clone(), runner.clone());
        self.load(draft, Want::Holder(holder.0.clone(), holder.1.clone()))?;
        let attempt = match draft.world.holders.get(&holder).copied().flatten() {
            Some(held) => Some(held),
            None => {
                let keys = self.store.match_keys()?;
                let claim = Claim {
                    keys: keys
                        .into_iter()
                        .filter(|key| capabilities.fits(key))
                        .collect(),
                    limit: 1,
                    skip: BTreeSet::new(),
                };
                self.store.claim(&claim, &mut draft.world)?.first().copied()
            }
        };
        let Some(attempt) = attempt else {
            return Ok(Answer::Nothing);
        };
        self.load(draft, Want::Attempt(attempt))?;
        let row = draft
            .world
            .attempts
            .get(&attempt)
            .and_then(Option::as_deref);
        let number = row.map_or(0, |row| row.lease_number) + 1;
        self.entropy = self.entropy.wrapping_add(1);
        let token = Rng::new(self.entropy).digest();
        let command = Command::Grant {
            attempt,
            principal: principal.clone(),
            runner: runner.clone(),
            token,
            epoch: epoch(self.settings.incarnation, number),
        };
        Ok(match self.one(draft, request, &command)? {
            Answer::Reply(reply) => Answer::Granted(reply, token),
            other => other,
        })
    }

    fn load(&mut self, draft: &mut Draft, want: Want) -> Result<(), StoreError> {
        self.store.load(&BTreeSet::from([want]), &mut draft.world)
    }

    fn one(
        &mut self,
        draft: &mut Draft,
        request: &Request,
        command: &Command,
    ) -> Result<Answer, StoreError> {
        let meant = self.misread(draft, command)?;
        if let Some(ack) = self.implied(draft, &meant)? {
            self.decide(draft, request, &ack, command)?;
        }
        self.decide(draft, request, &meant, command)
    }

    fn decide(
        &mut self,
        draft: &mut Draft,
        request: &Request,
        meant: &Command,
        asked: &Command,
    ) -> Result<Answer, StoreError> {
        let sweeper = matches!(asked, Command::AttemptDue { .. });
        let blind = self.bug == Some(Bug::SweeperOnlyExpiry) && !sweeper;
        let context = Context {
            now: request.at,
            settings: self.settings,
            entropy: self.entropy,
            lease_floor: if blind { Millis::FAR } else { Millis::ZERO },
        };
        let mut decision = loop {
            match decide(&draft.world, meant, &context) {
                Ok(decision) => break decision,
                Err(Stop::Refused(refusal)) => return Ok(Answer::Refused(refusal)),
                Err(Stop::Missing(want)) => self.load(draft, want)?,
            }
        };
        if self.bug == Some(Bug::EpochReuse) {
            reuse_epoch(draft, &mut decision);
        }
        draft.world.absorb(&decision.edits);
        draft.writes.edits.absorb(decision.edits.clone());
        if let Some(record) = &decision.record {
            let made = |id: &JobId| decision.edits.jobs.contains_key(id);
            let specs = request.specs.iter().filter(|(id, _)| made(id));
            if matches!(meant, Command::CreateRun(_) | Command::Plan { .. }) {
                draft.writes.specs.extend(specs.cloned());
            }
            draft.writes.records.push(record.clone());
        }
        draft.done.push(Done {
            command: asked.clone(),
            at: request.at,
            reply: decision.reply.clone(),
            record: decision.record,
            edits: decision.edits,
        });
        Ok(Answer::Reply(decision.reply))
    }

    /// [`Bug::NoFencing`]: whatever lease is named, the current one is meant.
    fn misread(&mut self, draft: &mut Draft, command: &Command) -> Result<Command, StoreError> {
        let mut meant = command.clone();
        let fenced = self.bug != Some(Bug::NoFencing);
        let Some(proof) = proof_of(&mut meant).filter(|_| !fenced) else {
            return Ok(meant);
        };
        let id = proof.key.attempt;
        self.load(draft, Want::Attempt(id))?;
        let row = draft.world.attempts.get(&id).and_then(Option::as_deref);
        if let Some(lease) = row.and_then(|row| row.live_lease()) {
            *proof = LeaseProof {
                key: id.lease(lease.epoch),
                token: lease.token,
                principal: lease.principal.clone(),
                runner: lease.runner.clone(),
                speaker: delta_core::rights::Speaker::anybody(),
            };
        }
        Ok(meant)
    }

    /// [`Bug::ImplicitAck`]: an acknowledgement nobody sent.
    fn implied(
        &mut self,
        draft: &mut Draft,
        command: &Command,
    ) -> Result<Option<Command>, StoreError> {
        let says = matches!(
            command,
            Command::Heartbeat { .. } | Command::Complete { .. }
        );
        if self.bug != Some(Bug::ImplicitAck) || !says {
            return Ok(None);
        }
        let mut command = command.clone();
        let Some(proof) = proof_of(&mut command).map(|proof| proof.clone()) else {
            return Ok(None);
        };
        let (id, key) = (proof.key.attempt, proof.key);
        self.load(draft, Want::Attempt(id))?;
        let row = draft.world.attempts.get(&id).and_then(Option::as_deref);
        let granted = row
            .and_then(|row| row.live_lease())
            .is_some_and(|lease| lease.epoch == key.epoch && lease.state == LeaseState::Granted);
        Ok(granted.then_some(Command::AckLease { proof, job: id.job }))
    }
}

fn own(command: Command, at: Millis) -> Request {
    Request {
        from: 0,
        ask: Ask::Do(command),
        at,
        specs: Vec::new(),
    }
}

fn finished(renewed: Vec<Done>, draft: Draft, troubles: [u64; 4]) -> Batch {
    Batch {
        answers: draft.answers,
        done: renewed.into_iter().chain(draft.done).collect(),
        troubles,
    }
}

fn proof_of(command: &mut Command) -> Option<&mut LeaseProof> {
    match command {
        Command::AckLease { proof, .. }
        | Command::Heartbeat { proof, .. }
        | Command::Complete { proof, .. }
        | Command::CancelAck { proof, .. }
        | Command::Decline { proof } => Some(proof),
        _ => None,
    }
}

/// [`Bug::EpochReuse`]: the new lease goes by the number of the old one.
fn reuse_epoch(draft: &Draft, decision: &mut Decision) {
    let Some(record) = &mut decision.record else {
        return;
    };
    for fact in &mut record.facts {
        let Fact::LeaseGranted { job, index, grant } = fact else {
            continue;
        };
        let id = record.run.job(*job).attempt(*index);
        let former = draft.world.attempts.get(&id).and_then(Option::as_deref);
        let Some(former) = former.and_then(|attempt| attempt.lease.as_ref()) else {
            continue;
        };
        grant.epoch = former.epoch;
        let row = decision.edits.attempts.get_mut(&id);
        if let Some(lease) = row.and_then(|row| Arc::make_mut(row).lease.as_mut()) {
            lease.epoch = former.epoch;
        }
    }
}
