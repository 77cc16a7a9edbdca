//! The agent: holds leases over the Runner Protocol and executes steps as processes.
//!
//! It dials out and is never dialled. What it may do and when it must stop is decided by the
//! holder's machine of the core; this crate owns processes, files, the log and the client. It
//! refuses to execute anything before its lease is acknowledged, and to report anything after the
//! lease is lost.
//!
//! Reading order: [`agent`], `slot` (one lane), `session` (one lease), `work` (one attempt),
//! [`executor`] (its processes), `log_ship`, [`client`].

#![cfg(unix)]
#![forbid(unsafe_code)]

pub mod agent;
mod answer;
mod backoff;
pub mod client;
mod clock;
mod copy;
pub mod enrol;
pub mod executor;
mod log_ship;
mod pending;
pub mod progress;
mod report;
mod secret;
mod session;
mod slot;
mod spec;
pub mod tls;
mod work;
pub mod workspace;

pub use agent::{AgentError, AgentSettings, Shutdown, detected_capabilities, run};
pub use client::{Client, ClientError, ClientSettings};
pub use secret::{Secret, TokenSource};
