//! The planner from outside: what a file means, what is said about a wrong one, that a hostile one
//! is refused quickly, and what runs for which trigger.

mod conditions;
mod corpus;
mod diagnostics;
mod discovered;
mod fuzz;
mod hostile;
mod language;
mod meaning;
mod mutate;
mod plans;
mod repositories;
mod trees;
