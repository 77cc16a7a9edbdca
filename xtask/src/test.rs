//! `cargo xtask test`: everything that must pass before a change is good.
//!
//! Owns the full test run. One profile and one target folder for all of it: a second profile would
//! build the dependency tree twice. Refuses to start tests that are bound to fail because a part
//! is missing, and says what to install.

use anyhow::Result;

use crate::steps::{Steps, cargo, cargo_has, succeed};
use crate::{check, install};

/// What to do about a missing Debian package.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    Refuse,
    Install,
}

pub fn run(missing: Missing) -> Result<()> {
    match missing {
        Missing::Refuse => install::require()?,
        Missing::Install => install::install()?,
    }
    let mut steps = Steps::default();
    check::without_tests(&mut steps);
    if cargo_has("deny") {
        steps.step("licences, bans, advisories", || {
            succeed(cargo(&["deny", "check"]))
        });
    } else {
        println!("==> licences, bans, advisories: skipped, cargo-deny is not installed");
    }
    // End-to-end tests start the real binary; building all targets in one go lets cargo settle on
    // one set of features, so nothing is compiled a second time by the test run.
    steps.step("build", || {
        succeed(cargo(&[
            "build",
            "--workspace",
            "--bins",
            "--tests",
            "--quiet",
        ]))
    });
    if cargo_has("nextest") {
        steps.step("tests", || {
            succeed(cargo(&["nextest", "run", "--workspace"]))
        });
        // nextest does not run the examples in the documentation.
        steps.step("documentation tests", || {
            succeed(cargo(&["test", "--workspace", "--doc", "--quiet"]))
        });
    } else {
        steps.step("tests", || succeed(cargo(&["test", "--workspace"])));
    }
    steps.finish()
}
