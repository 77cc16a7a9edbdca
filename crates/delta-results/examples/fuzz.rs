//! Mutates real reports and reads them, for so many seconds:
//! `cargo run -p delta-results --example fuzz -- --seconds 60 FORMAT [--seed N]`.
//!
//! A finding is a panic, a text beyond its bound, or cases that depend on how the bytes arrive. The
//! seed is printed before it is tried, so that a finding can be had again with `--seed`.

#[path = "../tests/it/mutate.rs"]
mod mutate;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use delta_results::Format;
use mutate::{READERS, Rng, check, corpus, mutated};

/// An input that takes longer than this is a finding, too: it is at most some hundred kilobytes.
const SLOW: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1)?.parse::<u64>().ok()
    };
    let wanted = words
        .iter()
        .find(|word| READERS.contains(&word.as_str()))
        .and_then(|word| Some((word, Format::from_name(word)?)));
    let Some((reader, format)) = wanted else {
        eprintln!("usage: fuzz [--seconds N] [--seed N] {}", READERS.join("|"));
        return ExitCode::from(2);
    };
    let until = Instant::now() + Duration::from_secs(after("--seconds").unwrap_or(60));
    let corpus = corpus(reader);
    let (first, only) = (after("--seed").unwrap_or(1), after("--seed").is_some());
    let mut seed = first;
    while Instant::now() < until {
        let mut rng = Rng(seed.max(1));
        let bytes = mutated(&corpus, &mut rng);
        let began = Instant::now();
        let checked = std::panic::catch_unwind(|| check(format, &bytes, &mut Rng(seed.max(1))));
        if checked.is_err() || began.elapsed() > SLOW {
            eprintln!("{reader}: a finding with --seed {seed}");
            return ExitCode::FAILURE;
        }
        if only {
            break;
        }
        seed += 1;
    }
    println!("{reader}: {} inputs, no finding", seed - first);
    ExitCode::SUCCESS
}
