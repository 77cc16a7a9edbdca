//! Several writers on one database: they never wait in a circle, never grant twice, and see what
//! the other one wrote.

use std::collections::BTreeSet;
use std::sync::{Barrier, mpsc};
use std::thread;

use delta_core::command::{NewRun, Status};
use delta_core::lease::epoch;
use delta_core::{
    AttemptId, AttemptState, Command, Concurrency, Context, LeaseState, Reply, RunId, Settings,
    Want, World,
};
use delta_store::postgres::PgStore;
use delta_store::read::Reader;
use delta_store::reference_driver::{self, LeaseAsk};
use delta_store::{Claim, CommitError, Due, Store};
use delta_testkit::postgres::{PgDatabase, fresh_database};
use delta_testkit::proxy::{Direction, Proxy};
use delta_testkit::wait::eventually;

use super::{PATIENCE, decide_in, open};
use crate::conformance::bench::{
    Held, START, ack, complete, context, digest, header, new_job, policy, run_id, specs_of,
};

pub fn create(n: u64, key: &str) -> Command {
    Command::CreateRun(Box::new(NewRun {
        id: run_id(n),
        header: header(),
        jobs: Some(vec![new_job("job", policy(key))]),
    }))
}

#[test]
fn two_writers_give_a_turn_once() {
    let database = fresh_database().expect("a database");
    let (mut first, reader) = open(&database.url);
    for n in 1..=8 {
        let mut job = new_job("deploy", policy("linux"));
        job.policy.concurrency = Some(Concurrency {
            group: "production".into(),
            key: digest(5),
            cancel_older: false,
        });
        apply(
            &mut first,
            Command::CreateRun(Box::new(NewRun {
                id: run_id(n),
                header: header(),
                jobs: Some(vec![job]),
            })),
        );
    }
    let (second, _) = open(&database.url);
    let together = Barrier::new(2);
    thread::scope(|scope| {
        for mut store in [first, second] {
            let together = &together;
            scope.spawn(move || {
                together.wait();
                for n in 1..=8 {
                    let member = run_id(n).job(1);
                    apply(&mut store, Command::TakeTurn { member });
                }
            });
        }
    });
    let members = reader.group(&digest(5)).expect("the store answers");
    let taken: Vec<_> = members.values().filter(|member| member.taken).collect();
    assert_eq!(members.len(), 8);
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert_eq!(taken[0].id, run_id(1).job(1), "the oldest first");
}

pub fn apply(store: &mut dyn Store, command: Command) -> Reply {
    let settings = Settings::recommended();
    let specs = specs_of(std::slice::from_ref(&command));
    let now = context(START, &settings, 1);
    let applied = reference_driver::apply_with_specs(store, &[command], &specs, &now);
    applied
        .expect("the store answers")
        .answers
        .remove(0)
        .expect("accepted")
}

pub fn lease(store: &mut dyn Store, runner: &str) -> Option<Held> {
    let ask = LeaseAsk {
        keys: vec!["linux".into()],
        principal: "agent".into(),
        runner: runner.into(),
        token: digest(runner.len() as u64),
    };
    let settings = Settings::recommended();
    let given = reference_driver::lease(store, &ask, &context(START, &settings, 1))
        .expect("the store answers")?;
    assert!(given.answer.is_ok(), "{:?}", given.answer);
    Some(Held {
        proof: delta_core::command::LeaseProof {
            key: given.attempt.lease(given.epoch),
            token: ask.token,
            principal: ask.principal,
            runner: ask.runner,
            speaker: delta_core::rights::Speaker::anybody(),
        },
    })
}

fn claim(limit: usize) -> Claim {
    Claim {
        keys: vec!["linux".into()],
        limit,
        skip: BTreeSet::new(),
    }
}

fn two_stores(runs: u64) -> (PgDatabase, PgStore, PgStore) {
    let database = fresh_database().expect("a database");
    let (mut first, _) = open(&database.url);
    let (second, _) = open(&database.url);
    for n in 1..=runs {
        apply(&mut first, create(n, "linux"));
    }
    (database, first, second)
}

#[test]
fn a_claim_passes_over_what_another_writer_is_granting() {
    // LM-5, D3: SKIP LOCKED, also when several keys are asked for.
    let (_database, mut first, mut second) = two_stores(3);
    let mut world = World::default();
    first.begin().unwrap();
    let had = first.claim(&claim(1), &mut world).unwrap();
    assert_eq!(had, [run_id(1).job(1).attempt(1)]);
    second.begin().unwrap();
    let mut several = claim(5);
    several.keys.push("windows".into());
    let left: Vec<RunId> = second
        .claim(&several, &mut World::default())
        .unwrap()
        .into_iter()
        .map(AttemptId::run)
        .collect();
    assert_eq!(left, [run_id(2), run_id(3)]);
    first.rollback();
    second.rollback();
    second.begin().unwrap();
    let all = second.claim(&claim(5), &mut World::default()).unwrap();
    assert_eq!(all.len(), 3, "a row picked and not granted stays queued");
    second.rollback();
}

