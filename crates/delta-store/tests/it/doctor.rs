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
    })
    .expect("a difference");
    assert_eq!((found.version, &*found.what), (Some(3), "event hash"));
}

#[test]
fn a_missing_event_is_named() {
    let found =
        after(|file| sql(file, "DELETE FROM events WHERE first = 2")).expect("a difference");
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
        let found =
            after(|file| sql(file, change)).unwrap_or_else(|| panic!("not found: {change}"));
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

/// Numbers that look random and are the same each time.
fn scattered(count: usize, below: u64) -> Vec<u64> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut drawn = std::collections::BTreeSet::new();
    while drawn.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        drawn.insert(state % below);
    }
    drawn.into_iter().collect()
}

/// A whole page of noise.
fn noise(seed: u64) -> Vec<u8> {
    scattered(512, u64::MAX ^ seed)
        .into_iter()
        .flat_map(|number| (number ^ seed).to_le_bytes())
        .collect()
}

#[test]
fn a_page_that_somebody_wrote_over_is_found_wherever_it_is() {
    let dir = std::rc::Rc::new(tempfile::tempdir().unwrap());
    let mut bench = Bench::new(&|| crate::sqlite::fixture_in(dir.clone()));
    for n in 1..=150 {
        bench.create(n, &["linux", "linux"]);
        bench.work_off("r1", &["linux"]).expect("work");
    }
    drop(bench);
    let file = dir.path().join("delta-ci.db");
    let closed = Connection::open(&file).unwrap();
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    closed.query_row(checkpoint, [], |_| Ok(())).unwrap();
    let size: u64 = closed
        .pragma_query_value(None, "page_size", |row| row.get(0))
        .unwrap();
    let free: u64 = closed
        .pragma_query_value(None, "freelist_count", |row| row.get(0))
        .unwrap();
    assert_eq!((size, free), (4096, 0), "no page is unused");
    drop(closed);
    let whole = std::fs::read(&file).unwrap();
    let pages = whole.len() as u64 / size;
    assert!(pages > 60, "{pages}");
    let mut only_the_engine = 0;
    for page in scattered(40, pages) {
        let mut damaged = whole.clone();
        let at = (page * size) as usize;
        damaged[at..at + 4096].copy_from_slice(&noise(page));
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("delta-ci.db"), damaged).unwrap();
        // One that is found at the start is found.
        let Ok((_store, reader, _)) = delta_store::sqlite::open(place.path()) else {
            continue;
        };
        use delta_store::read::Reader as _;
        let engine = reader.integrity(&mut |_| {}).unwrap();
        assert!(!engine.faults.is_empty(), "page {page} of {pages}");
        let ours = examine(&reader, &mut |_| {});
        only_the_engine += usize::from(ours.is_ok_and(|report| report.different == 0));
    }
    // An index that nobody reads says nothing to whoever reads tables.
    assert!(only_the_engine > 0, "the engine is asked for nothing");
    let (_store, reader, _) = delta_store::sqlite::open(dir.path()).unwrap();
    use delta_store::read::Reader as _;
    assert_eq!(reader.integrity(&mut |_| {}).unwrap().faults, [""; 0]);
}
