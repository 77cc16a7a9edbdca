//! Log bytes of a session's leases, on their way into the object store (D8, A27).
//!
//! One task per session writes in order, off the session's own task, so that a slow disk delays no
//! heartbeat. What waits here is bounded: beyond it the session is not read, and the connection's
//! flow control holds the agent back (EP-45).

use std::collections::HashMap;

use bytes::Bytes;
use delta_core::LeaseKey;
use tokio::sync::mpsc;

use crate::http::App;
use crate::objects::AppendError;

/// Bytes of log that wait for the disk, per session: what an agent has on its way at most.
pub const MAX_WAITING_BYTES: usize = 8 * 1024 * 1024;
/// Chunks that wait: small ones are bounded by their number.
pub const MAX_WAITING_CHUNKS: usize = 4_096;

/// One piece of a log.
pub struct Chunk {
    pub lease: LeaseKey,
    /// Absent: right after what came before.
    pub offset: Option<u64>,
    pub data: Bytes,
}

/// How far a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub lease: LeaseKey,
    pub received: u64,
    pub stored: u64,
    pub resend: bool,
    pub full: bool,
    /// How many bytes of chunks this answers.
    pub taken: usize,
    pub chunks: usize,
}

/// Starts the task that writes; it ends when the session drops its side.
pub fn start(app: App) -> (mpsc::Sender<Chunk>, mpsc::Receiver<Written>) {
    let (chunks, waiting) = mpsc::channel(MAX_WAITING_CHUNKS);
    let (written, answers) = mpsc::channel(64);
    tokio::spawn(write(app, waiting, written));
    (chunks, answers)
}

async fn write(app: App, mut waiting: mpsc::Receiver<Chunk>, written: mpsc::Sender<Written>) {
    let mut lengths: HashMap<LeaseKey, u64> = HashMap::new();
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, 256).await > 0 {
        for (lease, pieces) in by_lease(std::mem::take(&mut batch)) {
            let at = lengths.get(&lease).copied();
            let answer = append(&app, lease, at, pieces).await;
            lengths.insert(lease, answer.received);
            if written.send(answer).await.is_err() {
                return;
            }
        }
    }
}

/// The chunks of each lease in their order, adjacent ones of one lease together.
fn by_lease(chunks: Vec<Chunk>) -> Vec<(LeaseKey, Vec<Chunk>)> {
    let mut order: Vec<(LeaseKey, Vec<Chunk>)> = Vec::new();
    for chunk in chunks {
        match order.iter_mut().find(|(lease, _)| *lease == chunk.lease) {
            Some((_, list)) => list.push(chunk),
            None => order.push((chunk.lease, vec![chunk])),
        }
    }
    order
}

/// Appends chunks of one lease until one does not fit.
async fn append(app: &App, lease: LeaseKey, at: Option<u64>, pieces: Vec<Chunk>) -> Written {
    let taken = pieces.iter().map(|it| it.data.len()).sum();
    let chunks = pieces.len();
    let mut answer = Written {
        lease,
        received: at.unwrap_or(0),
        stored: at.unwrap_or(0),
        resend: false,
        full: false,
        taken,
        chunks,
    };
    let objects = app.objects.clone();
    let done = tokio::task::spawn_blocking(move || {
        if at.is_none() {
            objects.make_log(lease)?;
        }
        let mut end = match at {
            Some(end) => end,
            None => objects.log_length(lease).unwrap_or(0),
        };
        for piece in pieces {
            let offset = piece.offset.unwrap_or(end);
            end = objects.append_log(lease, offset, &piece.data)?;
        }
        Ok::<u64, AppendError>(end)
    });
    match done.await {
        Ok(Ok(end)) => {
            answer.received = end;
            answer.stored = end;
        }
        Ok(Err(AppendError::Gap { expected } | AppendError::Differs { expected })) => {
            answer.received = expected;
            answer.stored = expected;
            answer.resend = true;
        }
        Ok(Err(AppendError::Full)) => answer.full = true,
        Ok(Err(AppendError::Unknown)) => answer.resend = true,
        Ok(Err(AppendError::Io(error))) => {
            tracing::warn!(%error, attempt = %lease.attempt, "log bytes could not be written");
            answer.resend = true;
        }
        Err(error) => {
            tracing::error!(%error, "writing a log failed");
            answer.resend = true;
        }
    }
    answer
}
