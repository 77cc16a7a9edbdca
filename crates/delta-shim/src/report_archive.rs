//! Reports of tests that are the work, set aside by the shim as soon as their test has ended: the
//! next test may write over them, and what it finds of the one before it is not its own.
//!
//! They lie in the attempt's state folder, out of the job's reach, under the paths they had.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::Path;

use delta_core::Cause;
use delta_results::Limits;

use crate::job_files::Root;
use crate::report_files::{self, About};

/// In the attempt's state folder; below it one folder for each test, by its place in the job spec.
pub const FOLDER: &str = "reports";
/// Bytes of all reports of an attempt that are set aside: several times more than the texts that a
/// server keeps of a lease.
pub(crate) const MAX_BYTES: u64 = 512 * 1024 * 1024;
/// Bytes copied at once.
const PIECE: usize = 64 * 1024;

/// Why a report is not set aside.
#[derive(Debug)]
pub(crate) struct Lost {
    pub words: String,
    /// Where it was not the job's doing, but this machine's.
    pub cause: Option<Cause>,
}

/// What went wrong with a copy: with the job's file, or with our own.
#[derive(Debug)]
enum ArchivingError {
    Theirs(io::Error),
    Ours(io::Error),
}

impl ArchivingError {
    fn of(self, what: &str) -> Lost {
        let (cause, problem) = match self {
            ArchivingError::Theirs(problem) => (None, problem),
            ArchivingError::Ours(problem) => (Some(cause_of(&problem)), problem),
        };
        let words = format!("{what}: {problem}");
        Lost { words, cause }
    }
}

/// What it is that a file of ours cannot be written or read.
pub fn cause_of(problem: &io::Error) -> Cause {
    match problem.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Cause::DiskFull,
        _ => Cause::AgentError,
    }
}

/// What is there before a test begins: none of it is a report of that test while it stays as it is.
pub(crate) fn look(workspace: &Path, pattern: &str) -> HashMap<String, About> {
    let found = report_files::find(workspace, pattern).unwrap_or_default();
    let about = found.into_iter().filter_map(|path| {
        let about = report_files::about(&report_files::open(workspace, &path).ok()?)?;
        Some((path, about))
    });
    about.collect()
}

/// Copies what a test has written, as long as there are bytes left; what is to be said of it.
pub(crate) fn keep(
    workspace: &Path,
    pattern: &str,
    before: &HashMap<String, About>,
    into: &Path,
    left: &mut u64,
) -> Vec<Lost> {
    let found = match report_files::find(workspace, pattern) {
        Ok(found) => found,
        Err(problem) => {
            return vec![ArchivingError::Theirs(problem).of(&format!("reports {pattern}"))];
        }
    };
    let mut lost = Vec::new();
    // It has its name when all of it is there: an agent may be looking for it.
    let unfinished = into.with_extension("new");
    for path in found {
        let file = match report_files::open(workspace, &path) {
            Ok(file) => file,
            // That there is none is said when the reports are read.
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => continue,
            Err(problem) => {
                lost.push(ArchivingError::Theirs(problem).of(&format!("report {path}")));
                continue;
            }
        };
        if before.contains_key(&path) && before.get(&path).copied() == report_files::about(&file) {
            continue;
        }
        match copy(file, &path, &unfinished, *left) {
            Ok(bytes) => *left -= bytes,
            Err(trouble) => lost.push(trouble.of(&format!("report {path}"))),
        }
    }
    match std::fs::rename(&unfinished, into) {
        Err(problem) if problem.kind() != io::ErrorKind::NotFound => {
            lost.push(ArchivingError::Ours(problem).of(&format!("reports {pattern}")));
        }
        _ => {}
    }
    lost
}

fn copy(file: std::fs::File, path: &str, into: &Path, left: u64) -> Result<u64, ArchivingError> {
    // One byte more than is read of a report, so that whoever reads it sees that there was more.
    let most = Limits::default().bytes + 1;
    let length = file
        .metadata()
        .map_err(ArchivingError::Theirs)?
        .len()
        .min(most);
    if length > left {
        let words = "there are more bytes of reports than are kept";
        return Err(ArchivingError::Theirs(io::Error::other(words)));
    }
    std::fs::create_dir_all(into).map_err(ArchivingError::Ours)?;
    let root = Root::open(into).map_err(ArchivingError::Ours)?;
    whole(&root, path, |to| write(file.take(length), length, to))
}

