//! A person's own tree, for the jobs of a run on that person's machine: each job works on a copy of
//! it with a repository of its own, and the copy may be kept and brought up to date the next time.
//!
//! Nothing here ever writes into the tree or into its repository, and no file of a copy is a hard
//! link to one of theirs: whoever may write to a copy may not write through it. Agents of a server
//! check out what they work on ([`crate::checkout`]) and never come here.

mod config;
mod files;
mod git;
mod kept_workspaces;
mod objects;
mod repository;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

pub use self::files::CopyError;
pub(crate) use self::git::REPOSITORY_VARIABLES;
pub use self::git::Refused;
pub use self::kept_workspaces::{Bounds, Loan, Shelf};

/// A tree, and where what is made of it may stay.
#[derive(Debug, Clone, Default)]
pub struct LocalTree {
    pub tree: PathBuf,
    /// A folder for one copy of its repository's objects, which all its jobs share; each has a copy
    /// of its own when absent.
    pub objects: Option<PathBuf>,
    /// Workspaces that stay, by the job's name.
    pub kept: BTreeMap<String, Kept>,
}

impl LocalTree {
    /// Copies for each job, of which nothing stays.
    pub fn of(tree: impl Into<PathBuf>) -> LocalTree {
        LocalTree {
            tree: tree.into(),
            ..LocalTree::default()
        }
    }

    /// Whether git says what of the tree is to be copied, or that nothing of it is git's.
    pub fn check(&self) -> Result<(), Refused> {
        let tree = self.tree.canonicalize();
        git::Checkout::of(tree.as_ref().unwrap_or(&self.tree)).map(drop)
    }

    /// Fills an empty folder. Says where in it the work begins: deeper where the tree is only a
    /// part of its repository.
    pub(crate) fn copy_to(&self, folder: &Path) -> Result<PathBuf, CopyError> {
        files::bring(&self.tree, folder, self.objects.as_deref(), None)
    }

    /// Brings a workspace that was kept up to date; makes it anew where that cannot be done, as
    /// when a container has left files of another user in it.
    pub(crate) fn update(&self, kept: &Taken) -> Result<PathBuf, CopyError> {
        let (folder, record) = (kept.tree(), kept.record());
        let bring = || {
            fs::create_dir_all(&folder).map_err(files::io_error("create", &folder))?;
            files::bring(&self.tree, &folder, self.objects.as_deref(), Some(&record))
        };
        match bring() {
            Err(problem) if !problem.is_disk_full() => {
                tracing::info!(error = %problem, "a workspace that was kept is made anew");
                let failed = || files::io_error("put away", &folder);
                fs::rename(&folder, kept.spoilt()).map_err(failed())?;
                remove(&record).map_err(files::io_error("remove", &record))?;
                bring()
            }
            done => done,
        }
    }
}

/// Trees that could not be removed, beside one workspace: as many as nobody will leave unseen.
const MAX_SPOILT: usize = 1_000;

/// A workspace that stays, for one attempt at a time.
#[derive(Debug, Clone)]
pub struct Kept {
    place: PathBuf,
    taken: Arc<AtomicBool>,
}

impl Kept {
    fn new(place: PathBuf) -> Kept {
        let taken = Arc::default();
        Kept { place, taken }
    }

    /// For the caller alone until it is dropped; nothing while an earlier attempt has it.
    pub(crate) fn take(&self) -> Option<Taken> {
        let taken = self.taken.swap(true, Ordering::AcqRel);
        (!taken).then(|| Taken {
            place: self.place.clone(),
            taken: Arc::clone(&self.taken),
        })
    }
}

/// An attempt has the workspace.
#[derive(Debug)]
pub(crate) struct Taken {
    place: PathBuf,
    taken: Arc<AtomicBool>,
}

impl Taken {
    /// The files in it that are of the tree.
    pub fn copied(&self) -> HashSet<PathBuf> {
        let names = fs::read(self.record()).unwrap_or_default();
        let tree = self.tree();
        git::names(&names).map(|name| tree.join(name)).collect()
    }

    fn tree(&self) -> PathBuf {
        self.place.join(kept_workspaces::TREE)
    }

    /// A name for a tree that is put away. What another user left in one may stay for good.
    fn spoilt(&self) -> PathBuf {
        let names = (0..).map(|number| {
            self.place
                .join(format!("{}-{number}", kept_workspaces::SPOILT))
        });
        let mut names = names.take(MAX_SPOILT);
        let free = names.find(|it| remove(it).is_ok());
        free.unwrap_or_else(|| self.place.join(kept_workspaces::SPOILT))
    }

    fn record(&self) -> PathBuf {
        self.place.join(kept_workspaces::FILES)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// Removes a file, a link or a whole tree, whichever has this name.
fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        // A file may be in the place of what was a folder above it.
        Err(problem)
            if matches!(
                problem.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(())
        }
        Err(problem) => Err(problem),
        Ok(found) if found.is_dir() => crate::workspace::remove_tree(path),
        Ok(_) => fs::remove_file(path),
    }
}
