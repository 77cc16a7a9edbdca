//! The tables beside those of the core, in SQLite: one connection of their own, so that they wait
//! for a batch of the writer and not for who reads.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;

use super::connection::open_writer;
use super::standings::Standings;
use crate::StoreError;

/// A connection that may write, open until the last of its owners is gone.
pub(super) type SharedConnection = Arc<Mutex<Connection>>;

#[derive(Debug)]
pub struct SqliteSideTables {
    connection: SharedConnection,
    /// The writer's, too: whoever changes an agent says so.
    pub(super) standings: Arc<Standings>,
}

impl SqliteSideTables {
    pub(super) fn open(
        path: &Path,
        standings: Arc<Standings>,
    ) -> Result<SqliteSideTables, StoreError> {
        Ok(SqliteSideTables {
            connection: Arc::new(Mutex::new(open_writer(path)?)),
            standings,
        })
    }

    /// For whoever must not outlive it.
    pub(super) fn connection(&self) -> SharedConnection {
        self.connection.clone()
    }

    pub(super) fn writer(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
