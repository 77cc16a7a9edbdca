//! Who waits for news of a run: live event streams. Woken by the writer after a commit; nobody
//! polls.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use delta_core::RunId;
use tokio::sync::watch;

/// Open event streams of one server: each holds a connection; the page of a team needs dozens.
pub const MAX_STREAMS: usize = 2_000;

#[derive(Clone, Default)]
pub struct Watchers {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Streams in all: lets the writer pass by without a lock when there are none.
    streams: AtomicUsize,
    runs: Mutex<HashMap<RunId, Watched>>,
}

struct Watched {
    sender: watch::Sender<()>,
    streams: usize,
}

/// One stream's place; leaving it makes room again.
pub struct Watch {
    watchers: Watchers,
    run: RunId,
    changed: watch::Receiver<()>,
}

impl Watchers {
    /// `None` when too many streams are open.
    pub fn watch(&self, run: RunId) -> Option<Watch> {
        let mut runs = self.inner.runs.lock().unwrap_or_else(|e| e.into_inner());
        if self.inner.streams.load(Ordering::Acquire) >= MAX_STREAMS {
            return None;
        }
        self.inner.streams.fetch_add(1, Ordering::AcqRel);
        let watched = runs.entry(run).or_insert_with(|| Watched {
            sender: watch::Sender::new(()),
            streams: 0,
        });
        watched.streams += 1;
        Some(Watch {
            watchers: self.clone(),
            run,
            changed: watched.sender.subscribe(),
        })
    }

    /// The run has new events.
    pub fn wake(&self, run: RunId) {
        if self.inner.streams.load(Ordering::Acquire) == 0 {
            return;
        }
        let runs = self.inner.runs.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(watched) = runs.get(&run) {
            watched.sender.send_replace(());
        }
    }

    /// Another server may have written: everybody looks.
    pub fn wake_all(&self) {
        if self.inner.streams.load(Ordering::Acquire) == 0 {
            return;
        }
        let runs = self.inner.runs.lock().unwrap_or_else(|e| e.into_inner());
        for watched in runs.values() {
            watched.sender.send_replace(());
        }
    }

    pub fn streams(&self) -> usize {
        self.inner.streams.load(Ordering::Acquire)
    }
}

impl Watch {
    /// Returns when the run has, or may have, new events.
    pub async fn changed(&mut self) {
        // The sender lives as long as this watch is counted.
        let _ = self.changed.changed().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut runs = self
            .watchers
            .inner
            .runs
            .lock()
            .unwrap_or_else(|e| e.into_inner());
        if let Some(watched) = runs.get_mut(&self.run) {
            watched.streams -= 1;
            if watched.streams == 0 {
                runs.remove(&self.run);
            }
        }
        self.watchers.inner.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_change_wakes_the_watchers_of_that_run_only() {
        let watchers = Watchers::default();
        let mut one = watchers.watch(RunId(1)).unwrap();
        let mut two = watchers.watch(RunId(2)).unwrap();
        watchers.wake(RunId(1));
        one.changed().await;
        let quiet = tokio::time::timeout(std::time::Duration::from_millis(20), two.changed());
        assert!(quiet.await.is_err());
        drop((one, two));
        assert_eq!(watchers.streams(), 0);
    }
}