#[test]
fn a_load_sees_what_was_written_while_it_waited() {
    // The trap of READ COMMITTED: the run's row does not change, everything else does.
    let (_database, mut first, mut second) = two_stores(1);
    let held = lease(&mut first, "r1").expect("work");
    let id = held.attempt();
    let settings = Settings::recommended();
    let now = context(START, &settings, 1);
    first.begin().unwrap();
    let mut world = World::default();
    let acknowledged = decide_in(&mut first, &mut world, &ack(&held), &now).unwrap();
    let (begun, waits) = mpsc::channel();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            second.begin().unwrap();
            begun.send(()).unwrap();
            let mut world = World::default();
            second
                .load(&[Want::Attempt(id)].into(), &mut world)
                .unwrap();
            let seen = world.attempts[&id].clone().expect("the attempt");
            let done = complete(&held, Status::Succeeded, None);
            let writes = decide_in(&mut second, &mut world, &done, &now).unwrap();
            second
                .commit(&writes)
                .expect("no conflict: the chain was read under the lock");
            seen
        });
        waits.recv().unwrap();
        until_somebody_waits_for_a_lock(&_database);
        first.commit(&acknowledged).unwrap();
        let seen = other.join().unwrap();
        assert_eq!(seen.state, AttemptState::Starting);
    });
}

fn until_somebody_waits_for_a_lock(database: &PgDatabase) {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = '{}'",
        database.name
    );
    eventually(
        PATIENCE,
        "a writer waits for a lock",
        || match super::layout::ask(&database.url, &sql) {
            0 => Err("nobody waits"),
            _ => Ok(()),
        },
    );
}

fn granting(store: &mut PgStore, now: &Context) -> (AttemptId, delta_store::Writes) {
    store.begin().unwrap();
    let mut world = World::default();
    let attempt = store.claim(&claim(1), &mut world).unwrap()[0];
    let grant = Command::Grant {
        attempt,
        principal: "agent".into(),
        runner: "r1".into(),
        token: digest(9),
        epoch: epoch(now.settings.incarnation, 1),
    };
    (attempt, decide_in(store, &mut world, &grant, now).unwrap())
}

#[test]
fn one_runner_gets_one_lease_from_two_writers() {
    // RP-9, SM-45: neither writer can see the other's grant when it decides.
    let (_database, mut first, mut second) = two_stores(2);
    let settings = Settings::recommended();
    let now = context(START, &settings, 1);
    let (given, writes) = granting(&mut first, &now);
    let (other, more) = granting(&mut second, &now);
    assert_ne!(given, other);
    first.commit(&writes).unwrap();
    let refused = second.commit(&more);
    assert!(matches!(refused, Err(CommitError::Conflict)), "{refused:?}");
    // A67: who asks again gets the same attempt.
    assert_eq!(
        lease(&mut second, "r1").map(|held| held.attempt()),
        Some(given)
    );
    assert_eq!(second.leased().unwrap(), [given]);
}

#[test]
fn a_runner_may_complete_and_be_granted_in_one_batch() {
    // The usual batch under load; row by row it looks like two leases for one runner.
    let (_database, mut store, _) = two_stores(2);
    let settings = Settings::recommended();
    let now = context(START, &settings, 1);
    let held = lease(&mut store, "r1").expect("work");
    apply(&mut store, ack(&held));
    store.begin().unwrap();
    let mut world = World::default();
    let done = complete(&held, Status::Succeeded, None);
    let mut writes = decide_in(&mut store, &mut world, &done, &now).unwrap();
    let next = store.claim(&claim(1), &mut world).unwrap()[0];
    let grant = Command::Grant {
        attempt: next,
        principal: "agent".into(),
        runner: "r1".into(),
        token: digest(9),
        epoch: epoch(settings.incarnation, 1),
    };
    let more = decide_in(&mut store, &mut world, &grant, &now).unwrap();
    writes.edits.absorb(more.edits);
    writes.records.extend(more.records);
    store.commit(&writes).unwrap();
    assert_eq!(store.leased().unwrap(), [next]);
}

#[test]
fn two_writers_with_one_idempotency_key_make_one_run() {
    let (_database, mut first, mut second) = two_stores(0);
    let keyed = |n: u64| {
        let mut header = header();
        header.idempotency = Some((digest(1), digest(2)));
        Command::CreateRun(Box::new(NewRun {
            id: run_id(n),
            header,
            jobs: Some(vec![new_job("job", policy("linux"))]),
        }))
    };
    let settings = Settings::recommended();
    let now = context(START, &settings, 1);
    first.begin().unwrap();
    let one = decide_in(&mut first, &mut World::default(), &keyed(1), &now).unwrap();
    second.begin().unwrap();
    let two = decide_in(&mut second, &mut World::default(), &keyed(2), &now).unwrap();
    first.commit(&one).unwrap();
    let refused = second.commit(&two);
    assert!(matches!(refused, Err(CommitError::Conflict)), "{refused:?}");
    let replayed = Reply::Created {
        run: run_id(1),
        replayed: true,
    };
    assert_eq!(apply(&mut second, keyed(2)), replayed);
}

