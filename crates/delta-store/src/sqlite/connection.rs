//! Connections to the file: how they are set up, and what SQLite's errors mean to us.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::StoreError;
use crate::migrate::{Migration, Target};

/// Name of the file inside the data folder.
pub const FILE: &str = "delta-ci.db";

/// How long a connection waits for another one's lock. The writer holds it for one commit, a few
/// milliseconds; credentials are written by a second connection now and then.
const BUSY: Duration = Duration::from_secs(5);

/// Prepared statements kept per connection: more than there are statements in this module.
const STATEMENTS: usize = 64;

/// The log is copied into the file once it has this many pages (32 MiB): rarely enough that a page
/// of a short run is copied once, often enough for a quick start after a crash.
const CHECKPOINT_PAGES: u32 = 8000;

/// The log's file is cut back to this after a checkpoint that found it larger.
pub const WAL_BOUND: u64 = 64 << 20;

/// Page cache of the writer, in KiB: the pages of the runs that are live.
const WRITER_CACHE_KIB: u32 = 8 << 10;

/// Page cache of each reader, in KiB: a page of results.
const READER_CACHE_KIB: u32 = 1 << 10;

pub fn open_writer(path: &Path) -> Result<Connection, StoreError> {
    make_private(path)?;
    let connection = Connection::open(path).map_err(store_error)?;
    set_up(&connection, WRITER_CACHE_KIB)?;
    let set = |name: &str, value: &str| connection.pragma_update(None, name, value);
    set("journal_mode", "WAL").map_err(store_error)?;
    // FULL: every commit is on disk before it is answered.
    set("synchronous", "FULL").map_err(store_error)?;
    set("wal_autocheckpoint", &CHECKPOINT_PAGES.to_string()).map_err(store_error)?;
    set("journal_size_limit", &WAL_BOUND.to_string()).map_err(store_error)?;
    // The references in the tables are documentation: rows are only written whole runs at a time.
    set("foreign_keys", "OFF").map_err(store_error)?;
    Ok(connection)
}

pub fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(store_error)?;
    set_up(&connection, READER_CACHE_KIB)?;
    Ok(connection)
}

fn set_up(connection: &Connection, cache_kib: u32) -> Result<(), StoreError> {
    connection.busy_timeout(BUSY).map_err(store_error)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    let cache = format!("-{cache_kib}");
    let set = connection.pragma_update(None, "cache_size", cache);
    set.map_err(store_error)
}

/// The file belongs to the server's user alone; SQLite gives its log the same permissions.
fn make_private(path: &Path) -> Result<(), StoreError> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let made = options.open(path);
    made.map(drop)
        .map_err(|e| StoreError::Unavailable(format!("{}: {e}", path.display())))
}

/// The file as something to migrate.
pub struct File<'c> {
    pub connection: &'c Connection,
    pub path: PathBuf,
}

impl Target for File<'_> {
    fn version(&mut self) -> Result<u32, StoreError> {
        let read = |row: &rusqlite::Row| row.get(0);
        let version = self
            .connection
            .pragma_query_value(None, "user_version", read);
        version.map_err(store_error)
    }

    fn before_change(&mut self, from: u32) -> Result<(), StoreError> {
        let copy = self.path.with_file_name(format!("{FILE}.before-{from}"));
        let backup = self.connection.backup::<_, _, fn(_)>("main", &copy, None);
        backup.map_err(store_error)
    }

    fn step(&mut self, migration: &Migration) -> Result<(), StoreError> {
        let Migration { version, sql } = migration;
        let whole = format!("BEGIN IMMEDIATE; {sql}; PRAGMA user_version = {version}; COMMIT;");
        self.connection.execute_batch(&whole).map_err(|error| {
            // Nothing of a step stays; it may have failed before its transaction began.
            if !self.connection.is_autocommit() {
                let _ = self.connection.execute_batch("ROLLBACK");
            }
            store_error(error)
        })
    }
}

pub fn store_error(error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Corrupt(error.to_string())
        }
        Some(ErrorCode::DiskFull) => StoreError::Full(error.to_string()),
        Some(ErrorCode::ReadOnly | ErrorCode::SystemIoFailure) => {
            StoreError::Failing(error.to_string())
        }
        // Another writer has used a key we were about to use: this store is not alone.
        Some(ErrorCode::ConstraintViolation) => StoreError::Conflict,
        _ => match error {
            rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::FromSqlConversionFailure(..) => {
                StoreError::Corrupt(error.to_string())
            }
            other => StoreError::Unavailable(other.to_string()),
        },
    }
}
