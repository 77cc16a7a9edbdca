//! Repositories kept between attempts, so that the next one fetches only what is new.
//!
//! They lie in the agent's state folder, out of every job's reach, and a workspace gets copies of
//! their objects, never links to them. Runs that are not trusted have repositories of their own,
//! and so has each credential: what one may see is not shown to the other. One checkout at a time
//! uses a repository. What was not left in order is removed, never repaired: it costs one fetch.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest;
use tokio::sync::OwnedMutexGuard;

use crate::private_folder::PRIVATE;

/// Packs in one repository. Each fetch adds one and nothing tidies up, which would take long: past
/// this, looking into all of them takes longer than fetching anew.
const MAX_PACKS: usize = 100;

/// There while a checkout uses the repository.
const OPEN: &str = "open";
/// Touched when one is done with it.
const USED: &str = "used";
/// What waits for its removal.
const GONE: &str = "gone";

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheBounds {
    /// Bytes of all of them; nothing is kept when this is 0.
    pub max_bytes: u64,
    /// Since they were last used.
    pub max_age: Duration,
}

/// Which of them.
pub(crate) struct Key<'a> {
    pub trusted: bool,
    pub url: &'a str,
    /// The secret it was fetched with, by its name.
    pub credential: Option<&'a str>,
    /// A shallow repository says nothing of history.
    pub depth: u32,
    /// Letters of its hashes.
    pub hash_length: usize,
}

impl Key<'_> {
    fn folder(&self) -> PathBuf {
        let credential = self.credential.unwrap_or_default();
        let (depth, length) = (self.depth, self.hash_length);
        let text = format!("{}\0{credential}\0{depth}\0{length}", self.url);
        let hash = digest::digest(&digest::SHA256, text.as_bytes());
        let name: String = hash.as_ref().iter().map(|it| format!("{it:02x}")).collect();
        let trust = if self.trusted { "trusted" } else { "untrusted" };
        Path::new(trust).join(name)
    }
}

type Locks = HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>;

/// All of them. The state folder has one agent at a time, so locks in memory are enough.
#[derive(Debug)]
pub(crate) struct Repositories {
    root: PathBuf,
    locks: Mutex<Locks>,
}

impl Repositories {
    /// Those in this state folder. What an agent that died was using is removed.
    pub fn of_state(state: &Path) -> Arc<Repositories> {
        let repositories = Arc::new(Repositories {
            root: state.join("repositories"),
            locks: Mutex::default(),
        });
        for folder in repositories.all() {
            if folder.join(OPEN).exists() {
                repositories.try_to_discard(&folder);
            }
        }
        repositories.sweep();
        repositories
    }

    /// The repository of this key, for the caller alone until it is given back. Says when it has
    /// to wait for somebody else.
    pub async fn borrow(
        self: &Arc<Self>,
        key: &Key<'_>,
        waits: impl FnOnce(),
    ) -> io::Result<Borrowed> {
        let folder = self.root.join(key.folder());
        let lock = self.lock_of(&folder);
        let guard = match Arc::clone(&lock).try_lock_owned() {
            Ok(guard) => guard,
            Err(_) => {
                waits();
                lock.lock_owned().await
            }
        };
        if folder.join(OPEN).exists() || packs(&folder) > MAX_PACKS {
            self.discard(&folder)?;
        }
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(PRIVATE).create(&folder)?;
        File::create(folder.join(OPEN))?;
        Ok(Borrowed {
            repositories: Arc::clone(self),
            folder,
            in_order: false,
            _guard: guard,
        })
    }

    /// Removes what is too old, and the oldest of what is too much. Takes as long as there are
    /// files: call it where blocking is fine.
    pub fn trim(&self, bounds: CacheBounds, now: SystemTime) {
        let mut kept: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for folder in self.all() {
            let used = fs::metadata(folder.join(USED)).and_then(|it| it.modified());
            let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
            let age = now.duration_since(used).unwrap_or_default();
            if age > bounds.max_age {
                self.discard_unused(&folder)
            } else {
                kept.push((used, size(&folder), folder))
            }
        }
        kept.sort();
        let mut total: u64 = kept.iter().map(|(_, size, _)| size).sum();
        for (_, size, folder) in kept {
            if total <= bounds.max_bytes {
                break;
            }
            self.discard_unused(&folder);
            total = total.saturating_sub(size);
        }
        self.sweep();
    }

    fn all(&self) -> Vec<PathBuf> {
        let trusts = ["trusted", "untrusted"].map(|trust| fs::read_dir(self.root.join(trust)));
        let entries = trusts.into_iter().flatten().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    fn discard_unused(&self, folder: &Path) {
        let lock = self.lock_of(folder);
        if let Ok(_guard) = lock.try_lock()
            && !folder.join(OPEN).exists()
        {
            self.try_to_discard(folder);
        }
    }

    fn try_to_discard(&self, folder: &Path) {
        if let Err(problem) = self.discard(folder) {
            tracing::warn!(error = %problem, "a repository cannot be removed");
        }
    }

    /// Out of sight at once; whoever still writes into it writes into nothing.
    fn discard(&self, folder: &Path) -> io::Result<()> {
        let gone = self.root.join(GONE);
        DirBuilder::new()
            .recursive(true)
            .mode(PRIVATE)
            .create(&gone)?;
        let name = getrandom::u64().map_err(io::Error::other)?;
        match fs::rename(folder, gone.join(format!("{name:016x}"))) {
            Err(problem) if problem.kind() != io::ErrorKind::NotFound => Err(problem),
            _ => Ok(()),
        }
    }

    /// Gives the space back, beside everything else.
    fn sweep(&self) {
        let gone = self.root.join(GONE);
        let waiting = fs::read_dir(&gone).is_ok_and(|mut entries| entries.next().is_some());
        if waiting {
            std::thread::spawn(move || {
                for entry in fs::read_dir(&gone).into_iter().flatten().flatten() {
                    // Another thread may be at it; what is left is tried again.
                    let _ = fs::remove_dir_all(entry.path());
                }
            });
        }
    }

    fn lock_of(&self, folder: &Path) -> Arc<tokio::sync::Mutex<()>> {
        let locks = self.locks.lock();
        let mut locks = locks.unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(folder.to_owned()).or_default())
    }
}

/// A repository in use. Dropped before it is given back, it is removed.
pub(crate) struct Borrowed {
    repositories: Arc<Repositories>,
    folder: PathBuf,
    in_order: bool,
    _guard: OwnedMutexGuard<()>,
}

impl Borrowed {
    /// Where the repository is, or is to be made.
    pub fn git_folder(&self) -> PathBuf {
        self.folder.join("git")
    }

    /// No process is left in it, and what is in it is whole.
    pub fn give_back(mut self) {
        let left = File::create(self.folder.join(USED))
            .and_then(|_| fs::remove_file(self.folder.join(OPEN)));
        self.in_order = left.is_ok();
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if !self.in_order {
            self.repositories.try_to_discard(&self.folder);
            self.repositories.sweep();
        }
    }
}

fn packs(folder: &Path) -> usize {
    let packs = fs::read_dir(folder.join("git/objects/pack"));
    let names = packs.into_iter().flatten().flatten();
    names
        .filter(|it| it.path().extension().is_some_and(|end| end == "pack"))
        .count()
}

/// Bytes of the files below; links count nothing, there are none of ours.
fn size(root: &Path) -> u64 {
    let (mut total, mut open) = (0_u64, vec![root.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => open.push(entry.path()),
                Ok(meta) if meta.is_file() => total = total.saturating_add(meta.len()),
                _ => {}
            }
        }
    }
    total
}
