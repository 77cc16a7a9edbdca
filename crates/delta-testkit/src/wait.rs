//! Waiting for something to become true, with a deadline, instead of sleeping and hoping.
//!
//! The closure answers `Ok(value)` when it is there, and `Err(observed)` with what it saw instead
//! when it is not. Counts real time: not for tests that pause tokio's clock.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// The first pause; doubled up to [`LONGEST_PAUSE`]. Short, since most things are nearly ready.
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Long enough not to burn a shared core, short enough that no test feels it.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Looks until the closure says `Ok`; panics with `what` and what it saw last at the deadline.
#[track_caller]
pub fn eventually<T, O: Debug>(
    deadline: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<T, O>,
) -> T {
    let mut pace = Pace::new(deadline);
    loop {
        match look() {
            Ok(value) => return value,
            Err(observed) => match pace.next_pause() {
                Some(pause) => std::thread::sleep(pause),
                None => give_up(deadline, what, &format!("last saw: {observed:?}")),
            },
        }
    }
}

/// As [`eventually`], for an async closure. One look that hangs is cut at the deadline too.
pub async fn eventually_async<T, O: Debug>(
    deadline: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, O>,
) -> T {
    let mut pace = Pace::new(deadline);
    let mut last = "saw nothing: the first look did not return".to_owned();
    loop {
        match tokio::time::timeout(pace.left(), look()).await {
            Ok(Ok(value)) => return value,
            Ok(Err(observed)) => last = format!("last saw: {observed:?}"),
            Err(_) => give_up(deadline, what, &last),
        }
        match pace.next_pause() {
            Some(pause) => tokio::time::sleep(pause).await,
            None => give_up(deadline, what, &last),
        }
    }
}

#[track_caller]
fn give_up(deadline: Duration, what: &str, last: &str) -> ! {
    panic!("not within {deadline:?}: {what}; {last}");
}

/// The pauses between looks, until the deadline.
pub(crate) struct Pace {
    ends: Instant,
    pause: Duration,
}

impl Pace {
    pub(crate) fn new(deadline: Duration) -> Self {
        Self {
            ends: Instant::now() + deadline,
            pause: FIRST_PAUSE,
        }
    }

    pub(crate) fn left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    /// `None` once the deadline has passed; the last pause ends at the deadline, for a last look.
    pub(crate) fn next_pause(&mut self) -> Option<Duration> {
        let left = self.left();
        if left.is_zero() {
            return None;
        }
        let pause = self.pause.min(left);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Some(pause)
    }
}
