//! Reads the archive of a cache, whoever packed it (T10): each entry is made beneath a fresh
//! folder, through no link, without special rights; links come last.
//!
//! Everything has a bound, memory as well (T11): the entries are read one by one as they are, so
//! that a name is measured before it is read.

use std::fs::{FileTimes, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use delta_shim::job_files::Root;
use tar::{Archive, Entry, EntryType};
use tokio_util::sync::CancellationToken;

use super::archive::{
    ArchiveError, Content, HOME, MAX_BYTES, MAX_DEPTH, MAX_ENTRIES, MAX_FILE_BYTES, WORKSPACE,
    stays,
};

/// How much larger than the archive its content may be, beyond what any archive may hold.
pub(super) const MAX_RATIO: u64 = 100;
const FREE_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes of a path: what the kernel takes.
const MAX_PATH: usize = 4096;
/// Bytes of a name that has an entry of its own: twice a path, so that one that is too long is
/// refused as that.
const MAX_LONG_NAME: u64 = 2 * MAX_PATH as u64;
/// Bytes of all links, which are held until everything else is there: several large
/// `node_modules/.bin`.
pub(super) const MAX_LINK_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of what is around each entry: its header and its names.
const AROUND_ENTRY: u64 = 2048;
/// The largest window that is unpacked, as a power of two: 8 MiB of memory, four times what is
/// packed with.
const WINDOW_LOG: u32 = 23;

/// Bytes of all files of an archive that has so many.
pub(super) fn most(packed: u64) -> u64 {
    MAX_BYTES.min(FREE_BYTES.max(packed.saturating_mul(MAX_RATIO)))
}

/// Bytes that are read of one whose files have so many: whatever the entries say.
pub(super) fn most_read(most: u64) -> u64 {
    most + (MAX_ENTRIES as u64) * AROUND_ENTRY
}

/// Unpacks into a fresh folder. What is there afterwards is what the archive says, or an error.
pub(super) fn unpack(
    from: impl Read,
    packed: u64,
    into: &Root,
    stopped: &CancellationToken,
) -> Result<Content, ArchiveError> {
    let mut decoder = zstd::Decoder::new(from)?;
    decoder.window_log_max(WINDOW_LOG)?;
    let most = most(packed);
    let mut archive = Archive::new(Bounded {
        from: decoder,
        left: most_read(most),
    });
    let mut unpacking = Unpacking {
        into,
        most,
        content: Content::default(),
        names: Names::default(),
        links: Vec::new(),
        link_bytes: 0,
    };
    // As they are: whoever puts names together for us reads them whole, however long they are.
    for entry in archive.entries()?.raw(true) {
        if stopped.is_cancelled() {
            return Err(ArchiveError::Stopped);
        }
        unpacking.entry(&mut entry.map_err(strange)?)?;
    }
    let content = unpacking.finish()?;
    // To the last byte, so that whoever sends them can be asked for their hash.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(strange)?;
    Ok(content)
}

/// Names that are too long for the header of the entry that comes next.
#[derive(Default)]
struct Names {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

struct Unpacking<'a> {
    into: &'a Root,
    /// Bytes of all files.
    most: u64,
    content: Content,
    names: Names,
    links: Vec<(String, String)>,
    link_bytes: usize,
}

impl Unpacking<'_> {
    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<(), ArchiveError> {
        let kind = entry.header().entry_type();
        let long = match kind {
            EntryType::GNULongName => Some(&mut self.names.path),
            EntryType::GNULongLink => Some(&mut self.names.target),
            // What is packed here needs none, and they are there to be read in two ways.
            EntryType::XHeader | EntryType::XGlobalHeader => {
                return Err(ArchiveError::Strange("it has extended headers".to_owned()));
            }
            _ => None,
        };
        if let Some(name) = long {
            let read = long_name(entry)?;
            return match name.replace(read) {
                None => Ok(()),
                Some(_) => Err(ArchiveError::Strange("two names for one entry".to_owned())),
            };
        }
        let names = std::mem::take(&mut self.names);
        self.content.entries += 1;
        if self.content.entries > MAX_ENTRIES {
            return Err(ArchiveError::TooLarge);
        }
        let path = path_of(
            &names
                .path
                .unwrap_or_else(|| entry.path_bytes().into_owned()),
        )?;
        match kind {
            EntryType::Directory => drop(self.into.make_folder(&path)?),
            EntryType::Regular => self.file(entry, &path)?,
            EntryType::Symlink => {
                let short = || entry.link_name_bytes().map(|it| it.into_owned());
                let target = names.target.or_else(short);
                let target = target_of(&path, target.as_deref())?;
                self.link_bytes += path.len() + target.len();
                if self.link_bytes > MAX_LINK_BYTES {
                    return Err(ArchiveError::TooLarge);
                }
                self.links.push((path, target));
            }
            other => {
                return Err(ArchiveError::Strange(format!("`{path}` is a {other:?}")));
            }
        }
        Ok(())
    }

    fn file<R: Read>(&mut self, entry: &mut Entry<'_, R>, path: &str) -> Result<(), ArchiveError> {
        let size = entry.size();
        self.content.bytes = self.content.bytes.saturating_add(size);
        if size > MAX_FILE_BYTES || self.content.bytes > self.most {
            return Err(ArchiveError::TooLarge);
        }
        let mode = match entry.header().mode().map_err(strange)? & 0o111 {
            0 => 0o644,
            _ => 0o755,
        };
        let written = entry.header().mtime().map_err(strange)?;
        let mut file = self.into.create(path, 0o600)?;
        let copied = io::copy(&mut entry.take(size), &mut file)?;
        if copied != size {
            return Err(ArchiveError::Strange(format!("`{path}` ends early")));
        }
        file.set_permissions(Permissions::from_mode(mode))?;
        let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(written));
        if let Some(at) = at.filter(|_| written > 0) {
            // A time that no file can have is not worth an error.
            let _ = file.set_times(FileTimes::new().set_modified(at));
        }
        Ok(())
    }

    fn finish(self) -> Result<Content, ArchiveError> {
        if self.names.path.is_some() || self.names.target.is_some() {
            return Err(ArchiveError::Strange("a name of nothing".to_owned()));
        }
        for (path, target) in &self.links {
            self.into.link(path, target)?;
        }
        Ok(self.content)
    }
}

