//! Showing a run while it happens: what jobs print, how they stand, a summary at the end.

pub mod screen;
pub mod watch;
