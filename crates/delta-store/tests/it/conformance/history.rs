//! Events: versions, hashes, what the doctor says, and what retention leaves.

use delta_core::command::Status;
use delta_core::{Cause, Reply, RunState, Span, Want, World};
use delta_store::doctor::examine;
use delta_store::events::{Tip, decode};
use delta_store::{Store, StoreError};
use std::collections::BTreeSet;

use super::Fixture;
use super::bench::{Bench, ack, complete, heartbeat, run_id};

pub fn versions_have_no_gap_and_hashes_chain(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let run = bench.create(1, &["linux", "linux", "linux"]);
    while bench.work_off("r1", &["linux"]).is_some() {}
    let bench = bench.reopen();
    let events = bench.reader.events(run, 0, 1000).unwrap();
    assert_eq!(events.len(), 1 + 3 * 3);
    let mut tip = Tip::NONE;
    for event in &events {
        tip = tip.next(&event.bytes);
        assert_eq!((event.version, event.hash), (tip.version, tip.hash));
        let record = decode(&event.bytes).unwrap();
        assert_eq!((record.run, record.at), (run, event.at));
    }
    assert_eq!(bench.run_rows(run).version, tip.version);
    let page = bench.reader.events(run, 4, 3).unwrap();
    let versions: Vec<u64> = page.iter().map(|event| event.version).collect();
    assert_eq!(versions, [5, 6, 7]);
    assert!(bench.reader.events(run, u64::MAX, 3).unwrap().is_empty());
}

pub fn one_batch_may_hold_many_records_of_a_run(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let run = bench.create(1, &["linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    let batch = [
        ack(&held),
        heartbeat(&held, 1),
        complete(&held, Status::Succeeded, None),
        complete(&held, Status::Succeeded, None),
    ];
    let answers = bench.apply(&batch);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(answers[3], Ok(Reply::Completed));
    let all = bench.reader.events(run, 0, 100).unwrap();
    let commands: Vec<_> = all
        .iter()
        .map(|event| decode(&event.bytes).unwrap().command)
        .collect();
    let expected = ["create_run", "grant", "ack_lease", "heartbeat", "complete"];
    assert_eq!(commands, expected);
    // Each has its own place in the chain, and a page may begin and end anywhere.
    let mut tip = Tip::NONE;
    for event in &all {
        tip = tip.next(&event.bytes);
        assert_eq!((event.version, event.hash), (tip.version, tip.hash));
    }
    assert_eq!(bench.run_rows(run).version, tip.version);
    for after in 0..=all.len() {
        for limit in 0..=all.len() {
            let page = bench.reader.events(run, after as u64, limit).unwrap();
            let wanted: Vec<_> = all.iter().skip(after).take(limit).cloned().collect();
            assert_eq!(page, wanted, "after {after}, {limit}");
        }
    }
    let report = examine(&*bench.reader, &mut |_| {}).unwrap();
    assert_eq!((report.events, report.first_difference), (5, None));
}

pub fn past_leases_are_found_by_their_epoch(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux"]);
    let first = bench.lease("r1", &["linux"]).expect("work");
    let second = bench.lease("r1", &["linux"]).expect("the same again, A67");
    assert_eq!(first.attempt(), second.attempt());
    let mut bench = bench.reopen();
    let stale = bench.ack(&first);
    assert_eq!(
        stale,
        Ok(Reply::Stale(delta_core::lease::Stale::Superseded))
    );
    let rows = bench.job_rows(first.attempt().job);
    assert_eq!(rows.past_leases.len(), 1);
    let (id, lease) = &rows.past_leases[0];
    assert_eq!(*id, first.attempt());
    assert_eq!(lease.epoch, first.proof.key.epoch);
    assert_eq!(lease.token, first.proof.token);
    assert!(bench.ack(&second).is_ok());
}

pub fn the_doctor_finds_nothing(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    for n in 1..=3 {
        bench.create(n, &["linux", "windows"]);
    }
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    bench.heartbeat(&held, 1).unwrap();
    bench.work_off("r2", &["windows"]).expect("work");
    let failed = bench.lease("r2", &["linux"]).expect("work");
    bench.ack(&failed).unwrap();
    let clone = complete(&failed, Status::Failed, Some(Cause::Clone));
    bench.one(clone).unwrap();
    let mut seen = 0;
    let report = examine(&*bench.reader, &mut |runs| seen = runs).unwrap();
    assert_eq!(report.first_difference, None);
    assert_eq!((report.runs, seen), (3, 3));
    assert!(report.events >= 9);
}

pub fn pruning_removes_whole_runs(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    for n in 1..=4 {
        bench.create(n, &["linux"]);
        bench.lease("r1", &["linux"]).expect("work");
        let again = bench.lease("r1", &["linux"]).expect("work");
        bench.ack(&again).unwrap();
        bench.complete(&again).unwrap();
        bench.now = bench.now + Span::secs(1);
    }
    let before = bench.now - Span::secs(1);
    assert_eq!(
        bench.store.prune(before, 2).unwrap(),
        [run_id(1), run_id(2)]
    );
    assert_eq!(bench.store.prune(before, 2).unwrap(), [run_id(3)]);
    assert_eq!(bench.store.prune(before, 2).unwrap(), []);
    let mut bench = bench.reopen();
    for n in 1..=3 {
        assert!(bench.reader.run(run_id(n)).unwrap().is_none());
        assert!(bench.reader.job(run_id(n).job(1)).unwrap().is_none());
        assert!(bench.reader.spec(run_id(n).job(1)).unwrap().is_none());
        assert!(bench.reader.events(run_id(n), 0, 9).unwrap().is_empty());
    }
    assert_eq!(bench.reader.run_ids(None, 9).unwrap(), [run_id(4)]);
    // Neither a run that is there nor one that never was counts as deleted.
    let asked: Vec<_> = (2..=5).map(run_id).collect();
    let mut gone = bench.reader.pruned(&asked).unwrap();
    gone.sort_unstable();
    assert_eq!(gone, [run_id(2), run_id(3)]);
    let mut world = World::default();
    let wants = BTreeSet::from([Want::Run(run_id(1)), Want::Job(run_id(1).job(1))]);
    bench.store.begin().unwrap();
    bench.store.load(&wants, &mut world).unwrap();
    bench.store.rollback();
    assert_eq!(world.runs[&run_id(1)], None);
    assert_eq!(world.jobs[&run_id(1).job(1)], None);
    let gone = bench.store.specs(&[run_id(1).job(1)]);
    assert!(matches!(gone, Err(StoreError::Corrupt(_))), "{gone:?}");
    let report = examine(&*bench.reader, &mut |_| {}).unwrap();
    assert_eq!(report.first_difference, None);
}

pub fn runs_that_still_have_work_are_not_pruned(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let run = bench.create(1, &["linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    // Timed out, while its job has not ended yet.
    bench.now = bench.now + Span::hours(6);
    bench.one(delta_core::Command::RunDue { run }).unwrap();
    assert_eq!(bench.run(run).outcome, Some(RunState::Timeout));
    assert_eq!(bench.run(run).live_jobs, 1);
    let later = bench.now + Span::hours(1);
    assert_eq!(bench.store.prune(later, 9).unwrap(), []);
}
