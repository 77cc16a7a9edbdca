//! `decide`: the one function that turns a command into changes.
//!
//! Pure: it reads a [`World`], writes on a private copy of the rows it touches, and hands back the
//! record of facts with those rows. Nothing outside sees a half-made decision; a decision that
//! lacks a row or is refused leaves no trace.

mod cancel;
mod create;
mod due;
mod finish;
mod hold;
mod settle;
mod turn;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::Text;
use crate::attempt::{Attempt, AttemptEvent};
use crate::cause::Cause;
use crate::command::{Command, Context, LeaseProof, Refusal, Reply};
use crate::fact::{Ending, Fact, Record, Unfit};
use crate::group::Members;
use crate::id::{AttemptId, JobId, RunId};
use crate::job::Job;
use crate::lease::{Lease, LeaseEvent, Stale};
use crate::rights::{AgentStanding, Bond, Denied};
use crate::run::{Run, RunEvent};
use crate::time::Millis;
use crate::world::{Edits, Rows, Want, World};

pub use hold::lease_cap;

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub reply: Reply,
    /// `None` when nothing happened that history must remember.
    pub record: Option<Record>,
    /// The rows as they are now; also touched by renewals, which leave no record.
    pub edits: Edits,
}

/// Why there is no decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Load this and ask again.
    Missing(Want),
    Refused(Refusal),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Refused(refusal)
    }
}

impl From<Unfit> for Stop {
    fn from(unfit: Unfit) -> Stop {
        match unfit {
            Unfit::Missing(want) => Stop::Missing(want),
            // A fact we made ourselves that no machine knows is a mistake of ours, not a refusal.
            Unfit::Illegal(what) => panic!("the core walked an edge that does not exist: {what}"),
        }
    }
}

pub fn decide(world: &World, command: &Command, context: &Context) -> Result<Decision, Stop> {
    let mut work = Work::new(world, context, command.run());
    let reply = match command {
        Command::CreateRun(new) => create::create_run(&mut work, new),
        Command::Plan { jobs, settings, .. } => create::plan(&mut work, jobs, settings.as_ref()),
        Command::FailPlan { cause, .. } => create::fail_plan(&mut work, *cause),
        Command::Grant {
            attempt,
            principal,
            runner,
            token,
            epoch,
        } => {
            let grant = hold::Asked {
                attempt: *attempt,
                principal,
                runner,
                token,
                epoch: *epoch,
            };
            hold::grant(&mut work, grant)
        }
        Command::AckLease { proof, job } => hold::acknowledge(&mut work, proof, *job),
        Command::Heartbeat {
            proof,
            seq,
            progress,
            uploading,
        } => hold::heartbeat(&mut work, proof, *seq, progress, *uploading),
        Command::Complete {
            proof,
            digest,
            status,
            cause,
            report,
        } => {
            let said = finish::Said {
                status: *status,
                cause: *cause,
                report,
            };
            finish::complete(&mut work, proof, *digest, said)
        }
        Command::CancelAck {
            proof,
            digest,
            report,
        } => finish::cancel_ack(&mut work, proof, *digest, report),
        Command::Decline { proof } => due::decline(&mut work, proof),
        Command::CancelRun { cause, by, .. } => cancel::run(&mut work, *cause, by),
        Command::CancelJob { job, cause, by } => cancel::job(&mut work, *job, *cause, by),
        Command::TakeTurn { member } => turn::take(&mut work, *member),
        Command::Revoke { lease, why } => due::revoke(&mut work, *lease, *why),
        Command::AttemptDue { attempt } => due::attempt(&mut work, *attempt),
        Command::RunDue { .. } => due::run(&mut work),
        Command::GiveUp { cause, .. } => due::give_up(&mut work, *cause),
        Command::Report { .. } => settle::report(&mut work),
        Command::Clamp { attempt } => due::clamp(&mut work, *attempt),
    }?;
    Ok(work.into_decision(command, reply))
}

/// A decision in the making: the world, and the rows this command has changed so far.
pub(crate) struct Work<'w> {
    world: &'w World,
    context: &'w Context<'w>,
    run: RunId,
    edits: Edits,
    facts: Vec<Fact>,
}

