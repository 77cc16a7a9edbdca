//! Artifacts: announced, received into a part that nobody sees, and sealed once.
//!
//! A part is as long as what is reserved for it, so that servers that share the folder count each
//! other's bytes before they have come.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use delta_core::LeaseKey;
pub use delta_wire::runner::MAX_ARTIFACT_BYTES;
use serde::{Deserialize, Serialize};

use super::{Objects, UploadId, create, fresh, id, make_folder};
use crate::writer::{random, sha256};

/// Artifacts of one lease: what one Complete may name.
const MAX_ARTIFACTS: usize = 1000;
/// Senders of one artifact at a time: one that speaks and a few whose connection broke. They do not
/// count against each other, so that a resend finds room; this bounds what they take together.
const MAX_SENDERS: usize = 4;
/// A part that got no byte for this long reserves nothing: its sender is given up after half a
/// minute, and a server that died cannot say so.
pub(crate) const SILENT: Duration = Duration::from_secs(120);

/// What is known of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactMeta {
    pub name: String,
    /// What it is to people, where the sender says so now and not with the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub size: Option<u64>,
    pub sha256: Option<String>,
}

/// A file that receives an artifact's bytes. Deleted when it is dropped before it was sealed.
#[derive(Debug)]
pub struct Part {
    pub id: UploadId,
    pub file: File,
    pub reserved: u64,
    path: PathBuf,
    sealed: bool,
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.sealed {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What became of a part that was to be sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// It is the artifact, or it equals what was.
    Done,
    /// Other bytes were there first.
    Differs,
}

impl Objects {
    /// Makes room for an artifact; `None` when the lease has too many.
    pub fn new_artifact(
        &self,
        lease: LeaseKey,
        meta: &ArtifactMeta,
    ) -> io::Result<Option<UploadId>> {
        self.announce(lease, u64::from_be_bytes(random()), meta)
    }

    /// Makes room for an artifact that has its name to itself: announced again, it is the same
    /// one, so that whoever did not hear the answer can ask again.
    pub fn named_artifact(
        &self,
        lease: LeaseKey,
        meta: &ArtifactMeta,
    ) -> io::Result<Option<UploadId>> {
        let mut number = [0; 8];
        number.copy_from_slice(&sha256(meta.name.as_bytes())[..8]);
        self.announce(lease, u64::from_be_bytes(number), meta)
    }

    fn announce(
        &self,
        lease: LeaseKey,
        number: u64,
        meta: &ArtifactMeta,
    ) -> io::Result<Option<UploadId>> {
        let id = UploadId {
            lease,
            artifact: Some(number),
        };
        make_folder(&self.folder(lease))?;
        self.alone(lease, |folder| {
            if self.artifact(id)?.is_some() {
                return Ok(Some(id));
            }
            let known = file_of(folder, "meta", id).exists();
            if !known && lengths(folder, "meta-")?.count() >= MAX_ARTIFACTS {
                return Ok(None);
            }
            self.write_whole(&file_of(folder, "meta", id), &serde_json::to_vec(meta)?)?;
            self.sync(folder)?;
            Ok(Some(id))
        })
    }

    /// Stores a small artifact at once; nothing when the lease has too many, or too large ones.
    pub fn keep_artifact(
        &self,
        lease: LeaseKey,
        meta: &ArtifactMeta,
        bytes: &[u8],
    ) -> io::Result<Option<(UploadId, Sealed)>> {
        let Some(id) = self.named_artifact(lease, meta)? else {
            return Ok(None);
        };
        if let Some(there) = self.artifact(id)? {
            let equal = (there.size, &there.sha256) == (meta.size, &meta.sha256);
            return Ok(Some((
                id,
                if equal { Sealed::Done } else { Sealed::Differs },
            )));
        }
        let mut part = self.part(id)?;
        let size = bytes.len() as u64;
        if !self.reserve(&mut part, size, size)? {
            return Ok(None);
        }
        part.file.write_all(bytes)?;
        Ok(Some((id, self.seal(part, meta)?)))
    }

    /// Every artifact of a lease that is there whole, by name.
    pub fn sealed(&self, lease: LeaseKey) -> io::Result<Vec<(UploadId, ArtifactMeta)>> {
        let entries = match std::fs::read_dir(self.folder(lease)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("sealed-"));
            let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
            let Some(artifact) = number else {
                continue;
            };
            let id = UploadId {
                lease,
                artifact: Some(artifact),
            };
            found.extend(self.artifact(id)?.map(|meta| (id, meta)));
        }
        found.sort_by(|(one, left), (two, right)| {
            (&left.name, one.artifact).cmp(&(&right.name, two.artifact))
        });
        Ok(found)
    }

