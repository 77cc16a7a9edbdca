//! `cargo xtask storm`: the long versions of what the tests do in seconds.
//!
//! Owns one table. To add a storm, add a row to `STORMS`: a name, a sentence, the tests it runs and
//! the environment. A test that has a long version reads `DELTA_STORM` and the numbers
//! beside it; its short version runs in `cargo xtask test`. A row whose test filter matches
//! nothing fails, so that a renamed test cannot turn a storm into a silent success.

use std::process::Command;

use anyhow::{Result, bail};

use crate::steps::{Steps, cargo, lists_a_test, succeed};

struct Storm {
    name: &'static str,
    what: &'static str,
    work: Work,
    env: &'static [(&'static str, &'static str)],
}

enum Work {
    /// Seeds of the simulated world, with the release build: it is the processor's work alone.
    Seeds(&'static str),
    /// Tests of one package whose name contains the filter.
    Tests {
        package: &'static str,
        filter: &'static str,
    },
}

const LONG: (&str, &str) = ("DELTA_STORM", "1");

const STORMS: [Storm; 16] = [
    Storm {
        name: "sim",
        what: "a million seeds of the simulated world",
        work: Work::Seeds("1000000"),
        env: &[],
    },
    Storm {
        name: "model",
        what: "the model checker on larger bounds",
        work: Work::Tests {
            package: "delta-sim",
            filter: "model",
        },
        env: &[LONG],
    },
    Storm {
        name: "store-random",
        what: "random commands on every store against the plain model, many new seeds",
        work: Work::Tests {
            package: "delta-store",
            filter: "random_commands_match_the_model",
        },
        env: &[LONG],
    },
    Storm {
        name: "store-faults",
        what: "a bad network before PostgreSQL, many new seeds",
        work: Work::Tests {
            package: "delta-store",
            filter: "postgres::faults",
        },
        env: &[LONG],
    },
    Storm {
        name: "kill-sqlite",
        what: "kill -9 of the server a hundred times under load, SQLite",
        work: Work::Tests {
            package: "delta-e2e",
            filter: "storm_kill_sqlite",
        },
        env: &[LONG, ("DELTA_STORM_KILLS", "100")],
    },
    Storm {
        name: "kill-postgres",
        what: "kill -9 of the server twenty times under load, PostgreSQL",
        work: Work::Tests {
            package: "delta-e2e",
            filter: "storm_kill_postgres",
        },
        env: &[LONG, ("DELTA_STORM_KILLS", "20")],
    },
    Storm {
        name: "artifacts",
        what: "an artifact of 5 GB and a cache of 1 GB, in flat memory, the agent killed between",
        work: Work::Tests {
            package: "delta-e2e",
            filter: "kept::",
        },
        env: &[
            LONG,
            ("DELTA_STORM_ARTIFACT_MB", "5120"),
            ("DELTA_STORM_CACHE_MB", "1024"),
        ],
    },
    Storm {
        name: "kill-agent",
        what: "kill -9 of the agent fifty times while its job prints",
        work: Work::Tests {
            package: "delta-e2e",
            filter: "an_agent_killed_again_and_again",
        },
        env: &[LONG, ("DELTA_STORM_KILLS", "50")],
    },
    Storm {
        name: "kill-server",
        what: "kill -9 of the server fifty times while a job prints",
        work: Work::Tests {
            package: "delta-e2e",
            filter: "a_server_killed_again_and_again",
        },
        env: &[LONG, ("DELTA_STORM_KILLS", "50")],
    },
    Storm {
        name: "outage",
        what: "a network that is gone for a minute, twice, while a job prints",
        work: Work::Tests {
            package: "delta-e2e",
            filter: "a_network_that_is_gone_for_less_than_a_lease",
        },
        env: &[LONG, ("DELTA_STORM_OUTAGE_SECONDS", "60")],
    },
    Storm {
        name: "traffic",
        what: "two hundred jobs on agents behind networks that break all the time",
        work: Work::Tests {
            package: "delta-e2e",
            filter: "agents_behind_a_bad_network",
        },
        env: &[LONG, ("DELTA_STORM_JOBS", "200")],
    },
    Storm {
        name: "frames",
        what: "two hundred jobs for each of five seeds, with whole frames lost, doubled, overtaken",
        work: Work::Tests {
            package: "delta-e2e",
            filter: "agents_behind_a_shuffled_stream",
        },
        env: &[LONG, ("DELTA_STORM_JOBS", "200")],
    },
    Storm {
        name: "masks",
        what: "ten thousand random secrets in every form and in random pieces: none is seen",
        work: Work::Tests {
            package: "delta-shim",
            filter: "no_secret_leaks_in_any_form",
        },
        env: &[LONG, ("DELTA_STORM_MASKS", "10000")],
    },
    Storm {
        name: "floods",
        what: "two hundred honest agents beside peers that mean harm",
        work: Work::Tests {
            package: "delta-server",
            filter: "honest_agents_lose_nothing",
        },
        env: &[LONG, ("DELTA_STORM_AGENTS", "200")],
    },
    Storm {
        name: "functions",
        what: "ten thousand calls, server and agent killed between; the store away for 30 s",
        work: Work::Tests {
            package: "delta-e2e",
            filter: "functions::faults",
        },
        env: &[
            LONG,
            ("DELTA_STORM_CALLS", "10000"),
            ("DELTA_STORM_AWAY_SECONDS", "30"),
        ],
    },
    Storm {
        name: "cancel",
        what: "cancel a hundred times against jobs that do not want to end",
        work: Work::Tests {
            package: "delta-agent",
            filter: "nothing_escapes_a_cancel",
        },
        env: &[LONG],
    },
];

impl Storm {
    fn command(&self) -> Command {
        match self.work {
            Work::Seeds(seeds) => cargo(&[
                "run",
                "--release",
                "--package",
                "delta-cli",
                "--",
                "sim",
                "--seeds",
                seeds,
            ]),
            Work::Tests { package, filter } => {
                cargo(&["test", "--package", package, "--tests", "--", filter])
            }
        }
    }
}

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
            let mut command = storm.command();
            if let Work::Tests { .. } = storm.work {
                command.arg("--nocapture");
            }
            command.envs(storm.env.iter().copied());
            succeed(command)
        });
    }
    steps.finish()
}

fn matches_a_test(storm: &Storm) -> Result<()> {
    match storm.work {
        Work::Seeds(_) => Ok(()),
        Work::Tests { .. } => lists_a_test(storm.command()),
    }
}
