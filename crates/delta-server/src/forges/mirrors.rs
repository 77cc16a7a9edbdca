//! The copies of repositories that plans are made from: whose turn it is to fetch into one, when
//! each was used last, and the end of those that nobody needs any more.
//!
//! A copy is only ever a copy: whatever is removed here is fetched anew when it is needed. What is
//! not named like one is left alone.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::keyed_limit::{KeyedLimit, KeyedPermit};

/// How long a copy that is not used is kept.
pub const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Fetches at a time: each waits for a network, most of the time.
const AT_ONCE: usize = 8;
/// Fetches at a time from one host: others get their turn while it does not answer.
const FROM_A_HOST: usize = 4;

/// One fetch at a time into each copy, and none into one that is being removed.
pub struct Mirrors {
    locks: Mutex<HashMap<PathBuf, Arc<tokio::sync::Mutex<()>>>>,
    hosts: KeyedLimit<String>,
}

impl Default for Mirrors {
    fn default() -> Mirrors {
        Mirrors {
            locks: Mutex::default(),
            hosts: KeyedLimit::new(FROM_A_HOST, AT_ONCE),
        }
    }
}

/// The right to fetch into one copy. None of it is taken by who only waits for another part of it,
/// but what is narrower: the copy first, then the host, then the machine.
pub struct Turn {
    _copy: tokio::sync::OwnedMutexGuard<()>,
    _place: KeyedPermit<String>,
}

impl Mirrors {
    /// Waits until it may be fetched from this host into this copy.
    pub async fn turn(&self, folder: &Path, host: &str) -> Turn {
        let copy = self.lock(folder).lock_owned().await;
        Turn {
            _copy: copy,
            _place: self.hosts.take(host.to_owned()).await,
        }
    }

    pub fn lock(&self, folder: &Path) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.entry(folder.to_owned()).or_default().clone()
    }

    /// Removes the copies below a folder that were not used for so long; how many.
    pub async fn trim(&self, folder: &Path, kept: Duration) -> usize {
        let below = folder.to_owned();
        let old = tokio::task::spawn_blocking(move || unused(&below, kept)).await;
        let mut gone = 0;
        for mirror in old.ok().and_then(Result::ok).unwrap_or_default() {
            let lock = self.lock(&mirror);
            // Whoever fetches into it needs it.
            let Ok(_lock) = lock.try_lock() else { continue };
            let path = mirror.clone();
            let removed = tokio::task::spawn_blocking(move || fs::remove_dir_all(path)).await;
            match removed.map_err(io::Error::other).flatten() {
                Ok(()) => gone += 1,
                Err(error) => tracing::warn!(%error, "a copy of a repository was not removed"),
            }
        }
        gone
    }
}

/// Notes that a copy was used now. Nothing depends on it but how long it is kept.
pub fn used(mirror: &Path) {
    let now = SystemTime::now();
    let _ = File::open(mirror).and_then(|folder| folder.set_modified(now));
}

fn unused(folder: &Path, kept: Duration) -> io::Result<Vec<PathBuf>> {
    let mut old = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let about = fs::symlink_metadata(&path)?;
        let age = about.modified()?.elapsed().unwrap_or_default();
        let named = path.extension().is_some_and(|it| it == "git");
        if named && about.is_dir() && age > kept {
            old.push(path);
        }
    }
    Ok(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(below: &Path, name: &str, age: Duration) -> PathBuf {
        let path = below.join(name);
        fs::create_dir_all(path.join("objects")).unwrap();
        let then = SystemTime::now() - age;
        File::open(&path).unwrap().set_modified(then).unwrap();
        path
    }

    #[tokio::test]
    async fn a_copy_goes_when_nobody_has_used_it_for_long() {
        let place = tempfile::tempdir().unwrap();
        let long = KEPT + Duration::from_secs(60);
        let [old, busy, again, other] = ["old.git", "busy.git", "again.git", "notes"]
            .map(|name| copy(place.path(), name, long));
        let young = copy(place.path(), "young.git", Duration::from_secs(60));
        let mirrors = Mirrors::default();
        let lock = mirrors.lock(&busy);
        let fetching = lock.lock().await;
        used(&again);
        assert_eq!(mirrors.trim(place.path(), KEPT).await, 1);
        assert!(!old.exists());
        for left in [&busy, &again, &other, &young] {
            assert!(left.exists(), "{}", left.display());
        }
        drop(fetching);
        assert_eq!(mirrors.trim(place.path(), KEPT).await, 1);
        assert!(!busy.exists());
        let none = place.path().join("none");
        assert_eq!(mirrors.trim(&none, KEPT).await, 0);
    }
}
