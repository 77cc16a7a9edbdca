//! `cargo xtask fuzz`: mutated reports for every reader of test results, mutated pipeline files and
//! spoiled messages of runners, a minute each. The tests make a few hundred of the same.

use anyhow::Result;

use crate::steps::{cargo, succeed};

/// As the readers call their formats.
const FORMATS: [&str; 6] = ["junit", "trx", "jest", "playwright", "tap", "json"];

/// How long each reader is tried.
const SECONDS: &str = "60";

/// Messages of each kind of test, which have no clock: about a minute of them.
const MESSAGES: &str = "1000000";

pub fn run() -> Result<()> {
    for format in FORMATS {
        fuzz("delta-results", "fuzz", &["--seconds", SECONDS, format])?;
    }
    fuzz("delta-planner", "fuzz_pipeline", &["--seconds", SECONDS])?;
    let mut messages = cargo(&["test", "-q", "-p", "delta-runner-protocol", "--lib"]);
    messages.env("PROPTEST_CASES", MESSAGES);
    succeed(messages)
}

fn fuzz(package: &str, example: &str, arguments: &[&str]) -> Result<()> {
    let mut fuzz = cargo(&["run", "-q", "-p", package, "--example", example, "--"]);
    fuzz.args(arguments);
    succeed(fuzz)
}
