//! What operators watch (`/metrics`). No label ever names a lease, a token, a runner or a person.

use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::duties::meters::DutyMeters;

pub struct Metrics {
    registry: Registry,
    pub lease_requests: Counter,
    pub grants: Counter,
    pub stale: Counter,
    pub refused: Counter,
    pub too_late: Counter,
    pub undelivered: Counter,
    pub conflicts: Counter,
    pub failed_batches: Counter,
    pub unknown_fields: Counter,
    pub unauthenticated: Counter,
    pub cache_hits: Counter,
    pub cache_misses: Counter,
    pub caches_saved: Counter,
    pub caches_evicted: Counter,
    pub webhooks: Counter,
    pub webhooks_refused: Counter,
    pub plans: Counter,
    pub statuses_published: Counter,
    pub statuses_delayed: Counter,
    pub statuses_refused: Counter,
    pub parked: Gauge,
    pub clock_distance: Gauge,
    pub wal_bytes: Gauge,
    pub lane_hold: Gauge,
    pub lane_dispatch: Gauge,
    pub lane_people: Gauge,
    pub event_streams: Gauge,
    pub spans_sent: Gauge,
    pub spans_lost: Gauge,
    pub duties: DutyMeters,
    flushes: Gauge,
    batch_size: Histogram,
    commit_seconds: Histogram,
}

/// Makes metrics and enters them where they are read from.
struct Making(Registry);

impl Making {
    fn counter(&mut self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.0.register(name, help, counter.clone());
        counter
    }

    fn gauge(&mut self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.0.register(name, help, gauge.clone());
        gauge
    }

    fn histogram(&mut self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let histogram = Histogram::new(buckets.iter().copied());
        self.0.register(name, help, histogram.clone());
        histogram
    }
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut make = Making(Registry::with_prefix("delta"));
        let sizes = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
        let times = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0];
        Metrics {
            lease_requests: make.counter("lease_requests", "Requests for work"),
            grants: make.counter("leases_granted", "Leases granted"),
            stale: make.counter("stale_replies", "Messages on leases that were over"),
            refused: make.counter("refused", "Requests refused because a lane was full"),
            too_late: make.counter("too_late", "Requests that waited too long to be judged"),
            undelivered: make.counter("grants_undelivered", "Grants that reached nobody"),
            conflicts: make.counter("batch_conflicts", "Batches run again after a conflict"),
            failed_batches: make.counter("batches_failed", "Batches the store did not take"),
            unknown_fields: make.counter("unknown_fields", "Unknown fields from runners"),
            unauthenticated: make.counter("unauthenticated", "Requests without a credential"),
            cache_hits: make.counter("cache_hits", "Caches found, exactly or by a prefix"),
            cache_misses: make.counter("cache_misses", "Caches looked for in vain"),
            caches_saved: make.counter("caches_saved", "Caches saved"),
            caches_evicted: make.counter("caches_evicted", "Caches evicted"),
            webhooks: make.counter("webhooks", "Deliveries of forges that were believed"),
            webhooks_refused: make.counter("webhooks_refused", "Deliveries without a signature"),
            plans: make.counter("plans", "Plans made, or given up"),
            statuses_published: make.counter("statuses_published", "Statuses told to forges"),
            statuses_delayed: make.counter("statuses_delayed", "Tries that a forge did not take"),
            statuses_refused: make.counter("statuses_refused", "Tries that a forge refused"),
            parked: make.gauge("parked_slots", "Lease requests that wait for work"),
            clock_distance: make.gauge(
                "clock_ahead_of_store_milliseconds",
                "How far this server's clock is ahead of the store's",
            ),
            wal_bytes: make.gauge("wal_bytes", "Bytes of the store's write-ahead log"),
            lane_hold: make.gauge("lane_hold_depth", "Waiting heartbeats and completions"),
            lane_dispatch: make.gauge("lane_dispatch_depth", "Waiting lease requests and duties"),
            lane_people: make.gauge("lane_people_depth", "Waiting requests of people"),
            event_streams: make.gauge("event_streams", "Open event streams"),
            spans_sent: make.gauge("spans_sent", "Spans the collector of traces took so far"),
            spans_lost: make.gauge("spans_lost", "Spans that it did not take so far"),
            flushes: make.gauge("store_flushes", "Durable flushes so far"),
            batch_size: make.histogram("batch_size", "Commands per batch", &sizes),
            commit_seconds: make.histogram("commit_seconds", "Time of one commit", &times),
            duties: DutyMeters::register(&mut make.0),
            registry: make.0,
        }
    }

    pub fn commit(&self, took: Duration) {
        self.commit_seconds.observe(took.as_secs_f64());
    }

    pub fn batch(&self, size: usize, flushes: u64) {
        self.batch_size.observe(size as f64);
        self.flushes.set(i64::try_from(flushes).unwrap_or(i64::MAX));
    }

    pub fn encode(&self) -> String {
        self.duties.reckon(Instant::now());
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_documented() {
        let documented = include_str!("../../../docs/metrics.md");
        let metrics = Metrics::new();
        metrics.duties.did("sweep", 1);
        metrics.duties.expect("sweep", Instant::now());
        let text = metrics.encode();
        let named = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let mut names = 0;
        for line in named {
            let (name, kind) = line.split_once(' ').unwrap();
            let counted = if kind == "counter" { "_total" } else { "" };
            let told = [
                format!("`{name}{counted}`"),
                format!("`{name}{counted}{{duty}}`"),
            ];
            let is_told = told.iter().any(|it| documented.contains(it));
            assert!(is_told, "docs/metrics.md says nothing of {name}{counted}");
            names += 1;
        }
        assert!(names > 30, "{text}");
    }
}
