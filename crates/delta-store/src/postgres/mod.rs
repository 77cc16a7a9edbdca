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
//! [`open`] gives all sides; each has its connections and their threads. Calls block and must
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
mod pools;
mod queues;
mod reader;
mod resolve;
mod results;
mod rows;
mod schema;
mod secrets;
mod side_tables;
mod sql;
mod sql_read;
mod sql_results;
mod store;
mod sweep;
mod value;

pub use self::reader::PgReader;
pub use self::side_tables::PgSideTables;
pub use self::store::PgStore;

use self::connect::Target;
use self::pools::Pools;
use crate::StoreError;
use crate::migrate::Schema;

/// The store's three sides: the writer's, the one that reads, and the tables beside it.
pub type Sides = (PgStore, PgReader, PgSideTables);

/// Opens the store at `url`, making or migrating its schema first.
///
/// TLS when the URL says `sslmode=require` (or names a CA file by `sslrootcert=`), with the
/// certificate always verified; plain otherwise. A store of a newer program is refused.
pub fn open(url: &str) -> Result<Sides, StoreError> {
    open_as(url, Schema::Migrate)
}

/// As [`open`], where the schema may be left as it is.
pub fn open_as(url: &str, schema: Schema) -> Result<Sides, StoreError> {
    let target = Target::parse(url)?;
    let mut store = PgStore::new(target.clone())?;
    let pools = Pools::new(target)?;
    match schema {
        Schema::Migrate => store.migrate()?,
        Schema::AsItIs => pools.check_schema()?,
    }
    let reader = PgReader {
        pools: pools.clone(),
    };
    Ok((store, reader, PgSideTables { pools }))
}

/// Opens only the reading side of the store at `url`, and changes nothing: a database without a
/// store, or with one that is not of this program's version, is refused.
pub fn open_reader(url: &str) -> Result<PgReader, StoreError> {
    let pools = Pools::new(Target::parse(url)?)?;
    pools.check_schema()?;
    Ok(PgReader { pools })
}
