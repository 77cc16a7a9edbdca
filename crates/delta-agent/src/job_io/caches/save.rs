//! After work that succeeded: what is to be found again is packed and sent.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use delta_shim::job_files::Root;
use delta_wire::api::{CacheSaved, FindCache};
use rustix::fs::{Mode, OFlags, openat};

use super::super::Around;
use super::super::transfer::{Patience, Sending, TransferError, hex, size};
use super::archive::{ArchiveError, Content, HOME, Packer};
use super::{CachePlace, Looked, find, owner, places, read, time_saved, trouble};

/// Saves those that were not found exactly.
pub(in crate::job_io) async fn save(around: &Around<'_>, looked: &[Looked]) {
    let work = around.records.iter().map(|it| it.took).sum();
    if let Some(line) = time_saved::saved(looked, work) {
        around.log.mark(&line);
    }
    for (cache, looked) in around.spec.caches.iter().zip(looked) {
        let (name, key, began) = (cache.kind.escape_debug(), &looked.key, Instant::now());
        if looked.exact {
            continue;
        }
        let Ok((places, _)) = places(around, cache) else {
            continue;
        };
        let line = match save_one(around, &places, key, work, &format!("cache {name}")).await {
            Ok(Done::Saved(bytes, left_out)) => {
                let took = began.elapsed().as_secs_f64();
                let left = match left_out {
                    0 => String::new(),
                    n => format!(
                        "; {n} links, special files and names that are no text were left out"
                    ),
                };
                format!(
                    "cache {name}: saved {key} ({} in {took:.1}s){left}",
                    size(bytes)
                )
            }
            Ok(Done::There) if looked.blocked => format!(
                "cache {name}: not saved: {key} is there and could not be restored, as said above; \
                 `delta-ci caches rm` removes it"
            ),
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
    places: &[CachePlace],
    key: &str,
    work: Duration,
    what: &str,
) -> Result<Done, TransferError> {
    let exact = FindCache {
        key: key.to_owned(),
        restore_keys: Vec::new(),
        saving: true,
    };
    if find(around, &exact).await?.is_some() {
        return Ok(Done::There);
    }
    let (packed, content) = pack(around, places).await?;
    if content.entries == 0 {
        return Ok(Done::Empty);
    }
    let (job, hash) = (&around.identity.job_id, &packed.sha256);
    let (key, work) = (encoded(key), work.as_millis());
    let query = format!("key={key}&sha256={hash}&work_millis={work}");
    let sending = Sending {
        around,
        url: &format!("/api/v1/runner/jobs/{job}/caches?{query}"),
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
    Ok(if saved.saved {
        Done::Saved(packed.size, content.left_out)
    } else {
        Done::There
    })
}

/// An archive in a file without a name: it is gone with this process.
struct Packed {
    file: File,
    size: u64,
    sha256: String,
}

async fn pack(
    around: &Around<'_>,
    places: &[CachePlace],
) -> Result<(Packed, Content), TransferError> {
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
        .map_err(|error| TransferError::Refused(error.to_string()))?;
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
