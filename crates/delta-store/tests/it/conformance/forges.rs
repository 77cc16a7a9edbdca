//! Repositories, what is owed to their forges, and deliveries that come more than once.

use delta_core::command::NewRun;
use delta_core::run::{RunHeader, Unique};
use delta_core::{Cause, Command, Millis, Refusal, Reply, RunState, Span};
use delta_store::forges::{Approval, ReportRow, RepositoryRow};

use super::Fixture;
use super::bench::{Bench, digest, header, new_job, policy, run_id};

fn row(name: &str, version: u64) -> RepositoryRow {
    RepositoryRow {
        name: name.into(),
        clone_url: format!("https://forge.example/{name}.git").into(),
        about: "{\"v\":1}".into(),
        version,
        key: "k1".into(),
        sealed: vec![0, 255, version as u8],
        created_at: Millis(5),
        updated_at: Millis(6),
        updated_by: "ann\0".into(),
    }
}

pub fn repositories_are_kept_replaced_and_removed(make: &dyn Fn() -> Fixture) {
    let bench = Bench::new(make);
    for name in ["b", "a"] {
        assert!(bench.tables.put_repository(&row(name, 7), None).unwrap());
    }
    let bench = bench.reopen();
    let reader = &bench.reader;
    let tables = &bench.tables;
    assert_eq!(reader.repository("a").unwrap(), Some(row("a", 7)));
    assert_eq!(reader.repository("c").unwrap(), None);
    assert_eq!(reader.repositories().unwrap(), [row("a", 7), row("b", 7)]);
    let mut next = row("a", 8);
    next.about = "{\"v\":1,\"more\":true}".into();
    next.created_at = Millis(99);
    assert!(!tables.put_repository(&next, None).unwrap(), "there is one");
    assert!(!tables.put_repository(&next, Some(6)).unwrap(), "another");
    assert!(tables.put_repository(&next, Some(7)).unwrap());
    next.created_at = Millis(5);
    assert_eq!(reader.repository("a").unwrap(), Some(next));
    assert!(tables.remove_repository("a").unwrap());
    assert!(!tables.remove_repository("a").unwrap());
    assert!(!tables.put_repository(&row("a", 9), Some(8)).unwrap());
}

fn reported() -> RunHeader {
    RunHeader {
        needs_report: true,
        trigger: Some("{\"event\":\"push\"}".into()),
        ..header()
    }
}

fn due(bench: &Bench) -> Vec<ReportRow> {
    bench.reader.reports_due(bench.now, 100).unwrap()
}

/// Writes down that this much was told.
fn told(bench: &Bench, stage: u32) {
    let mut row = bench.reader.report(run_id(1)).unwrap().unwrap();
    row.stage = stage;
    row.tries = 0;
    row.why = "a forge\0said no".into();
    bench.tables.put_report(&row).unwrap();
    assert_eq!(bench.reader.report(run_id(1)).unwrap(), Some(row));
}

pub fn what_is_owed_is_written_with_its_run_and_follows_it(make: &dyn Fn() -> Fixture) {
    // SM-17, A44
    let mut bench = Bench::new(make);
    bench.create(2, &["linux"]);
    bench.create_with(1, reported(), vec![new_job("job-1", policy("here"))]);
    let mut bench = bench.reopen();
    let first = due(&bench);
    assert_eq!(first.len(), 1, "only who asked for it: {first:?}");
    assert_eq!((first[0].run, first[0].stage), (run_id(1), 0));
    assert_eq!(bench.run(run_id(1)).header, reported());
    told(&bench, 1);
    assert_eq!(due(&bench), [], "nothing new");
    let held = bench.lease("r1", &["here"]).expect("work");
    assert_eq!(due(&bench)[0].stage, 1, "it runs");
    told(&bench, 2);
    assert_eq!(due(&bench), []);
    bench.ack(&held).unwrap();
    bench.complete(&held).unwrap();
    assert_eq!(bench.run(run_id(1)).state, RunState::Success, "it waits");
    assert_eq!(due(&bench)[0].stage, 2, "it has ended");
    told(&bench, 4);
    assert_eq!(due(&bench)[0].stage, 4, "the forge has not heard it yet");
    told(&bench, 3);
    bench.one(Command::Report { run: run_id(1) }).unwrap();
    assert_eq!(due(&bench)[0].stage, 3, "others may want to know, too");
    bench.tables.remove_report(run_id(1)).unwrap();
    assert_eq!(due(&bench), []);
    told_nothing(&bench);
}

/// A row that is gone is not written again.
fn told_nothing(bench: &Bench) {
    let row = ReportRow {
        run: run_id(1),
        stage: 1,
        tries: 0,
        next_at: Millis(0),
        why: "".into(),
    };
    bench.tables.put_report(&row).unwrap();
    assert_eq!(bench.reader.report(run_id(1)).unwrap(), None);
}

