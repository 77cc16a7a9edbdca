//! The command line as a whole: which commands there are, what they share, how help is shown.

use std::any::TypeId;
use std::path::PathBuf;

use clap::builder::{PathBufValueParser, TypedValueParser as _};
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cmd;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::secret_input;
use crate::terminal::When;

const EXAMPLES: &str = "\
Examples:
  delta-ci run                         run the jobs of this checkout here, shown live
  delta-ci plan                        which they are, and why
  delta-ci up                          a server and an agent on this machine
  delta-ci runs                        what ran lately
  delta-ci why JOB                     why is it waiting, why did it run again
  delta-ci logs -f JOB                 what it prints, as it prints it

Each command has --help with examples of its own, and --json for programs.
Data goes to stdout, talk to stderr. Colour follows --color and NO_COLOR.";

/// Runs jobs on machines that cannot be trusted to stay alive, and never loses track of one.
#[derive(Debug, Parser)]
#[command(name = "delta-ci", version, after_help = after_help(), disable_help_subcommand = true)]
pub struct Cli {
    /// Print data as JSON, and errors too
    #[arg(long, global = true)]
    pub json: bool,
    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: When,
    /// Say more about what goes on inside (-vv for everything); RUST_LOG does the same in detail
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{}", Exit::table())
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the jobs of a pipeline file, or those that are found, here, shown live
    Run(Box<cmd::run::Args>),
    /// Show what would run here, and why
    Plan(cmd::plan::Args),
    /// Write down what is found here as a pipeline file
    Init(cmd::init::Args),
    /// Start a server and an agent on this machine
    Up(Box<cmd::up::Args>),
    /// Start a server
    Server(Box<cmd::server::Args>),
    /// Start an agent: it asks a server for jobs and executes them
    Agent(cmd::agent::Args),
    /// List, show, drain and revoke agents
    Agents(cmd::agents::Args),
    /// Give an agent no more work
    Drain(cmd::agents::Drain),
    /// Give an agent work again
    Undrain(cmd::agents::Undrain),
    /// List runs, newest first
    Runs(cmd::runs::Args),
    /// Show a run with its jobs, or a job with its attempts
    Show(cmd::show::Args),
    /// Show results of tests, or one test over time
    Tests(cmd::test_results::Args),
    /// Print what a job printed
    Logs(cmd::logs::Args),
    /// Cancel a run or a job
    Cancel(cmd::cancel::Args),
    /// Let a pull request from another repository run
    Approve(cmd::approve::Args),
    /// List and fetch the files that jobs left
    Artifacts(cmd::artifacts::Args),
    /// List and remove the caches of jobs
    Caches(cmd::caches::Args),
    /// Call a function in the background
    Enqueue(Box<cmd::enqueue::Args>),
    /// List queues: what waits in each, and how fast it goes
    Queues(cmd::queues::Args),
    /// Give nothing of a queue out
    Pause(cmd::queues::Pause),
    /// Give a queue out again
    Resume(cmd::queues::Resume),
    /// List functions that failed for good, or show one
    DeadLetters(cmd::dead_letters::Args),
    /// Call dead letters again, or put them aside
    Requeue(Box<cmd::dead_letters::Requeue>),
    /// Run a finished run again
    Rerun(cmd::rerun::Args),
    /// Say why a job is waiting, why it ran again, when it must end
    Why(cmd::why::Args),
    /// Print the history of a run
    Events(cmd::events::Args),
    /// Fold the history and compare it with the tables
    Doctor(cmd::doctor::Args),
    /// Make, list and revoke tokens
    Token(Box<cmd::token::Args>),
    /// Set, list and remove secrets, and change the key they are kept with
    Secret(Box<cmd::secret::Args>),
    /// Register, list and remove repositories at forges
    Repo(cmd::repo::Args),
    /// Plan and run a branch of a registered repository, by hand
    Trigger(cmd::trigger::Args),
    /// Make a private certificate authority, and certificates for servers and agents
    Ca(cmd::ca::Args),
    /// Measure this machine
    Bench(cmd::bench::Args),
    /// Try the core against seeded faults
    Sim(cmd::sim::Args),
    /// Show help: for a command, or `exit-codes`
    Help(cmd::help::Args),
}

