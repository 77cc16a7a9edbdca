//! Before the work: a cache is looked for, fetched, unpacked beside its place and moved there.

use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use delta_core::Cause;
use delta_wire::api::{CacheView, FindCache};
use delta_wire::job_spec::CacheSpec;
use reqwest::{Method, Response};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::files::Root;
use super::super::transfer::{Trouble, hex, judged, size};
use super::super::{Around, Failed};
use super::archive::ArchiveError;
use super::moving::{MoveError, put_in_place};
use super::unpack::unpack;
use super::{Hit, Looked, Place, SHARED_HOME, check, find, places, trouble, wanted};
use crate::workspace::Source;

/// Pieces of an archive that wait to be unpacked.
const PIECES_AHEAD: usize = 16;

/// Restores what there is of the spec's caches.
pub(in crate::around) async fn restore(around: &Around<'_>) -> Result<Vec<Looked>, Failed> {
    let mut looked = Vec::new();
    if around.spec.caches.is_empty() {
        return Ok(looked);
    }
    if let Source::InPlace(_) = around.context.settings.source {
        around
            .log
            .mark("caches: this tree is used in place, so they are left alone");
        return Ok(looked);
    }
    for (index, cache) in around.spec.caches.iter().enumerate() {
        let (places, left) = places(around, cache)?;
        for path in &left {
            let name = cache.kind.escape_debug();
            around
                .log
                .mark(&format!("cache {name}: `{path}` {SHARED_HOME}"));
        }
        if places.is_empty() {
            // Nothing to look for, and nothing to save.
            looked.push(Looked {
                exact: true,
                ..Looked::default()
            });
            continue;
        }
        let wanted = wanted(around, cache).await?;
        looked.push(one(around, index, cache, &places, wanted).await?);
    }
    Ok(looked)
}

/// Why a cache was found and is not there.
#[derive(Debug, thiserror::Error)]
enum Lost {
    /// The workspace is as it was.
    #[error("{0}")]
    Miss(#[from] Trouble),
    /// As well, and the server has it no more.
    #[error("{0}; the server has it no more")]
    Removed(Trouble),
    /// It is not, and nobody knows how.
    #[error("{0}")]
    Half(String),
}

impl Lost {
    /// What ends the attempt; anything else is a miss.
    fn failed(&self, name: &str) -> Option<Failed> {
        let (cause, why) = match self {
            Lost::Miss(Trouble::DiskFull) => (Cause::DiskFull, "this machine's disk is full"),
            // Work on half a cache is nobody's, and would be saved as a whole one.
            Lost::Half(why) => (Cause::CacheFetch, why.as_str()),
            Lost::Miss(_) | Lost::Removed(_) => return None,
        };
        Some(Failed {
            cause,
            summary: format!("cache {name}: {why}"),
        })
    }
}

/// Restores one.
async fn one(
    around: &Around<'_>,
    index: usize,
    cache: &CacheSpec,
    places: &[Place],
    wanted: FindCache,
) -> Result<Looked, Failed> {
    let (name, began) = (cache.kind.escape_debug().to_string(), Instant::now());
    let missed = Looked {
        key: wanted.key.clone(),
        ..Looked::default()
    };
    let found = match find(around, &wanted).await {
        Ok(found) => found,
        Err(trouble) => {
            around.log.mark(&format!(
                "cache {name}: miss, for it was not found: {trouble}"
            ));
            return Ok(missed);
        }
    };
    let Some(found) = found else {
        around
            .log
            .mark(&format!("cache {name}: miss {}", wanted.key));
        return Ok(missed);
    };
    let exact = found.key == wanted.key;
    match bring(around, index, places, &found).await {
        Ok(()) => {
            let how = if exact { "hit" } else { "near hit" };
            let (all, restored_in) = (size(found.size), began.elapsed());
            let (took, from) = (restored_in.as_secs_f64(), &found.run_id);
            around.log.mark(&format!(
                "cache {name}: {how} {} ({all} in {took:.1}s), saved by {from}",
                found.key
            ));
            // The work of another job tells nothing of this one's.
            let same = found.job == around.identity.job_name;
            let work = found.work_millis.filter(|_| same);
            let work = work.map(Duration::from_millis);
            Ok(Looked {
                exact,
                hit: Some(Hit { work, restored_in }),
                ..missed
            })
        }
        Err(lost) => match lost.failed(&name) {
            Some(failed) => Err(failed),
            None => {
                let line = format!("cache {name}: miss, for it could not be restored: {lost}");
                around.log.mark(&line);
                Ok(Looked {
                    blocked: exact && !matches!(lost, Lost::Removed(_)),
                    ..missed
                })
            }
        },
    }
}

/// Fetches it, and moves it to its place when all of it was right.
async fn bring(
    around: &Around<'_>,
    index: usize,
    places: &[Place],
    found: &CacheView,
) -> Result<(), Lost> {
    let plain = |c: char| c.is_ascii_hexdigit() || c == '-';
    if !found.id.chars().all(plain) {
        let strange = "the server names a strange place".to_owned();
        return Err(Trouble::Refused(strange).into());
    }
    let staging = match fetch(around, index, found).await {
        Ok(staging) => staging,
        Err(trouble) => return Err(judge(around, found, trouble).await),
    };
    let (folder, places) = (around.folder.clone(), places.to_vec());
    let moved = tokio::task::spawn_blocking(move || {
        put_in_place(&staging.0, &folder.workspace, &folder.home, &places)
    });
    match moved.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(MoveError::TakenBack(error))) => Err(Trouble::from(error).into()),
        Ok(Err(error @ MoveError::Half { .. })) => Err(Lost::Half(error.to_string())),
        Err(error) => Err(Lost::Half(error.to_string())),
    }
}

