//! The planner from outside: what a file means, what is said about a wrong one, and that a hostile
//! one is refused quickly.

mod diagnostics;
mod hostile;
mod meaning;
