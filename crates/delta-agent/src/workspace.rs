//! Folders of attempts: a fresh one for each, removed afterwards.
//!
//! The work folder belongs to one agent at a time and is private to its user. What a crashed agent
//! left in it is removed at the start. Names inside are ours: nothing a server or a job says
//! becomes a path.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};

use crate::copy::{self, CopyError};

/// Only the agent's user may look inside: logs and sources are nobody else's business.
const PRIVATE: u32 = 0o700;

/// Why there is no folder to work in.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error("the work folder {path} belongs to another agent that is running")]
    InUse { path: PathBuf },
    #[error("cannot {doing} {path}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the source tree cannot be copied")]
    Copy(#[from] CopyError),
}

impl WorkspaceError {
    /// Another machine may have the space that this one lacks.
    pub fn is_disk_full(&self) -> bool {
        let source = match self {
            WorkspaceError::InUse { .. } | WorkspaceError::Copy(CopyError::TooDeep { .. }) => {
                return false;
            }
            WorkspaceError::Io { source, .. }
            | WorkspaceError::Copy(CopyError::Io { source, .. }) => source,
        };
        matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}

/// What a workspace begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nothing: the job fetches what it needs.
    Empty,
    /// A copy of this tree, without what its version control ignores.
    Copy(PathBuf),
    /// This very tree; it is left as the job leaves it.
    InPlace(PathBuf),
}

/// The folder under which an agent works. Held locked until dropped.
#[derive(Debug)]
pub struct WorkFolder {
    root: PathBuf,
    next: AtomicU64,
    _lock: File,
}

/// The folder of one attempt.
#[derive(Debug)]
pub struct AttemptFolder {
    root: PathBuf,
    pub workspace: PathBuf,
    pub tmp: PathBuf,
    pub log: PathBuf,
}

impl WorkFolder {
    /// Makes or takes over the folder and clears what a former agent left.
    pub fn open(root: &Path) -> Result<WorkFolder, WorkspaceError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(PRIVATE);
        builder.create(root).map_err(io_error("create", root))?;
        let root = root.canonicalize().map_err(io_error("resolve", root))?;
        let lock_path = root.join("lock");
        let lock = File::create(&lock_path).map_err(io_error("create", &lock_path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(WorkspaceError::InUse { path: root });
        }
        let attempts = root.join("attempts");
        remove_tree(&attempts).map_err(io_error("clear", &attempts))?;
        make_private(&attempts)?;
        Ok(WorkFolder {
            root,
            next: AtomicU64::new(1),
            _lock: lock,
        })
    }

    pub fn path(&self) -> &Path {
        &self.root
    }

    /// A fresh folder. Copies a tree when `source` says so: call it where blocking is fine.
    pub fn attempt(&self, source: &Source) -> Result<AttemptFolder, WorkspaceError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let root = self.root.join("attempts").join(number.to_string());
        make_private(&root)?;
        let mut folder = AttemptFolder {
            workspace: root.join("workspace"),
            tmp: root.join("tmp"),
            log: root.join("log"),
            root,
        };
        let made = folder.fill(source);
        if made.is_err() {
            folder.remove();
        }
        made.map(|()| folder)
    }
}

impl AttemptFolder {
    fn fill(&mut self, source: &Source) -> Result<(), WorkspaceError> {
        make_private(&self.tmp)?;
        match source {
            Source::Empty => make_private(&self.workspace)?,
            Source::Copy(tree) => {
                make_private(&self.workspace)?;
                copy::tree(tree, &self.workspace)?;
            }
            Source::InPlace(tree) => {
                self.workspace = tree.canonicalize().map_err(io_error("resolve", tree))?;
            }
        }
        Ok(())
    }

    /// Removes everything but an in-place tree. A file that cannot be removed is left for the next
    /// start, and said so: it must not fail the job.
    pub fn remove(&self) {
        if let Err(problem) = remove_tree(&self.root) {
            tracing::warn!(path = %self.root.display(), error = %problem, "left behind");
        }
    }
}

fn make_private(path: &Path) -> Result<(), WorkspaceError> {
    DirBuilder::new()
        .mode(PRIVATE)
        .create(path)
        .map_err(io_error("create", path))
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WorkspaceError {
    let path = path.to_owned();
    move |source| WorkspaceError::Io {
        doing,
        path,
        source,
    }
}

/// Removes a tree that may contain folders without write permission, as package managers leave
/// them. Links are removed, never followed.
fn remove_tree(root: &Path) -> io::Result<()> {
    match fs::remove_dir_all(root) {
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(problem) if problem.kind() == io::ErrorKind::PermissionDenied => {
            open_folders(root)?;
            fs::remove_dir_all(root)
        }
        other => other,
    }
}

/// Gives the owner every right on each folder of the tree, without recursion.
fn open_folders(root: &Path) -> io::Result<()> {
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        fs::set_permissions(&folder, fs::Permissions::from_mode(PRIVATE))?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_folder_has_one_owner_and_forgets_what_was_left() {
        let place = tempfile::tempdir().expect("a folder");
        let first = WorkFolder::open(place.path()).expect("first");
        let attempt = first.attempt(&Source::Empty).expect("an attempt");
        fs::write(attempt.workspace.join("left"), "behind").expect("a file");
        let again = WorkFolder::open(place.path());
        assert!(
            matches!(again, Err(WorkspaceError::InUse { .. })),
            "{again:?}"
        );
        drop(first);
        let second = WorkFolder::open(place.path()).expect("second");
        assert!(!attempt.workspace.exists());
        assert_eq!(second.path(), place.path().canonicalize().expect("a path"));
    }

    #[test]
    fn a_folder_without_write_permission_is_removed_too() {
        let place = tempfile::tempdir().expect("a folder");
        let work = WorkFolder::open(place.path()).expect("a work folder");
        let attempt = work.attempt(&Source::Empty).expect("an attempt");
        let locked = attempt.workspace.join("locked");
        fs::create_dir(&locked).expect("a folder");
        fs::write(locked.join("file"), "x").expect("a file");
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).expect("locked");
        attempt.remove();
        assert!(!attempt.root.exists());
    }

    #[test]
    fn an_in_place_tree_stays() {
        let place = tempfile::tempdir().expect("a folder");
        let tree = tempfile::tempdir().expect("a tree");
        fs::write(tree.path().join("kept"), "x").expect("a file");
        let work = WorkFolder::open(place.path()).expect("a work folder");
        let attempt = work
            .attempt(&Source::InPlace(tree.path().into()))
            .expect("an attempt");
        assert_eq!(
            attempt.workspace,
            tree.path().canonicalize().expect("a path")
        );
        attempt.remove();
        assert!(tree.path().join("kept").exists());
    }
}
