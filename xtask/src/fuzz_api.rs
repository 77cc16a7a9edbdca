//! `cargo xtask fuzz-api`: schemathesis against a live server on loopback, as user, runner and
//! admin. The test of the same name does it for some seconds; here it has minutes.

use anyhow::{Context, Result};

use crate::steps::{cargo, succeed};

/// The test that fuzzes, by the end of its name.
const TEST: &str = "a_fuzzer_finds_nothing_that_the_document_does_not_say";

pub fn run(seconds: &str) -> Result<()> {
    let checked: Result<u64, _> = seconds.parse();
    checked.with_context(|| format!("`{seconds}` is no number of seconds"))?;
    succeed(cargo(&["build", "--package", "delta-cli", "--quiet"]))?;
    let mut test = cargo(&["test", "--package", "delta-e2e", "--test", "it", "--"]);
    test.args([TEST, "--nocapture"])
        .env("DELTA_FUZZ_SECONDS", seconds);
    succeed(test)
}
