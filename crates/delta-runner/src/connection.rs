//! One connection of a worker: requests in, answers out, in any order. Whatever it sends hurts no
//! other connection, and when it is gone its calls end unanswered. It is read to the runner's very
//! end: what comes too late is handed back, and a cancel is heard.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use delta_runner_protocol::{
    CancelRequest, DUPLICATE_REQUEST, ErrorInfo, ExecutionRequest, Frames, Message, Outcome, frame,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call;
use crate::handlers::Handlers;
use crate::stderr::say;
use crate::turn::Turn;

/// Bytes read at once.
const PIECE: usize = 64 * 1024;
/// Requests of one connection that may wait or run: beyond it nothing is read. Real workers have at
/// most 64 in flight.
const MAX_AHEAD: usize = 1024;
/// Bytes of one connection's requests that may wait or run: four frames of the largest size.
const MAX_AHEAD_BYTES: usize = 64 * 1024 * 1024;
/// Answers that wait for a slow reader before the calls behind them do.
const ANSWERS_AHEAD: usize = 64;
/// How long a cancel that meant nobody is kept: it has a connection of its own, and may be read
/// before the request that was written first.
const EARLY: Duration = Duration::from_millis(500);
/// How many of them: more than come within that time.
const MAX_EARLY: usize = 256;

/// What all connections of a runner share.
pub(crate) struct Shared {
    pub handlers: Handlers,
    /// Functions that may run at once.
    pub permits: Arc<Semaphore>,
    /// No request is begun any more.
    pub stopping: CancellationToken,
    /// Every call is ended.
    pub ended: CancellationToken,
    /// Nothing is read any more.
    pub closing: CancellationToken,
    /// What is not answered yet.
    pub calls: TaskTracker,
    /// A connection ends when its last answer is written.
    pub connections: TaskTracker,
    in_flight: Mutex<Calls>,
    /// Messages of types that nobody knows (RQ-12).
    unknown: AtomicU64,
}

#[derive(Default)]
struct Calls {
    by_id: HashMap<String, InFlight>,
    /// Cancels whose calls are still to come, perhaps.
    early: VecDeque<(Instant, CancelRequest)>,
}

struct InFlight {
    job_id: String,
    cancel: CancellationToken,
}

impl Shared {
    pub fn new(handlers: Handlers, concurrency: usize) -> Shared {
        Shared {
            handlers,
            permits: Arc::new(Semaphore::new(concurrency)),
            stopping: CancellationToken::new(),
            ended: CancellationToken::new(),
            closing: CancellationToken::new(),
            calls: TaskTracker::new(),
            connections: TaskTracker::new(),
            in_flight: Mutex::default(),
            unknown: AtomicU64::new(0),
        }
    }

    /// What was odd, at the end.
    pub fn say_counts(&self) {
        let unknown = self.unknown.load(Ordering::Relaxed);
        if unknown > 0 {
            say(format_args!(
                "{unknown} messages of unknown types were ignored"
            ));
        }
    }

    fn in_flight(&self) -> MutexGuard<'_, Calls> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is the only one of its id.
    fn enter(&self, id: &str, call: InFlight) -> bool {
        let mut in_flight = self.in_flight();
        if in_flight.by_id.contains_key(id) {
            return false;
        }
        let fresh = |(at, _): &(Instant, CancelRequest)| at.elapsed() < EARLY;
        in_flight.early.retain(fresh);
        let mut early = in_flight.early.iter();
        if let Some(at) = early.position(|(_, it)| call.is_meant(id, it)) {
            // Once: the next request of the job is another one.
            in_flight.early.remove(at);
            call.end();
        }
        in_flight.by_id.insert(id.to_owned(), call);
        true
    }

    /// Frees the id of this call, unless another has it meanwhile.
    fn leave(&self, id: &str, call: &CancellationToken) {
        let mut in_flight = self.in_flight();
        let same = |flight: &InFlight| flight.cancel == *call;
        if in_flight.by_id.get(id).is_some_and(same) {
            in_flight.by_id.remove(id);
        }
    }

    /// Ends one call, or all of a job (RQ-40, RQ-41); none is fine, too (RQ-44).
    fn cancel(&self, cancel: &CancelRequest) {
        let mut in_flight = self.in_flight();
        let calls = in_flight.by_id.iter();
        let meant: Vec<&InFlight> = calls
            .filter(|(id, call)| call.is_meant(id, cancel))
            .map(|(_, call)| call)
            .collect();
        meant.iter().for_each(|call| call.end());
        if meant.is_empty() {
            in_flight.early.truncate(MAX_EARLY - 1);
            in_flight.early.push_front((Instant::now(), cancel.clone()));
        }
    }
}

impl InFlight {
    fn is_meant(&self, id: &str, cancel: &CancelRequest) -> bool {
        match &cancel.request_id {
            Some(request) => request == id,
            None => self.job_id == cancel.job_id,
        }
    }

    fn end(&self) {
        self.cancel.cancel();
    }
}

