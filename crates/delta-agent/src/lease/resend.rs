//! A message under a lease that is sent until it is answered: whether it is on its way, and when it
//! may be sent again.

use std::time::Duration;

use delta_core::time::{Millis, Span};
use delta_wire::Seconds;

use crate::backoff::{Backoff, entropy};

/// Waits between tries under a lease: short, because its time is running.
const RETRY_BASE: Duration = Duration::from_millis(200);
const RETRY_CAP: Duration = Duration::from_secs(5);

/// A message that is sent until it is answered.
pub(crate) struct Resend {
    pub in_flight: bool,
    not_before: Millis,
    backoff: Backoff,
}

impl Resend {
    pub fn new() -> Resend {
        let backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
        Resend {
            in_flight: false,
            not_before: Millis::ZERO,
            backoff,
        }
    }

    pub fn due(&self, now: Millis) -> bool {
        !self.in_flight && now >= self.not_before
    }

    /// When to look again, at the latest at `other`.
    pub fn next(&self, other: Millis) -> Millis {
        if self.in_flight {
            other
        } else {
            other.min(self.not_before)
        }
    }

    pub fn failed(&mut self, now: Millis, retry_after: Option<Duration>) {
        self.in_flight = false;
        self.not_before = now + span(self.backoff.next(retry_after, entropy()).into());
    }

    pub fn answered(&mut self, not_before: Millis) {
        self.in_flight = false;
        self.not_before = not_before;
        self.backoff.reset();
    }
}

/// A time of the wire as a time of the core.
pub(crate) fn span(seconds: Seconds) -> Span {
    Span(i64::try_from(seconds.as_millis()).unwrap_or(i64::MAX))
}
