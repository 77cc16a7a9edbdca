//! Tables beside those of the core, and the one trait that writes them without the writer.
//!
//! The writer exists so that what a rule of the core decides is decided and stored in one
//! transaction, with an event that says so. No rule of the core decides these rows, none of them is
//! in a run's history, and none is copied into one: they are what people set, what an agent says of
//! itself, and how far something outside has come. So each is written by a statement of its own,
//! and on disk when the call returns. Why each may be is said at its trait; a table for which that
//! cannot be said belongs to a command.
//!
//! | table | trait |
//! |---|---|
//! | credentials | [`CredentialTable`] |
//! | agents | [`AgentTable`] |
//! | repositories, reports, approvals, plans | [`ForgeTables`] |
//! | what is set about queues | [`QueueTable`] |
//! | results of tests | [`ResultTable`] |
//! | secrets | [`SecretTable`] |
//!
//! [`Reader`](crate::read::Reader) reads all of them and writes none:
//!
//! ```compile_fail
//! fn forget(reader: &dyn delta_store::read::Reader) {
//!     let _ = reader.forget_agents(delta_core::Millis(0));
//! }
//! ```

pub use crate::agents::AgentTable;
pub use crate::credential::CredentialTable;
pub use crate::forges::ForgeTables;
pub use crate::queues::QueueTable;
pub use crate::results::ResultTable;
pub use crate::secrets::SecretTable;

/// Every table that is written beside the writer. Shared by all who write; each call is short and
/// synchronous, and on disk when it returns.
pub trait SideTables: Send + Sync
where
    Self: AgentTable + CredentialTable + ForgeTables + QueueTable + ResultTable + SecretTable,
{
}

impl<T> SideTables for T
where
    T: AgentTable + CredentialTable + ForgeTables + QueueTable + ResultTable + SecretTable,
    T: Send + Sync,
{
}
