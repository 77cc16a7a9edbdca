//! `cargo xtask relapse`: puts faults that were mended back, one at a time, and sees a test fail.
//!
//! Owns the putting back, and the taking away again: a file is as it was before, however the tests
//! end. Refuses a file with changes that are not committed. Which faults: `relapses.rs`.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::relapses::{RELAPSES, Relapse};
use crate::steps::{Steps, cargo, lists_a_test, succeed};

pub fn list() {
    for relapse in &RELAPSES {
        println!("{:<22} {}", relapse.name, relapse.what);
    }
}

/// Tries every relapse, or the one named.
pub fn run(only: Option<&str>) -> Result<()> {
    let is_chosen = |it: &&Relapse| only.is_none_or(|name| name == it.name);
    let chosen: Vec<&Relapse> = RELAPSES.iter().filter(is_chosen).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = RELAPSES.iter().map(|it| it.name).collect();
        bail!("no relapse of that name; there are: {}", names.join(", "));
    }
    let mut steps = Steps::default();
    for relapse in chosen {
        steps.step(relapse.name, || {
            println!("    {}", relapse.what);
            relapse.is_noticed()
        });
    }
    // The next to start the program must not start one with a fault in it.
    steps.step("as it was", || {
        succeed(cargo(&["build", "--workspace", "--bins", "--quiet"]))
    });
    steps.finish()
}

impl Relapse {
    fn is_noticed(&self) -> Result<()> {
        ensure!(
            is_committed(self.file)?,
            "{} has changes that are not committed",
            self.file
        );
        let _mended = FaultyFile::write(self)?;
        // End-to-end tests start the real binary.
        succeed(cargo(&["build", "--workspace", "--bins", "--quiet"]))
            .context("with the fault it does not build")?;
        lists_a_test(self.tests())?;
        let tried = self.tests().output().context("run the tests")?;
        ensure!(!tried.status.success(), "no test has noticed");
        let said = String::from_utf8_lossy(&tried.stdout);
        let failed = said.lines().filter(|line| line.ends_with(" FAILED"));
        for line in failed.filter_map(|line| line.strip_prefix("test ")) {
            println!("    {line}");
        }
        Ok(())
    }

    fn tests(&self) -> std::process::Command {
        cargo(&["test", "-p", self.package, "--tests", "--", self.filter])
    }
}

/// A file with a fault in it, until this is dropped.
struct FaultyFile {
    path: &'static str,
    mended: String,
}

impl FaultyFile {
    fn write(relapse: &Relapse) -> Result<FaultyFile> {
        let path = relapse.file;
        let mended = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
        let mut faulty = mended.clone();
        for (line, old) in relapse.lines {
            ensure!(
                faulty.matches(line).count() == 1,
                "{path} has not exactly one `{line}`"
            );
            faulty = faulty.replacen(line, old, 1);
        }
        let file = FaultyFile { path, mended };
        std::fs::write(path, faulty).with_context(|| format!("write {path}"))?;
        Ok(file)
    }
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(self.path, &self.mended) {
            eprintln!("xtask: {} still has the fault in it: {error}", self.path);
        }
    }
}

fn is_committed(file: &str) -> Result<bool> {
    let mut git = std::process::Command::new("git");
    git.args(["diff", "--quiet", "HEAD", "--"])
        .arg(Path::new(file));
    let status = git.status().context("ask git about the file")?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever changes such a line says how the fault looks now.
    #[test]
    fn every_mended_line_is_there_once() {
        let root = crate::source::root();
        for relapse in &RELAPSES {
            let text = std::fs::read_to_string(root.join(relapse.file)).unwrap();
            for (line, old) in relapse.lines {
                assert_eq!(text.matches(line).count(), 1, "{}: {line}", relapse.name);
                assert_ne!(line, old, "{}", relapse.name);
            }
        }
    }
}
