//! Simulated agents: honest ones, slow ones, deaf ones that take work and never speak again, and
//! liars that say anything about anybody's lease.

use delta_core::attempt::{Progress, Report};
use delta_core::command::{LeaseProof, Status};
use delta_core::holder::{Answer as HolderAnswer, Holder, Terms, Todo};
use delta_core::requirement::Capabilities;
use delta_core::{Cause, Command, JobId, Millis, Reply, Span, Text};

use super::Sent;
use super::server::{Answer, Ask};
use crate::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Honest,
    /// Speaks so seldom that its leases expire.
    Slow,
    /// Takes work and is never heard of again.
    Deaf,
    Liar,
}

#[derive(Clone, Debug)]
pub enum Phase {
    Idle,
    /// Granted; not yet told that the acknowledgement was accepted.
    Taking(LeaseProof),
    Working {
        proof: LeaseProof,
        seq: u64,
        done_at: Millis,
    },
    /// The result is fixed, and sent until it is answered.
    Ending(Box<Command>),
}

pub struct Agent {
    pub kind: Kind,
    pub principal: Text,
    pub runner: Text,
    pub capabilities: Capabilities,
    pub up: bool,
    pub cut_off: bool,
    pub phase: Phase,
    /// Counts restarts, so that a dead agent's timer does not wake the new one.
    pub life: u64,
    /// Its last request for work.
    nonce: u64,
    /// Leases it once held: material for replays.
    pub old: Vec<LeaseProof>,
    /// The holder's side of its lease; only honest agents obey it.
    holder: Option<Holder>,
    asked_at: Millis,
    /// When the acknowledgement was first sent: repeats are answered like the first (I16), so the
    /// time that the answer gives counts from there.
    first_ack: Option<Millis>,
}

/// What an agent's result says.
fn ending(proof: LeaseProof, rng: &mut Rng) -> Command {
    let (status, exit, cause) = match rng.below(20) {
        0..12 => (Status::Succeeded, Some(0), None),
        12..16 => (Status::Failed, Some(1), Some(Cause::Flaky)),
        16 => (Status::Failed, Some(2), None),
        17 => (Status::TimedOut, None, Some(Cause::StepTimeout)),
        18 => (Status::Failed, None, Some(Cause::AgentShutdown)),
        _ => (Status::Succeeded, Some(3), None),
    };
    let report = Report {
        exit_code: exit,
        ..Report::default()
    };
    Command::Complete {
        proof,
        digest: rng.digest(),
        status,
        cause,
        report: Box::new(report),
    }
}

fn beat(proof: LeaseProof, seq: Option<u64>, uploading: bool) -> Command {
    Command::Heartbeat {
        proof,
        seq,
        progress: Progress::default(),
        uploading,
    }
}

fn cancel_ack(proof: LeaseProof, rng: &mut Rng) -> Command {
    Command::CancelAck {
        proof,
        digest: rng.digest(),
        report: Box::default(),
    }
}

impl Agent {
    pub fn new(n: usize, kind: Kind, tags: &[&str]) -> Agent {
        Agent {
            kind,
            principal: format!("principal-{n}").into(),
            runner: format!("agent-{n}/1").into(),
            capabilities: Capabilities::parse(tags.iter().copied()),
            up: true,
            cut_off: false,
            phase: Phase::Idle,
            life: 0,
            nonce: 0,
            old: Vec::new(),
            holder: None,
            asked_at: Millis::ZERO,
            first_ack: None,
        }
    }

    /// The job it executes at this moment, if it is an agent that stops when it must.
    pub fn executes(&self, now: Millis) -> Option<JobId> {
        let Phase::Working { proof, .. } = &self.phase else {
            return None;
        };
        let valid = self
            .holder
            .as_ref()
            .is_some_and(|holder| now < holder.valid_until());
        let working = self.kind == Kind::Honest && self.up && valid;
        working.then_some(proof.key.attempt.job)
    }

    /// Whether the holder's rules still let it speak about its lease.
    fn may_go_on(&mut self, now: Millis) -> bool {
        let Some(holder) = &mut self.holder else {
            return true;
        };
        match holder.todo(now) {
            Todo::Release(_) => false,
            Todo::StopWork(why) | Todo::KillWork(why) => !why.is_loss(),
            _ => true,
        }
    }

