//! Bringing the files of a person's tree into a workspace, which may have them already: files with
//! their modes, links as links, nothing else.
//!
//! In a git checkout the files are those that git tracks or would track, so that build results and
//! caches stay out; elsewhere it is everything. A file that is there as it should be is not
//! touched, so that build tools find it as old as it was; one that differs is put there anew. Of
//! what a job left, only what git ignores stays. Folders of our own data never enter a copy.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use delta_wire::own_folder;

use super::git::{self, Checkout, Refused};
use super::remove;
use super::repository::{self, Repository};
use crate::private_folder::PRIVATE;

/// What git makes itself, and this program brings in its own way.
const REPOSITORY: &str = ".git";

/// Checkouts inside checkouts (submodules) that are followed; real trees have two or three levels.
const MAX_NESTED: usize = 8;

/// Bytes of two files that are compared at a time.
const COMPARED: usize = 64 * 1024;

/// File systems stamp files with a clock that is behind by up to this much.
const CLOCK_TICK: Duration = Duration::from_millis(20);

/// Why a tree could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("cannot {doing} {path}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("checkouts are nested too deeply at {path}")]
    TooDeep { path: PathBuf },
    /// Then it is not known what of it is ignored, and nothing is copied.
    #[error("cannot copy {path}")]
    Refused {
        path: PathBuf,
        #[source]
        source: Refused,
    },
}

impl CopyError {
    /// Another try would find it as full.
    pub fn is_disk_full(&self) -> bool {
        let CopyError::Io { source, .. } = self else {
            return false;
        };
        matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}

/// Makes the existing folder `target` a copy of `source`. With a record, which is written anew, it
/// may have been one before; without one it is empty. Returns where in it the copy of `source`
/// itself is.
pub(super) fn bring(
    source: &Path,
    target: &Path,
    objects: Option<&Path>,
    record: Option<&Path>,
) -> Result<PathBuf, CopyError> {
    let source = source.canonicalize().map_err(io_error("resolve", source))?;
    let target = target.canonicalize().map_err(io_error("resolve", target))?;
    let mut copy = Copy {
        root: &target,
        objects,
        placed: BTreeSet::new(),
        folders: HashSet::from([target.clone()]),
    };
    let Some(checkout) = checkout_of(&source)? else {
        copy.everything(&source)?;
        return Ok(target);
    };
    copy.checkout(&checkout, &target, MAX_NESTED)?;
    if let Some(record) = record {
        copy.forget(record)?;
    }
    let inside = target.join(&checkout.prefix);
    copy.folder(&inside)?;
    Ok(inside)
}

fn checkout_of(folder: &Path) -> Result<Option<Checkout>, CopyError> {
    Checkout::of(folder).map_err(|source| CopyError::Refused {
        path: folder.into(),
        source,
    })
}

/// A copy that is being made.
struct Copy<'a> {
    root: &'a Path,
    objects: Option<&'a Path>,
    /// Files, links and checkouts that are in their places.
    placed: BTreeSet<PathBuf>,
    /// Folders that are there, and no links to others.
    folders: HashSet<PathBuf>,
}

