//! One connection of a worker: requests in, answers out, in any order. Whatever it sends hurts no
//! other connection, and when it is gone its calls end unanswered.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// Bytes read at once.
const PIECE: usize = 64 * 1024;
/// Requests of one connection that may wait or run: beyond it nothing is read. Real workers have at
/// most 64 in flight.
const MAX_AHEAD: usize = 1024;
/// Answers that wait for a slow reader before the calls behind them do.
const ANSWERS_AHEAD: usize = 64;

/// What all connections of a runner share.
pub(crate) struct Shared {
    pub handlers: Handlers,
    /// Functions that may run at once.
    pub permits: Semaphore,
    /// No request is begun any more.
    pub stopping: CancellationToken,
    /// Every call is ended.
    pub ended: CancellationToken,
    /// A connection ends when its last answer is written.
    pub connections: TaskTracker,
    in_flight: Mutex<HashMap<String, InFlight>>,
}

struct InFlight {
    job_id: String,
    cancel: CancellationToken,
}

impl Shared {
    pub fn new(handlers: Handlers, concurrency: usize) -> Shared {
        Shared {
            handlers,
            permits: Semaphore::new(concurrency),
            stopping: CancellationToken::new(),
            ended: CancellationToken::new(),
            connections: TaskTracker::new(),
            in_flight: Mutex::default(),
        }
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<String, InFlight>> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is the only one of its id.
    fn enter(&self, id: &str, call: InFlight) -> bool {
        let mut in_flight = self.in_flight();
        let free = !in_flight.contains_key(id);
        if free {
            in_flight.insert(id.to_owned(), call);
        }
        free
    }

    /// Ends one call, or all of a job (RQ-40, RQ-41); none is fine, too (RQ-44).
    fn cancel(&self, cancel: &CancelRequest) {
        let in_flight = self.in_flight();
        match &cancel.request_id {
            Some(id) => in_flight.get(id).into_iter().for_each(InFlight::end),
            None => in_flight
                .values()
                .filter(|it| it.job_id == cancel.job_id)
                .for_each(InFlight::end),
        }
    }
}

impl InFlight {
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
        gone: gone.clone(),
        left: left.clone(),
    };
    tokio::select! {
        read = connection.read(reader) => {
            if let Err(error) = read {
                eprintln!("delta-runner: a connection ended: {error}");
            }
            // Half a connection is none: whoever closed it does not wait for answers.
            left.cancel();
            gone.cancel();
        }
        // What runs is still answered.
        () = shared.stopping.cancelled() => {}
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
                self.hear(message).await;
            }
            match reader.read(&mut piece).await? {
                0 => return Ok(()),
                length => frames.push(&piece[..length]),
            }
        }
    }

    async fn hear(&self, message: Message) {
        match message {
            Message::Request(Ok(request)) => self.begin(request).await,
            Message::Request(Err(refused)) => {
                eprintln!("delta-runner: a request is refused: {}", refused.why);
                if let Some(outcome) = refused.outcome() {
                    self.say(&outcome).await;
                }
            }
            Message::Cancel(Some(cancel)) => self.shared.cancel(&cancel),
            Message::Cancel(None) => {}
            Message::Response(_) => eprintln!("delta-runner: a response was sent to a runner"),
            Message::Unknown(kind) => {
                let kind: String = kind.chars().take(40).collect();
                eprintln!("delta-runner: a message of the unknown type {kind:?} is ignored");
            }
        }
    }

    async fn begin(&self, request: ExecutionRequest) {
        let Ok(ahead) = self.ahead.clone().acquire_owned().await else {
            return;
        };
        let cancel = self.gone.child_token();
        let id = request.request_id.clone();
        let call = InFlight {
            job_id: request.job_id.clone(),
            cancel: cancel.clone(),
        };
        if !self.shared.enter(&id, call) {
            // RQ-20: whoever sends one twice hears that, and the first goes on.
            eprintln!("delta-runner: a request that is in flight came again");
            let words = "a request of this id is in flight";
            let error = ErrorInfo::of_type(DUPLICATE_REQUEST, words);
            return self.say(&call::failed(&request, error)).await;
        }
        let (shared, answers) = (self.shared.clone(), self.answers.clone());
        let left = self.left.clone();
        tokio::spawn(async move {
            let outcome = call::answer(&shared.handlers, &shared.permits, &request, cancel).await;
            // Free before it is answered: the next request may have the same id.
            shared.in_flight().remove(&id);
            if !left.is_cancelled() {
                let _ = answers.send(framed(&request, &outcome)).await;
            }
            drop(ahead);
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
