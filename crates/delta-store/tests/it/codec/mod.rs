//! The encoding of events and rows.

mod golden;
mod round_trip;
