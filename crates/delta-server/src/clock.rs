//! The one clock (A23): the store's clock plus monotonic time, corrected slowly, never stepped,
//! never backwards.
//!
//! Owns the present moment of this process. Refuses what an agent says about time, and refuses to
//! follow a wall clock that jumps: that raises an alarm instead.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use delta_core::{Millis, Span};
use rustix::time::{ClockId, clock_gettime};

/// How far this clock may be from the store's before somebody must look. Leases live for minutes;
/// five seconds is far below that and far above what slow correction leaves behind.
pub const DIVERGENCE: Span = Span::secs(5);

/// One part in a thousand: 1 ms of correction per second that passed.
const CORRECTION_SHARE: i64 = 1000;

/// A correction counts at most one second, however long nobody looked: an hour's worth at once
/// would be a step.
const LONGEST_COUNTED: i64 = 1_000_000;

/// What the present moment is counted from.
struct Offset {
    /// Store time minus monotonic time, in microseconds.
    micros: i64,
    /// Monotonic microseconds of the last correction.
    corrected_at: i64,
    /// The last measured distance to the store's clock, in milliseconds.
    distance: i64,
}

pub struct Clock {
    offset: Mutex<Offset>,
    /// The newest moment handed out: none after it is earlier.
    newest: AtomicI64,
    monotonic: fn() -> i64,
}

impl Clock {
    /// Starts at the store's clock, or at the newest moment it holds, whichever is later.
    pub fn start(store_now: Millis, newest_stored: Millis) -> Clock {
        Clock::with_monotonic(store_now, newest_stored, boottime_micros)
    }

    fn with_monotonic(store_now: Millis, newest: Millis, monotonic: fn() -> i64) -> Clock {
        let first = store_now.max(newest);
        let now = monotonic();
        Clock {
            offset: Mutex::new(Offset {
                micros: first.0 * 1000 - now,
                corrected_at: now,
                distance: first.0 - store_now.0,
            }),
            newest: AtomicI64::new(first.0),
            monotonic,
        }
    }

    pub fn now(&self) -> Millis {
        let micros = self.offset.lock().unwrap_or_else(|e| e.into_inner()).micros;
        let now = ((self.monotonic)() + micros) / 1000;
        Millis(self.newest.fetch_max(now, Ordering::AcqRel).max(now))
    }

    /// Takes note of what the store's clock shows and moves towards it, by at most 1 ms per second
    /// since the last time. Returns how far apart the two are.
    pub fn observe(&self, store_now: Millis) -> i64 {
        let now = (self.monotonic)();
        let mut offset = self.offset.lock().unwrap_or_else(|e| e.into_inner());
        let wanted = store_now.0 * 1000 - now;
        let passed = (now - offset.corrected_at).clamp(0, LONGEST_COUNTED);
        let step =
            (wanted - offset.micros).clamp(-passed / CORRECTION_SHARE, passed / CORRECTION_SHARE);
        // Time too short for a whole microsecond of correction is kept for the next one.
        if step != 0 || wanted == offset.micros {
            offset.micros += step;
            offset.corrected_at = now;
        }
        offset.distance = (offset.micros - wanted) / 1000;
        offset.distance
    }

    /// Why this clock cannot be trusted beside other writers', if it cannot.
    pub fn trouble(&self) -> Option<String> {
        let distance = self.distance();
        (distance.abs() > DIVERGENCE.0).then(|| {
            format!(
                "this server's clock is {} ms {} the store's; more than {DIVERGENCE} apart it does \
                 not serve",
                distance.abs(),
                if distance > 0 { "ahead of" } else { "behind" }
            )
        })
    }

    /// Milliseconds this clock is ahead of the store's, as last measured.
    pub fn distance(&self) -> i64 {
        self.offset
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .distance
    }
}

/// Monotonic time that goes on while the machine sleeps.
fn boottime_micros() -> i64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        static NOW: Cell<i64> = const { Cell::new(0) };
    }

    fn fake() -> i64 {
        NOW.get()
    }

    fn pass(millis: i64) {
        NOW.set(NOW.get() + millis * 1000);
    }

    #[test]
    fn it_starts_no_earlier_than_what_is_stored() {
        // A23, F41: the wall clock went back over a restart.
        let clock = Clock::with_monotonic(Millis(1_000), Millis(9_000), fake);
        assert_eq!(clock.now(), Millis(9_000));
        pass(5);
        assert_eq!(clock.now(), Millis(9_005));
    }

    #[test]
    fn a_step_of_the_store_clock_is_followed_at_one_millisecond_per_second() {
        // A23
        let clock = Clock::with_monotonic(Millis(0), Millis(0), fake);
        pass(1_000);
        clock.observe(Millis(61_000));
        assert_eq!(clock.now(), Millis(1_001));
        assert!(clock.trouble().is_some_and(|why| why.contains("behind")));
        for _ in 0..10 {
            pass(1_000);
            clock.observe(Millis(61_000 + NOW.get() / 1000));
        }
        assert_eq!(clock.now(), Millis(11_011));
        pass(3_600_000);
        clock.observe(Millis(99_000_000));
        assert_eq!(
            clock.now(),
            Millis(3_611_012),
            "an hour of silence is no step"
        );
    }

    #[test]
    fn a_busy_server_is_corrected_as_well_as_an_idle_one() {
        // A23: looks that come every 100 microseconds still add up.
        let clock = Clock::with_monotonic(Millis(0), Millis(0), fake);
        let start = NOW.get();
        for _ in 0..100_000 {
            NOW.set(NOW.get() + 100);
            clock.observe(Millis(60_000 + (NOW.get() - start) / 1000));
        }
        let gained = clock.now().0 - (NOW.get() - start) / 1000;
        assert!((9..=10).contains(&gained), "{gained}");
    }

    #[test]
    fn it_never_goes_backwards() {
        // A23
        let clock = Clock::with_monotonic(Millis(50_000), Millis(0), fake);
        pass(4_000);
        let before = clock.now();
        clock.observe(Millis(0));
        assert!(clock.now() >= before);
        assert_eq!(
            clock.trouble().map(|why| why.contains("ahead of")),
            Some(true)
        );
        pass(100);
        let later = clock.now();
        assert!(
            later.0 - before.0 >= 95 && later.0 - before.0 <= 100,
            "{later:?}"
        );
    }

    #[test]
    fn small_differences_are_no_trouble() {
        let clock = Clock::with_monotonic(Millis(10_000), Millis(0), fake);
        clock.observe(Millis(14_000));
        assert_eq!(clock.trouble(), None);
    }
}