impl Copy<'_> {
    fn checkout(
        &mut self,
        checkout: &Checkout,
        target: &Path,
        nested: usize,
    ) -> Result<(), CopyError> {
        let top = &checkout.top;
        let failed = io_error("copy the repository of", top);
        let repository = Repository::read(checkout).map_err(failed)?;
        self.folder(target)?;
        let here = top.join(&checkout.prefix);
        let listed = git::must(&here, &["ls-files", "-z", "-co", "--exclude-standard"]);
        let listed = listed.map_err(io_error("list", &here))?;
        let mut own = own_folder::Known::default();
        let files = git::names(&listed).filter(|path| is_plain(path));
        let files = files.map(|path| checkout.prefix.join(path));
        for file in files.filter(|path| !own.holds(top, path)) {
            self.one(&top.join(&file), &target.join(&file), nested)?;
        }
        let failed = || io_error("copy the repository of", top);
        let written = repository.write(checkout, self.objects, target);
        written.map_err(failed())?;
        self.clean(target).map_err(io_error("clean", target))?;
        repository::settle(target);
        Ok(())
    }

    /// A path that git listed.
    fn one(&mut self, from: &Path, to: &Path, nested: usize) -> Result<(), CopyError> {
        let Ok(meta) = fs::symlink_metadata(from) else {
            // A tracked file may be deleted on disk; then there is nothing to copy.
            return self.take_away(to);
        };
        if meta.is_dir() {
            let Some(left) = nested.checked_sub(1) else {
                return Err(CopyError::TooDeep { path: from.into() });
            };
            self.folder(to)?;
            self.placed.insert(to.to_owned());
            // A submodule that was never fetched is an empty folder.
            let own = checkout_of(from)?.filter(|it| it.top == from);
            return own.map_or(Ok(()), |own| self.checkout(&own, to, left));
        }
        if let Some(parent) = to.parent() {
            self.folder(parent)?;
        }
        place(from, to, &meta)?;
        self.placed.insert(to.to_owned());
        Ok(())
    }

    /// Makes a folder and those above it. One that a job has put a link or a file in the place of
    /// leads elsewhere no more.
    fn folder(&mut self, folder: &Path) -> Result<(), CopyError> {
        if self.folders.contains(folder) {
            return Ok(());
        }
        if let Some(above) = folder.parent().filter(|it| it.starts_with(self.root)) {
            self.folder(above)?;
        }
        let failed = || io_error("create", folder);
        match fs::symlink_metadata(folder) {
            Ok(found) if found.is_dir() => {
                let mode = found.permissions().mode();
                if mode & PRIVATE != PRIVATE {
                    let mode = fs::Permissions::from_mode(mode | PRIVATE);
                    fs::set_permissions(folder, mode).map_err(failed())?;
                }
            }
            Ok(_) => {
                fs::remove_file(folder).map_err(failed())?;
                fs::create_dir(folder).map_err(failed())?;
            }
            Err(_) => fs::create_dir(folder).map_err(failed())?,
        }
        self.folders.insert(folder.to_owned());
        Ok(())
    }

    /// Removes what a job left and git does not ignore: the next one must not do well because of
    /// it, nor badly.
    fn clean(&self, target: &Path) -> io::Result<()> {
        let others = ["ls-files", "-z", "-o", "--exclude-standard"];
        for name in git::names(&git::must(target, &others)?) {
            let path = target.join(name);
            if !self.placed.contains(&path) {
                remove(&path)?;
                let above = path.ancestors().skip(1);
                for folder in above.take_while(|it| it.starts_with(target) && *it != target) {
                    if fs::remove_dir(folder).is_err() {
                        break;
                    }
                }
            }
        }
        let folders = [&others[..], &["--directory"]].concat();
        for name in git::names(&git::must(target, &folders)?) {
            let path = target.join(name);
            if !self.placed.contains(&path) && is_hollow(&path)? {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes what an earlier copy put there and this one did not, ignored by now or not, and
    /// notes what this one did.
    fn forget(&self, record: &Path) -> Result<(), CopyError> {
        let before = fs::read(record).unwrap_or_default();
        for name in git::names(&before).filter(|name| is_plain(name)) {
            let path = self.root.join(name);
            if !self.placed.contains(&path) && !self.folders.contains(&path) {
                self.take_away(&path)?;
            }
        }
        let mut text = Vec::new();
        let names = self.placed.iter();
        for name in names.filter_map(|path| path.strip_prefix(self.root).ok()) {
            text.extend_from_slice(name.as_os_str().as_bytes());
            text.push(0);
        }
        fs::write(record, text).map_err(io_error("write", record))
    }

    /// Removes what is in the copy. Where a job has put a link in the place of a folder above it,
    /// there is nothing of ours behind it.
    fn take_away(&self, path: &Path) -> Result<(), CopyError> {
        let above = path.parent().and_then(|it| it.canonicalize().ok());
        if above.is_some_and(|it| it.starts_with(self.root)) {
            remove(path).map_err(io_error("remove", path))
        } else {
            Ok(())
        }
    }

    /// Copies a tree that no version control describes, without recursion.
    fn everything(&mut self, source: &Path) -> Result<(), CopyError> {
        let target = self.root.to_owned();
        let mut open = vec![(source.to_owned(), target.clone())];
        while let Some((from, to)) = open.pop() {
            for entry in fs::read_dir(&from).map_err(io_error("list", &from))? {
                let entry = entry.map_err(io_error("list", &from))?;
                let (from, to) = (entry.path(), to.join(entry.file_name()));
                let never = entry.file_name() == REPOSITORY || from == target;
                if never || own_folder::is(&from) {
                    continue;
                }
                let meta = fs::symlink_metadata(&from).map_err(io_error("look at", &from))?;
                if meta.is_dir() {
                    self.folder(&to)?;
                    open.push((from, to));
                } else {
                    place(&from, &to, &meta)?;
                }
            }
        }
        Ok(())
    }
}

/// Nothing but folders. `path` may end with a slash, as git lists them.
fn is_hollow(path: &Path) -> io::Result<bool> {
    let mut open = vec![path.to_owned()];
    while let Some(folder) = open.pop() {
        if !fs::symlink_metadata(&folder)?.is_dir() {
            return Ok(false);
        }
        for entry in fs::read_dir(&folder)? {
            open.push(entry?.path());
        }
    }
    Ok(true)
}

fn is_plain(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(name) if name != OsStr::new(REPOSITORY)))
}

