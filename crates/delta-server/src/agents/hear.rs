//! What an agent says, turned into commands of the core: the same ones as the Runner Protocol's
//! (D6). A message that lacks a field is answered with an error that names it, and changes nothing
//! (EP-39).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use delta_core::command::LeaseProof;
use delta_core::lease::Revocation;
use delta_core::rights::{LogRight, Right};
use delta_core::{Cause, Command, LeaseKey};
use delta_wire::agent::frame::Received;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AgentMessage, AgentStatus, Heartbeat, LeaseRenewal, LeaseRenewalAck, LogChunk, ProtocolError,
    ResultStream, RunComplete, RunStatus, StaleLease, WorkAccepted, WorkRejected,
};
use delta_wire::runner::{Complete, CompleteStatus, LeaseToken, MAX_SUMMARY_BYTES, Reason};
use prost::Message as _;

use super::execution;
use super::leases::Word;
use super::logs::{Chunk, LogOrder};
use super::meaning::{cancel_ack, complete, cut, empty_complete, progress, stopped_itself};
use super::outgoing::MAX_WAITING;
use super::register::MAX_LISTED;
use super::registry::Status;
use super::runners;
use super::session::Session;
use crate::holder;
use crate::standing::{call_flaky, may_be_flaky};
use crate::writer::{Receipt, Ticket, TicketKind};

/// Answers that one frame may bring up, with what waits already: several times what an honest agent
/// asks for, and a few megabytes.
const MAX_ANSWERS: usize = 3 * MAX_WAITING;

/// Why a message is not obeyed.
pub(super) enum Refused {
    Missing(&'static str),
    Invalid(&'static str, &'static str),
    /// In order, and not for this server.
    NotHere(&'static str, &'static str),
    /// Not a lease of this agent's.
    Stale,
    /// Whether it is could not be found out: the store is away.
    NotNow,
}

/// The lease a message is about, and the proof it shows.
pub(super) struct Proven {
    pub lease: LeaseKey,
    pub token: LeaseToken,
    pub proof: LeaseProof,
}

pub(super) type Commands = Vec<(Ticket, Receipt, Command)>;

impl Session {
    /// Takes everything a frame holds, in order.
    pub fn hear(&mut self, received: Received) {
        self.heard();
        if received.garbled {
            return self.offence("garbled frame");
        }
        let mut commands = Commands::new();
        for bytes in received.messages {
            // One frame may hold more than an honest agent ever says.
            if self.outgoing.len() + commands.len() > MAX_ANSWERS {
                let words = "too many messages at once";
                self.end = Some(tonic::Status::resource_exhausted(words));
            }
            if self.end.is_some() {
                break;
            }
            match AgentMessage::decode(bytes) {
                Ok(AgentMessage {
                    message: Some(said),
                }) => self.hear_one(said, &mut commands),
                Ok(_) => self.offence("unknown message"),
                Err(_) => self.offence("garbled message"),
            }
        }
        self.command(commands);
    }

    pub(super) fn command(&mut self, commands: Commands) {
        if commands.is_empty() {
            return;
        }
        let tickets: Vec<Ticket> = commands.iter().map(|(ticket, ..)| *ticket).collect();
        let said = self
            .app
            .writer
            .session_says(&self.outbox, commands.into_iter());
        match said {
            Ok(()) => {
                self.in_flight += tickets.len();
                // A slot whose work is over is asked for in the same batch.
                self.ask_for_work();
            }
            Err(why) => {
                for ticket in tickets {
                    self.not_done(ticket, &why);
                }
            }
        }
    }

    fn hear_one(&mut self, said: Said, commands: &mut Commands) {
        let (kind, run_id) = about(&said);
        let heard = match said {
            Said::Register(_) => Err(Refused::Invalid("register", "this agent is registered")),
            Said::Heartbeat(heartbeat) => self.heartbeat(heartbeat, commands),
            Said::WorkAccepted(accepted) => self.accepted(&accepted, commands),
            Said::WorkRejected(rejected) => self.rejected(&rejected, commands),
            Said::Result(result) => self.result(result, commands),
            Said::DrainComplete(complete) => {
                self.drained(&complete.drain_id);
                Ok(())
            }
            Said::CreateUpload(wanted) => self.create_upload(wanted),
        };
        if let Err(refused) = heard {
            self.refuse(kind, run_id, &refused);
        }
    }

