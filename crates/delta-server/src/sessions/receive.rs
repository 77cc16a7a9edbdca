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
use delta_wire::agent::proto::agent_message::Message as FromAgent;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::server_message::Message as ToAgent;
use delta_wire::agent::proto::{
    AgentMessage, AgentStatus, Heartbeat, LeaseRenewal, LeaseRenewalAck, LogChunk, ProtocolError,
    ResultStream, RunComplete, RunStatus, StaleLease, WorkAccepted, WorkRejected,
};
use delta_wire::runner::{Complete, CompleteStatus, LeaseToken, MAX_SUMMARY_BYTES, Reason};
use prost::Message as _;

use super::execution_id;
use super::held_lease::{Belongs, Blame, Claim, LastWord, LeaseAction, LeaseEvent};
use super::lease_table::{SessionLease, SessionLeaseActions, SessionLeaseEvent, SessionMessage};
use super::logs::{LogOrder, LogPiece};
use super::outgoing::MAX_WAITING;
use super::register::MAX_LISTED;
use super::registry::AgentActivity;
use super::results::TestsBlamed;
use super::runners;
use super::session::Session;
use super::to_command::{
    about, cancel_ack, complete, cut, empty_complete, progress, stopped_itself,
};
use crate::runner_commands;
use crate::test_history::{call_flaky, may_be_flaky};
use crate::writer::{Receipt, Ticket, TicketKind};

/// Answers that one frame may bring up, with what waits already: several times what an honest agent
/// asks for, and a few megabytes.
const MAX_ANSWERS: usize = 3 * MAX_WAITING;

/// Why a message is not obeyed.
pub(super) enum MessageRefused {
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
pub(super) struct ProvenLease {
    pub lease: LeaseKey,
    pub token: LeaseToken,
    pub proof: LeaseProof,
}

pub(super) type Commands = Vec<(Ticket, Receipt, Command)>;

impl Session {
    /// Takes everything a frame holds, in order.
    pub fn receive(&mut self, received: Received) {
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
                }) => self.receive_one(said, &mut commands),
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

    fn receive_one(&mut self, said: FromAgent, commands: &mut Commands) {
        let (kind, run_id) = about(&said);
        let heard = match said {
            FromAgent::Register(_) => Err(MessageRefused::Invalid(
                "register",
                "this agent is registered",
            )),
            FromAgent::Heartbeat(heartbeat) => self.heartbeat(heartbeat, commands),
            FromAgent::WorkAccepted(accepted) => self.accepted(&accepted, commands),
            FromAgent::WorkRejected(rejected) => self.rejected(&rejected, commands),
            FromAgent::Result(result) => self.result(result, commands),
            FromAgent::DrainComplete(complete) => {
                self.drained(&complete.drain_id);
                Ok(())
            }
            FromAgent::CreateUpload(wanted) => self.create_upload(wanted),
        };
        if let Err(refused) = heard {
            self.refuse(kind, run_id, &refused);
        }
    }

