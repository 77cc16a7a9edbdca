//! Connections to one runner that carry one request at a time, as the protocol reads (RQ-13).
//!
//! A connection is used again where that can do no harm. Some runners close it after an answer: a
//! request that is sent at that moment would be lost, so the first one is watched for a while. Some
//! serve one connection after the other: to them a connection that is kept keeps all others out.
//! So none is kept while another waits for its first answer, until the runner has shown that it
//! serves several.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use delta_runner_protocol::{Frames, Message, Outcome, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::endpoint::RunnerEndpoint;

/// How long the first connection is watched after its answer, once per process: whoever closes
/// connections does so at once.
const WATCHED: Duration = Duration::from_millis(50);
/// Bytes read at once.
pub(super) const PIECE: usize = 64 * 1024;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RunnerCallError {
    /// The runner has seen nothing of it: it can be sent elsewhere.
    NotSent(String),
    /// What became of it is not known.
    Broken(String),
}

/// Which answer is waited for.
#[derive(Debug, Clone)]
pub(super) struct Ids {
    pub request: String,
    pub job: String,
}

/// The connections of one runner.
pub(super) struct Lines {
    kept: Mutex<Kept>,
    unknown: Unknown,
}

/// How often a pool's runners have sent something of a type that nobody knows (RQ-12).
#[derive(Clone, Default)]
pub(super) struct Unknown(Arc<AtomicU64>);

impl Unknown {
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Of a later version, perhaps: counted each time, and said once.
    pub fn note(&self, kind: &str) {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            let kind: String = kind.chars().take(40).collect();
            tracing::warn!(kind, "a runner sent a message of an unknown type");
        }
    }
}

#[derive(Default)]
struct Kept {
    idle: Vec<IdleConnection>,
    /// Whether the runner leaves connections open; not known at first.
    stays_open: Option<bool>,
    /// Calls on connections that have answered nothing yet.
    fresh: u32,
    /// Connections that have answered before and are open, idle or not.
    proven: u32,
    /// An answer came on one while another was open that had answered before: to a runner that
    /// serves one after the other, that one would have been in the way.
    serves_several: bool,
}

/// One connection.
struct IdleConnection {
    stream: TcpStream,
    frames: Frames,
    /// The request that was answered last: a second answer to it is nobody's.
    answered: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    Fresh,
    Proven,
    Idle,
}

/// A connection in use. What is not given back is closed.
struct Used<'a> {
    lines: &'a Lines,
    line: Option<IdleConnection>,
    counted: Counted,
}

impl Lines {
    pub fn new(unknown: &Unknown) -> Lines {
        Lines {
            kept: Mutex::default(),
            unknown: unknown.clone(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for its answer.
    pub async fn exchange(
        &self,
        door: &RunnerEndpoint,
        frame: &[u8],
        ids: &Ids,
    ) -> Result<Outcome, RunnerCallError> {
        let mut used = self.take(door).await?;
        let Some(line) = &mut used.line else {
            return Err(RunnerCallError::NotSent(
                "there is no connection".to_owned(),
            ));
        };
        line.stream.write_all(frame).await.map_err(broken)?;
        let outcome = line.answer(ids, &self.unknown).await?;
        line.answered = Some(ids.request.clone());
        self.prove(&mut used.counted);
        if self.kept().stays_open.is_none() {
            let stays = timeout(WATCHED, line.stream.readable()).await.is_err();
            self.kept().stays_open = Some(stays);
        }
        used.give_back();
        Ok(outcome)
    }

    async fn take(&self, door: &RunnerEndpoint) -> Result<Used<'_>, RunnerCallError> {
        loop {
            let found = self.kept().idle.pop();
            let Some(line) = found else { break };
            let used = self.used(Some(line), Counted::Proven);
            if used.line.as_ref().is_some_and(IdleConnection::is_quiet) {
                return Ok(used);
            }
        }
        // Counted before it is there, so that nobody keeps another one meanwhile.
        let mut used = self.used(None, Counted::Fresh);
        used.line = Some(IdleConnection {
            stream: door.dial().await?,
            frames: Frames::new(),
            answered: None,
        });
        Ok(used)
    }

    fn used(&self, line: Option<IdleConnection>, counted: Counted) -> Used<'_> {
        self.kept().fresh += u32::from(counted == Counted::Fresh);
        Used {
            lines: self,
            line,
            counted,
        }
    }

    /// It has answered.
    fn prove(&self, counted: &mut Counted) {
        let mut kept = self.kept();
        if std::mem::replace(counted, Counted::Proven) == Counted::Fresh {
            kept.fresh -= 1;
            kept.proven += 1;
        }
        kept.serves_several |= kept.proven > 1;
    }
}

impl Used<'_> {
    /// It answered: it is kept, if that stands in nobody's way.
    fn give_back(mut self) {
        let mut kept = self.lines.kept();
        let harmless = kept.fresh == 0 || kept.serves_several;
        if harmless && kept.stays_open == Some(true) {
            self.counted = Counted::Idle;
            kept.idle.extend(self.line.take());
        }
    }
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        let mut kept = self.lines.kept();
        match self.counted {
            Counted::Fresh => kept.fresh -= 1,
            Counted::Proven => kept.proven -= 1,
            Counted::Idle => {}
        }
    }
}

