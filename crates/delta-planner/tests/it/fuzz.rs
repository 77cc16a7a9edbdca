//! A short version of `cargo xtask fuzz`.

use crate::mutate::{Rng, check, corpus, mutated};

// T13
#[test]
fn mutated_files_are_read_or_refused_within_bounds() {
    let corpus = corpus();
    for seed in 1..=3_000 {
        let bytes = mutated(&corpus, &mut Rng(seed));
        let checked = std::panic::catch_unwind(|| check(&bytes));
        assert!(
            checked.is_ok(),
            "cargo run -p delta-planner --example fuzz_pipeline -- --seed {seed}"
        );
    }
}