/// The name that an entry is, without the NUL at its end.
fn long_name<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, ArchiveError> {
    let size = entry.size();
    if size > MAX_LONG_NAME {
        return Err(ArchiveError::Strange(format!("a name of {size} bytes")));
    }
    let mut name = Vec::new();
    entry.take(size).read_to_end(&mut name).map_err(strange)?;
    if name.len() as u64 != size {
        return Err(ArchiveError::Strange("a name that ends early".to_owned()));
    }
    if name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

/// A relative path below one of the parts, and nothing else.
pub(super) fn path_of(bytes: &[u8]) -> Result<String, ArchiveError> {
    let strange = |why: &str| Err(ArchiveError::Strange(why.to_owned()));
    let Ok(text) = std::str::from_utf8(bytes) else {
        return strange("a name that is no text");
    };
    let text = text.trim_end_matches('/');
    let parts: Vec<&str> = text.split('/').collect();
    let plain = |part: &&str| !matches!(*part, "" | "." | "..") && !part.contains('\0');
    if text.len() > MAX_PATH || parts.len() > MAX_DEPTH + 2 || !parts.iter().all(plain) {
        return strange("a path that is none");
    }
    match parts.first() {
        Some(&(WORKSPACE | HOME)) if parts.len() > 1 => Ok(text.to_owned()),
        _ => strange("a path outside of its parts"),
    }
}

/// Where a link points at, if that is inside.
fn target_of(path: &str, target: Option<&[u8]>) -> Result<String, ArchiveError> {
    let Some(Ok(target)) = target.map(std::str::from_utf8) else {
        return Err(ArchiveError::Strange("a link to nowhere".to_owned()));
    };
    let inside = path.split_once('/').map_or("", |(_, inside)| inside);
    if stays(inside, target) {
        Ok(target.to_owned())
    } else {
        Err(ArchiveError::Strange(format!("`{path}` leads away")))
    }
}

fn strange(error: io::Error) -> ArchiveError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => error.into(),
        _ => ArchiveError::Strange(error.to_string()),
    }
}

/// A reader that gives up after so many bytes.
struct Bounded<R> {
    from: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        let left = self.left.checked_sub(count as u64);
        self.left = left.ok_or_else(|| io::Error::other("it unpacks to too much"))?;
        Ok(count)
    }
}