impl<'w> Work<'w> {
    fn new(world: &'w World, context: &'w Context<'w>, run: RunId) -> Work<'w> {
        Work {
            world,
            context,
            run,
            edits: Edits::default(),
            facts: Vec::new(),
        }
    }

    fn into_decision(self, command: &Command, reply: Reply) -> Decision {
        let record = (!self.facts.is_empty()).then(|| Record {
            run: self.run,
            at: self.context.now,
            command: command.name(),
            actor: command.actor(),
            facts: self.facts,
        });
        Decision {
            reply,
            record,
            edits: self.edits,
        }
    }

    fn now(&self) -> Millis {
        self.context.now
    }

    /// Records a fact and applies it.
    fn emit(&mut self, fact: Fact) -> Result<(), Stop> {
        let (run, now) = (self.run, self.context.now);
        fact.apply(self, run, now)?;
        self.facts.push(fact);
        Ok(())
    }

    fn find_run(&self) -> Result<Option<&Run>, Stop> {
        if let Some(run) = self.edits.runs.get(&self.run) {
            return Ok(Some(run));
        }
        let known = self.world.runs.get(&self.run);
        Ok(known.ok_or(Stop::Missing(Want::Run(self.run)))?.as_deref())
    }

    fn run(&self) -> Result<&Run, Stop> {
        self.find_run()?
            .ok_or(Stop::Refused(Refusal::NoSuchRun(self.run)))
    }

    fn job(&self, id: JobId) -> Result<&Job, Stop> {
        if let Some(job) = self.edits.jobs.get(&id) {
            return Ok(job);
        }
        let known = self
            .world
            .jobs
            .get(&id)
            .ok_or(Stop::Missing(Want::Job(id)))?;
        known
            .as_deref()
            .ok_or(Stop::Refused(Refusal::NoSuchJob(id)))
    }

    fn find_attempt(&self, id: AttemptId) -> Result<Option<&Attempt>, Stop> {
        if let Some(attempt) = self.edits.attempts.get(&id) {
            return Ok(Some(attempt));
        }
        let known = self.world.attempts.get(&id);
        Ok(known.ok_or(Stop::Missing(Want::Attempt(id)))?.as_deref())
    }

    fn attempt(&self, id: AttemptId) -> Result<&Attempt, Stop> {
        self.find_attempt(id)?
            .ok_or(Stop::Refused(Refusal::NoSuchAttempt(id)))
    }

    /// Unresolved jobs of the run, in order, as they are now.
    fn live_jobs(&self) -> Result<Vec<JobId>, Stop> {
        let made_here = self.edits.runs.contains_key(&self.run)
            && !matches!(self.world.runs.get(&self.run), Some(Some(_)));
        if !made_here && !self.world.whole.contains(&self.run) {
            return Err(Stop::Missing(Want::LiveJobs(self.run)));
        }
        let mut ids = self.world.live_jobs(self.run);
        ids.extend(self.edits.jobs.keys());
        ids.sort_unstable();
        ids.dedup();
        let mut live = Vec::with_capacity(ids.len());
        for id in ids {
            if self.job(id)?.resolution.is_none() {
                live.push(id);
            }
        }
        Ok(live)
    }

    /// The members of a group as they were before this decision.
    fn group(&self, key: &crate::Digest) -> Result<&Members, Stop> {
        let known = self.world.groups.get(key);
        known.ok_or(Stop::Missing(Want::Group(*key)))
    }

    fn move_run(&mut self, event: RunEvent, cause: Option<Cause>) -> Result<(), Stop> {
        self.emit(Fact::RunMoved { event, cause })
    }

    fn move_attempt(
        &mut self,
        id: AttemptId,
        event: AttemptEvent,
        cause: Option<Cause>,
    ) -> Result<(), Stop> {
        self.emit(Fact::AttemptMoved {
            job: id.job.n,
            index: id.index,
            event,
            cause,
        })
    }

    fn move_lease(&mut self, id: AttemptId, event: LeaseEvent, ending: Ending) -> Result<(), Stop> {
        self.emit(Fact::LeaseMoved {
            job: id.job.n,
            index: id.index,
            event,
            ending,
        })
    }

    /// Changes what no record keeps: expiry, sequence, progress.
    fn renew(&mut self, id: AttemptId, change: impl FnOnce(&mut Attempt)) -> Result<(), Stop> {
        change(self.edit_attempt(id)?);
        Ok(())
    }

    /// The lease a proof speaks of, if it is the caller's (A25, A37). A foreign or invented token
    /// is answered like an unknown one.
    fn check_proof(&self, proof: &LeaseProof) -> Result<Result<Lease, Stale>, Stop> {
        let Some(attempt) = self.find_attempt(proof.key.attempt)? else {
            return Ok(Err(Stale::Unknown));
        };
        let latest = attempt
            .lease
            .as_ref()
            .filter(|lease| lease.epoch == proof.key.epoch);
        let (lease, superseded) = match latest {
            Some(lease) => (lease, false),
            None => match self.past_lease(proof)? {
                Some(lease) => (lease, true),
                None => return Ok(Err(Stale::Unknown)),
            },
        };
        let agent = self.agent(proof.speaker.agent(&lease.runner))?;
        match self.bond(lease).is_held_by(proof, agent) {
            Ok(()) => {}
            Err(Denied::Barred(why)) => return Err(Refusal::Barred(why).into()),
            Err(Denied::Stale(why)) => return Ok(Err(why)),
            Err(Denied::NotAcknowledged) => unreachable!("whose a lease is says nothing of that"),
        }
        if lease.runner != proof.runner {
            return Err(Refusal::RunnerMismatch.into());
        }
        Ok(if superseded {
            Err(Stale::Superseded)
        } else {
            Ok(lease.clone())
        })
    }

    /// Messages have no right after the lease's end, so nothing of a late log.
    fn bond<'l>(&self, lease: &'l Lease) -> Bond<'l> {
        Bond::of(lease, self.context.lease_floor, None)
    }

    fn agent(&self, id: Option<Text>) -> Result<Option<&AgentStanding>, Stop> {
        let Some(id) = id else { return Ok(None) };
        let known = self.world.agents.get(&id);
        Ok(known.ok_or(Stop::Missing(Want::Agent(id)))?.as_ref())
    }

    fn past_lease(&self, proof: &LeaseProof) -> Result<Option<&Lease>, Stop> {
        if let Some(lease) = self.edits.past_leases.get(&proof.key) {
            return Ok(Some(lease));
        }
        let known = self.world.past_leases.get(&proof.key);
        Ok(known
            .ok_or(Stop::Missing(Want::PastLease(proof.key)))?
            .as_ref())
    }
}

