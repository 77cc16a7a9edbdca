//! What the server says: answers find their call, news their holder, work its slot.

use delta_wire::agent::frame::Received;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AssignWork, CompleteAck, LeaseRenewalAck, LogAck, ProtocolError, ResumePoint, ServerMessage,
    TestResultAck, UploadCreated, WorkAck,
};
use delta_wire::runner::{GrantedSpec, LeaseGranted, LeaseToken, Reason};
use delta_wire::{RawJobSpec, Seconds};
use prost::Message as _;

use super::call_error::CallError;
use super::state::{Key, News, ResultCursor, Shared};
use super::{Assigned, messages};
use crate::job_io::Origin;

/// An answer to a call.
#[derive(Clone, Debug)]
pub enum Heard {
    Work(WorkAck),
    Renewed(LeaseRenewalAck),
    Complete(CompleteAck),
    Upload(UploadCreated),
    Stale,
}

impl Shared {
    /// Takes everything a frame holds. What cannot be read is left out (EP-37, EP-38).
    pub fn hear(&self, received: Received) {
        if received.garbled {
            tracing::warn!("the server sent a frame that cannot be read");
        }
        for bytes in received.messages {
            match ServerMessage::decode(bytes) {
                Ok(ServerMessage { message: Some(say) }) => self.hear_one(say),
                Ok(_) => tracing::warn!("the server sent a message of an unknown kind"),
                Err(error) => tracing::warn!(%error, "the server sent a garbled message"),
            }
        }
    }

    fn hear_one(&self, say: Say) {
        match say {
            Say::RegisterResponse(_) => tracing::warn!("the server answered a registration twice"),
            Say::AssignWork(work) => self.offered(work),
            Say::CancelWork(cancel) => self.news(&cancel.run_id, News::CancelAsked),
            Say::Drain(drain) => self.drain(Some(drain.drain_id)),
            Say::Undrain(_) => self.drain(None),
            Say::HeartbeatAck(ack) => {
                for renewal in ack.leases {
                    self.renewed(renewal);
                }
            }
            Say::WorkAck(ack) => {
                self.answer(&Key::Accept(ack.run_id.clone()), Ok(Heard::Work(ack)));
            }
            Say::CompleteAck(ack) => self.completed(ack),
            Say::LogAck(ack) => self.log_ack(&ack),
            Say::TestResultAck(ack) => self.results_ack(&ack),
            Say::StaleLease(stale) => self.stale(&stale.run_id, &stale.reason),
            Say::ProtocolError(error) => self.refused(&error),
            Say::UploadCreated(created) => {
                let key = Key::Upload(created.run_id.clone(), created.name.clone());
                self.answer(&key, Ok(Heard::Upload(created)));
            }
        }
    }

    fn answer(&self, key: &Key, answer: Result<Heard, CallError>) -> bool {
        let waiting = self.lock().pending.remove(key);
        waiting.is_some_and(|waiting| waiting.send(answer).is_ok())
    }

    fn renewed(&self, ack: LeaseRenewalAck) {
        let (execution, seq) = (ack.run_id.clone(), ack.seq.unwrap_or(0));
        let (stale, reason, cancel) = (ack.stale, ack.reason.clone(), ack.cancel_requested);
        if !self.answer(&Key::Renew(execution.clone(), seq), Ok(Heard::Renewed(ack))) {
            // Nobody waits for it any more, but what it says may still matter.
            if stale {
                self.news(&execution, News::Stale(reason));
            } else if cancel {
                self.news(&execution, News::CancelAsked);
            }
        }
    }

    /// The slot is free from here on, not only when its holder has heard of it: the next
    /// assignment may be in the same frame.
    fn completed(&self, ack: CompleteAck) {
        if ack.accepted || Reason::from_text(&ack.reason) != Reason::NotAcked {
            let mut state = self.lock();
            if let Some(holding) = state.held.get_mut(&ack.run_id) {
                holding.settled = true;
            }
        }
        self.answer(&Key::Complete(ack.run_id.clone()), Ok(Heard::Complete(ack)));
    }