    pub(super) fn refuse(&mut self, kind: &'static str, run_id: String, refused: &Refused) {
        let (code, field, words) = match refused {
            Refused::NotNow => {
                return self.outgoing.say(Say::ProtocolError(ProtocolError {
                    message_type: kind.to_owned(),
                    run_id,
                    code: "UNAVAILABLE".to_owned(),
                    field: String::new(),
                    message: "the store does not answer".to_owned(),
                    retryable: true,
                }));
            }
            Refused::Stale => {
                self.app.metrics().stale.inc();
                let reason = Reason::UnknownLease.as_str().to_owned();
                return self
                    .outgoing
                    .say(Say::StaleLease(StaleLease { run_id, reason }));
            }
            Refused::Missing(field) => ("MISSING_FIELD", field, "is missing"),
            Refused::Invalid(field, words) | Refused::NotHere(field, words) => {
                ("INVALID", field, *words)
            }
        };
        // A36: whoever goes on and on is sent away.
        if !matches!(refused, Refused::NotHere(..)) {
            self.offence(field);
        }
        tracing::debug!(agent = %self.who.agent, kind, field, words, "a message is refused");
        self.outgoing.say(Say::ProtocolError(ProtocolError {
            message_type: kind.to_owned(),
            run_id,
            code: code.to_owned(),
            field: (*field).to_owned(),
            message: format!("{field}: {words}"),
            retryable: false,
        }));
    }

    /// The lease that a message names and proves, if this agent holds it.
    pub(super) fn proven(
        &self,
        run_id: &str,
        agent_id: &str,
        lease: &str,
    ) -> Result<Proven, Refused> {
        if run_id.is_empty() {
            return Err(Refused::Missing("run_id"));
        }
        if lease.is_empty() {
            return Err(Refused::Missing("lease"));
        }
        if !agent_id.is_empty() && *agent_id != *self.who.agent {
            return Err(Refused::Invalid("agent_id", "is another agent's"));
        }
        let token = LeaseToken::from_text(lease).map_err(|_| Refused::Stale)?;
        let key: LeaseKey = token.locator().ok_or(Refused::Stale)?.into();
        if execution::lease(run_id) != Some(key) {
            return Err(Refused::Invalid("run_id", "does not belong to this lease"));
        }
        let held = self.leases.get(key).ok_or(Refused::Stale)?;
        let speaker = self.who.speaker();
        let proof = holder::proof(&token, &self.who.principal, held.runner.clone(), speaker);
        Ok(Proven {
            lease: key,
            token,
            proof: proof.ok_or(Refused::Stale)?,
        })
    }

    /// Whether the lease gives this right, by the one rule, on what this session remembers of it.
    /// How its agent stands is known: the session ends when that changes.
    pub(super) fn given(&self, proven: &Proven, right: Right) -> Result<LogRight, Refused> {
        let now = self.app.writer.now();
        let held = self.leases.get(proven.lease).ok_or(Refused::Stale)?;
        let floor = self.app.writer.shared().lease_floor;
        let bond = held.bond(&self.who.principal.id, now, floor);
        let given = bond.gives(right, &proven.proof, None, now);
        given.map_err(|_| Refused::Stale)
    }

    pub(super) fn receipt(&self) -> Receipt {
        self.app.writer.receive()
    }

    fn accepted(&mut self, said: &WorkAccepted, commands: &mut Commands) -> Result<(), Refused> {
        let proven = self.proven(&said.run_id, &said.agent_id, &said.lease)?;
        let lease = proven.lease;
        if let Some(held) = self.leases.get_mut(lease) {
            held.accepted = true;
        }
        let command = Command::AckLease {
            proof: proven.proof,
            job: lease.attempt.job,
        };
        commands.push((ticket(TicketKind::Accept, lease), self.receipt(), command));
        Ok(())
    }

