//! Reads the pipeline file and turns it into jobs, with diagnostics that point at the line.
//!
//! A pure function from bytes to a [`Pipeline`] or to every fault found. It reads no disk, starts
//! nothing and knows no server; `.delta-ci.yaml` comes from a stranger, so everything is bounded.

mod around;
mod diagnostic;
mod fields;
mod graph;
mod job;
mod pipeline;
mod read;
mod steps;
mod yaml;

pub use diagnostic::{Diagnostic, Diagnostics, MAX_DIAGNOSTICS};
pub use pipeline::{Pipeline, PlannedJob, Retry};
pub use read::{MAX_FILE_BYTES, parse};

/// Where the pipeline file stands, relative to the root of a checkout.
pub const FILE_NAME: &str = ".delta-ci.yaml";
