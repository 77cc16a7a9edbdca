//! Bytes that attempts leave behind: logs and artifacts, as files in one folder that several
//! servers may share.
//!
//! `<run>/<job>/<attempt>/<epoch>/` holds the folder `log` and, per artifact, `meta-<id>` (as
//! announced), `sealed-<id>` and `artifact-<id>` (as received). The epoch is part of the path, so a
//! stale writer cannot touch the winner's bytes (D4). `parts/` holds what is not whole yet. The
//! files are the only truth: nothing is remembered here that another server could have changed. Who
//! may write is checked before this is asked; here is only where bytes lie, and how many they may
//! be. `caches/` is another module's.

mod artifact;
mod id;
mod log;
pub mod references;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use delta_core::{LeaseKey, RunId};
use rustix::fs::{FlockOperation, flock};

use crate::writer::random;

pub(crate) use artifact::SILENT;
pub use artifact::{ArtifactMeta, MAX_ARTIFACT_BYTES, Part, Sealed};
pub use id::UploadId;
pub use log::{AppendError, Cursors, LogExtent, LogReader, LogWatch, MAX_LOG_BYTES};

/// Locks among the threads of this server: enough that two leases rarely meet at one.
const STRIPES: usize = 64;
/// After this long without a byte nobody is sending a part any more: senders are given up after
/// half a minute, and the clocks of file servers are not that wrong.
pub const DEAD_PART: Duration = Duration::from_secs(3600);
/// What a probe writes: file systems hand out room by the page.
const PROBE_BYTES: usize = 4096;
/// How often the deletion of a folder is begun again because another server deletes it, too.
const DELETE_TRIES: usize = 5;

pub struct Objects {
    root: PathBuf,
    /// Artifact bytes of one lease.
    quota: u64,
    stripes: [Mutex<()>; STRIPES],
    logs: log::Logs,
}

impl Objects {
    /// Makes the folder where need be, for this user alone, and sees that it can be written to and
    /// that its files can be locked.
    pub fn open(root: PathBuf) -> io::Result<Objects> {
        let objects = Objects::open_to_look(root)?;
        make_folder(&objects.parts())?;
        let probe = objects.parts().join(format!("{}.part", fresh()));
        let locked = lock(&probe);
        std::fs::remove_file(&probe)?;
        locked.map(|_| objects)
    }

    /// Whether something more can be written: a page, which is thrown away again.
    pub fn probe(&self) -> io::Result<()> {
        let probe = self.parts().join(format!("{}.part", fresh()));
        let written = std::fs::write(&probe, [0; PROBE_BYTES]);
        let removed = std::fs::remove_file(&probe);
        written.and(removed)
    }

    /// The folder as it is, if there is one: nothing is made or tried.
    pub fn open_to_look(root: PathBuf) -> io::Result<Objects> {
        Ok(Objects {
            root,
            quota: MAX_ARTIFACT_BYTES,
            stripes: std::array::from_fn(|_| Mutex::default()),
            logs: log::Logs::start()?,
        })
    }