    fn rejected(&mut self, said: &WorkRejected, commands: &mut Commands) -> Result<(), Refused> {
        let proven = self.proven(&said.run_id, &said.agent_id, &said.lease)?;
        let lease = proven.lease;
        let accepted = self.leases.get(lease).is_some_and(|held| held.accepted);
        let (kind, command) = if accepted {
            // A32: after the acknowledgement only a result can say so.
            let reason = cut(&said.reason, MAX_SUMMARY_BYTES);
            let done = Complete {
                status: CompleteStatus::Failed,
                cause: Some(Cause::Declined.name().to_owned()),
                summary: Some(format!("rejected: {reason}")),
                ..empty_complete(&proven)
            };
            (TicketKind::Complete, holder::complete(proven.proof, &done))
        } else {
            let proof = proven.proof;
            (TicketKind::Decline, Command::Decline { proof })
        };
        self.rest_after_rejection();
        commands.push((ticket(kind, lease), self.receipt(), command));
        Ok(())
    }

    fn heartbeat(&mut self, said: Heartbeat, commands: &mut Commands) -> Result<(), Refused> {
        if said.agent_id.is_empty() {
            return Err(Refused::Missing("agent_id"));
        }
        if *said.agent_id != *self.who.agent {
            return Err(Refused::Invalid("agent_id", "is another agent's"));
        }
        let status = match AgentStatus::try_from(said.status) {
            Ok(AgentStatus::Busy) => Status::Busy,
            Ok(AgentStatus::Draining) => Status::Draining,
            _ => Status::Idle,
        };
        if said.leases.len() > MAX_LISTED {
            return Err(Refused::Invalid("leases", "has too many entries"));
        }
        if said.active_runs.len() > MAX_LISTED {
            return Err(Refused::Invalid("active_runs", "has too many entries"));
        }
        let runners = runners::heard(&said.runners);
        if let Some(pools) = &runners {
            self.pools_are(pools);
        }
        self.note(|present| {
            present.status = status;
            // Nothing said is as it was.
            present.runners = runners.unwrap_or_else(|| std::mem::take(&mut present.runners));
        });
        self.take_rest(status == Status::Draining);
        for renewal in &said.leases {
            self.renewal(renewal, commands);
        }
        self.compare(&said.active_runs);
        Ok(())
    }

    fn renewal(&mut self, said: &LeaseRenewal, commands: &mut Commands) {
        let proven = match self.proven(&said.run_id, "", &said.lease) {
            Ok(proven) => proven,
            Err(Refused::Stale) => {
                self.app.metrics().stale.inc();
                return self.outgoing.renewed(LeaseRenewalAck {
                    run_id: cut(&said.run_id, 256),
                    stale: true,
                    reason: Reason::UnknownLease.as_str().to_owned(),
                    seq: said.seq,
                    ..Default::default()
                });
            }
            Err(refused) => return self.refuse("Heartbeat", cut(&said.run_id, 256), &refused),
        };
        let ticket = Ticket {
            kind: TicketKind::Renew,
            lease: proven.lease,
            seq: said.seq,
        };
        let command = Command::Heartbeat {
            proof: proven.proof,
            seq: said.seq,
            progress: progress(said),
            uploading: said.uploading,
        };
        let receipt = self.receipt();
        if let Some(held) = self.leases.get_mut(proven.lease) {
            if held.renewing {
                held.renew_again = Some(Box::new(Word {
                    ticket,
                    receipt,
                    command,
                }));
                return;
            }
            held.renewing = true;
        }
        commands.push((ticket, receipt, command));
    }

    /// A renewal was answered: the newest that came meanwhile is next.
    pub fn renewal_answered(&mut self, lease: LeaseKey) {
        let Some(held) = self.leases.get_mut(lease) else {
            return;
        };
        held.renewing = false;
        if let Some(next) = held.renew_again.take() {
            held.renewing = true;
            self.command(vec![(next.ticket, next.receipt, next.command)]);
        }
    }