/// One that did not come whole: the server looks whether that is its fault, so that a key whose
/// bytes are spoilt is not taken for ever.
async fn judge(around: &Around<'_>, found: &CacheView, trouble: Trouble) -> Lost {
    if trouble == Trouble::DiskFull {
        return trouble.into();
    }
    match check(around, &found.id).await {
        Ok(true) => Lost::Removed(trouble),
        Ok(false) => trouble.into(),
        Err(error) => {
            tracing::info!(%error, "a cache that could not be restored was not checked");
            trouble.into()
        }
    }
}

/// Unpacks beside its place while it comes.
async fn fetch(around: &Around<'_>, index: usize, found: &CacheView) -> Result<Staging, Trouble> {
    let client = around.context.courier.client()?;
    let job = &around.identity.job_id;
    let path = format!("/api/v1/runner/jobs/{job}/caches/{}", found.id);
    let request = client.make(Method::GET, &path, around.lease)?;
    let answer = judged(request.send().await?).await?;
    let (pieces, coming) = mpsc::channel(PIECES_AHEAD);
    let (tmp, stopped) = (around.folder.tmp.clone(), around.stopped.clone());
    let packed = found.size;
    let unpacking = tokio::task::spawn_blocking(move || {
        let from = Coming {
            pieces: coming,
            piece: Bytes::new(),
        };
        unpacked(from, packed, tmp.join(format!("cache-{index}")), &stopped)
    });
    let came = pass_on(answer, pieces, found).await;
    let unpacked = unpacking
        .await
        .map_err(|error| Trouble::Refused(error.to_string()))?;
    let staging = unpacked.map_err(trouble)?;
    // Not one byte of it counts before all of it is right.
    match came {
        Ok(()) => Ok(staging),
        Err(trouble) => {
            // Gigabytes take a while to go, and this is not the place to wait for it.
            let _ = tokio::task::spawn_blocking(move || drop(staging)).await;
            Err(trouble)
        }
    }
}

/// A fresh folder with all of an archive, or nothing.
fn unpacked(
    from: impl Read,
    packed: u64,
    path: PathBuf,
    stopped: &CancellationToken,
) -> Result<Staging, ArchiveError> {
    let staging = Staging::make(path)?;
    unpack(from, packed, &Root::open(&staging.0)?, stopped)?;
    Ok(staging)
}

/// Hands an answer's bytes on, and says whether they were those that were saved.
async fn pass_on(
    mut answer: Response,
    pieces: mpsc::Sender<Bytes>,
    found: &CacheView,
) -> Result<(), Trouble> {
    let (mut hash, mut came) = (Context::new(&SHA256), 0_u64);
    while let Some(piece) = answer.chunk().await? {
        came += piece.len() as u64;
        if came > found.size {
            return Err(Trouble::Refused(
                "there are more bytes than promised".to_owned(),
            ));
        }
        hash.update(&piece);
        if pieces.send(piece).await.is_err() {
            // Whoever unpacks has given up, and says why.
            return Ok(());
        }
    }
    match came == found.size && hex(hash.finish().as_ref()) == found.sha256 {
        true => Ok(()),
        false => Err(Trouble::Refused(
            "the bytes are not those that were saved".to_owned(),
        )),
    }
}

/// Bytes as they come, for a thread that reads them.
struct Coming {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Coming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.piece.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}

/// A folder that is gone when it is dropped, with everything in it.
struct Staging(PathBuf);