    /// The artifact as it was announced.
    pub fn announced(&self, id: UploadId) -> io::Result<Option<ArtifactMeta>> {
        read_meta(&file_of(&self.folder(id.lease), "meta", id))
    }

    /// The artifact as it was received, if all of it is there. What cannot be looked at is an
    /// error, and never taken for what is not there.
    pub fn artifact(&self, id: UploadId) -> io::Result<Option<ArtifactMeta>> {
        if self.artifact_path(id).try_exists()? {
            read_meta(&file_of(&self.folder(id.lease), "sealed", id))
        } else {
            Ok(None)
        }
    }

    /// The artifact that a result names. That it was announced and never came whole is known
    /// from what was announced; where there is no word of it at all, it is lost or out of reach (a
    /// disk that is not mounted), and somebody can help there.
    pub fn artifact_of_result(&self, id: UploadId) -> io::Result<Option<ArtifactMeta>> {
        if let Some(meta) = self.artifact(id)? {
            return Ok(Some(meta));
        }
        let sealed = file_of(&self.folder(id.lease), "sealed", id).try_exists()?;
        if !sealed && self.announced(id)?.is_some() {
            Ok(None)
        } else {
            let words = format!("the artifact {id}, which a result names, is not there");
            Err(io::Error::new(io::ErrorKind::NotFound, words))
        }
    }

    pub fn artifact_path(&self, id: UploadId) -> PathBuf {
        file_of(&self.folder(id.lease), "artifact", id)
    }

    /// A file of one's own to receive an artifact's bytes into.
    pub fn part(&self, id: UploadId) -> io::Result<Part> {
        let own = format!("{id}.");
        let senders = self.speaking(|name| name.starts_with(&own))?;
        if senders.count() >= MAX_SENDERS {
            return Err(io::Error::other("too many send the same artifact at once"));
        }
        let path = self.parts().join(format!("{id}.{}.part", fresh()));
        Ok(Part {
            id,
            file: create(&path)?,
            reserved: 0,
            path,
            sealed: false,
        })
    }

    /// Reserves room for `least` bytes of a part, and for `most` as far as there is room; false
    /// when the lease would have too many, those still being received counted.
    pub fn reserve(&self, part: &mut Part, least: u64, most: u64) -> io::Result<bool> {
        let lease = part.id.lease;
        self.alone(lease, |folder| {
            let stored: u64 = lengths(folder, "artifact-")?.sum();
            let receiving: u64 = self.receiving(part)?;
            let others = (stored + receiving).saturating_sub(part.reserved);
            let room = self.quota.saturating_sub(others);
            if least > room {
                return Ok(false);
            }
            let reserved = most.min(room);
            part.file.set_len(reserved)?;
            part.reserved = reserved;
            Ok(true)
        })
    }

    /// Bytes reserved by this part and by those of the lease's other artifacts. Of several parts of
    /// one artifact only one can be sealed.
    fn receiving(&self, part: &Part) -> io::Result<u64> {
        let (of_lease, own) = (id::prefix(part.id.lease), format!("{}.", part.id));
        let other = move |name: &str| name.starts_with(&of_lease) && !name.starts_with(&own);
        Ok(part.reserved + self.speaking(other)?.sum::<u64>())
    }

    /// The lengths of the parts with such a name that somebody may still be sending.
    fn speaking(&self, which: impl Fn(&str) -> bool) -> io::Result<impl Iterator<Item = u64>> {
        let entries = std::fs::read_dir(self.parts())?;
        Ok(entries.filter_map(move |entry| {
            let entry = entry.ok()?;
            which(entry.file_name().to_str()?).then_some(())?;
            // One that is deleted meanwhile counts nothing.
            let found = entry.metadata().ok()?;
            let silent = found.modified().ok()?.elapsed().unwrap_or_default();
            (silent < SILENT).then_some(found.len())
        }))
    }

    /// The part is whole and right, and is `meta`: make it the artifact. When this returns it is on
    /// disk. The first to be sealed stays.
    pub fn seal(&self, mut part: Part, meta: &ArtifactMeta) -> io::Result<Sealed> {
        let id = part.id;
        part.file.set_len(meta.size.unwrap_or(0))?;
        part.file.sync_all()?;
        self.alone(id.lease, |folder| {
            if let Some(there) = self.artifact(id)? {
                let equal = (there.size, &there.sha256) == (meta.size, &meta.sha256);
                // Whoever sealed it may have died before it was on disk.
                self.sync(folder)?;
                return Ok(if equal { Sealed::Done } else { Sealed::Differs });
            }
            let bytes = serde_json::to_vec(meta)?;
            self.write_whole(&file_of(folder, "sealed", id), &bytes)?;
            std::fs::rename(&part.path, self.artifact_path(id))?;
            part.sealed = true;
            self.sync(folder)?;
            Ok(Sealed::Done)
        })
    }
}