/// Serves a connection until it is gone, or the runner ends.
pub(crate) async fn serve(shared: Arc<Shared>, stream: TcpStream) {
    // Answers are small, and each is awaited.
    let _ = stream.set_nodelay(true);
    let (reader, writer) = stream.into_split();
    let (answers, waiting) = mpsc::channel(ANSWERS_AHEAD);
    let writing = tokio::spawn(write(writer, waiting));
    let (gone, left) = (shared.ended.child_token(), CancellationToken::new());
    let connection = Connection {
        shared: shared.clone(),
        answers,
        ahead: Arc::new(Semaphore::new(MAX_AHEAD)),
        ahead_bytes: Arc::new(Semaphore::new(MAX_AHEAD_BYTES)),
        gone: gone.clone(),
        left: left.clone(),
    };
    tokio::select! {
        read = connection.read(reader) => {
            if let Err(error) = read {
                say(format_args!("a connection ended: {error}"));
            }
            // Half a connection is none: whoever closed it does not wait for answers.
            left.cancel();
            gone.cancel();
        }
        () = shared.closing.cancelled() => {}
    }
    drop(connection);
    let _ = writing.await;
}

async fn write(mut writer: OwnedWriteHalf, mut waiting: mpsc::Receiver<Vec<u8>>) {
    while let Some(mut together) = waiting.recv().await {
        // What waits goes out in one piece: a system call costs more than an answer.
        while together.len() < PIECE
            && let Ok(next) = waiting.try_recv()
        {
            together.extend_from_slice(&next);
        }
        if writer.write_all(&together).await.is_err() {
            return;
        }
    }
}

struct Connection {
    shared: Arc<Shared>,
    answers: mpsc::Sender<Vec<u8>>,
    ahead: Arc<Semaphore>,
    ahead_bytes: Arc<Semaphore>,
    /// Its calls are ended.
    gone: CancellationToken,
    /// Nobody reads the answers.
    left: CancellationToken,
}

impl Connection {
    async fn read(&self, mut reader: OwnedReadHalf) -> io::Result<()> {
        let (mut frames, mut piece) = (Frames::new(), vec![0; PIECE]);
        loop {
            while let Some(json) = frames.next_frame().map_err(io::Error::other)? {
                let message = Message::read(json).map_err(io::Error::other)?;
                // No frame is near four gigabytes.
                let size = u32::try_from(json.len()).unwrap_or(u32::MAX);
                self.hear(message, size).await;
            }
            match reader.read(&mut piece).await? {
                0 => return Ok(()),
                length => frames.push(&piece[..length]),
            }
        }
    }

    async fn hear(&self, message: Message, size: u32) {
        match message {
            Message::Request(Ok(request)) => self.begin(request, size).await,
            Message::Request(Err(refused)) => {
                say(format_args!("a request is refused: {}", refused.why));
                if let Some(outcome) = refused.outcome() {
                    self.say(&outcome).await;
                }
            }
            Message::Cancel(Some(cancel)) => self.shared.cancel(&cancel),
            Message::Cancel(None) => {}
            Message::Response(_) => say(format_args!("a response was sent to a runner")),
            Message::Unknown(kind) => {
                // Counted each time, and said once: who speaks a later version goes on doing so.
                if self.shared.unknown.fetch_add(1, Ordering::Relaxed) == 0 {
                    let kind: String = kind.chars().take(40).collect();
                    say(format_args!(
                        "a message of the unknown type {kind:?} is ignored"
                    ));
                }
            }
        }
    }

    async fn begin(&self, request: ExecutionRequest, size: u32) {
        let Ok(ahead) = self.ahead.clone().acquire_owned().await else {
            return;
        };
        let bytes = self.ahead_bytes.clone().acquire_many_owned(size).await;
        let Ok(bytes) = bytes else { return };
        let cancel = self.gone.child_token();
        let id = request.request_id.clone();
        let call = InFlight {
            job_id: request.job_id.clone(),
            cancel: cancel.clone(),
        };
        if !self.shared.enter(&id, call) {
            // RQ-20: whoever sends one twice hears that, and the first goes on.
            say(format_args!("a request that is in flight came again"));
            let words = "a request of this id is in flight";
            let error = ErrorInfo::of_type(DUPLICATE_REQUEST, words);
            return self.say(&call::failed(&request, error)).await;
        }
        let turn = Turn::line_up(&self.shared.permits).await;
        let (shared, answers) = (self.shared.clone(), self.answers.clone());
        let left = self.left.clone();
        let calls = shared.calls.clone();
        calls.spawn(async move {
            let answer = call::answer(&shared, &request, cancel.clone(), turn);
            tokio::pin!(answer);
            let outcome = tokio::select! {
                biased;
                outcome = &mut answer => outcome,
                // Its request is nobody's any more, though a thread of it may go on.
                () = left.cancelled() => {
                    shared.leave(&id, &cancel);
                    answer.await
                }
            };
            // Free before it is answered: the next request may have the same id.
            shared.leave(&id, &cancel);
            if !left.is_cancelled() {
                let _ = answers.send(framed(&request, &outcome)).await;
            }
            drop((ahead, bytes));
        });
    }

    async fn say(&self, outcome: &Outcome) {
        if let Ok(frame) = frame(outcome) {
            let _ = self.answers.send(frame).await;
        }
    }
}

/// A result that no frame can hold is a failure.
fn framed(request: &ExecutionRequest, outcome: &Outcome) -> Vec<u8> {
    let words = "the answer is larger than a frame may be";
    let instead = || frame(&call::failed(request, ErrorInfo::new(words)));
    frame(outcome).or_else(|_| instead()).unwrap_or_default()
}
