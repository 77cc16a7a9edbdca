//! A deterministic world of seeded faults, and the checkers of its history.
//!
//! [`model`] explores small bounds of the pure machines completely; [`world`] tells one story per
//! seed about core and memory store; [`check`] holds the invariants that judge both. Refuses the
//! machine's clock, randomness, files and threads (but for the explorer's): a seed is a story.

#![forbid(unsafe_code)]

pub mod check;
pub mod model;
pub mod rng;
pub mod world;

use std::ops::Range;

use check::{Tally, Violation};
use world::bug::Bug;
use world::sometimes::Seen;

/// How seeds are run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A mistake to seed into the server, to see it caught.
    pub bug: Option<Bug>,
    /// Go on until more than this many seeds have failed.
    pub failures: usize,
    /// Stories told side by side; 0 means one. The summary is the same for any number.
    pub threads: usize,
}

/// Seeds told between two looks at the failures, per thread: a fraction of a second of work.
const BLOCK: u64 = 32;

/// A seed that broke an invariant.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub violation: Violation,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seed = self.seed;
        write!(
            f,
            "seed {seed}: {}\n  replay: delta-ci sim --seed {seed}",
            self.violation
        )
    }
}

/// What a set of seeds came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub seeds: u64,
    /// Things that happened, over all stories.
    pub events: u64,
    pub failures: Vec<Failure>,
    pub seen: Seen,
    pub judged: Tally,
}

/// Tells the stories of all seeds in the range; `progress` is told how many are done.
pub fn run_seeds(seeds: Range<u64>, options: &Options, progress: &mut dyn FnMut(u64)) -> Summary {
    let mut summary = Summary::default();
    let threads = options.threads.max(1) as u64;
    let mut from = seeds.start;
    while from < seeds.end && summary.failures.len() <= options.failures {
        let starts = (0..threads).map(|n| (from + n * BLOCK).min(seeds.end));
        let blocks = starts.map(|start| start..(start + BLOCK).min(seeds.end));
        let parts: Vec<Summary> = std::thread::scope(|scope| {
            let tellers: Vec<_> = blocks
                .map(|block| scope.spawn(move || tell_block(block, options)))
                .collect();
            let told = tellers.into_iter().map(|teller| teller.join());
            told.map(|part| part.expect("a story panicked")).collect()
        });
        for part in &parts {
            summary.add(part);
        }
        progress(summary.seeds);
        from = (from + threads * BLOCK).min(seeds.end);
    }
    summary
}

fn tell_block(seeds: Range<u64>, options: &Options) -> Summary {
    let mut summary = Summary::default();
    for seed in seeds {
        let ending = world::tell(seed, options.bug, false);
        summary.seeds += 1;
        summary.events += ending.events;
        summary.seen.add(&ending.seen);
        summary.judged.add(&ending.judged);
        if let Some(violation) = ending.violation {
            summary.failures.push(Failure { seed, violation });
            if summary.failures.len() > options.failures {
                break;
            }
        }
    }
    summary
}

impl Summary {
    fn add(&mut self, part: &Summary) {
        self.seeds += part.seeds;
        self.events += part.events;
        self.failures.extend(part.failures.iter().cloned());
        self.seen.add(&part.seen);
        self.judged.add(&part.judged);
    }
}

/// One story, told again.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub violation: Option<Violation>,
    pub timeline: Vec<String>,
    pub events: u64,
}

/// Tells the story of one seed again; `verbose` prints its timeline.
pub fn replay(seed: u64, verbose: bool) -> Outcome {
    let ending = world::tell(seed, None, true);
    if verbose {
        for line in &ending.timeline {
            println!("{line}");
        }
        match &ending.violation {
            Some(violation) => println!("{violation}"),
            None => println!("seed {seed}: nothing was broken"),
        }
    }
    Outcome {
        violation: ending.violation,
        timeline: ending.timeline,
        events: ending.events,
    }
}
