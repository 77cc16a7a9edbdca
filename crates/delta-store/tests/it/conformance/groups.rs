//! Concurrency groups: who waits is known after a reopen, one at a time has the turn, the oldest
//! comes first.

use delta_core::run::RunHeader;
use delta_core::{Cause, Command, Concurrency, JobId, Policy, Reply, RunId, RunState};
use delta_store::{Due, Store};

use super::Fixture;
use super::bench::{Bench, digest, header, new_job, policy, run_id};

fn group(n: u64, cancel_older: bool) -> Option<Concurrency> {
    Some(Concurrency {
        group: format!("g{n}").into(),
        key: digest(n),
        cancel_older,
    })
}

fn run_in(bench: &mut Bench, n: u64, cancel_older: bool) -> RunId {
    let header = RunHeader {
        concurrency: group(50, cancel_older),
        ..header()
    };
    bench.create_with(n, header, vec![new_job("unit", policy("linux"))])
}

fn job_in(bench: &mut Bench, n: u64) -> RunId {
    let policy = Policy {
        concurrency: group(60, false),
        ..policy("linux")
    };
    bench.create_with(n, header(), vec![new_job("deploy", policy)])
}

/// One look at whose turn it is, as a sweep does it.
fn sweep(bench: &mut Bench) -> Vec<JobId> {
    let due = bench.store.due(bench.now, 99).unwrap();
    let turns: Vec<JobId> = due
        .into_iter()
        .filter_map(|due| match due {
            Due::Turn(member) => Some(member),
            _ => None,
        })
        .collect();
    for member in &turns {
        bench.one(Command::TakeTurn { member: *member }).unwrap();
    }
    turns
}

pub fn runs_of_a_group_go_one_after_the_other(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let runs = [3, 1, 2].map(|n| run_in(&mut bench, n, false));
    assert!(bench.lease("r0", &["linux"]).is_none(), "nobody had a turn");
    let mut bench = bench.reopen();
    assert_eq!(bench.reader.group(&digest(50)).unwrap().len(), 3);
    for n in [1, 2, 3] {
        assert_eq!(sweep(&mut bench), [run_id(n).job(0)]);
        assert_eq!(sweep(&mut bench), []);
        bench = bench.reopen();
        assert_eq!(sweep(&mut bench), [], "the turn is remembered");
        let members = bench.reader.group(&digest(50)).unwrap();
        let taken = members.values().filter(|member| member.taken);
        assert_eq!(
            taken.map(|taken| taken.id).collect::<Vec<_>>(),
            [run_id(n).job(0)]
        );
        assert_eq!(
            bench.work_off("r1", &["linux"]),
            Some(run_id(n).job(1).attempt(1))
        );
        assert_eq!(bench.run(run_id(n)).outcome, Some(RunState::Success));
    }
    assert!(bench.reader.group(&digest(50)).unwrap().is_empty());
    assert_eq!(runs.len(), 3);
}

pub fn jobs_of_a_group_go_one_after_the_other(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let (first, second) = (job_in(&mut bench, 1), job_in(&mut bench, 2));
    let mut bench = bench.reopen();
    assert_eq!(sweep(&mut bench), [first.job(1)]);
    assert_eq!(sweep(&mut bench), []);
    assert_eq!(
        bench.work_off("r1", &["linux"]),
        Some(first.job(1).attempt(1))
    );
    assert_eq!(bench.work_off("r1", &["linux"]), None);
    let mut bench = bench.reopen();
    assert_eq!(sweep(&mut bench), [second.job(1)]);
    assert_eq!(
        bench.work_off("r1", &["linux"]),
        Some(second.job(1).attempt(1))
    );
}

pub fn a_newer_run_ends_the_older_ones_of_its_group(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let old = run_in(&mut bench, 1, false);
    sweep(&mut bench);
    let held = bench.lease("r1", &["linux"]).unwrap();
    bench.ack(&held).unwrap();
    let waiting = run_in(&mut bench, 2, true);
    let new = run_in(&mut bench, 3, true);
    let mut bench = bench.reopen();
    assert_eq!(sweep(&mut bench), [old.job(0), waiting.job(0)]);
    assert_eq!(bench.run(old).state, RunState::CancelRequested);
    assert_eq!(bench.run(waiting).outcome, Some(RunState::Canceled));
    assert_eq!(bench.run(waiting).cause, Some(Cause::Superseded));
    sweep(&mut bench);
    assert_eq!(
        bench.run(new).place.unwrap().taken_at,
        None,
        "the old one still stops"
    );
    let _ = bench.complete(&held).unwrap();
    assert_eq!(bench.run(old).cause, Some(Cause::Superseded));
    assert_eq!(sweep(&mut bench), [new.job(0)]);
    assert!(bench.run(new).place.unwrap().taken_at.is_some());
}

pub fn one_batch_gives_a_turn_once(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let (first, second) = (job_in(&mut bench, 1), job_in(&mut bench, 2));
    let take = |run: RunId| Command::TakeTurn { member: run.job(1) };
    // Both are asked about at once, the wrong one first.
    let answers = bench.apply(&[take(second), take(first), take(second), take(first)]);
    let changed: Vec<bool> = answers
        .into_iter()
        .map(|answer| answer == Ok(Reply::Done { changed: true }))
        .collect();
    assert_eq!(changed, [false, true, false, false]);
    let members = bench.reader.group(&digest(60)).unwrap();
    assert_eq!(members.values().filter(|member| member.taken).count(), 1);
}

pub fn what_a_plan_says_about_its_run_is_stored(make: &dyn Fn() -> Fixture) {
    use delta_core::command::NewRun;
    use delta_core::run::RunSettings;
    let mut bench = Bench::new(make);
    let run = run_id(1);
    let unplanned = NewRun {
        id: run,
        header: header(),
        jobs: None,
    };
    bench.one(Command::CreateRun(Box::new(unplanned))).unwrap();
    let settings = RunSettings {
        priority: 3,
        fail_fast: true,
        run_timeout: delta_core::Span::secs(77),
        concurrency: group(50, true),
    };
    bench
        .one(Command::Plan {
            run,
            jobs: vec![new_job("unit", policy("linux"))],
            settings: Some(settings.clone()),
        })
        .unwrap();
    let mut bench = bench.reopen();
    assert_eq!(bench.run(run).header.settings(), settings);
    assert_eq!(sweep(&mut bench), [run.job(0)]);
}
