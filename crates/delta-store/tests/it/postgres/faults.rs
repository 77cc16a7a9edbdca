//! The server restarts, dies, hangs; connections are cut at the worst moment. What was
//! acknowledged is there, nothing is there twice, and every call returns in bounded time.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use delta_core::command::Status;
use delta_core::{Cause, Command, Reply, RunId, Settings, Want, World};
use delta_store::postgres::PgStore;
use delta_store::read::Reader;
use delta_store::reference_driver;
use delta_store::{CommitError, Store, StoreError};
use delta_testkit::postgres::{Postgres, Restart, fresh_database};
use delta_testkit::proxy::{CommitCut, Proxy};
use delta_testkit::wait::eventually;

use super::writers::{apply, create, lease};
use super::{PATIENCE, decide_in, open};
use crate::conformance::bench::{START, ack, complete, context, run_id, specs_of};

/// The store's own deadline, and as much again for a busy machine.
const BOUND: Duration = Duration::from_secs(10);

/// Says stop when the test is over, also when it failed.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Creates runs until told to stop; those that were acknowledged.
fn keep_creating(store: &mut PgStore, done: &AtomicBool, acknowledged: &Mutex<Vec<RunId>>) {
    let settings = Settings::recommended();
    let now = context(START, &settings, 1);
    let mut n = 0;
    while !done.load(Ordering::Acquire) {
        let batch: Vec<_> = (0..5)
            .map(|_| {
                n += 1;
                create(n, "linux")
            })
            .collect();
        let specs = specs_of(&batch);
        // An error means that nobody was told anything: those runs may or may not be there.
        if reference_driver::apply_with_specs(store, &batch, &specs, &now).is_ok() {
            let ids = batch.iter().map(|command| command.run());
            acknowledged.lock().unwrap().extend(ids);
        }
    }
}

/// A few times for everyday, many in a storm.
fn times(few: usize) -> usize {
    match std::env::var_os("DELTA_STORM") {
        Some(_) => few * 7,
        None => few,
    }
}

fn nothing_acknowledged_is_lost(times: usize, fault: impl Fn(&Postgres)) {
    let cluster = Postgres::start().unwrap();
    let database = cluster.fresh_database().unwrap();
    let (mut store, reader) = open(&database.url);
    let (done, acknowledged) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let count = || acknowledged.lock().unwrap().len();
    let more = || {
        let before = count();
        eventually(PATIENCE, "writing goes on", || match count() {
            now if now > before + 10 => Ok(()),
            now => Err(now),
        });
    };
    thread::scope(|scope| {
        let _stop = Stop(&done);
        scope.spawn(|| keep_creating(&mut store, &done, &acknowledged));
        for _ in 0..times {
            more();
            fault(&cluster);
        }
        more();
    });
    let acknowledged = acknowledged.into_inner().unwrap();
    for id in &acknowledged {
        let rows = reader.run(*id).unwrap();
        assert_eq!(rows.map(|rows| rows.version), Some(1), "{id}");
    }
    let queued: u64 = reader
        .queue()
        .unwrap()
        .iter()
        .map(|depth| depth.attempts)
        .sum();
    assert_eq!(
        queued,
        reader.stats().unwrap().runs,
        "each run is there whole, and once"
    );
}

#[test]
fn acknowledged_batches_survive_immediate_restarts() {
    // F16
    nothing_acknowledged_is_lost(times(3), |cluster| {
        cluster.restart(Restart::Immediate).unwrap()
    });
}

#[test]
fn acknowledged_batches_survive_kill_9_of_the_postmaster() {
    // F17
    nothing_acknowledged_is_lost(times(2), |cluster| {
        cluster.kill9_postmaster().unwrap();
        cluster.start_again().unwrap();
    });
}

