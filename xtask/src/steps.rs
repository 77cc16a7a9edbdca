//! Runs named steps one after the other, times each, and remembers which failed.
//!
//! Owns the printing of steps. A failing step does not stop the next one: a person wants the whole
//! list once, not one item per try.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

/// The steps taken so far.
#[derive(Default)]
pub struct Steps {
    failed: Vec<String>,
}

impl Steps {
    /// Runs one step and prints how it went and how long it took.
    pub fn step(&mut self, name: &str, body: impl FnOnce() -> Result<()>) {
        println!("==> {name}");
        let start = Instant::now();
        let result = body();
        let seconds = start.elapsed().as_secs_f32();
        match result {
            Ok(()) => println!("    ok: {name} ({seconds:.1} s)"),
            Err(error) => {
                println!("    FAILED: {name} ({seconds:.1} s): {error:#}");
                self.failed.push(name.to_owned());
            }
        }
    }

    /// The verdict over all steps.
    pub fn finish(self) -> Result<()> {
        if self.failed.is_empty() {
            println!("all steps passed");
            return Ok(());
        }
        bail!("failed: {}", self.failed.join(", "))
    }
}

/// The cargo that runs us, so that a pinned toolchain stays pinned.
pub fn cargo(args: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args);
    // Notes for the next build cost a fifth of this one, and a build service has no next one.
    if std::env::var_os("CI").is_some() {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// Runs a command with our own output streams.
pub fn succeed(mut command: Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("start {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// Fails where a run of tests would run none: a filter whose test has another name by now is no
/// success.
pub fn lists_a_test(mut tests: Command) -> Result<()> {
    let output = tests.arg("--list").output().context("list the tests")?;
    ensure!(
        output.status.success(),
        "the tests do not build:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let listed = String::from_utf8_lossy(&output.stdout);
    ensure!(
        listed.lines().any(|line| line.ends_with(": test")),
        "its filter matches no test"
    );
    Ok(())
}

/// Whether cargo knows this subcommand (`nextest`, `deny`).
pub fn cargo_has(subcommand: &str) -> bool {
    cargo(&[subcommand, "--version"])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Turns a list of findings into a result: each on its own line, then a count.
pub fn no_findings(findings: &[String]) -> Result<()> {
    for finding in findings {
        println!("    {finding}");
    }
    ensure!(findings.is_empty(), "{} finding(s)", findings.len());
    Ok(())
}
