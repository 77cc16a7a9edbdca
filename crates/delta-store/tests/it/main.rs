//! Tests of the stores: one suite that every store must pass, and what is particular to each.

mod codec;
mod conformance;
mod doctor;
mod memory;
mod postgres;
mod sqlite;
