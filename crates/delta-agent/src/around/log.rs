//! The log while the agent itself writes it: before the shim begins, and after it has ended.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::attempt::Sizes;
use crate::executor::{Identity, LogSize, Spool};
use crate::progress::{Observer, Progress};

/// A log that several parts may write to, in turns.
pub(crate) struct Log {
    spool: Mutex<Option<Spool>>,
    /// What it was, where nothing can be added to it.
    closed: LogSize,
    sizes: Sizes,
    observer: Arc<dyn Observer>,
    identity: Identity,
}

impl Log {
    /// The log of an attempt that is being prepared.
    pub fn begin(
        path: &Path,
        quota: u64,
        sizes: Sizes,
        observer: Arc<dyn Observer>,
        identity: Identity,
    ) -> io::Result<Log> {
        Ok(Log {
            spool: Mutex::new(Some(Spool::open(path, quota)?)),
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
            spool: Mutex::new(spool.and_then(Result::ok)),
            closed: ended,
            sizes,
            observer,
            identity,
        }
    }

    /// A line of ours.
    pub fn mark(&self, text: &str) {
        self.write(|spool| spool.mark(text));
        self.show(format!("--- {text}").as_bytes());
    }

    /// Bytes of a program's.
    pub fn output(&self, bytes: &[u8]) {
        self.write(|spool| spool.output(bytes));
        for line in bytes
            .split(|byte| *byte == b'\n')
            .filter(|it| !it.is_empty())
        {
            self.show(line);
        }
    }

    /// Ends the writing here; the shim may go on with the file.
    pub fn hand_over(&self) {
        *self.spool() = None;
    }

    /// Ends the log.
    pub fn finish(self) -> LogSize {
        let spool = self.spool().take();
        let size = spool.map_or(self.closed, Spool::finish);
        self.sizes.send_replace(size.bytes);
        size
    }

    fn write(&self, write: impl FnOnce(&mut Spool)) {
        let mut spool = self.spool();
        if let Some(spool) = spool.as_mut() {
            write(spool);
            let bytes = spool.bytes();
            self.sizes.send_replace(bytes);
        }
    }

    fn show(&self, line: &[u8]) {
        let job = &self.identity;
        self.observer.progress(Progress::Output { job, line });
    }

    fn spool(&self) -> MutexGuard<'_, Option<Spool>> {
        // Bytes were written or not; there is nothing half done to see.
        self.spool
            .lock()
            .unwrap_or_else(|broken| broken.into_inner())
    }
}
