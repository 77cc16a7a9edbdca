//! The tables beside those of the core, of the store in memory.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::tables::Tables;

/// Shares the tables with its [`MemoryStore`](super::MemoryStore).
#[derive(Clone, Debug)]
pub struct MemorySideTables {
    shared: Arc<Mutex<Tables>>,
}

impl MemorySideTables {
    pub(super) fn new(shared: Arc<Mutex<Tables>>) -> MemorySideTables {
        MemorySideTables { shared }
    }

    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
