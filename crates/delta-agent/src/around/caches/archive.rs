//! The archive of a cache: tar inside zstd, written and read as a stream.
//!
//! It holds files, folders and links that stay inside. Nothing else is packed, and nothing else is
//! unpacked whoever packed it (T10): each entry is made beneath a fresh folder, through no link,
//! without special rights; links come last. Everything has a bound (T11).

use std::fs::{FileTimes, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use tar::{Archive, Builder, EntryType, Header};
use tokio_util::sync::CancellationToken;

use super::super::files::{FileError, Kind, Owner, Root};

/// Entries of one archive: several large `node_modules`.
const MAX_ENTRIES: usize = 500_000;
/// Bytes of everything in it, and of one file.
const MAX_BYTES: u64 = 20 * 1024 * 1024 * 1024;
const MAX_FILE_BYTES: u64 = 10 * 1024 * 1024 * 1024;
/// How much larger than the archive its content may be, beyond what any archive may hold.
const MAX_RATIO: u64 = 100;
const FREE_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes of a path, and folders inside each other.
const MAX_PATH: usize = 4096;
const MAX_DEPTH: usize = 128;
/// The compression that costs less than it saves on most networks.
const LEVEL: i32 = 3;
/// The largest window that is unpacked, as a power of two: 8 MiB of memory, four times what is
/// packed with.
const WINDOW_LOG: u32 = 23;

/// The part of an archive that lies in the workspace, and the one of the job's HOME.
pub(super) const WORKSPACE: &str = "workspace";
pub(super) const HOME: &str = "home";

/// Why an archive could not be made or read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArchiveError {
    #[error("it was stopped")]
    Stopped,
    #[error("it is larger than a cache may be")]
    TooLarge,
    #[error("it is not an archive of ours: {0}")]
    Strange(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What is in an archive.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    pub entries: usize,
    pub bytes: u64,
    /// Links that lead away, pipes, files of others: not packed.
    pub left_out: usize,
}

/// Packs what lies beneath these paths of a root, under a name of its own.
pub(super) struct Packer<'a, W: Write> {
    builder: Builder<zstd::Encoder<'static, W>>,
    stopped: &'a CancellationToken,
    owner: Owner,
    pub content: Content,
}

impl<'a, W: Write> Packer<'a, W> {
    pub fn new(to: W, owner: Owner, stopped: &'a CancellationToken) -> io::Result<Self> {
        let builder = Builder::new(zstd::Encoder::new(to, LEVEL)?);
        Ok(Packer {
            builder,
            stopped,
            owner,
            content: Content::default(),
        })
    }

    /// Adds a path of a root, with everything below it; nothing where there is none.
    pub fn add(&mut self, part: &str, root: &Root, path: &str) -> Result<(), ArchiveError> {
        let mut open = vec![(path.trim_end_matches('/').to_owned(), 0)];
        while let Some((path, depth)) = open.pop() {
            if self.stopped.is_cancelled() {
                return Err(ArchiveError::Stopped);
            }
            let kind = match root.kind(&path) {
                Err(error) if depth == 0 && error.kind() == io::ErrorKind::NotFound => {
                    return Ok(());
                }
                kind => kind?,
            };
            self.content.entries += 1;
            if self.content.entries > MAX_ENTRIES || depth > MAX_DEPTH {
                return Err(ArchiveError::TooLarge);
            }
            let name = format!("{part}/{path}");
            match kind {
                Kind::Folder => {
                    self.folder(&name)?;
                    // The last is taken first.
                    let mut names = root.names(&path)?;
                    names.sort_by(|one, two| two.cmp(one));
                    open.extend(names.into_iter().map(|it| (join(&path, &it), depth + 1)));
                }
                Kind::File => self.file(&name, root, &path)?,
                Kind::Link(target) if stays(&path, &target) => self.link(&name, &target)?,
                Kind::Link(_) | Kind::Other => self.content.left_out += 1,
            }
        }
        Ok(())
    }

    fn folder(&mut self, name: &str) -> io::Result<()> {
        let mut header = header(EntryType::Directory, 0o755, 0, 0);
        self.builder
            .append_data(&mut header, format!("{name}/"), io::empty())
    }

    fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        let mut header = header(EntryType::Symlink, 0o777, 0, 0);
        self.builder.append_link(&mut header, name, target)
    }

    fn file(&mut self, name: &str, root: &Root, path: &str) -> Result<(), ArchiveError> {
        let (file, size) = match root.file(path, self.owner) {
            Ok(opened) => opened,
            Err(FileError::Io(error)) if error.kind() != io::ErrorKind::PermissionDenied => {
                return Err(error.into());
            }
            Err(_) => {
                self.content.left_out += 1;
                return Ok(());
            }
        };
        self.content.bytes += size;
        if size > MAX_FILE_BYTES || self.content.bytes > MAX_BYTES {
            return Err(ArchiveError::TooLarge);
        }
        let found = file.metadata()?;
        let mode = match found.permissions().mode() & 0o111 {
            0 => 0o644,
            _ => 0o755,
        };
        let written = found.modified()?.duration_since(SystemTime::UNIX_EPOCH);
        let mut header = header(
            EntryType::Regular,
            mode,
            size,
            written.map_or(0, |it| it.as_secs()),
        );
        // Exactly as long as its header says, or not at all.
        let mut exact = file.take(size);
        self.builder.append_data(&mut header, name, &mut exact)?;
        match exact.limit() {
            0 => Ok(()),
            _ => Err(io::Error::other("a file changes while it is packed").into()),
        }
    }

    /// Ends the archive, and gives back where it was written to.
    pub fn finish(self) -> Result<(W, Content), ArchiveError> {
        let to = self.builder.into_inner()?.finish()?;
        Ok((to, self.content))
    }
}

fn header(kind: EntryType, mode: u32, size: u64, written: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(written);
    // Whose it is does not travel.
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn join(folder: &str, name: &str) -> String {
    match folder {
        "" | "." => name.to_owned(),
        folder => format!("{folder}/{name}"),
    }
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
    let most = MAX_BYTES.min(FREE_BYTES.max(packed.saturating_mul(MAX_RATIO)));
    // Whatever the entries say: no more than this is looked at.
    let mut archive = Archive::new(Bounded {
        from: decoder,
        left: most + (MAX_ENTRIES as u64) * 2048,
    });
    let (mut content, mut links) = (Content::default(), Vec::new());
    for entry in archive.entries()? {
        if stopped.is_cancelled() {
            return Err(ArchiveError::Stopped);
        }
        let mut entry = entry.map_err(strange)?;
        content.entries += 1;
        if content.entries > MAX_ENTRIES {
            return Err(ArchiveError::TooLarge);
        }
        // What is packed here needs none, and they are there to be read in two ways.
        if entry.pax_extensions().map_err(strange)?.is_some() {
            return Err(ArchiveError::Strange("it has extended headers".to_owned()));
        }
        let path = path_of(&entry.path_bytes())?;
        let size = entry.size();
        if entry.header().entry_size().map_err(strange)? != size {
            return Err(ArchiveError::Strange("two sizes for one entry".to_owned()));
        }
        match entry.header().entry_type() {
            EntryType::Directory => drop(into.make_folder(&path)?),
            EntryType::Regular => {
                content.bytes += size;
                if size > MAX_FILE_BYTES || content.bytes > most {
                    return Err(ArchiveError::TooLarge);
                }
                let mode = match entry.header().mode().map_err(strange)? & 0o111 {
                    0 => 0o644,
                    _ => 0o755,
                };
                let written = entry.header().mtime().map_err(strange)?;
                file(&mut entry, size, into, &path, mode, written)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes();
                let target = target_of(&path, target.as_deref())?;
                links.push((path, target));
            }
            other => {
                return Err(ArchiveError::Strange(format!("`{path}` is a {other:?}")));
            }
        }
    }
    for (path, target) in &links {
        into.link(path, target)?;
    }
    // To the last byte, so that whoever sends them can be asked for their hash.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(strange)?;
    Ok(content)
}

fn file(
    entry: &mut impl Read,
    size: u64,
    into: &Root,
    path: &str,
    mode: u32,
    written: u64,
) -> Result<(), ArchiveError> {
    let mut file = into.create(path, 0o600)?;
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

/// A relative path below one of the parts, and nothing else.
fn path_of(bytes: &[u8]) -> Result<String, ArchiveError> {
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
    match stays(inside, target) {
        true => Ok(target.to_owned()),
        false => Err(ArchiveError::Strange(format!("`{path}` leads away"))),
    }
}

/// Whether a link at this path of a root stays inside: steps up come first, and no more of them
/// than there are folders above it.
fn stays(path: &str, target: &str) -> bool {
    if target.is_empty() || target.starts_with('/') || target.contains('\0') {
        return false;
    }
    let above = path
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .count();
    let parts = || target.split('/').filter(|part| !matches!(*part, "" | "."));
    let up = parts().take_while(|part| *part == "..").count();
    up < above && !parts().skip(up).any(|part| part == "..")
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

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
