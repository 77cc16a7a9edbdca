//! The doctor on files that somebody has been at.

use delta_core::{RunId, Span};
use delta_store::doctor::{Difference, examine};
use rusqlite::Connection;

use crate::conformance::bench::Bench;
use crate::sqlite::bench_and_file;

/// Two runs, the first with a finished and a running job.
fn history(bench: &mut Bench) -> RunId {
    let run = bench.create(1, &["linux", "linux"]);
    bench.now = bench.now + Span::secs(10);
    bench.create(2, &["linux"]);
    bench.work_off("r1", &["linux"]).expect("work");
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    bench.heartbeat(&held, 1).unwrap();
    run
}

/// What the doctor says after a change to the file.
fn after(change: impl Fn(&Connection) -> usize) -> Option<Difference> {
    let (mut bench, file, _dir) = bench_and_file();
    let run = history(&mut bench);
    let well = examine(&*bench.reader, &mut |_| {}).unwrap();
    assert_eq!(well.first_difference, None);
    assert!(change(&file) > 0, "something changed");
    let report = examine(&*bench.reader, &mut |_| {}).unwrap();
    assert_eq!(report.runs, 2);
    let found = report.first_difference;
    assert!(found.iter().all(|found| found.run == run));
    found
}

fn sql(file: &Connection, text: &str) -> usize {
    file.execute(text, []).unwrap()
}

#[test]
fn a_changed_byte_of_an_event_is_named() {
    let found = after(|file| {
        let text: Vec<u8> = file
            .query_row("SELECT record FROM events WHERE first = 3", [], |row| {
                row.get(0)
            })
            .unwrap();
        let mut changed = text.clone();
        let digit = changed.iter().rposition(u8::is_ascii_digit).unwrap();
        changed[digit] ^= 1;
        file.execute(
            "UPDATE events SET record = ?1 WHERE first = 3 AND record = ?2",
            [changed, text],
        )
        .unwrap()
    });
    let found = found.expect("a difference");
    assert_eq!((found.version, &*found.what), (Some(3), "event hash"));
}

#[test]
fn a_missing_event_is_named() {
    let found = after(|file| sql(file, "DELETE FROM events WHERE first = 2"));
    let found = found.expect("a difference");
    assert_eq!((found.version, &*found.what), (Some(2), "event version"));
    assert_eq!((&*found.expected, &*found.found), ("2", "3"));
}

#[test]
fn a_missing_last_event_is_named() {
    let found = after(|file| {
        let last = "DELETE FROM events WHERE (run_id, first) IN \
                    (SELECT run_id, max(first) FROM events GROUP BY run_id HAVING count(*) > 1)";
        sql(file, last)
    });
    // The rows are ahead of the events that remain.
    let found = found.expect("a difference");
    assert_eq!(found.version, None);
}

#[test]
fn an_altered_row_is_named_with_its_field() {
    let table = [
        (
            "UPDATE runs SET state = 'SUCCESS' WHERE jobs = 2",
            "run: state",
        ),
        (
            "UPDATE runs SET live_jobs = 0 WHERE jobs = 2",
            "run: live_jobs",
        ),
        ("UPDATE jobs SET name = 'x' WHERE job = 2", "_2: name"),
        (
            "UPDATE jobs SET resolution = NULL WHERE resolution IS NOT NULL",
            "_1: resolution",
        ),
        (
            "UPDATE attempts SET state = 'FAILED' WHERE job = 2",
            "_2#1: state",
        ),
        (
            "UPDATE attempts SET lease_runner = 'r9' WHERE job = 2",
            "_2#1: lease.runner",
        ),
        (
            "UPDATE job_specs SET spec = spec || ' ' WHERE job = 2",
            "_2: spec",
        ),
        ("DELETE FROM job_specs WHERE job = 2", "_2: spec"),
        ("DELETE FROM jobs WHERE job = 2", "jobs"),
    ];
    for (change, what) in table {
        let found = after(|file| sql(file, change));
        let found = found.unwrap_or_else(|| panic!("not found: {change}"));
        assert!(found.what.ends_with(what), "{change}: {found:?}");
        assert_eq!(found.version, None);
        assert_ne!(found.expected, found.found);
    }
}

#[test]
fn renewals_are_not_compared() {
    let found = after(|file| {
        let renewal = "UPDATE attempts SET expires_at = expires_at + 5, heartbeat_seq = 99, \
                       progress = '{\"percent\":4}', cancel_told_at = 8 WHERE job = 2";
        sql(file, renewal)
    });
    assert_eq!(found, None);
}

#[test]
fn an_event_of_another_run_does_not_fit() {
    let found = after(|file| {
        let moved = "UPDATE events SET record = (SELECT record FROM events WHERE first = 1 \
                     ORDER BY run_id DESC LIMIT 1) WHERE first = 1 AND \
                     run_id = (SELECT min(run_id) FROM runs)";
        sql(file, moved)
    });
    assert_eq!(found.expect("a difference").what, "event hash");
}
