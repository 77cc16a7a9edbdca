//! The core from outside: scenarios told as tables of time, and the promises that hold for all.

mod architecture;
mod commands;
mod scenario;
mod scenarios;
mod words;
