//! Files beneath a folder that somebody else filled. Nothing here leaves that folder, whatever
//! lies in it: each path is resolved by the kernel beneath the folder and through no link
//! (openat2), or part by part where the kernel cannot.
//!
//! Only regular files are opened, each once, and what is known of one is read from the very
//! descriptor that its bytes come from.

mod glob;
mod walk;

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, fstat, mkdirat, openat,
    openat2, readlinkat, renameat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

pub use self::glob::Glob;
pub use self::walk::{Matched, WalkError, Walked};

/// How often a resolution that met a rename is begun again.
const RACES: usize = 16;

/// A folder that is not left.
#[derive(Debug)]
pub struct Root {
    folder: OwnedFd,
}

/// Whose files count as the job's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(pub u32);

/// What lies at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Folder,
    File,
    /// Where it points at.
    Link(String),
    Other,
}

/// Why a file is not opened.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{0}")]
    NotRegular(&'static str),
    #[error("is linked from elsewhere and belongs to somebody else")]
    Foreign,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Root {
    /// The folder itself is no link either.
    pub fn open(path: &Path) -> io::Result<Root> {
        let flags = FOLDER | OFlags::NOFOLLOW;
        let folder = openat(rustix::fs::CWD, path, flags, Mode::empty())?;
        Ok(Root { folder })
    }

    /// A folder inside.
    pub fn folder(&self, path: &str) -> io::Result<Root> {
        let folder = match path {
            "" | "." => openat(&self.folder, ".", FOLDER, Mode::empty())?,
            path => beneath(self.folder.as_fd(), path, FOLDER, Mode::empty())?,
        };
        Ok(Root { folder })
    }

    /// A folder inside, made with those above it where it is missing.
    pub fn make_folder(&self, path: &str) -> io::Result<Root> {
        let mut here = self.folder("")?;
        for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
            plain(part)?;
            match mkdirat(&here.folder, part, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => here = here.folder(part)?,
                Err(problem) => return Err(problem.into()),
            }
        }
        Ok(here)
    }

    /// A regular file that is the job's to give away, and its size.
    pub fn file(&self, path: &str, owner: Owner) -> Result<(File, u64), FileError> {
        // Looked at before it is opened: to open a device is to act on it.
        let (folder, name) = match path.rsplit_once('/') {
            Some((folder, name)) => (self.folder(folder)?, name),
            None => (self.folder("")?, path),
        };
        plain(name)?;
        let found = statat(&folder.folder, name, AtFlags::SYMLINK_NOFOLLOW);
        let found = found.map_err(io::Error::from)?;
        regular(FileType::from_raw_mode(found.st_mode))?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = beneath(
            folder.folder.as_fd(),
            name,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let found = fstat(&file).map_err(io::Error::from)?;
        regular(FileType::from_raw_mode(found.st_mode))?;
        // A build links its own files; one of another user's got here by a trick.
        if found.st_nlink > 1 && found.st_uid != owner.0 {
            return Err(FileError::Foreign);
        }
        Ok((File::from(file), u64::try_from(found.st_size).unwrap_or(0)))
    }

    /// A fresh file inside, in place of whatever has its name; the folders above are made.
    pub fn create(&self, path: &str, mode: u32) -> io::Result<File> {
        let (folder, name) = match path.rsplit_once('/') {
            Some((folder, name)) => (self.make_folder(folder)?, name),
            None => (self.folder("")?, path),
        };
        plain(name)?;
        match unlinkat(&folder.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(problem) => return Err(problem.into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(mode);
        let file = openat(&folder.folder, name, flags | OFlags::CLOEXEC, mode)?;
        Ok(File::from(file))
    }

    /// Removes a file inside, if there is one.
    pub fn remove(&self, path: &str) -> io::Result<()> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        plain(name)?;
        match unlinkat(&self.folder(folder)?.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(problem) => Err(problem.into()),
        }
    }

    /// What a path is, itself.
    pub fn kind(&self, path: &str) -> io::Result<Kind> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        plain(name)?;
        let folder = self.folder(folder)?;
        let found = statat(&folder.folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => Kind::Folder,
            FileType::RegularFile => Kind::File,
            FileType::Symlink => {
                let target = readlinkat(&folder.folder, name, Vec::new())?;
                target.into_string().map_or(Kind::Other, Kind::Link)
            }
            _ => Kind::Other,
        })
    }

    /// The names in a folder, in no order, and how many there are that are no text. Nothing where
    /// there are more than so many: how many there are is somebody else's choice.
    pub fn names(&self, path: &str, most: usize) -> io::Result<Option<(Vec<String>, usize)>> {
        let folder = self.folder(path)?;
        let (mut names, mut strange) = (Vec::new(), 0);
        for entry in Dir::read_from(&folder.folder)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if matches!(&*name, b"." | b"..") {
                continue;
            }
            if names.len() + strange >= most {
                return Ok(None);
            }
            match String::from_utf8(name) {
                Ok(name) => names.push(name),
                Err(_) => strange += 1,
            }
        }
        Ok(Some((names, strange)))
    }

    /// Makes a link; what it points at is the caller's to judge.
    pub fn link(&self, path: &str, target: &str) -> io::Result<()> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        plain(name)?;
        Ok(symlinkat(target, &self.make_folder(folder)?.folder, name)?)
    }

    /// Makes one folder inside; those above it are there.
    pub fn make_one(&self, path: &str) -> io::Result<()> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        plain(name)?;
        let mode = Mode::from_raw_mode(0o755);
        Ok(mkdirat(&self.folder(folder)?.folder, name, mode)?)
    }

    /// Removes a folder inside, which must be empty.
    pub fn remove_folder(&self, path: &str) -> io::Result<()> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        plain(name)?;
        let folder = self.folder(folder)?;
        Ok(unlinkat(&folder.folder, name, AtFlags::REMOVEDIR)?)
    }

    /// Moves what is at a path, itself, to a path of another root. Nothing may be there.
    pub fn move_to(&self, path: &str, other: &Root, to: &str) -> io::Result<()> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let (there, called) = to.rsplit_once('/').unwrap_or(("", to));
        plain(name)?;
        plain(called)?;
        let (from, into) = (self.folder(folder)?, other.folder(there)?);
        let once = RenameFlags::NOREPLACE;
        match renameat_with(&from.folder, name, &into.folder, called, once) {
            // Not every file system can.
            Err(Errno::INVAL | Errno::NOSYS) => match other.kind(to) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Ok(renameat(&from.folder, name, &into.folder, called)?)
                }
                Err(error) => Err(error),
                Ok(_) => Err(Errno::EXIST.into()),
            },
            moved => Ok(moved?),
        }
    }
}

