//! `cargo xtask fuzz`: mutated reports for every reader of test results, a minute each. The tests
//! make a few hundred of the same.

use anyhow::Result;

use crate::steps::{cargo, succeed};

/// As the readers call their formats.
const FORMATS: [&str; 6] = ["junit", "trx", "jest", "playwright", "tap", "json"];

/// How long each reader is tried.
const SECONDS: &str = "60";

pub fn run() -> Result<()> {
    for format in FORMATS {
        let mut fuzz = cargo(&[
            "run",
            "-q",
            "-p",
            "delta-results",
            "--example",
            "fuzz",
            "--",
        ]);
        fuzz.args(["--seconds", SECONDS, format]);
        succeed(fuzz)?;
    }
    Ok(())
}
