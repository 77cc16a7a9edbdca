//! Caches: folders that a job finds again. Restored before the work, by an exact key or the newest
//! of a prefix; saved after work that succeeded, where there was no exact hit.
//!
//! A cache is a convenience: one that is not to be had, or is not what it should be, is a miss, and
//! one that cannot be saved is a line in the log. Only a full disk ends the attempt, as that.

mod archive;
mod key;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use delta_core::Cause;
use delta_wire::api::{CacheFound, CacheSaved, CacheView, FindCache, cache_key};
use delta_wire::job_spec::CacheSpec;
use reqwest::{Method, Response};
use rustix::fs::{Mode, OFlags, openat};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use self::archive::{ArchiveError, Content, HOME, Packer, WORKSPACE, unpack};
use super::files::{Owner, Root};
use super::transfer::{Patience, Sending, Trouble, hex, judged, size};
use super::{Around, Failed};
use crate::workspace::Source;

/// Pieces of an archive that wait to be unpacked.
const PIECES_AHEAD: usize = 16;
/// Bytes of an answer about caches.
const MAX_ANSWER: usize = 64 * 1024;

/// What a cache of the spec was looked for by, and whether exactly that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Looked {
    pub key: String,
    pub exact: bool,
}

/// Where a path of a cache lies.
type Place = (&'static str, String);

/// Restores what there is of the spec's caches.
pub(super) async fn restore(around: &Around<'_>) -> Result<Vec<Looked>, Failed> {
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

/// Saves those that were not found exactly.
pub(super) async fn save(around: &Around<'_>, looked: &[Looked]) {
    for (cache, looked) in around.spec.caches.iter().zip(looked) {
        let (name, key, began) = (cache.kind.escape_debug(), &looked.key, Instant::now());
        if looked.exact {
            continue;
        }
        let Ok((places, _)) = places(around, cache) else {
            continue;
        };
        let line = match save_one(around, &places, key, &format!("cache {name}")).await {
            Ok(Done::Saved(bytes, left_out)) => {
                let took = began.elapsed().as_secs_f64();
                let left = match left_out {
                    0 => String::new(),
                    n => format!("; {n} links and special files were left out"),
                };
                format!(
                    "cache {name}: saved {key} ({} in {took:.1}s){left}",
                    size(bytes)
                )
            }
            Ok(Done::There) => format!("cache {name}: {key} was saved by another meanwhile"),
            Ok(Done::Empty) => format!("cache {name}: there is nothing to save"),
            Err(trouble) => format!("cache {name}: not saved: {trouble}"),
        };
        around.log.mark(&line);
    }
}

enum Done {
    Saved(u64, usize),
    There,
    Empty,
}

async fn save_one(
    around: &Around<'_>,
    places: &[Place],
    key: &str,
    what: &str,
) -> Result<Done, Trouble> {
    let exact = FindCache {
        key: key.to_owned(),
        restore_keys: Vec::new(),
    };
    if find(around, &exact).await?.is_some() {
        return Ok(Done::There);
    }
    let (packed, content) = pack(around, places).await?;
    if content.entries == 0 {
        return Ok(Done::Empty);
    }
    let (job, hash) = (&around.identity.job_id, &packed.sha256);
    let key = encoded(key);
    let sending = Sending {
        around,
        url: &format!("/api/v1/runner/jobs/{job}/caches?key={key}&sha256={hash}"),
        headers: &[],
        file: &packed.file,
        size: packed.size,
        what,
    };
    let mut patience = Patience::new();
    let answer = loop {
        match sending.send().await {
            Ok(answer) => break answer,
            Err(trouble) => patience.after(trouble).await?,
        }
    };
    let saved: CacheSaved = read(answer).await?;
    Ok(match saved.saved {
        true => Done::Saved(packed.size, content.left_out),
        false => Done::There,
    })
}

/// An archive in a file without a name: it is gone with this process.
struct Packed {
    file: File,
    size: u64,
    sha256: String,
}

async fn pack(around: &Around<'_>, places: &[Place]) -> Result<(Packed, Content), Trouble> {
    let (folder, stopped) = (around.folder.clone(), around.stopped.clone());
    let (places, owner) = (places.to_vec(), owner(around));
    let packed = tokio::task::spawn_blocking(move || {
        let to = Hashed {
            file: nameless(&folder.tmp)?,
            hash: Context::new(&SHA256),
            size: 0,
        };
        let mut packer = Packer::new(to, owner, &stopped)?;
        for (part, path) in &places {
            let root = match *part {
                HOME => Root::open(&folder.home)?,
                _ => Root::open(&folder.workspace)?,
            };
            packer.add(part, &root, path)?;
        }
        let (to, content) = packer.finish()?;
        let sha256 = hex(to.hash.finish().as_ref());
        let (file, size) = (to.file, to.size);
        Ok::<_, ArchiveError>((Packed { file, size, sha256 }, content))
    });
    let packed = packed
        .await
        .map_err(|error| Trouble::Refused(error.to_string()))?;
    packed.map_err(trouble)
}

fn nameless(folder: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o600);
    match openat(rustix::fs::CWD, folder, flags, mode) {
        Ok(file) => Ok(File::from(file)),
        // Not every file system can: one with a name, which is taken away at once.
        Err(_) => {
            let path = folder.join(format!("cache-{:016x}", crate::backoff::entropy()));
            let mut options = File::options();
            let file = options
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)?;
            std::fs::remove_file(&path)?;
            Ok(file)
        }
    }
}

