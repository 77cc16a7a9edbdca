//! What is measured of duties: what each did, and how late it is.
//!
//! Late is whoever has not made the pass that was due, whether it is still at the one before, fails
//! again and again, or is gone. So it is reckoned when somebody asks, not when a pass begins.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DutyLabel {
    duty: &'static str,
}

#[derive(Default)]
pub struct DutyMeters {
    done: Family<DutyLabel, Counter>,
    late: Family<DutyLabel, Gauge<f64, AtomicU64>>,
    /// When each must have begun its next pass that goes well.
    due: Mutex<BTreeMap<&'static str, Instant>>,
}

impl DutyMeters {
    pub fn register(registry: &mut Registry) -> DutyMeters {
        let meters = DutyMeters::default();
        let help = "Things a duty did: rows changed, runs deleted, files removed, statuses begun";
        registry.register("duty_done", help, meters.done.clone());
        let help = "How long ago a duty should have made a pass that went well; 0 in time";
        registry.register("duty_late_seconds", help, meters.late.clone());
        meters
    }

    /// A pass did so many things.
    pub fn did(&self, duty: &'static str, things: usize) {
        let done = self.done.get_or_create(&DutyLabel { duty });
        done.inc_by(things as u64);
    }

    /// A duty has its next pass to make by then.
    pub fn expect(&self, duty: &'static str, by: Instant) {
        self.due().insert(duty, by);
    }

    /// Reckons how late each is, to be read.
    pub fn reckon(&self, now: Instant) {
        for (duty, by) in self.due().iter() {
            let late = now.saturating_duration_since(*by).as_secs_f64();
            self.late.get_or_create(&DutyLabel { duty }).set(late);
        }
    }

    fn due(&self) -> MutexGuard<'_, BTreeMap<&'static str, Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_duty_is_late_from_the_moment_its_pass_was_due_until_one_goes_well() {
        let mut registry = Registry::default();
        let meters = DutyMeters::register(&mut registry);
        let start = Instant::now();
        let late = |after: u64| {
            meters.reckon(start + Duration::from_secs(after));
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
            let line = text
                .lines()
                .find(|line| line.starts_with("duty_late_seconds{"));
            line.expect("a line").rsplit(' ').next().unwrap().to_owned()
        };
        meters.expect("sweep", start + Duration::from_secs(1));
        assert_eq!(late(0), "0.0");
        assert_eq!(late(1), "0.0");
        assert_eq!(late(61), "60.0");
        meters.expect("sweep", start + Duration::from_secs(62));
        assert_eq!(late(61), "0.0");
    }
}