    /// The lease is over: whatever was asked about it is answered with that.
    fn stale(&self, execution: &str, reason: &str) {
        let mut state = self.lock();
        let mine: Vec<Key> = state
            .pending
            .keys()
            .filter(|key| key.execution() == execution)
            .cloned()
            .collect();
        let waiting: Vec<_> = mine
            .iter()
            .filter_map(|key| state.pending.remove(key))
            .collect();
        // Who lost a lease gets no other before it speaks: it may have nothing else to say.
        state.presence_due = state.session.is_some();
        drop(state);
        self.to_send.notify_one();
        for waiting in waiting {
            let _ = waiting.send(Ok(Heard::Stale));
        }
        self.news(execution, News::Stale(reason.to_owned()));
    }

    fn news(&self, execution: &str, news: News) {
        let state = self.lock();
        if let Some(holding) = state.held.get(execution) {
            // Once it is over, nothing else matters.
            holding.news.send_if_modified(|old| {
                let fresh = !matches!(old, News::Stale(_)) && *old != news;
                if fresh {
                    *old = news;
                }
                fresh
            });
        }
    }

    fn refused(&self, error: &ProtocolError) {
        tracing::debug!(code = error.code, message = error.message, "refused");
        let why = if error.code == "STORAGE_FULL" {
            CallError::StorageFull
        } else if error.retryable {
            CallError::Busy {
                message: error.message.clone(),
                retry_after: None,
            }
        } else {
            CallError::Refused {
                code: error.code.clone(),
                message: error.message.clone(),
            }
        };
        let key = self
            .lock()
            .pending
            .keys()
            .find(|key| {
                key.execution() == error.run_id
                    && match key {
                        Key::Accept(_) => error.message_type == "WorkAccepted",
                        Key::Renew(..) => error.message_type == "Heartbeat",
                        Key::Complete(_) => error.message_type == "ResultStream",
                        Key::Upload(..) => {
                            matches!(&*error.message_type, "Artifact" | "CreateUpload")
                        }
                    }
            })
            .cloned();
        match key {
            Some(key) => drop(self.answer(&key, Err(why))),
            None => tracing::warn!(error = %why, "the server refused a message"),
        }
    }

