//! `delta-ci help`: of everything, of one command, or the table of exit codes.

use clap::CommandFactory;

use crate::args::Cli;
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  delta-ci help run
  delta-ci help token create
  delta-ci help exit-codes";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A command, or `exit-codes`
    topic: Vec<String>,
}

pub fn run(args: Args, terminal: &Terminal) -> Done {
    if args.topic == ["exit-codes"] {
        terminal.data(&Exit::table());
        return Ok(Exit::Ok);
    }
    let mut command = Cli::command();
    // Completes the usage lines of commands inside commands.
    command.build();
    let mut found = &mut command;
    for word in &args.topic {
        found = found.find_subcommand_mut(word).ok_or_else(|| {
            Failure::new(Exit::Usage, format!("there is no command `{word}`"))
                .next("delta-ci --help lists the commands")
        })?;
    }
    terminal.data(found.render_long_help().to_string().trim_end());
    Ok(Exit::Ok)
}