impl Rows for Work<'_> {
    fn put_run(&mut self, run: Run) {
        self.edits.runs.insert(run.id, Arc::new(run));
    }

    fn put_job(&mut self, job: Job) {
        self.edits.jobs.insert(job.id, Arc::new(job));
    }

    fn put_attempt(&mut self, attempt: Attempt) {
        self.edits.attempts.insert(attempt.id, Arc::new(attempt));
    }

    fn put_past_lease(&mut self, attempt: AttemptId, lease: Lease) {
        self.edits
            .past_leases
            .insert(attempt.lease(lease.epoch), lease);
    }

    fn edit_run(&mut self, id: RunId) -> Result<&mut Run, Unfit> {
        let known = self.world.runs.get(&id).and_then(Option::as_ref);
        copy_on_write(&mut self.edits.runs, id, known).ok_or(Unfit::Missing(Want::Run(id)))
    }

    fn edit_job(&mut self, id: JobId) -> Result<&mut Job, Unfit> {
        let known = self.world.jobs.get(&id).and_then(Option::as_ref);
        copy_on_write(&mut self.edits.jobs, id, known).ok_or(Unfit::Missing(Want::Job(id)))
    }

    fn edit_attempt(&mut self, id: AttemptId) -> Result<&mut Attempt, Unfit> {
        let known = self.world.attempts.get(&id).and_then(Option::as_ref);
        copy_on_write(&mut self.edits.attempts, id, known).ok_or(Unfit::Missing(Want::Attempt(id)))
    }
}

fn copy_on_write<'e, K: Ord + Copy, V: Clone>(
    edits: &'e mut BTreeMap<K, Arc<V>>,
    id: K,
    known: Option<&Arc<V>>,
) -> Option<&'e mut V> {
    let row = match edits.entry(id) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => entry.insert(known?.clone()),
    };
    Some(Arc::make_mut(row))
}
