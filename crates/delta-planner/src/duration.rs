//! Durations as people write them: `500ms`, `90s`, `10m`, `1h30m`. Owns the grammar; refuses
//! numbers without a unit, because nobody can tell seconds from minutes by looking.

use std::time::Duration;

/// One sentence that teaches the grammar; every refusal carries it.
pub const GRAMMAR: &str =
    "write whole numbers with units (d h m s ms), largest first: `500ms`, `90s`, `1h30m`";

/// Units, largest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Why a text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("the duration is empty")]
    Empty,
    #[error("`{0}` has no unit")]
    NoUnit(String),
    #[error("`{0}` is not a unit of time")]
    UnknownUnit(String),
    #[error("a number was expected before `{0}`")]
    NoNumber(String),
    #[error("the units are not in order, largest first")]
    Order,
    #[error("the duration is too long")]
    TooLong,
}

/// Reads one duration. Zero is a duration; whether it makes sense is the caller's question.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(DurationError::Empty);
    }
    let mut total: u64 = 0;
    let mut next_unit = 0;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if number.is_empty() {
            return Err(DurationError::NoNumber(tail.to_owned()));
        }
        let letters = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        if unit.is_empty() {
            return Err(DurationError::NoUnit(number.to_owned()));
        }
        let position = UNITS
            .iter()
            .position(|(name, _)| *name == unit)
            .ok_or_else(|| DurationError::UnknownUnit(unit.to_owned()))?;
        if position < next_unit {
            return Err(DurationError::Order);
        }
        next_unit = position + 1;
        let number: u64 = number.parse().map_err(|_| DurationError::TooLong)?;
        let millis = number
            .checked_mul(UNITS[position].1)
            .ok_or(DurationError::TooLong)?;
        total = total.checked_add(millis).ok_or(DurationError::TooLong)?;
        rest = tail;
    }
    Ok(Duration::from_millis(total))
}

/// Writes a duration the way [`parse`] reads it, without losing milliseconds.
pub fn format(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, size) in UNITS {
        if millis >= size {
            text.push_str(&format!("{}{unit}", millis / size));
            millis %= size;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_write_the_same_text() {
        for text in ["500ms", "90s", "10m", "1h30m", "2d", "1m1s1ms"] {
            let duration = parse(text).expect(text);
            assert_eq!(parse(&format(duration)), Ok(duration), "{text}");
        }
        assert_eq!(parse("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(format(Duration::from_secs(90)), "1m30s");
    }

    #[test]
    fn each_slip_has_its_own_reason() {
        assert_eq!(parse(""), Err(DurationError::Empty));
        assert_eq!(parse("10"), Err(DurationError::NoUnit("10".into())));
        assert_eq!(parse("10 m"), Err(DurationError::UnknownUnit(" m".into())));
        assert_eq!(
            parse("10min"),
            Err(DurationError::UnknownUnit("min".into()))
        );
        assert_eq!(parse("-5m"), Err(DurationError::NoNumber("-5m".into())));
        assert_eq!(parse("1.5h"), Err(DurationError::UnknownUnit(".".into())));
        assert_eq!(parse("5s1m"), Err(DurationError::Order));
        assert_eq!(parse("99999999999999999999h"), Err(DurationError::TooLong));
    }
}
