//! What was committed is there, what was not is not, and a lost answer is found out.

use std::collections::BTreeSet;

use delta_core::{AttemptState, Command, Millis, Reply, RunState, Span, Want, World};
use delta_store::memory::Fault;
use delta_store::{Claim, Store};

use super::Fixture;
use super::bench::{Bench, START, complete, new_job, policy, run_id, spec_text};

pub fn committed_work_is_there_after_a_reopen(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let run = bench.create(1, &["linux", "linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    bench.heartbeat(&held, 3).unwrap();
    let before = (bench.run_rows(run), bench.attempt(held.attempt()));
    let mut bench = bench.reopen();
    let after = (bench.run_rows(run), bench.attempt(held.attempt()));
    assert_eq!(before.0.run, after.0.run);
    assert_eq!(before.0.jobs, after.0.jobs);
    assert_eq!(before.0.version, after.0.version);
    assert_eq!(before.1, after.1);
    assert_eq!(after.1.state, AttemptState::Running);
    assert_eq!(bench.complete(&held), Ok(Reply::Completed));
    let other = bench.work_off("r1", &["linux"]).expect("the second job");
    assert_ne!(other, held.attempt());
    assert_eq!(bench.run(run).outcome, Some(RunState::Success));
}

pub fn an_uncommitted_batch_is_not_there(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let run = bench.create(1, &["linux"]);
    // A crash between the claim and the commit.
    bench.store.begin().unwrap();
    let mut world = World::default();
    let claim = Claim {
        keys: vec!["linux".into()],
        limit: 1,
        skip: BTreeSet::new(),
    };
    assert_eq!(bench.store.claim(&claim, &mut world).unwrap().len(), 1);
    let mut bench = bench.reopen();
    assert_eq!(bench.run_rows(run).version, 1);
    assert!(bench.work_off("r1", &["linux"]).is_some());
    // And one that was given up.
    bench.store.begin().unwrap();
    bench
        .store
        .load(&BTreeSet::from([Want::Run(run)]), &mut world)
        .unwrap();
    bench.store.rollback();
    assert_eq!(bench.run(run).state, RunState::Reported);
}

pub fn a_lost_answer_is_resolved_by_reading(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let run = bench.create(1, &["linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.inject(Fault::UnknownApplied);
    assert!(bench.ack(&held).is_ok());
    assert_eq!(bench.run_rows(run).version, 3, "applied once");
    bench.inject(Fault::UnknownNotApplied);
    bench.inject(Fault::UnknownNotApplied);
    bench.inject(Fault::UnknownApplied);
    assert_eq!(bench.complete(&held), Ok(Reply::Completed));
    assert_eq!(bench.run_rows(run).version, 4, "applied once");
    let mut bench = bench.reopen();
    assert_eq!(bench.run(run).outcome, Some(RunState::Success));
    assert_eq!(bench.complete(&held), Ok(Reply::Completed), "a repeat");
    assert_eq!(bench.run_rows(run).version, 4);
}

pub fn a_conflict_writes_nothing_and_runs_again(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    for _ in 0..3 {
        bench.inject(Fault::Conflict);
    }
    let run = bench.create(1, &["linux"]);
    assert_eq!(bench.run_rows(run).version, 1);
    bench.inject(Fault::Unavailable);
    let cancel = Command::CancelRun {
        run,
        cause: delta_core::Cause::CanceledByUser,
        by: "ann".into(),
    };
    assert!(bench.try_apply(std::slice::from_ref(&cancel)).is_err());
    assert_eq!(bench.run(run).state, RunState::Queued);
    assert!(bench.one(cancel).is_ok());
    assert_eq!(bench.run(run).outcome, Some(RunState::Canceled));
}

pub fn renewals_are_stored_without_an_event(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let run = bench.create(1, &["linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    bench.heartbeat(&held, 1).unwrap();
    let before = bench.run_rows(run).version;
    bench.now = bench.now + Span::secs(20);
    bench.heartbeat(&held, 2).unwrap();
    let bench = bench.reopen();
    assert_eq!(bench.run_rows(run).version, before);
    let attempt = bench.attempt(held.attempt());
    let lease = attempt.lease.expect("a lease");
    assert_eq!(lease.expires_at, bench.now + bench.settings.lease_ttl);
    assert_eq!(lease.heartbeat_seq, Some(2));
    assert_eq!(attempt.progress.message.as_deref(), Some("step 2"));
}

pub fn the_incarnation_only_rises(make: &dyn Fn() -> Fixture) {
    // A72
    let mut bench = Bench::new(make);
    let first = bench.store.incarnation().unwrap();
    assert!(first >= 1);
    assert_eq!(bench.store.raise_incarnation().unwrap(), first + 1);
    let mut bench = bench.reopen();
    assert_eq!(bench.store.incarnation().unwrap(), first + 1);
}

pub fn a_store_knows_itself_again_and_whether_it_was_used(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let name = bench.store.identity().unwrap();
    assert!(bench.store.is_unused().unwrap());
    bench.store.probe().unwrap();
    let mut bench = bench.reopen();
    assert_eq!(bench.store.identity().unwrap(), name);
    assert!(bench.store.is_unused().unwrap(), "a probe is no use");
    bench.create(1, &["linux"]);
    bench.work_off("r1", &["linux"]).expect("work");
    assert!(!bench.store.is_unused().unwrap());
    // What retention took was there.
    let later = bench.now + Span::hours(1);
    assert_eq!(bench.store.prune(later, 9).unwrap().len(), 1);
    let mut bench = bench.reopen();
    assert!(!bench.store.is_unused().unwrap());
    bench.store.probe().unwrap();
}

pub fn the_newest_moment_is_remembered(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    assert_eq!(bench.store.newest_moment().unwrap(), Millis::ZERO);
    bench.create(1, &["linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    assert_eq!(bench.store.newest_moment().unwrap(), START);
    bench.now = START + Span::secs(60);
    bench.heartbeat(&held, 1).unwrap();
    bench.now = START + Span::secs(80);
    bench.heartbeat(&held, 2).unwrap();
    let mut bench = bench.reopen();
    // A renewal leaves no event, but its moment counts all the same.
    assert_eq!(bench.store.newest_moment().unwrap(), bench.now);
}

pub fn flushes_are_counted(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let before = bench.store.flushes();
    bench.create(1, &["linux"]);
    assert!(bench.store.flushes() > before);
}

pub fn specs_are_kept_byte_by_byte(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let jobs = (1..=3).map(|n| new_job(&format!("j{n}"), policy("")));
    let run = bench.create_with(1, super::bench::header(), jobs.collect());
    let wanted = [run.job(3), run.job(1)];
    let expected = vec![spec_text("j3"), spec_text("j1")];
    assert_eq!(bench.store.specs(&wanted).unwrap(), expected);
    let mut bench = bench.reopen();
    assert_eq!(bench.store.specs(&wanted).unwrap(), expected);
    let read = bench.reader.spec(run.job(2)).unwrap();
    assert_eq!(read, Some(spec_text("j2")));
    assert_eq!(bench.reader.spec(run.job(9)).unwrap(), None);
    assert!(bench.store.specs(&[run_id(9).job(1)]).is_err());
    let held = bench.lease("r1", &[""]).expect("work");
    bench.ack(&held).unwrap();
    let failed = complete(&held, delta_core::command::Status::Failed, None);
    bench.one(failed).unwrap();
    assert_eq!(bench.store.specs(&wanted).unwrap(), expected);
}
