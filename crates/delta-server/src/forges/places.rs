//! Who is being told about, and where: each host has places of its own, so that nobody waits for a
//! forge but who is to be told there. And which forge wants to be left alone, by whom: what it says
//! to one run counts for all that are told with the same credential (F47).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use delta_core::{Digest, Millis, RunId, Text};

/// Runs told about at once, and at one host.
const AT_ONCE: usize = 64;
const AT_A_HOST: usize = 8;
/// Runs whose host is remembered.
const REMEMBERED: usize = 10_000;

/// A host, and a digest of what is shown there.
pub type Credential = (Text, Digest);

#[derive(Default)]
pub struct Places(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    busy: HashMap<RunId, Text>,
    /// Where each run is told about, as far as it was looked up.
    hosts: HashMap<RunId, Text>,
    /// Until when a forge wants to hear nothing more.
    resting: HashMap<Credential, Millis>,
}

impl Places {
    /// Takes a place; false where this run is being told about, or too many are.
    pub fn take(&self, run: RunId, host: Text) -> bool {
        let mut taken = self.taken();
        let there = taken.busy.values().filter(|it| **it == host).count();
        let free = taken.busy.len() < AT_ONCE && there < AT_A_HOST;
        let takes = free && !taken.busy.contains_key(&run);
        if takes {
            taken.busy.insert(run, host);
        }
        takes
    }

    pub fn leave(&self, run: RunId) {
        self.taken().busy.remove(&run);
    }

    /// Where a run is told about, if it was looked up.
    pub fn host(&self, run: RunId) -> Option<Text> {
        self.taken().hosts.get(&run).cloned()
    }

    pub fn remember(&self, run: RunId, host: Text) {
        let mut taken = self.taken();
        if taken.hosts.len() >= REMEMBERED {
            taken.hosts.clear();
        }
        taken.hosts.insert(run, host);
    }

    /// The forge wants nothing more of this credential until then.
    pub fn rest(&self, of: Credential, now: Millis, until: Millis) {
        let mut taken = self.taken();
        taken.resting.retain(|_, until| *until > now);
        let known = taken.resting.entry(of).or_insert(until);
        *known = until.max(*known);
    }

    pub fn rests_until(&self, of: &Credential, now: Millis) -> Option<Millis> {
        let until = self.taken().resting.get(of).copied();
        until.filter(|until| *until > now)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forge_rests_for_the_credential_it_said_it_to_and_not_for_ever() {
        let places = Places::default();
        let (ours, theirs) = ([1; 32], [2; 32]);
        let at = |credential| -> Credential { ("forge.example".into(), credential) };
        places.rest(at(ours), Millis(10), Millis(100));
        places.rest(at(ours), Millis(11), Millis(50));
        assert_eq!(places.rests_until(&at(ours), Millis(99)), Some(Millis(100)));
        assert_eq!(places.rests_until(&at(ours), Millis(100)), None);
        assert_eq!(places.rests_until(&at(theirs), Millis(20)), None);
        let elsewhere = ("other.example".into(), ours);
        assert_eq!(places.rests_until(&elsewhere, Millis(20)), None);
    }
}
