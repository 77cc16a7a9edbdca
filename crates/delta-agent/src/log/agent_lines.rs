//! The log while the agent itself writes it: before the shim begins, and after it has ended.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use delta_shim::mask::{Masker, Patterns};
use delta_shim::spool::{LogSize, Spool};

use crate::log::Sizes;
use crate::log::progress::{Lines, Observer, Progress};
use crate::work::Identity;

/// The part of a log's quota that what comes before the job may have: a checkout prints a page.
const PREPARED_SHARE: u64 = 4;

/// A log that several parts may write to, in turns.
pub(crate) struct Log {
    path: PathBuf,
    open: Mutex<Open>,
    /// What it was, where nothing can be added to it.
    closed: LogSize,
    sizes: Sizes,
    observer: Arc<dyn Observer>,
    identity: Identity,
}

/// What changes while it is written.
struct Open {
    spool: Option<Spool>,
    /// What must not be seen in it.
    patterns: Option<Arc<Patterns>>,
    /// What is shown of a program's bytes.
    lines: Lines,
}

impl Open {
    fn new(spool: Option<Spool>) -> Mutex<Open> {
        Mutex::new(Open {
            spool,
            patterns: None,
            lines: Lines::default(),
        })
    }
}

impl Log {
    /// The log of an attempt that is being prepared: a part of the quota, the rest is the job's.
    pub fn begin(
        path: &Path,
        quota: u64,
        sizes: Sizes,
        observer: Arc<dyn Observer>,
        identity: Identity,
    ) -> io::Result<Log> {
        Ok(Log {
            path: path.to_owned(),
            open: Open::new(Some(Spool::open(path, quota / PREPARED_SHARE)?)),
            closed: LogSize::default(),
            sizes,
            observer,
            identity,
        })
    }

    /// The log of an attempt whose work is over. One that is not whole stays as it is.
    pub fn go_on(
        path: &Path,
        quota: u64,
        ended: LogSize,
        sizes: Sizes,
        observer: Arc<dyn Observer>,
        identity: Identity,
    ) -> Log {
        let whole = ended.lost == 0 && ended.sha256.is_some();
        let spool = whole.then(|| Spool::reopen(path, quota, &ended));
        Log {
            path: path.to_owned(),
            open: Open::new(spool.and_then(Result::ok)),
            closed: ended,
            sizes,
            observer,
            identity,
        }
    }

    /// The file of it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Some of what the work printed is not in it.
    pub fn is_cut(&self) -> bool {
        self.closed.dropped > 0 || self.closed.lost > 0
    }

    /// Masks what is written from here on.
    pub fn mask(&self, patterns: Option<Arc<Patterns>>) {
        let mut open = self.open();
        if let Some(spool) = &mut open.spool {
            spool.mask(patterns.clone());
        }
        open.patterns = patterns;
    }

    /// What must not be seen in it, where that is known.
    pub fn patterns(&self) -> Option<Arc<Patterns>> {
        self.open().patterns.clone()
    }

    /// A text of ours that goes elsewhere, without what must not be seen.
    pub fn redact(&self, text: &str) -> String {
        match &self.open().patterns {
            Some(patterns) => Masker::text(patterns, text),
            None => text.to_owned(),
        }
    }

    /// A line of ours.
    pub fn mark(&self, text: &str) {
        let text = self.redact(text);
        self.write(|spool, seen| {
            spool.release(seen);
            spool.mark(&text);
        });
        self.open().lines.finish(|line| self.show(line));
        self.show(format!("--- {text}").as_bytes());
    }

    /// Bytes of a program's.
    pub fn output(&self, bytes: &[u8]) {
        self.write(|spool, seen| spool.output_seen(bytes, seen));
    }

    /// Everything is in the file: the shim may go on with it, and nothing is written here while it
    /// does. Returns how much was dropped.
    pub fn settle(&self) -> u64 {
        let mut dropped = 0;
        self.write(|spool, seen| dropped = spool.settle(seen));
        dropped
    }

    /// Ends the log.
    pub fn finish(self) -> LogSize {
        self.write(|spool, seen| spool.release(seen));
        let spool = self.open().spool.take();
        let size = spool.map_or_else(|| self.closed.clone(), Spool::finish);
        self.sizes.send_replace(size.bytes);
        size
    }

    fn write(&self, write: impl FnOnce(&mut Spool, &mut dyn FnMut(&[u8]))) {
        let mut open = self.open();
        let Open { spool, lines, .. } = &mut *open;
        if let Some(spool) = spool {
            write(spool, &mut |bytes| {
                lines.push(bytes, |line| self.show(line));
            });
            self.sizes.send_replace(spool.bytes());
        }
    }

    fn show(&self, line: &[u8]) {
        let job = &self.identity;
        self.observer.progress(Progress::Output { job, line });
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Bytes were written or not; there is nothing half done to see.
        self.open
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
    }
}
