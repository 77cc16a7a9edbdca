//! Folders of attempts: a fresh one for each, removed afterwards. Only a run on a person's own
//! machine has workspaces that stay ([`crate::local`]).
//!
//! The work folder belongs to one agent at a time and is private to its user; where jobs have users
//! of their own, each of them passes through to its own folders only. What a crashed agent left in
//! it, and nobody goes on with, is removed at the start. Names inside are ours: nothing a server or
//! a job says becomes a path.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use delta_shim::sandbox::{Confinement, Sandbox};
use delta_wire::job_spec::CheckoutSpec;
use rustix::fs::{AtFlags, CWD, Gid, Uid, chownat};

use crate::local::{CopyError, Kept, LocalTree, Taken};
use crate::private_folder::{self, ATTEMPTS, FolderError, PRIVATE, PrivateFolder, failed};

/// Others may pass through, and see nothing.
const PASSABLE: u32 = 0o711;

/// Why there is no folder to work in.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("the source tree cannot be copied")]
    Copy(#[from] CopyError),
}

impl WorkspaceError {
    /// Another machine may have the space that this one lacks.
    pub fn is_disk_full(&self) -> bool {
        let source = match self {
            WorkspaceError::Folder(FolderError::InUse { .. }) => return false,
            WorkspaceError::Copy(problem) => return problem.is_disk_full(),
            WorkspaceError::Folder(FolderError::Io { source, .. }) => source,
        };
        matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}

/// What a workspace begins with.
#[derive(Debug, Clone)]
pub enum Source {
    /// Nothing: the job fetches what it needs.
    Empty,
    /// A copy of this tree, without what its version control ignores.
    Copy(LocalTree),
    /// This very tree; it is left as the job leaves it.
    InPlace(PathBuf),
}

impl Source {
    /// What this job's workspace begins with: no copy where it wants no checkout. In place there is
    /// no other folder.
    pub(crate) fn of(&self, checkout: Option<&CheckoutSpec>) -> Source {
        match (self, checkout) {
            (Source::Copy(_), Some(CheckoutSpec::Off)) => Source::Empty,
            _ => self.clone(),
        }
    }
}

/// Whose HOME a job sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    Agents,
    Own,
}

impl Home {
    /// A confined job cannot reach the agent's, and neither can a container.
    pub(crate) fn of(confinement: Confinement, image: Option<&str>) -> Home {
        match (confinement.sandbox, image) {
            (Sandbox::Strict, _) | (_, Some(_)) => Home::Own,
            (Sandbox::Host | Sandbox::Open, None) => Home::Agents,
        }
    }
}

/// The folder under which an agent works. Held locked until dropped.
#[derive(Debug)]
pub struct WorkFolder {
    folder: PrivateFolder,
}

/// The folder of one attempt.
#[derive(Debug, Clone)]
pub struct AttemptFolder {
    root: PathBuf,
    pub workspace: PathBuf,
    pub tmp: PathBuf,
    pub home: PathBuf,
    /// The workspace stays, and is this attempt's for now.
    kept: Option<Arc<Taken>>,
    /// Nobody waits for the removal.
    aside: bool,
}

impl WorkFolder {
    /// Makes or takes over the folder.
    pub fn open(root: &Path) -> Result<WorkFolder, WorkspaceError> {
        // Not shut again where it is open: jobs with users of their own pass through it.
        let folder = PrivateFolder::open(root)?;
        Ok(WorkFolder { folder })
    }

    pub fn path(&self) -> &Path {
        &self.folder.root
    }

    /// Clears what a former agent left, but for the attempts that go on. What cannot be removed is
    /// left where it is, and said so: it must not keep an agent from starting. Returns the highest
    /// number that is still taken.
    pub fn keep_only(&self, numbers: &[u64]) -> u64 {
        let attempts = self.path().join(ATTEMPTS);
        let mut highest = 0;
        for entry in fs::read_dir(&attempts).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let number: Option<u64> = name.to_str().and_then(|name| name.parse().ok());
            let goes_on = number.is_some_and(|number| numbers.contains(&number));
            if !goes_on {
                match remove_tree(&path) {
                    Ok(()) => continue,
                    Err(error) => {
                        tracing::warn!(path = %path.display(), %error, "cannot be removed");
                    }
                }
            }
            highest = highest.max(number.unwrap_or(0));
        }
        highest
    }

    /// A fresh folder for a number that was never used. Copies a tree when `source` says so, into
    /// the workspace that is kept for a job of this name if there is one: call it where blocking is
    /// fine.
    pub fn attempt(
        &self,
        number: u64,
        source: &Source,
        kept_for: Option<&str>,
        home: Home,
    ) -> Result<AttemptFolder, WorkspaceError> {
        let mut folder = self.existing(number);
        private_folder::make(&folder.root)?;
        let made = folder.fill(source, kept_for, home);
        if made.is_err() {
            folder.remove();
        }
        made.map(|()| folder)
    }

    /// The folder of an attempt that an earlier agent began. An in-place tree is not known.
    pub fn existing(&self, number: u64) -> AttemptFolder {
        let root = self.path().join(ATTEMPTS).join(number.to_string());
        AttemptFolder {
            workspace: root.join("workspace"),
            tmp: root.join("tmp"),
            home: root.join("home"),
            root,
            kept: None,
            aside: false,
        }
    }

    /// Gives a folder, with everything in it, to the user of a job: opens the way to it for them,
    /// and to nothing else. Takes as long as there are files.
    pub fn give_away(&self, folder: &AttemptFolder, owner: u32) -> Result<(), WorkspaceError> {
        for path in [self.path(), &self.path().join(ATTEMPTS), &folder.root] {
            fs::set_permissions(path, fs::Permissions::from_mode(PASSABLE))
                .map_err(failed("open", path))?;
        }
        let own = [&folder.workspace, &folder.tmp, &folder.home];
        for path in own.into_iter().filter(|path| path.exists()) {
            change_owner(path, owner).map_err(failed("give away", path))?;
        }
        Ok(())
    }
}

