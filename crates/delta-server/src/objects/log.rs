//! Logs: one file per lease, which only grows, and only at its end (A27).

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use aws_lc_rs::digest::{Context, SHA256};
use delta_core::{Digest, LeaseKey};

use super::{Objects, make_folder};

/// Log bytes of one lease: more than anybody reads, little enough for a disk to hold many.
pub const MAX_LOG_BYTES: u64 = 256 * 1024 * 1024;
/// Remembered hashes of logs; beyond it the memory starts anew.
const MAX_HASHED: usize = 10_000;

/// Why bytes were not appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("there is no such upload")]
    Unknown,
    #[error("the next byte of this log is {expected}")]
    Gap { expected: u64 },
    #[error("these bytes differ from those stored at the same place")]
    Differs { expected: u64 },
    #[error("a log has at most {MAX_LOG_BYTES} bytes")]
    Full,
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for AppendError {
    fn from(error: io::Error) -> AppendError {
        match error.kind() {
            io::ErrorKind::NotFound => AppendError::Unknown,
            _ => AppendError::Io(error),
        }
    }
}

impl Objects {
    /// Makes room for a lease's log, if there is none yet. When this returns the file is on disk,
    /// and from then on only its bytes have to be.
    pub fn make_log(&self, lease: LeaseKey) -> io::Result<()> {
        let folder = self.folder(lease);
        make_folder(&folder)?;
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(folder.join("log"))?
            .sync_all()?;
        self.sync(&folder)
    }

    /// Adds log bytes that begin at `offset`; returns how many there are now, all on disk. Bytes
    /// that are there already must be equal (A27).
    pub fn append_log(
        &self,
        lease: LeaseKey,
        offset: u64,
        bytes: &[u8],
    ) -> Result<u64, AppendError> {
        self.alone(lease, |folder| {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).open(folder.join("log"))?;
            let length = file.metadata()?.len();
            if offset > length {
                return Err(AppendError::Gap { expected: length });
            }
            let known = usize::try_from(length - offset)
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            let (overlap, fresh) = bytes.split_at(known);
            let mut stored = vec![0; known];
            file.read_exact_at(&mut stored, offset)?;
            if stored != overlap {
                return Err(AppendError::Differs { expected: length });
            }
            if length + fresh.len() as u64 > MAX_LOG_BYTES {
                return Err(AppendError::Full);
            }
            // Synced even if all of it was there: whoever wrote it may have died before it did.
            let written = file.write_all_at(fresh, length);
            if let Err(error) = written.and_then(|()| file.sync_data()) {
                // What may not be on disk must not look received when it is sent again.
                let _ = file.set_len(length);
                return Err(error.into());
            }
            Ok(length + fresh.len() as u64)
        })
    }

    pub fn log_path(&self, lease: LeaseKey) -> PathBuf {
        self.folder(lease).join("log")
    }

    /// Bytes of a lease's log; none when it has no log.
    pub fn log_length(&self, lease: LeaseKey) -> Option<u64> {
        let length = std::fs::metadata(self.log_path(lease)).ok()?.len();
        (length > 0).then_some(length)
    }

    /// Whether a lease's log, `length` bytes of it, has this hash. Read once per length.
    pub fn log_has_hash(&self, lease: LeaseKey, length: u64, hash: &Digest) -> bool {
        let known = self.hashed().get(&lease).copied();
        if let Some((_, found)) = known.filter(|(of, _)| *of == length) {
            return found == *hash;
        }
        let Ok(found) = hash_of(&self.log_path(lease), length) else {
            return false;
        };
        let mut memory = self.hashed();
        if memory.len() >= MAX_HASHED {
            memory.clear();
        }
        memory.insert(lease, (length, found));
        found == *hash
    }

    fn hashed(&self) -> MutexGuard<'_, HashMap<LeaseKey, (u64, Digest)>> {
        self.hashed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash_of(path: &Path, length: u64) -> io::Result<Digest> {
    let mut file = File::open(path)?.take(length);
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        context.update(&buffer[..read]);
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{lease, pair};
    use super::*;

    #[test]
    fn a_log_grows_at_its_end_only_whichever_server_gets_the_bytes() {
        // A27
        let (_folder, one, two) = pair();
        let early = one.append_log(lease(), 0, b"abc").unwrap_err();
        assert!(matches!(early, AppendError::Unknown), "{early:?}");
        one.make_log(lease()).unwrap();
        assert_eq!(one.log_length(lease()), None);
        assert_eq!(one.append_log(lease(), 0, b"abc").unwrap(), 3);
        assert_eq!(two.append_log(lease(), 3, b"def").unwrap(), 6);
        two.make_log(lease()).unwrap();
        assert_eq!(
            one.append_log(lease(), 3, b"defg").unwrap(),
            7,
            "an equal overlap"
        );
        let gap = two.append_log(lease(), 9, b"x").unwrap_err();
        assert!(matches!(gap, AppendError::Gap { expected: 7 }));
        let differs = one.append_log(lease(), 0, b"abX").unwrap_err();
        assert!(matches!(differs, AppendError::Differs { expected: 7 }));
        assert_eq!(std::fs::read(two.log_path(lease())).unwrap(), b"abcdefg");
    }

    #[test]
    fn two_servers_that_get_the_same_bytes_at_once_store_them_once() {
        // A27: a runner that lost an answer sends again, and a balancer picks another server.
        let (_folder, one, two) = pair();
        one.make_log(lease()).unwrap();
        let pieces: Vec<Vec<u8>> = (0..100_u8).map(|n| vec![n; 100]).collect();
        std::thread::scope(|scope| {
            for server in [&one, &two, &one] {
                scope.spawn(|| {
                    for (n, piece) in pieces.iter().enumerate() {
                        server.append_log(lease(), n as u64 * 100, piece).unwrap();
                    }
                });
            }
        });
        let stored = std::fs::read(one.log_path(lease())).unwrap();
        assert!(stored == pieces.concat(), "{} bytes", stored.len());
    }

    #[test]
    fn a_hash_is_taken_anew_when_another_server_added_bytes() {
        let (_folder, one, two) = pair();
        let hash = |text: &[u8]| {
            let mut digest = [0; 32];
            digest.copy_from_slice(aws_lc_rs::digest::digest(&SHA256, text).as_ref());
            digest
        };
        one.make_log(lease()).unwrap();
        one.append_log(lease(), 0, b"abc").unwrap();
        assert!(!one.log_has_hash(lease(), 3, &hash(b"abcdef")));
        two.append_log(lease(), 3, b"def").unwrap();
        assert!(one.log_has_hash(lease(), 6, &hash(b"abcdef")));
        assert!(one.log_has_hash(lease(), 3, &hash(b"abc")));
    }
}
