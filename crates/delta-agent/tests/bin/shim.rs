//! The shim as a program of its own, for this crate's tests.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(word) if word == delta_agent::functions::guard::SUBCOMMAND => {
            delta_agent::functions::guard::main()
        }
        Some(folder) => delta_agent::shim::main(Path::new(&folder)),
        None => ExitCode::FAILURE,
    }
}
