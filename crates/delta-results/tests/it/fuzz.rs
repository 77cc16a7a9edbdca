//! A short version of `cargo xtask fuzz`.

use delta_results::Format;

use crate::mutate::{READERS, Rng, check, corpus, mutated};

// T11, T12
#[test]
fn mutated_reports_are_read_within_bounds_and_however_they_come() {
    for reader in READERS {
        let format = Format::from_name(reader).expect("a format");
        let corpus = corpus(reader);
        for seed in 1..=300 {
            let mut rng = Rng(seed);
            let bytes = mutated(&corpus, &mut rng);
            let checked = std::panic::catch_unwind(|| check(format, &bytes, &mut Rng(seed)));
            assert!(checked.is_ok(), "{reader} seed {seed}");
        }
    }
}