    pub(super) fn refuse(&mut self, kind: &'static str, run_id: String, refused: &MessageRefused) {
        let (code, field, words) = match refused {
            MessageRefused::NotNow => {
                return self.outgoing.say(ToAgent::ProtocolError(ProtocolError {
                    message_type: kind.to_owned(),
                    run_id,
                    code: "UNAVAILABLE".to_owned(),
                    field: String::new(),
                    message: "the store does not answer".to_owned(),
                    retryable: true,
                }));
            }
            MessageRefused::Stale => {
                self.app.metrics().stale.inc();
                let reason = Reason::UnknownLease.as_str().to_owned();
                return self
                    .outgoing
                    .say(ToAgent::StaleLease(StaleLease { run_id, reason }));
            }
            MessageRefused::Missing(field) => ("MISSING_FIELD", field, "is missing"),
            MessageRefused::Invalid(field, words) | MessageRefused::NotHere(field, words) => {
                ("INVALID", field, *words)
            }
        };
        // A36: whoever goes on and on is sent away.
        if !matches!(refused, MessageRefused::NotHere(..)) {
            self.offence(field);
        }
        tracing::debug!(agent = %self.who.agent, kind, field, words, "a message is refused");
        self.outgoing.say(ToAgent::ProtocolError(ProtocolError {
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
    ) -> Result<ProvenLease, MessageRefused> {
        if run_id.is_empty() {
            return Err(MessageRefused::Missing("run_id"));
        }
        if lease.is_empty() {
            return Err(MessageRefused::Missing("lease"));
        }
        if !agent_id.is_empty() && *agent_id != *self.who.agent {
            return Err(MessageRefused::Invalid("agent_id", "is another agent's"));
        }
        let token = LeaseToken::from_text(lease).map_err(|_| MessageRefused::Stale)?;
        let key: LeaseKey = token.locator().ok_or(MessageRefused::Stale)?.into();
        if execution_id::lease(run_id) != Some(key) {
            return Err(MessageRefused::Invalid(
                "run_id",
                "does not belong to this lease",
            ));
        }
        let held = self.leases.get(key).ok_or(MessageRefused::Stale)?;
        let speaker = self.who.speaker();
        let proof =
            runner_commands::proof(&token, &self.who.principal, held.runner.clone(), speaker);
        Ok(ProvenLease {
            lease: key,
            token,
            proof: proof.ok_or(MessageRefused::Stale)?,
        })
    }

    /// Whether the lease gives this right, by the one rule, on what this session remembers of it.
    /// How its agent stands is known: the session ends when that changes.
    pub(super) fn given(
        &self,
        proven: &ProvenLease,
        right: Right,
    ) -> Result<LogRight, MessageRefused> {
        let now = self.app.writer.now();
        let held = self.leases.get(proven.lease).ok_or(MessageRefused::Stale)?;
        let floor = self.app.writer.shared().lease_floor;
        let bond = held.bond(&self.who.principal.id, now, floor);
        let given = bond.gives(right, &proven.proof, None, now);
        given.map_err(|_| MessageRefused::Stale)
    }

    pub(super) fn receipt(&self) -> Receipt {
        self.app.writer.receive()
    }

    fn accepted(
        &mut self,
        said: &WorkAccepted,
        commands: &mut Commands,
    ) -> Result<(), MessageRefused> {
        let proven = self.proven(&said.run_id, &said.agent_id, &said.lease)?;
        let lease = proven.lease;
        self.leases.step(lease, LeaseEvent::Accepted);
        let command = Command::AckLease {
            proof: proven.proof,
            job: lease.attempt.job,
        };
        commands.push((ticket(TicketKind::Accept, lease), self.receipt(), command));
        Ok(())
    }

    fn rejected(
        &mut self,
        said: &WorkRejected,
        commands: &mut Commands,
    ) -> Result<(), MessageRefused> {
        let proven = self.proven(&said.run_id, &said.agent_id, &said.lease)?;
        let lease = proven.lease;
        let held = self.leases.get(lease);
        let reason = cut(&said.reason, MAX_SUMMARY_BYTES);
        let (kind, command) = if held.is_some_and(SessionLease::is_accepted) {
            // A32: after the acknowledgement only a result can say so.
            let done = Complete {
                status: CompleteStatus::Failed,
                cause: Some(Cause::Declined.name().to_owned()),
                summary: Some(format!("rejected: {reason}")),
                ..empty_complete(&proven)
            };
            (
                TicketKind::Complete,
                runner_commands::complete(proven.proof, &done),
            )
        } else {
            let proof = proven.proof;
            (TicketKind::Decline, Command::Decline { proof })
        };
        self.rest_after_rejection(&reason);
        commands.push((ticket(kind, lease), self.receipt(), command));
        Ok(())
    }

    fn heartbeat(
        &mut self,
        said: Heartbeat,
        commands: &mut Commands,
    ) -> Result<(), MessageRefused> {
        if said.agent_id.is_empty() {
            return Err(MessageRefused::Missing("agent_id"));
        }
        if *said.agent_id != *self.who.agent {
            return Err(MessageRefused::Invalid("agent_id", "is another agent's"));
        }
        let status = match AgentStatus::try_from(said.status) {
            Ok(AgentStatus::Busy) => AgentActivity::Busy,
            Ok(AgentStatus::Draining) => AgentActivity::Draining,
            _ => AgentActivity::Idle,
        };
        if said.leases.len() > MAX_LISTED {
            return Err(MessageRefused::Invalid("leases", "has too many entries"));
        }
        if said.active_runs.len() > MAX_LISTED {
            return Err(MessageRefused::Invalid(
                "active_runs",
                "has too many entries",
            ));
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
        self.take_rest(status == AgentActivity::Draining);
        for renewal in &said.leases {
            self.renewal(renewal, commands);
        }
        self.compare(&said.active_runs);
        Ok(())
    }

    fn renewal(&mut self, said: &LeaseRenewal, commands: &mut Commands) {
        let proven = match self.proven(&said.run_id, "", &said.lease) {
            Ok(proven) => proven,
            Err(MessageRefused::Stale) => {
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
        let renewal = LeaseEvent::Renewal(SessionMessage {
            ticket,
            receipt: self.receipt(),
            command,
        });
        let actions = self.leases.step(proven.lease, renewal);
        self.perform(proven.lease, actions, commands);
    }

    /// Something happened to a lease: what follows from it is done.
    pub fn happened(&mut self, lease: LeaseKey, event: SessionLeaseEvent) {
        let actions = self.leases.step(lease, event);
        self.carry_out(lease, actions);
    }

    /// Does what a lease asks for, now.
    pub(super) fn carry_out(&mut self, lease: LeaseKey, actions: SessionLeaseActions) {
        let mut commands = Commands::new();
        self.perform(lease, actions, &mut commands);
        self.command(commands);
    }

    /// Does what a lease asks for, with what else is to be sent to the writer.
    fn perform(&mut self, lease: LeaseKey, actions: SessionLeaseActions, commands: &mut Commands) {
        for action in actions.into_iter().flatten() {
            match action {
                LeaseAction::StoreLog => self.log_order(LogOrder::Store(lease)),
                LeaseAction::SettleResults(claim) => self.settle_results(lease, claim),
                LeaseAction::ListArtifacts => self.list_artifacts(lease),
                LeaseAction::Submit(mut message, blame) => {
                    if blame == Blame::FlakyTests {
                        call_flaky(&mut message.command);
                    }
                    commands.push((message.ticket, message.receipt, message.command));
                }
                LeaseAction::SubmitRenewal(message) => {
                    commands.push((message.ticket, message.receipt, message.command));
                }
                LeaseAction::RefuseForArtifacts => {
                    let words = "is more than the artifacts that are here as a whole";
                    let refused = MessageRefused::NotHere("run_complete.artifacts", words);
                    self.refuse("ResultStream", execution_id::name(lease), &refused);
                }
                LeaseAction::RefuseForDisk => {
                    let name = execution_id::name(lease);
                    self.refuse("ResultStream", name, &MessageRefused::NotNow);
                }
                // Done by the table.
                LeaseAction::FreeSlot | LeaseAction::Forget => {}
            }
        }
    }

    /// Compares what the agent says it holds with what it holds (A63).
    fn compare(&mut self, active_runs: &[String]) {
        let mut listed = HashSet::new();
        for run_id in active_runs {
            match execution_id::lease(run_id).filter(|key| self.leases.get(*key).is_some()) {
                Some(lease) => drop(listed.insert(lease)),
                None => self.refuse("Heartbeat", cut(run_id, 256), &MessageRefused::Stale),
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
                self.leases.forget(lease);
                continue;
            }
            let command = Command::Revoke { lease, why };
            // Lost only with the server's stop; the next heartbeat tries again.
            let _ = self.app.writer.send_duty(now, command);
        }
    }

    fn result(
        &mut self,
        said: ResultStream,
        commands: &mut Commands,
    ) -> Result<(), MessageRefused> {
        let last_word = matches!(said.payload, Some(Payload::RunComplete(_)));
        let proven = match self.proven(&said.run_id, &said.agent_id, &said.lease) {
            Err(MessageRefused::Stale) if last_word => return self.look_up_later(said),
            proven => proven?,
        };
        match said.payload {
            None => Err(MessageRefused::Missing("payload")),
            Some(Payload::LogChunk(chunk)) => self.log_chunk(&proven, chunk),
            Some(Payload::RunComplete(complete)) => {
                let receipt = self.receipt();
                self.run_complete(proven, &complete, receipt, commands)
            }
            Some(Payload::TestResult(result)) => self.test_result(&proven, result),
            Some(Payload::Artifact(artifact)) => self.artifact(&proven, artifact),
        }
    }

    /// Log bytes are fenced like everything else: those of a lease that is over are refused,
    /// but for what its completion declared (I25).
    fn log_chunk(&mut self, proven: &ProvenLease, chunk: LogChunk) -> Result<(), MessageRefused> {
        let given = self.given(proven, Right::Log)?;
        if !given.covers(chunk.offset.unwrap_or(u64::MAX), chunk.data.len()) {
            return Err(MessageRefused::Stale);
        }
        self.log_order(LogOrder::Append(LogPiece {
            lease: proven.lease,
            offset: chunk.offset,
            data: chunk.data,
        }));
        Ok(())
    }

    pub(super) fn run_complete(
        &mut self,
        proven: ProvenLease,
        said: &RunComplete,
        receipt: Receipt,
        commands: &mut Commands,
    ) -> Result<(), MessageRefused> {
        let lease = proven.lease;
        let status = RunStatus::try_from(said.status).unwrap_or_default();
        let word = |kind, receipt, command| SessionMessage {
            ticket: ticket(kind, lease),
            receipt,
            command,
        };
        let (message, instead) = match status {
            RunStatus::Unspecified => return Err(MessageRefused::Missing("run_complete.status")),
            RunStatus::Cancelled => {
                let (ack, instead) = (cancel_ack(&proven, said), stopped_itself(&proven, said));
                let instead = runner_commands::complete(proven.proof.clone(), &instead);
                let instead = word(TicketKind::Complete, self.receipt(), instead);
                let ack = runner_commands::cancel_ack(proven.proof, &ack);
                (word(TicketKind::CancelAck, receipt, ack), Some(instead))
            }
            status => {
                let done = complete(&proven, said, status);
                let done = runner_commands::complete(proven.proof, &done);
                (word(TicketKind::Complete, receipt, done), None)
            }
        };
        self.note_disk_room(lease, &message.command);
        // Its bytes may have come in an earlier session.
        let has_log = self.writes_logs() || said.log_length.is_some_and(|length| length > 0);
        // Tests are no reason where the agent saw another one.
        let blamed = may_be_flaky(&message.command) && said.failed_by_tests != Some(false);
        let tests = if blamed {
            TestsBlamed::Perhaps
        } else {
            TestsBlamed::No
        };
        let word = LeaseEvent::LastWord(Box::new(LastWord {
            claim: claim(&message.command),
            message,
            instead: instead.map(Box::new),
            log_length: said.log_length.unwrap_or(0),
            artifacts: said.artifacts,
            log: if has_log { Belongs::Yes } else { Belongs::No },
            results: self.results_claim(lease, said, tests),
        }));
        let actions = self.leases.step(lease, word);
        self.perform(lease, actions, commands);
        Ok(())
    }

    /// What a result says of the agent's disk. One that is repeated says nothing new.
    fn note_disk_room(&mut self, lease: LeaseKey, command: &Command) {
        let held = self.leases.get(lease);
        let first = held.is_some_and(|held| held.ended().is_none() && !held.has_last_word());
        match command {
            Command::Complete {
                cause: Some(Cause::DiskFull),
                ..
            } if first => self.rest_after_full_disk(),
            Command::Complete {
                status: delta_core::command::Status::Succeeded,
                ..
            } => self.intake.disk_has_room(),
            _ => {}
        }
    }

    fn drained(&mut self, drain_id: &str) {
        let ours = self.intake.drain().is_some_and(|id| **id == *drain_id);
        if ours {
            tracing::info!(agent = %self.who.agent, drain_id, "drained");
            let now = self.app.writer.now();
            self.note(|present| {
                present.status = AgentActivity::Draining;
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

fn claim(command: &Command) -> Claim {
    match command {
        Command::Complete {
            status: delta_core::command::Status::Succeeded,
            ..
        } => Claim::Success,
        _ => Claim::Other,
    }
}

fn ticket(kind: TicketKind, lease: LeaseKey) -> Ticket {
    Ticket {
        kind,
        lease,
        seq: None,
    }
}