#[test]
fn a_hanging_database_is_unavailable_in_bounded_time() {
    // F18
    let cluster = Postgres::start().unwrap();
    let database = cluster.fresh_database().unwrap();
    let (mut store, reader) = open(&database.url);
    apply(&mut store, create(1, "linux"));
    reader.ping().unwrap();
    store.begin().unwrap();
    cluster.pause_backends().unwrap();
    let bounded = |what: &str, work: &mut dyn FnMut() -> Result<(), StoreError>| {
        let start = Instant::now();
        let answer = work();
        assert!(
            matches!(answer, Err(StoreError::Unavailable(_))),
            "{what}: {answer:?}"
        );
        assert!(start.elapsed() < BOUND, "{what} took {:?}", start.elapsed());
    };
    let wants = BTreeSet::from([Want::Run(run_id(1))]);
    bounded("load", &mut || store.load(&wants, &mut World::default()));
    store.rollback();
    bounded("begin", &mut || store.begin().map(|_| ()));
    bounded("begin at once again", &mut || store.begin().map(|_| ()));
    bounded("ping", &mut || reader.ping());
    bounded("run", &mut || reader.run(run_id(1)).map(|_| ()));
    cluster.resume_backends().unwrap();
    eventually(PATIENCE, "the store is back", || {
        store.begin().map_err(|e| e.to_string())
    });
    store.rollback();
    eventually(PATIENCE, "reading works", || {
        reader.ping().map_err(|e| e.to_string())
    });
}

#[test]
fn a_commit_that_hangs_is_resolved_when_the_database_is_back() {
    // F18, F19: it may still be carried out after we gave up waiting for it.
    let cluster = Postgres::start().unwrap();
    let database = cluster.fresh_database().unwrap();
    let (mut store, reader) = open(&database.url);
    let settings = Settings::recommended();
    let now = context(START, &settings, 1);
    store.begin().unwrap();
    let writes = decide_in(&mut store, &mut World::default(), &create(1, "linux"), &now).unwrap();
    cluster.pause_backends().unwrap();
    let start = Instant::now();
    assert!(matches!(store.commit(&writes), Err(CommitError::Unknown)));
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
    assert!(
        store.resolve_unknown(&writes).is_err(),
        "nobody can know yet"
    );
    cluster.resume_backends().unwrap();
    let there = eventually(PATIENCE, "the commit is resolved", || {
        store
            .resolve_unknown(&writes)
            .map_err(|error| error.to_string())
    });
    assert_eq!(reader.run(run_id(1)).unwrap().is_some(), there);
}

#[test]
fn a_commit_whose_connection_is_cut_is_resolved() {
    // F19
    let database = fresh_database().unwrap();
    let proxy = Proxy::start(database.addr().unwrap(), 7).unwrap();
    let (mut store, _) = open(&database.url_through(proxy.addr()).unwrap());
    let (_, reader) = open(&database.url);
    let settings = Settings::recommended();
    let now = context(START, &settings, 1);
    let cases = [
        (CommitCut::Before, Some(false)),
        (CommitCut::Unknown, None),
        (CommitCut::After, Some(true)),
    ];
    for (n, (cut, expected)) in (1..).zip(cases) {
        store.begin().unwrap();
        let mut world = World::default();
        let writes = decide_in(&mut store, &mut world, &create(n, "linux"), &now).unwrap();
        proxy.cut_commit_once(cut);
        let lost = store.commit(&writes);
        assert!(
            matches!(lost, Err(CommitError::Unknown)),
            "{cut:?}: {lost:?}"
        );
        let there = store.resolve_unknown(&writes).unwrap();
        assert_eq!(reader.run(run_id(n)).unwrap().is_some(), there, "{cut:?}");
        assert_eq!(expected.unwrap_or(there), there, "{cut:?}");
    }
}

#[test]
fn commands_whose_commits_are_cut_are_applied_once() {
    // F19: driven to the end through every kind of cut.
    let database = fresh_database().unwrap();
    let proxy = Proxy::start(database.addr().unwrap(), 8).unwrap();
    let (mut store, _) = open(&database.url_through(proxy.addr()).unwrap());
    let (_, reader) = open(&database.url);
    let cuts = [CommitCut::Before, CommitCut::Unknown, CommitCut::After];
    for (n, cut) in (1..).zip(cuts) {
        proxy.cut_commit_once(cut);
        apply(&mut store, create(n, "linux"));
        proxy.cut_commit_once(cut);
        let held = lease(&mut store, &"r".repeat(n as usize)).expect("work");
        proxy.cut_commit_once(cut);
        apply(&mut store, ack(&held));
        proxy.cut_commit_once(cut);
        let answer = apply(&mut store, complete(&held, Status::Succeeded, None));
        assert_eq!(answer, Reply::Completed);
        assert_eq!(proxy.armed(), 0, "{cut:?}");
        let rows = reader.run(run_id(n)).unwrap().expect("the run");
        assert_eq!(rows.version, 4, "{cut:?}");
    }
    let report = delta_store::doctor::examine(&reader, &mut |_| {}).unwrap();
    assert_eq!(report.first_difference, None);
}

