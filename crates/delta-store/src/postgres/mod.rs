//! The store on PostgreSQL: several servers, one database.
//!
//! Every row belongs to a run, and whoever holds the row lock on a run may read and write all of
//! its rows. A batch locks its runs in the order of their ids, or takes only what nobody else
//! holds (claims), and writes everything in one round trip that ends with COMMIT. The version of a
//! run's events is the second wall: two writers can never both write the same one.
//!
//! READ COMMITTED is enough, with one trap that shapes every read here: a statement that waited
//! for a lock still sees the other tables as they were before it waited. So a lock is taken by one
//! statement, and what it protects is read by the next. A retry may always be run again: nothing
//! outside the transaction changes.
//!
//! [`open`] gives both sides; each owns its connections and their threads. Calls block and must
//! not be made on a thread of an async runtime.

mod agents;
mod claim;
mod commit;
mod connect;
mod credentials;
mod error;
mod forges;
mod integrity;
mod join;
mod listen;
mod load;
mod queues;
mod reader;
mod resolve;
mod results;
mod rows;
mod schema;
mod secrets;
mod sql;
mod sql_read;
mod sql_results;
mod store;
mod sweep;
mod value;

pub use self::reader::PgReader;
pub use self::store::PgStore;

use self::connect::Target;
use crate::StoreError;

/// Opens the store at `url`, making or migrating its schema first.
///
/// TLS when the URL says `sslmode=require` (or names a CA file by `sslrootcert=`), with the
/// certificate always verified; plain otherwise. A store of a newer program is refused.
pub fn open(url: &str) -> Result<(PgStore, PgReader), StoreError> {
    let target = Target::parse(url)?;
    let mut store = PgStore::new(target.clone())?;
    store.migrate()?;
    Ok((store, PgReader::new(target)?))
}

/// Opens only the reading side of the store at `url`, and changes nothing: a database without a
/// store, or with one that is not of this program's version, is refused.
pub fn open_reader(url: &str) -> Result<PgReader, StoreError> {
    let reader = PgReader::new(Target::parse(url)?)?;
    reader.check_schema()?;
    Ok(reader)
}
