//! Durations as people write them on a command line or in a pipeline file: `500ms`, `2m`,
//! `1h30m`, `7d`. Units fall from large to small, each at most once; a bare number is refused,
//! because nobody agrees on its unit.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Ten years: longer than any limit that makes sense, short enough that sums never overflow.
const MAX_MILLIS: u64 = crate::seconds::MAX_SECONDS * 1000;

/// Why a text is no duration, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("is empty; write a duration such as 500ms, 2m or 1h30m")]
    Empty,
    #[error("`{0}` has no unit; write {0}s for seconds, or a duration such as 500ms, 2m or 1h30m")]
    NoUnit(String),
    #[error("`{0}` does not start with a whole number; write a duration such as 500ms or 1h30m")]
    NoNumber(String),
    #[error("`{0}` is not a unit; the units are d, h, m, s and ms")]
    UnknownUnit(String),
    #[error("units go from large to small, each once: 1h30m, not 30m1h")]
    Order,
    #[error("is longer than ten years")]
    TooLong,
}

/// Reads a duration.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(DurationError::Empty);
    }
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total: u64 = 0;
    let mut units = UNITS.iter();
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        if number.is_empty() {
            return Err(DurationError::NoNumber(rest.to_owned()));
        }
        let letters = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(letters);
        if unit.is_empty() {
            return Err(DurationError::NoUnit(number.to_owned()));
        }
        if !UNITS.iter().any(|(name, _)| *name == unit) {
            return Err(DurationError::UnknownUnit(unit.to_owned()));
        }
        let (_, millis) = units
            .find(|(name, _)| *name == unit)
            .ok_or(DurationError::Order)?;
        let number: u64 = number.parse().map_err(|_| DurationError::TooLong)?;
        total = number
            .checked_mul(*millis)
            .and_then(|part| part.checked_add(total))
            .filter(|total| *total <= MAX_MILLIS)
            .ok_or(DurationError::TooLong)?;
        rest = next;
    }
    Ok(Duration::from_millis(total))
}

/// Writes a duration so that [`parse`] reads the same milliseconds back.
pub fn format(duration: Duration) -> String {
    let mut left = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if left == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, millis) in UNITS {
        let count = left / millis;
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
            left %= millis;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("500ms", 500),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("1m1s1ms", 61_001),
            (" 90s ", 90_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for millis in [0, 1, 999, 1_000, 61_001, 86_400_000, 90_061_001] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(&format(duration)), Ok(duration));
        }
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        assert_eq!(parse(""), Err(DurationError::Empty));
        assert_eq!(parse("120"), Err(DurationError::NoUnit("120".into())));
        assert_eq!(parse("-5s"), Err(DurationError::NoNumber("-5s".into())));
        assert_eq!(
            parse("5 minutes"),
            Err(DurationError::UnknownUnit(" minutes".into()))
        );
        assert_eq!(parse("30m1h"), Err(DurationError::Order));
        assert_eq!(parse("1h1h"), Err(DurationError::Order));
        assert_eq!(parse("99999999999999999999d"), Err(DurationError::TooLong));
        assert!(parse("120").unwrap_err().to_string().contains("120s"));
    }
}
