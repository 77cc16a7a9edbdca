//! Runs that came by a queue: delays, keys that one at a time may have, dead letters, keeping.

use delta_core::command::{NewRun, Status};
use delta_core::policy::Backoff;
use delta_core::run::{RunHeader, Unique};
use delta_core::{AttemptState, Cause, Command, Policy, Reply, RunState, Span, Text};
use delta_store::queues::QueueRow;
use delta_store::read::{RunFilter, RunKind};
use delta_store::{Due, Store};

use super::Fixture;
use super::bench::{Bench, complete, digest, header, new_job, policy, run_id};

fn function(queue: &str) -> RunHeader {
    RunHeader {
        queue: Some(queue.into()),
        ..header()
    }
}

fn listed(bench: &Bench, kind: RunKind, queue: Option<&str>) -> Vec<u128> {
    let filter = RunFilter {
        kind,
        queue: queue.map(Text::from),
        ..RunFilter::default()
    };
    let found = bench.reader.runs(&filter, 9).expect("the store answers");
    found.iter().map(|run| run.id.0).collect()
}

pub fn a_delayed_function_is_queued_when_its_moment_comes(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let moment = bench.now + Span::secs(90);
    let delayed = Policy {
        not_before: Some(moment),
        ..policy("linux")
    };
    let run = bench.create_with(1, function("mail"), vec![new_job("later", delayed)]);
    let mut bench = bench.reopen();
    let attempt = run.job(1).attempt(1);
    assert_eq!(bench.attempt(attempt).state, AttemptState::Created);
    assert!(bench.lease("r1", &["linux"]).is_none());
    bench.now = moment - Span(1);
    assert_eq!(bench.store.due(bench.now, 9).unwrap(), []);
    bench.now = moment;
    assert_eq!(
        bench.store.due(bench.now, 9).unwrap(),
        [Due::Attempt(attempt)]
    );
    bench.one(Command::AttemptDue { attempt }).unwrap();
    let mut bench = bench.reopen();
    assert_eq!(bench.store.due(bench.now, 9).unwrap(), []);
    assert_eq!(bench.work_off("r1", &["linux"]), Some(attempt));
}

