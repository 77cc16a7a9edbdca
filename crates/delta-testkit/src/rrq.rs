//! RRQ as its authors publish it: the Python package with its runner, its producer and the worker
//! that is in it; and the crate, with a program around it.
//!
//! The package is installed as [`python`](crate::python) does it. The crate is built below the
//! target folder, too, in a workspace of its own: cargo finds what it has built before.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::python;

/// What the package asks for, below a version that may break it.
const NEEDS: &str = "pydantic>=2.11.4,<3";

/// The version whose dialect the specification was written for.
pub const OLD: &str = "0.9.14";
/// The newest.
pub const NEW: &str = "0.11.1";

/// One installed version.
#[derive(Debug, Clone)]
pub struct Rrq {
    folder: PathBuf,
}

impl Rrq {
    /// This version, installed if it is not there yet.
    pub fn version(version: &str) -> Result<Rrq> {
        let (name, wanted) = (format!("rrq-{version}"), format!("rrq=={version}"));
        let folder = python::packages((name.as_str(), &[wanted.as_str(), NEEDS]))?;
        Ok(Rrq { folder })
    }

    /// What `PYTHONPATH` must name for `import rrq`.
    pub fn python_path(&self) -> &Path {
        &self.folder
    }

    /// `rrq-runner`, a script of Python.
    pub fn runner(&self) -> PathBuf {
        self.folder.join("bin/rrq-runner")
    }

    /// `rrq`: the worker, and the tools around it.
    pub fn program(&self) -> PathBuf {
        self.folder.join("rrq/bin/rrq")
    }
}

/// The runner of the crate `rrq-runner` with the functions of the table, built from the package in
/// this folder in the profile of whoever asks.
pub fn rust_runner(package: &Path) -> Result<PathBuf> {
    let target = python::parts_folder()?.join("rrq-runner");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    command
        .args(["build", "--quiet", "--locked", "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target);
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    if profile == "release" {
        command.arg("--release");
    }
    let output = command.stdin(Stdio::null()).output().context("cargo")?;
    ensure!(
        output.status.success(),
        "the crate rrq-runner cannot be built; it comes from the package registry that cargo is \
         set up with, once:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(target.join(profile).join("rrq-peer"))
}
