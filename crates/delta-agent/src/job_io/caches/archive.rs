//! The archive of a cache: tar inside zstd, written as a stream; `unpack` reads it.
//!
//! It holds files, folders and links that stay inside. Nothing else is packed. Everything has a
//! bound (T11), the same for both ways: what could not be unpacked again is not packed, for it
//! would hold its key and be of use to nobody.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;
use std::time::SystemTime;

use delta_shim::job_files::{FileError, Kind, Owner, Root, join};
use tar::{Builder, EntryType, Header};
use tokio_util::sync::CancellationToken;

use super::super::transfer::size as in_words;
use super::unpack::{self, MAX_LINK_BYTES, MAX_RATIO};

/// Entries of one archive: several large `node_modules`.
pub(super) const MAX_ENTRIES: usize = 500_000;
/// Bytes of everything in it, and of one file.
pub(super) const MAX_BYTES: u64 = 20 * 1024 * 1024 * 1024;
pub(super) const MAX_FILE_BYTES: u64 = 10 * 1024 * 1024 * 1024;
/// Folders inside each other.
pub(super) const MAX_DEPTH: usize = 128;
/// The compression that costs less than it saves on most networks.
const LEVEL: i32 = 3;

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
    #[error("it could not be restored: {0}")]
    NoWayBack(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What is in an archive.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    pub entries: usize,
    pub bytes: u64,
    /// Links that lead away, pipes, files of others, names that are no text: not packed.
    pub left_out: usize,
}

/// Packs what lies beneath these paths of a root, under a name of its own.
pub(super) struct Packer<'a, W: Write> {
    builder: Builder<Counted<zstd::Encoder<'static, Counted<W>>>>,
    stopped: &'a CancellationToken,
    owner: Owner,
    pub content: Content,
    /// Entries, at most.
    most: usize,
    link_bytes: usize,
}

impl<'a, W: Write> Packer<'a, W> {
    pub fn new(to: W, owner: Owner, stopped: &'a CancellationToken) -> io::Result<Self> {
        let packed = zstd::Encoder::new(Counted::new(to), LEVEL)?;
        Ok(Packer {
            builder: Builder::new(Counted::new(packed)),
            stopped,
            owner,
            content: Content::default(),
            most: MAX_ENTRIES,
            link_bytes: 0,
        })
    }

    /// Adds a path of a root, with everything below it; nothing where there is none.
    pub fn add(&mut self, part: &str, root: &Root, path: &str) -> Result<(), ArchiveError> {
        let path = path.trim_end_matches('/');
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        // The folder of those beside each other is held once: its path may be long (T11).
        let mut open: Vec<(Rc<str>, String, usize)> = vec![(above.into(), name.to_owned(), 0)];
        while let Some((above, name, depth)) = open.pop() {
            if self.stopped.is_cancelled() {
                return Err(ArchiveError::Stopped);
            }
            let path = join(&above, &name);
            let kind = match root.kind(&path) {
                Err(error) if depth == 0 && error.kind() == io::ErrorKind::NotFound => {
                    return Ok(());
                }
                kind => kind?,
            };
            self.content.entries += 1;
            if self.content.entries > self.most || depth > MAX_DEPTH {
                return Err(ArchiveError::TooLarge);
            }
            let name = format!("{part}/{path}");
            unpack::path_of(name.as_bytes()).map_err(|error| no_way_back(&name, &error))?;
            match kind {
                Kind::Folder => {
                    self.folder(&name)?;
                    let room = self.most.saturating_sub(self.content.entries + open.len());
                    let listed = root.names(&path, room)?;
                    let (mut names, strange) = listed.ok_or(ArchiveError::TooLarge)?;
                    self.content.left_out += strange;
                    // The last is taken first.
                    names.sort_by(|one, two| two.cmp(one));
                    let path: Rc<str> = path.into();
                    let inside = |name| (Rc::clone(&path), name, depth + 1);
                    open.extend(names.into_iter().map(inside));
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

    fn link(&mut self, name: &str, target: &str) -> Result<(), ArchiveError> {
        self.link_bytes += name.len() + target.len();
        if self.link_bytes > MAX_LINK_BYTES {
            return Err(ArchiveError::TooLarge);
        }
        let mut header = header(EntryType::Symlink, 0o777, 0, 0);
        Ok(self.builder.append_link(&mut header, name, target)?)
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
        let tar = self.builder.into_inner()?;
        let packed = tar.to.finish()?;
        let most = unpack::most(packed.count);
        if self.content.bytes > most || tar.count > unpack::most_read(most) {
            let (all, packed) = (in_words(self.content.bytes), in_words(packed.count));
            let why = format!("{all} would come out of {packed}, more than {MAX_RATIO} times that");
            return Err(ArchiveError::NoWayBack(why));
        }
        Ok((packed.to, self.content))
    }
}

fn no_way_back(name: &str, error: &ArchiveError) -> ArchiveError {
    // Such a path is long.
    let few: String = name.chars().take(80).collect();
    let why = match error {
        ArchiveError::Strange(why) => why.clone(),
        other => other.to_string(),
    };
    ArchiveError::NoWayBack(format!("{} is {why}", few.escape_debug()))
}

/// Counts what is written through it.
struct Counted<W> {
    to: W,
    count: u64,
}

impl<W> Counted<W> {
    fn new(to: W) -> Self {
        Counted { to, count: 0 }
    }
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
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

/// Whether a link at this path of a root stays inside: steps up come first, and no more of them
/// than there are folders above it.
pub(super) fn stays(path: &str, target: &str) -> bool {
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

#[cfg(test)]
#[path = "archive_tests.rs"]
mod tests;