    fn log_ack(&self, ack: &LogAck) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(holding) = state.held.get_mut(&ack.run_id) else {
            return;
        };
        if ack.resend {
            // Everything on its way is behind the gap.
            let lost = holding.sent.drain(..).map(|(_, length, _)| length).sum();
            state.window.give_back(lost);
        }
        while let Some((end, length, sent)) = holding.sent.front().copied() {
            if end > ack.received && !ack.full {
                break;
            }
            holding.sent.pop_front();
            state.window.answered(length, sent);
        }
        holding.cursors.send_modify(|cursors| {
            // An answer that comes late says less than one that is here; only to ask for bytes
            // again may it go back.
            cursors.received = if ack.resend {
                ack.received
            } else {
                cursors.received.max(ack.received)
            };
            cursors.stored = cursors.stored.max(ack.stored);
            cursors.full |= ack.full;
            cursors.resends += u64::from(ack.resend);
        });
        self.more_room();
    }

    fn results_ack(&self, ack: &TestResultAck) {
        let state = self.lock();
        let session = state.session.unwrap_or(0);
        if let Some(holding) = state.held.get(&ack.run_id) {
            holding.results.send_replace(ResultCursor {
                session,
                received: ack.received,
            });
        }
    }

    fn drain(&self, drain: Option<String>) {
        match &drain {
            Some(_) => tracing::info!("draining: no new work"),
            None => tracing::info!("work is welcome again"),
        }
        let mut state = self.lock();
        if state.drain != drain {
            state.drain = drain;
            state.drain_said = false;
        }
        state.presence_due = true;
        drop(state);
        self.to_send.notify_one();
    }

    /// Work that was assigned: to a slot, or back where it came from (A28, A50).
    fn offered(&self, work: AssignWork) {
        let mut state = self.lock();
        if state.held.contains_key(&work.run_id) || state.offered.contains(&work.run_id) {
            // To take it twice would be to do it twice; to reject it, to give up the first.
            return tracing::warn!(run_id = work.run_id, "the server repeats an assignment");
        }
        let reason = if state.drain.is_some() || state.stopping {
            Some("draining")
        } else if state.taken() >= self.slots as usize {
            Some("resource_exhausted")
        } else {
            None
        };
        if reason.is_none() {
            state.offered.insert(work.run_id.clone());
        }
        drop(state);
        if let Some(reason) = reason {
            return self.turn_away(&work.run_id, &work.lease, reason);
        }
        match assigned(&work) {
            Ok(assigned) => {
                if self.assignments.try_send(assigned).is_err() {
                    self.turn_away(&work.run_id, &work.lease, "draining");
                    self.not_taken(&work.run_id);
                }
            }
            Err(field) => {
                tracing::error!(run_id = work.run_id, field, "an assignment is not complete");
                let reason = format!("invalid_assignment: {field}");
                self.turn_away(&work.run_id, &work.lease, &reason);
                self.not_taken(&work.run_id);
            }
        }
    }

    pub fn turn_away(&self, execution: &str, lease: &str, reason: &str) {
        let agent = self.lock().agent_id.clone();
        let rejected = messages::rejected(&agent, execution, lease, reason);
        self.say(Said::WorkRejected(rejected));
    }

    /// What was offered is nobody's any more; a drain may be complete now.
    pub fn not_taken(&self, execution: &str) {
        self.lock().offered.remove(execution);
        self.to_send.notify_one();
    }

    /// Where the server says to go on, after a registration (A27).
    pub fn resume(&self, points: &[ResumePoint], session: u64) {
        for point in points {
            if !point.live {
                self.stale(&point.run_id, &point.reason);
                continue;
            }
            let state = self.lock();
            if let Some(holding) = state.held.get(&point.run_id) {
                holding.cursors.send_modify(|cursors| {
                    cursors.session = session;
                    cursors.received = point.log_received;
                    cursors.stored = point.log_stored;
                });
            }
        }
    }
}

/// The name of a field that is needed and missing, where there is one (EP-39).
fn assigned(work: &AssignWork) -> Result<Assigned, &'static str> {
    for (field, text) in [("run_id", &work.run_id), ("job_id", &work.job_id)] {
        if text.is_empty() {
            return Err(field);
        }
    }
    let positive = |millis: u64, field| match millis {
        0 => Err(field),
        millis => Ok(Seconds::from_millis(millis)),
    };
    let timeout = u64::try_from(work.timeout_seconds).unwrap_or(0);
    let spec = RawJobSpec::from_text(work.job_spec.clone()).map_err(|_| "job_spec")?;
    let granted = LeaseGranted {
        job_id: work.job_id.clone(),
        run_id: work.job_run_id.clone(),
        lease_id: LeaseToken::from_text(&work.lease).map_err(|_| "lease")?,
        lease_ttl_seconds: positive(work.lease_ttl_ms, "lease_ttl_ms")?,
        heartbeat_interval_seconds: positive(
            work.lease_heartbeat_interval_ms,
            "lease_heartbeat_interval_ms",
        )?,
        max_runtime_seconds: positive(timeout.saturating_mul(1000), "timeout_seconds")?,
        spec: GrantedSpec::Embedded(spec),
        cancel_token: None,
        attempt: Some(work.attempt),
        lease_epoch: Some(work.lease_epoch),
    };
    Ok(Assigned {
        execution: work.run_id.clone(),
        granted,
        job_name: work.job_name.clone(),
        untrusted: work.untrusted,
        origin: Origin {
            repository: work
                .repository
                .as_ref()
                .and_then(|it| filled(&it.clone_url)),
            git_ref: filled(&work.r#ref),
            commit: filled(&work.commit),
        },
    })
}

fn filled(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