/// One file or link, unless it is there as it should be. Sockets, pipes and devices are left out.
fn place(from: &Path, to: &Path, meta: &fs::Metadata) -> Result<(), CopyError> {
    if let Ok(there) = fs::symlink_metadata(to) {
        if is_same(from, meta, to, &there) {
            let (mode, has) = (meta.permissions().mode(), there.permissions().mode());
            if meta.is_file() && mode != has {
                fs::set_permissions(to, meta.permissions()).map_err(io_error("change", to))?;
            }
            return Ok(());
        }
        // Never written through: it may be a link, or one of several names of a file.
        remove(to).map_err(io_error("remove", to))?;
        outlast_the_second_of(&there);
    }
    if meta.is_symlink() {
        let aim = fs::read_link(from).map_err(io_error("read", from))?;
        return std::os::unix::fs::symlink(aim, to).map_err(io_error("create", to));
    }
    if meta.is_file() {
        fs::copy(from, to).map_err(io_error("copy", from))?;
    }
    Ok(())
}

/// Returns once a file that is written now gets a time of another second than `there` has. Tools
/// that compare whole seconds (Python's byte code, older makes) would otherwise take what they
/// built of the one for what they would build of the other.
fn outlast_the_second_of(there: &fs::Metadata) {
    let Ok(written) = there.modified() else {
        return;
    };
    // Of a clock that was put back since: another second already.
    let Ok(since) = SystemTime::now().duration_since(written) else {
        return;
    };
    let into = written.duration_since(UNIX_EPOCH).unwrap_or_default();
    let rest = Duration::from_secs(1) - Duration::from_nanos(into.subsec_nanos().into());
    thread::sleep((rest + CLOCK_TICK).saturating_sub(since));
}

fn is_same(from: &Path, meta: &fs::Metadata, to: &Path, there: &fs::Metadata) -> bool {
    if meta.is_symlink() {
        return there.is_symlink() && fs::read_link(from).ok() == fs::read_link(to).ok();
    }
    let alike = meta.is_file() && there.is_file() && meta.len() == there.len();
    alike && same_bytes(from, to).unwrap_or(false)
}

fn same_bytes(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let (mut left, mut right) = (vec![0; COMPARED], vec![0; COMPARED]);
    loop {
        let (has, had) = (fill(&mut one, &mut left)?, fill(&mut other, &mut right)?);
        if left[..has] != right[..had] {
            return Ok(false);
        }
        if has == 0 {
            return Ok(true);
        }
    }
}

/// As many bytes as there is room for, or as there are.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}

pub(super) fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CopyError {
    let path = path.to_owned();
    move |source| CopyError::Io {
        doing,
        path,
        source,
    }
}

#[cfg(test)]
mod tests;
