//! Two agents behind networks that break all the time, all drawn from one seed: every job ends
//! once, every log is exact.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use delta_testkit::proxy::{Direction, Proxy};
use delta_testkit::rng::{Rng, SEED_VARIABLE, fresh_seed};

use crate::faults_agent::{agent_at, only_job, run_of};
use crate::harness::{Options, Server, storm_count, walk};
use crate::partitions::check_log;

/// Chance of each piece of bytes to be the last one of its connection, or of its direction.
const RESET: f64 = 0.04;
const HALF_CLOSE: f64 = 0.02;

/// An agent with nothing to do waits for up to a minute before it dials a bad network again (A35).
const PATIENCE: Duration = Duration::from_secs(600);

/// Kinds of weather.
const KINDS: u64 = 6;

/// What a network does to both directions at once for a moment; then something else.
fn weather(proxy: &Proxy, kind: u64, rng: &mut Rng) {
    let moment = rng.duration(Duration::from_millis(50)..Duration::from_millis(500));
    let direction = *rng.pick(&Direction::BOTH);
    match kind {
        0 => proxy.hold(direction),
        1 => Direction::BOTH
            .into_iter()
            .for_each(|each| proxy.hold(each)),
        2 => proxy.throttle(direction, Some(2000)),
        3 => proxy.delay(direction, Duration::ZERO..Duration::from_millis(100)),
        4 => drop(proxy.cut_all()),
        // The server keeps a session whose agent is gone, and is dialled for the next one.
        _ => {
            proxy.hold(Direction::ToServer);
            proxy.half_close_chance(Direction::ToClient, 1.0);
        }
    }
    std::thread::sleep(moment);
    let none = Duration::ZERO..Duration::ZERO;
    for direction in Direction::BOTH {
        proxy.release(direction);
        proxy.throttle(direction, None);
        proxy.delay(direction, none.clone());
        proxy.reset_chance(direction, RESET);
        proxy.half_close_chance(direction, HALF_CLOSE);
    }
    std::thread::sleep(moment);
}

/// A job's step and what it prints.
pub fn step(number: u32) -> (String, String) {
    let step = format!(
        ": job {number}\n\
         i=0; while [ $i -lt 20 ]; do echo \"job {number} line $i\"; i=$((i+1)); sleep 0.01; done"
    );
    let mut printed = format!("--- step 1: : job {number} …\n");
    for line in 0..20 {
        printed.push_str(&format!("job {number} line {line}\n"));
    }
    (step, printed)
}

// F5, F29, F33, F57, EP-29, A27
#[test]
fn agents_behind_a_bad_network_finish_everything_once_and_byte_for_byte() {
    let seed = fresh_seed();
    println!("{SEED_VARIABLE}={seed}");
    let server = Server::start(Options::patient());
    let person = server.person();
    let proxies = [1, 2].map(|n| Proxy::start(server.addr(), seed ^ n).unwrap());
    let _agents = [
        agent_at(&server, proxies[0].addr(), "left"),
        agent_at(&server, proxies[1].addr(), "right"),
    ];
    let count = storm_count("DELTA_STORM_JOBS", 20);
    let steps: Vec<(String, String)> = (0..count).map(step).collect();
    let create = |(step, _): &(String, String)| person.create(&run_of(step));
    let runs: Vec<String> = steps.iter().map(create).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (n, proxy) in proxies.iter().enumerate() {
            let (over, mut rng) = (&over, Rng::part(seed, 100 + n as u64));
            scope.spawn(move || {
                // Each kind once before chance has it: what is counted below was there.
                let mut kinds: Vec<u64> = (0..KINDS).collect();
                rng.shuffle(&mut kinds);
                while !over.load(Ordering::SeqCst) {
                    let kind = kinds.pop().unwrap_or_else(|| rng.below(KINDS));
                    weather(proxy, kind, &mut rng);
                }
            });
        }
        let _ends = Ends(&over);
        for run in &runs {
            let over = person.until_over_within(PATIENCE, run);
            assert_eq!(over["outcome"], "SUCCESS", "{over}");
        }
    });
    for (run, (_, printed)) in runs.iter().zip(&steps) {
        assert_eq!(walk(&person, run).finals.len(), 1, "it ended once");
        check_log(&person, &only_job(&person, run), printed);
    }
    let faults = |kind| {
        proxies
            .iter()
            .map(|it| it.journal().count(kind))
            .sum::<u64>()
    };
    let seen = ["reset by chance", "half-close", "hold", "cut all"].map(faults);
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    println!("resets, half-closes, stalls, cuts: {seen:?}");
    server.check();
}

/// Ends the weather however the scope is left: a failed test must not wait for it.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
