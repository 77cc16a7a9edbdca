//! Mutates pipeline files and reads them, for so many seconds:
//! `cargo run -p delta-planner --example fuzz_pipeline -- --seconds 60 [--seed N]`.
//!
//! A finding is a panic, a pipeline that the API refuses, a diagnostic that cannot be shown, or a
//! file that takes too long. The seed is printed, so that a finding can be had again.

#[path = "../tests/it/mutate.rs"]
mod mutate;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use mutate::{Rng, check, corpus, mutated};

/// An input that takes longer than this is a finding, too: it is at most a hundred kilobytes.
const SLOW: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1)?.parse::<u64>().ok()
    };
    let until = Instant::now() + Duration::from_secs(after("--seconds").unwrap_or(60));
    let corpus = corpus();
    let (first, only) = (after("--seed").unwrap_or(1), after("--seed").is_some());
    let mut seed = first;
    while Instant::now() < until {
        let bytes = mutated(&corpus, &mut Rng(seed.max(1)));
        let began = Instant::now();
        let checked = std::panic::catch_unwind(|| check(&bytes));
        if checked.is_err() || began.elapsed() > SLOW {
            eprintln!("pipeline: a finding with --seed {seed}");
            return ExitCode::FAILURE;
        }
        if only {
            break;
        }
        seed += 1;
    }
    println!("pipeline: {} inputs, no finding", seed - first);
    ExitCode::SUCCESS
}
