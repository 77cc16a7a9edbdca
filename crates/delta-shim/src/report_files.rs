//! Reports in a workspace: which files a pattern means, and opening them. The job may change its
//! workspace at any moment, so nothing is followed out of it, and nothing but a plain file is
//! opened (see [`crate::job_files`]).

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::job_files::{FileError, Glob, Owner, Root};

/// Reports of one pattern.
const MAX_FILES: usize = 2_000;

/// A second name of a file may be that of somebody else's: nobody's are taken.
const NOBODY: Owner = Owner(u32::MAX);

/// Files that a pattern means, as paths inside the workspace, in order.
pub fn find(root: &Path, pattern: &str) -> io::Result<Vec<String>> {
    if is_one_path(pattern) {
        return Ok(vec![plain(pattern)]);
    }
    let glob = Glob::parse(pattern).ok_or(io::ErrorKind::InvalidInput)?;
    let walked = Root::open(root)?.walk(&[glob], MAX_FILES, &CancellationToken::new());
    let walked = walked.map_err(io::Error::other)?;
    Ok(walked.files.into_iter().map(|it| it.path).collect())
}

/// Opens a file inside the workspace: a regular one, with one name.
pub fn open(root: &Path, path: &str) -> io::Result<File> {
    match Root::open(root)?.file(&plain(path), NOBODY) {
        Ok((file, _)) => Ok(file),
        Err(FileError::Io(problem)) => Err(problem),
        Err(problem) => Err(io::Error::other(problem)),
    }
}

/// What changes whenever a file is written anew: the file itself, its size and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct About(u64, u64, u64, i64, i64);

pub fn about(file: &File) -> Option<About> {
    let it = file.metadata().ok()?;
    let (size, time) = (it.len(), (it.mtime(), it.mtime_nsec()));
    Some(About(it.dev(), it.ino(), size, time.0, time.1))
}

/// When it was written last, in milliseconds of this machine's clock.
pub fn written(file: &File) -> Option<i64> {
    let it = file.metadata().ok()?;
    let millis = it.mtime().checked_mul(1000)?;
    millis.checked_add(it.mtime_nsec() / 1_000_000)
}

/// Whether a pattern means one path alone.
pub fn is_one_path(pattern: &str) -> bool {
    !pattern.contains(['*', '?', '[', '{'])
}

pub fn plain(path: &str) -> String {
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn patterns_mean_files_below_the_workspace() {
        let root = tempfile::tempdir().unwrap();
        for file in ["a.xml", "x/b.xml", "x/y/c.xml", "x/y/d.txt"] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        let find = |pattern: &str| find(root.path(), pattern).unwrap();
        assert_eq!(find("*.xml"), ["a.xml"]);
        assert_eq!(find("**/*.xml"), ["a.xml", "x/b.xml", "x/y/c.xml"]);
        assert_eq!(find("x/**"), ["x/b.xml", "x/y/c.xml", "x/y/d.txt"]);
        assert_eq!(find("x/?/c*l"), ["x/y/c.xml"]);
        assert_eq!(find("./x//b.xml"), ["x/b.xml"]);
        assert!(open(root.path(), "x/b.xml").is_ok());
    }

    // EP-20, T11: a report is a file of the job's, and nothing else.
    #[test]
    fn links_pipes_and_ways_out_are_never_opened() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret.xml"), "secret").unwrap();
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        symlink(outside.path(), at("folder")).unwrap();
        symlink(outside.path().join("secret.xml"), at("link.xml")).unwrap();
        fs::write(at("plain.xml"), "plain").unwrap();
        fs::hard_link(at("plain.xml"), at("hard.xml")).unwrap();
        fs::create_dir(at("dir.xml")).unwrap();
        mkfifoat(CWD, at("pipe.xml"), Mode::RUSR | Mode::WUSR).unwrap();
        for path in [
            "folder/secret.xml",
            "link.xml",
            "hard.xml",
            "dir.xml",
            "pipe.xml",
            "../secret.xml",
            "missing.xml",
            "",
        ] {
            assert!(open(root.path(), path).is_err(), "{path}");
        }
        let found = find(root.path(), "**/*.xml").unwrap();
        assert_eq!(found, ["hard.xml", "plain.xml"]);
    }
}
