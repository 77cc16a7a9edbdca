//! The agent's state on disk: one private folder, one agent at a time, a folder per attempt.
//!
//! It lies outside every workspace. What is in it is the only way back to a running job, and what a
//! job must never read: the notes hold lease tokens.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use delta_shim::groups::control_group::Group;
use delta_shim::key::fresh_key;
use delta_shim::order::{GROUP_FILE, MEMORY_FILE, ORDER_FILE, Order, RECORD_FILE, Record};

use crate::private_folder::{self, ATTEMPTS, FolderError, PRIVATE, PrivateFolder};

const NOTE_FILE: &str = "note";

/// What this agent's containers are labelled with.
const OWNER_FILE: &str = "owner";

/// Characters of a socket's path that every system takes.
const MAX_SOCKET_PATH: usize = 100;

/// The folder in which an agent remembers its attempts. Held locked until dropped.
#[derive(Debug)]
pub struct StateFolder {
    folder: PrivateFolder,
    next: AtomicU64,
}

impl StateFolder {
    /// Makes the folder or takes it over.
    pub fn open(root: &Path) -> Result<StateFolder, FolderError> {
        let folder = PrivateFolder::open(root)?;
        folder.protect()?;
        let state = StateFolder {
            folder,
            next: AtomicU64::new(1),
        };
        let last = state.attempts().last().map_or(0, |(number, _)| *number);
        state.next.store(last + 1, Ordering::Relaxed);
        Ok(state)
    }

    pub fn path(&self) -> &Path {
        &self.folder.root
    }

    /// Tells what belongs to this folder's agent from what belongs to another's on the same
    /// machine. The same for as long as the folder is there; made when it is first asked for.
    pub fn owner(&self) -> io::Result<String> {
        if let Some(owner) = self.known_owner() {
            return Ok(owner);
        }
        let path = self.path().join(OWNER_FILE);
        let draft = path.with_extension(fresh_key());
        let owner = fresh_key();
        write_private(&draft, owner.as_bytes())?;
        // Two slots may ask at once: the first one's is everybody's.
        let made = fs::hard_link(&draft, &path);
        fs::remove_file(&draft)?;
        match made {
            Err(problem) if problem.kind() != io::ErrorKind::AlreadyExists => Err(problem),
            _ => self
                .known_owner()
                .ok_or_else(|| io::Error::other("its owner cannot be read")),
        }
    }

    /// The mark of this agent's processes, when anything was ever marked with it.
    pub fn known_owner(&self) -> Option<String> {
        let owner = fs::read_to_string(self.path().join(OWNER_FILE)).ok()?;
        let whole = owner.len() == 32 && owner.bytes().all(|byte| byte.is_ascii_hexdigit());
        whole.then_some(owner)
    }

    /// A file in it that is always there.
    pub(crate) fn lock_file(&self) -> PathBuf {
        private_folder::lock_file(self.path())
    }

    /// A number that no attempt in this folder has.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Numbers up to this one are taken elsewhere.
    pub fn skip_to(&self, taken: u64) {
        self.next
            .fetch_max(taken.saturating_add(1), Ordering::Relaxed);
    }

    pub(super) fn folder(&self, number: u64) -> PathBuf {
        self.path().join(ATTEMPTS).join(number.to_string())
    }

    pub(super) fn make(&self, number: u64) -> io::Result<PathBuf> {
        let folder = self.folder(number);
        DirBuilder::new().mode(PRIVATE).create(&folder)?;
        Ok(folder)
    }

    /// What is there, by number.
    pub(super) fn attempts(&self) -> Vec<(u64, PathBuf)> {
        let entries = fs::read_dir(self.path().join(ATTEMPTS))
            .into_iter()
            .flatten();
        let numbered = entries.flatten().filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, entry.path()))
        });
        let mut attempts: Vec<_> = numbered.collect();
        attempts.sort();
        attempts
    }
}

/// Writes what the shim and the next agent need. Not synced: nothing of it outlives the boot.
pub(super) fn write(folder: &Path, note: &[u8], order: &Order) -> io::Result<()> {
    write_private(&folder.join(NOTE_FILE), note)?;
    write_private(&folder.join(ORDER_FILE), &serde_json::to_vec(order)?)
}

pub(super) fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)
}

pub(super) fn read(folder: &Path) -> Option<(Vec<u8>, Order)> {
    let note = fs::read(folder.join(NOTE_FILE)).ok()?;
    let order = fs::read(folder.join(ORDER_FILE)).ok()?;
    Some((note, serde_json::from_slice(&order).ok()?))
}

pub(super) fn read_record(folder: &Path) -> Option<Record> {
    let bytes = fs::read(folder.join(RECORD_FILE)).ok()?;
    let record = serde_json::from_slice(&bytes);
    if let Err(problem) = &record {
        tracing::error!(folder = %folder.display(), error = %problem, "an unreadable record");
    }
    record.ok()
}

/// The control group the shim has told of, and the one that counted its memory.
pub(super) fn groups(folder: &Path) -> (Option<Group>, Option<Group>) {
    use std::os::unix::ffi::OsStringExt;
    let group = |file| {
        let path = fs::read(folder.join(file)).ok()?;
        Group::at(std::ffi::OsString::from_vec(path).into())
    };
    (group(GROUP_FILE), group(MEMORY_FILE))
}

pub(super) fn remove(folder: &Path) {
    if let Err(problem) = fs::remove_dir_all(folder) {
        tracing::warn!(folder = %folder.display(), error = %problem, "left behind");
    }
}

/// Does something with the path of a socket, by a shorter one when it is too long for a socket.
pub(super) fn in_reach<T>(path: &Path, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() < MAX_SOCKET_PATH {
        return act(path);
    }
    let folder = File::open(path.parent().unwrap_or(Path::new("/")))?;
    let through = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    act(&through.join(path.file_name().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_state_folder_is_private_and_has_one_owner() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().join("state");
        let first = StateFolder::open(&root).expect("a state folder");
        let mode = fs::metadata(&root).expect("a folder").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let again = StateFolder::open(&root);
        assert!(matches!(again, Err(FolderError::InUse { .. })), "{again:?}");
        let number = first.number();
        first.make(number).expect("an attempt");
        assert_eq!(first.known_owner(), None);
        let owner = first.owner().expect("an owner");
        drop(first);
        let second = StateFolder::open(&root).expect("a state folder");
        assert!(second.number() > number, "numbers are never used again");
        assert_eq!(second.known_owner(), Some(owner), "it stays the same");
        second.skip_to(40);
        second.skip_to(7);
        assert_eq!(second.number(), 41, "nor those that are taken elsewhere");
    }

    #[test]
    fn a_socket_may_lie_deep() {
        let place = tempfile::tempdir().expect("a folder");
        let deep = place.path().join("x".repeat(120));
        fs::create_dir(&deep).expect("a folder");
        let path = deep.join("control");
        let bound = in_reach(&path, |path| std::os::unix::net::UnixListener::bind(path));
        let _listener = bound.expect("a socket");
        let connected = in_reach(&path, |path| std::os::unix::net::UnixStream::connect(path));
        connected.expect("a connection");
    }
}
