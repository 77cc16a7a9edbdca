//! Logs: a row of segments per lease, which only grows, and only at its end (A27).
//!
//! A log has two cursors. What is *received* can be read at once, by every server that shares the
//! folder. What is *stored* is on disk: only then may a holder forget it. Appending writes and
//! returns; a thread of this module brings the bytes to disk, many logs at a time.

mod one;
mod segments;
mod syncer;
#[cfg(test)]
mod tests;
mod writing;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use delta_core::{Digest, LeaseKey};
use tokio::sync::watch;

use super::{Objects, make_folder};
use one::{Left, Log};
use syncer::Queue;

pub use segments::LogReader;

/// Log bytes of one lease: more than anybody reads, little enough for a disk to hold many.
pub const MAX_LOG_BYTES: u64 = 256 * 1024 * 1024;
/// Remembered hashes of logs; beyond it the memory starts anew.
const MAX_HASHED: usize = 10_000;
/// How long the hash of a log that is not as declared is remembered: reading it again costs.
const BAD_HASH_KEPT: Duration = Duration::from_secs(60);
/// Logs with unsynced bytes, each of which holds a lock and some files open; the bytes of any more
/// are synced before they are answered for.
const MAX_OPEN: usize = 1_000;
/// Logs that are known before those nobody has to do with any more are forgotten.
const MANY_KNOWN: usize = 256;

/// How far a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursors {
    /// Bytes that can be read: the offset of the next one to send.
    pub received: u64,
    /// Bytes that are on disk, and that the holder may forget.
    pub stored: u64,
    /// The log is longer than what is kept of it: bytes are counted and dropped.
    pub cut: bool,
}

/// Why bytes were not appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("there is no such upload")]
    Unknown,
    #[error("the next byte of this log is {expected}")]
    Gap { expected: u64 },
    #[error("these bytes differ from those stored at the same place")]
    Differs { expected: u64 },
    #[error("another server is writing this log; try again")]
    Busy,
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for AppendError {
    fn from(error: io::Error) -> AppendError {
        match error.kind() {
            io::ErrorKind::NotFound => AppendError::Unknown,
            io::ErrorKind::WouldBlock => AppendError::Busy,
            _ => AppendError::Io(error),
        }
    }
}

/// The logs of this server, and the thread that syncs them.
pub(super) struct Logs {
    pub quota: u64,
    /// Those that somebody appends to or watches.
    known: Mutex<HashMap<LeaseKey, Weak<Log>>>,
    queue: Arc<Queue>,
    /// Hashes of logs by their length then: a log only grows.
    hashed: Mutex<HashMap<LeaseKey, (u64, Digest, Instant)>>,
}

impl Logs {
    pub fn start() -> io::Result<Logs> {
        let queue = Arc::<Queue>::default();
        let thread = queue.clone();
        let builder = std::thread::Builder::new().name("log-sync".into());
        builder.spawn(move || thread.run())?;
        Ok(Logs {
            quota: MAX_LOG_BYTES,
            known: Mutex::default(),
            queue,
            hashed: Mutex::default(),
        })
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        self.queue.end();
    }
}

/// News of one log, as long as this is kept.
pub struct LogWatch {
    _log: Arc<Log>,
    cursors: watch::Receiver<Cursors>,
}

impl LogWatch {
    /// Returns when a cursor has moved since this was last asked.
    pub async fn changed(&mut self) {
        // The sender lives as long as the log is kept.
        let _ = self.cursors.changed().await;
    }

    /// How far the log was when this server last wrote it; nothing if it has not yet.
    pub fn cursors(&mut self) -> Cursors {
        *self.cursors.borrow_and_update()
    }
}

impl Objects {
    /// Makes room for a lease's log, if there is none yet. When this returns it is on disk, and
    /// from then on only its bytes have to be.
    pub fn make_log(&self, lease: LeaseKey) -> io::Result<()> {
        let folder = self.log_folder(lease);
        make_folder(&folder)?;
        segments::create(&folder, 0)?.sync_all()?;
        self.sync(&folder)
    }

    /// Adds log bytes that begin at `offset`, off the async threads. When this returns they can be
    /// read; they are on disk when the cursor `stored` has passed them (A27).
    pub async fn append_log(
        self: &Arc<Self>,
        lease: LeaseKey,
        offset: u64,
        bytes: Bytes,
    ) -> Result<Cursors, AppendError> {
        let objects = self.clone();
        let appended =
            tokio::task::spawn_blocking(move || objects.append_log_here(lease, offset, &bytes));
        appended
            .await
            .unwrap_or_else(|error| Err(AppendError::Io(io::Error::other(error))))
    }

