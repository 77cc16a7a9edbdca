//! Reads the pipeline file and turns it into jobs, with diagnostics that point at the line; and
//! plans a run of them, with a reason for each job.
//!
//! Pure functions: from bytes to a [`Pipeline`] or to every fault found, and from a pipeline and
//! the facts of a trigger to a [`Plan`]. Without a pipeline file, discovery finds what a maintainer
//! would have written in a [`Tree`]. Only the trees' own modules read a disk or ask git; nothing of
//! a repository is ever started, and as it comes from a stranger, everything is bounded.

mod around;
mod concurrency;
mod condition;
mod discovery;
mod env;
mod expression;
mod facts;
mod fields;
mod foreign;
mod form;
mod glob;
mod graph;
mod interpreter;
mod job;
mod matrix;
mod merge;
mod on;
mod pipeline;
mod plan;
mod read;
mod schema;
mod shape;
mod steps;
mod substitute;
mod tree;
mod trigger;
mod unreadable;

use delta_yaml::{diagnostic, yaml};

pub use concurrency::Concurrency;
pub use condition::{Condition, Fact, Term};
pub use delta_yaml::{Diagnostic, Diagnostics, Level, MAX_DIAGNOSTICS};
pub use discovery::{Discovery, EmptyPlan, Extent, Remark, TooLong, discover, skeleton, written};
pub use facts::{Changed, ChangedFiles, Event, Facts};
pub use glob::{Glob, MAX_PATTERN};
pub use matrix::MAX_CELLS;
pub use pipeline::{Cell, Pipeline, PlannedJob, PlannedStep, Retry};
pub use plan::{Included, Omitted, Plan, plan};
pub use read::{MAX_FILE_BYTES, parse};
pub use schema::{SCHEMA_PATH, schema};
pub use tree::{Commit, Files, Folder, Tree, TreeError, Unread};
pub use tree::{branch_of, changed_since, default_base, is_commit};
pub use trigger::{Input, InputFault, InputKind, MAX_INPUT_BYTES, On, Triggers};

/// Where the pipeline file stands, relative to the root of a checkout.
pub const FILE_NAME: &str = ".delta-ci.yaml";
/// What people call it by mistake.
pub const OTHER_NAME: &str = ".delta-ci.yml";

/// What is said of something of the file's name that is no plain file, be it a link or a folder: on
/// a server nothing is behind a link, and nowhere is it taken for missing.
pub fn no_plain_file(file: &str, what: &str) -> String {
    format!("{file} is {what}; it must be a plain file")
}
