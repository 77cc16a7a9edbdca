//! Instants on the wire: milliseconds since the Unix epoch inside, RFC 3339 in UTC outside.
//!
//! What a runner says about time is information only, so reading it is lenient and may find
//! nothing; what this project writes is always exact.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use utoipa::ToSchema;

/// Milliseconds since the Unix epoch, spelled `2026-01-04T08:00:00Z` on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-01-04T08:00:00Z")]
pub struct Millis(pub i64);

impl Millis {
    /// The text; an instant outside the years a date can spell is written as the nearest one.
    pub fn to_rfc3339(self) -> String {
        let limit = if self.0 < 0 {
            Timestamp::MIN
        } else {
            Timestamp::MAX
        };
        Timestamp::from_millisecond(self.0)
            .unwrap_or(limit)
            .to_string()
    }

    /// Reads an RFC 3339 instant with its offset; a finer fraction is cut to milliseconds.
    pub fn from_rfc3339(text: &str) -> Option<Millis> {
        text.parse::<Timestamp>()
            .ok()
            .map(|at| Millis(at.as_millisecond()))
    }

    /// Reads what an agent sent; nothing when no calendar has it.
    pub fn from_proto(at: prost_types::Timestamp) -> Option<Millis> {
        let millis = at.seconds.checked_mul(1000)?;
        let at = Millis(millis.checked_add(i64::from(at.nanos) / 1_000_000)?);
        Timestamp::from_millisecond(at.0).is_ok().then_some(at)
    }

    /// As an agent sends it.
    pub fn to_proto(self) -> prost_types::Timestamp {
        prost_types::Timestamp {
            seconds: self.0.div_euclid(1000),
            nanos: i32::try_from(self.0.rem_euclid(1000)).unwrap_or(0) * 1_000_000,
        }
    }
}

impl std::fmt::Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_rfc3339())
    }
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_rfc3339())
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Millis::from_rfc3339(&text)
            .ok_or_else(|| de::Error::custom("must be a time such as 2026-01-04T08:00:00Z"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specifications_instants_are_read_and_written_alike() {
        for text in [
            "2026-01-04T08:00:00Z",
            "2026-01-04T08:03:12.25Z",
            "1970-01-01T00:00:00Z",
        ] {
            assert_eq!(Millis::from_rfc3339(text).unwrap().to_rfc3339(), text);
        }
    }

    #[test]
    fn an_offset_is_understood_and_a_local_time_is_not() {
        let utc = Millis::from_rfc3339("2026-01-04T08:00:00Z");
        assert_eq!(Millis::from_rfc3339("2026-01-04T09:00:00+01:00"), utc);
        assert_eq!(Millis::from_rfc3339("2026-01-04T08:00:00"), None);
        assert_eq!(Millis::from_rfc3339("yesterday"), None);
    }

    #[test]
    fn an_impossible_instant_is_still_written() {
        assert!(Millis(i64::MAX).to_rfc3339().starts_with("9999-"));
        assert!(Millis(i64::MIN).to_rfc3339().starts_with("-00"));
    }
}
