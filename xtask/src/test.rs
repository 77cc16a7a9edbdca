//! `cargo xtask test`: everything that must pass before a change is good.
//!
//! Owns the full test run. One profile and one target folder for all of it: a second profile would
//! build the dependency tree twice. Refuses to start tests that are bound to fail because a part
//! is missing, and says what to install.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

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
        steps.step("advisories", || {
            succeed(cargo(&["deny", "check", "advisories"]))
        });
    } else {
        println!("==> advisories: skipped, cargo-deny is not installed");
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
            let cluster = SharedCluster::start()?;
            let mut tests = cargo(&["nextest", "run", "--workspace", "--no-fail-fast"]);
            tests.env("DELTA_TEST_POSTGRES_URL", &cluster.url);
            succeed(tests)
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

/// Connections for all tests at once: nextest runs a few processes, each with several stores.
const CLUSTER_CONNECTIONS: &str = "500";

/// One PostgreSQL for every test that only needs a database of its own: under nextest each test is
/// a process, and a cluster each would take longer than most of them. Ends with its process.
struct SharedCluster {
    process: Child,
    url: String,
}

impl SharedCluster {
    fn start() -> Result<SharedCluster> {
        let here = std::env::current_exe().context("find the target folder")?;
        let mut process = Command::new(here.with_file_name("delta-testkit"))
            .args(["postgres", CLUSTER_CONNECTIONS])
            .stdout(Stdio::piped())
            .spawn()
            .context("start the shared PostgreSQL of the tests")?;
        let mut url = String::new();
        let output = process.stdout.take().context("its output")?;
        BufReader::new(output).read_line(&mut url)?;
        let url = url.trim().to_string();
        ensure!(
            url.starts_with("postgres"),
            "the shared PostgreSQL did not start"
        );
        Ok(SharedCluster { process, url })
    }
}

impl Drop for SharedCluster {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
