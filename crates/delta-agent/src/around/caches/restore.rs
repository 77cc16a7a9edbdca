//! Before the work: a cache is looked for, fetched, unpacked beside its place and moved there.

use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Instant;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use delta_core::Cause;
use delta_wire::api::{CacheView, FindCache};
use delta_wire::job_spec::CacheSpec;
use reqwest::{Method, Response};
use tokio::sync::mpsc;

use super::super::files::Root;
use super::super::transfer::{Trouble, hex, judged, size};
use super::super::{Around, Failed};
use super::archive::{ArchiveError, Content, HOME};
use super::unpack::unpack;
use super::{Looked, Place, SHARED_HOME, find, places, trouble, wanted};
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
                key: String::new(),
                exact: true,
            });
            continue;
        }
        let wanted = wanted(around, cache).await?;
        let key = wanted.key.clone();
        let exact = one(around, index, cache, &places, wanted).await?;
        looked.push(Looked { key, exact });
    }
    Ok(looked)
}

/// Restores one; true when it was the very key.
async fn one(
    around: &Around<'_>,
    index: usize,
    cache: &CacheSpec,
    places: &[Place],
    wanted: FindCache,
) -> Result<bool, Failed> {
    let (name, began) = (cache.kind.escape_debug(), Instant::now());
    let full = || Failed {
        cause: Cause::DiskFull,
        summary: format!("cache {name}: this machine's disk is full"),
    };
    let found = match find(around, &wanted).await {
        Ok(found) => found,
        Err(trouble) => {
            around.log.mark(&format!(
                "cache {name}: miss, for it was not found: {trouble}"
            ));
            return Ok(false);
        }
    };
    let Some(found) = found else {
        around
            .log
            .mark(&format!("cache {name}: miss {}", wanted.key));
        return Ok(false);
    };
    match fetch(around, index, places, &found).await {
        Ok(_) => {
            let exact = found.key == wanted.key;
            let how = if exact { "hit" } else { "near hit" };
            let (all, took) = (size(found.size), began.elapsed().as_secs_f64());
            let from = &found.run_id;
            around.log.mark(&format!(
                "cache {name}: {how} {} ({all} in {took:.1}s), saved by {from}",
                found.key
            ));
            Ok(exact)
        }
        Err(Trouble::DiskFull) => Err(full()),
        Err(trouble) => {
            let line = format!("cache {name}: miss, for it could not be restored: {trouble}");
            around.log.mark(&line);
            Ok(false)
        }
    }
}

/// Unpacks beside its place while it comes, and moves it there when all of it was right.
async fn fetch(
    around: &Around<'_>,
    index: usize,
    places: &[Place],
    found: &CacheView,
) -> Result<Content, Trouble> {
    let plain = |c: char| c.is_ascii_hexdigit() || c == '-';
    if !found.id.chars().all(plain) {
        return Err(Trouble::Refused(
            "the server names a strange place".to_owned(),
        ));
    }
    let client = around.context.courier.client()?;
    let job = &around.identity.job_id;
    let path = format!("/api/v1/runner/jobs/{job}/caches/{}", found.id);
    let request = client.make(Method::GET, &path, around.lease)?;
    let answer = judged(request.send().await?).await?;
    let (pieces, coming) = mpsc::channel(PIECES_AHEAD);
    let (folder, stopped) = (around.folder.clone(), around.stopped.clone());
    let packed = found.size;
    let unpacking = tokio::task::spawn_blocking(move || {
        let staging = Staging::make(folder.tmp.join(format!("cache-{index}")))?;
        let root = Root::open(&staging.0)?;
        let from = Coming {
            pieces: coming,
            piece: Bytes::new(),
        };
        let content = unpack(from, packed, &root, &stopped)?;
        Ok::<_, ArchiveError>((staging, content))
    });
    let came = pass_on(answer, pieces, found).await;
    let unpacked = unpacking
        .await
        .map_err(|error| Trouble::Refused(error.to_string()))?;
    let (staging, content) = unpacked.map_err(trouble)?;
    // Not one byte of it counts before all of it is right.
    came?;
    let (folder, places) = (around.folder.clone(), places.to_vec());
    let moved = tokio::task::spawn_blocking(move || {
        let from = Root::open(&staging.0)?;
        for (part, path) in &places {
            let to = match *part {
                HOME => Root::open(&folder.home)?,
                _ => Root::open(&folder.workspace)?,
            };
            match from.folder(part).and_then(|from| from.move_to(path, &to)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                moved => moved?,
            }
        }
        Ok::<_, io::Error>(())
    });
    moved
        .await
        .map_err(|error| Trouble::Refused(error.to_string()))??;
    Ok(content)
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
