//! What is said about a line that is down: why, once per outage; again now and then while it lasts;
//! and that it is over. Owns no clock and writes nothing itself.

use std::time::{Duration, Instant};

/// Between two words about one outage: often enough to be found in a log, too seldom to fill it.
const REPEAT: Duration = Duration::from_secs(5 * 60);

/// The outage that goes on, if one does.
#[derive(Debug, Default)]
pub struct Outage {
    since: Option<Instant>,
    told: Option<Instant>,
}

/// What a try without success is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worth {
    /// A warning: the first of its outage, or the first for a while.
    Saying,
    /// Nothing that was not said a moment ago.
    Nothing,
}

impl Outage {
    /// A try failed. A failure of TLS is somebody's mistake in a file: it is said at each try
    /// (EP-34), which are at most a minute apart.
    pub fn failed(&mut self, now: Instant, tls: bool) -> Worth {
        self.since.get_or_insert(now);
        let due = |told: Instant| now.saturating_duration_since(told) >= REPEAT;
        if tls || self.told.is_none_or(due) {
            self.told = Some(now);
            Worth::Saying
        } else {
            Worth::Nothing
        }
    }

    /// The line is up. How long it was down, if that was said.
    pub fn over(&mut self, now: Instant) -> Option<Duration> {
        let outage = std::mem::take(self);
        let since = outage.since?;
        outage.told.map(|_| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outage_is_said_once_and_then_at_a_slow_rate() {
        let (mut outage, begin) = (Outage::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(outage.over(at(0)), None, "there was none");
        assert_eq!(outage.failed(at(0), false), Worth::Saying);
        for seconds in [1, 60, 299] {
            assert_eq!(outage.failed(at(seconds), false), Worth::Nothing);
        }
        assert_eq!(outage.failed(at(300), false), Worth::Saying);
        assert_eq!(outage.failed(at(301), false), Worth::Nothing);
        assert_eq!(outage.over(at(310)), Some(Duration::from_secs(310)));
        assert_eq!(outage.failed(at(311), false), Worth::Saying, "another one");
    }

    #[test]
    fn a_failure_of_tls_is_said_at_each_try() {
        // EP-34
        let (mut outage, now) = (Outage::default(), Instant::now());
        for _ in 0..3 {
            assert_eq!(outage.failed(now, true), Worth::Saying);
        }
    }
}
