//! The agent: holds leases over the Execution Protocol and executes steps as processes.
//!
//! It dials out and is never dialled. What it may do and when it must stop is decided by the
//! holder's machine of the core; this crate owns workspaces, files, the log and the connection. It
//! refuses to execute anything before its lease is acknowledged, and to report anything after the
//! lease is lost.
//!
//! Reading order: [`agent`] (settings and slots), `connection` (the gRPC sessions with the server),
//! `lease` (one lease, from its grant to its release), [`attempt`] (its work: run, followed, found
//! again), `job_io` (what is brought before the steps and kept after them), [`work`] (the words
//! they share), [`mod@log`] (the log on its way to the server); beside it, [`functions`] (calls of
//! handlers in runner processes) and [`local`] (trees of persons). The process that owns a job's
//! processes and its log is a crate of its own, `delta-shim`.

#![cfg(unix)]
#![forbid(unsafe_code)]

pub mod agent;
pub mod attempt;
mod backoff;
pub mod checkout;
mod connection;
pub mod container;
pub mod enrolment;
pub mod functions;
mod http;
mod job_io;
mod lease;
pub mod local;
pub mod log;
pub mod private_folder;
pub mod tls;
mod token_source;
pub mod work;
pub mod workspace;

pub use agent::{
    AgentError, AgentSettings, MAX_LOG_QUOTA, ServerSettings, Shutdown, keep_private, run,
};
pub use connection::{Address, AddressError, Machine, Sought};
pub use token_source::TokenSource;
