//! The real binary: arguments in, exit code, stdout and stderr out.

mod agents;
mod bench;
mod clients;
mod copies;
mod counted;
mod help;
mod history;
mod identity;
mod local;
mod logs;
mod names;
mod narrow;
mod plan;
mod plan_workers;
mod postgres;
mod run;
mod runner_py;
mod secrets;
mod server;
mod support;
mod tokens;
mod told;
mod twice;
mod up;
mod words;
mod workers;
