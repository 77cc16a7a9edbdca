//! Faults that wait for their moment: the next bytes, the n-th byte, a pattern passing by.
//!
//! A trap fires for the connection that steps on it, as many times as it says, then it is gone.
//! Patterns are found across the edges of pieces. Decides only; `pump.rs` carries out.

use std::sync::Mutex;

use super::lane::Direction;
use crate::rng::Rng;

/// A pattern longer than this would not be one message's mark any more.
const LONGEST_PATTERN: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// The next bytes of any connection.
    NextBytes,
    /// Once so many more bytes have passed in this direction, over all connections.
    AfterBytes(u64),
    /// When these bytes pass.
    Pattern(Vec<u8>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// The triggering bytes are lost, both sides are reset.
    DropAndReset,
    /// They are delivered, and both sides are closed before any answer passes: the client gets a
    /// reset and cannot know what became of them.
    DeliverAndReset,
    /// They are delivered; the answer is swallowed up to and including these bytes (or its first
    /// piece, when empty); then the client is reset. The server has surely done its work.
    SwallowAnswer { until: Vec<u8> },
}

#[derive(Debug, Clone)]
pub struct Trap {
    pub direction: Direction,
    pub when: When,
    pub then: Then,
    /// How many times it fires.
    pub times: u32,
    /// With what probability, each time it could.
    pub chance: f64,
}

impl Trap {
    /// Fires surely, and once.
    pub fn once(direction: Direction, when: When, then: Then) -> Self {
        Self {
            direction,
            when,
            then,
            times: 1,
            chance: 1.0,
        }
    }
}

/// A trap that fired on a piece of bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fired {
    pub(super) then: Then,
    /// How many bytes of the piece still go, when the trigger is delivered.
    pub(super) deliver: usize,
}

#[derive(Debug, Default)]
pub(super) struct Traps {
    armed: Mutex<Vec<Trap>>,
}

impl Traps {
    pub(super) fn arm(&self, trap: Trap) {
        if let When::Pattern(pattern) = &trap.when {
            assert!(
                (1..=LONGEST_PATTERN).contains(&pattern.len()),
                "a pattern has 1 to {LONGEST_PATTERN} bytes"
            );
        }
        self.with(|armed| armed.push(trap));
    }

    pub(super) fn clear(&self) {
        self.with(Vec::clear);
    }

    pub(super) fn armed(&self) -> usize {
        self.with(|armed| armed.len())
    }

    /// Looks at a piece that is about to pass; `sight` is what passed before it.
    pub(super) fn look(
        &self,
        direction: Direction,
        sight: &Sight,
        piece: &[u8],
        rng: &mut Rng,
    ) -> Option<Fired> {
        self.with(|armed| {
            let mut fired = None;
            for trap in armed.iter_mut().filter(|trap| trap.direction == direction) {
                let Some(deliver) = step(&mut trap.when, sight, piece) else {
                    continue;
                };
                if fired.is_none() && rng.chance(trap.chance) {
                    trap.times = trap.times.saturating_sub(1);
                    fired = Some(Fired {
                        then: trap.then.clone(),
                        deliver,
                    });
                }
            }
            armed.retain(|trap| trap.times > 0);
            fired
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut Vec<Trap>) -> T) -> T {
        act(&mut self
            .armed
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner()))
    }
}

/// How many bytes of the piece go with the trigger, when it does trigger. A pattern is part of a
/// message that ends a little later, as with its closing zero, so its whole piece goes.
fn step(when: &mut When, sight: &Sight, piece: &[u8]) -> Option<usize> {
    match when {
        When::NextBytes => Some(piece.len()),
        When::AfterBytes(left) => {
            let size = piece.len() as u64;
            if size < *left {
                *left -= size;
                return None;
            }
            Some(*left as usize)
        }
        When::Pattern(pattern) => sight.has(pattern, piece).then_some(piece.len()),
    }
}

/// The last bytes that passed on one direction of one connection.
#[derive(Debug, Default)]
pub(super) struct Sight {
    tail: Vec<u8>,
}

impl Sight {
    /// Whether the pattern ends within this piece; it may have begun before it.
    pub(super) fn has(&self, pattern: &[u8], piece: &[u8]) -> bool {
        let before = self.tail.len().min(pattern.len() - 1);
        let mut view = self.tail[self.tail.len() - before..].to_vec();
        view.extend_from_slice(piece);
        view.windows(pattern.len()).any(|window| window == pattern)
    }

    pub(super) fn pass(&mut self, piece: &[u8]) {
        self.tail.extend_from_slice(piece);
        let excess = self.tail.len().saturating_sub(LONGEST_PATTERN);
        self.tail.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(traps: &Traps, sight: &mut Sight, piece: &[u8]) -> Option<usize> {
        let fired = traps.look(Direction::ToServer, sight, piece, &mut Rng::new(0));
        sight.pass(piece);
        fired.map(|fired| fired.deliver)
    }

    fn armed_with(when: When) -> Traps {
        let traps = Traps::default();
        traps.arm(Trap::once(Direction::ToServer, when, Then::DropAndReset));
        traps
    }

    #[test]
    fn a_pattern_is_found_at_every_split() {
        let bytes = b"xxCOCOMMITyy";
        for split in 0..=bytes.len() {
            let traps = armed_with(When::Pattern(b"COMMIT".to_vec()));
            let mut sight = Sight::default();
            let first = look(&traps, &mut sight, &bytes[..split]);
            let second = look(&traps, &mut sight, &bytes[split..]);
            assert!(first.is_some() ^ second.is_some(), "split at {split}");
            assert_eq!(first.is_some(), split >= 10, "split at {split}");
            assert_eq!(traps.armed(), 0);
        }
    }

    #[test]
    fn bytes_are_counted_over_pieces() {
        let traps = armed_with(When::AfterBytes(10));
        let mut sight = Sight::default();
        assert_eq!(look(&traps, &mut sight, &[0; 6]), None);
        assert_eq!(look(&traps, &mut sight, &[0; 6]), Some(4));
        assert_eq!(look(&traps, &mut sight, &[0; 6]), None);
    }

    #[test]
    fn a_trap_is_for_its_direction_and_fires_as_often_as_it_says() {
        let traps = Traps::default();
        let once = Trap::once(Direction::ToClient, When::NextBytes, Then::DeliverAndReset);
        traps.arm(Trap { times: 2, ..once });
        let mut sight = Sight::default();
        assert_eq!(look(&traps, &mut sight, b"a"), None);
        let fires = || {
            traps
                .look(
                    Direction::ToClient,
                    &Sight::default(),
                    b"a",
                    &mut Rng::new(0),
                )
                .is_some()
        };
        assert!(fires() && fires());
        assert!(!fires());
    }
}
