//! Bytes that attempts leave behind: logs and artifacts, as files below `DATA/objects`.
//!
//! `<run>/<job>/<attempt>/<epoch>/log` and `…/artifact-<id>`. The epoch is part of the path, so a
//! stale writer cannot touch the winner's bytes (D4). Who may write is checked before this is
//! asked; here is only where bytes lie, and how many they may be.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use aws_lc_rs::digest::{Context, SHA256};
use delta_core::{Digest, LeaseKey, RunId};
use serde::{Deserialize, Serialize};

use crate::writer::random;

/// Log bytes of one lease: more than anybody reads, little enough for a disk to hold many.
pub const MAX_LOG_BYTES: u64 = 256 * 1024 * 1024;
/// Artifact bytes of one lease.
pub const MAX_ARTIFACT_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// Artifacts of one lease: what one Complete may name.
const MAX_ARTIFACTS: usize = 1000;
/// Locks for appending: enough that two logs rarely meet at one.
const STRIPES: usize = 64;
/// Remembered results of checking a finished log's hash; beyond it the memory starts anew.
const MAX_CHECKED: usize = 10_000;

pub struct Objects {
    root: PathBuf,
    stripes: [Mutex<()>; STRIPES],
    checked: Mutex<HashMap<LeaseKey, bool>>,
}

/// An upload a lease may write to: its log, or one artifact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadId {
    pub lease: LeaseKey,
    /// `None` is the log.
    pub artifact: Option<u64>,
}

/// What is known of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactMeta {
    pub name: String,
    pub size: Option<u64>,
    pub sha256: Option<String>,
}

/// Why bytes were not appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("the next byte of this log is {expected}")]
    Gap { expected: u64 },
    #[error("these bytes differ from those stored at the same place")]
    Differs { expected: u64 },
    #[error("a log has at most {MAX_LOG_BYTES} bytes")]
    Full,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Objects {
    pub fn new(root: PathBuf) -> Objects {
        Objects {
            root,
            stripes: std::array::from_fn(|_| Mutex::default()),
            checked: Mutex::default(),
        }
    }

    /// Adds log bytes that begin at `offset`; returns how many there are now, all on disk. Bytes
    /// that are there already must be equal (A27).
    pub fn append_log(
        &self,
        lease: LeaseKey,
        offset: u64,
        bytes: &[u8],
    ) -> Result<u64, AppendError> {
        let stripe = (lease.epoch ^ lease.attempt.job.run.0 as u64) as usize % STRIPES;
        let _alone = self.stripes[stripe]
            .lock()
            .unwrap_or_else(|e| e.into_inner());
        let path = self.log_path(lease);
        make_folder_of(&path)?;
        let mut options = OpenOptions::new();
        let mut file = options
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)?;
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
        if !fresh.is_empty() {
            file.seek(SeekFrom::Start(length))?;
            file.write_all(fresh)?;
            file.sync_data()?;
        }
        Ok(length + fresh.len() as u64)
    }

    pub fn log_path(&self, lease: LeaseKey) -> PathBuf {
        self.folder(lease).join("log")
    }

    /// Bytes of a lease's log; none when it has no log.
    pub fn log_length(&self, lease: LeaseKey) -> Option<u64> {
        let length = std::fs::metadata(self.log_path(lease)).ok()?.len();
        (length > 0).then_some(length)
    }

    /// Whether the log of an ended lease has this hash. Read once; it does not change any more.
    pub fn log_has_hash(&self, lease: LeaseKey, hash: &Digest) -> bool {
        let known = |memory: &HashMap<LeaseKey, bool>| memory.get(&lease).copied();
        if let Some(known) = known(&self.checked.lock().unwrap_or_else(|e| e.into_inner())) {
            return known;
        }
        let has = hash_of(&self.log_path(lease)).is_ok_and(|found| found == *hash);
        let mut memory = self.checked.lock().unwrap_or_else(|e| e.into_inner());
        if memory.len() >= MAX_CHECKED {
            memory.clear();
        }
        memory.insert(lease, has);
        has
    }

    /// Makes room for an artifact; `None` when the lease has too many.
    pub fn new_artifact(
        &self,
        lease: LeaseKey,
        meta: &ArtifactMeta,
    ) -> io::Result<Option<UploadId>> {
        let id = UploadId {
            lease,
            artifact: Some(u64::from_be_bytes(random())),
        };
        let path = self.meta_path(id);
        make_folder_of(&path)?;
        let entries = std::fs::read_dir(self.folder(lease))?.count();
        if entries > MAX_ARTIFACTS * 2 {
            return Ok(None);
        }
        std::fs::write(path, serde_json::to_vec(meta)?)?;
        Ok(Some(id))
    }

    pub fn artifact_meta(&self, id: UploadId) -> Option<ArtifactMeta> {
        serde_json::from_slice(&std::fs::read(self.meta_path(id)).ok()?).ok()
    }

    /// A file to receive an artifact's bytes into; nobody sees it before [`Objects::seal`].
    pub fn part(&self, id: UploadId) -> PathBuf {
        self.artifact_path(id).with_extension("part")
    }

    /// The part is whole and right: make it the artifact.
    pub fn seal(&self, id: UploadId, part: &Path, meta: &ArtifactMeta) -> io::Result<()> {
        let written = self.meta_path(id).with_extension("new");
        std::fs::write(&written, serde_json::to_vec(meta)?)?;
        std::fs::rename(written, self.meta_path(id))?;
        std::fs::rename(part, self.artifact_path(id))?;
        File::open(self.folder(id.lease))?.sync_all()
    }

    /// The artifact, if all of it is there.
    pub fn artifact(&self, id: UploadId) -> Option<ArtifactMeta> {
        self.artifact_path(id)
            .exists()
            .then(|| self.artifact_meta(id))?
    }

    /// Artifact bytes a lease has stored so far.
    pub fn artifact_bytes(&self, lease: LeaseKey) -> u64 {
        let Ok(entries) = std::fs::read_dir(self.folder(lease)) else {
            return 0;
        };
        let sizes = entries.filter_map(|entry| {
            let entry = entry.ok()?;
            let counts = entry.file_name().to_string_lossy().starts_with("artifact-");
            counts.then(|| entry.metadata().map_or(0, |it| it.len()))
        });
        sizes.sum()
    }

    pub fn artifact_path(&self, id: UploadId) -> PathBuf {
        self.folder(id.lease)
            .join(format!("artifact-{:016x}", id.artifact.unwrap_or(0)))
    }

    fn meta_path(&self, id: UploadId) -> PathBuf {
        self.folder(id.lease)
            .join(format!("meta-{:016x}", id.artifact.unwrap_or(0)))
    }

    fn folder(&self, lease: LeaseKey) -> PathBuf {
        let attempt = lease.attempt;
        self.root
            .join(attempt.run().to_string())
            .join(attempt.job.n.to_string())
            .join(attempt.index.to_string())
            .join(lease.epoch.to_string())
    }
}

