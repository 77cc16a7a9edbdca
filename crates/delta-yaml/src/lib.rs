//! Files that people write in YAML: read into a tree in which every value knows its place, and what
//! is wrong with them said with line, column, a mark under the fault, and what to write instead.
//!
//! What may stand in a file its reader knows: the planner for pipelines, the agent for pools.

pub mod diagnostic;
pub mod fields;
pub mod yaml;

pub use diagnostic::{Collector, Diagnostic, Diagnostics, Level, MAX_DIAGNOSTICS};
pub use yaml::{Node, Place, Value};