impl IdleConnection {
    /// Open, and nothing was said since its last answer.
    fn is_quiet(&self) -> bool {
        let mut byte = [0];
        let nothing = self.stream.try_read(&mut byte);
        let silent = matches!(nothing, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        silent && self.frames.is_between_frames()
    }

    async fn answer(&mut self, ids: &Ids, unknown: &Unknown) -> Result<Outcome, RunnerCallError> {
        let mut piece = vec![0; PIECE];
        loop {
            while let Some(json) = next_frame(&mut self.frames)? {
                match Message::read(json).map_err(garbage)? {
                    Message::Response(response) if self.is_old(&response) => {
                        tracing::warn!("a runner answered twice; the second is dropped");
                    }
                    Message::Response(response) => return judge(response, ids),
                    Message::Unknown(kind) => unknown.note(&kind),
                    Message::Request(_) | Message::Cancel(_) => {
                        return Err(garbage("a runner asks for nothing"));
                    }
                }
            }
            match self.stream.read(&mut piece).await.map_err(broken)? {
                0 => return Err(closed()),
                length => self.frames.push(&piece[..length]),
            }
        }
    }

    fn is_old(&self, response: &Response) -> bool {
        response.request_id.is_some() && response.request_id == self.answered
    }
}

pub(super) fn next_frame(frames: &mut Frames) -> Result<Option<&[u8]>, RunnerCallError> {
    frames.next_frame().map_err(garbage)
}

/// Whether an answer is the one to this request (RQ-34, RQ-35).
pub(super) fn judge(response: Response, ids: &Ids) -> Result<Outcome, RunnerCallError> {
    let wrong = |why: &str| {
        Err(RunnerCallError::Broken(format!(
            "the runner's answer {why}"
        )))
    };
    match response.request_id {
        None => return wrong("has no request_id"),
        Some(id) if id != ids.request => return wrong("is to another request"),
        Some(_) => {}
    }
    match response.outcome {
        Ok(outcome) if outcome.job_id != ids.job => wrong("is about another job"),
        Ok(outcome) => Ok(outcome),
        Err(why) => wrong(&format!("cannot be read: {why}")),
    }
}

pub(super) fn garbage(problem: impl std::fmt::Display) -> RunnerCallError {
    RunnerCallError::Broken(format!("the runner's answer cannot be read: {problem}"))
}

pub(super) fn closed() -> RunnerCallError {
    RunnerCallError::Broken("the runner closed the connection without an answer".to_owned())
}

pub(super) fn broken(problem: io::Error) -> RunnerCallError {
    RunnerCallError::Broken(format!("the connection to the runner broke: {problem}"))
}
