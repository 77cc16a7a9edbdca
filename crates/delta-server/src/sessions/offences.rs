//! Messages of a session that mean nothing: counted, and too many of them end it (A36).

use std::time::{Duration, Instant};

/// How many per window an honest agent may send, of whatever version.
const MOST: u32 = 100;
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Offences {
    count: u32,
    since: Instant,
}

/// What to do about one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offence {
    /// The first of a window, so that the log has one line of many.
    Warn,
    Ignore,
    EndSession,
}

impl Offences {
    pub fn new(now: Instant) -> Offences {
        Offences {
            count: 0,
            since: now,
        }
    }

    pub fn count(&mut self, now: Instant) -> Offence {
        if now.duration_since(self.since) >= WINDOW {
            *self = Offences::new(now);
        }
        self.count += 1;
        match self.count {
            1 => Offence::Warn,
            2..=MOST => Offence::Ignore,
            _ => Offence::EndSession,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A36
    #[test]
    fn a_flood_ends_the_session_and_a_trickle_does_not() {
        let start = Instant::now();
        let mut offences = Offences::new(start);
        let counted: Vec<Offence> = (0..=MOST).map(|_| offences.count(start)).collect();
        assert_eq!(counted[0], Offence::Warn);
        assert!(
            counted[1..100]
                .iter()
                .all(|offence| *offence == Offence::Ignore)
        );
        assert_eq!(counted[100], Offence::EndSession);
        let mut trickle = Offences::new(start);
        for minute in 0..10 {
            let at = start + WINDOW * minute;
            assert_eq!(trickle.count(at), Offence::Warn);
            assert!((1..MOST).all(|_| trickle.count(at) == Offence::Ignore));
        }
    }
}