fn file_of(folder: &Path, what: &str, id: UploadId) -> PathBuf {
    folder.join(format!("{what}-{:016x}", id.artifact.unwrap_or(0)))
}

fn read_meta(path: &Path) -> io::Result<Option<ArtifactMeta>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        bytes => Ok(Some(serde_json::from_slice(&bytes?)?)),
    }
}

/// The lengths of the files whose names begin so. One that is deleted meanwhile counts nothing.
fn lengths(folder: &Path, prefix: &str) -> io::Result<impl Iterator<Item = u64>> {
    let entries = std::fs::read_dir(folder)?;
    Ok(entries.filter_map(move |entry| {
        let entry = entry.ok()?;
        let counts = entry.file_name().to_str()?.starts_with(prefix);
        counts.then(|| entry.metadata().map_or(0, |it| it.len()))
    }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{lease, names, pair};
    use super::*;

    fn announced() -> ArtifactMeta {
        ArtifactMeta {
            name: "a.txt".into(),
            kind: None,
            size: None,
            sha256: None,
        }
    }

    fn received(text: &str) -> ArtifactMeta {
        ArtifactMeta {
            size: Some(text.len() as u64),
            sha256: Some(format!("hash of {text}")),
            ..announced()
        }
    }

    fn send(objects: &Objects, id: UploadId, text: &str) -> Part {
        let mut part = objects.part(id).unwrap();
        let size = text.len() as u64;
        assert!(objects.reserve(&mut part, size, size).unwrap());
        part.file.write_all(text.as_bytes()).unwrap();
        part
    }

    #[test]
    fn an_artifact_is_seen_when_it_is_sealed_and_by_every_server() {
        // A49
        let (_folder, one, two) = pair();
        let id = one.new_artifact(lease(), &announced()).unwrap().unwrap();
        assert_eq!(two.announced(id).unwrap(), Some(announced()));
        let part = send(&two, id, "bytes");
        assert_eq!(one.artifact(id).unwrap(), None);
        assert_eq!(two.seal(part, &received("bytes")).unwrap(), Sealed::Done);
        assert_eq!(one.artifact(id).unwrap(), Some(received("bytes")));
        assert_eq!(std::fs::read(one.artifact_path(id)).unwrap(), b"bytes");
        assert_eq!(names(&one.parts()), [""; 0]);
    }

    #[test]
    fn a_small_artifact_is_stored_once_however_often_it_is_sent() {
        // EP-13, A18
        let (_folder, one, two) = pair();
        let meta = received("few");
        let (id, first) = one.keep_artifact(lease(), &meta, b"few").unwrap().unwrap();
        let again = two.keep_artifact(lease(), &meta, b"few").unwrap();
        assert_eq!((first, again), (Sealed::Done, Some((id, Sealed::Done))));
        let other = two
            .keep_artifact(lease(), &received("other"), b"other")
            .unwrap();
        assert_eq!(other, Some((id, Sealed::Differs)));
        assert_eq!(std::fs::read(one.artifact_path(id)).unwrap(), b"few");
        assert_eq!(one.named_artifact(lease(), &announced()).unwrap(), Some(id));
        assert_eq!(two.sealed(lease()).unwrap(), [(id, meta)]);
        assert_eq!(two.sealed(lease().attempt.lease(9)).unwrap(), []);
    }

    #[test]
    fn what_is_announced_is_not_listed_before_it_is_whole() {
        // F3, F45
        let (_folder, one, _two) = pair();
        let mut meta = announced();
        for name in ["c", "a", "b"] {
            meta.name = name.into();
            let id = one.named_artifact(lease(), &meta).unwrap().unwrap();
            let part = send(&one, id, name);
            if name != "b" {
                let whole = ArtifactMeta {
                    name: name.into(),
                    ..received(name)
                };
                assert_eq!(one.seal(part, &whole).unwrap(), Sealed::Done);
            }
        }
        let sealed = one.sealed(lease()).unwrap();
        let names: Vec<&str> = sealed.iter().map(|(_, meta)| meta.name.as_str()).collect();
        assert_eq!(names, ["a", "c"]);
    }

    // D10, F44
    #[test]
    fn what_cannot_be_read_is_not_taken_for_what_is_not_there() {
        let (_folder, one, _two) = pair();
        let meta = received("few");
        let (id, _) = one.keep_artifact(lease(), &meta, b"few").unwrap().unwrap();
        // Whoever reads it is told that it is a folder.
        let record = file_of(&one.folder(lease()), "sealed", id);
        let away = record.with_extension("away");
        std::fs::rename(&record, &away).unwrap();
        std::fs::create_dir(&record).unwrap();
        one.artifact(id).unwrap_err();
        one.artifact_of_result(id).unwrap_err();
        one.sealed(lease()).unwrap_err();
        one.keep_artifact(lease(), &meta, b"few").unwrap_err();
        std::fs::remove_dir(&record).unwrap();
        std::fs::rename(&away, &record).unwrap();
        assert_eq!(one.artifact_of_result(id).unwrap(), Some(meta));
    }

    #[test]
    fn what_a_result_names_is_whole_or_never_came_or_is_missed() {
        let (_folder, one, _two) = pair();
        let id = one.new_artifact(lease(), &announced()).unwrap().unwrap();
        assert_eq!(one.artifact_of_result(id).unwrap(), None);
        let part = send(&one, id, "bytes");
        one.seal(part, &received("bytes")).unwrap();
        assert_eq!(one.artifact_of_result(id).unwrap(), Some(received("bytes")));
        std::fs::remove_file(one.artifact_path(id)).unwrap();
        one.artifact_of_result(id).unwrap_err();
        // All of it: as if another disk were there.
        std::fs::remove_dir_all(one.folder(lease())).unwrap();
        one.artifact_of_result(id).unwrap_err();
        assert_eq!(one.artifact(id).unwrap(), None);
    }

    #[test]
    fn two_senders_of_one_artifact_never_mix_their_bytes() {
        let (_folder, one, two) = pair();
        let id = one.new_artifact(lease(), &announced()).unwrap().unwrap();
        let (mut left, mut right) = (send(&one, id, "le"), send(&two, id, "right"));
        left.file.write_all(b"ft").unwrap();
        right.file.write_all(b"!").unwrap();
        let again = send(&one, id, "right!");
        assert_eq!(two.seal(right, &received("right!")).unwrap(), Sealed::Done);
        assert_eq!(one.seal(left, &received("left")).unwrap(), Sealed::Differs);
        assert_eq!(one.seal(again, &received("right!")).unwrap(), Sealed::Done);
        assert_eq!(one.artifact(id).unwrap(), Some(received("right!")));
        assert_eq!(std::fs::read(one.artifact_path(id)).unwrap(), b"right!");
    }

    #[test]
    fn a_part_that_is_not_sealed_is_gone_when_its_sender_is() {
        let (_folder, one, _two) = pair();
        let id = one.new_artifact(lease(), &announced()).unwrap().unwrap();
        let part = send(&one, id, "half");
        assert_eq!(names(&one.parts()).len(), 1);
        drop(part);
        assert_eq!(names(&one.parts()), [""; 0]);
        assert_eq!(one.artifact(id).unwrap(), None);
    }

    #[test]
    fn bytes_on_their_way_count_against_the_quota_at_every_server() {
        let (_folder, mut one, mut two) = pair();
        (one.quota, two.quota) = (10, 10);
        let id = one.new_artifact(lease(), &announced()).unwrap().unwrap();
        let other = two.new_artifact(lease(), &announced()).unwrap().unwrap();
        let mut first = one.part(id).unwrap();
        assert!(one.reserve(&mut first, 6, 20).unwrap());
        assert_eq!(first.reserved, 10, "some more, as far as there is room");
        let mut second = two.part(other).unwrap();
        assert!(!two.reserve(&mut second, 5, 5).unwrap());
        assert_eq!(one.seal(first, &received("sixsix")).unwrap(), Sealed::Done);
        assert!(!two.reserve(&mut second, 5, 5).unwrap());
        assert!(two.reserve(&mut second, 4, 4).unwrap());
        assert!(!two.reserve(&mut second, 5, 5).unwrap());
        // What broke off is sent again, though nobody has noticed yet that it did.
        drop(second);
        let broken = two.part(other).unwrap();
        let mut broken = std::mem::ManuallyDrop::new(broken);
        assert!(two.reserve(&mut broken, 4, 4).unwrap());
        let mut again = one.part(other).unwrap();
        assert!(one.reserve(&mut again, 4, 4).unwrap());
        // Another lease has its own.
        let free = one.new_artifact(lease().attempt.lease(9), &announced());
        let mut free = one.part(free.unwrap().unwrap()).unwrap();
        assert!(one.reserve(&mut free, 10, 10).unwrap());
    }
}
