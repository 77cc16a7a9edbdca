//! The control groups of an attempt, where this machine has them: one that ends it in one stroke
//! ([`control_group`]), one that counts its memory ([`memory_count`]), and how a shim comes into
//! them ([`joining`]).

pub mod control_group;
pub(crate) mod joining;
pub(crate) mod memory_count;
