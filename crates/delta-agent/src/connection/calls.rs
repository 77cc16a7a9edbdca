//! Calls of a holder: one message each, and its answer.

use std::time::{Duration, Instant};

use bytes::Bytes;
use delta_core::holder::Answer;
use delta_core::time::Span;
use delta_wire::agent::MAX_CHUNK_BYTES;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::{
    self, Artifact, CreateUpload, LeaseRenewal, LogChunk, RunComplete, TestResult, UploadCreated,
};
use delta_wire::runner::{LeaseToken, Reason};
use tokio::sync::{oneshot, watch};

use super::call_error::CallError;
use super::receive::Heard;
use super::state::{Key, ResultCursor, State};
use super::{Connection, messages};

/// How long a message waits for the line, and for its answer, before it is sent again: as long as
/// its lease may go without a heartbeat, within these bounds. A line loses nothing, so that this is
/// for a server that did; repeating is always safe.
const ANSWER_TIME: Duration = Duration::from_secs(10);
const LEAST_ANSWER_TIME: Duration = Duration::from_millis(200);

/// A heartbeat of one lease.
pub struct Renewal {
    pub seq: u64,
    pub progress: Option<proto::Progress>,
    pub uploading: bool,
    pub log_bytes: u64,
}

/// What the server made of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// Taken, or overtaken by a cancel: either way the lease is over in good order.
    Taken,
    /// Say that the lease was accepted first, then this again.
    NotAcked,
    Stale,
}

impl Connection {
    pub async fn accept(&self, execution: &str, lease: &LeaseToken) -> Result<Answer, CallError> {
        let heard = self
            .call(Key::Accept(execution.to_owned()), |state| {
                let said = messages::accepted(&state.agent_id, execution, lease);
                state.control.push_back(Said::WorkAccepted(said));
            })
            .await?;
        match heard {
            Heard::Work(ack) if ack.accepted => Ok(Answer::Renewed {
                ttl: span(ack.lease_ttl_ms),
                cancel: None,
            }),
            Heard::Work(_) | Heard::Stale => Ok(Answer::Stale),
            other => Err(nonsense(&other)),
        }
    }

    pub async fn renew(
        &self,
        execution: &str,
        lease: &LeaseToken,
        renewal: Renewal,
    ) -> Result<Answer, CallError> {
        let seq = renewal.seq;
        let message = LeaseRenewal {
            run_id: execution.to_owned(),
            lease: lease.expose().to_owned(),
            seq: Some(seq),
            progress: renewal.progress,
            uploading: renewal.uploading,
            log_bytes: Some(renewal.log_bytes),
        };
        let key = Key::Renew(execution.to_owned(), seq);
        let heard = self.call(key, |state| state.renewals.push(message)).await?;
        match heard {
            Heard::Renewed(ack) if ack.extended => Ok(Answer::Renewed {
                ttl: span(ack.lease_ttl_ms),
                cancel: ack.cancel_requested.then(|| span(ack.cancel_deadline_ms)),
            }),
            Heard::Renewed(ack) if ack.reason == Reason::NotAcked.as_str() => {
                Ok(Answer::NotAcknowledged)
            }
            Heard::Renewed(ack) => Ok(stale(&ack.reason)),
            Heard::Stale => Ok(Answer::Stale),
            other => Err(nonsense(&other)),
        }
    }

    pub async fn complete(
        &self,
        execution: &str,
        lease: &LeaseToken,
        result: RunComplete,
    ) -> Result<Settled, CallError> {
        let payload = Payload::RunComplete(result);
        let heard = self
            .call(Key::Complete(execution.to_owned()), |state| {
                let said = messages::result(&state.agent_id, execution, lease, payload);
                state.control.push_back(Said::Result(said));
            })
            .await?;
        match heard {
            Heard::Complete(ack) if ack.accepted => Ok(Settled::Taken),
            Heard::Complete(ack) => Ok(match Reason::from_text(&ack.reason) {
                Reason::NotAcked => Settled::NotAcked,
                reason if reason.is_stale() => Settled::Stale,
                _ => Settled::Taken,
            }),
            Heard::Stale => Ok(Settled::Stale),
            other => Err(nonsense(&other)),
        }
    }