/// A file, and the hash of what was written to it.
struct Hashed {
    file: File,
    hash: Context,
    size: u64,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.size += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

async fn find(around: &Around<'_>, wanted: &FindCache) -> Result<Option<CacheView>, Trouble> {
    let client = around.context.courier.client()?;
    let path = format!("/api/v1/runner/jobs/{}/caches/find", around.identity.job_id);
    let mut patience = Patience::new();
    loop {
        let request = client.make(Method::POST, &path, around.lease)?;
        let answer = match request.json(wanted).send().await {
            Ok(answer) => judged(answer).await,
            Err(error) => Err(error.into()),
        };
        match answer {
            Ok(answer) => return Ok(read::<CacheFound>(answer).await?.cache),
            Err(trouble) => patience.after(trouble).await?,
        }
    }
}

async fn read<T: serde::de::DeserializeOwned>(mut answer: Response) -> Result<T, Trouble> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        body.extend_from_slice(&piece);
        if body.len() > MAX_ANSWER {
            return Err(Trouble::Refused("the answer is too long".to_owned()));
        }
    }
    serde_json::from_slice(&body)
        .map_err(|error| Trouble::Refused(format!("the answer cannot be read: {error}")))
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

fn trouble(error: ArchiveError) -> Trouble {
    match error {
        ArchiveError::Io(error) => error.into(),
        other => Trouble::Refused(other.to_string()),
    }
}

fn owner(around: &Around<'_>) -> Owner {
    let user = around.confinement.user;
    Owner(user.unwrap_or_else(|| rustix::process::geteuid().as_raw()))
}

const SHARED_HOME: &str =
    "lies in the agent's own HOME, which stays between jobs; it is left alone";

/// The paths of a cache: of the workspace, or below a HOME that is the job's own; and those that
/// are left alone.
fn places(around: &Around<'_>, cache: &CacheSpec) -> Result<(Vec<Place>, Vec<String>), Failed> {
    let (mut places, mut left) = (Vec::new(), Vec::new());
    for path in &cache.paths {
        let (part, inside) = match path.strip_prefix("~/") {
            Some(inside) => (HOME, inside),
            None => (WORKSPACE, path.as_str()),
        };
        let parts = inside.split('/').filter(|part| !matches!(*part, "" | "."));
        let parts: Vec<&str> = parts.collect();
        if path.starts_with('/') || parts.is_empty() || parts.contains(&"..") {
            return Err(Failed {
                cause: Cause::SpecError,
                summary: format!("the cache path `{path}` is no folder of the workspace or of ~"),
            });
        }
        if part == HOME && !around.folder.home.is_dir() {
            left.push(path.clone());
            continue;
        }
        places.push((part, parts.join("/")));
    }
    Ok((places, left))
}

/// The key and the prefixes, resolved in the workspace as it is before the work.
async fn wanted(around: &Around<'_>, cache: &CacheSpec) -> Result<FindCache, Failed> {
    let failed = |summary: String| Failed {
        cause: Cause::SpecError,
        summary,
    };
    let mut texts = vec![cache.key.clone()];
    texts.extend(cache.restore_keys.iter().cloned());
    let (workspace, stopped) = (around.folder.workspace.clone(), around.stopped.clone());
    // Nothing has run here yet: what is in it is the agent's.
    let owner = Owner(rustix::process::geteuid().as_raw());
    let resolved = tokio::task::spawn_blocking(move || {
        let root = Root::open(&workspace).map_err(|error| error.to_string())?;
        let each = texts.iter().map(|text| {
            let resolved = key::resolve(text, &root, owner, &stopped);
            resolved.map_err(|error| format!("the cache key `{text}`: {error}"))
        });
        each.collect::<Result<Vec<_>, String>>()
    });
    let resolved = resolved.await.map_err(|error| failed(error.to_string()))?;
    let mut keys = Vec::new();
    for it in resolved.map_err(failed)? {
        for word in it.missing {
            let name = cache.kind.escape_debug();
            around.log.mark(&format!(
                "cache {name}: no file for {{{word}}}: `none` stands for it"
            ));
        }
        if !cache_key(&it.key) {
            return Err(failed(format!("the cache key `{}` is too long", cache.key)));
        }
        keys.push(it.key);
    }
    let key = keys.remove(0);
    Ok(FindCache {
        key,
        restore_keys: keys,
    })
}

/// A key as a part of a query.
fn encoded(key: &str) -> String {
    let mut encoded = String::new();
    for byte in key.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}