pub fn a_report_is_taken_by_one_of_many(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create_with(1, reported(), vec![new_job("job-1", policy("here"))]);
    let seen = due(&bench).remove(0);
    let until = bench.now + Span::secs(20);
    let taken: Vec<bool> = std::thread::scope(|scope| {
        let take = |n: i64| {
            let (tables, seen) = (&bench.tables, &seen);
            // Each until a moment of its own: two servers' clocks never agree to the millisecond.
            scope.spawn(move || tables.take_report(seen, until + Span(n)).unwrap())
        };
        let all: Vec<_> = (0..8).map(take).collect();
        all.into_iter().map(|it| it.join().unwrap()).collect()
    });
    assert_eq!(taken.iter().filter(|taken| **taken).count(), 1, "{taken:?}");
    assert_eq!(due(&bench), [], "somebody works on it");
    bench.now = until + Span::secs(1);
    let again = due(&bench).remove(0);
    assert_eq!(again.tries, 1, "whoever had it is gone, and has tried");
    let late = until + Span::secs(9);
    assert!(!bench.tables.take_report(&seen, late).unwrap());
    assert!(bench.tables.take_report(&again, bench.now).unwrap());
}

pub fn a_delivery_makes_one_run_however_often_it_comes(make: &dyn Fn() -> Fixture) {
    // SM-65, A45: by the delivery's number for good, by what was pushed for ten minutes.
    let mut bench = Bench::new(make);
    let heard = |bench: &mut Bench, n: u64, delivery: u64, body: u64, push: u64| {
        let unique = Unique {
            key: digest(push),
            until: bench.now + Span::minutes(10),
        };
        let header = RunHeader {
            idempotency: Some((digest(delivery), digest(body))),
            unique: Some(unique),
            ..reported()
        };
        bench.one(Command::CreateRun(Box::new(NewRun {
            id: run_id(n),
            header,
            jobs: None,
        })))
    };
    let made = |n, replayed| {
        Ok(Reply::Created {
            run: run_id(n),
            replayed,
        })
    };
    assert_eq!(heard(&mut bench, 1, 10, 20, 30), made(1, false));
    assert_eq!(bench.run(run_id(1)).state, RunState::Planning);
    assert_eq!(heard(&mut bench, 2, 10, 20, 30), made(1, true), "again");
    assert_eq!(
        heard(&mut bench, 3, 11, 21, 30),
        made(1, true),
        "by another hook"
    );
    let swapped = heard(&mut bench, 4, 10, 99, 31);
    assert_eq!(swapped, Err(Refusal::KeyReused(run_id(1))));
    bench.now = bench.now + Span::minutes(10);
    assert_eq!(
        heard(&mut bench, 5, 12, 22, 30),
        made(5, false),
        "back again"
    );
    assert_eq!(
        heard(&mut bench, 6, 10, 20, 30),
        made(1, true),
        "never again"
    );
    assert_eq!(due(&bench).len(), 2);
    bench
        .one(Command::FailPlan {
            run: run_id(1),
            cause: Cause::PlanError,
        })
        .unwrap();
    assert_eq!(
        bench.run(run_id(1)).state,
        RunState::Failed,
        "not reported yet"
    );
}

pub fn an_approval_is_kept_and_goes_with_its_run(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create_with(1, reported(), vec![new_job("job-1", policy("here"))]);
    assert_eq!(bench.reader.approval(run_id(1)).unwrap(), None);
    let approval = |by: &str| Approval {
        by: by.into(),
        at: Millis(7),
    };
    for by in ["ann", "bob"] {
        bench.tables.approve(run_id(1), &approval(by)).unwrap();
    }
    for text in ["{}", "{\"jobs\":[]}\0"] {
        bench.tables.put_plan(run_id(1), text).unwrap();
    }
    let mut bench = bench.reopen();
    let plan = bench.reader.plan(run_id(1)).unwrap();
    assert_eq!(plan.as_deref(), Some("{\"jobs\":[]}\0"));
    let kept = bench.reader.approval(run_id(1)).unwrap();
    assert_eq!(kept, Some(approval("ann")), "the first one counts");
    bench.work_off("r1", &["here"]).expect("work");
    let gone = bench.now + Span::secs(1);
    use delta_store::Store as _;
    // Its forge has not heard of its end: what is owed is not forgotten.
    assert_eq!(bench.store.prune(gone, 10).unwrap(), []);
    bench.one(Command::Report { run: run_id(1) }).unwrap();
    let pruned = bench.store.prune(gone, 10).unwrap();
    assert_eq!(pruned, [run_id(1)]);
    assert_eq!(bench.reader.approval(run_id(1)).unwrap(), None);
    assert_eq!(bench.reader.report(run_id(1)).unwrap(), None);
    assert_eq!(bench.reader.plan(run_id(1)).unwrap(), None);
}
