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
        let file = match files::open(workspace, &path) {
            Ok(file) => file,
            // That there is none is said when the reports are read.
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => continue,
            Err(problem) => {
                problems.push(format!("report {path}: {problem}"));
                continue;
            }
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
    let root = Root::open(into)?;
    whole(&root, path, |to| write(file.take(length), length, to))
}

/// Creates a file that is there only when all of it is: a part of a report would replace what was
/// read of it along.
fn whole(
    root: &Root,
    path: &str,
    fill: impl FnOnce(&mut std::fs::File) -> io::Result<u64>,
) -> io::Result<u64> {
    let filled = fill(&mut root.create(path, 0o600)?);
    if filled.is_err() {
        root.remove(path)?;
    }
    filled
}

fn write(mut from: impl Read, length: u64, to: &mut impl io::Write) -> io::Result<u64> {
    match io::copy(&mut from, to)? {
        copied if copied < length => Err(io::Error::other("it was cut while it was copied")),
        copied => Ok(copied),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A disk that is full after some bytes.
    struct Full(usize);

    impl io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            match taken {
                0 => Err(io::ErrorKind::StorageFull.into()),
                taken => Ok(taken),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    // A68: a part of a report is none, and would replace what was read of it along.
    #[test]
    fn what_cannot_be_set_aside_as_a_whole_is_not_there_at_all() {
        let problem = write(&b"ok 1\nok 2\n"[..], 10, &mut Full(7)).unwrap_err();
        assert_eq!(problem.kind(), io::ErrorKind::StorageFull);
        // It became shorter between the two looks at it.
        write(&b"ok 1\n"[..], 10, &mut Vec::new()).unwrap_err();

        let aside = tempfile::tempdir().unwrap();
        let copied = |text: &str, take: &dyn Fn(&mut fs::File) -> io::Result<u64>| {
            let into = aside.path().join("0.new");
            fs::create_dir_all(&into).unwrap();
            let root = Root::open(&into).unwrap();
            whole(&root, "out/r.tap", |to| {
                io::Write::write_all(to, text.as_bytes())?;
                take(to)
            })
        };
        copied("ok 1", &|_| Err(io::ErrorKind::StorageFull.into())).unwrap_err();
        assert!(
            files::find(&aside.path().join("0.new"), "**")
                .unwrap()
                .is_empty()
        );
        copied("ok 1", &|_| Ok(4)).unwrap();
        let found = files::find(&aside.path().join("0.new"), "**").unwrap();
        assert_eq!(found, ["out/r.tap"]);
    }

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
