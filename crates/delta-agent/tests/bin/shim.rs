//! The shim as a program of its own, for this crate's tests.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(word) if word == delta_shim::guard::SUBCOMMAND => delta_shim::guard::main(),
        Some(folder) => delta_shim::main(Path::new(&folder)),
        None => ExitCode::FAILURE,
    }
}
