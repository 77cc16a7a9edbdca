//! What the writer answered, and what happened to leases, in the words of the protocol.

use std::time::{Duration, Instant};

use delta_core::lease::Stale;
use delta_core::rights::Barred;
use delta_core::{Cause, LeaseKey, Refusal, Reply, Span, Text};
use delta_wire::JobSpec;
use delta_wire::agent::proto::server_message::Message as ToAgent;
use delta_wire::agent::proto::{
    AssignWork, CancelWork, CompleteAck, LeaseRenewalAck, LogAck, ProtocolError, Repository,
    StaleLease, TestSpec, WorkAck,
};
use delta_wire::runner::Reason;

use super::execution_id;
use super::held_lease::{Judgement, LeaseAction, LeaseEvent, Origin};
use super::lease_table::{LOG_AFTER_END, SessionLease};
use super::logs::LogWritten;
use super::register::{revoked, superseded};
use super::session::Session;
use crate::not_done::NotDone;
use crate::trace;
use crate::writer::{Answer, Delivered, GrantedLease, News, Ticket, TicketKind, sha256};

impl Session {
    /// Takes what has arrived from the writer.
    pub fn take_deliveries(&mut self) {
        for delivered in self.outbox.take() {
            match delivered {
                Delivered::Answer(ticket, answer) => {
                    self.in_flight = self.in_flight.saturating_sub(1);
                    match answer {
                        Ok(answer) => self.answered(ticket, answer),
                        Err(why) => self.not_done(ticket, &why),
                    }
                    if ticket.kind == TicketKind::Renew {
                        self.happened(ticket.lease, LeaseEvent::RenewalAnswered);
                    }
                }
                Delivered::Lease {
                    slot,
                    answer: Ok(Some(granted)),
                    ..
                } => self.assign(slot, *granted),
                Delivered::Lease { slot, round, .. } => self.leases.not_granted(slot, round),
                Delivered::News(lease, news) => self.news(lease, &news),
            }
        }
        // Once for all of them: everybody's sessions share what is noted.
        self.note(|_| {});
        self.ask_for_work();
    }

    /// A grant. An agent that is to take no work gives it back by not being told (A50, A67).
    fn assign(&mut self, slot: u32, granted: GrantedLease) {
        if self.intake.drain().is_some() || self.end.is_some() {
            return;
        }
        let lease = granted.lease;
        let settings = &self.app.writer.shared().settings;
        let until = self.app.writer.now() + granted.ttl;
        let token = sha256(granted.token.expose().as_bytes());
        self.leases.granted(slot, lease, token, until);
        trace::waited(&self.app, &granted);
        let attempt = lease.attempt;
        let work = AssignWork {
            run_id: execution_id::name(lease),
            priority: granted.priority,
            timeout_seconds: whole_seconds(granted.max_runtime),
            lease: granted.token.expose().to_owned(),
            lease_epoch: lease.epoch,
            attempt: attempt.index,
            job_id: attempt.job.to_string(),
            job_run_id: attempt.run().to_string(),
            lease_ttl_ms: millis(granted.ttl),
            lease_heartbeat_interval_ms: millis(settings.heartbeat_interval),
            accept_within_ms: millis(settings.ack_timeout),
            job_spec: granted.spec.to_string(),
            untrusted: !granted.trusted,
            secret_names: secret_names(granted.trusted, &granted.secrets),
            job_name: granted.name.to_string(),
            repository: granted.origin.repository.map(|url| Repository {
                clone_url: url.to_string(),
                credentials: None,
            }),
            r#ref: text(granted.origin.git_ref),
            commit: text(granted.origin.commit),
            tests: tests(&granted.spec),
            ..Default::default()
        };
        self.outgoing
            .assign(ToAgent::AssignWork(work), granted.delivery);
    }

