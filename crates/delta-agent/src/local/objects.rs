//! The objects of a repository, brought from one folder to another that is to have the same ones.
//!
//! From a person's repository they are copied, on file systems that can do it without a second set
//! of bytes on the disk. A hard link would be cheaper, and its mode, its owner and its bytes would
//! be those of the person's own file: one `chmod -R` in a job would reach them. Between copies of
//! ours links are fine. Objects never change, so that what is there already is not brought again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::kept_workspaces;

/// Repositories that borrow from each other; git follows five.
const MAX_ALTERNATES: usize = 5;

/// Held while objects are brought. Not the name of a workspace's lock: this is none, and is not
/// trimmed like one.
const BUSY: &str = "busy";

/// Tries while somebody packs the repository anew.
const MAX_TRIES: usize = 5;

/// How a file gets there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Copy,
    Link,
}

/// Brings all objects of a repository into a copy, by way of a folder that several share.
pub(super) fn bring(from: &Path, shared: Option<&Path>, to: &Path) -> io::Result<()> {
    let Some(shared) = shared else {
        return mirror(&sources(from), to, How::Copy);
    };
    folder(shared)?;
    // Nobody changes it while somebody brings objects from there.
    let lock = File::create(shared.join(BUSY))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    // A submodule's are not those of the repository around it.
    let all = shared.join(kept_workspaces::named(None, &from.display().to_string()));
    mirror(&sources(from), &all, How::Copy)?;
    mirror(&[all], to, How::Link)
}

/// The folder of objects, and those that it borrows from.
fn sources(objects: &Path) -> Vec<PathBuf> {
    let mut all = vec![objects.to_owned()];
    let mut last = vec![objects.to_owned()];
    for _ in 0..MAX_ALTERNATES {
        let mut next = Vec::new();
        for folder in last {
            let text = fs::read(folder.join("info/alternates")).unwrap_or_default();
            let lines = text.split(|byte| *byte == b'\n');
            for line in lines.filter(|it| !it.is_empty() && it[0] != b'#') {
                let path = folder.join(std::ffi::OsStr::from_bytes(line));
                if !all.contains(&path) {
                    all.push(path.clone());
                    next.push(path);
                }
            }
        }
        last = next;
    }
    all
}

/// Makes `to` have what all of `from` have, and nothing else.
fn mirror(from: &[PathBuf], to: &Path, how: How) -> io::Result<()> {
    let mut tries = 0;
    loop {
        tries += 1;
        match mirror_once(from, to, how) {
            // It was packed anew between a look and the next.
            Err(problem) if problem.kind() == io::ErrorKind::NotFound && tries < MAX_TRIES => {}
            done => return done,
        }
    }
}

fn mirror_once(from: &[PathBuf], to: &Path, how: How) -> io::Result<()> {
    folder(to)?;
    let mut parent = PathBuf::new();
    for (name, source) in list(from)? {
        let above = name.parent().unwrap_or(Path::new(""));
        if above != parent {
            let mut at = to.to_owned();
            for part in above {
                at.push(part);
                folder(&at)?;
            }
            parent = above.to_owned();
        }
        one(&source, &to.join(&name), how)?;
    }
    sweep(to, Path::new(""), &list(from)?)
}

/// Removes whatever else is there, a link instead of what it leads to: a job may have put one in
/// the place of a folder.
fn sweep(to: &Path, inside: &Path, wanted: &Listed) -> io::Result<()> {
    for entry in fs::read_dir(to.join(inside))? {
        let entry = entry?;
        let name = inside.join(entry.file_name());
        let kind = entry.file_type()?;
        let mut from_here = wanted.range(name.clone()..);
        if kind.is_dir()
            && from_here
                .next()
                .is_some_and(|(it, _)| it.starts_with(&name))
        {
            sweep(to, &name, wanted)?;
        } else if !(kind.is_file() && wanted.contains_key(&name)) {
            super::remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Names relative to the folder of objects, and where each is.
type Listed = BTreeMap<PathBuf, PathBuf>;

/// Lists the objects of all these folders. What is loose comes first: when it has been packed by
/// then, it is in a pack that is listed later.
fn list(from: &[PathBuf]) -> io::Result<Listed> {
    let mut found = BTreeMap::new();
    for root in from {
        let mut add = |inside: &Path| -> io::Result<()> {
            let entries = match fs::read_dir(root.join(inside)) {
                Ok(entries) => entries,
                Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(problem) => return Err(problem),
            };
            for entry in entries {
                let entry = entry?;
                let name = entry.file_name();
                let temporary = name.as_bytes().starts_with(b"tmp_")
                    || name.as_bytes().ends_with(b".lock")
                    || name == "alternates";
                if entry.file_type()?.is_file() && !temporary {
                    let name = inside.join(name);
                    found.entry(name).or_insert_with(|| entry.path());
                }
            }
            Ok(())
        };
        for first in 0..=u8::MAX {
            add(Path::new(&format!("{first:02x}")))?;
        }
        for inside in ["pack", "info", "info/commit-graphs"] {
            add(Path::new(inside))?;
        }
    }
    Ok(found)
}

fn one(from: &Path, to: &Path, how: How) -> io::Result<()> {
    let meta = fs::metadata(from)?;
    if let Ok(there) = fs::symlink_metadata(to) {
        let same = match how {
            How::Link => (there.dev(), there.ino()) == (meta.dev(), meta.ino()),
            // A copy has the time of what it was made of, until somebody changes it.
            How::Copy => {
                there.is_file()
                    && there.len() == meta.len()
                    && there.modified().ok() == meta.modified().ok()
            }
        };
        if same {
            return Ok(());
        }
        super::remove(to)?;
    }
    if how == How::Link {
        match fs::hard_link(from, to) {
            Ok(()) => return Ok(()),
            // On another disk, or as many links as there can be.
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => return Err(problem),
            Err(_) => {}
        }
    }
    fs::copy(from, to)?;
    File::open(to)?.set_modified(meta.modified()?)
}

/// Makes a folder, in place of anything else that has its name.
fn folder(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => fs::remove_file(path).and_then(|()| fs::create_dir(path)),
        Err(_) => fs::create_dir_all(path),
    }
}
