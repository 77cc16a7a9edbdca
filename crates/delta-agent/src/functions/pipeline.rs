//! One connection that carries many requests, answered in any order: what newer runners serve.
//!
//! An answer with no request of ours in it fails the one that its job tells it is for; where nobody
//! can tell that, it is dropped, and whoever waits for it goes on to. Nobody else is hurt.
//! When the connection breaks, what was not yet written can be sent again; of the rest nobody knows
//! what became.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delta_runner_protocol::{Frames, Message, Outcome, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::endpoint::RunnerEndpoint;
use super::serial_connection::{self, Ids, PIECE, RunnerCallError, Unknown};
use super::settings::MAX_IN_FLIGHT;

/// Requests that are over and remembered: a late or second answer to one is nobody's. Many times
/// what is ever under way.
const MAX_FORMER: usize = 1024;

/// The connection of one runner, made when it is first needed, and again after it broke.
pub(super) struct Pipeline {
    pipe: tokio::sync::Mutex<Option<Arc<Pipe>>>,
    unknown: Unknown,
}

struct Pipe {
    to_write: mpsc::Sender<(String, Vec<u8>)>,
    waiting: Arc<Waiting>,
    _tasks: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Waiting {
    state: Mutex<State>,
    unknown: Unknown,
}

#[derive(Default)]
struct State {
    calls: HashMap<String, Waiter>,
    /// Requests for which nobody waits any more, with their jobs, the latest last.
    former: VecDeque<Ids>,
    /// Why there will be no more answers.
    over: Option<String>,
}

struct Waiter {
    ids: Ids,
    sent: bool,
    answer: oneshot::Sender<Result<Outcome, RunnerCallError>>,
}

/// Nobody waits for the answer any more when this is dropped.
struct Registered<'a> {
    waiting: &'a Waiting,
    request: &'a str,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.waiting.state().leave(self.request);
    }
}

impl Pipeline {
    pub fn new(unknown: &Unknown) -> Pipeline {
        Pipeline {
            pipe: tokio::sync::Mutex::default(),
            unknown: unknown.clone(),
        }
    }

    /// Sends a request and waits for its answer.
    pub async fn exchange(
        &self,
        door: &RunnerEndpoint,
        frame: &[u8],
        ids: &Ids,
    ) -> Result<Outcome, RunnerCallError> {
        let pipe = self.pipe(door).await?;
        let (answer, answered) = oneshot::channel();
        let _registered = pipe.waiting.register(ids, answer)?;
        let over = || RunnerCallError::NotSent("the connection is closed".to_owned());
        let written = pipe
            .to_write
            .send((ids.request.clone(), frame.to_vec()))
            .await;
        written.map_err(|_| over())?;
        answered
            .await
            .unwrap_or_else(|_| Err(serial_connection::closed()))
    }

    async fn pipe(&self, door: &RunnerEndpoint) -> Result<Arc<Pipe>, RunnerCallError> {
        let mut pipe = self.pipe.lock().await;
        if let Some(open) = pipe.as_ref().filter(|it| it.waiting.state().over.is_none()) {
            return Ok(Arc::clone(open));
        }
        let (reader, writer) = door.dial().await?.into_split();
        let (to_write, frames) = mpsc::channel(MAX_IN_FLIGHT as usize);
        let waiting = Arc::new(Waiting {
            unknown: self.unknown.clone(),
            ..Waiting::default()
        });
        let tasks = tokio::spawn(serve(reader, writer, frames, Arc::clone(&waiting)));
        let made = Arc::new(Pipe {
            to_write,
            waiting,
            _tasks: AbortOnDropHandle::new(tasks),
        });
        *pipe = Some(Arc::clone(&made));
        Ok(made)
    }
}

impl Waiting {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register<'a>(
        &'a self,
        ids: &'a Ids,
        answer: oneshot::Sender<Result<Outcome, RunnerCallError>>,
    ) -> Result<Registered<'a>, RunnerCallError> {
        let mut state = self.state();
        if let Some(why) = &state.over {
            return Err(RunnerCallError::NotSent(why.clone()));
        }
        let waiter = Waiter {
            ids: ids.clone(),
            sent: false,
            answer,
        };
        state.calls.insert(ids.request.clone(), waiter);
        Ok(Registered {
            waiting: self,
            request: &ids.request,
        })
    }

    /// Whether the request is still wanted; it is sent from now on.
    fn sends(&self, request: &str) -> bool {
        let mut state = self.state();
        let waiter = state.calls.get_mut(request);
        waiter.map(|waiter| waiter.sent = true).is_some()
    }

    fn answered(&self, response: Response) {
        let found = self.state().meant(&response);
        match found {
            Some(waiter) => drop(
                waiter
                    .answer
                    .send(serial_connection::judge(response, &waiter.ids)),
            ),
            None => tracing::warn!("a runner's answer belongs to no request; it is dropped"),
        }
    }

    /// A frame that means nothing: it is clear whom it was for only where there is one.
    fn garbled(&self, trouble: RunnerCallError) {
        let mut state = self.state();
        let found = state.only_one(|_| true).and_then(|id| state.leave(&id));
        drop(state);
        match found {
            Some(waiter) => drop(waiter.answer.send(Err(trouble))),
            None => tracing::warn!(?trouble, "a runner's answer is dropped"),
        }
    }

    fn over(&self, why: RunnerCallError) {
        let (RunnerCallError::NotSent(words) | RunnerCallError::Broken(words)) = &why;
        let mut state = self.state();
        state.over = Some(words.clone());
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        for waiter in calls.into_values() {
            let trouble = if waiter.sent {
                RunnerCallError::Broken(words.clone())
            } else {
                RunnerCallError::NotSent(words.clone())
            };
            let _ = waiter.answer.send(Err(trouble));
        }
    }
}

