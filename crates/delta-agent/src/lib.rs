//! The agent: holds leases over the Execution Protocol and executes steps as processes.
//!
//! It dials out and is never dialled. What it may do and when it must stop is decided by the
//! holder's machine of the core; this crate owns processes, files, the log and the link. It
//! refuses to execute anything before its lease is acknowledged, and to report anything after the
//! lease is lost.
//!
//! Reading order: [`agent`], `link` (the line to the server), `session` (one lease), `work` (what
//! is done under it), [`attempt`] (started, followed, found again), [`shim`] (the process that owns
//! the job's processes and its log), [`executor`] (the words they share), `log_ship`; beside it,
//! [`functions`] (calls of handlers in runner processes) and [`local`] (trees of persons).

#![cfg(unix)]
#![forbid(unsafe_code)]

pub mod agent;
mod around;
pub mod attempt;
mod backoff;
pub mod checkout;
mod clock;
pub mod container;
mod courier;
pub mod enrol;
pub mod executor;
mod flush;
pub mod functions;
mod link;
pub mod local;
mod log_ship;
mod mask;
mod note;
mod pending;
pub mod private;
pub mod progress;
mod report;
mod secret;
mod session;
pub mod shim;
mod spec;
pub mod surroundings;
mod tap;
pub mod tls;
mod traced;
mod unbegun;
mod work;
pub mod workspace;

pub use agent::{
    AgentError, AgentSettings, MAX_LOG_QUOTA, ServerSettings, Shutdown, keep_private, run,
};
pub use link::{Address, AddressError, Machine};
pub use secret::{Handed, Secret, TokenSource};
