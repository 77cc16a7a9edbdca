//! How agents stand, remembered between batches: every message about a lease asks for it, and it
//! hardly ever changes.
//!
//! Shared by the writing side, which asks, and the tables beside it, through which agents change.
//! Whoever changes one says so after its commit and before it answers; what was read meanwhile is
//! not remembered, so nothing outlives the change it did not see.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use delta_core::{AgentStanding, Text};

/// Agents remembered: more than one server has, at some hundred bytes each; beyond it the memory
/// starts anew.
const MAX_REMEMBERED: usize = 50_000;

#[derive(Debug, Default)]
pub struct Standings(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Counts changes.
    round: u64,
    rows: HashMap<Text, Option<AgentStanding>>,
}

/// When a row was read that is not remembered yet.
#[derive(Clone, Copy, Debug)]
pub struct Round(u64);

impl Standings {
    /// What is remembered of an agent; otherwise to be read, and handed to [`Standings::put`].
    pub fn get(&self, id: &Text) -> Result<Option<AgentStanding>, Round> {
        let known = self.lock();
        known.rows.get(id).cloned().ok_or(Round(known.round))
    }

    pub fn put(&self, round: Round, id: &Text, standing: Option<AgentStanding>) {
        let mut known = self.lock();
        if known.round != round.0 {
            return;
        }
        if known.rows.len() >= MAX_REMEMBERED {
            known.rows.clear();
        }
        known.rows.insert(id.clone(), standing);
    }

    /// These changed, or may have.
    pub fn forget<'a>(&self, ids: impl Iterator<Item = &'a str>) {
        let mut known = self.lock();
        known.round += 1;
        for id in ids {
            known.rows.remove(id);
        }
    }

    /// Nobody knows which changed.
    pub fn forget_all(&self) {
        let mut known = self.lock();
        known.round += 1;
        known.rows.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Entries are replaced whole: there is no state to spoil.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_before_a_change_is_not_remembered_after_it() {
        // I23
        let standings = Standings::default();
        let id: Text = "a".into();
        let before = standings.get(&id).unwrap_err();
        standings.forget(["a"].into_iter());
        standings.put(before, &id, None);
        let now = standings.get(&id).unwrap_err();
        standings.put(now, &id, None);
        assert_eq!(standings.get(&id).ok(), Some(None));
        standings.forget(["a"].into_iter());
        assert!(standings.get(&id).is_err());
        let now = standings.get(&id).unwrap_err();
        standings.put(now, &id, None);
        standings.forget_all();
        assert!(standings.get(&id).is_err());
    }
}