/// Creates a file that is there only when all of it is: a part of a report would replace what was
/// read of it along.
fn whole(
    root: &Root,
    path: &str,
    fill: impl FnOnce(&mut std::fs::File) -> Result<u64, ArchivingError>,
) -> Result<u64, ArchivingError> {
    let filled = fill(&mut root.create(path, 0o600).map_err(ArchivingError::Ours)?);
    if filled.is_err() {
        root.remove(path).map_err(ArchivingError::Ours)?;
    }
    filled
}

fn write(mut from: impl Read, length: u64, to: &mut impl io::Write) -> Result<u64, ArchivingError> {
    let (mut piece, mut copied) = (vec![0; PIECE], 0);
    loop {
        let read = match from.read(&mut piece) {
            Ok(read) => read,
            Err(problem) if problem.kind() == io::ErrorKind::Interrupted => continue,
            Err(problem) => return Err(ArchivingError::Theirs(problem)),
        };
        if read == 0 {
            break;
        }
        to.write_all(&piece[..read]).map_err(ArchivingError::Ours)?;
        copied += read as u64;
    }
    if copied < length {
        let words = "it was cut while it was copied";
        return Err(ArchivingError::Theirs(io::Error::other(words)));
    }
    Ok(copied)
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
        // D10: a full disk of this machine is not the job's fault.
        let trouble = write(&b"ok 1\nok 2\n"[..], 10, &mut Full(7)).unwrap_err();
        assert_eq!(trouble.of("r.tap").cause, Some(Cause::DiskFull));
        // It became shorter between the two looks at it.
        let trouble = write(&b"ok 1\n"[..], 10, &mut Vec::new()).unwrap_err();
        assert_eq!(trouble.of("r.tap").cause, None);

        let aside = tempfile::tempdir().unwrap();
        let copied = |text: &str, take: &dyn Fn(&mut fs::File) -> Result<u64, ArchivingError>| {
            let into = aside.path().join("0.new");
            fs::create_dir_all(&into).unwrap();
            let root = Root::open(&into).unwrap();
            whole(&root, "out/r.tap", |to| {
                io::Write::write_all(to, text.as_bytes()).map_err(ArchivingError::Ours)?;
                take(to)
            })
        };
        let full = || ArchivingError::Ours(io::ErrorKind::StorageFull.into());
        copied("ok 1", &|_| Err(full())).unwrap_err();
        assert!(
            report_files::find(&aside.path().join("0.new"), "**")
                .unwrap()
                .is_empty()
        );
        copied("ok 1", &|_| Ok(4)).unwrap();
        let found = report_files::find(&aside.path().join("0.new"), "**").unwrap();
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
            report_files::find(&into, "**").unwrap(),
            ["out/grows.xml", "out/new.xml"]
        );
        // Nothing more is kept than there may be.
        let said = keep(workspace.path(), "out/new.xml", &before, &into, &mut left);
        assert!(said[0].words.contains("more bytes"), "{said:?}");
        assert_eq!(said[0].cause, None);
    }

    // D10: links and pipes are the job's doing; a folder that we cannot make is not.
    #[test]
    fn what_the_job_did_is_told_from_what_this_machine_did() {
        let (workspace, aside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| workspace.path().join(name);
        std::os::unix::fs::symlink("/etc/passwd", at("link.tap")).unwrap();
        fs::write(at("r.tap"), "ok 1").unwrap();
        let keep = |pattern: &str, into: &Path| {
            let mut left = 100;
            let lost = keep(workspace.path(), pattern, &HashMap::new(), into, &mut left);
            let causes: Vec<Option<Cause>> = lost.iter().map(|it| it.cause).collect();
            causes
        };
        assert_eq!(keep("link.tap", &aside.path().join("0")), [None]);
        fs::write(aside.path().join("file"), "").unwrap();
        let inside = aside.path().join("file/0");
        let causes = keep("r.tap", &inside);
        assert_eq!(causes.first(), Some(&Some(Cause::AgentError)), "{causes:?}");
        assert!(keep("r.tap", &aside.path().join("1")).is_empty());
    }
}
