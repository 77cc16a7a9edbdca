//! Syncs logs in the background: each when a second has passed since it got something, or sooner
//! when it got much. Those that are nearly due go along, and several are synced at once, since a
//! file system makes one flush of them.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use delta_core::LeaseKey;

use super::one::{Left, Log};

/// Unsynced bytes of one log that are synced at once.
const AT_ONCE_BYTES: u64 = 1024 * 1024;
/// Everything is synced after this time, less than which nobody waits for.
const WITHIN: Duration = Duration::from_secs(1);
/// Those due within this time are synced along with one that is due now.
const ALONG: Duration = Duration::from_millis(250);
/// Logs that are synced at the same time: enough for a file system to make one flush of many.
const TOGETHER: usize = 8;

/// The logs that have something to be synced, and until when.
#[derive(Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    due: HashMap<LeaseKey, (Instant, Arc<Log>)>,
    ended: bool,
}

impl Queue {
    /// Has a log synced in time. Returns how many wait for it.
    pub fn add(&self, lease: LeaseKey, log: &Arc<Log>, left: Left) -> usize {
        let Left::Unsynced(bytes) = left else {
            return 0;
        };
        let now = Instant::now();
        let due = if bytes >= AT_ONCE_BYTES {
            now
        } else {
            now + WITHIN
        };
        let mut inner = self.inner();
        let entry = inner.due.entry(lease).or_insert_with(|| {
            self.changed.notify_one();
            (due, log.clone())
        });
        if due < entry.0 {
            entry.0 = due;
            self.changed.notify_one();
        }
        inner.due.len()
    }

    /// Syncs what is left and ends the thread.
    pub fn end(&self) {
        self.inner().ended = true;
        self.changed.notify_one();
    }

    /// The thread: takes what is due, syncs it, until it is ended.
    pub fn run(&self) {
        while let Some(due) = self.take() {
            let share = due.len().div_ceil(TOGETHER).max(1);
            std::thread::scope(|scope| {
                let mut shares = due.chunks(share);
                let own = shares.next();
                for share in shares {
                    scope.spawn(|| self.sync(share));
                }
                if let Some(share) = own {
                    self.sync(share);
                }
            });
        }
    }

    fn sync(&self, due: &[(LeaseKey, Arc<Log>)]) {
        for (lease, log) in due {
            match log.sync() {
                Ok((_, left)) => {
                    self.add(*lease, log, left);
                }
                Err(error) => {
                    let folder = log.folder().display();
                    tracing::error!(%error, %folder, "a log could not be brought to disk");
                }
            }
        }
    }

    /// Waits for logs that are due; `None` when it is over and nothing is left.
    fn take(&self) -> Option<Vec<(LeaseKey, Arc<Log>)>> {
        let mut inner = self.inner();
        loop {
            let next = inner.due.values().map(|(due, _)| *due).min();
            let now = Instant::now();
            match next {
                None if inner.ended => return None,
                None => inner = wait(self.changed.wait(inner)),
                Some(next) if next > now && !inner.ended => {
                    let waited = self.changed.wait_timeout(inner, next - now);
                    inner = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Some(_) => {
                    let (all, horizon) = (inner.ended, now + ALONG);
                    let due = inner.due.extract_if(|_, (due, _)| all || *due <= horizon);
                    return Some(due.map(|(lease, (_, log))| (lease, log)).collect());
                }
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        wait(self.inner.lock())
    }
}

fn wait<T>(guard: Result<T, PoisonError<T>>) -> T {
    guard.unwrap_or_else(PoisonError::into_inner)
}
