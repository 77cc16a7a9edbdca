//! Whether a disk takes what is written: the store's, proved by every batch that was committed, and
//! where there was none lately by trying. Readiness keeps another proof, of the disk of logs.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use delta_store::StoreError;

use super::Writer;
use crate::not_done::disk_words;

/// What is said while the store refuses for another reason than its disk, or does not answer.
const REFUSED: &str = "the store takes nothing that is written: the server's log says why";
const SLOW: &str = "the store takes too long to write";

/// How long a success proves something: a probe is a flush, and whoever asks for readiness does so
/// every few seconds.
const PROVED: Duration = Duration::from_secs(5);

/// How long a failure does: anybody may ask, and must not make a server in trouble try for each.
const FAILED: Duration = Duration::from_secs(1);

/// How long a probe may take. The writer goes on with it; only nobody waits for it any more.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is known.
#[derive(Debug)]
pub struct Proof {
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    tried: Instant,
    outcome: Result<(), &'static str>,
}

impl Proof {
    /// Of a server that has just opened its store for writing.
    pub fn new() -> Proof {
        let last = Mutex::new(Last {
            tried: Instant::now(),
            outcome: Ok(()),
        });
        Proof { last }
    }

    /// Something was committed.
    pub fn wrote(&self) {
        self.note(Ok(()));
    }

    /// A batch failed: known is what a full or failing disk means to the next one.
    pub fn failed(&self, error: &StoreError) {
        if let Some(words) = disk_words(error) {
            self.note(Err(words));
        }
    }

    pub fn note(&self, outcome: Result<(), &'static str>) {
        *self.last() = Last {
            tried: Instant::now(),
            outcome,
        };
    }

    /// What is known well enough; nothing when it is this caller's turn to try. Others hear what
    /// was known until it is done.
    pub fn known(&self) -> Option<Result<(), &'static str>> {
        let mut last = self.last();
        let fresh = match last.outcome {
            Ok(()) => PROVED,
            Err(_) => FAILED,
        };
        if last.tried.elapsed() < fresh {
            return Some(last.outcome);
        }
        last.tried = Instant::now();
        None
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Whether the store takes what is written, and if not, why, in words that anybody may hear.
    pub async fn can_write(&self) -> Result<(), &'static str> {
        let proof = &self.shared.proof;
        if let Some(known) = proof.known() {
            return known;
        }
        let probe = self.with_store(|store| Ok(store.probe()));
        let probed = match tokio::time::timeout(PATIENCE, probe).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => {
                tracing::warn!(%error, "nothing can be written");
                Err(disk_words(&error).unwrap_or(REFUSED))
            }
            // A queue that is full is another matter, and a server that stops says so itself.
            Ok(Err(_)) => return Ok(()),
            Err(_) => Err(SLOW),
        };
        proof.note(probed);
        probed
    }
}
