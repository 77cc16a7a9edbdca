//! Two agents whose sessions lose, double and reorder whole frames in both directions, and are
//! half-closed, all drawn from one seed: every job ends once, every result and log is exact.

use std::time::Duration;

use delta_testkit::proxy::{GrpcChances, GrpcProxy};
use delta_testkit::rng::{Rng, SEED_VARIABLE, fresh_seed};

use crate::faults_agent::{agent_with, only_job, run_of};
use crate::harness::{Options, Server, storm_count, walk};
use crate::partitions::check_log;
use crate::traffic;

/// Almost a third of everything, in both directions: half of all questions have no answer.
const CHANCES: GrpcChances = GrpcChances {
    drop: 0.3,
    duplicate: 0.3,
    reorder: 0.3,
    // A handful per session; each makes the next dial wait longer (A35).
    half_close: 0.003,
};

/// Worlds beside each other: as many seeds as are said to be run.
const SEEDS: u64 = 5;

/// A job whose assignment was lost waits until its lease was not accepted in time, a few times.
const PATIENCE: Duration = Duration::from_secs(180);

// EP-29, A18, A19, A27, A67, F5, F33, F34, F35
#[test]
fn agents_behind_a_shuffled_stream_finish_everything_once_and_byte_for_byte() {
    let seed = fresh_seed();
    println!("{SEED_VARIABLE}={seed}");
    std::thread::scope(|scope| {
        for n in 0..SEEDS {
            let seed = Rng::part(seed, n).below(1_000_000_000);
            scope.spawn(move || one_world(seed));
        }
    });
}

/// What a job does, what it prints, and what it exits with: one in four fails.
fn job(number: u32) -> (String, String, i64) {
    let (step, printed) = traffic::step(number);
    match number % 4 {
        3 => (
            format!("{step}\nexit 7"),
            format!("{printed}--- step 1 ended with exit code 7\n"),
            7,
        ),
        _ => (step, printed, 0),
    }
}

fn one_world(seed: u64) {
    // An acknowledgement and the first renewals may all be lost: the lease outlives many tries.
    let options = Options::patient()
        .flag("ack-timeout", "3s")
        .flag("lease-ttl", "30s");
    let server = Server::start(options);
    let person = server.person();
    let proxies = [1, 2].map(|n| GrpcProxy::start(server.addr(), seed ^ n).unwrap());
    let _agents = [("left", &proxies[0]), ("right", &proxies[1])].map(|(name, proxy)| {
        proxy.chances(CHANCES);
        agent_with(&server, proxy.addr(), name, &["--slots", "3"])
    });
    let jobs: Vec<_> = (0..storm_count("DELTA_STORM_JOBS", 20)).map(job).collect();
    let create = |(step, ..): &(String, String, i64)| person.create(&run_of(step));
    let runs: Vec<String> = jobs.iter().map(create).collect();
    for (run, (_, printed, exit)) in runs.iter().zip(&jobs) {
        let over = person.until_over_within(PATIENCE, run);
        let outcome = if *exit == 0 { "SUCCESS" } else { "FAILED" };
        assert_eq!(over["outcome"], outcome, "{over}");
        assert_eq!(walk(&person, run).finals.len(), 1, "it ended once");
        let job = only_job(&person, run);
        let attempts = person.job(&job)["attempts"].clone();
        assert_eq!(attempts.as_array().map(Vec::len), Some(1), "{attempts}");
        assert_eq!(attempts[0]["exit_code"], *exit, "{attempts}");
        check_log(&person, &job, printed);
    }
    let faults = |kind| {
        let each = proxies.iter().map(|it| it.journal().count(kind));
        each.sum::<u64>()
    };
    let seen = ["drop", "duplicate", "reorder", "half-close"].map(faults);
    println!("seed {seed}: dropped, doubled, overtaken, half-closed: {seen:?}");
    assert!(seen[..3].iter().all(|count| *count > 0), "{seen:?}");
    server.check();
}