fn make_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder),
        None => Ok(()),
    }
}

fn hash_of(path: &Path) -> io::Result<Digest> {
    let mut file = File::open(path)?;
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

/// `<32 hex>-<job>-<attempt>-<epoch>-log` or `…-<16 hex>`: says where the bytes go, and nothing
/// that is secret.
impl std::fmt::Display for UploadId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let attempt = self.lease.attempt;
        let (run, n, index) = (attempt.run().0, attempt.job.n, attempt.index);
        write!(f, "{run:032x}-{n}-{index}-{}-", self.lease.epoch)?;
        match self.artifact {
            None => f.write_str("log"),
            Some(id) => write!(f, "{id:016x}"),
        }
    }
}

impl std::str::FromStr for UploadId {
    type Err = ();

    fn from_str(text: &str) -> Result<UploadId, ()> {
        let parts: Vec<&str> = text.split('-').collect();
        let [run, n, index, epoch, what] = parts[..] else {
            return Err(());
        };
        let run = RunId(u128::from_str_radix(run, 16).map_err(drop)?);
        let job = run.job(n.parse().map_err(drop)?);
        let attempt = job.attempt(index.parse().map_err(drop)?);
        let id = UploadId {
            lease: attempt.lease(epoch.parse().map_err(drop)?),
            artifact: match what {
                "log" => None,
                id => Some(u64::from_str_radix(id, 16).map_err(drop)?),
            },
        };
        // Only the one spelling that is handed out.
        if id.to_string() == text {
            Ok(id)
        } else {
            Err(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> LeaseKey {
        RunId(7).job(2).attempt(1).lease(4_294_967_297)
    }

    #[test]
    fn a_log_grows_at_its_end_only() {
        // A27
        let folder = tempfile::tempdir().unwrap();
        let objects = Objects::new(folder.path().into());
        assert_eq!(objects.append_log(lease(), 0, b"abc").unwrap(), 3);
        assert_eq!(objects.append_log(lease(), 3, b"def").unwrap(), 6);
        assert_eq!(
            objects.append_log(lease(), 3, b"defg").unwrap(),
            7,
            "an equal overlap"
        );
        let gap = objects.append_log(lease(), 9, b"x").unwrap_err();
        assert!(matches!(gap, AppendError::Gap { expected: 7 }));
        let differs = objects.append_log(lease(), 0, b"abX").unwrap_err();
        assert!(matches!(differs, AppendError::Differs { expected: 7 }));
        assert_eq!(
            std::fs::read(objects.log_path(lease())).unwrap(),
            b"abcdefg"
        );
    }

    #[test]
    fn only_ids_as_handed_out_are_read() {
        let log = UploadId {
            lease: lease(),
            artifact: None,
        };
        let artifact = UploadId {
            artifact: Some(255),
            ..log
        };
        for id in [log, artifact] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let text = log.to_string();
        for bad in [
            "",
            "x",
            "../../etc",
            &text[1..],
            &format!("{text}-"),
            &text.replace("log", "LOG"),
            &text.replace("-2-", "-02-"),
        ] {
            assert_eq!(bad.parse::<UploadId>(), Err(()), "{bad}");
        }
    }

    #[test]
    fn an_artifact_is_seen_when_it_is_sealed() {
        // A49
        let folder = tempfile::tempdir().unwrap();
        let objects = Objects::new(folder.path().into());
        let meta = ArtifactMeta {
            name: "a.txt".into(),
            size: None,
            sha256: None,
        };
        let id = objects.new_artifact(lease(), &meta).unwrap().unwrap();
        let part = objects.part(id);
        std::fs::write(&part, b"bytes").unwrap();
        assert_eq!(objects.artifact(id), None);
        objects.seal(id, &part, &meta).unwrap();
        assert_eq!(objects.artifact(id), Some(meta));
        assert_eq!(objects.artifact_bytes(lease()), 5);
    }
}
