//! Moments and spans in whole milliseconds. The core never asks what time it is: `now` is given.

use std::fmt;
use std::ops::{Add, Sub};

/// A moment: milliseconds since the Unix epoch, on the server's one clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub i64);

/// A length of time in milliseconds, never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub i64);

impl Millis {
    pub const ZERO: Millis = Millis(0);
    /// Later than any deadline; never stored.
    pub const FAR: Millis = Millis(i64::MAX / 4);

    /// The time from `earlier` to `self`, zero when `earlier` is in fact later.
    pub fn since(self, earlier: Millis) -> Span {
        Span((self.0 - earlier.0).max(0))
    }
}

impl Span {
    pub const ZERO: Span = Span(0);

    pub const fn millis(n: i64) -> Span {
        Span(n)
    }

    pub const fn secs(n: i64) -> Span {
        Span(n * 1000)
    }

    pub const fn minutes(n: i64) -> Span {
        Span(n * 60_000)
    }

    pub const fn hours(n: i64) -> Span {
        Span(n * 3_600_000)
    }

    pub fn plus(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }

    /// Whole multiple, saturating.
    pub fn times(self, n: i64) -> Span {
        Span(self.0.saturating_mul(n))
    }
}

impl Add<Span> for Millis {
    type Output = Millis;
    fn add(self, span: Span) -> Millis {
        Millis(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Millis {
    type Output = Millis;
    fn sub(self, span: Span) -> Millis {
        Millis(self.0.saturating_sub(span.0))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms if ms % 3_600_000 == 0 && ms > 0 => write!(f, "{}h", ms / 3_600_000),
            ms if ms % 60_000 == 0 && ms > 0 => write!(f, "{}m", ms / 60_000),
            ms if ms % 1000 == 0 => write!(f, "{}s", ms / 1000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_duration_counts_as_zero() {
        // A23: reported times may run backwards; a span never does.
        assert_eq!(Millis(5).since(Millis(9)), Span::ZERO);
        assert_eq!(Millis(9).since(Millis(5)), Span(4));
    }

    #[test]
    fn spans_print_in_the_largest_whole_unit() {
        let shown: Vec<String> = [
            Span::hours(2),
            Span::minutes(90),
            Span::secs(5),
            Span(1500),
            Span(0),
        ]
        .iter()
        .map(Span::to_string)
        .collect();
        assert_eq!(shown, ["2h", "90m", "5s", "1500ms", "0s"]);
    }
}
