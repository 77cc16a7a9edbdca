//! `*_seconds` on the wire: a JSON number, whole when whole (`120`), fractional when needed
//! (`1.5`), kept as whole milliseconds inside.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::ToSchema;

/// Ten years. No time limit of a job is longer, and sums of a few of them stay far from overflow.
pub const MAX_SECONDS: u64 = 10 * 366 * 24 * 60 * 60;

/// A length of time in seconds, as the wire spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = f64, example = 120)]
pub struct Seconds(u64);

impl Seconds {
    /// Only ever written where no time is running at all: an ack without a cancel.
    pub const ZERO: Seconds = Seconds(0);

    pub const fn from_millis(millis: u64) -> Self {
        Seconds(millis)
    }

    pub const fn from_secs(secs: u64) -> Self {
        Seconds(secs.saturating_mul(1000))
    }

    /// What is left of a deadline, never 0: a runner may read 0 as "no limit".
    pub fn remaining(millis: i64) -> Self {
        Seconds(u64::try_from(millis).unwrap_or(0).max(1))
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }

    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Reads a JSON number; a positive one never becomes 0.
    pub fn from_number(number: f64) -> Result<Self, String> {
        if !number.is_finite() || number < 0.0 {
            return Err("must be a number of seconds, 0 or more".to_owned());
        }
        if number > MAX_SECONDS as f64 {
            return Err(format!("must be at most {MAX_SECONDS} seconds"));
        }
        let millis = (number * 1000.0).round() as u64;
        Ok(Seconds(if number > 0.0 { millis.max(1) } else { 0 }))
    }
}

impl From<Duration> for Seconds {
    fn from(duration: Duration) -> Self {
        Seconds(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_multiple_of(1000) {
            write!(f, "{}", self.0 / 1000)
        } else {
            write!(f, "{}", self.0 as f64 / 1000.0)
        }
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(1000) {
            serializer.serialize_u64(self.0 / 1000)
        } else {
            serializer.serialize_f64(self.0 as f64 / 1000.0)
        }
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Seconds::from_number(f64::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(millis: u64) -> String {
        serde_json::to_string(&Seconds::from_millis(millis)).unwrap()
    }

    #[test]
    fn whole_seconds_are_written_whole() {
        assert_eq!(written(120_000), "120");
        assert_eq!(written(1_500), "1.5");
        assert_eq!(written(1), "0.001");
        assert_eq!(written(0), "0");
    }

    #[test]
    fn what_is_written_is_read_back_to_the_millisecond() {
        for millis in [1, 7, 333, 999, 1_000, 1_001, 86_400_123, 604_800_000] {
            let read: Seconds = serde_json::from_str(&written(millis)).unwrap();
            assert_eq!(read.as_millis(), millis);
        }
    }

    #[test]
    fn a_positive_time_never_becomes_zero() {
        assert_eq!(Seconds::from_number(0.000_01).unwrap().as_millis(), 1);
        assert_eq!(Seconds::remaining(-5).as_millis(), 1);
        assert!(Seconds::from_number(-1.0).is_err());
        assert!(Seconds::from_number(f64::NAN).is_err());
        assert!(Seconds::from_number(1e18).is_err());
    }
}
