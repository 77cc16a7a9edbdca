//! Before the work: a cache is looked for, fetched, unpacked beside its place and moved there.

use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use delta_core::Cause;
use delta_shim::job_files::Root;
use delta_wire::api::{CacheView, FindCache};
use delta_wire::job_spec::CacheSpec;
use reqwest::{Method, Response};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::transfer::{TransferError, hex, judged, size};
use super::super::{Around, Failed};
use super::archive::ArchiveError;
use super::install::{MoveError, put_in_place};
use super::unpack::unpack;
use super::{
    CachePlace, Hit, Looked, SHARED_HOME, WORKSPACE, check, find, places, trouble, wanted,
};
use crate::workspace::Source;

/// Pieces of an archive that wait to be unpacked.
const PIECES_AHEAD: usize = 16;

/// Restores what there is of the spec's caches.
pub(in crate::job_io) async fn restore(around: &Around<'_>) -> Result<Vec<Looked>, Failed> {
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
        let inside = places.iter().all(|(part, _)| *part == WORKSPACE);
        let kept = around.folder.is_kept() && inside && !places.is_empty();
        if kept {
            let name = cache.kind.escape_debug();
            around.log.mark(&format!(
                "cache {name}: left alone, as this workspace stays"
            ));
        }
        if kept || places.is_empty() {
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
    Miss(#[from] TransferError),
    /// As well, and the server has it no more.
    #[error("{0}; the server has it no more")]
    Removed(TransferError),
    /// It is not, and nobody knows how.
    #[error("{0}")]
    Half(String),
}

impl Lost {
    /// What ends the attempt; anything else is a miss.
    fn failed(&self, name: &str) -> Option<Failed> {
        let (cause, why) = match self {
            Lost::Miss(TransferError::DiskFull) => (Cause::DiskFull, "this machine's disk is full"),
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
    places: &[CachePlace],
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
    places: &[CachePlace],
    found: &CacheView,
) -> Result<(), Lost> {
    let plain = |c: char| c.is_ascii_hexdigit() || c == '-';
    if !found.id.chars().all(plain) {
        let strange = "the server names a strange place".to_owned();
        return Err(TransferError::Refused(strange).into());
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
        Ok(Err(MoveError::TakenBack(error))) => Err(TransferError::from(error).into()),
        Ok(Err(error @ MoveError::Half { .. })) => Err(Lost::Half(error.to_string())),
        Err(error) => Err(Lost::Half(error.to_string())),
    }
}

/// One that did not come whole: the server looks whether that is its fault, so that a key whose
/// bytes are spoilt is not taken for ever.
async fn judge(around: &Around<'_>, found: &CacheView, trouble: TransferError) -> Lost {
    if trouble == TransferError::DiskFull {
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

/// Asks for it, and unpacks it beside its place.
async fn fetch(
    around: &Around<'_>,
    index: usize,
    found: &CacheView,
) -> Result<Staging, TransferError> {
    let client = around.context.courier.client()?;
    let job = &around.identity.job_id;
    let path = format!("/api/v1/runner/jobs/{job}/caches/{}", found.id);
    let request = client.make(Method::GET, &path, around.lease)?;
    let answer = judged(request.send().await?).await?;
    let beside = around.folder.tmp.join(format!("cache-{index}"));
    as_it_comes(answer, found, beside, around.stopped.clone()).await
}

/// Unpacks an answer while it comes.
async fn as_it_comes(
    answer: Response,
    found: &CacheView,
    path: PathBuf,
    stopped: CancellationToken,
) -> Result<Staging, TransferError> {
    let (pieces, coming) = mpsc::channel(PIECES_AHEAD);
    let packed = found.size;
    let unpacking = tokio::task::spawn_blocking(move || {
        let from = Coming {
            pieces: coming,
            piece: Bytes::new(),
        };
        unpacked(from, packed, path, &stopped)
    });
    let came = pass_on(answer, pieces, found).await;
    let unpacked = unpacking
        .await
        .map_err(|error| TransferError::Refused(error.to_string()))?;
    // Not one byte of it counts before all of it is right.
    match (came, unpacked.map_err(trouble)) {
        (Ok(()), unpacked) => unpacked,
        (Err(_), Err(TransferError::DiskFull)) => Err(TransferError::DiskFull),
        // What did not come cannot be unpacked either: that is no reason of its own.
        (Err(lost), Err(_)) => Err(lost),
        (Err(lost), Ok(staging)) => {
            // Gigabytes take a while to go, and this is not the place to wait for it.
            let _ = tokio::task::spawn_blocking(move || drop(staging)).await;
            Err(lost)
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
) -> Result<(), TransferError> {
    let (mut hash, mut came) = (Context::new(&SHA256), 0_u64);
    while let Some(piece) = answer.chunk().await? {
        came += piece.len() as u64;
        if came > found.size {
            return Err(TransferError::Refused(
                "there are more bytes than promised".to_owned(),
            ));
        }
        hash.update(&piece);
        if pieces.send(piece).await.is_err() {
            // Whoever unpacks has given up, and says why.
            return Ok(());
        }
    }
    if came == found.size && hex(hash.finish().as_ref()) == found.sha256 {
        Ok(())
    } else {
        Err(TransferError::Refused(
            "the bytes are not those that were saved".to_owned(),
        ))
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

    use delta_shim::job_files::Owner;
    use delta_testkit::disk::Mounted;

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

    // F43
    #[test]
    fn a_disk_that_is_full_in_mid_unpack_is_said_and_gets_its_space_back() {
        let place = tempfile::tempdir().expect("a folder");
        let disk = Mounted::of(place.path(), "2m").expect("a small disk");
        let (tmp, workspace) = (place.path().join("tmp"), place.path().join("workspace"));
        for folder in [&tmp, &workspace] {
            fs::create_dir(folder).expect("a folder");
        }
        let used = || disk.used().expect("a disk");
        let (before, stopped) = (used(), CancellationToken::new());
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
        assert_eq!(used(), before, "the space is given back");
        restore(&noise(1 << 20)).expect("what fits is restored");
        assert!(workspace.join("deps/large").is_file());
        assert_eq!(fs::read_dir(&tmp).expect("a folder").count(), 0);
    }

    /// An answer that promises these bytes, of which so many come before the connection is over.
    async fn answer_of(bytes: &[u8], sent: usize) -> Response {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a socket");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len());
        let said = [head.as_bytes(), &bytes[..sent]].concat();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let _ = stream.read(&mut [0; 4096]).await;
            stream.write_all(&said).await.expect("said");
            stream.shutdown().await.expect("over");
        });
        reqwest::get(url).await.expect("an answer")
    }

    fn view_of(bytes: &[u8]) -> CacheView {
        let hash = aws_lc_rs::digest::digest(&SHA256, bytes);
        CacheView {
            id: "1".to_owned(),
            key: "deps".to_owned(),
            repository: None,
            created_by: None,
            git_ref: None,
            trusted: true,
            size: bytes.len() as u64,
            sha256: hex(hash.as_ref()),
            saved_at: delta_wire::Millis(0),
            used_at: delta_wire::Millis(0),
            run_id: "run_1".to_owned(),
            job: "unit".to_owned(),
            work_millis: None,
        }
    }

    #[tokio::test]
    async fn a_cache_whose_connection_breaks_is_lost_for_that_and_not_for_its_bytes() {
        let place = tempfile::tempdir().expect("a folder");
        let bytes = noise(1 << 20);
        let beside = place.path().join("cache-0");
        let comes = async |sent: usize, view: &CacheView| {
            let answer = answer_of(&bytes, sent).await;
            let stopped = CancellationToken::new();
            let staging = as_it_comes(answer, view, beside.clone(), stopped).await;
            staging.map(drop)
        };
        let view = view_of(&bytes);
        for sent in [0, 100, bytes.len() / 2, bytes.len() - 1] {
            let lost = comes(sent, &view).await.expect_err("half of it");
            let early = TransferError::Again("the connection ended early".to_owned());
            assert_eq!(lost, early, "after {sent} bytes");
            assert!(!beside.exists(), "nothing is left of it");
        }
        assert_eq!(comes(bytes.len(), &view).await, Ok(()));
        // Bytes that are all there and no archive are told for what they are.
        let text = b"no archive at all".to_vec();
        let answer = answer_of(&text, text.len()).await;
        let stopped = CancellationToken::new();
        let strange = as_it_comes(answer, &view_of(&text), beside.clone(), stopped).await;
        let strange = strange.map(drop).expect_err("no archive");
        assert!(strange.to_string().contains("not an archive"), "{strange}");
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
        let removed = Lost::Removed(TransferError::NotFound);
        assert_eq!(removed.failed("deps"), None);
        for trouble in [
            TransferError::NotFound,
            TransferError::Again("unreachable".to_owned()),
            TransferError::Refused("strange".to_owned()),
        ] {
            assert_eq!(Lost::from(trouble).failed("deps"), None);
        }
    }
}
