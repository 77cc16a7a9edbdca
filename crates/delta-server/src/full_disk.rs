//! A start on a disk without room, told apart from everything else that may be wrong with a disk.
//!
//! The engine says of some writes only that they failed, and what fails first depends on how little
//! is left: so the disk itself is asked. Owns the question, and no answer about a disk elsewhere.

use std::io;
use std::path::Path;

use delta_store::StoreError;

use crate::{Config, KeyError, StartError, StoreChoice};

/// Bytes below which a failing write of SQLite is held against want of room: it makes a file of
/// 32 KiB for its readers, and asks for a few pages beside it.
const LITTLE: u64 = 64 << 10;

/// What was in the way, or that it was the disk.
pub fn told(error: StartError, config: &Config) -> StartError {
    let (path, why) = match &error {
        StartError::Data { path, source }
        | StartError::SecretKey {
            path,
            why: KeyError::Io(source),
        } if is_full(source) => (path, source.to_string()),
        StartError::Store(why) if config.store == StoreChoice::Sqlite => {
            match engine(why, config) {
                Some(why) => (&config.data, why.clone()),
                None => return error,
            }
        }
        _ => return error,
    };
    let folder = if path.is_dir() {
        path
    } else {
        path.parent().unwrap_or(path)
    };
    StartError::Full {
        folder: folder.to_owned(),
        why,
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

/// What the engine says of a disk without room.
fn engine<'e>(error: &'e StoreError, config: &Config) -> Option<&'e String> {
    match error {
        StoreError::Full(why) => Some(why),
        StoreError::Failing(why) | StoreError::Unavailable(why) => {
            let free = free(&config.data).filter(|bytes| *bytes < LITTLE);
            free.map(|_| why)
        }
        _ => None,
    }
}

/// Bytes that this user may still write.
fn free(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}
