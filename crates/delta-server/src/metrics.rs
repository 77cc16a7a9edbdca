//! What operators watch (`/metrics`). No label ever names a lease, a token, a runner or a person.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

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
    pub parked: Gauge,
    pub clock_distance: Gauge,
    pub wal_bytes: Gauge,
    pub lane_hold: Gauge,
    pub lane_dispatch: Gauge,
    pub lane_people: Gauge,
    pub event_streams: Gauge,
    flushes: Gauge<u64, AtomicU64>,
    batch_size: Histogram,
    commit_seconds: Histogram,
}

impl Metrics {
    pub fn new() -> Metrics {
        let mut registry = Registry::with_prefix("delta");
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let lease_requests = counter("lease_requests", "Requests for work");
        let grants = counter("leases_granted", "Leases granted");
        let stale = counter("stale_replies", "Messages on leases that were over");
        let refused = counter("refused", "Requests refused because a lane was full");
        let too_late = counter("too_late", "Requests that waited too long to be judged");
        let undelivered = counter("grants_undelivered", "Grants that reached nobody");
        let conflicts = counter(
            "batch_conflicts",
            "Batches run again: another writer was first",
        );
        let failed_batches = counter("batches_failed", "Batches the store did not take");
        let unknown_fields = counter("unknown_fields", "Unknown fields in runners' messages");
        let unauthenticated = counter("unauthenticated", "Requests without a good credential");
        let mut gauge = |name: &str, help: &str| {
            let gauge: Gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let parked = gauge("parked_slots", "Lease requests that wait for work");
        let clock_distance = gauge(
            "clock_ahead_of_store_milliseconds",
            "How far this server's clock is ahead of the store's",
        );
        let wal_bytes = gauge("wal_bytes", "Bytes of the store's write-ahead log");
        let lane_hold = gauge("lane_hold_depth", "Waiting heartbeats and completions");
        let lane_dispatch = gauge("lane_dispatch_depth", "Waiting lease requests and duties");
        let lane_people = gauge("lane_people_depth", "Waiting requests of people");
        let event_streams = gauge("event_streams", "Open event streams");
        let flushes = Gauge::<u64, AtomicU64>::default();
        registry.register("store_flushes", "Durable flushes so far", flushes.clone());
        let batch_size = Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]);
        registry.register("batch_size", "Commands per batch", batch_size.clone());
        let commit_seconds =
            Histogram::new([0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]);
        registry.register(
            "commit_seconds",
            "Time of one commit",
            commit_seconds.clone(),
        );
        Metrics {
            registry,
            lease_requests,
            grants,
            stale,
            refused,
            too_late,
            undelivered,
            conflicts,
            failed_batches,
            unknown_fields,
            unauthenticated,
            parked,
            clock_distance,
            wal_bytes,
            lane_hold,
            lane_dispatch,
            lane_people,
            event_streams,
            flushes,
            batch_size,
            commit_seconds,
        }
    }

    pub fn commit(&self, took: Duration) {
        self.commit_seconds.observe(took.as_secs_f64());
    }

    pub fn batch(&self, size: usize, flushes: u64) {
        self.batch_size.observe(size as f64);
        self.flushes.set(flushes);
    }

    pub fn encode(&self) -> String {
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