impl AttemptFolder {
    fn fill(
        &mut self,
        source: &Source,
        kept_for: Option<&str>,
        home: Home,
    ) -> Result<(), WorkspaceError> {
        private_folder::make(&self.tmp)?;
        if home == Home::Own {
            private_folder::make(&self.home)?;
        }
        match source {
            Source::Empty => private_folder::make(&self.workspace)?,
            Source::Copy(local) => {
                let kept = kept_for.and_then(|job| local.kept.get(job));
                match kept.and_then(Kept::take) {
                    Some(taken) => {
                        self.workspace = local.update(&taken)?;
                        self.kept = Some(Arc::new(taken));
                    }
                    None => {
                        self.aside = true;
                        private_folder::make(&self.workspace)?;
                        self.workspace = local.copy_to(&self.workspace)?;
                    }
                }
            }
            Source::InPlace(tree) => {
                self.workspace = tree.canonicalize().map_err(failed("resolve", tree))?;
            }
        }
        Ok(())
    }

    /// The workspace is one that stays, with what earlier attempts of the job built in it.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Of a workspace that stays, what is in it of the tree; nothing for any other.
    pub(crate) fn copied(&self) -> Option<HashSet<PathBuf>> {
        self.kept.as_ref().map(|taken| taken.copied())
    }

    /// Removes everything but a tree that is worked on in place or kept. A file that cannot be
    /// removed is left for the next start, and said so: it must not fail the job.
    pub fn remove(&self) {
        if self.aside {
            // A person waits for the run to end. Should the program end first, its folder goes as a
            // whole.
            let folder = self.clone();
            std::thread::spawn(move || folder.remove_now());
        } else {
            self.remove_now();
        }
    }

    fn remove_now(&self) {
        match remove_tree(&self.root) {
            // Whoever removes all of it at once was quicker.
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => {}
            Err(problem) => {
                tracing::warn!(path = %self.root.display(), error = %problem, "left behind");
            }
            Ok(()) => {}
        }
    }
}

/// The whole tree changes hands; links themselves do, never what they point at.
fn change_owner(root: &Path, owner: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(owner), Gid::from_raw(owner));
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        if fs::symlink_metadata(&path)?.is_dir() {
            for entry in fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        }
        chownat(
            CWD,
            &path,
            Some(user),
            Some(group),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
    }
    Ok(())
}

/// Removes a tree that may contain folders without write permission, as package managers leave
/// them. Links are removed, never followed.
pub fn remove_tree(root: &Path) -> io::Result<()> {
    match fs::remove_dir_all(root) {
        Err(problem) if problem.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(problem) if problem.kind() == io::ErrorKind::PermissionDenied => {
            open_folders(root)?;
            fs::remove_dir_all(root)
        }
        other => other,
    }
}

/// Gives the owner every right on each folder of the tree, without recursion.
fn open_folders(root: &Path) -> io::Result<()> {
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        fs::set_permissions(&folder, fs::Permissions::from_mode(PRIVATE))?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_folder_has_one_owner_and_forgets_what_nobody_goes_on_with() {
        let place = tempfile::tempdir().expect("a folder");
        let first = WorkFolder::open(place.path()).expect("first");
        let attempt = first
            .attempt(1, &Source::Empty, None, Home::Own)
            .expect("an attempt");
        fs::write(attempt.workspace.join("left"), "behind").expect("a file");
        let kept = first
            .attempt(2, &Source::Empty, None, Home::Own)
            .expect("an attempt");
        let again = WorkFolder::open(place.path());
        assert!(
            matches!(
                again,
                Err(WorkspaceError::Folder(FolderError::InUse { .. }))
            ),
            "{again:?}"
        );
        drop(first);
        let second = WorkFolder::open(place.path()).expect("second");
        assert_eq!(second.keep_only(&[2]), 2);
        assert!(!attempt.workspace.exists() && kept.workspace.exists());
        assert_eq!(second.path(), place.path().canonicalize().expect("a path"));
    }

    #[test]
    fn a_folder_without_write_permission_is_removed_too() {
        let place = tempfile::tempdir().expect("a folder");
        let work = WorkFolder::open(place.path()).expect("a work folder");
        let attempt = work
            .attempt(1, &Source::Empty, None, Home::Own)
            .expect("an attempt");
        let locked = attempt.workspace.join("locked");
        fs::create_dir(&locked).expect("a folder");
        fs::write(locked.join("file"), "x").expect("a file");
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).expect("locked");
        attempt.remove();
        assert!(!attempt.root.exists());
    }

    #[test]
    fn an_in_place_tree_stays() {
        let place = tempfile::tempdir().expect("a folder");
        let tree = tempfile::tempdir().expect("a tree");
        fs::write(tree.path().join("kept"), "x").expect("a file");
        let work = WorkFolder::open(place.path()).expect("a work folder");
        let attempt = work
            .attempt(1, &Source::InPlace(tree.path().into()), None, Home::Agents)
            .expect("an attempt");
        assert_eq!(
            attempt.workspace,
            tree.path().canonicalize().expect("a path")
        );
        attempt.remove();
        assert!(tree.path().join("kept").exists());
    }
}
