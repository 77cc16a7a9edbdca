//! Waiting between tries: exponential with full jitter, so that a thousand agents do not come back
//! in one wave when a server does. What the server asks for in `Retry-After` is a lower bound.

use std::time::Duration;

/// A server may ask for patience, not for retirement.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// Where one sequence of tries stands.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    failures: u32,
    /// Those under a bound.
    bounded: u32,
}

impl Backoff {
    /// The first wait is up to `base`, each further one up to twice as long, never beyond `cap`.
    pub fn new(base: Duration, cap: Duration) -> Backoff {
        Backoff {
            base,
            cap,
            failures: 0,
            bounded: 0,
        }
    }

    /// The wait after one more failure. `entropy` is any random number.
    pub fn next(&mut self, retry_after: Option<Duration>, entropy: u64) -> Duration {
        let jitter = jitter(self.base, self.cap, self.failures, entropy);
        self.failures = self.failures.saturating_add(1);
        match retry_after {
            // All who were sent away together must not return together.
            Some(after) => after.min(MAX_RETRY_AFTER) + jitter.min(after),
            None => jitter,
        }
    }

    /// As [`Backoff::next`], for whoever must not stay away for longer than `most`. Failures under
    /// such a bound are counted apart: they do not lengthen the waits after it.
    pub fn next_within(&mut self, most: Option<Duration>, entropy: u64) -> Duration {
        let Some(most) = most else {
            return self.next(None, entropy);
        };
        let jitter = jitter(self.base, self.cap.min(most), self.bounded, entropy);
        self.bounded = self.bounded.saturating_add(1);
        jitter
    }

    pub fn reset(&mut self) {
        (self.failures, self.bounded) = (0, 0);
    }
}

fn jitter(base: Duration, cap: Duration, failures: u32, entropy: u64) -> Duration {
    let full = base.saturating_mul(1 << failures.min(20)).min(cap);
    let span = u64::try_from(full.as_millis()).unwrap_or(u64::MAX).max(1);
    Duration::from_millis(entropy % span)
}

/// A random number for jitter. Without one the waits are merely less spread.
pub fn entropy() -> u64 {
    getrandom::u64().unwrap_or(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_start_over_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let longest: Vec<u64> = (0..9)
            .map(|_| backoff.next(None, u64::MAX - 615).as_secs() + 1)
            .collect();
        assert!(
            longest
                .iter()
                .zip([1, 2, 4, 8, 16, 32, 60, 60, 60])
                .all(|(got, most)| *got <= most)
        );
        assert_eq!(backoff.next(None, 59_999), Duration::from_millis(59_999));
        backoff.reset();
        assert_eq!(backoff.next(None, 1_999), Duration::from_millis(999));
    }

    #[test]
    fn who_must_be_back_soon_does_not_wait_for_longer() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let most = Duration::from_secs(3);
        for n in 0..20 {
            let wait = backoff.next_within(Some(most), 59_999 - n);
            assert!(wait < most, "{wait:?}");
        }
        assert_eq!(backoff.next_within(Some(most), 2_999).as_millis(), 2_999);
        // None of it was counted.
        assert!(backoff.next_within(None, 59_999) < Duration::from_secs(1));
    }

    #[test]
    fn the_servers_word_is_a_lower_bound_within_reason() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let second = Duration::from_secs(1);
        assert!(backoff.next(Some(second), 5) >= second);
        assert!(backoff.next(Some(Duration::from_secs(1_000_000)), 5) <= MAX_RETRY_AFTER * 2);
    }
}