impl Staging {
    fn make(path: PathBuf) -> io::Result<Staging> {
        std::fs::create_dir(&path)?;
        Ok(Staging(path))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, "an unpacked cache was left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Cursor;
    use std::path::Path;

    use super::super::super::files::Owner;
    use super::super::archive::{Packer, WORKSPACE};
    use super::*;

    /// An archive of one folder with so many bytes that do not shrink.
    fn noise(bytes: usize) -> Vec<u8> {
        let place = tempfile::tempdir().expect("a folder");
        let mut noise = vec![0; bytes];
        getrandom::fill(&mut noise).expect("noise");
        fs::create_dir(place.path().join("deps")).expect("a folder");
        fs::write(place.path().join("deps/first"), "small").expect("a file");
        fs::write(place.path().join("deps/large"), noise).expect("a file");
        let (root, stopped) = (Root::open(place.path()), CancellationToken::new());
        let owner = Owner(rustix::process::geteuid().as_raw());
        let mut packer = Packer::new(Vec::new(), owner, &stopped).expect("a packer");
        let root = root.expect("a root");
        packer.add(WORKSPACE, &root, "deps").expect("packed");
        packer.finish().expect("an archive").0
    }

    /// A small disk, where we may have one.
    struct SmallDisk<'a>(&'a Path);

    impl SmallDisk<'_> {
        fn mount(place: &Path) -> SmallDisk<'_> {
            let mounted = std::process::Command::new("mount")
                .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
                .arg(place)
                .status();
            assert!(mounted.expect("mount").success());
            SmallDisk(place)
        }

        fn free(&self) -> u64 {
            rustix::fs::statvfs(self.0).expect("a disk").f_bfree
        }
    }

    impl Drop for SmallDisk<'_> {
        fn drop(&mut self) {
            let ended = std::process::Command::new("umount")
                .arg("-l")
                .arg(self.0)
                .status();
            assert!(ended.is_ok_and(|it| it.success()) || std::thread::panicking());
        }
    }

    // F43
    #[test]
    fn a_disk_that_is_full_in_mid_unpack_is_said_and_gets_its_space_back() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("NOT TESTED: only root can make a small disk");
            return;
        }
        let place = tempfile::tempdir().expect("a folder");
        let disk = SmallDisk::mount(place.path());
        let (tmp, workspace) = (place.path().join("tmp"), place.path().join("workspace"));
        for folder in [&tmp, &workspace] {
            fs::create_dir(folder).expect("a folder");
        }
        let (free, stopped) = (disk.free(), CancellationToken::new());
        let restore = |bytes: &[u8]| {
            let from = Cursor::new(bytes);
            let staging = unpacked(from, bytes.len() as u64, tmp.join("cache-0"), &stopped)?;
            let places = [(WORKSPACE, "deps".to_owned())];
            let home = place.path().join("no home");
            put_in_place(&staging.0, &workspace, &home, &places).expect("moved");
            Ok::<_, ArchiveError>(())
        };
        let full = restore(&noise(4 << 20)).expect_err("there is no room");
        let lost = Lost::from(trouble(full));
        let failed = lost.failed("deps").expect("an end");
        assert_eq!(failed.cause, Cause::DiskFull, "{failed:?}");
        assert_eq!(failed.summary, "cache deps: this machine's disk is full");
        for folder in [&tmp, &workspace] {
            assert_eq!(fs::read_dir(folder).expect("a folder").count(), 0);
        }
        assert_eq!(disk.free(), free, "the space is given back");
        restore(&noise(1 << 20)).expect("what fits is restored");
        assert!(workspace.join("deps/large").is_file());
        assert_eq!(fs::read_dir(&tmp).expect("a folder").count(), 0);
    }

    #[test]
    fn half_a_cache_ends_the_attempt_and_none_at_all_does_not() {
        let half = MoveError::Half {
            moved: io::Error::other("first"),
            undo: io::Error::other("second"),
        };
        let failed = Lost::Half(half.to_string()).failed("deps");
        let failed = failed.expect("an end");
        assert_eq!(failed.cause, Cause::CacheFetch);
        assert!(failed.summary.starts_with("cache deps: "), "{failed:?}");
        assert!(failed.summary.contains("second"), "{failed:?}");
        let removed = Lost::Removed(Trouble::NotFound);
        assert_eq!(removed.failed("deps"), None);
        for trouble in [
            Trouble::NotFound,
            Trouble::Again("unreachable".to_owned()),
            Trouble::Refused("strange".to_owned()),
        ] {
            assert_eq!(Lost::from(trouble).failed("deps"), None);
        }
    }
}
