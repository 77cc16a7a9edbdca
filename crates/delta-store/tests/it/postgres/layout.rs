//! How the tables lie: renewals stay HOT, names are checked, schemas are versioned.

use std::thread;

use delta_core::{Reply, Text};
use delta_store::reference_driver::{self, LeaseAsk};
use delta_store::{StoreError, postgres};
use delta_testkit::postgres::{Postgres, fresh_database};
use delta_testkit::wait::eventually;

use super::writers::{apply, create, lease};
use super::{PATIENCE, open};
use crate::conformance::bench::{START, ack, context, digest, heartbeat};

/// One number from the database.
pub fn ask(url: &str, sql: &str) -> i64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        client.query_one(sql, &[]).await.unwrap().get(0)
    })
}

#[test]
fn heartbeats_are_hot_updates() {
    // D3: no index knows a column that a renewal changes. A cluster of its own: other tests that
    // look at its pages at the wrong moment would keep them from being cleaned.
    let cluster = Postgres::start().unwrap();
    let database = cluster.fresh_database().unwrap();
    let (mut store, _) = open(&database.url);
    let mut held = Vec::new();
    for n in 1..=10 {
        apply(&mut store, create(n, "linux"));
        held.push(lease(&mut store, &"r".repeat(n as usize)).expect("work"));
    }
    for held in &held {
        apply(&mut store, ack(held));
        for seq in 1..=30 {
            assert!(matches!(
                apply(&mut store, heartbeat(held, seq)),
                Reply::Renewed { .. }
            ));
        }
    }
    // A session reports what it did when it ends.
    drop(store);
    let counts = "FROM pg_stat_user_tables WHERE schemaname = 'delta_ci' AND relname = 'attempts'";
    let all = eventually(PATIENCE, "the server has counted", || {
        match ask(&database.url, &format!("SELECT n_tup_upd {counts}")) {
            all if all >= 320 => Ok(all),
            all => Err(all),
        }
    });
    let hot = ask(&database.url, &format!("SELECT n_tup_hot_upd {counts}"));
    // Grants and acknowledgements included; with an index on a column that changes none would be.
    assert!(hot * 100 >= all * 95, "{hot} of {all} updates are HOT");
}

#[test]
fn a_newer_schema_is_refused() {
    let database = fresh_database().unwrap();
    drop(open(&database.url));
    drop(open(&database.url));
    database
        .execute("INSERT INTO delta_ci.schema_version VALUES (99)")
        .unwrap();
    match postgres::open(&database.url) {
        Err(StoreError::TooNew {
            found: 99,
            known: 15,
        }) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a newer store was opened"),
    }
}

#[test]
fn events_written_one_by_one_are_read_and_continued() {
    let database = fresh_database().unwrap();
    let (mut store, reader) = open(&database.url);
    apply(&mut store, create(1, "linux"));
    drop((store, reader));
    // As they were before a row could hold several.
    database
        .execute(
            "ALTER TABLE delta_ci.events DROP COLUMN records; \
             ALTER TABLE delta_ci.events RENAME COLUMN first TO version; \
             DROP TABLE delta_ci.results, delta_ci.result_claims, delta_ci.secrets, \
             delta_ci.queues, delta_ci.repositories, delta_ci.reports, delta_ci.approvals, \
             delta_ci.plans, delta_ci.lines; \
             ALTER TABLE delta_ci.runs DROP COLUMN queue, DROP COLUMN unique_key, \
             DROP COLUMN keep_until, DROP COLUMN rerun_of, DROP COLUMN place; \
             ALTER TABLE delta_ci.jobs DROP COLUMN kept, DROP COLUMN place; \
             ALTER TABLE delta_ci.agents DROP COLUMN process; \
             ALTER TABLE delta_ci.store DROP COLUMN identity, DROP COLUMN probes; \
             DELETE FROM delta_ci.schema_version WHERE version >= 5",
        )
        .unwrap();
    let (mut store, reader) = open(&database.url);
    let cancel = delta_core::Command::CancelRun {
        run: crate::conformance::bench::run_id(1),
        cause: delta_core::Cause::CanceledByUser,
        by: "ann".into(),
    };
    apply(&mut store, cancel);
    let events =
        delta_store::read::Reader::events(&reader, crate::conformance::bench::run_id(1), 0, 9)
            .unwrap();
    assert_eq!(events.len(), 2);
    let report = delta_store::doctor::examine(&reader, &mut |_| {}).unwrap();
    assert_eq!(report.first_difference, None);
}

#[test]
fn servers_that_start_together_make_one_schema() {
    let database = fresh_database().unwrap();
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| drop(open(&database.url)));
        }
    });
    assert_eq!(
        ask(
            &database.url,
            "SELECT count(*) FROM delta_ci.schema_version"
        ),
        15
    );
}

#[test]
fn states_nobody_knows_are_refused_by_the_table() {
    let database = fresh_database().unwrap();
    let (mut store, _) = open(&database.url);
    apply(&mut store, create(1, "linux"));
    for sql in [
        "UPDATE delta_ci.runs SET state = 'DONE'",
        "UPDATE delta_ci.attempts SET state = 'STALE'",
        "UPDATE delta_ci.attempts SET lease_epoch = 1, lease_state = 'HELD'",
        "UPDATE delta_ci.jobs SET resolution = 'TIMED_OUT'",
    ] {
        assert!(database.execute(sql).is_err(), "{sql}");
    }
}

#[test]
fn text_that_postgresql_cannot_hold_is_kept() {
    let database = fresh_database().unwrap();
    let (mut store, _) = open(&database.url);
    apply(&mut store, create(1, "linux"));
    let runner: Text = "a\0b\u{1}".into();
    let asked = LeaseAsk {
        keys: vec!["linux".into()],
        principal: "p\0".into(),
        runner: runner.clone(),
        token: digest(1),
    };
    let settings = delta_core::Settings::recommended();
    let now = context(START, &settings, 1);
    let given = reference_driver::lease(&mut store, &asked, &now)
        .unwrap()
        .expect("work");
    assert!(given.answer.is_ok());
    let again = reference_driver::lease(&mut store, &asked, &now)
        .unwrap()
        .expect("the same again");
    assert_eq!(again.attempt, given.attempt);
    let (_, reader) = open(&database.url);
    let rows = delta_store::read::Reader::job(&reader, given.attempt.job)
        .unwrap()
        .unwrap();
    assert_eq!(
        rows.attempts[0].lease.as_ref().map(|lease| &lease.runner),
        Some(&runner)
    );
}
