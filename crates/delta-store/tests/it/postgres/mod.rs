//! PostgreSQL: the whole suite, and what only several writers and a real server can show.

mod faults;
mod layout;
mod tls;
mod writers;

use std::sync::Arc;
use std::time::Duration;

use delta_core::{Command, Context, Stop, World, decide};
use delta_store::postgres::{self, PgReader, PgStore};
use delta_store::{Store, StoreError, Writes};
use delta_testkit::postgres::fresh_database;

use crate::conformance::Fixture;

/// Longer than anything here takes on a busy machine, unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A database of its own for each case.
pub fn fixture() -> Fixture {
    let database = fresh_database().expect("a database");
    let open = move || {
        let (store, reader, tables) = postgres::open(&database.url).expect("the store opens");
        let store: Box<dyn Store> = Box::new(store);
        (store, Arc::new(reader) as _, Arc::new(tables) as _)
    };
    Fixture {
        open: Box::new(open),
        shared: true,
    }
}

pub fn open(url: &str) -> (PgStore, PgReader) {
    let (store, reader, _tables) = postgres::open(url).expect("the store opens");
    (store, reader)
}

/// Decides one command in the open batch, loading what it wants.
pub fn decide_in(
    store: &mut dyn Store,
    world: &mut World,
    command: &Command,
    context: &Context,
) -> Result<Writes, StoreError> {
    loop {
        match decide(world, command, context) {
            Ok(decision) => {
                world.absorb(&decision.edits);
                return Ok(Writes {
                    edits: decision.edits,
                    records: decision.record.into_iter().collect(),
                    ..Writes::default()
                });
            }
            Err(Stop::Missing(want)) => store.load(&[want].into(), world)?,
            Err(Stop::Refused(refusal)) => panic!("{refusal}"),
        }
    }
}

crate::conformance::conformance!(crate::postgres::fixture);