/// A path inside a folder of a root.
pub fn join(folder: &str, name: &str) -> String {
    match folder {
        "" | "." => name.to_owned(),
        folder => format!("{folder}/{name}"),
    }
}

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Opens a path beneath a folder, through no link of any kind.
fn beneath(folder: BorrowedFd<'_>, path: &str, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..RACES {
        match openat2(folder, path, flags | OFlags::NOFOLLOW, mode, resolve) {
            Ok(found) => return Ok(found),
            Err(Errno::AGAIN | Errno::INTR) => {}
            // An old kernel, or a filter around this process that does not know it.
            Err(Errno::NOSYS | Errno::PERM) => return part_by_part(folder, path, flags, mode),
            Err(problem) => return Err(problem.into()),
        }
    }
    part_by_part(folder, path, flags, mode)
}

fn part_by_part(
    folder: BorrowedFd<'_>,
    path: &str,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let mut parts = path
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .peekable();
    let mut here: Option<OwnedFd> = None;
    while let Some(part) = parts.next() {
        plain(part)?;
        let at = here.as_ref().map_or(folder, AsFd::as_fd);
        if parts.peek().is_none() {
            return Ok(openat(at, part, flags | OFlags::NOFOLLOW, mode)?);
        }
        let through = FOLDER | OFlags::NOFOLLOW;
        here = Some(openat(at, part, through, Mode::empty())?);
    }
    Err(io::ErrorKind::InvalidInput.into())
}

/// A name, and no way to anywhere.
fn plain(name: &str) -> io::Result<()> {
    if matches!(name, "" | "." | "..") || name.contains(['/', '\0']) {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "is no name of a file",
        ))
    } else {
        Ok(())
    }
}

fn regular(kind: FileType) -> Result<(), FileError> {
    match kind {
        FileType::RegularFile => Ok(()),
        other => Err(FileError::NotRegular(kind_of(other))),
    }
}