impl Cli {
    /// Reads this process's command line, with every path in it made absolute: what is handed on
    /// to a child that works in another folder then means the same there.
    pub fn read() -> Result<Cli, clap::Error> {
        Cli::of(std::env::args_os())
    }

    fn of<W: Into<std::ffi::OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Cli, clap::Error> {
        let mut command = with_whole_paths(Cli::command());
        let mut matches = command.try_get_matches_from_mut(words)?;
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    }
}

/// Whatever is declared as a path, in whichever command: typed, from a variable or by default.
fn with_whole_paths(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| {
            if arg.get_value_parser().type_id() == TypeId::of::<PathBuf>() {
                arg.value_parser(PathBufValueParser::new().map(secret_input::whole_path))
            } else {
                arg
            }
        })
        .mut_subcommands(with_whole_paths)
}

impl Command {
    /// What is logged without `-v`: warnings, and of a server also who did what.
    pub fn unasked_log(&self) -> &'static str {
        match self {
            Command::Server(_) => "warn,audit=info",
            _ => "warn",
        }
    }
}

/// Shows help, the version, or what is wrong with the command line.
pub fn show(error: &clap::Error) -> Exit {
    if !error.use_stderr() {
        // Nothing to be done when even this cannot be printed.
        let _ = error.print();
        return Exit::Ok;
    }
    // The command line could not be read, so this is looked for by hand.
    let words = std::env::args_os().skip(1).take_while(|word| word != "--");
    if words.into_iter().any(|word| word == "--json") {
        eprintln!("{}", failure(error).json());
    } else {
        let _ = error.print();
    }
    Exit::Usage
}

/// What clap says, cut into what is wrong, its hints, and what to type.
fn failure(error: &clap::Error) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::new(Exit::Usage, "a command is missing").next("delta-ci --help");
    }
    let text = error.render().to_string();
    let mut parts = text.split("\n\n").map(str::trim);
    let what = parts.next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(what);
    let last = "For more information";
    let hints: Vec<&str> = parts.filter(|part| !part.starts_with(last)).collect();
    let failure = Failure::new(Exit::Usage, what).next("add --help to see what is known");
    if hints.is_empty() {
        failure
    } else {
        failure.because(hints.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_path_of_the_command_line_is_whole() {
        let here = std::env::current_dir().unwrap();
        let mut seen = 0;
        let mut commands = vec![with_whole_paths(Cli::command())];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            for arg in command.get_arguments() {
                let parser = arg.get_value_parser();
                if parser.type_id() != TypeId::of::<PathBuf>() {
                    continue;
                }
                // Alone, so that nothing else need be given.
                let alone = clap::Arg::new("it").value_parser(parser.clone());
                let words = clap::Command::new("alone").arg(alone);
                let matches = words.try_get_matches_from(["alone", "x/y"]).unwrap();
                let path = matches.get_one::<PathBuf>("it").unwrap();
                let name = format!("{} of {}", arg.get_id(), command.get_name());
                assert_eq!(*path, here.join("x/y"), "{name}");
                seen += 1;
            }
        }
        assert!(seen > 20, "only {seen} paths were looked at");
    }

    #[test]
    fn every_command_teaches_by_example() {
        for command in Cli::command().get_subcommands() {
            let nested: Vec<_> = command.get_subcommands().collect();
            let commands = if nested.is_empty() {
                vec![command]
            } else {
                nested
            };
            for command in commands {
                let help = command.clone().render_long_help().to_string();
                assert!(
                    help.contains("Examples:"),
                    "{} has none",
                    command.get_name()
                );
            }
        }
    }
}
