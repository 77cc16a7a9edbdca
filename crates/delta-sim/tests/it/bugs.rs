//! The checkers' own test: six mistakes, each caught by the invariant that is there for it.

use delta_sim::world::bug::Bug;
use delta_sim::{Options, run_seeds};

/// Enough stories for each mistake to matter in one of them.
const SEEDS: u64 = 300;

fn caught(bug: Bug) {
    let options = Options {
        bug: Some(bug),
        ..Options::default()
    };
    let summary = run_seeds(0..SEEDS, &options, &mut |_| {});
    let Some(failure) = summary.failures.first() else {
        panic!("{bug:?} went unnoticed in {SEEDS} stories");
    };
    println!(
        "{bug:?} after {} seeds: {}",
        summary.seeds, failure.violation
    );
    assert_eq!(failure.violation.invariant, bug.caught_by(), "{failure}");
}

#[test]
fn a_dropped_fencing_check_breaks_i2() {
    caught(Bug::NoFencing);
}

#[test]
fn expiry_by_the_sweeper_alone_breaks_i2() {
    caught(Bug::SweeperOnlyExpiry);
}

#[test]
fn an_answer_before_the_commit_breaks_i15() {
    caught(Bug::AckBeforeCommit);
}

#[test]
fn a_reader_by_global_number_breaks_i18() {
    caught(Bug::BigserialReader);
}

#[test]
fn an_implicit_acknowledgement_breaks_i2() {
    caught(Bug::ImplicitAck);
}

#[test]
fn a_reused_epoch_breaks_i4() {
    caught(Bug::EpochReuse);
}
