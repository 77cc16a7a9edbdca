//! Log bytes of a session's leases, on their way into the object store (D8, A27).
//!
//! One task per session writes in order, off the session's own task, so that a slow disk delays no
//! heartbeat. What waits here is bounded: beyond it the session is not read, and the connection's
//! flow control holds the agent back (EP-45).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use delta_core::LeaseKey;
use delta_wire::agent::MAX_FRAME_MESSAGES;
use tokio::sync::mpsc;

use crate::objects::{AppendError, Cursors, LogWatch, Objects};

/// Bytes of log that wait for the disk, per session: what an agent has on its way at most.
pub const MAX_WAITING_BYTES: usize = 8 * 1024 * 1024;
/// Orders that wait: small chunks are bounded by their number.
pub const MAX_WAITING_ORDERS: usize = 4_096;
/// Orders that are taken at once.
const BATCH: usize = 256;
/// Bytes are on disk a second after they were received; then the agent is told.
const STORED_AFTER: Duration = Duration::from_millis(1_200);
/// Logs that are kept open; beyond it those with nothing on their way are let go.
const MANY_OPEN: usize = 256;

/// Something to do with a log.
pub enum LogOrder {
    Append(LogPiece),
    /// See that everything received is on disk: its lease is about to be completed.
    Store(LeaseKey),
}

/// One piece of a log.
pub struct LogPiece {
    pub lease: LeaseKey,
    /// Absent: right after what came before.
    pub offset: Option<u64>,
    pub data: Bytes,
}

/// How far a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogProgress {
    pub received: u64,
    pub stored: u64,
    /// Send again from `received`.
    pub resend: bool,
    /// What is beyond `received` is not wanted.
    pub full: bool,
}

/// What became of orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogWritten {
    pub lease: LeaseKey,
    pub progress: LogProgress,
    /// Everything received is on disk, as was asked for.
    pub settled: bool,
    /// How many bytes and orders this answers.
    pub bytes: usize,
    pub orders: usize,
}

/// Starts the task that writes; it ends when the session drops its side.
pub fn start(objects: Arc<Objects>) -> (mpsc::Sender<LogOrder>, mpsc::Receiver<LogWritten>) {
    // A session that has the most waiting may have read one more frame before it stops.
    let (orders, waiting) = mpsc::channel(MAX_WAITING_ORDERS + MAX_FRAME_MESSAGES);
    let (written, answers) = mpsc::channel(64);
    let writer = LogWriter {
        objects,
        open: HashMap::new(),
        written,
    };
    tokio::spawn(writer.run(waiting));
    (orders, answers)
}

/// A log that this session writes.
struct OpenLog {
    watch: LogWatch,
    progress: LogProgress,
}

struct LogWriter {
    objects: Arc<Objects>,
    open: HashMap<LeaseKey, OpenLog>,
    written: mpsc::Sender<LogWritten>,
}

impl LogWriter {
    async fn run(mut self, mut waiting: mpsc::Receiver<LogOrder>) {
        let mut batch = Vec::new();
        loop {
            let taken = if self.has_unstored() {
                let more = waiting.recv_many(&mut batch, BATCH);
                tokio::time::timeout(STORED_AFTER, more).await.ok()
            } else {
                Some(waiting.recv_many(&mut batch, BATCH).await)
            };
            let said = match taken {
                Some(0) => return,
                Some(_) => self.carry_out(std::mem::take(&mut batch)).await,
                None => self.tell_stored().await,
            };
            if said.is_none() {
                return;
            }
        }
    }

    fn has_unstored(&self) -> bool {
        let mut open = self.open.values();
        open.any(|open| open.progress.stored < open.progress.received)
    }

    /// Nothing when nobody listens any more.
    async fn carry_out(&mut self, orders: Vec<LogOrder>) -> Option<()> {
        for order in orders {
            let written = match order {
                LogOrder::Append(chunk) => self.append(chunk).await,
                LogOrder::Store(lease) => self.store(lease).await,
            };
            self.written.send(written).await.ok()?;
        }
        if self.open.len() > MANY_OPEN {
            self.open
                .retain(|_, open| open.progress.stored < open.progress.received);
        }
        Some(())
    }

