//! Results of tests: rows of their own, each under the lease that reported it.

use delta_core::{LeaseKey, Millis, Span};
use delta_store::Store;
use delta_store::results::{
    ResultClaim, ResultCounts, ResultQuery, ResultRow, ResultStatus, TestQuery, result_key,
};

use super::Fixture;
use super::bench::{Bench, header, new_job, policy, run_id};

fn row(name: &str, n: u32, status: ResultStatus) -> ResultRow {
    ResultRow {
        key: result_key(name, n),
        status,
        test_id: name.into(),
        suite: "suite".into(),
        name: name.into(),
        duration_ms: Some(12),
        message: status.is_unhappy().then(|| "it \0 broke \u{1}".into()),
        trace: None,
        metadata: Some("{\"a\":\"b\"}".into()),
        at: Millis(7),
    }
}

fn all_of(run: delta_core::RunId) -> ResultQuery {
    ResultQuery {
        run,
        job: None,
        attempt: None,
        only: Vec::new(),
        after: None,
    }
}

fn names(bench: &Bench, query: &ResultQuery, limit: usize) -> Vec<String> {
    let found = bench.reader.results(query, limit).unwrap();
    found.iter().map(|it| it.row.name.to_string()).collect()
}

/// A run of one job, and its lease.
fn leased(bench: &mut Bench, n: u64) -> LeaseKey {
    bench.create(n, &["linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    held.proof.key
}

// EP-12
pub fn a_repeated_result_is_one_result(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let lease = leased(&mut bench, 1);
    let rows = [
        row("a", 0, ResultStatus::Pass),
        row("a", 1, ResultStatus::Pass),
        row("b", 0, ResultStatus::Skip),
        row("b", 0, ResultStatus::Fail),
    ];
    bench.tables.put_results(lease, &rows).unwrap();
    bench.tables.put_results(lease, &rows[..2]).unwrap();
    bench.tables.put_results(lease, &[]).unwrap();
    let claim = ResultClaim {
        counts: Some(ResultCounts {
            passed: 9,
            ..Default::default()
        }),
        dropped: 4,
    };
    bench
        .tables
        .put_result_claim(lease, &Default::default())
        .unwrap();
    bench.tables.put_result_claim(lease, &claim).unwrap();
    let bench = bench.reopen();
    let found = bench.reader.lease_results(lease).unwrap();
    let counts = ResultCounts {
        failed: 1,
        passed: 2,
        ..Default::default()
    };
    assert_eq!((found.counts, found.claim), (counts, Some(claim)));
    let kept = [&rows[0], &rows[1], &rows[3]];
    assert_eq!(found.bytes, kept.iter().map(|row| row.size()).sum::<u64>());
    let page = bench.reader.results(&all_of(run_id(1)), 9).unwrap();
    let read: Vec<&ResultRow> = page.iter().map(|page| &page.row).collect();
    assert_eq!(read, [&rows[3], &rows[0], &rows[1]], "what failed is first");
    assert!(page.iter().all(|page| page.lease == lease));
}

// EP-16: a report that is written anew replaces what was read of it.
pub fn a_result_that_is_taken_back_is_gone(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let lease = leased(&mut bench, 1);
    bench.create(2, &["linux"]);
    let other = bench.lease("r2", &["linux"]).expect("work");
    bench.ack(&other).unwrap();
    let other = other.proof.key;
    let rows = ["a", "b", "c"].map(|name| row(name, 0, ResultStatus::Pass));
    for lease in [lease, other] {
        bench.tables.put_results(lease, &rows).unwrap();
    }
    let gone = [result_key("a", 0), result_key("b", 1), result_key("c", 0)];
    let mut sizes = bench.reader.sizes_of_results(lease, &gone).unwrap();
    sizes.sort();
    let mut wanted = [(gone[0], rows[0].size()), (gone[2], rows[2].size())];
    wanted.sort();
    assert_eq!(sizes, wanted);
    bench.tables.withdraw_results(lease, Some(&gone)).unwrap();
    bench.tables.withdraw_results(lease, Some(&[])).unwrap();
    let bench = bench.reopen();
    assert_eq!(names(&bench, &all_of(run_id(1)), 9), ["b"]);
    bench.tables.withdraw_results(lease, None).unwrap();
    assert_eq!(bench.reader.lease_results(lease).unwrap().counts.total(), 0);
    assert_eq!(names(&bench, &all_of(run_id(2)), 9), ["a", "b", "c"]);
}

// D4: a lease that is over does not touch the winner's.
pub fn only_the_latest_lease_is_shown(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux"]);
    // The same slot asks again: what it held and never acknowledged is taken back.
    let old = bench.lease("r1", &["linux"]).expect("work").proof.key;
    let again = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&again).unwrap();
    let new = again.proof.key;
    assert_ne!(old, new);
    let put = |lease, status| {
        let rows = [row("a", 0, status), row("b", 0, status)];
        bench.tables.put_results(lease, &rows).unwrap();
        let claim = ResultClaim::default();
        bench.tables.put_result_claim(lease, &claim).unwrap();
    };
    put(new, ResultStatus::Pass);
    put(old, ResultStatus::Fail);
    let page = bench.reader.results(&all_of(run_id(1)), 9).unwrap();
    assert!(
        page.len() == 2 && page.iter().all(|page| page.lease == new),
        "{page:?}"
    );
    let totals = bench.reader.run_results(run_id(1)).unwrap();
    assert_eq!(totals.len(), 1);
    assert_eq!((totals[0].lease, totals[0].counts.passed), (new, 2));
    let query = TestQuery {
        name: "a".into(),
        suite: None,
        repository: None,
        before: None,
    };
    let past = bench.reader.test_history(&query, 9).unwrap();
    assert!(past.len() == 1 && past[0].lease == new, "{past:?}");
    assert_eq!(bench.reader.lease_results(old).unwrap().counts.failed, 2);
}

pub fn pages_come_by_job_and_status_and_have_no_gap(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux", "linux"]);
    for _ in 0..2 {
        let held = bench.lease("r1", &["linux"]).expect("work");
        bench.ack(&held).unwrap();
        let (lease, job) = (held.proof.key, held.attempt().job.n);
        let rows = [
            row(&format!("{job}-pass"), 0, ResultStatus::Pass),
            row(&format!("{job}-fail"), 0, ResultStatus::Fail),
            row(&format!("{job}-skip"), 0, ResultStatus::Skip),
            row(&format!("{job}-error"), 0, ResultStatus::Error),
        ];
        bench.tables.put_results(lease, &rows).unwrap();
        bench.complete(&held).unwrap();
    }
    let order = ["fail", "error", "skip", "pass"];
    let all: Vec<String> = (1..=2)
        .flat_map(|job| order.map(|order| format!("{job}-{order}")))
        .collect();
    for size in 1..=3 {
        let (mut query, mut seen) = (all_of(run_id(1)), Vec::new());
        loop {
            let page = bench.reader.results(&query, size).unwrap();
            let Some(last) = page.last() else { break };
            query.after = Some(last.place());
            seen.extend(page.iter().map(|page| page.row.name.to_string()));
        }
        assert_eq!(seen, all, "pages of {size}");
    }
    let unhappy = ResultQuery {
        only: vec![ResultStatus::Fail, ResultStatus::Error],
        ..all_of(run_id(1))
    };
    assert_eq!(
        names(&bench, &unhappy, 9),
        ["1-fail", "1-error", "2-fail", "2-error"]
    );
    let one_job = ResultQuery {
        job: Some(2),
        ..all_of(run_id(1))
    };
    assert_eq!(names(&bench, &one_job, 9), all[4..]);
    let no_such_attempt = ResultQuery {
        attempt: Some(2),
        ..one_job
    };
    assert_eq!(names(&bench, &no_such_attempt, 9), [""; 0]);
}

pub fn a_test_is_followed_over_time(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    for (n, repository, status) in [
        (1, "https://a", ResultStatus::Fail),
        (2, "https://b", ResultStatus::Fail),
        (3, "https://a", ResultStatus::Pass),
    ] {
        let mut header = header();
        header.repository = Some(repository.into());
        header.git_ref = Some("main".into());
        header.commit = Some("c0ffee".into());
        bench.create_with(n, header, vec![new_job("job", policy("linux"))]);
        let held = bench.lease("r1", &["linux"]).expect("work");
        bench.ack(&held).unwrap();
        let mut rows = [row("it", 0, status), row("other", 0, status)];
        rows[0].metadata = match n {
            2 => None,
            3 => Some(r#"{"earlier_failures":"1"}"#.into()),
            1 => Some(r#"{"a":"b","read_from":"output"}"#.into()),
            _ => Some("{}".into()),
        };
        bench.tables.put_results(held.proof.key, &rows).unwrap();
        bench.complete(&held).unwrap();
    }
    let query = |repository: Option<&str>, suite: Option<&str>| TestQuery {
        name: "it".into(),
        suite: suite.map(Into::into),
        repository: repository.map(Into::into),
        before: None,
    };
    let history = |query: &TestQuery| {
        let found = bench.reader.test_history(query, 9).unwrap();
        let runs = found.iter().map(|it| (it.lease.attempt.run(), it.status));
        runs.collect::<Vec<_>>()
    };
    let (one, two, three) = (
        (run_id(1), ResultStatus::Fail),
        (run_id(2), ResultStatus::Fail),
        (run_id(3), ResultStatus::Pass),
    );
    assert_eq!(history(&query(None, None)), [three, two, one]);
    assert_eq!(
        history(&query(Some("https://a"), Some("suite"))),
        [three, one]
    );
    assert_eq!(history(&query(None, Some("elsewhere"))), []);
    let newest = bench.reader.test_history(&query(None, None), 1).unwrap();
    let newest = newest.first().expect("a result");
    assert_eq!(newest.commit.as_deref(), Some("c0ffee"));
    assert_eq!(&*newest.job, "job");
    let all = bench.reader.test_history(&query(None, None), 9).unwrap();
    let retried: Vec<bool> = all.iter().map(|it| it.retried).collect();
    assert_eq!(retried, [true, false, false]);
    let printed: Vec<bool> = all.iter().map(|it| it.printed).collect();
    assert_eq!(printed, [false, false, true]);
    let mut older = query(None, None);
    older.before = Some(newest.id);
    assert_eq!(history(&older), [two, one]);
}

pub fn results_go_with_their_run(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    let lease = held.proof.key;
    let rows = [row("a", 0, ResultStatus::Pass)];
    bench.tables.put_results(lease, &rows).unwrap();
    let claim = ResultClaim::default();
    bench.tables.put_result_claim(lease, &claim).unwrap();
    bench.complete(&held).unwrap();
    let later = bench.now + Span::secs(1);
    assert_eq!(bench.store.prune(later, 9).unwrap(), [run_id(1)]);
    let left = bench.reader.lease_results(lease).unwrap();
    assert_eq!((left.counts.total(), left.claim), (0, None));
}
