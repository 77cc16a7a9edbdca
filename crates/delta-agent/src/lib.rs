//! The agent: holds leases over the Runner Protocol and executes steps as processes.

#![cfg(unix)]

mod copy;
pub mod executor;
pub mod progress;
pub mod workspace;
