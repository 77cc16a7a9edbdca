//! A deterministic world of seeded faults, and the checkers of its history.

pub mod check;
pub mod model;