impl State {
    /// Whom an answer is for. Its request says so; where it names none of ours, its job does.
    fn meant(&mut self, response: &Response) -> Option<Waiter> {
        let job = response.job_id.as_deref();
        let named = response.request_id.as_deref();
        if let Some(waiter) = named.and_then(|id| self.calls.get(id)) {
            let is_own = job.is_none_or(|job| job == waiter.ids.job);
            let mut calls = self.calls.values();
            if !is_own && calls.any(|it| Some(it.ids.job.as_str()) == job) {
                // The request of one and the job of another: it may be either's.
                return None;
            }
            return self.leave(named?);
        }
        let is_former = |meant: &dyn Fn(&Ids) -> bool| self.former.iter().any(meant);
        if named.is_some_and(|id| is_former(&|it| it.request == id)) {
            return None;
        }
        let of_job = self.only_one(|it| Some(it.ids.job.as_str()) == job);
        // Late, and without its request: nobody who is under way has anything to do with it.
        if of_job.is_none() && job.is_some_and(|job| is_former(&|it| it.job == job)) {
            return None;
        }
        let id = of_job.or_else(|| self.only_one(|_| true))?;
        self.leave(&id)
    }

    /// The one request under way of this kind, where there is one.
    fn only_one(&self, is_meant: impl Fn(&Waiter) -> bool) -> Option<String> {
        let calls = self.calls.values();
        let mut meant = calls.filter(|it| it.sent && is_meant(it));
        let one = meant.next().filter(|_| meant.next().is_none())?;
        Some(one.ids.request.clone())
    }

    fn leave(&mut self, request: &str) -> Option<Waiter> {
        let waiter = self.calls.remove(request)?;
        if self.former.len() == MAX_FORMER {
            self.former.pop_front();
        }
        self.former.push_back(waiter.ids.clone());
        Some(waiter)
    }
}

async fn serve(
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    frames: mpsc::Receiver<(String, Vec<u8>)>,
    waiting: Arc<Waiting>,
) {
    let why = tokio::select! {
        why = read(reader, &waiting) => why,
        why = write(writer, frames, &waiting) => why,
    };
    waiting.over(why);
}

async fn write(
    mut writer: OwnedWriteHalf,
    mut frames: mpsc::Receiver<(String, Vec<u8>)>,
    waiting: &Waiting,
) -> RunnerCallError {
    let mut together = Vec::new();
    while let Some(first) = frames.recv().await {
        together.clear();
        let mut next = Some(first);
        while let Some((request, frame)) = next {
            if waiting.sends(&request) {
                together.extend_from_slice(&frame);
            }
            // What waits goes out in one piece: a system call costs more than a request.
            let room = together.len() < PIECE;
            next = room.then(|| frames.try_recv().ok()).flatten();
        }
        if let Err(problem) = writer.write_all(&together).await {
            return serial_connection::broken(problem);
        }
    }
    serial_connection::closed()
}

async fn read(mut reader: OwnedReadHalf, waiting: &Waiting) -> RunnerCallError {
    let (mut frames, mut piece) = (Frames::new(), vec![0; PIECE]);
    loop {
        loop {
            match serial_connection::next_frame(&mut frames) {
                Ok(Some(json)) => hear(json, waiting),
                Ok(None) => break,
                // Where the next frame begins is not known any more.
                Err(trouble) => return trouble,
            }
        }
        match reader.read(&mut piece).await {
            Ok(0) => return serial_connection::closed(),
            Ok(length) => frames.push(&piece[..length]),
            Err(problem) => return serial_connection::broken(problem),
        }
    }
}

fn hear(json: &[u8], waiting: &Waiting) {
    match Message::read(json) {
        Ok(Message::Response(response)) => waiting.answered(response),
        Ok(Message::Unknown(kind)) => waiting.unknown.note(&kind),
        Ok(Message::Request(_) | Message::Cancel(_)) => {
            waiting.garbled(serial_connection::garbage("a runner asks for nothing"));
        }
        Err(problem) => waiting.garbled(serial_connection::garbage(problem)),
    }
}
