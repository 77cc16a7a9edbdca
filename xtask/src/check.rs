//! `cargo xtask check`: the daily loop, a few minutes.
//!
//! Owns the order of the checks and the list of crates whose tests are fast. Needs no database and
//! no package beyond cargo itself.

use anyhow::Result;

use crate::steps::{Steps, cargo, cargo_has, succeed};
use crate::{coverage, deps, purity, third_party, tidy};

/// Crates whose tests need neither PostgreSQL nor another machine part.
const FAST: [&str; 7] = [
    "delta-core",
    "delta-wire",
    "delta-planner",
    "delta-shim",
    "delta-agent",
    "delta-sim",
    "xtask",
];

/// Tests that can be shorter without losing their point read this and take fewer seeds.
const QUICK: &str = "DELTA_QUICK";

pub fn run() -> Result<()> {
    let mut steps = Steps::default();
    without_tests(&mut steps);
    steps.step("fast tests", fast_tests);
    steps.finish()
}

/// Everything but the tests: `cargo xtask test` starts with this too.
pub fn without_tests(steps: &mut Steps) {
    steps.step("format", || succeed(cargo(&["fmt", "--all", "--check"])));
    steps.step("tidy", tidy::run);
    steps.step("dependency direction", deps::run);
    steps.step("purity of the core", purity::run);
    steps.step("licences, bans, sources", third_party::run);
    steps.step("spec coverage", || coverage::run(coverage::DEFAULT));
    steps.step("clippy", || {
        let args = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ];
        succeed(cargo(&args))
    });
}

fn fast_tests() -> Result<()> {
    let mut command = if cargo_has("nextest") {
        cargo(&["nextest", "run", "--no-tests=pass"])
    } else {
        cargo(&["test"])
    };
    for package in FAST {
        command.args(["--package", package]);
    }
    command.env(QUICK, "1");
    succeed(command)
}
