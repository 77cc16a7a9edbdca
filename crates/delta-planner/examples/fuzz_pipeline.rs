//! Mutates pipeline files and reads them, for so many seconds:
//! `cargo run -p delta-planner --example fuzz_pipeline -- --seconds 60 [--from N] [--seed N]`.
//!
//! A finding is a panic, a pipeline that the API refuses, a diagnostic that cannot be shown, or a
//! file that takes too long or too much memory. The last two are judged from outside, since such an
//! input may never come back: a thread beside it looks at the clock and at the memory, names the
//! seed and ends the process. `--seed` tries one input again and leaves it in a file to look at;
//! `--from` goes on where another left off.

#[path = "../tests/it/mutate.rs"]
mod mutate;

use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use mutate::{Rng, check, corpus, mutated};

/// An input that takes longer than this is a finding, too: it is at most a hundred kilobytes, and
/// the slowest that is right takes a twentieth of it.
const SLOW: Duration = Duration::from_secs(2);

/// An input for which the whole process needs more memory than this is a finding: a full pipeline
/// of a thousand jobs takes a tenth.
const LARGE_BYTES: u64 = 1 << 30;

/// How often clock and memory are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// The input that is being read, since when.
static NOW: Mutex<Option<(u64, Instant)>> = Mutex::new(None);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1)?.parse::<u64>().ok()
    };
    let until = Instant::now() + Duration::from_secs(after("--seconds").unwrap_or(60));
    let corpus = corpus();
    let only = after("--seed");
    let first = only.or(after("--from")).unwrap_or(1).max(1);
    std::thread::spawn(watch);
    let mut seed = first;
    let mut slowest = (Duration::ZERO, seed);
    while Instant::now() < until {
        let bytes = mutated(&corpus, &mut Rng(seed));
        if only.is_some() {
            leave(seed, &bytes);
        }
        let began = Instant::now();
        set(Some((seed, began)));
        let checked = std::panic::catch_unwind(|| check(&bytes));
        set(None);
        let took = began.elapsed();
        if checked.is_err() || took > SLOW {
            eprintln!("pipeline: a finding with --seed {seed}: panicked or took {took:.1?}");
            return ExitCode::FAILURE;
        }
        slowest = slowest.max((took, seed));
        seed += 1;
        if only.is_some() {
            break;
        }
    }
    let count = seed - first;
    let (took, at) = slowest;
    println!("pipeline: {count} inputs, no finding; the slowest took {took:.1?} (--seed {at})");
    ExitCode::SUCCESS
}

fn set(now: Option<(u64, Instant)>) {
    *NOW.lock().unwrap_or_else(|it| it.into_inner()) = now;
}

/// Ends the process when an input takes too much.
fn watch() {
    loop {
        std::thread::sleep(LOOK);
        let now = *NOW.lock().unwrap_or_else(|it| it.into_inner());
        let Some((seed, began)) = now else { continue };
        let (took, bytes) = (began.elapsed(), resident_bytes());
        if took > SLOW || bytes > LARGE_BYTES {
            let megabytes = bytes / 1_000_000;
            eprintln!("pipeline: a finding with --seed {seed}: {took:.1?} and {megabytes} MB");
            std::process::exit(1);
        }
    }
}

/// Nothing where the system does not tell.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|it| it.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// An input to look at.
fn leave(seed: u64, bytes: &[u8]) {
    let path = std::env::temp_dir().join(format!("fuzz-pipeline-{seed}.yaml"));
    match std::fs::write(&path, bytes) {
        Ok(()) => eprintln!("pipeline: --seed {seed} is {}", path.display()),
        Err(error) => eprintln!("pipeline: {}: {error}", path.display()),
    }
}
