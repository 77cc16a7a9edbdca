//! A report that is still being written: reading waits for more until the work is over.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use delta_shim::report_files;

/// How often a file that did not grow is looked at again.
const LOOK: Duration = Duration::from_millis(250);
/// Pauses are so many times as long as the look before them.
const PAUSES: u32 = 20;
/// Bytes read at once.
const PIECE: usize = 64 * 1024;

/// Whether the work goes on: what those who read along wait on.
#[derive(Default)]
pub struct Stage {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    over: bool,
    /// Threads that read along.
    readers: usize,
}

impl Stage {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn end(&self) {
        self.state().over = true;
        self.changed.notify_all();
    }

    /// Waits a moment; true when the work is over.
    pub fn wait(&self) -> bool {
        self.wait_after(Duration::ZERO)
    }

    /// Waits after a look that took so long; true when the work is over. What is looked for in a
    /// large tree must not take the machine from the work.
    pub fn wait_after(&self, look: Duration) -> bool {
        let pause = LOOK.max(look.saturating_mul(PAUSES));
        let waited = self
            .changed
            .wait_timeout_while(self.state(), pause, |state| !state.over);
        waited.unwrap_or_else(PoisonError::into_inner).0.over
    }

    /// Waits until nobody reads along any more.
    pub fn wait_for_readers(&self) {
        let waited = self
            .changed
            .wait_while(self.state(), |state| state.readers > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Does some reading along in a thread of its own. What cannot be started is read later.
    pub fn read_along(self: &Arc<Stage>, work: impl FnOnce() + Send + 'static) {
        self.state().readers += 1;
        let reading = Reading(self.clone());
        let work = move || {
            let _reading = reading;
            work();
        };
        let started = std::thread::Builder::new()
            .name("report".into())
            .spawn(work);
        if let Err(problem) = started {
            tracing::warn!(error = %problem, "a report is not read along");
        }
    }
}

struct Reading(Arc<Stage>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.state().readers -= 1;
        self.0.changed.notify_all();
    }
}

/// A growing file from its beginning. It ends, with an error, when the work is over or the file is
/// written anew: what was read until then stands.
pub struct Tail {
    file: File,
    root: PathBuf,
    path: String,
    stage: Arc<Stage>,
    read: u64,
    /// How long there was nothing to read.
    pub waited: Duration,
    piece: Vec<u8>,
    taken: usize,
}

impl Tail {
    pub fn new(file: File, root: PathBuf, path: String, stage: Arc<Stage>) -> Tail {
        Tail {
            file,
            root,
            path,
            stage,
            read: 0,
            waited: Duration::ZERO,
            piece: Vec::new(),
            taken: 0,
        }
    }

    /// Shorter than what was read, or another file by the same name.
    fn is_rewritten(&self) -> io::Result<bool> {
        let own = self.file.metadata()?;
        let there = report_files::open(&self.root, &self.path).and_then(|file| file.metadata());
        let same = there.is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino()));
        Ok(own.len() < self.read || !same)
    }
}

impl BufRead for Tail {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.taken == self.piece.len() {
            self.piece.resize(PIECE, 0);
            self.taken = 0;
            let read = self.file.read(&mut self.piece);
            self.piece.truncate(*read.as_ref().unwrap_or(&0));
            if read? > 0 {
                self.read += self.piece.len() as u64;
                break;
            }
            let began = Instant::now();
            let over = self.stage.wait();
            self.waited += began.elapsed();
            if over || self.is_rewritten()? {
                return Err(io::Error::other("reading along ended"));
            }
        }
        Ok(&self.piece[self.taken..])
    }

    fn consume(&mut self, amount: usize) {
        self.taken += amount;
    }
}

impl Read for Tail {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let room = bytes.len().min(into.len());
        into[..room].copy_from_slice(&bytes[..room]);
        self.consume(room);
        Ok(room)
    }
}