    pub fn crash(&mut self) {
        self.up = false;
        self.life += 1;
        self.let_go();
    }

    /// How long until it speaks again.
    pub fn pause(&self, rng: &mut Rng) -> i64 {
        match self.kind {
            Kind::Slow => rng.between(1_000, 20_000),
            _ => rng.between(600, 2_400),
        }
    }

    /// What it says now.
    pub fn speak(&mut self, now: Millis, rng: &mut Rng) -> Option<Ask> {
        if self.kind == Kind::Honest && !self.may_go_on(now) {
            self.let_go();
        }
        let honest = self.kind != Kind::Liar || rng.coin();
        if let (Phase::Working { proof, done_at, .. }, true) = (&self.phase, honest)
            && now >= *done_at
        {
            self.phase = Phase::Ending(Box::new(ending(proof.clone(), rng)));
        }
        if self.kind == Kind::Liar && rng.per_mille(300) && matches!(self.phase, Phase::Taking(_)) {
            // Too early: the acknowledgement is still to come.
            return self.held().map(|proof| Ask::Do(ending(proof, rng)));
        }
        match &mut self.phase {
            Phase::Idle => {
                self.nonce += 1;
                self.asked_at = now;
                Some(Ask::Lease {
                    principal: self.principal.clone(),
                    runner: self.runner.clone(),
                    capabilities: self.capabilities.clone(),
                    nonce: self.nonce,
                })
            }
            _ if self.kind == Kind::Deaf => None,
            // Asks again now and then, as one does that missed its grant (A67) or forgot (RP-9).
            Phase::Taking(_) | Phase::Working { .. } if rng.per_mille(30) => {
                let former = std::mem::replace(&mut self.phase, Phase::Idle);
                let asked = self.speak(now, rng);
                self.phase = former;
                asked
            }
            Phase::Taking(proof) => Some(Ask::Do(if rng.per_mille(40) {
                Command::Decline {
                    proof: proof.clone(),
                }
            } else {
                self.first_ack.get_or_insert(now);
                Command::AckLease {
                    proof: proof.clone(),
                    job: proof.key.attempt.job,
                }
            })),
            Phase::Working { proof, seq, .. } => {
                *seq += 1;
                let number = (!rng.per_mille(200)).then_some(*seq);
                if let Some(holder) = &mut self.holder {
                    holder.heartbeat_sent(now);
                }
                Some(Ask::Do(beat(proof.clone(), number, rng.per_mille(250))))
            }
            Phase::Ending(command) => Some(Ask::Do((**command).clone())),
        }
    }

    pub fn held(&self) -> Option<LeaseProof> {
        match &self.phase {
            Phase::Taking(proof) | Phase::Working { proof, .. } => Some(proof.clone()),
            Phase::Ending(command) => match &**command {
                Command::Complete { proof, .. } | Command::CancelAck { proof, .. } => {
                    Some(proof.clone())
                }
                _ => None,
            },
            Phase::Idle => None,
        }
    }

    /// A lie: somebody's lease, an old one, an invented one, in a message of any kind.
    pub fn lie(&mut self, stolen: &[LeaseProof], rng: &mut Rng) -> Option<Command> {
        let from = if rng.coin() { stolen } else { &self.old };
        let mut proof = rng.pick(from).cloned().or_else(|| self.held())?;
        match rng.below(6) {
            0 => proof.token = rng.digest(),
            1 => proof.principal = self.principal.clone(),
            2 => proof.runner = self.runner.clone(),
            3 => proof.key.epoch = proof.key.epoch.wrapping_add(1),
            _ => {
                proof.principal = self.principal.clone();
                proof.runner = self.runner.clone();
            }
        }
        Some(match rng.below(5) {
            0 => Command::AckLease {
                job: proof.key.attempt.job,
                proof,
            },
            1 => beat(proof, Some(rng.below(5)), rng.coin()),
            2 => cancel_ack(proof, rng),
            3 => Command::Decline { proof },
            _ => ending(proof, rng),
        })
    }

