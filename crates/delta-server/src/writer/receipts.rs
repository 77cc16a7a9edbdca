//! Messages that were fully read and are not judged yet (A23, A38).
//!
//! Owns the horizon: the moment up to which everything that was received has been judged. Timers
//! are judged at the horizon, so none overtakes a message that came before it, whatever lane that
//! message waits in and however long its credential is looked up. A message that waits longer than
//! is ever judged holds nobody back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use delta_core::{Millis, Span};

use crate::clock::Clock;

/// How many messages were read at which moment.
#[derive(Default)]
pub struct Receipts {
    open: Mutex<BTreeMap<Millis, usize>>,
}

/// A message's moment of receipt, kept until it is judged or given up.
pub struct Receipt {
    at: Millis,
    receipts: Arc<Receipts>,
}

impl Receipts {
    /// Stamps a message that has just been read. The clock is read under the lock, so that no
    /// horizon passes a stamp that is about to be entered.
    pub fn open(self: &Arc<Self>, clock: &Clock) -> Receipt {
        let mut open = self.lock();
        let at = clock.now();
        *open.entry(at).or_default() += 1;
        Receipt {
            at,
            receipts: self.clone(),
        }
    }

    /// The latest moment a timer may be judged at.
    pub fn horizon(&self, clock: &Clock, longest_wait: Span) -> Millis {
        let open = self.lock();
        let now = clock.now();
        let oldest = open.first_key_value().map_or(now, |(at, _)| *at);
        oldest.max(now - longest_wait)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Millis, usize>> {
        // Counters have no state to spoil.
        self.open.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Receipt {
    pub fn at(&self) -> Millis {
        self.at
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        let mut open = self.receipts.lock();
        if let Some(count) = open.get_mut(&self.at) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_timer_passes_a_message_that_is_not_judged() {
        // A38
        let clock = Clock::start(Millis(1_000_000), Millis::ZERO);
        let receipts = Arc::new(Receipts::default());
        let wait = Span::hours(1);
        let first = receipts.open(&clock);
        let second = receipts.open(&clock);
        assert_eq!(receipts.horizon(&clock, wait), first.at());
        let at = second.at();
        drop(first);
        assert_eq!(receipts.horizon(&clock, wait), at);
        drop(second);
        assert!(receipts.horizon(&clock, wait) >= at);
        assert!(receipts.lock().is_empty());
    }

    #[test]
    fn a_message_that_is_too_late_holds_no_timer_back() {
        let clock = Clock::start(Millis(1_000_000), Millis::ZERO);
        let receipts = Arc::new(Receipts::default());
        let _stuck = receipts.open(&clock);
        let before = clock.now();
        assert!(receipts.horizon(&clock, Span::ZERO) >= before);
    }
}
