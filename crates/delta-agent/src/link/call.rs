//! Calls of a holder: one message each, and its answer.

use std::time::{Duration, Instant};

use bytes::Bytes;
use delta_wire::Seconds;
use delta_wire::agent::MAX_CHUNK_BYTES;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::{self, LeaseRenewal, LeaseRenewalAck, LogChunk};
use delta_wire::runner::{
    AckLeaseAck, CancelAck, CancelAckAck, Complete, CompleteAck, HeartbeatAck, LeaseToken,
    Progress, Reason, StaleLease,
};
use tokio::sync::{oneshot, watch};

use super::answer::{CallError, Fenced};
use super::hear::Heard;
use super::state::{Key, State};
use super::{Link, messages};

/// How long a call waits for the line, and for its answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// A heartbeat of one lease.
pub struct Renewal {
    pub seq: u64,
    pub progress: Progress,
    pub uploading: bool,
    pub log_bytes: u64,
}

impl Link {
    pub async fn accept(
        &self,
        execution: &str,
        lease: &LeaseToken,
    ) -> Result<Fenced<AckLeaseAck>, CallError> {
        let heard = self
            .call(Key::Accept(execution.to_owned()), |state| {
                let said = messages::accepted(&state.agent_id, execution, lease);
                state.control.push_back(Said::WorkAccepted(said));
            })
            .await?;
        match heard {
            Heard::Work(ack) if ack.accepted => Ok(Fenced::Answer(AckLeaseAck {
                accepted: true,
                lease_ttl_seconds: Seconds::from_millis(ack.lease_ttl_ms),
            })),
            Heard::Work(ack) => Ok(stale(lease, &ack.reason)),
            Heard::Stale(reason) => Ok(stale(lease, &reason)),
            other => Err(nonsense(&other)),
        }
    }

    pub async fn renew(
        &self,
        execution: &str,
        lease: &LeaseToken,
        renewal: Renewal,
    ) -> Result<HeartbeatAck, CallError> {
        let message = LeaseRenewal {
            run_id: execution.to_owned(),
            lease: lease.expose().to_owned(),
            seq: Some(renewal.seq),
            progress: Some(progress(renewal.progress)),
            uploading: renewal.uploading,
            log_bytes: Some(renewal.log_bytes),
        };
        let key = Key::Renew(execution.to_owned(), renewal.seq);
        let heard = self.call(key, |state| state.renewals.push(message)).await?;
        match heard {
            Heard::Renewed(ack) => Ok(heartbeat_ack(lease, &ack)),
            Heard::Stale(reason) => {
                let reason = Reason::from_text(&reason);
                Ok(HeartbeatAck::refused(lease.clone(), reason))
            }
            other => Err(nonsense(&other)),
        }
    }

    pub async fn complete(
        &self,
        execution: &str,
        done: &Complete,
    ) -> Result<Fenced<CompleteAck>, CallError> {
        let payload = Payload::RunComplete(messages::completed(done));
        let heard = self.finish(execution, &done.lease_id, payload).await?;
        match heard {
            Heard::Complete(ack) => Ok(Fenced::Answer(CompleteAck {
                lease_id: done.lease_id.clone(),
                accepted: ack.accepted,
                reason: (!ack.reason.is_empty()).then(|| Reason::from_text(&ack.reason)),
                final_status: None,
            })),
            Heard::Stale(reason) => Ok(stale(&done.lease_id, &reason)),
            other => Err(nonsense(&other)),
        }
    }

    pub async fn cancel_ack(
        &self,
        execution: &str,
        ack: &CancelAck,
    ) -> Result<Fenced<CancelAckAck>, CallError> {
        let payload = Payload::RunComplete(messages::canceled(ack));
        let heard = self.finish(execution, &ack.lease_id, payload).await?;
        match heard {
            Heard::Complete(answer) => Ok(Fenced::Answer(CancelAckAck {
                lease_id: ack.lease_id.clone(),
                accepted: answer.accepted,
                reason: (!answer.reason.is_empty()).then(|| Reason::from_text(&answer.reason)),
                final_status: None,
            })),
            Heard::Stale(reason) => Ok(stale(&ack.lease_id, &reason)),
            other => Err(nonsense(&other)),
        }
    }