#[test]
fn work_queued_elsewhere_wakes_this_writer_and_idle_claims_cost_nothing() {
    let (database, _, mut other) = two_stores(0);
    let proxy = Proxy::start(database.addr().unwrap(), 1).unwrap();
    let (mut store, _) = open(&database.url_through(proxy.addr()).unwrap());
    let (wake, woken) = mpsc::channel();
    store.wakeups().expect("PostgreSQL tells")(Box::new(move || {
        let _ = wake.send(());
    }));
    woken
        .recv_timeout(PATIENCE)
        .expect("once at the start: something may have been missed");
    let look = |store: &mut PgStore| {
        store.begin().unwrap();
        let before = proxy.passed(Direction::ToServer);
        let found = store.claim(&claim(1), &mut World::default()).unwrap();
        store.match_keys().unwrap();
        let asked = proxy.passed(Direction::ToServer) - before;
        store.rollback();
        (found.len(), asked > 0)
    };
    assert_eq!(look(&mut store), (0, true));
    assert_eq!(look(&mut store), (0, false), "known to be empty");
    let settings = Settings::recommended();
    let now = context(START, &settings, 1);
    other.begin().unwrap();
    let mut world = World::default();
    let mut writes = decide_in(&mut other, &mut world, &create(1, "linux"), &now).unwrap();
    writes.notify = true;
    other.commit(&writes).unwrap();
    woken.recv_timeout(PATIENCE).expect("told of the new work");
    assert_eq!(look(&mut store), (1, true));
    assert!(lease(&mut other, "r1").is_some());
    assert_eq!(look(&mut store), (0, true));
    assert_eq!(look(&mut store), (0, false));
    store.due(START, 10).unwrap();
    assert_eq!(look(&mut store), (0, true), "a sweep looks again");
    apply(&mut store, create(2, "linux"));
    assert_eq!(look(&mut store), (1, true), "its own work it knows of");
}

#[test]
fn two_sweepers_expire_a_lease_once() {
    // F15
    let (database, mut first, mut second) = two_stores(1);
    let held = lease(&mut first, "r1").expect("work");
    apply(&mut first, ack(&held));
    let settings = Settings::recommended();
    let late = START + settings.lease_ttl;
    let start = Barrier::new(2);
    let sweep = |store: &mut PgStore| {
        let due = store.due(late, 10).unwrap();
        assert_eq!(due, [Due::Attempt(held.attempt())]);
        let look = Command::AttemptDue {
            attempt: held.attempt(),
        };
        start.wait();
        let answers =
            reference_driver::apply(store, &[look], &context(late, &settings, 1)).unwrap();
        usize::from(answers[0] == Ok(Reply::Done { changed: true }))
    };
    let changed = thread::scope(|scope| {
        let one = scope.spawn(|| sweep(&mut first));
        let two = scope.spawn(|| sweep(&mut second));
        one.join().unwrap() + two.join().unwrap()
    });
    assert_eq!(changed, 1);
    let (_, reader) = open(&database.url);
    let version = reader.run(run_id(1)).unwrap().map(|rows| rows.version);
    assert_eq!(version, Some(4), "created, granted, acknowledged, expired");
    assert_eq!(second.due(late, 10).unwrap(), []);
}

#[test]
fn two_writers_work_off_one_queue() {
    const RUNS: u64 = 60;
    let (database, mut first, mut second) = two_stores(RUNS);
    let drain = |store: &mut PgStore, runner: &str| {
        let mut had = Vec::new();
        while let Some(held) = lease(store, runner) {
            apply(store, ack(&held));
            apply(store, complete(&held, Status::Succeeded, None));
            had.push(held.attempt());
        }
        had
    };
    let had: Vec<AttemptId> = thread::scope(|scope| {
        let one = scope.spawn(|| drain(&mut first, "r1"));
        let two = scope.spawn(|| drain(&mut second, "r22"));
        [one.join().unwrap(), two.join().unwrap()].concat()
    });
    let distinct: BTreeSet<AttemptId> = had.iter().copied().collect();
    assert_eq!((had.len(), distinct.len()), (RUNS as usize, RUNS as usize));
    let (_, reader) = open(&database.url);
    for n in 1..=RUNS {
        let rows = reader.job(run_id(n).job(1)).unwrap().expect("the job");
        let lease = rows.attempts[0].lease.clone().expect("a lease");
        assert_eq!(lease.state, LeaseState::Completed);
        assert_eq!(
            reader.run(run_id(n)).unwrap().map(|rows| rows.version),
            Some(4)
        );
    }
}