    /// Compares what the agent says it holds with what it holds (A63).
    fn compare(&mut self, active_runs: &[String]) {
        let mut listed = HashSet::new();
        for run_id in active_runs {
            match execution::lease(run_id).filter(|key| self.leases.get(*key).is_some()) {
                Some(lease) => drop(listed.insert(lease)),
                None => self.refuse("Heartbeat", cut(run_id, 256), &Refused::Stale),
            }
        }
        let interval = self.app.writer.shared().settings.heartbeat_interval;
        let interval = Duration::from_millis(interval.0.unsigned_abs());
        for lease in self.leases.disowned(&listed, interval, Instant::now()) {
            tracing::warn!(agent = %self.who.agent, attempt = %lease.attempt, "disowned");
            let why = Revocation::Disowned;
            let now = self.app.writer.now();
            // One that nobody renews any more and whose time is over needs no revocation, and its
            // end may have gone unheard: whether its slot is free is judged when it is granted.
            if self.leases.get(lease).is_some_and(|held| now >= held.until) {
                self.leases.over(lease);
                continue;
            }
            let command = Command::Revoke { lease, why };
            // Lost only with the server's stop; the next heartbeat tries again.
            let _ = self.app.writer.send_duty(now, command);
        }
    }

    fn result(&mut self, said: ResultStream, commands: &mut Commands) -> Result<(), Refused> {
        let last_word = matches!(said.payload, Some(Payload::RunComplete(_)));
        let proven = match self.proven(&said.run_id, &said.agent_id, &said.lease) {
            Err(Refused::Stale) if last_word => return self.look_up_later(said),
            proven => proven?,
        };
        match said.payload {
            None => Err(Refused::Missing("payload")),
            Some(Payload::LogChunk(chunk)) => self.log_chunk(&proven, chunk),
            Some(Payload::RunComplete(complete)) => {
                let receipt = self.receipt();
                self.run_complete(proven, &complete, receipt, commands)
            }
            Some(Payload::TestResult(result)) => self.test_result(&proven, result),
            Some(Payload::Artifact(artifact)) => self.artifact(&proven, artifact),
        }
    }

    /// Log bytes are fenced like everything else (D4): those of a lease that is over are refused,
    /// but for what its completion declared (I25).
    fn log_chunk(&mut self, proven: &Proven, chunk: LogChunk) -> Result<(), Refused> {
        let given = self.given(proven, Right::Log)?;
        if !given.covers(chunk.offset.unwrap_or(u64::MAX), chunk.data.len()) {
            return Err(Refused::Stale);
        }
        self.log_order(LogOrder::Append(Chunk {
            lease: proven.lease,
            offset: chunk.offset,
            data: chunk.data,
        }));
        Ok(())
    }

    pub(super) fn run_complete(
        &mut self,
        proven: Proven,
        said: &RunComplete,
        receipt: Receipt,
        commands: &mut Commands,
    ) -> Result<(), Refused> {
        let lease = proven.lease;
        let status = RunStatus::try_from(said.status).unwrap_or_default();
        if let Some(held) = self.leases.get_mut(lease) {
            held.declared = said.log_length.unwrap_or(0);
        }
        let (kind, command) = match status {
            RunStatus::Unspecified => return Err(Refused::Missing("run_complete.status")),
            RunStatus::Cancelled => {
                let (ack, instead) = (cancel_ack(&proven, said), stopped_itself(&proven, said));
                let instead = holder::complete(proven.proof.clone(), &instead);
                if let Some(held) = self.leases.get_mut(lease) {
                    held.unless_canceled = Some(Box::new(instead));
                }
                (
                    TicketKind::CancelAck,
                    holder::cancel_ack(proven.proof, &ack),
                )
            }
            status => {
                let done = complete(&proven, said, status);
                (TicketKind::Complete, holder::complete(proven.proof, &done))
            }
        };
        let ticket = ticket(kind, lease);
        self.hear_of_the_disk(lease, &command);
        // Its bytes may have come in an earlier session.
        let has_log = self.writes_logs() || said.log_length.is_some_and(|length| length > 0);
        // Tests are no reason where the agent saw another one.
        let may_be_flaky = may_be_flaky(&command) && said.failed_by_tests != Some(false);
        let has_results = self.settle_results(lease, said, may_be_flaky);
        let held = self.leases.get_mut(lease);
        let has_artifacts = held.is_some_and(|held| {
            held.counted = said.artifacts;
            held.artifacts |= said.artifacts > 0;
            held.artifacts
        });
        if !has_log && !has_results && !has_artifacts {
            commands.push((ticket, receipt, command));
            return Ok(());
        }
        // Acknowledged means on disk: of log, results and artifacts, too, which the agent may then
        // forget.
        if let Some(held) = self.leases.get_mut(lease) {
            held.waits_for_log = has_log;
            held.waits_for_results = has_results;
            held.last_word = Some(Box::new(Word {
                ticket,
                receipt,
                command,
            }));
        }
        if has_log {
            self.log_order(LogOrder::Store(lease));
        } else if !has_results {
            self.list_artifacts(lease);
        }
        Ok(())
    }