    /// Runs that have something here, deleted ones included.
    pub fn runs(&self) -> io::Result<Vec<RunId>> {
        let mut runs = Vec::new();
        let entries = match std::fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(runs),
            entries => entries?,
        };
        for entry in entries {
            let run = entry?.file_name().to_str().map(str::parse::<RunId>);
            runs.extend(run.and_then(Result::ok));
        }
        Ok(runs)
    }

    /// Deletes what a run left. Nothing there is as good, and another server may be at it, too.
    pub fn delete_run(&self, run: RunId) -> io::Result<()> {
        let folder = self.root.join(run.to_string());
        let mut deleted = std::fs::remove_dir_all(&folder);
        for _ in 0..DELETE_TRIES {
            if !folder.exists() {
                return Ok(());
            }
            deleted = std::fs::remove_dir_all(&folder);
        }
        deleted
    }

    /// Deletes parts that nobody has written to for `age`: their server is gone. Younger ones may
    /// be in the hands of a server that shares the folder.
    pub fn delete_parts(&self, age: Duration) -> io::Result<usize> {
        let mut deleted = 0;
        for entry in std::fs::read_dir(self.parts())? {
            let entry = entry?;
            let Ok(written) = entry.metadata().and_then(|it| it.modified()) else {
                continue;
            };
            let old = SystemTime::now()
                .duration_since(written)
                .is_ok_and(|since| since >= age);
            deleted += usize::from(old && std::fs::remove_file(entry.path()).is_ok());
        }
        Ok(deleted)
    }

    fn parts(&self) -> PathBuf {
        self.root.join("parts")
    }

    /// A folder beside those of runs.
    pub(crate) fn folder_of(&self, what: &str) -> PathBuf {
        self.root.join(what)
    }

    /// A file of one's own for what is not whole yet.
    pub(crate) fn fresh_part(&self, what: &str) -> io::Result<(File, PathBuf)> {
        let path = self.parts().join(format!("{what}.{}.part", fresh()));
        Ok((create(&path)?, path))
    }

    pub(crate) fn make_folder(&self, folder: &Path) -> io::Result<()> {
        make_folder(folder)
    }

    /// Writes a small file unless there is one of that name; false when there is.
    pub(crate) fn write_once(&self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        let (mut file, written) = self.fresh_part("entry")?;
        let linked = file.write_all(bytes).and_then(|()| {
            file.sync_all()?;
            std::fs::hard_link(&written, path)
        });
        let _ = std::fs::remove_file(&written);
        match linked {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            linked => linked.map(|()| true),
        }
    }

    fn folder(&self, lease: LeaseKey) -> PathBuf {
        let attempt = lease.attempt;
        self.root
            .join(attempt.run().to_string())
            .join(attempt.job.n.to_string())
            .join(attempt.index.to_string())
            .join(lease.epoch.to_string())
    }

    /// Does something in a lease's folder with nobody else in it: no thread of this server, and
    /// none of another that shares the folder. Where there is no folder there is nothing to do.
    fn alone<T, E: From<io::Error>>(
        &self,
        lease: LeaseKey,
        work: impl FnOnce(&Path) -> Result<T, E>,
    ) -> Result<T, E> {
        let stripe = (lease.epoch ^ lease.attempt.run().0 as u64) as usize % STRIPES;
        // A network's file lock may be one per process, so that threads need their own.
        let _thread = self.stripes[stripe]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let folder = self.folder(lease);
        let _server = lock(&folder.join("lock"))?;
        work(&folder)
    }

    /// Makes a folder on disk what it is in memory, and the way to it from the root.
    pub(crate) fn sync(&self, folder: &Path) -> io::Result<()> {
        for folder in folder.ancestors() {
            File::open(folder)?.sync_all()?;
            if folder == self.root {
                break;
            }
        }
        Ok(())
    }

    /// Writes a small file so that it is there whole or not at all. Its folder is the caller's to
    /// sync.
    fn write_whole(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let written = self.parts().join(format!("{}.part", fresh()));
        let write = || {
            let mut file = create(&written)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&written, path)
        };
        let done = write();
        if done.is_err() {
            // On a full disk each try would leave another one.
            let _ = std::fs::remove_file(&written);
        }
        done
    }
}

/// A name nobody else has: servers that share the folder must not meet in one file.
pub(crate) fn fresh() -> String {
    format!("{:016x}", u64::from_be_bytes(random()))
}

fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
}

/// Locks a file until what is returned is dropped, or this process dies.
fn lock(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)?;
    rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn lease() -> LeaseKey {
        RunId(7).job(2).attempt(1).lease(4_294_967_297)
    }

    /// Two servers that share a folder.
    pub(super) fn pair() -> (tempfile::TempDir, Objects, Objects) {
        let folder = tempfile::tempdir().unwrap();
        let open = || Objects::open(folder.path().join("objects")).unwrap();
        let (one, two) = (open(), open());
        (folder, one, two)
    }

    pub(super) fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<std::fs::DirEntry>| {
            let name = entry.unwrap().file_name();
            name.into_string().unwrap()
        };
        let mut names: Vec<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_run_left_is_deleted_by_whoever_comes_first() {
        let (_folder, one, two) = pair();
        one.make_log(lease()).unwrap();
        assert_eq!(two.runs().unwrap(), [RunId(7)]);
        two.delete_run(RunId(7)).unwrap();
        one.delete_run(RunId(7)).unwrap();
        assert_eq!(one.runs().unwrap(), []);
        let gone = one.append_log_here(lease(), 0, b"late").unwrap_err();
        assert!(matches!(gone, AppendError::Unknown), "{gone:?}");
        assert_eq!(one.runs().unwrap(), [], "and nothing brings it back");
    }

    #[test]
    fn only_parts_of_servers_that_are_gone_are_deleted() {
        let (_folder, one, two) = pair();
        let meta = ArtifactMeta {
            name: "a".into(),
            kind: None,
            size: None,
            sha256: None,
        };
        let id = one.new_artifact(lease(), &meta).unwrap().unwrap();
        let being_sent = two.part(id).unwrap();
        assert_eq!(one.delete_parts(DEAD_PART).unwrap(), 0);
        assert_eq!(one.delete_parts(Duration::ZERO).unwrap(), 1);
        drop(being_sent);
    }

    // F44
    #[test]
    fn what_could_not_be_written_leaves_no_part() {
        let (folder, one, _) = pair();
        // Where it is to be is a folder with something in it.
        let taken = folder.path().join("taken");
        std::fs::create_dir_all(taken.join("by")).unwrap();
        one.write_whole(&taken, b"bytes").unwrap_err();
        assert_eq!(names(&one.parts()), [""; 0]);
        one.write_whole(&folder.path().join("free"), b"bytes")
            .unwrap();
        assert_eq!(names(&one.parts()), [""; 0]);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(Objects::open(file).is_err());
    }
}
