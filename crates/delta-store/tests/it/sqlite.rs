//! The SQLite store: the suite, and what only a file can get wrong.

use std::rc::Rc;
use std::sync::Arc;

use delta_core::Span;
use delta_store::doctor::examine;
use delta_store::sqlite;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::conformance::bench::{Bench, START};
use crate::conformance::{Fixture, conformance};

pub fn fixture() -> Fixture {
    fixture_in(Rc::new(tempfile::tempdir().expect("a folder")))
}

pub fn fixture_in(dir: Rc<TempDir>) -> Fixture {
    Fixture {
        open: Box::new(move || {
            let (store, reader, tables) = sqlite::open(dir.path()).expect("the file opens");
            (Box::new(store), Arc::new(reader), Arc::new(tables))
        }),
        shared: false,
    }
}

/// A bench and a second way into its file.
pub fn bench_and_file() -> (Bench, Connection, Rc<TempDir>) {
    let dir = Rc::new(tempfile::tempdir().expect("a folder"));
    let bench = Bench::new(&|| fixture_in(dir.clone()));
    let file = Connection::open(dir.path().join("delta-ci.db")).expect("the file opens");
    file.pragma_update(None, "foreign_keys", false)
        .expect("a setting");
    (bench, file, dir)
}

conformance!(crate::sqlite::fixture);

fn count(file: &Connection, what: &str) -> u64 {
    let sql = format!("SELECT count(*) FROM {what}");
    file.query_row(&sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn pruning_leaves_a_tombstone_and_nothing_else() {
    let (mut bench, file, _dir) = bench_and_file();
    let run = bench.create(1, &["linux"]);
    bench.lease("r1", &["linux"]).expect("work");
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    bench.complete(&held).unwrap();
    let last = bench.reader.events(run, 0, 9).unwrap().pop().unwrap();
    delta_store::Store::prune(&mut bench.store, START + Span(1), 9).unwrap();
    for table in [
        "runs",
        "jobs",
        "attempts",
        "past_leases",
        "job_specs",
        "events",
        "delayed",
    ] {
        assert_eq!(count(&file, table), 0, "{table}");
    }
    let left: (u64, Vec<u8>) = file
        .query_row("SELECT version, hash FROM tombstones", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(left, (last.version, last.hash.to_vec()));
}

/// Makes the file one of version 4, in which the queue was a table and each event a row.
const AS_VERSION_4: &str = "CREATE TABLE queue (run_id BLOB NOT NULL, job INTEGER NOT NULL, \
    attempt INTEGER NOT NULL, project TEXT NOT NULL, match_key TEXT NOT NULL, \
    order_key INTEGER NOT NULL, queued_at INTEGER NOT NULL, \
    PRIMARY KEY (run_id, job, attempt)) WITHOUT ROWID; \
    INSERT INTO queue SELECT run_id, job, attempt, project, 'linux', order_key, queued_at \
    FROM attempts WHERE state = 'QUEUED'; \
    ALTER TABLE events RENAME COLUMN first TO version; \
    ALTER TABLE events DROP COLUMN records; \
    DROP TABLE secrets; DROP TABLE results; DROP TABLE result_claims; DROP TABLE queues; \
    DROP TABLE repositories; DROP TABLE reports; DROP TABLE approvals; DROP TABLE plans; \
    DROP INDEX runs_plain; DROP INDEX runs_queue; DROP INDEX runs_dead; DROP INDEX runs_unique; \
    DROP INDEX runs_kept; ALTER TABLE runs DROP COLUMN queue; \
    ALTER TABLE runs DROP COLUMN unique_key; ALTER TABLE runs DROP COLUMN keep_until; \
    DROP INDEX runs_rerun_of; ALTER TABLE runs DROP COLUMN rerun_of; \
    ALTER TABLE jobs DROP COLUMN kept; DROP INDEX jobs_in_line; \
    ALTER TABLE runs DROP COLUMN place; ALTER TABLE jobs DROP COLUMN place; \
    ALTER TABLE agents DROP COLUMN process; \
    DELETE FROM meta WHERE name IN ('identity', 'probes'); \
    PRAGMA user_version = 4";

#[test]
fn the_queue_and_the_events_of_an_older_file_are_kept() {
    let (mut bench, file, dir) = bench_and_file();
    let run = bench.create(1, &["linux", "linux"]);
    bench.work_off("r1", &["linux"]).expect("work");
    file.execute_batch(AS_VERSION_4).unwrap();
    let mut bench = bench.reopen();
    assert!(dir.path().join("delta-ci.db.before-4").exists());
    let queue = bench.reader.queue().unwrap();
    assert_eq!((&*queue[0].match_key, queue[0].attempts), ("linux", 1));
    bench.work_off("r1", &["linux"]).expect("work");
    assert_eq!(bench.reader.events(run, 0, 99).unwrap().len(), 1 + 3 * 2);
    let report = examine(&*bench.reader, &mut |_| {}).unwrap();
    assert_eq!(report.first_difference, None);
}

#[test]
fn every_commit_is_flushed() {
    let (bench, file, _dir) = bench_and_file();
    let mode: String = file
        .query_row("PRAGMA journal_mode", [], |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "wal");
    drop(bench);
}

#[test]
fn a_store_that_is_closed_is_one_file_whoever_lets_go_of_it_last() {
    for last in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let (store, reader, tables) = sqlite::open(dir.path()).unwrap();
        let mut sides: Vec<Box<dyn std::any::Any>> =
            vec![Box::new(store), Box::new(reader), Box::new(tables)];
        let kept = sides.swap_remove(last);
        drop(sides);
        drop(kept);
        let names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["delta-ci.db"], "side {last} was the last");
    }
}

#[test]
fn a_second_writer_is_noticed_and_nothing_is_lost() {
    // Two stores on one file are a mistake the folder's lock prevents. Should it happen, a version
    // is never written twice: the second to commit has a conflict and reads again.
    let dir = Rc::new(tempfile::tempdir().unwrap());
    let mut one = Bench::new(&|| fixture_in(dir.clone()));
    let run = one.create(1, &["linux", "windows"]);
    let first = one.lease("r1", &["linux"]).expect("work");
    let mut two = Bench::new(&|| fixture_in(dir.clone()));
    two.lease("r2", &["windows"]).expect("work");
    assert!(one.ack(&first).is_ok());
    let events = one.reader.events(run, 0, 9).unwrap();
    let versions: Vec<u64> = events.iter().map(|event| event.version).collect();
    assert_eq!(versions, [1, 2, 3, 4]);
    let report = examine(&*one.reader, &mut |_| {}).unwrap();
    assert_eq!(report.first_difference, None);
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let missing = std::path::Path::new("/nowhere/at/all");
    let error = sqlite::open(missing)
        .expect_err("no such folder")
        .to_string();
    assert!(error.contains("/nowhere/at/all"), "{error}");
}

#[test]
fn a_file_that_is_no_database_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let text = "this is no database, it is a text of some length\n".repeat(100);
    std::fs::write(dir.path().join("delta-ci.db"), text).unwrap();
    let error = sqlite::open(dir.path()).expect_err("no database");
    assert!(
        matches!(error, delta_store::StoreError::Corrupt(_)),
        "{error}"
    );
}
