//! The queue: order, fitness, and who is in it.

use std::collections::BTreeSet;

use delta_core::{AttemptId, Command, Span, World};
use delta_store::{Claim, Store};

use super::Fixture;
use super::bench::{Bench, header, new_job, policy, run_id};

fn claim(bench: &mut Bench, keys: &[&str], limit: usize, skip: &[AttemptId]) -> Vec<AttemptId> {
    let claim = Claim {
        keys: keys.iter().map(|key| (*key).into()).collect(),
        limit,
        skip: skip.iter().copied().collect::<BTreeSet<_>>(),
    };
    let mut world = World::default();
    bench.store.begin().unwrap();
    let picked = bench.store.claim(&claim, &mut world).unwrap();
    for id in &picked {
        // Loaded with their job and run.
        assert!(world.attempts[id].is_some());
        assert!(world.jobs[&id.job].is_some());
        assert!(world.runs[&id.run()].is_some());
    }
    bench.store.rollback();
    picked
}

fn first(n: u64, job: u32) -> AttemptId {
    run_id(n).job(job).attempt(1)
}

pub fn attempts_come_in_queue_order(make: &dyn Fn() -> Fixture) {
    // A64: earlier first, a second per place in the run, a minute per point of priority.
    let mut bench = Bench::new(make);
    bench.create(1, &["linux", "linux", "linux"]);
    bench.now = bench.now + Span::millis(500);
    bench.create(2, &["linux"]);
    bench.now = bench.now + Span::secs(30);
    let mut urgent = policy("linux");
    urgent.priority = 1;
    bench.create_with(3, header(), vec![new_job("urgent", urgent)]);
    let order = [
        first(3, 1),
        first(1, 1),
        first(2, 1),
        first(1, 2),
        first(1, 3),
    ];
    assert_eq!(claim(&mut bench, &["linux"], 9, &[]), order);
    assert_eq!(claim(&mut bench, &["linux"], 2, &[]), order[..2]);
    let mut bench = bench.reopen();
    assert_eq!(claim(&mut bench, &["linux"], 9, &[]), order);
}

pub fn only_fit_attempts_are_claimed(make: &dyn Fn() -> Fixture) {
    // RP-11
    let mut bench = Bench::new(make);
    bench.create(1, &["gpu linux", "linux", ""]);
    let none: [AttemptId; 0] = [];
    assert_eq!(claim(&mut bench, &["windows"], 9, &[]), none);
    assert_eq!(claim(&mut bench, &[], 9, &[]), none);
    assert_eq!(claim(&mut bench, &["linux"], 9, &[]), [first(1, 2)]);
    let both = [first(1, 2), first(1, 3)];
    assert_eq!(claim(&mut bench, &["", "linux", "linux"], 9, &[]), both);
}

pub fn what_was_granted_in_this_batch_is_skipped(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux", "linux", "linux"]);
    let skip = [first(1, 1), first(1, 3)];
    assert_eq!(claim(&mut bench, &["linux"], 9, &skip), [first(1, 2)]);
}

pub fn a_row_not_granted_stays_queued(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux"]);
    for _ in 0..3 {
        assert_eq!(claim(&mut bench, &["linux"], 1, &[]), [first(1, 1)]);
    }
    assert!(bench.lease("r1", &["linux"]).is_some());
    assert!(claim(&mut bench, &["linux"], 1, &[]).is_empty());
}

pub fn a_lost_attempt_is_queued_again(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    bench.now = bench.now + bench.settings.lease_ttl;
    let attempt = held.attempt();
    bench.one(Command::AttemptDue { attempt }).unwrap();
    let mut bench = bench.reopen();
    assert_eq!(claim(&mut bench, &["linux"], 9, &[]), [attempt]);
    let again = bench.lease("r2", &["linux"]).expect("work");
    assert_eq!(again.attempt(), attempt);
    assert!(again.proof.key.epoch > held.proof.key.epoch);
    assert!(claim(&mut bench, &["linux"], 9, &[]).is_empty());
}

pub fn match_keys_name_what_is_queued(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["gpu linux", "linux", "linux"]);
    let keys = bench.store.match_keys().unwrap();
    for key in ["gpu linux", "linux"] {
        assert!(keys.iter().any(|k| **k == *key), "{keys:?}");
    }
    let mut bench = bench.reopen();
    let again = bench.store.match_keys().unwrap();
    assert!(again.iter().any(|key| &**key == "gpu linux"), "{again:?}");
}

pub fn depths_and_places_are_counted(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux", "linux", "windows"]);
    let since = bench.now;
    bench.now = bench.now + Span::secs(10);
    bench.create(2, &["linux"]);
    let depths = bench.reader.queue().unwrap();
    let shown: Vec<_> = depths
        .iter()
        .map(|depth| (&*depth.match_key, depth.attempts, depth.oldest))
        .collect();
    assert_eq!(shown, [("linux", 3, since), ("windows", 1, since)]);
    let last = bench.attempt(first(2, 1)).order_key;
    assert_eq!(bench.reader.ahead("linux", last).unwrap(), 2);
    assert_eq!(bench.reader.ahead("windows", last).unwrap(), 1);
    assert_eq!(bench.reader.ahead("plan9", last).unwrap(), 0);
    bench.lease("r1", &["linux"]).expect("work");
    assert_eq!(bench.reader.ahead("linux", last).unwrap(), 1);
}

pub fn needs_keep_jobs_out_of_the_queue(make: &dyn Fn() -> Fixture) {
    // A65
    let mut bench = Bench::new(make);
    let mut second = policy("linux");
    second.needs = vec![1];
    let jobs = vec![new_job("a", policy("linux")), new_job("b", second)];
    bench.create_with(1, header(), jobs);
    assert_eq!(claim(&mut bench, &["linux"], 9, &[]), [first(1, 1)]);
    assert_eq!(bench.work_off("r1", &["linux"]), Some(first(1, 1)));
    assert_eq!(claim(&mut bench, &["linux"], 9, &[]), [first(1, 2)]);
}