    /// Hands over a small artifact, or says where a large one was sent.
    pub async fn keep_artifact(
        &self,
        execution: &str,
        lease: &LeaseToken,
        artifact: Artifact,
    ) -> Result<(), CallError> {
        let key = Key::Upload(execution.to_owned(), artifact.name.clone());
        let payload = Payload::Artifact(artifact);
        let heard = self
            .call(key, |state| {
                let said = messages::result(&state.agent_id, execution, lease, payload);
                state.control.push_back(Said::Result(said));
            })
            .await?;
        match heard {
            Heard::Upload(_) => Ok(()),
            other => Err(nonsense(&other)),
        }
    }

    /// Asks where to send a large one.
    pub async fn create_upload(
        &self,
        execution: &str,
        lease: &LeaseToken,
        wanted: CreateUpload,
    ) -> Result<UploadCreated, CallError> {
        let key = Key::Upload(execution.to_owned(), wanted.name.clone());
        let said = CreateUpload {
            run_id: execution.to_owned(),
            lease: lease.expose().to_owned(),
            ..wanted
        };
        let heard = self
            .call(key, |state| {
                state.control.push_back(Said::CreateUpload(said))
            })
            .await?;
        match heard {
            Heard::Upload(created) => Ok(created),
            other => Err(nonsense(&other)),
        }
    }

    async fn call(&self, key: Key, say: impl FnOnce(&mut State)) -> Result<Heard, CallError> {
        let deadline = tokio::time::Instant::now() + self.answer_time(key.execution());
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

    /// How long an answer about this execution may take.
    pub fn answer_time(&self, execution: &str) -> Duration {
        let state = self.0.lock();
        let every = state.held.get(execution).map(|holding| holding.every);
        every.map_or(ANSWER_TIME, |every| {
            every.clamp(LEAST_ANSWER_TIME, ANSWER_TIME)
        })
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

    /// Sends results of tests; whoever does keeps them until they are acknowledged.
    pub fn send_results(&self, execution: &str, lease: &LeaseToken, results: Vec<TestResult>) {
        let mut state = self.0.lock();
        if state.session.is_none() || !state.held.contains_key(execution) {
            return;
        }
        for result in results {
            let payload = Payload::TestResult(result);
            let said = messages::result(&state.agent_id, execution, lease, payload);
            state.results.push_back(Said::Result(said));
        }
        drop(state);
        self.0.to_send.notify_one();
    }

    /// How many results the server has; it stands still for a lease that is not held.
    pub fn result_acks(&self, execution: &str) -> watch::Receiver<ResultCursor> {
        let state = self.0.lock();
        match state.held.get(execution) {
            Some(holding) => holding.results.subscribe(),
            None => watch::Sender::default().subscribe(),
        }
    }

    /// Log bytes were not answered in time: whatever of them is on its way is not waited for.
    pub fn log_lost(&self, execution: &str) {
        let mut guard = self.0.lock();
        let state = &mut *guard;
        let ours = |said: &Said| matches!(said, Said::Result(result) if result.run_id == execution);
        state.logs.retain(|(said, _)| !ours(said));
        if let Some(holding) = state.held.get_mut(execution) {
            let lost = holding.sent.drain(..).map(|(_, length, _)| length).sum();
            state.window.give_back(lost);
        }
        drop(guard);
        self.0.more_room();
    }

    /// Moves whenever there may be room for log bytes again.
    pub fn room(&self) -> watch::Receiver<u64> {
        self.0.room.subscribe()
    }
}

/// What it means that a lease is over.
pub fn stale(reason: &str) -> Answer {
    match Reason::from_text(reason) {
        Reason::AlreadyFinal => Answer::AlreadyFinal,
        _ => Answer::Stale,
    }
}

fn nonsense(heard: &Heard) -> CallError {
    CallError::Refused {
        code: "NONSENSE".to_owned(),
        message: format!("the answer is of another kind: {heard:?}"),
    }
}

fn span(millis: u64) -> Span {
    Span(i64::try_from(millis).unwrap_or(i64::MAX))
}
