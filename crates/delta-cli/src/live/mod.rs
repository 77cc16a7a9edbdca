//! Showing a run while it happens: what jobs print, how they stand, a summary at the end.

pub mod board;
pub mod screen;
pub mod summary;
pub mod watch;