    /// Another result for a lease whose result is already on its way.
    pub fn contradict(&mut self, rng: &mut Rng) -> Option<Command> {
        let proof = if rng.coin() {
            self.held()
        } else {
            self.old.last().cloned()
        };
        proof.map(|proof| ending(proof, rng))
    }

    /// Hears the answer to a request of its own.
    pub fn hear(&mut self, sent: &Sent, answer: &Answer, now: Millis, rng: &mut Rng) {
        let ask = &sent.ask;
        match (ask, answer) {
            (Ask::Lease { nonce, .. }, Answer::Granted(reply, token)) => {
                let Reply::Granted {
                    lease,
                    ttl,
                    max_runtime,
                    ..
                } = reply
                else {
                    return;
                };
                let waits = matches!(self.phase, Phase::Idle | Phase::Taking(_));
                if waits && *nonce == self.nonce {
                    self.let_go();
                    let terms = Terms {
                        ttl: *ttl,
                        heartbeat_interval: Span::secs(2),
                        max_runtime: *max_runtime,
                        grace: Span::secs(1),
                    };
                    self.holder = Some(Holder::new(terms, self.asked_at));
                    self.phase = Phase::Taking(LeaseProof {
                        key: *lease,
                        token: *token,
                        principal: self.principal.clone(),
                        runner: self.runner.clone(),
                        speaker: delta_core::rights::Speaker::anybody(),
                    });
                }
            }
            (Ask::Do(command), answer) => {
                self.hear_about(command, answer, now, rng);
                self.tell_holder(sent, command, answer, now);
            }
            _ => {}
        }
    }

    fn hear_about(&mut self, command: &Command, answer: &Answer, now: Millis, rng: &mut Rng) {
        let Some(held) = self.held() else { return };
        let about = match command {
            Command::AckLease { proof, .. }
            | Command::Heartbeat { proof, .. }
            | Command::Complete { proof, .. }
            | Command::CancelAck { proof, .. }
            | Command::Decline { proof } => proof,
            _ => return,
        };
        if *about != held {
            return;
        }
        match answer {
            Answer::Reply(Reply::Acknowledged { .. }) if matches!(self.phase, Phase::Taking(_)) => {
                self.phase = Phase::Working {
                    proof: held,
                    seq: 0,
                    done_at: Millis(now.0 + rng.between(0, 12_000)),
                };
            }
            Answer::Reply(Reply::Renewed {
                cancel: Some(_), ..
            }) if matches!(self.phase, Phase::Working { .. }) && rng.per_mille(800) => {
                self.phase = Phase::Ending(Box::new(cancel_ack(held, rng)));
            }
            Answer::Reply(
                Reply::Completed
                | Reply::CompletedAfterCancel
                | Reply::CancelAcknowledged
                | Reply::Stale(_),
            ) => self.let_go(),
            Answer::Reply(Reply::Done { .. }) => self.let_go(),
            Answer::Reply(Reply::NotAcknowledged) => self.phase = Phase::Taking(held),
            _ => {}
        }
    }

    /// Keeps the holder's machine informed, on the agent's own clock.
    fn tell_holder(&mut self, sent: &Sent, command: &Command, answer: &Answer, now: Millis) {
        let (Some(holder), Answer::Reply(reply)) = (&mut self.holder, answer) else {
            return;
        };
        match (command, reply) {
            (Command::AckLease { .. }, Reply::Acknowledged { ttl }) => {
                let sent_at = self.first_ack.unwrap_or(sent.at);
                let (ttl, cancel) = (*ttl, None);
                holder.acknowledged(sent_at, HolderAnswer::Renewed { ttl, cancel }, now);
                holder.work_started();
            }
            (Command::Heartbeat { .. }, Reply::Renewed { ttl, cancel }) => {
                let (ttl, cancel) = (*ttl, cancel.as_ref().map(|notice| notice.remaining));
                holder.heartbeat_answered(sent.at, HolderAnswer::Renewed { ttl, cancel }, now);
            }
            _ => {}
        }
    }

    fn let_go(&mut self) {
        self.holder = None;
        self.first_ack = None;
        if let Some(proof) = self.held() {
            self.old.push(proof);
        }
        self.phase = Phase::Idle;
    }
}
