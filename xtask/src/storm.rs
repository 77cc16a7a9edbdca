//! `cargo xtask storm`: the long versions of what the tests do in seconds.
//!
//! Owns one table. To add a storm, add a row to `STORMS`: a name, a sentence, the arguments for
//! cargo and the environment. A test that has a long version reads `DELTA_STORM` and the numbers
//! beside it; its short version runs in `cargo xtask test`. A row whose test filter matches
//! nothing fails, so that a renamed test cannot turn a storm into a silent success.

use anyhow::{Context, Result, bail, ensure};

use crate::steps::{Steps, cargo, succeed};

struct Storm {
    name: &'static str,
    what: &'static str,
    /// Arguments for cargo. For `cargo test`, what follows `--` is the filter of the tests.
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
}

const STORMS: [Storm; 4] = [
    Storm {
        name: "sim",
        what: "a million seeds of the simulated world",
        args: &[
            "run",
            "--package",
            "delta-cli",
            "--",
            "sim",
            "--seeds",
            "1000000",
        ],
        env: &[],
    },
    Storm {
        name: "model",
        what: "the model checker on larger bounds",
        args: &[
            "test",
            "--package",
            "delta-sim",
            "--test",
            "it",
            "--",
            "model",
        ],
        env: &[("DELTA_STORM", "1")],
    },
    Storm {
        name: "kill-sqlite",
        what: "kill -9 of the server a hundred times under load, SQLite",
        args: &[
            "test",
            "--package",
            "delta-e2e",
            "--test",
            "it",
            "--",
            "storm_kill_sqlite",
        ],
        env: &[("DELTA_STORM", "1"), ("DELTA_STORM_KILLS", "100")],
    },
    Storm {
        name: "kill-postgres",
        what: "kill -9 of the server twenty times under load, PostgreSQL",
        args: &[
            "test",
            "--package",
            "delta-e2e",
            "--test",
            "it",
            "--",
            "storm_kill_postgres",
        ],
        env: &[("DELTA_STORM", "1"), ("DELTA_STORM_KILLS", "20")],
    },
];

pub fn list() {
    for storm in &STORMS {
        println!("{:<16} {}", storm.name, storm.what);
    }
}

/// Runs every storm, or the one named.
pub fn run(only: Option<&str>) -> Result<()> {
    let chosen: Vec<&Storm> = STORMS
        .iter()
        .filter(|storm| only.is_none_or(|name| name == storm.name))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = STORMS.iter().map(|storm| storm.name).collect();
        bail!("no storm of that name; there are: {}", names.join(", "));
    }
    // The end-to-end storms start the real binary.
    succeed(cargo(&["build", "--package", "delta-cli", "--quiet"]))?;
    let mut steps = Steps::default();
    for storm in chosen {
        steps.step(storm.name, || {
            println!("    {}", storm.what);
            matches_a_test(storm)?;
            let mut command = cargo(storm.args);
            if storm.args[0] == "test" {
                command.arg("--nocapture");
            }
            command.envs(storm.env.iter().copied());
            succeed(command)
        });
    }
    steps.finish()
}

fn matches_a_test(storm: &Storm) -> Result<()> {
    if storm.args[0] != "test" {
        return Ok(());
    }
    let output = cargo(storm.args)
        .arg("--list")
        .output()
        .context("list the storm's tests")?;
    ensure!(
        output.status.success(),
        "the storm's tests do not build:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let listed = String::from_utf8_lossy(&output.stdout);
    ensure!(
        listed.lines().any(|line| line.ends_with(": test")),
        "its filter matches no test"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_each_row_is_a_cargo_command() {
        for (index, storm) in STORMS.iter().enumerate() {
            assert!(["run", "test"].contains(&storm.args[0]), "{}", storm.name);
            assert!(STORMS[..index].iter().all(|other| other.name != storm.name));
        }
    }

    #[test]
    fn an_unknown_storm_is_refused() {
        assert!(run(Some("drizzle")).is_err());
    }
}
