//! The tables beside those of the core, in PostgreSQL, on the connections that pages are read on: a
//! statement may be sent again after a broken connection, and must then do no more.

use std::sync::Arc;

use super::pools::Pools;

/// See [`super::open`].
pub struct PgSideTables {
    pub(super) pools: Arc<Pools>,
}
