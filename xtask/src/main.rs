//! The chores of this workspace, in Rust so that they need nothing but cargo.
//!
//! Owns the command line of `cargo xtask`. Each chore is one file; this one only reads the
//! arguments, goes to the repository's root and calls it. It refuses words it does not know.

mod check;
mod cited_files;
mod comments;
mod coverage;
mod deps;
mod fuzz;
mod fuzz_api;
mod install;
mod purity;
mod reach;
mod relapse;
mod relapses;
mod rooms;
mod scan;
mod source;
mod steps;
mod storm;
mod test;
mod third_party;
mod tidy;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
Usage: cargo xtask <chore>

  check               format, clippy, tidy, direction, purity, licences, coverage, fast tests
  test [--install]    everything; --install adds missing Debian packages (root) without
                      starting their services
  install             only what `test --install` would install
  fuzz                mutated reports, pipeline files and messages of runners, a minute each
  fuzz-api [SECONDS]  a fuzzer of schemas against a live server as each role, 300 s when absent
  storm [--only NAME] the long versions; `storm --list` names them
  relapse [--only NAME]  puts mended faults back, one at a time: each time a test must fail;
                      `relapse --list` names them

One check alone:
  tidy | deps | purity | third-party | coverage [--strict]
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = source::root();
    std::env::set_current_dir(&root).with_context(|| format!("go to {}", root.display()))?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["check"] => check::run(),
        ["test"] => test::run(test::Missing::Refuse),
        ["test", "--install"] => test::run(test::Missing::Install),
        ["install"] => install::install(),
        ["storm"] => storm::run(None),
        ["storm", "--list"] => {
            storm::list();
            Ok(())
        }
        ["storm", "--only", name] => storm::run(Some(name)),
        ["relapse"] => relapse::run(None),
        ["relapse", "--list"] => {
            relapse::list();
            Ok(())
        }
        ["relapse", "--only", name] => relapse::run(Some(name)),
        ["fuzz"] => fuzz::run(),
        ["fuzz-api"] => fuzz_api::run("300"),
        ["fuzz-api", seconds] => fuzz_api::run(seconds),
        ["tidy"] => tidy::run(),
        ["deps"] => deps::run(),
        ["purity"] => purity::run(),
        ["third-party"] => third_party::run(),
        ["coverage"] => coverage::run(coverage::DEFAULT),
        ["coverage", "--strict"] => coverage::run(coverage::Unassigned::Fails),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        [] => bail!("name a chore\n\n{USAGE}"),
        other => bail!("no such chore: {}\n\n{USAGE}", other.join(" ")),
    }
}
