//! Packages of Python as their authors publish them, for tests that need the real thing.
//!
//! Each set is installed once, with Debian's Python, into a folder of its own below the target
//! folder; whoever comes second waits for the first and finds it there. Nothing outside of that
//! folder is changed, and nothing is compiled.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Debian's own, whatever else is first on the PATH.
pub const PYTHON: &str = "/usr/bin/python3";

/// The releases of what these packages need themselves.
const CONSTRAINTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/constraints.txt");

/// OpenTelemetry with its exporter, of one release.
pub const OPENTELEMETRY: (&str, &[&str]) = (
    "opentelemetry-1.45.1",
    &[
        "opentelemetry-sdk==1.45.1",
        "opentelemetry-exporter-otlp-proto-grpc==1.45.1",
    ],
);

/// Validates documents of OpenAPI, and makes clients of them.
pub const OPENAPI: (&str, &[&str]) = (
    "openapi-python-client-0.29.1",
    &[
        "openapi-spec-validator==0.9.0",
        "openapi-python-client==0.29.1",
    ],
);

/// Asks a server for everything that its document allows, and for what it does not.
pub const SCHEMATHESIS: (&str, &[&str]) = ("schemathesis-4.32.5", &["schemathesis==4.32.5"]);

/// What `PYTHONPATH` must name for these packages and what they need; installed if they are not
/// there yet. The name must change with them.
pub fn packages((name, wanted): (&str, &[&str])) -> Result<PathBuf> {
    installed(name, |folder| install(wanted, folder))
}

/// The folder of this name, filled by whoever came first.
pub(crate) fn installed(name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let parts = parts_folder()?;
    fs::create_dir_all(&parts).with_context(|| format!("creating {}", parts.display()))?;
    let folder = parts.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let lock = File::create(parts.join("lock")).context("locking the folder of parts")?;
    lock.lock().context("locking the folder of parts")?;
    if !folder.is_dir() {
        // Beside it first: what is there under its own name is whole.
        let unfinished = tempfile::tempdir_in(&parts)?;
        fill(unfinished.path())?;
        fs::rename(unfinished.path(), &folder).context("putting it into its place")?;
        // It has moved: nothing is left to remove.
        let _ = unfinished.keep();
    }
    Ok(folder)
}

/// Where parts of somebody else's lie: in the target folder, so that `cargo clean` takes them.
pub(crate) fn parts_folder() -> Result<PathBuf> {
    let here = std::env::current_exe().context("finding the running program")?;
    let is_target = |folder: &&Path| folder.join("CACHEDIR.TAG").is_file();
    let target = here.ancestors().skip(1).find(is_target);
    Ok(target
        .context("the running program lies in no target folder")?
        .join("test-parts"))
}

fn install(wanted: &[&str], to: &Path) -> Result<()> {
    let output = Command::new(PYTHON)
        .args(["-m", "pip", "install", "--quiet", "--no-input"])
        .args(["--only-binary", ":all:", "--constraint"])
        .arg(CONSTRAINTS)
        .arg("--target")
        .arg(to)
        .args(wanted)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{PYTHON} is missing; install python3"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        !said.contains("No module named pip"),
        "pip is missing; install the package python3-pip"
    );
    ensure!(
        output.status.success(),
        "{wanted:?} cannot be installed; they come from the package registry that pip is set up \
         with, once:\n{said}"
    );
    Ok(())
}
