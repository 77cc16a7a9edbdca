//! Percentiles, and numbers as people read them.

use std::time::Duration;

/// Durations, to be asked for percentiles.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    sorted: Vec<Duration>,
}

impl Samples {
    pub fn new(mut durations: Vec<Duration>) -> Samples {
        durations.sort_unstable();
        Samples { sorted: durations }
    }

    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    /// The smallest value that at least `percent` of all do not exceed.
    pub fn percentile(&self, percent: f64) -> Duration {
        let count = self.sorted.len();
        let rank = (percent / 100.0 * count as f64).ceil() as usize;
        let index = rank.clamp(1, count.max(1)) - 1;
        self.sorted.get(index).copied().unwrap_or_default()
    }

    /// `p50 0.71 ms, p90 …`.
    pub fn text(&self) -> String {
        let at = |percent| millis(self.percentile(percent));
        format!(
            "p50 {} ms, p90 {} ms, p99 {} ms, longest {} ms (of {})",
            at(50.0),
            at(90.0),
            at(99.0),
            at(100.0),
            self.len()
        )
    }

    pub fn json(&self) -> serde_json::Value {
        let at = |percent| self.percentile(percent).as_secs_f64() * 1000.0;
        serde_json::json!({
            "count": self.len(),
            "p50_ms": at(50.0),
            "p90_ms": at(90.0),
            "p99_ms": at(99.0),
            "max_ms": at(100.0),
        })
    }
}

pub fn millis(duration: Duration) -> String {
    format!("{:.2}", duration.as_secs_f64() * 1000.0)
}

/// `a / b`, zero when there is nothing to divide by.
pub fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let samples = Samples::new((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!(samples.percentile(50.0), Duration::from_millis(50));
        assert_eq!(samples.percentile(99.0), Duration::from_millis(99));
        assert_eq!(samples.percentile(100.0), Duration::from_millis(100));
        assert_eq!(Samples::default().percentile(50.0), Duration::ZERO);
    }
}
