//! Times for people: how long something took, how long ago it was.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use delta_wire::Millis;

/// This machine's idea of now. Only for showing: the server decides by its own clock.
pub fn now() -> Millis {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// The time from one moment to another, zero when they are the wrong way round.
pub fn between(from: Millis, to: Millis) -> Duration {
    Duration::from_millis(u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0))
}

/// Three digits are enough: `380ms`, `4.2s`, `3m05s`, `2h07m`, `3d4h`.
pub fn short(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.as_millis());
    match seconds {
        0 => format!("{millis}ms"),
        1..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `3m05s ago`, `in 2h07m`.
pub fn relative(moment: Millis, now: Millis) -> String {
    if moment.0 <= now.0 {
        format!("{} ago", short(between(moment, now)))
    } else {
        format!("in {}", short(between(now, moment)))
    }
}

/// How long something took, or takes so far.
pub fn taken(from: Option<Millis>, to: Option<Millis>, now: Millis) -> String {
    match from {
        Some(from) => short(between(from, to.unwrap_or(now))),
        None => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short_at_every_size() {
        let shown: Vec<String> = [0, 380, 4_200, 59_000, 185_000, 7_620_000, 273_600_000]
            .iter()
            .map(|millis| short(Duration::from_millis(*millis)))
            .collect();
        assert_eq!(
            shown,
            ["0ms", "380ms", "4.2s", "59s", "3m05s", "2h07m", "3d4h"]
        );
    }

    #[test]
    fn the_past_and_the_future_read_differently() {
        assert_eq!(relative(Millis(1_000), Millis(13_000)), "12s ago");
        assert_eq!(relative(Millis(13_000), Millis(1_000)), "in 12s");
    }
}
