//! Reports of tests that are the work, set aside by the shim as soon as their test has ended: the
//! next test may write over them, and what it finds of the one before it is not its own.
//!
//! They lie in the attempt's state folder, out of the job's reach, under the paths they had.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::Path;

use delta_results::Limits;

use super::files;
pub use super::files::About;
use crate::around::files::Root;

/// In the attempt's state folder; below it one folder for each test, by its place in the job spec.
pub const FOLDER: &str = "reports";
/// Bytes of all reports of an attempt that are set aside: several times more than the texts that a
/// server keeps of a lease.
pub const MAX_BYTES: u64 = 512 * 1024 * 1024;

/// What is there before a test begins: none of it is a report of that test while it stays as it is.
pub fn look(workspace: &Path, pattern: &str) -> HashMap<String, About> {
    let found = files::find(workspace, pattern).unwrap_or_default();
    let about = found.into_iter().filter_map(|path| {
        let about = files::about(&files::open(workspace, &path).ok()?)?;
        Some((path, about))
    });
    about.collect()
}

/// Copies what a test has written, as long as there are bytes left; what is to be said of it.
pub fn keep(
    workspace: &Path,
    pattern: &str,
    before: &HashMap<String, About>,
    into: &Path,
    left: &mut u64,
) -> Vec<String> {
    let found = match files::find(workspace, pattern) {
        Ok(found) => found,
        Err(problem) => return vec![format!("reports {pattern}: {problem}")],
    };
    let mut problems = Vec::new();
    // It has its name when all of it is there: an agent may be looking for it.
    let unfinished = into.with_extension("new");
    for path in found {
        // Whatever cannot be opened is said when the reports are read.
        let Ok(file) = files::open(workspace, &path) else {
            continue;
        };
        if before.contains_key(&path) && before.get(&path).copied() == files::about(&file) {
            continue;
        }
        match copy(file, &path, &unfinished, *left) {
            Ok(bytes) => *left -= bytes,
            Err(problem) => problems.push(format!("report {path}: {problem}")),
        }
    }
    match std::fs::rename(&unfinished, into) {
        Err(problem) if problem.kind() != io::ErrorKind::NotFound => {
            problems.push(format!("reports {pattern}: {problem}"));
        }
        _ => {}
    }
    problems
}

fn copy(file: std::fs::File, path: &str, into: &Path, left: u64) -> io::Result<u64> {
    // One byte more than is read of a report, so that whoever reads it sees that there was more.
    let most = Limits::default().bytes + 1;
    let length = file.metadata()?.len().min(most);
    if length > left {
        return Err(io::Error::other(
            "there are more bytes of reports than are kept",
        ));
    }
    std::fs::create_dir_all(into)?;
    let mut to = Root::open(into)?.create(path, 0o600)?;
    io::copy(&mut file.take(length), &mut to)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    // EP-21: what a test finds is not what it wrote.
    #[test]
    fn only_what_a_test_wrote_is_set_aside() {
        let (workspace, aside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| workspace.path().join(name);
        fs::create_dir(at("out")).unwrap();
        for name in ["out/old.xml", "out/grows.xml"] {
            fs::write(at(name), "old").unwrap();
        }
        let before = look(workspace.path(), "out/*.xml");
        assert_eq!(before.len(), 2);
        fs::write(at("out/grows.xml"), "old and new").unwrap();
        fs::write(at("out/new.xml"), "new").unwrap();
        let (into, mut left) = (aside.path().join("reports/0"), 14);
        let said = keep(workspace.path(), "out/*.xml", &before, &into, &mut left);
        assert!(said.is_empty(), "{said:?}");
        assert_eq!(left, 0);
        assert_eq!(
            files::find(&into, "**").unwrap(),
            ["out/grows.xml", "out/new.xml"]
        );
        // Nothing more is kept than there may be.
        let said = keep(workspace.path(), "out/new.xml", &before, &into, &mut left);
        assert!(said[0].contains("more bytes"), "{said:?}");
    }
}
