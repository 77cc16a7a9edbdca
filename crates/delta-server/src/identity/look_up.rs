//! Looking credentials up, in bounds: a flood of invented tokens must not keep those who were good
//! a moment ago from renewing their leases.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use delta_core::Digest;
use delta_store::StoreError;
use delta_store::read::{Credential, Reader};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::Unknown;
use crate::writer::LONGEST_WAIT;

/// How long a looked-up credential is believed: short, so that a revocation bites within seconds,
/// long enough that a heartbeat costs no read.
const BELIEVED_FOR: Duration = Duration::from_secs(2);

/// Remembered credentials: one per runner and person; beyond it the memory starts anew.
const MAX_REMEMBERED: usize = 10_000;

/// Look-ups at a time, and apart from them those of tokens that were good a moment ago. A store
/// answers thousands a second with a handful of connections.
pub const LOOK_UPS: usize = 4;

/// Strangers that may wait for their look-up: all runners of a large installation that come back
/// together are through in a second or two; more than this is a flood, answered with 503.
pub const MAX_STRANGERS: usize = 2_048;

/// What the store said, and when; a moment of `None` is not believed.
type Remembered = (Option<Arc<Credential>>, Option<Instant>);

pub struct LookUp {
    reader: Arc<dyn Reader>,
    known: Mutex<HashMap<Digest, Remembered>>,
    /// Turns of tokens nobody has shown lately.
    pub strangers: Semaphore,
    pub waiting: AtomicUsize,
    /// Turns of tokens that were good a moment ago.
    regulars: Semaphore,
}

/// Who vouches for the one that is looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Vouched {
    /// Nobody: the store alone knows, and anybody may ask about anything.
    No,
    /// A signature that was checked: there is no flood of these, and whoever has no row is
    /// remembered, too.
    Yes,
}

/// What is remembered.
enum Memory {
    Said(Option<Arc<Credential>>),
    /// It was there, too long ago to be believed.
    Faded,
    Nothing,
}

impl LookUp {
    pub fn new(reader: Arc<dyn Reader>) -> LookUp {
        LookUp {
            reader,
            known: Mutex::default(),
            strangers: Semaphore::new(LOOK_UPS),
            waiting: AtomicUsize::new(0),
            regulars: Semaphore::new(LOOK_UPS),
        }
    }

    /// The row with this hash, believed for a moment.
    pub async fn find(
        &self,
        hash: Digest,
        vouched: Vouched,
    ) -> Result<Option<Arc<Credential>>, Unknown> {
        match self.remembered(&hash) {
            Memory::Said(credential) => return Ok(credential),
            Memory::Nothing if vouched == Vouched::No => {
                let _waiting =
                    Waiting::among(&self.waiting, MAX_STRANGERS).ok_or(Unknown::Flood)?;
                let _turn = turn(&self.strangers).await?;
                return Ok(self.ask(hash, vouched).await?);
            }
            Memory::Faded | Memory::Nothing => {}
        }
        let _turn = turn(&self.regulars).await?;
        // Many share one token: whoever was first has looked for all.
        match self.remembered(&hash) {
            Memory::Said(credential) => Ok(credential),
            _ => Ok(self.ask(hash, vouched).await?),
        }
    }

    fn remembered(&self, hash: &Digest) -> Memory {
        let known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        match known.get(hash) {
            Some((credential, since)) if is_fresh(*since) => Memory::Said(credential.clone()),
            Some((Some(_), _)) => Memory::Faded,
            Some((None, _)) | None => Memory::Nothing,
        }
    }

    async fn ask(
        &self,
        hash: Digest,
        vouched: Vouched,
    ) -> Result<Option<Arc<Credential>>, StoreError> {
        let reader = self.reader.clone();
        let found = tokio::task::spawn_blocking(move || reader.credential(&hash)).await;
        let found = found.map_err(|error| StoreError::Unavailable(error.to_string()))??;
        let found = found.map(Arc::new);
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        if known.len() >= MAX_REMEMBERED {
            known.retain(|_, (_, since)| is_fresh(*since));
        }
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        let keep = match &found {
            // A token that was revoked is a stranger's from now on.
            Some(credential) => credential.revoked_at.is_none() || vouched == Vouched::Yes,
            None => vouched == Vouched::Yes,
        };
        if keep {
            known.insert(hash, (found.clone(), Some(Instant::now())))
        } else {
            known.remove(&hash)
        };
        drop(known);
        Ok(found)
    }

    /// A credential changed here: believe nothing remembered. Who was known is still looked up
    /// before strangers.
    pub fn forget(&self) {
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        for (_, since) in known.values_mut() {
            *since = None;
        }
    }
}

/// Looked up so lately that it is believed.
fn is_fresh(since: Option<Instant>) -> bool {
    since.is_some_and(|since| since.elapsed() < BELIEVED_FOR)
}

/// A turn to look up, for as long as a message may wait at all.
async fn turn(turns: &Semaphore) -> Result<SemaphorePermit<'_>, Unknown> {
    match tokio::time::timeout(LONGEST_WAIT, turns.acquire()).await {
        Ok(Ok(turn)) => Ok(turn),
        Ok(Err(_)) | Err(_) => Err(Unknown::Flood),
    }
}

/// A place among those who wait, given up when it is dropped.
pub struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    pub fn among(count: &'a AtomicUsize, most: usize) -> Option<Waiting<'a>> {
        let more = |n: usize| (n < most).then_some(n + 1);
        let entered = count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        entered.ok().map(|_| Waiting(count))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