    async fn append(&mut self, chunk: LogPiece) -> LogWritten {
        let (lease, bytes) = (chunk.lease, chunk.data.len());
        let mut progress = match self.opened(lease).await {
            Ok(progress) => progress,
            Err(error) => {
                tracing::warn!(%error, attempt = %lease.attempt, "a log could not be opened");
                return answer(lease, resend(LogProgress::default()), bytes);
            }
        };
        let offset = chunk.offset.unwrap_or(progress.received);
        let appended = self.objects.append_log(lease, offset, chunk.data).await;
        match appended {
            Ok(cursors) => progress = of(&cursors),
            Err(AppendError::Gap { expected } | AppendError::Differs { expected }) => {
                progress.received = expected;
                progress = resend(progress);
            }
            Err(error) => {
                tracing::warn!(%error, attempt = %lease.attempt, "log bytes were not written");
                progress = resend(progress);
            }
        }
        if let Some(open) = self.open.get_mut(&lease) {
            open.progress = LogProgress {
                resend: false,
                ..progress
            };
        }
        answer(lease, progress, bytes)
    }

    /// How far the log is, made where there is none.
    async fn opened(&mut self, lease: LeaseKey) -> std::io::Result<LogProgress> {
        if let Some(open) = self.open.get(&lease) {
            return Ok(open.progress);
        }
        let objects = self.objects.clone();
        let found = tokio::task::spawn_blocking(move || {
            objects.make_log(lease)?;
            objects.log_cursors(lease)
        });
        let found = found.await.map_err(std::io::Error::other)??;
        let progress = found.as_ref().map(of).unwrap_or_default();
        let watch = self.objects.watch_log(lease);
        self.open.insert(lease, OpenLog { watch, progress });
        Ok(progress)
    }

    /// How far a log is, also one whose bytes came in an earlier session.
    async fn known(&self, lease: LeaseKey) -> Option<LogProgress> {
        if let Some(open) = self.open.get(&lease) {
            return Some(open.progress);
        }
        let objects = self.objects.clone();
        let found = tokio::task::spawn_blocking(move || objects.log_cursors(lease)).await;
        match found {
            Ok(Ok(found)) => found.as_ref().map(of),
            Ok(Err(error)) => {
                tracing::warn!(%error, attempt = %lease.attempt, "a log could not be read");
                None
            }
            Err(error) => {
                tracing::error!(%error, "reading a log failed");
                None
            }
        }
    }

    /// A disk in trouble must not keep a result back: the log is short then, and says so.
    async fn store(&mut self, lease: LeaseKey) -> LogWritten {
        let mut progress = self.known(lease).await;
        if let Some(known) = progress.filter(|known| known.stored < known.received) {
            let objects = self.objects.clone();
            let stored =
                tokio::task::spawn_blocking(move || objects.store_log(lease, known.received, b""));
            match stored.await {
                Ok(Ok(cursors)) => progress = Some(of(&cursors)),
                Ok(Err(error)) => {
                    tracing::warn!(%error, attempt = %lease.attempt, "a log could not be synced");
                }
                Err(error) => tracing::error!(%error, "syncing a log failed"),
            }
        }
        if let (Some(open), Some(progress)) = (self.open.get_mut(&lease), progress) {
            open.progress = progress;
        }
        LogWritten {
            settled: true,
            ..answer(lease, progress.unwrap_or_default(), 0)
        }
    }

    /// Tells what came to the disk by itself.
    async fn tell_stored(&mut self) -> Option<()> {
        let mut moved = Vec::new();
        for (lease, open) in &mut self.open {
            let cursors = open.watch.cursors();
            if cursors.stored > open.progress.stored {
                open.progress.stored = cursors.stored;
                moved.push((*lease, open.progress));
            }
        }
        for (lease, progress) in moved {
            let written = LogWritten {
                orders: 0,
                ..answer(lease, progress, 0)
            };
            self.written.send(written).await.ok()?;
        }
        Some(())
    }
}

fn of(cursors: &Cursors) -> LogProgress {
    LogProgress {
        received: cursors.received,
        stored: cursors.stored,
        resend: false,
        full: cursors.cut,
    }
}

fn resend(progress: LogProgress) -> LogProgress {
    LogProgress {
        resend: true,
        ..progress
    }
}

fn answer(lease: LeaseKey, progress: LogProgress, bytes: usize) -> LogWritten {
    LogWritten {
        lease,
        progress,
        settled: false,
        bytes,
        orders: 1,
    }
}