    /// What a result says of the agent's disk. One that is repeated says nothing new.
    fn hear_of_the_disk(&mut self, lease: LeaseKey, command: &Command) {
        let held = self.leases.get(lease);
        let first = held.is_some_and(|held| held.ended.is_none() && held.last_word.is_none());
        match command {
            Command::Complete {
                cause: Some(Cause::DiskFull),
                ..
            } if first => self.rest_after_full_disk(),
            Command::Complete {
                status: delta_core::command::Status::Succeeded,
                ..
            } => self.has_room(),
            _ => {}
        }
    }

    pub fn log_settled(&mut self, lease: LeaseKey) {
        if let Some(held) = self.leases.get_mut(lease) {
            held.waits_for_log = false;
        }
        self.last_word_settled(lease);
    }

    pub fn results_settled(&mut self, lease: LeaseKey, flaky: bool) {
        if let Some(held) = self.leases.get_mut(lease) {
            held.waits_for_results = false;
            if let Some(word) = held.last_word.as_mut().filter(|_| flaky) {
                call_flaky(&mut word.command);
            }
        }
        self.last_word_settled(lease);
    }

    /// Everything a last word was kept back for is on disk: now the word itself.
    fn last_word_settled(&mut self, lease: LeaseKey) {
        let held = self.leases.get_mut(lease);
        let held = held.filter(|held| !held.waits_for_log && !held.waits_for_results);
        if held
            .as_ref()
            .is_some_and(|held| held.artifacts && held.last_word.is_some())
        {
            return self.list_artifacts(lease);
        }
        if let Some(word) = held.and_then(|held| held.last_word.take()) {
            self.command(vec![(word.ticket, word.receipt, word.command)]);
        }
    }

    /// A stop that nobody asked for is the agent's own doing (A34): its result says so. False
    /// where the agent's last word was another.
    pub fn canceled_unasked(&mut self, lease: LeaseKey) -> bool {
        let held = self.leases.get_mut(lease);
        let Some(instead) = held.and_then(|held| held.unless_canceled.take()) else {
            return false;
        };
        let ticket = ticket(TicketKind::Complete, lease);
        self.command(vec![(ticket, self.receipt(), *instead)]);
        true
    }

    fn drained(&mut self, drain_id: &str) {
        let ours = self.drain.as_ref().is_some_and(|id| **id == *drain_id);
        if ours {
            tracing::info!(agent = %self.who.agent, drain_id, "drained");
            let now = self.app.writer.now();
            self.note(|present| {
                present.status = Status::Draining;
                let known = present
                    .drained
                    .as_ref()
                    .is_some_and(|(id, _)| *id == drain_id);
                if !known {
                    present.drained = Some((drain_id.to_owned(), now));
                }
            });
            self.app.agents.note_present(&self.who.agent);
        }
    }
}

fn ticket(kind: TicketKind, lease: LeaseKey) -> Ticket {
    Ticket {
        kind,
        lease,
        seq: None,
    }
}

/// The name of a message and the execution it is about, for errors.
fn about(said: &Said) -> (&'static str, String) {
    match said {
        Said::Register(_) => ("RegisterRequest", String::new()),
        Said::Heartbeat(_) => ("Heartbeat", String::new()),
        Said::WorkAccepted(it) => ("WorkAccepted", cut(&it.run_id, 256)),
        Said::WorkRejected(it) => ("WorkRejected", cut(&it.run_id, 256)),
        Said::Result(it) => match it.payload {
            Some(Payload::Artifact(_)) => ("Artifact", cut(&it.run_id, 256)),
            _ => ("ResultStream", cut(&it.run_id, 256)),
        },
        Said::DrainComplete(_) => ("DrainComplete", String::new()),
        Said::CreateUpload(it) => ("CreateUpload", cut(&it.run_id, 256)),
    }
}