/// What is said of a name that stands for it.
fn kind_of(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "is a file",
        FileType::Directory => "is a folder",
        FileType::Symlink => "is a link, which is not followed",
        FileType::Fifo => "is a pipe",
        FileType::Socket => "is a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "is a device",
        FileType::Unknown => "is of no known kind",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use tokio_util::sync::CancellationToken;

    use super::*;

    /// Without waiting for somebody at the other end of a pipe.
    const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);

    fn me() -> Owner {
        Owner(rustix::process::geteuid().as_raw())
    }

    fn walk(root: &Path, patterns: &[&str]) -> Result<Walked, WalkError> {
        let patterns: Vec<Glob> = patterns.iter().filter_map(|it| Glob::parse(it)).collect();
        let root = Root::open(root).expect("a root");
        root.walk(&patterns, 100, &CancellationToken::new())
    }

    fn paths(walked: &Walked) -> Vec<&str> {
        walked.files.iter().map(|it| it.path.as_str()).collect()
    }

    /// A workspace as somebody hostile leaves it, and a secret beside it.
    fn hostile() -> (tempfile::TempDir, std::path::PathBuf) {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().join("workspace");
        fs::create_dir_all(root.join("out/deep")).expect("folders");
        fs::write(place.path().join("secret"), "canary").expect("a file");
        fs::write(root.join("out/good"), "good").expect("a file");
        fs::write(root.join("out/deep/better"), "better").expect("a file");
        symlink("../../secret", root.join("out/link")).expect("a link");
        symlink("/etc/passwd", root.join("out/absolute")).expect("a link");
        symlink("/proc/self/fd", root.join("out/fds")).expect("a link");
        symlink("..", root.join("out/deep/up")).expect("a loop");
        symlink("../..", root.join("out/away")).expect("a link");
        let pipe = root.join("out/pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .expect("a pipe");
        drop(std::os::unix::net::UnixListener::bind(root.join("out/socket")).expect("a socket"));
        // A device needs rights that not everybody has.
        let _ = rustix::fs::mknodat(
            rustix::fs::CWD,
            root.join("out/device"),
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o600),
            rustix::fs::makedev(1, 5),
        );
        (place, root)
    }

    // T9
    #[test]
    fn a_walk_takes_regular_files_and_leaves_the_folder_by_no_way() {
        let (_place, root) = hostile();
        let walked = walk(&root, &["**", "nothing/*.xml"]).expect("a walk");
        assert_eq!(paths(&walked), ["out/deep/better", "out/good"]);
        assert_eq!(walked.met, [true, false]);
        let skipped: Vec<&str> = walked.skipped.iter().map(|it| it.path.as_str()).collect();
        for path in [
            "out/absolute",
            "out/away",
            "out/deep/up",
            "out/fds",
            "out/link",
            "out/pipe",
        ] {
            assert!(skipped.contains(&path), "{path} is told: {skipped:?}");
        }
        let all = walk(&root, &["out"]).expect("a walk");
        assert_eq!(paths(&all), ["out/deep/better", "out/good"]);
    }

    // T9
    #[test]
    fn a_path_out_of_the_folder_is_refused_whoever_resolves_it() {
        let (place, root) = hostile();
        fs::hard_link(root.join("out/good"), root.join("out/twin")).expect("a link");
        let opened = Root::open(&root).expect("a root");
        for path in [
            "../secret",
            "out/../../secret",
            "/etc/passwd",
            "out/link",
            "out/absolute",
            "out/fds/0",
            "out/away/secret",
            "out/deep/up/good",
            "out/pipe",
            "out/socket",
            "out",
            "",
            ".",
            "..",
        ] {
            assert!(opened.file(path, me()).is_err(), "{path}");
            let parts = part_by_part(opened.folder.as_fd(), path, READ, Mode::empty());
            let regular = parts.map(|file| fstat(&file).expect("a file").st_mode);
            let regular = regular.is_ok_and(|mode| FileType::from_raw_mode(mode).is_file());
            assert!(!regular, "{path}, part by part");
            assert!(
                opened.create(path, 0o600).is_err() || root.join(path).exists(),
                "{path}"
            );
        }
        let secret = fs::read_to_string(place.path().join("secret")).expect("the secret");
        assert_eq!(secret, "canary");
        let (mut file, size) = opened.file("out/good", me()).expect("a file");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("bytes");
        assert_eq!((text.as_str(), size), ("good", 4));
        assert!(
            opened.file("out/twin", me()).is_ok(),
            "a build links its own files"
        );
        let foreign = opened.file("out/twin", Owner(me().0 + 1));
        assert!(matches!(foreign, Err(FileError::Foreign)), "{foreign:?}");
    }

    // T9
    #[test]
    fn what_is_written_goes_through_no_link() {
        let (place, root) = hostile();
        let opened = Root::open(&root).expect("a root");
        assert!(opened.create("out/away/secret", 0o600).is_err());
        assert!(opened.make_folder("out/away/more").is_err());
        assert!(opened.make_folder("../more").is_err());
        // A link in the place of a file is replaced, not followed.
        drop(opened.create("out/link", 0o600).expect("a file"));
        let secret = fs::read_to_string(place.path().join("secret")).expect("the secret");
        assert_eq!(secret, "canary");
        drop(opened.create("fresh/folder/file", 0o600).expect("a file"));
        assert!(root.join("fresh/folder/file").is_file());
        opened.remove("fresh/folder/file").expect("gone");
        opened.remove("fresh/folder/file").expect("gone already");
    }

    // T11, D15
    #[test]
    fn names_are_counted_while_they_are_listed() {
        let place = tempfile::tempdir().expect("a folder");
        for n in 0..5 {
            fs::write(place.path().join(n.to_string()), "").expect("a file");
        }
        let root = Root::open(place.path()).expect("a root");
        let listed = root.names("", 5).expect("a folder");
        assert_eq!(listed.map(|(names, _)| names.len()), Some(5));
        assert_eq!(root.names("", 4).expect("a folder"), None);
    }
}
