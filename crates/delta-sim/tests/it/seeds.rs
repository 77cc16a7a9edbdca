//! Many seeds, the seeds that once failed, and what must happen over all of them.

use delta_sim::{Options, replay, run_seeds};

fn count() -> u64 {
    match () {
        () if std::env::var_os("DELTA_QUICK").is_some() => 200,
        () if std::env::var_os("DELTA_STORM").is_some() => 100_000,
        () => 2_000,
    }
}

#[test]
fn seeds_keep_every_invariant_and_meet_every_fault() {
    // I1 … I20, L1 … L5, and the list of what must sometimes happen.
    let start = std::time::Instant::now();
    let options = Options {
        failures: 9,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        ..Options::default()
    };
    let summary = run_seeds(0..count(), &options, &mut |_| {});
    for failure in &summary.failures {
        println!("{failure}");
    }
    assert!(
        summary.failures.is_empty(),
        "{} seeds",
        summary.failures.len()
    );
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} seeds, {} events, {:.0} seeds/s\n  judged: {}",
        summary.seeds,
        summary.events,
        summary.seeds as f64 / seconds,
        summary.judged
    );
    let missing = summary.seen.missing();
    assert!(missing.is_empty(), "never happened: {missing:#?}");
}

#[test]
fn threads_do_not_change_the_summary() {
    let told = |threads| {
        let options = Options {
            threads,
            ..Options::default()
        };
        let summary = run_seeds(500..540, &options, &mut |_| {});
        (summary.seeds, summary.events, summary.seen, summary.judged)
    };
    assert_eq!(told(1), told(3));
}

#[test]
fn seeds_that_once_failed_stay_fixed() {
    let known = include_str!("../../seeds.txt");
    for line in known.lines().filter(|line| !line.starts_with('#')) {
        let Some(seed) = line.split_whitespace().next() else {
            continue;
        };
        let seed = seed.parse().expect("a seed is a number");
        let outcome = replay(seed, false);
        assert_eq!(outcome.violation, None, "delta-ci sim --seed {seed}");
    }
}

#[test]
fn a_seed_is_the_same_story_every_time() {
    for seed in [0, 1, 77] {
        assert_eq!(replay(seed, false).timeline, replay(seed, false).timeline);
    }
}