#[test]
fn a_writer_that_stops_inside_a_batch_loses_it() {
    // F14: the others go on, and what it decided meanwhile is not written.
    let database = fresh_database().unwrap();
    let (mut stuck, reader) = open(&database.url);
    let (mut other, _) = open(&database.url);
    apply(&mut other, create(1, "linux"));
    let held = lease(&mut other, "r1").expect("work");
    let settings = Settings::recommended();
    let now = context(START, &settings, 1);
    stuck.begin().unwrap();
    let writes = decide_in(&mut stuck, &mut World::default(), &ack(&held), &now).unwrap();
    // Waits for the server to end the stuck writer's transaction.
    apply(&mut other, ack(&held));
    match stuck.commit(&writes) {
        Err(CommitError::Unknown) => assert!(!stuck.resolve_unknown(&writes).unwrap()),
        Err(CommitError::Store(StoreError::Unavailable(_))) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(
        reader.run(run_id(1)).unwrap().map(|rows| rows.version),
        Some(3)
    );
    apply(&mut stuck, complete(&held, Status::Succeeded, None));
}

#[test]
fn a_row_that_is_gone_fails_the_batch_before_it_is_committed() {
    // Somebody deletes by hand: what is answered as failed must not be there.
    let database = fresh_database().unwrap();
    let (mut store, reader) = open(&database.url);
    apply(&mut store, create(1, "linux"));
    let settings = Settings::recommended();
    let now = context(START, &settings, 1);
    let cancel = Command::CancelRun {
        run: run_id(1),
        cause: Cause::CanceledByUser,
        by: "ann".into(),
    };
    let mut world = World::default();
    store.begin().unwrap();
    let writes = decide_in(&mut store, &mut world, &cancel, &now).unwrap();
    database.execute("DELETE FROM delta_ci.attempts").unwrap();
    match store.commit(&writes) {
        Err(CommitError::Store(StoreError::Corrupt(why))) => {
            assert!(why.contains("UpdateAttempts"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    store.rollback();
    assert_eq!(reader.events(run_id(1), 0, 10).unwrap().len(), 1);
    assert!(store.begin().is_ok(), "it goes on");
}

#[test]
fn a_database_without_room_is_called_that() {
    let database = fresh_database().unwrap();
    let (mut store, _reader) = open(&database.url);
    apply(&mut store, create(1, "linux"));
    let admin = |sql: &str| database.execute(sql).unwrap();
    let fail = |code: &str| {
        format!(
            "SET search_path = delta_ci; \
             CREATE OR REPLACE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '{code}'; END $$; \
             DROP TRIGGER IF EXISTS no_room ON runs; \
             CREATE TRIGGER no_room BEFORE INSERT ON runs EXECUTE FUNCTION no_room()"
        )
    };
    for (code, full) in [("53100", true), ("58030", false)] {
        admin(&fail(code));
        let settings = Settings::recommended();
        let now = context(START, &settings, 1);
        let answer = delta_store::reference_driver::apply(&mut store, &[create(2, "linux")], &now);
        match answer {
            Err(StoreError::Full(_)) if full => {}
            Err(StoreError::Failing(_)) if !full => {}
            other => panic!("{code}: {other:?}"),
        }
    }
    admin("DROP TRIGGER no_room ON delta_ci.runs");
    store.probe().unwrap();
    apply(&mut store, create(2, "linux"));
}

#[test]
fn a_database_says_what_was_looked_at_and_what_was_not() {
    let database = fresh_database().unwrap();
    let (mut store, reader) = open(&database.url);
    apply(&mut store, create(1, "linux"));
    let mut looked = Vec::new();
    let without = reader
        .integrity(&mut |what| looked.push(what.to_owned()))
        .unwrap();
    assert_eq!(without.faults, [""; 0]);
    assert!(
        without.checked.contains("indexes were not looked at"),
        "{without:?}"
    );
    assert!(looked.iter().any(|it| it == "table runs"), "{looked:?}");
    let admin = |sql: &str| database.execute(sql).unwrap();
    // An index that was being made when its maker died.
    admin(
        "UPDATE pg_index SET indisvalid = false \
         WHERE indexrelid = 'delta_ci.events_pkey'::regclass",
    );
    let broken = reader.integrity(&mut |_| {}).unwrap();
    assert!(
        broken.faults[0].contains("events_pkey is not valid"),
        "{broken:?}"
    );
}
