//! How many runs are told about at once, in all and at one forge, so that nobody waits for a forge
//! but who is to be told there. And which forge wants to be left alone, by whom: what it says to
//! one run counts for all that are told with the same credential (F47).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delta_core::{Digest, Millis, RunId, Text};

use crate::keyed_limit::{KeyedLimit, KeyedPermit};

/// Runs told about at once, and at one host.
const AT_ONCE: usize = 64;
const AT_A_HOST: usize = 8;
/// Runs whose host is remembered.
const REMEMBERED: usize = 10_000;

/// A host, and a digest of what is shown there.
pub type ForgeCredential = (Text, Digest);

pub struct ReportLimits {
    hosts: KeyedLimit<Text>,
    memory: Arc<Mutex<ReportMemory>>,
}

#[derive(Default)]
struct ReportMemory {
    /// Runs that are being told about.
    busy: HashSet<RunId>,
    /// Where each run is told about, as far as it was looked up.
    hosts: HashMap<RunId, Text>,
    /// Until when a forge wants to hear nothing more.
    resting: HashMap<ForgeCredential, Millis>,
}

/// The right to tell about one run, until dropped.
pub struct ReportPlace {
    run: RunId,
    memory: Arc<Mutex<ReportMemory>>,
    _host: KeyedPermit<Text>,
}

impl Drop for ReportPlace {
    fn drop(&mut self) {
        lock(&self.memory).busy.remove(&self.run);
    }
}

impl Default for ReportLimits {
    fn default() -> ReportLimits {
        ReportLimits {
            hosts: KeyedLimit::new(AT_A_HOST, AT_ONCE),
            memory: Arc::default(),
        }
    }
}

impl ReportLimits {
    /// Takes a place; none where this run is being told about, or too many are.
    pub fn take(&self, run: RunId, host: Text) -> Option<ReportPlace> {
        let host = self.hosts.try_take(host)?;
        lock(&self.memory).busy.insert(run).then(|| ReportPlace {
            run,
            memory: self.memory.clone(),
            _host: host,
        })
    }

    /// Where a run is told about, if it was looked up.
    pub fn host(&self, run: RunId) -> Option<Text> {
        lock(&self.memory).hosts.get(&run).cloned()
    }

    pub fn remember(&self, run: RunId, host: Text) {
        let mut memory = lock(&self.memory);
        if memory.hosts.len() >= REMEMBERED {
            memory.hosts.clear();
        }
        memory.hosts.insert(run, host);
    }

    /// The forge wants nothing more of this credential until then.
    pub fn rest(&self, of: ForgeCredential, now: Millis, until: Millis) {
        let mut memory = lock(&self.memory);
        memory.resting.retain(|_, until| *until > now);
        let known = memory.resting.entry(of).or_insert(until);
        *known = until.max(*known);
    }

    pub fn rests_until(&self, of: &ForgeCredential, now: Millis) -> Option<Millis> {
        let until = lock(&self.memory).resting.get(of).copied();
        until.filter(|until| *until > now)
    }
}

fn lock(memory: &Mutex<ReportMemory>) -> MutexGuard<'_, ReportMemory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_about_once_at_a_time() {
        let limits = ReportLimits::default();
        let host: Text = "forge.example".into();
        let place = limits.take(RunId(1), host.clone());
        assert!(place.is_some());
        assert!(limits.take(RunId(1), host.clone()).is_none());
        let others: Vec<_> = (2..)
            .map_while(|n| limits.take(RunId(n), host.clone()))
            .collect();
        assert_eq!(others.len(), AT_A_HOST - 1);
        drop(place);
        assert!(limits.take(RunId(1), host).is_some());
    }

    #[test]
    fn a_forge_rests_for_the_credential_it_said_it_to_and_not_for_ever() {
        let limits = ReportLimits::default();
        let (ours, theirs) = ([1; 32], [2; 32]);
        let at = |credential| -> ForgeCredential { ("forge.example".into(), credential) };
        limits.rest(at(ours), Millis(10), Millis(100));
        limits.rest(at(ours), Millis(11), Millis(50));
        assert_eq!(limits.rests_until(&at(ours), Millis(99)), Some(Millis(100)));
        assert_eq!(limits.rests_until(&at(ours), Millis(100)), None);
        assert_eq!(limits.rests_until(&at(theirs), Millis(20)), None);
        let elsewhere = ("other.example".into(), ours);
        assert_eq!(limits.rests_until(&elsewhere, Millis(20)), None);
    }
}