pub fn a_unique_key_belongs_to_one_run_at_a_time(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let create = |bench: &mut Bench, n: u64| {
        let unique = Unique {
            key: digest(77),
            until: bench.now + Span::secs(60),
        };
        let header = RunHeader {
            unique: Some(unique),
            ..function("mail")
        };
        let jobs = vec![new_job(&format!("job-{n}"), policy("linux"))];
        let answer = bench.one(Command::CreateRun(Box::new(NewRun {
            id: run_id(n),
            header,
            jobs: Some(jobs),
        })));
        match answer {
            Ok(Reply::Created { run, replayed }) => (run, replayed),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(create(&mut bench, 1), (run_id(1), false));
    let mut bench = bench.reopen();
    bench.now = bench.now + Span::secs(59);
    assert_eq!(create(&mut bench, 2), (run_id(1), true));
    bench.now = bench.now + Span::secs(1);
    assert_eq!(create(&mut bench, 3), (run_id(3), false));
    bench.now = bench.now + Span::secs(30);
    assert_eq!(
        create(&mut bench, 4),
        (run_id(3), true),
        "the newest counts"
    );
    assert!(bench.reader.run(run_id(4)).unwrap().is_none());
}

pub fn what_fails_for_good_is_a_dead_letter_until_it_is_put_aside(make: &dyn Fn() -> Fixture) {
    // A48, RQ-37
    let mut bench = Bench::new(make);
    bench.create(1, &["linux"]);
    for (n, queue) in [(2, "mail"), (3, "mail"), (4, "video")] {
        let jobs = vec![new_job(&format!("job-{n}"), policy(&format!("q{n}")))];
        bench.create_with(n, function(queue), jobs);
    }
    bench.work_off("r1", &["q2"]).expect("work");
    for key in ["q3", "q4"] {
        let held = bench.lease("r1", &[key]).expect("work");
        bench.ack(&held).unwrap();
        let failed = complete(&held, Status::Failed, Some(Cause::HandlerNotFound));
        bench.one(failed).unwrap();
    }
    let bench = &mut bench.reopen();
    assert_eq!(bench.run(run_id(2)).state, RunState::Reported);
    assert_eq!(bench.run(run_id(3)).state, RunState::Failed);
    let [plain, functions, dead] = [RunKind::Plain, RunKind::Functions, RunKind::DeadLetters];
    assert_eq!(listed(bench, plain, None), [run_id(1).0]);
    assert_eq!(
        listed(bench, functions, None),
        [4, 3, 2].map(|n| run_id(n).0)
    );
    assert_eq!(
        listed(bench, functions, Some("mail")),
        [3, 2].map(|n| run_id(n).0)
    );
    assert_eq!(listed(bench, dead, None), [4, 3].map(|n| run_id(n).0));
    assert_eq!(listed(bench, dead, Some("mail")), [run_id(3).0]);
    bench.one(Command::Report { run: run_id(3) }).unwrap();
    assert_eq!(listed(bench, dead, None), [run_id(4).0]);
    assert_eq!(bench.run(run_id(3)).outcome, Some(RunState::Failed));
}

pub fn a_function_that_nobody_has_fails_at_once(make: &dyn Fn() -> Fixture) {
    // RQ-45
    let mut bench = Bench::new(make);
    let jobs = vec![new_job("job", policy("runner=nobody"))];
    let run = bench.create_with(1, function("mail"), jobs);
    let cause = Cause::HandlerNotFound;
    bench.one(Command::GiveUp { run, cause }).unwrap();
    let again = bench.one(Command::GiveUp { run, cause }).unwrap();
    assert_eq!(again, Reply::Done { changed: false });
    let mut bench = bench.reopen();
    assert_eq!(bench.run(run).cause, Some(cause));
    assert_eq!(listed(&bench, RunKind::DeadLetters, None), [run.0]);
    assert!(bench.lease("r1", &["runner=nobody"]).is_none());
}

pub fn a_run_that_says_how_long_it_is_kept_goes_then(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    for (n, keep) in [
        (1, Some(Span::secs(10))),
        (2, None),
        (3, Some(Span::secs(100))),
    ] {
        let header = RunHeader {
            keep,
            ..function("mail")
        };
        bench.create_with(
            n,
            header,
            vec![new_job(&format!("job-{n}"), policy("linux"))],
        );
        bench.work_off("r1", &["linux"]).expect("work");
    }
    let ended = bench.now;
    assert_eq!(
        bench.store.prune_kept(ended + Span::secs(10), 9).unwrap(),
        []
    );
    let gone = bench.store.prune_kept(ended + Span::secs(11), 9).unwrap();
    assert_eq!(gone, [run_id(1)]);
    assert!(bench.reader.run(run_id(1)).unwrap().is_none());
    assert!(bench.reader.run(run_id(2)).unwrap().is_some());
    assert_eq!(
        bench.reader.pruned(&[run_id(1), run_id(2)]).unwrap(),
        [run_id(1)]
    );
}

pub fn a_time_to_keep_ends_no_dead_letter_and_frees_no_key(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let begun = bench.now;
    let unique = Unique {
        key: digest(78),
        until: begun + Span::secs(1000),
    };
    let keep = Some(Span::secs(10));
    let header = |unique| RunHeader {
        keep,
        unique,
        ..function("mail")
    };
    for (n, unique) in [(1, Some(unique)), (2, None)] {
        let jobs = vec![new_job(&format!("job-{n}"), policy(&format!("q{n}")))];
        bench.create_with(n, header(unique), jobs);
    }
    bench.work_off("r1", &["q1"]).expect("work");
    let held = bench.lease("r1", &["q2"]).expect("work");
    bench.ack(&held).unwrap();
    let failed = complete(&held, Status::Failed, Some(Cause::HandlerNotFound));
    bench.one(failed).unwrap();
    let mut bench = bench.reopen();
    let late = begun + Span::secs(999);
    assert_eq!(bench.store.prune_kept(late, 9).unwrap(), []);
    let gone = bench.store.prune_kept(late + Span::secs(2), 9).unwrap();
    assert_eq!(gone, [run_id(1)], "its key is free by itself");
    bench.one(Command::Report { run: run_id(2) }).unwrap();
    let gone = bench.store.prune_kept(late + Span::secs(2), 9).unwrap();
    assert_eq!(gone, [run_id(2)], "somebody has put it aside");
}

pub fn a_function_has_its_own_delays(make: &dyn Fn() -> Fixture) {
    // RQ-38, A48, A57
    let mut bench = Bench::new(make);
    let slow = Policy {
        backoff: Some(Backoff {
            base: Span::secs(600),
            cap: Span::secs(600),
        }),
        ..policy("linux")
    };
    let run = bench.create_with(1, function("mail"), vec![new_job("job", slow)]);
    let fail = |bench: &mut Bench, after: Option<Span>| {
        let held = bench.lease("r1", &["linux"]).expect("work");
        bench.ack(&held).unwrap();
        let mut failed = complete(&held, Status::Failed, Some(Cause::AgentError));
        if let Command::Complete { report, .. } = &mut failed {
            report.retry_after = after;
            report.answer = Some(r#"{"error":{"message":"later"}}"#.into());
        }
        bench.one(failed).unwrap();
    };
    fail(&mut bench, None);
    let second = bench.attempt(run.job(1).attempt(2));
    let waits = second.not_before.since(bench.now);
    assert!(
        waits > Span::secs(299) && waits <= Span::secs(600),
        "{waits}"
    );
    bench.now = second.not_before;
    bench
        .one(Command::AttemptDue { attempt: second.id })
        .unwrap();
    fail(&mut bench, Some(Span::hours(1000)));
    let third = bench.attempt(run.job(1).attempt(3));
    assert_eq!(
        third.not_before.since(bench.now),
        Span::hours(24),
        "a hint is bounded"
    );
    let first = bench.attempt(run.job(1).attempt(1)).report.unwrap();
    assert!(first.answer.unwrap().contains("later"));
}

pub fn what_is_set_about_queues_is_kept(make: &dyn Fn() -> Fixture) {
    let bench = Bench::new(make);
    let (mail, other) = ("mail".into(), "a.b".into());
    let first = (bench.now, "ann: maintenance".into());
    let second = (bench.now + Span::secs(1), "bob".into());
    let tables = &bench.tables;
    tables.pause_queue(&mail, Some(&first)).unwrap();
    tables.pause_queue(&mail, Some(&second)).unwrap();
    tables.route_queue(&other, Some(&"python".into())).unwrap();
    let bench = bench.reopen();
    let row = |name: &Text, paused, runner: Option<&str>| QueueRow {
        name: name.clone(),
        paused,
        runner: runner.map(Into::into),
    };
    let routed = row(&other, None, Some("python"));
    // Who came first has paused it.
    let paused = row(&mail, Some(first.clone()), None);
    let reader = &bench.reader;
    let tables = &bench.tables;
    assert_eq!(reader.queues().unwrap(), [routed.clone(), paused]);
    // One leaves the other as it is.
    tables.route_queue(&mail, Some(&"rust".into())).unwrap();
    tables.pause_queue(&other, Some(&second)).unwrap();
    let both = [
        row(&other, Some(second), Some("python")),
        row(&mail, Some(first), Some("rust")),
    ];
    assert_eq!(reader.queues().unwrap(), both);
    tables.pause_queue(&other, None).unwrap();
    tables.pause_queue(&mail, None).unwrap();
    let both = [routed.clone(), row(&mail, None, Some("rust"))];
    assert_eq!(reader.queues().unwrap(), both);
    tables.route_queue(&mail, None).unwrap();
    assert_eq!(
        reader.queues().unwrap(),
        [routed],
        "a plain one is forgotten"
    );
    tables.pause_queue(&mail, None).unwrap();
    assert_eq!(reader.queues().unwrap().len(), 1);
}

pub fn a_pause_and_a_route_at_once_are_both_kept(make: &dyn Fn() -> Fixture) {
    let bench = Bench::new(make);
    for n in 0..40 {
        let name: Text = format!("q{n}").into();
        let paused = (bench.now, "ann".into());
        let reader = &bench.reader;
        let tables = &bench.tables;
        if n % 2 == 1 {
            // Also where there is something that goes at the same time.
            tables.pause_queue(&name, Some(&paused)).unwrap();
        }
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                let said = (n % 2 == 0).then_some(&paused);
                tables.pause_queue(&name, said).unwrap();
            });
            scope.spawn(|| {
                start.wait();
                tables.route_queue(&name, Some(&"rust".into())).unwrap();
            });
        });
        let rows = reader.queues().unwrap();
        let row = rows
            .iter()
            .find(|row| row.name == name)
            .unwrap_or_else(|| panic!("{name} is lost"));
        assert_eq!(row.runner.as_deref(), Some("rust"), "{row:?}");
        assert_eq!(row.paused.is_some(), n % 2 == 0, "{row:?}");
    }
}
