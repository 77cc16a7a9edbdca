//! The store in memory.

use std::sync::Arc;

use delta_core::Span;
use delta_store::Store;
use delta_store::events::Tip;
use delta_store::memory::{Fault, MemoryStore};

use crate::conformance::bench::{Bench, START};
use crate::conformance::{Fixture, conformance};

pub fn fixture() -> Fixture {
    fixture_of(MemoryStore::new())
}

fn fixture_of(first: MemoryStore) -> Fixture {
    Fixture {
        open: Box::new(move || {
            let store = first.reopen();
            let (reader, tables) = (store.reader(), store.side_tables());
            (Box::new(store), Arc::new(reader), Arc::new(tables))
        }),
        shared: false,
    }
}

conformance!(crate::memory::fixture);

#[test]
fn its_clock_shows_what_it_was_set_to() {
    let mut store = MemoryStore::new();
    assert!(store.begin().unwrap() > delta_core::Millis(1_600_000_000_000));
    store.set_clock(START);
    assert_eq!(store.begin().unwrap(), START);
    assert_eq!(store.crash().begin().unwrap(), START);
}

#[test]
fn faults_are_taken_one_after_the_other() {
    let mut store = MemoryStore::new();
    store.inject(Fault::Conflict);
    store.inject(Fault::UnknownApplied);
    let writes = Default::default();
    assert!(store.commit(&writes).is_err());
    assert!(store.commit(&writes).is_err());
    assert!(store.commit(&writes).is_ok());
}

#[test]
fn pruning_leaves_a_tombstone() {
    let first = MemoryStore::new();
    let reader = first.reader();
    let mut bench = Bench::new(&|| fixture_of(first.reopen()));
    let run = bench.create(1, &["linux"]);
    bench.work_off("r1", &["linux"]).expect("work");
    let last = bench.reader.events(run, 0, 9).unwrap().pop().unwrap();
    bench.store.prune(START + Span(1), 9).unwrap();
    let left = Tip {
        version: last.version,
        hash: last.hash,
    };
    assert_eq!(reader.tombstone(run), Some(left));
}
