//! The `delta-ci` binary: reads the command line, hands over, prints the one error, and ends with a
//! code from the table in [`exit`].

#![cfg(unix)]

mod args;
mod bench;
mod client;
mod cmd;
mod columns;
mod embedded_server;
mod enrolment;
mod exit;
mod failed_job;
mod failure;
mod gitignored_folders;
mod human_time;
mod live;
mod planning;
mod sanitize;
mod secret_input;
mod signals;
mod sizes;
mod state_words;
mod table;
mod terminal;
mod timings;
mod traces;
mod worker;
mod wrap;

use std::path::Path;
use std::process::ExitCode;

use crate::args::Cli;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::terminal::Terminal;

/// Messages are many small pieces that one thread makes and another frees. Measured against the
/// system's allocator: a sixth less of the server's CPU time per job, and no more memory. Without
/// huge pages: those kept ten megabytes that nothing used.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything is started, in whichever role: all our children come from here.
    delta_shim::inherited_files::keep_from_children();
    // Started by an agent and never typed: they need none of what follows.
    let mut words = std::env::args_os().skip(1).peekable();
    if words
        .peek()
        .is_some_and(|word| word == delta_shim::guard::SUBCOMMAND)
    {
        return delta_shim::guard::main();
    }
    if let Some(done) = words
        .peek()
        .and_then(|word| delta_server::plan_worker::main(word.to_str()?))
    {
        return done;
    }
    if let (Some(word), Some(folder)) = (words.next(), words.next())
        && word == delta_shim::program::SUBCOMMAND
    {
        return delta_shim::main(Path::new(&folder));
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(error) => return args::show(&error).into(),
    };
    let terminal = Terminal::new(cli.json, cli.color);
    match start(cli, &terminal) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            let text = if terminal.json {
                failure.json()
            } else {
                failure.text()
            };
            terminal.tell(&text);
            failure.exit.into()
        }
    }
}

fn start(cli: Cli, terminal: &Terminal) -> failure::Done {
    // The only provider we build in; a second install would mean that somebody else chose one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    signals::log_to_stderr(terminal, cli.verbose, cli.command.unasked_log());
    // The load of a bench shares the processors with the server it measures: one thread of it wakes
    // for many sockets at once.
    let mut builder = match cli.command {
        args::Command::Bench { .. } => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.enable_all().build().map_err(|error| {
        Failure::new(Exit::Internal, "no threads could be started").caused_by(&error)
    })?;
    let done = runtime.block_on(cmd::run(cli.command, terminal));
    // Whatever still runs in the background must not hold up the exit code.
    runtime.shutdown_background();
    done
}
