//! Packages of npm as their authors publish them, for tests that need the real thing: installed
//! once, below the target folder, as [`python`](crate::python) does it. No script of theirs is run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::python;

/// A validator of OpenAPI's documents, and what makes a typed client of one.
pub const OPENAPI: (&str, &[&str]) = (
    "openapi-typescript-7.13.0",
    &[
        "@seriousme/openapi-schema-validator@2.11.0",
        "openapi-typescript@7.13.0",
        "openapi-fetch@0.17.0",
        "typescript@5.9.3",
    ],
);

/// The folder whose `node_modules` holds these packages; installed if they are not there yet. The
/// name must change with them.
pub fn packages((name, wanted): (&str, &[&str])) -> Result<PathBuf> {
    python::installed(name, |folder| install(wanted, folder))
}

fn install(wanted: &[&str], to: &Path) -> Result<()> {
    let output = Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
        .args(["--loglevel", "error", "--prefix"])
        .arg(to)
        .args(wanted)
        .stdin(Stdio::null())
        .output()
        .context("npm is missing; install the package npm")?;
    ensure!(
        output.status.success(),
        "{wanted:?} cannot be installed; they come from the package registry that npm is set up \
         with, once:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
