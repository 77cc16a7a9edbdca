//! The store's two sides that need no writer: what is read, and the tables beside those of the
//! core.

use std::sync::Arc;

use delta_store::read::Reader;
use delta_store::side_tables::SideTables;

/// Cheap to clone. Whoever only reads takes the reader alone.
#[derive(Clone)]
pub struct StoreSides {
    pub reader: Arc<dyn Reader>,
    pub tables: Arc<dyn SideTables>,
}

#[cfg(test)]
impl StoreSides {
    /// Of a store in memory that nobody else has.
    pub fn in_memory() -> StoreSides {
        let store = delta_store::memory::MemoryStore::new();
        StoreSides {
            reader: Arc::new(store.reader()),
            tables: Arc::new(store.side_tables()),
        }
    }
}
