//! Which files belong to the project, and their text.
//!
//! Owns the walk: files git tracks plus new ones it would track, so that a file is checked before
//! its first commit. Ignored files (build output, data folders) are never seen.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// One file of the project.
pub struct File {
    /// Relative to the root, with `/`.
    pub path: String,
    pub text: String,
}

impl File {
    /// Integration tests, and unit tests that live in a file of their own.
    pub fn is_test(&self) -> bool {
        self.path.starts_with("tests/")
            || self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
    }
}

/// The repository's root: the folder above this crate. Cargo says at run time where that is; where
/// it was compiled may be another copy of the tree that shares its target folder.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR");
    let here = here.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}

/// The project's files whose name ends in one of `endings`, sorted by path.
pub fn files(endings: &[&str]) -> Result<Vec<File>> {
    let mut found = Vec::new();
    for path in names()? {
        // A tracked file that was deleted but not yet committed is not there to be read.
        if !endings.iter().any(|end| path.ends_with(end)) || !Path::new(&path).is_file() {
            continue;
        }
        let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        found.push(File { path, text });
    }
    Ok(found)
}

fn names() -> Result<Vec<String>> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .context("run git ls-files")?;
    ensure!(
        output.status.success(),
        "git ls-files failed: is this a git checkout?"
    );
    let text = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut names: Vec<String> = text
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}