    fn answered(&mut self, ticket: Ticket, answer: Answer) {
        let lease = ticket.lease;
        match (ticket.kind, answer.reply) {
            (TicketKind::Renew, reply) => self.renewed(ticket, &reply),
            (TicketKind::Accept, Reply::Acknowledged { ttl }) => {
                self.lives_until(lease, ttl);
                self.accepted_work();
                self.outgoing.say(ToAgent::WorkAck(WorkAck {
                    run_id: execution_id::name(lease),
                    accepted: true,
                    lease_ttl_ms: millis(ttl),
                    reason: String::new(),
                }));
            }
            (TicketKind::Decline, Reply::Done { .. }) => {
                self.leases.forget(lease);
                self.outgoing.say(ToAgent::WorkAck(WorkAck {
                    run_id: execution_id::name(lease),
                    ..Default::default()
                }));
            }
            (TicketKind::Complete, Reply::Completed)
            | (TicketKind::CancelAck, Reply::CancelAcknowledged) => {
                self.judged(lease, self.taken());
                self.complete_ack(lease, true, None, "");
            }
            (TicketKind::Complete, Reply::CompletedAfterCancel) => {
                self.judged(lease, self.taken());
                self.complete_ack(lease, false, Some(Reason::CancelRequested), "CANCELED");
            }
            (TicketKind::CancelAck, Reply::CancelNotRequested) => {
                tracing::warn!(agent = %self.who.agent, attempt = %lease.attempt,
                    "the agent ended work that nobody canceled");
                self.judged(lease, Judgement::Unasked);
            }
            (TicketKind::CancelAck, Reply::Stale(Stale::AlreadyFinal)) => {
                if self.judged(lease, Judgement::AlreadyFinal) == Passed::No {
                    self.app.metrics().stale.inc();
                    self.say_stale(lease, Reason::from(Stale::AlreadyFinal));
                }
            }
            (_, Reply::NotAcknowledged) => {
                self.judged(lease, Judgement::NotAcknowledged);
                self.complete_ack(lease, false, Some(Reason::NotAcked), "");
            }
            (_, Reply::Stale(why)) => self.stale(lease, why),
            (kind, reply) => {
                tracing::error!(?kind, ?reply, "the core answered with something else");
            }
        }
    }

    /// The last word was taken; the rest of the log may follow for a while.
    fn taken(&self) -> Judgement {
        let late_log_until = Instant::now() + LOG_AFTER_END;
        Judgement::Final { late_log_until }
    }

    /// The writer's word on a lease's last one. Whether another is passed on for it.
    fn judged(&mut self, lease: LeaseKey, judgement: Judgement) -> Passed {
        let actions = self.leases.step(lease, LeaseEvent::Judged(judgement));
        let passed = match actions[0] {
            Some(LeaseAction::Submit(..)) => Passed::Another,
            _ => Passed::No,
        };
        self.carry_out(lease, actions);
        passed
    }

    fn complete_ack(&mut self, lease: LeaseKey, yes: bool, why: Option<Reason>, status: &str) {
        self.outgoing.say(ToAgent::CompleteAck(CompleteAck {
            run_id: execution_id::name(lease),
            accepted: yes,
            reason: why.map_or_else(String::new, |why| why.as_str().to_owned()),
            final_status: status.to_owned(),
        }));
    }

    fn renewed(&mut self, ticket: Ticket, reply: &Reply) {
        let mut ack = LeaseRenewalAck {
            run_id: execution_id::name(ticket.lease),
            seq: ticket.seq,
            ..Default::default()
        };
        match reply {
            Reply::Renewed { ttl, cancel } => {
                self.lives_until(ticket.lease, *ttl);
                ack.extended = true;
                ack.lease_ttl_ms = millis(*ttl);
                ack.cancel_requested = cancel.is_some();
                ack.cancel_deadline_ms = cancel.as_ref().map_or(0, |it| millis(it.remaining));
            }
            Reply::NotAcknowledged => ack.reason = Reason::NotAcked.as_str().to_owned(),
            Reply::Stale(why) => {
                // A result that waits for its log, or was accepted, is still answered (A18), and
                // of a lease that is known to be over the rest of the log is awaited (A42).
                let held = self.leases.get(ticket.lease);
                let is_awaited =
                    |held: &SessionLease| held.has_last_word() || held.ended().is_some();
                match why {
                    _ if held.is_some_and(is_awaited) => {}
                    Stale::AlreadyFinal => {}
                    // Its news may come behind this.
                    Stale::Revoked => self.lose(ticket.lease),
                    _ => self.leases.forget(ticket.lease),
                }
                self.app.metrics().stale.inc();
                ack.stale = true;
                ack.reason = Reason::from(*why).as_str().to_owned();
            }
            other => tracing::error!(reply = ?other, "the core answered with something else"),
        }
        self.outgoing.renewed(ack);
    }

    fn lives_until(&mut self, lease: LeaseKey, ttl: Span) {
        let until = self.app.writer.now() + ttl;
        self.leases.lives_until(lease, until);
    }

    fn stale(&mut self, lease: LeaseKey, why: Stale) {
        self.app.metrics().stale.inc();
        self.judged(lease, Judgement::Stale);
        self.say_stale(lease, Reason::from(why));
    }

    fn say_stale(&mut self, lease: LeaseKey, reason: Reason) {
        self.outgoing.say(ToAgent::StaleLease(StaleLease {
            run_id: execution_id::name(lease),
            reason: reason.as_str().to_owned(),
        }));
    }

