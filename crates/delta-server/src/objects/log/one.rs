//! One lease's log in this server: appended to by whoever has its bytes, synced in the background,
//! watched by whoever waits for either.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::writing::Writing;
use super::{AppendError, Cursors};

/// Bytes of one log that may be unsynced before whoever appends has to wait for the disk: what a
/// quick disk takes in a tenth of a second.
const MAX_UNSYNCED_BYTES: u64 = 16 * 1024 * 1024;
/// How long a log is kept from other servers at most while bytes come without a pause.
const TURN: Duration = Duration::from_secs(1);
/// How long it is left to them then: they look every few milliseconds.
const LEFT: Duration = Duration::from_millis(10);

pub(super) struct Log {
    folder: PathBuf,
    quota: u64,
    state: Mutex<State>,
    /// Held while bytes are synced, so that nobody syncs the same ones at once.
    syncing: Mutex<()>,
    cursors: watch::Sender<Cursors>,
}

#[derive(Default)]
struct State {
    /// While there is something that is not on disk yet.
    writing: Option<Writing>,
    /// Other servers have their turn until then.
    left_until: Option<Instant>,
}

/// What is left to do after an append or a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// So many bytes are not on disk yet.
    Unsynced(u64),
}

impl Log {
    pub fn new(folder: PathBuf, quota: u64) -> Log {
        Log {
            folder,
            quota,
            state: Mutex::default(),
            syncing: Mutex::default(),
            cursors: watch::Sender::new(Cursors::default()),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn subscribe(&self) -> watch::Receiver<Cursors> {
        self.cursors.subscribe()
    }

    /// How far the log is, if somebody of this server is writing it.
    pub fn cursors(&self) -> Option<Cursors> {
        self.state().writing.as_ref().map(Writing::cursors)
    }

    /// Adds bytes. When this returns they can be read; they may not be on disk yet.
    pub fn append(&self, offset: u64, bytes: &[u8]) -> (Result<Cursors, AppendError>, Left) {
        loop {
            if let Some(done) = self.try_append(offset, bytes) {
                return done;
            }
            // The disk is slower than the holder, who has to wait for it.
            if let Err(error) = self.sync() {
                return (Err(error.into()), Left::Nothing);
            }
        }
    }

    /// `None` when too much is not on disk yet.
    fn try_append(
        &self,
        offset: u64,
        bytes: &[u8],
    ) -> Option<(Result<Cursors, AppendError>, Left)> {
        let last = *self.cursors.borrow();
        let mut state = self.state();
        if last.cut && last.stored == last.received && offset >= last.received {
            // Nothing of it is kept: a flood beyond the quota costs the disk nothing.
            let counted = Cursors {
                received: offset.saturating_add(bytes.len() as u64),
                stored: offset.saturating_add(bytes.len() as u64),
                cut: true,
            };
            self.publish(counted);
            return Some((Ok(counted), Left::Nothing));
        }
        let writing = match state.begin(&self.folder, last.received) {
            Ok(writing) => writing,
            Err(error) => return Some((Err(error.into()), Left::Nothing)),
        };
        if writing.unsynced_bytes() >= MAX_UNSYNCED_BYTES {
            return None;
        }
        let appended = writing.append(&self.folder, self.quota, offset, bytes);
        let cursors = writing.cursors();
        let left = state.release_if_synced();
        self.publish(cursors);
        Some((appended.map(|()| cursors), left))
    }

    /// Brings what was appended so far to disk.
    pub fn sync(&self) -> io::Result<(Cursors, Left)> {
        let _one = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let unsynced = self.state().writing.as_ref().map(Writing::unsynced);
        let Some(unsynced) = unsynced else {
            return Ok((*self.cursors.borrow(), Left::Nothing));
        };
        let mut done = unsynced.sync(&self.folder);
        let mut state = self.state();
        let state = &mut *state;
        let Some(writing) = &mut state.writing else {
            return Ok((*self.cursors.borrow(), Left::Nothing));
        };
        if done.is_ok() {
            writing.synced(&unsynced);
            if !writing.is_synced() && writing.held_for() > TURN {
                // Others must get their turn: nothing is appended while the rest is synced.
                let rest = writing.unsynced();
                done = rest.sync(&self.folder).inspect(|()| writing.synced(&rest));
                state.left_until = Some(Instant::now() + LEFT);
            }
        }
        if let Err(error) = done {
            // A disk that could not sync may have forgotten what it had: it is asked for again.
            let rolled_back = writing.roll_back(&self.folder);
            self.publish(writing.cursors());
            state.writing = None;
            return Err(rolled_back.err().unwrap_or(error));
        }
        let cursors = writing.cursors();
        let left = state.release_if_synced();
        self.publish(cursors);
        Ok((cursors, left))
    }

    fn publish(&self, cursors: Cursors) {
        self.cursors.send_if_modified(|before| {
            let changed = *before != cursors;
            *before = cursors;
            changed
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The log as it is being written; takes it from other servers if need be.
    fn begin(&mut self, folder: &Path, counted: u64) -> io::Result<&mut Writing> {
        let writing = match self.writing.take() {
            Some(writing) => writing,
            None => {
                if let Some(until) = self.left_until.take() {
                    std::thread::sleep(until.saturating_duration_since(Instant::now()));
                }
                let mut writing = Writing::begin(folder)?;
                writing.count(counted);
                writing
            }
        };
        Ok(self.writing.insert(writing))
    }

    /// Lets other servers write as soon as everything is on disk.
    fn release_if_synced(&mut self) -> Left {
        match &self.writing {
            Some(writing) if !writing.is_synced() => Left::Unsynced(writing.unsynced_bytes()),
            _ => {
                self.writing = None;
                Left::Nothing
            }
        }
    }
}
