//! The planner from outside: what a file means, what is said about a wrong one, and that a hostile
//! one is refused quickly.

mod diagnostics;
mod discovered;
mod hostile;
mod meaning;
mod repositories;
mod trees;