    /// Nothing changed; whether the same message may work later is said.
    pub fn not_done(&mut self, ticket: Ticket, why: &NotDone) {
        if let NotDone::Refused(Refusal::Barred(why)) = why {
            // Whoever is not heard on one of its leases is not heard at all.
            self.end = Some(match why {
                Barred::Revoked => revoked(),
                Barred::Superseded | Barred::Unproven => superseded(),
            });
            return;
        }
        if matches!(ticket.kind, TicketKind::Complete | TicketKind::CancelAck) {
            self.judged(ticket.lease, Judgement::NotDone);
        }
        let (code, retryable) = match why {
            NotDone::Overloaded => ("BUSY", true),
            NotDone::Unavailable(_) => ("UNAVAILABLE", true),
            NotDone::Refused(Refusal::RunnerMismatch | Refusal::JobMismatch) => ("INVALID", false),
            NotDone::Refused(_) => ("CONFLICT", false),
            _ => ("INTERNAL", true),
        };
        self.outgoing.say(ToAgent::ProtocolError(ProtocolError {
            message_type: message_type(ticket.kind).to_owned(),
            run_id: execution_id::name(ticket.lease),
            code: code.to_owned(),
            field: String::new(),
            message: why.to_string(),
            retryable,
        }));
    }

    /// Something happened to a lease without its holder: it hears of it at once (RP-36). The
    /// heartbeat says the same, should this be lost.
    fn news(&mut self, lease: LeaseKey, news: &News) {
        let Some(held) = self.leases.get(lease).filter(|held| held.ended().is_none()) else {
            return;
        };
        let origin = held.origin;
        let reason = match news {
            News::CancelAsked(cause) => {
                let deadline = self.app.writer.shared().settings.cancel_deadline;
                return self.send_cancel(lease, *cause, deadline);
            }
            News::Expired => Reason::LeaseExpired,
            News::Revoked => Reason::LeaseRevoked,
        };
        self.lose(lease);
        self.say_stale(lease, reason);
        if origin == Origin::Granted {
            self.lost_a_lease();
        }
    }

    fn lose(&mut self, lease: LeaseKey) {
        let late_log = self.app.writer.shared().settings.late_log;
        let late_log_until = Instant::now() + Duration::from_millis(millis(late_log));
        self.happened(lease, LeaseEvent::Lost { late_log_until });
    }

    pub fn send_cancel(&mut self, lease: LeaseKey, cause: Cause, deadline: Span) {
        self.happened(lease, LeaseEvent::CancelTold);
        self.outgoing.say(ToAgent::CancelWork(CancelWork {
            run_id: execution_id::name(lease),
            reason: cause.name().to_owned(),
            deadline_ms: millis(deadline),
        }));
    }

    pub fn send_log_ack(&mut self, written: &LogWritten) {
        self.outgoing.say(ToAgent::LogAck(LogAck {
            run_id: execution_id::name(written.lease),
            received: written.progress.received,
            stored: written.progress.stored,
            resend: written.progress.resend,
            full: written.progress.full,
        }));
    }
}

/// Whether another word is passed on in the place of an agent's last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    Another,
    No,
}

/// The tests of a job spec, for agents that know no other kind of work (EP-20).
fn tests(spec: &str) -> Vec<TestSpec> {
    // A spec without the word has none; reading it all costs more than looking for it.
    if !spec.contains("\"tests\"") {
        return Vec::new();
    }
    let spec = JobSpec::parse(spec.as_bytes());
    let tests = spec.map(|spec| spec.tests).unwrap_or_default();
    tests.iter().map(TestSpec::from).collect()
}

/// Whoever is not trusted is not even told the names.
fn secret_names(trusted: bool, names: &[Text]) -> Vec<String> {
    let names = names.iter().filter(|_| trusted);
    names.map(|name| name.to_string()).collect()
}

fn text(text: Option<Text>) -> String {
    text.map_or_else(String::new, |text| text.to_string())
}

fn message_type(kind: TicketKind) -> &'static str {
    match kind {
        TicketKind::Accept => "WorkAccepted",
        TicketKind::Decline => "WorkRejected",
        TicketKind::Renew => "Heartbeat",
        TicketKind::Complete | TicketKind::CancelAck => "ResultStream",
    }
}

pub fn millis(span: Span) -> u64 {
    span.0.max(0).unsigned_abs()
}

fn whole_seconds(span: Span) -> i32 {
    i32::try_from((span.0 + 999) / 1000).unwrap_or(i32::MAX)
}
