//! The log of an attempt on its way out of this machine, and what is said about the attempt to
//! whoever watches it here.
//!
//! The bytes themselves are written to the spool by the shim and, around the steps, by
//! [`agent_lines`]. [`ship`] sends them to the server by offset, no more at once than [`window`]
//! allows; [`drain`] waits for the last of them. [`progress`] tells observers on this machine.
//! Nothing here decides how an attempt ends.

pub(crate) mod agent_lines;
pub(crate) mod drain;
pub mod progress;
pub(crate) mod ship;
pub(crate) mod window;

use std::sync::Arc;

pub(crate) use agent_lines::Log;
use tokio::sync::watch;

/// The size of a log as it grows. The log has ended when nobody holds it any more.
pub type Sizes = Arc<watch::Sender<u64>>;
