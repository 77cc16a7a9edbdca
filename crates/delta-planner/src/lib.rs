//! Reads the pipeline file and turns it into jobs, with diagnostics that point at the line.
//!
//! A pure function from bytes to a [`Pipeline`] or to every fault found. It reads no disk, starts
//! nothing and knows no server; `.delta-ci.yaml` comes from a stranger, so everything is bounded.

mod diagnostic;
pub mod duration;
mod fields;
mod graph;
mod pipeline;
mod read;
mod suggest;
mod yaml;

pub use diagnostic::{Diagnostic, Diagnostics, MAX_DIAGNOSTICS};
pub use pipeline::{Pipeline, PlannedJob, Retry};
pub use read::{MAX_FILE_BYTES, parse};
pub use suggest::nearest;

/// Where the pipeline file stands, relative to the root of a checkout.
pub const FILE_NAME: &str = ".delta-ci.yaml";

/// Causes that `retry.on` may name: two groups, then single causes.
pub const CAUSES: &[&str] = &[
    "infra",
    "flaky",
    "user_exit",
    "user_signal",
    "out_of_memory",
    "disk_full",
    "step_timeout",
    "job_timeout",
    "no_output",
    "lease_lost",
    "agent_shutdown",
    "clone",
    "image",
    "cache",
    "artifact",
];
