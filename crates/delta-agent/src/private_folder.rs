//! A folder that belongs to one agent at a time and is private to its user.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Only the agent's user may look inside.
pub(crate) const PRIVATE: u32 = 0o700;

/// Where attempts have their folders.
pub(crate) const ATTEMPTS: &str = "attempts";

/// Why a folder is not ours.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("the folder {path} belongs to another agent that is running")]
    InUse { path: PathBuf },
    #[error("cannot {doing} {path}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A folder that is ours until this is dropped.
#[derive(Debug)]
pub(crate) struct PrivateFolder {
    pub root: PathBuf,
    _lock: File,
}

impl PrivateFolder {
    /// Makes the folder, with one for attempts in it, or takes it over.
    pub fn open(root: &Path) -> Result<PrivateFolder, FolderError> {
        let attempts = root.join(ATTEMPTS);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(PRIVATE);
        builder
            .create(&attempts)
            .map_err(failed("create", &attempts))?;
        let root = root.canonicalize().map_err(failed("resolve", root))?;
        let lock_path = lock_file(&root);
        let lock = File::create(&lock_path).map_err(failed("create", &lock_path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(FolderError::InUse { path: root });
        }
        Ok(PrivateFolder { root, _lock: lock })
    }

    /// Shuts out everybody else, also where the folder was there before.
    pub fn protect(&self) -> Result<(), FolderError> {
        let private = fs::Permissions::from_mode(PRIVATE);
        fs::set_permissions(&self.root, private).map_err(failed("protect", &self.root))
    }
}

/// The file in it that is locked while it is somebody's.
pub(crate) fn lock_file(root: &Path) -> PathBuf {
    root.join("lock")
}

/// A new folder for the agent's user alone.
pub(crate) fn make(path: &Path) -> Result<(), FolderError> {
    let made = DirBuilder::new().mode(PRIVATE).create(path);
    made.map_err(failed("create", path))
}

pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io {
        doing,
        path,
        source,
    }
}