    async fn finish(
        &self,
        execution: &str,
        lease: &LeaseToken,
        payload: Payload,
    ) -> Result<Heard, CallError> {
        self.call(Key::Complete(execution.to_owned()), |state| {
            let said = messages::result(&state.agent_id, execution, lease, payload);
            state.control.push_back(Said::Result(said));
        })
        .await
    }

    async fn call(&self, key: Key, say: impl FnOnce(&mut State)) -> Result<Heard, CallError> {
        let deadline = tokio::time::Instant::now() + ANSWER_TIME;
        let mut line = self.0.line.subscribe();
        let up = tokio::time::timeout_at(deadline, line.wait_for(Option::is_some));
        if !matches!(up.await, Ok(Ok(_))) {
            return Err(CallError::Unreachable("there is no connection".to_owned()));
        }
        let (answered, answer) = oneshot::channel();
        {
            let mut state = self.0.lock();
            if state.session.is_none() {
                return Err(CallError::Unreachable("the connection was lost".to_owned()));
            }
            state.pending.insert(key.clone(), answered);
            say(&mut state);
        }
        self.0.to_send.notify_one();
        match tokio::time::timeout_at(deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(CallError::Unreachable("it was asked again".to_owned())),
            Err(_) => {
                self.0.lock().pending.remove(&key);
                Err(CallError::Unreachable("no answer in time".to_owned()))
            }
        }
    }

    /// How many of the bytes from `offset` may be sent now. Nothing while the line is down or
    /// full: [`Link::room`] says when to ask again.
    pub fn log_room(&self, wanted: usize) -> usize {
        let mut state = self.0.lock();
        match state.session {
            Some(_) => state.window.take(wanted.min(MAX_CHUNK_BYTES)),
            None => 0,
        }
    }

    /// Sends log bytes that [`Link::log_room`] made room for.
    pub fn send_log(&self, execution: &str, lease: &LeaseToken, offset: u64, data: Bytes) {
        let length = data.len();
        let mut state = self.0.lock();
        let chunk = Payload::LogChunk(LogChunk {
            stream: proto::LogStream::Stdout.into(),
            data,
            timestamp: None,
            offset: Some(offset),
        });
        let said = messages::result(&state.agent_id, execution, lease, chunk);
        match state.held.get_mut(execution) {
            Some(holding) => {
                let end = offset + length as u64;
                holding.sent.push_back((end, length, Instant::now()));
                state.logs.push_back((Said::Result(said), length));
            }
            None => state.window.give_back(length),
        }
        drop(state);
        self.0.to_send.notify_one();
    }

    /// Moves whenever there may be room for log bytes again.
    pub fn room(&self) -> watch::Receiver<u64> {
        self.0.room.subscribe()
    }
}

fn stale<T>(lease: &LeaseToken, reason: &str) -> Fenced<T> {
    Fenced::Stale(StaleLease {
        lease_id: lease.clone(),
        reason: Reason::from_text(reason),
    })
}

fn nonsense(heard: &Heard) -> CallError {
    CallError::Refused {
        code: "NONSENSE".to_owned(),
        message: format!("the answer is of another kind: {heard:?}"),
    }
}

fn heartbeat_ack(lease: &LeaseToken, ack: &LeaseRenewalAck) -> HeartbeatAck {
    if ack.extended {
        let ttl = Seconds::from_millis(ack.lease_ttl_ms);
        let cancel = ack
            .cancel_requested
            .then(|| Seconds::from_millis(ack.cancel_deadline_ms));
        return HeartbeatAck::extended(lease.clone(), ttl, cancel);
    }
    HeartbeatAck::refused(lease.clone(), Reason::from_text(&ack.reason))
}

fn progress(progress: Progress) -> proto::Progress {
    proto::Progress {
        percent: progress.percent.map(|percent| percent.get()),
        current_step: progress.current_step,
        step_index: progress.step_index,
        message: progress.message,
    }
}
