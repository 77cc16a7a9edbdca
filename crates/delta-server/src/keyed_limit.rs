//! So many at a time, and so many of them for one key: an address, a host, a credential. One that
//! takes long keeps nobody waiting but those with its own key.
//!
//! Keys may be strangers' (addresses): a key is remembered only while somebody has a place under
//! it or waits for one.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places by key. Cheap to clone; clones share their places.
pub struct KeyedLimit<K: Eq + Hash>(Arc<Places<K>>);

struct Places<K> {
    per_key: usize,
    #[cfg(test)]
    in_all: usize,
    all: Arc<Semaphore>,
    keys: Mutex<HashMap<K, Arc<Semaphore>>>,
}

/// A place under its key and among all, until dropped.
pub struct KeyedPermit<K: Eq + Hash> {
    key: K,
    own: Option<OwnedSemaphorePermit>,
    shared: Option<OwnedSemaphorePermit>,
    places: Arc<Places<K>>,
}

impl<K: Eq + Hash + Clone> KeyedLimit<K> {
    pub fn new(per_key: usize, in_all: usize) -> KeyedLimit<K> {
        KeyedLimit(Arc::new(Places {
            per_key,
            #[cfg(test)]
            in_all,
            all: Arc::new(Semaphore::new(in_all)),
            keys: Mutex::default(),
        }))
    }

    /// A bound for each key, and none for all together.
    pub fn per_key(per_key: usize) -> KeyedLimit<K> {
        KeyedLimit::new(per_key, Semaphore::MAX_PERMITS)
    }

    /// Takes a place; none when there is none free.
    pub fn try_take(&self, key: K) -> Option<KeyedPermit<K>> {
        let (own, mut permit) = self.permit(key);
        permit.own = Some(own.try_acquire_owned().ok()?);
        permit.shared = Some(self.0.all.clone().try_acquire_owned().ok()?);
        Some(permit)
    }

    /// Waits for a place. Whoever waits among all has one under its key already, never the other
    /// way round: many with one key do not keep the others out.
    pub async fn take(&self, key: K) -> KeyedPermit<K> {
        let (own, mut permit) = self.permit(key);
        // They are never closed.
        permit.own = own.acquire_owned().await.ok();
        permit.shared = self.0.all.clone().acquire_owned().await.ok();
        permit
    }

    /// Made before anything is taken, so that it is given back whatever happens.
    fn permit(&self, key: K) -> (Arc<Semaphore>, KeyedPermit<K>) {
        let own = {
            let mut keys = self.0.keys();
            let places = || Arc::new(Semaphore::new(self.0.per_key));
            keys.entry(key.clone()).or_insert_with(places).clone()
        };
        let permit = KeyedPermit {
            key,
            own: None,
            shared: None,
            places: self.0.clone(),
        };
        (own, permit)
    }

    /// How many places are taken among all.
    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.0.in_all - self.0.all.available_permits()
    }

    /// How many keys are remembered.
    #[cfg(test)]
    pub fn keys(&self) -> usize {
        self.0.keys().len()
    }
}

impl<K: Eq + Hash> Places<K> {
    fn keys(&self) -> MutexGuard<'_, HashMap<K, Arc<Semaphore>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Clone for KeyedLimit<K> {
    fn clone(&self) -> KeyedLimit<K> {
        KeyedLimit(self.0.clone())
    }
}

impl<K: Eq + Hash> Drop for KeyedPermit<K> {
    fn drop(&mut self) {
        (self.own, self.shared) = (None, None);
        let mut keys = self.places.keys();
        // Whoever has a place under the key, or waits for one, holds on to its semaphore.
        let unused = |own: &Arc<Semaphore>| Arc::strong_count(own) == 1;
        if keys.get(&self.key).is_some_and(unused) {
            keys.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_does_not_take_every_place() {
        let limit = KeyedLimit::new(2, 3);
        let first = limit.try_take("greedy").unwrap();
        let _second = limit.try_take("greedy").unwrap();
        assert!(limit.try_take("greedy").is_none());
        let _other = limit.try_take("other").unwrap();
        assert!(limit.try_take("third").is_none(), "all are taken");
        drop(first);
        assert!(limit.try_take("third").is_some());
    }

    #[test]
    fn a_key_is_forgotten_with_its_last_place() {
        let limit = KeyedLimit::per_key(1);
        let place = limit.try_take("a").unwrap();
        assert!(limit.try_take("a").is_none());
        assert_eq!(limit.keys(), 1);
        drop(place);
        assert_eq!(limit.keys(), 0);
    }

    #[tokio::test]
    async fn whoever_waits_or_gives_up_waiting_loses_no_place() {
        let limit = KeyedLimit::new(1, 1);
        let place = limit.take("a").await;
        let mut waits = Box::pin(limit.take("a"));
        assert!(is_pending(&mut waits));
        let mut gives_up = Box::pin(limit.take("a"));
        assert!(is_pending(&mut gives_up));
        drop(gives_up);
        drop(place);
        let place = waits.await;
        assert_eq!(limit.keys(), 1);
        drop(place);
        assert_eq!(limit.keys(), 0);
        assert!(limit.try_take("b").is_some(), "and none is lost among all");
    }

    /// Whether a future has to wait when it is polled.
    fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::Pin::new(future).poll(&mut context).is_pending()
    }
}
