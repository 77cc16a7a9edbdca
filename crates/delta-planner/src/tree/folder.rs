//! A tree on disk: in a git checkout what git tracks or would track, elsewhere every plain file.
//!
//! Reads go down folder by folder and follow no link, so that a repository cannot show planning a
//! file of the machine. Git is asked for names only, with its hooks and monitors off.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use delta_wire::own_folder;
use rustix::fs::{FileType, Mode, OFlags};

use super::{Files, MAX_DEPTH, MAX_PATHS, Tree, TreeError, Unread};

/// Folders that are never looked into: history, and what tools put there. Nor is our own data.
const NEVER: [&str; 5] = [".git", "node_modules", ".venv", "__pycache__", "target"];

/// A folder on disk.
pub struct Folder {
    root: PathBuf,
}

impl Folder {
    /// Lists a folder.
    pub fn tree(root: &Path) -> Result<Tree, TreeError> {
        let paths = match delta_git::tracked(root)? {
            Some(paths) => paths,
            None => walked(root)?,
        };
        let root = root.to_owned();
        Tree::new(paths, Box::new(Folder { root }))
    }
}

impl Files for Folder {
    fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, Unread> {
        let failed = |error: rustix::io::Errno| Unread::Failed(error.to_string());
        let file = open(&self.root, path)?;
        let meta = rustix::fs::fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(meta.st_mode) != FileType::RegularFile {
            return Err(Unread::Missing);
        }
        let mut bytes = Vec::new();
        let limit = u64::try_from(most).unwrap_or(u64::MAX);
        let mut bounded = File::from(file).take(limit.saturating_add(1));
        let read = bounded.read_to_end(&mut bytes);
        read.map_err(|error| Unread::Failed(error.to_string()))?;
        if bytes.len() > most {
            Err(Unread::TooLarge)
        } else {
            Ok(bytes)
        }
    }
}

/// Opens a file below `root` without following a link on the way. A pipe does not hold it up.
fn open(root: &Path, path: &str) -> Result<OwnedFd, Unread> {
    let folders = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let last = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let closed = |error: rustix::io::Errno| match error {
        rustix::io::Errno::NOENT | rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => {
            Unread::Missing
        }
        other => Unread::Failed(other.to_string()),
    };
    let mut folder = rustix::fs::open(root, folders, Mode::empty()).map_err(closed)?;
    let mut parts = path.split('/').peekable();
    while let Some(part) = parts.next() {
        let flags = match parts.peek() {
            Some(_) => folders | OFlags::NOFOLLOW,
            None => last,
        };
        folder = rustix::fs::openat(&folder, part, flags, Mode::empty()).map_err(closed)?;
    }
    Ok(folder)
}

/// Every plain file, without recursion; names that are no UTF-8 are left out.
fn walked(root: &Path) -> Result<Vec<String>, TreeError> {
    let mut paths = Vec::new();
    let mut open = vec![(root.to_owned(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = open.pop() {
        let failed = |source| TreeError::Io {
            doing: "list",
            path: folder.display().to_string(),
            source,
        };
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let kind = entry.file_type().map_err(failed)?;
            let path = super::join(&prefix, &name);
            let never = NEVER.contains(&name.as_str()) || depth >= MAX_DEPTH;
            if kind.is_dir() {
                if !never && !own_folder::is(&entry.path()) {
                    open.push((entry.path(), path, depth + 1));
                }
            } else if kind.is_file() {
                paths.push(path);
            }
            if paths.len() > MAX_PATHS || open.len() > MAX_PATHS {
                return Err(TreeError::TooManyFiles);
            }
        }
    }
    Ok(paths)
}
