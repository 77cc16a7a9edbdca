//! Showing a run while it happens: what jobs print, how they stand, a summary at the end.

pub mod board;
pub mod screen;
mod short_names;
pub mod summary;
pub mod watch;
