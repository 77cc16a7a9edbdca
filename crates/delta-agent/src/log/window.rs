//! How many log bytes may be on their way: about what the line carried in the last second.
//!
//! A heartbeat waits behind them in the connection's buffers, so there must be few of them on a
//! slow line and may be many on a fast one (EP-45, F51). The window grows while answers come back
//! quickly and shrinks when they do not.

use std::time::{Duration, Instant};

/// A window never closes: a line this slow carries nothing else either.
const LEAST: usize = 16 * 1024;
/// Begins with what any line carries in a moment.
const FIRST: usize = 256 * 1024;
/// Enough for two hundred megabytes a second at twenty milliseconds.
const MOST: usize = 4 * 1024 * 1024;
/// An answer this quick says that there is room.
const QUICK: Duration = Duration::from_millis(200);
/// An answer this slow says that there is none.
const SLOW: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Window {
    limit: usize,
    in_flight: usize,
    /// Bytes answered since the window last grew.
    answered: usize,
}

impl Window {
    pub fn new() -> Window {
        Window {
            limit: FIRST,
            in_flight: 0,
            answered: 0,
        }
    }

    /// Takes room for up to `wanted` bytes; how many there is room for.
    pub fn take(&mut self, wanted: usize) -> usize {
        let room = self.limit.saturating_sub(self.in_flight).min(wanted);
        self.in_flight += room;
        room
    }

    /// Bytes sent at `sent` were answered.
    pub fn answered(&mut self, bytes: usize, sent: Instant) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
        let took = sent.elapsed();
        if took >= SLOW {
            self.limit = (self.limit / 2).max(LEAST);
            self.answered = 0;
        } else if took < QUICK {
            self.answered += bytes;
            if self.answered >= self.limit {
                self.limit = (self.limit * 2).min(MOST);
                self.answered = 0;
            }
        }
    }

    /// What was on its way is not any more.
    pub fn give_back(&mut self, bytes: usize) {
        self.in_flight = self.in_flight.saturating_sub(bytes);
    }

    /// A new line: nothing is on its way, and nobody knows how fast it is.
    pub fn reset(&mut self) {
        *self = Window::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_on_a_quick_line_and_shrinks_on_a_slow_one() {
        // EP-45, F51
        let mut window = Window::new();
        assert_eq!(window.take(usize::MAX), FIRST);
        assert_eq!(window.take(1), 0, "it is full");
        window.answered(FIRST, Instant::now());
        assert_eq!(window.limit, 2 * FIRST);
        for _ in 0..20 {
            let taken = window.take(usize::MAX);
            window.answered(taken, Instant::now());
        }
        assert_eq!(window.limit, MOST);
        let long_ago = Instant::now().checked_sub(SLOW).unwrap();
        for _ in 0..20 {
            let taken = window.take(usize::MAX);
            window.answered(taken, long_ago);
        }
        assert_eq!(window.limit, LEAST);
    }
}