    /// Appends on the thread that calls, which may have to wait for the disk or for another server.
    pub fn append_log_here(
        &self,
        lease: LeaseKey,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Cursors, AppendError> {
        let log = self.log(lease);
        let (appended, left) = log.append(offset, bytes);
        let crowded = self.logs.queue.add(lease, &log, left) > MAX_OPEN;
        if crowded && appended.is_ok() {
            return Ok(log.sync()?.0);
        }
        appended
    }

    /// Adds log bytes, and returns when they are on disk.
    pub fn store_log(
        &self,
        lease: LeaseKey,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Cursors, AppendError> {
        let log = self.log(lease);
        let (appended, left) = log.append(offset, bytes);
        match left {
            Left::Nothing => appended,
            Left::Unsynced(_) => {
                let synced = log.sync();
                if let Ok((_, left)) = synced {
                    self.logs.queue.add(lease, &log, left);
                }
                appended.and(Ok(synced?.0))
            }
        }
    }

    /// How far a log is: where its holder should go on. `None` when there is no log.
    pub fn log_cursors(&self, lease: LeaseKey) -> io::Result<Option<Cursors>> {
        let log = self.log(lease);
        if let Some(cursors) = log.cursors() {
            return Ok(Some(cursors));
        }
        let chain = match segments::list(log.folder()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            chain => chain?,
        };
        let stored = writing::mark_of(log.folder()).min(chain.bytes());
        Ok(Some(Cursors {
            received: stored,
            stored,
            cut: chain.cut.is_some(),
        }))
    }

    /// Tells when a cursor of a log moves, by an append to this server.
    pub fn watch_log(&self, lease: LeaseKey) -> LogWatch {
        let log = self.log(lease);
        LogWatch {
            cursors: log.subscribe(),
            _log: log,
        }
    }

    /// Reads a log from some offset on.
    pub fn read_log(&self, lease: LeaseKey, at: u64) -> LogReader {
        LogReader::new(self.log_folder(lease), at)
    }

    /// What there is of a lease's log; `None` when there is nothing.
    pub fn log_extent(&self, lease: LeaseKey) -> Option<LogExtent> {
        let chain = segments::list(&self.log_folder(lease)).ok()?;
        Some(LogExtent {
            bytes: chain.bytes(),
            readable: chain.readable(),
            cut: chain.cut.is_some(),
        })
    }

    /// Whether a log of which somebody declared bytes was stored here and is not any more: all of
    /// it is gone, or there is less than what was on disk once. One that never came is not lost.
    pub fn log_is_lost(&self, lease: LeaseKey) -> bool {
        let folder = self.log_folder(lease);
        match segments::list(&folder) {
            Ok(chain) => chain.segments.is_empty() || writing::mark_of(&folder) > chain.bytes(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Whether the first `length` bytes of a log have this hash. Read once per length; a log that
    /// is not as it was declared is looked at again after a while: its holder may mend it.
    pub fn log_has_hash(&self, lease: LeaseKey, length: u64, hash: &Digest) -> bool {
        let known = locked(&self.logs.hashed).get(&lease).copied();
        if let Some((_, found, at)) = known.filter(|(of, ..)| *of == length)
            && (found == *hash || at.elapsed() < BAD_HASH_KEPT)
        {
            return found == *hash;
        }
        let Ok(found) = hash_of(self.read_log(lease, 0), length) else {
            return false;
        };
        let mut memory = locked(&self.logs.hashed);
        if memory.len() >= MAX_HASHED {
            memory.clear();
        }
        memory.insert(lease, (length, found, Instant::now()));
        found == *hash
    }

    fn log_folder(&self, lease: LeaseKey) -> PathBuf {
        self.folder(lease).join("log")
    }

    fn log(&self, lease: LeaseKey) -> Arc<Log> {
        let mut known = locked(&self.logs.known);
        if let Some(log) = known.get(&lease).and_then(Weak::upgrade) {
            return log;
        }
        if known.len() >= MANY_KNOWN && known.len() == known.capacity() {
            known.retain(|_, log| log.strong_count() > 0);
        }
        let log = Arc::new(Log::new(self.log_folder(lease), self.logs.quota));
        known.insert(lease, Arc::downgrade(&log));
        log
    }
}

/// How much there is of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogExtent {
    /// The holder's bytes.
    pub bytes: u64,
    /// Those, and the marker of a log that was cut.
    pub readable: u64,
    pub cut: bool,
}

fn hash_of(mut log: LogReader, length: u64) -> io::Result<Digest> {
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 64 * 1024];
    let mut left = usize::try_from(length).map_err(io::Error::other)?;
    while left > 0 {
        let most = left.min(buffer.len());
        let read = log.read(&mut buffer[..most])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        context.update(&buffer[..read]);
        left -= read;
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    Ok(digest)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
