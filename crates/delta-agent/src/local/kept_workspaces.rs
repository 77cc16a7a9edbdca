//! Workspaces that stay between runs of one tree on a person's machine: one for each job, used by
//! one run at a time. A tool that builds only what changed finds there what it has built.
//!
//! They lie in the person's cache folder and can be removed at any time. One that was not left in
//! order, because its run was killed, is not used again: nobody knows what still writes to it. What
//! is too old or too much goes, the oldest first.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest;
use delta_wire::own_folder;
use rustix::fs::{FlockOperation, flock};

use super::git::Checkout;
use super::{Kept, remove};
use crate::private_folder::PRIVATE;

/// The workspace itself.
pub(super) const TREE: &str = "tree";
/// An earlier one, which could not be brought up to date.
pub(super) const SPOILT: &str = "spoilt";
/// What was copied into it.
pub(super) const FILES: &str = "files";
/// Locked by the run that uses it.
const LOCK: &str = "lock";
/// There while a run uses it.
const OPEN: &str = "open";
/// Touched when one is done with it.
const USED: &str = "used";
/// Its bytes, as they were when somebody last counted.
const SIZE: &str = "size";
/// Of a tree: one copy of the objects of its repository.
const OBJECTS: &str = "repository";
/// Of a tree: what the jobs of its last runs left.
const ARTIFACTS: &str = "artifacts";
/// Of a tree: the folder it was made of, for whoever looks.
const ABOUT: &str = "about";
/// What waits for its removal.
const GONE: &str = "gone";

/// Letters of a hash in a name: enough for all jobs of a person, and paths stay short.
const LETTERS: usize = 10;

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of all of them.
    pub max_bytes: u64,
    /// Since they were last used.
    pub max_age: Duration,
}

impl Bounds {
    /// A few large projects with their build results, and a holiday between two runs.
    pub const USUAL: Bounds = Bounds {
        max_bytes: 20 * 1024 * 1024 * 1024,
        max_age: Duration::from_secs(21 * 24 * 60 * 60),
    };
}

/// Where the workspaces of one tree are.
#[derive(Debug, Clone)]
pub struct Shelf {
    root: PathBuf,
    of_tree: PathBuf,
}

/// Workspaces that a run has for itself.
#[derive(Debug)]
pub struct Loan {
    held: BTreeMap<String, Held>,
    /// Jobs whose workspace another run uses just now.
    pub in_use: Vec<String>,
    /// When the oldest of those that are there was last used; nothing where none is.
    pub since: Option<SystemTime>,
}

#[derive(Debug)]
struct Held {
    place: PathBuf,
    _lock: File,
}

impl Shelf {
    /// In the cache folder of a person, who may not have one.
    pub fn usual() -> Option<PathBuf> {
        let absolute = |name: &str| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|it| it.is_absolute())
        };
        let caches = absolute("XDG_CACHE_HOME");
        let caches = caches.or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
        Some(caches.join("delta-ci").join("run"))
    }

    /// That of a tree. Nothing where git does not track it: then nobody could say what of an
    /// earlier copy may stay.
    pub fn open(root: &Path, tree: &Path) -> io::Result<Option<Shelf>> {
        let tree = tree.canonicalize()?;
        let Some(checkout) = Checkout::of(&tree).map_err(io::Error::other)? else {
            return Ok(None);
        };
        make(root)?;
        let root = root.canonicalize()?;
        fs::write(root.join(own_folder::CACHE_TAG), own_folder::CACHE_TAG_TEXT)?;
        fs::write(root.join(".gitignore"), "*\n")?;
        // Another repository may have come to the same place.
        let about = fs::metadata(&checkout.common)?;
        let born = about.created().ok();
        let born = born.and_then(|it| it.duration_since(SystemTime::UNIX_EPOCH).ok());
        let shown = tree.display().to_string();
        let identity = format!("{shown}\0{}\0{}\0{born:?}", about.dev(), about.ino());
        let of_tree = root.join(named(tree.file_name(), &identity));
        make(&of_tree)?;
        fs::write(of_tree.join(ABOUT), format!("{shown}\n"))?;
        Ok(Some(Shelf { root, of_tree }))
    }

    /// Where one copy of the repository's objects is.
    pub fn objects(&self) -> PathBuf {
        self.of_tree.join(OBJECTS)
    }

    /// Where what the jobs of its last runs left may be.
    pub fn artifacts(&self) -> PathBuf {
        self.of_tree.join(ARTIFACTS)
    }

    /// The workspaces of these jobs, each a name and whatever else it must not be shared over, such
    /// as an image. New ones when they are to be fresh.
    pub fn borrow(&self, jobs: &[(String, String)], fresh: bool) -> io::Result<Loan> {
        let mut loan = Loan {
            held: BTreeMap::new(),
            in_use: Vec::new(),
            since: None,
        };
        for (name, apart) in jobs {
            let identity = format!("{name}\0{apart}");
            let place = self.of_tree.join(named(Some(name.as_ref()), &identity));
            let Some(lock) = locked(&place)? else {
                loan.in_use.push(name.clone());
                continue;
            };
            if fresh || place.join(OPEN).exists() {
                self.discard(&place.join(TREE))?;
                remove(&place.join(FILES))?;
            }
            if place.join(TREE).exists() {
                let used = fs::metadata(place.join(USED))
                    .and_then(|it| it.modified())
                    .ok();
                loan.since = match (loan.since, used) {
                    (Some(one), Some(other)) => Some(one.min(other)),
                    (one, other) => one.or(other),
                };
            }
            File::create(place.join(OPEN))?;
            let held = Held { place, _lock: lock };
            loan.held.insert(name.clone(), held);
        }
        Ok(loan)
    }

    /// Removes what is too old, what is of a tree that is there no more, and the oldest of what is
    /// too much. Takes as long as there are files.
    pub fn trim(&self, bounds: Bounds, now: SystemTime) {
        let mut kept: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for of_tree in folders(&self.root).filter(|it| it.join(ABOUT).exists()) {
            let about = fs::read_to_string(of_tree.join(ABOUT)).unwrap_or_default();
            let lives = Path::new(about.trim_end()).exists();
            for place in folders(&of_tree).filter(|it| it.join(LOCK).exists()) {
                let used = fs::metadata(place.join(USED)).and_then(|it| it.modified());
                let used = used.unwrap_or(SystemTime::UNIX_EPOCH);
                let age = now.duration_since(used).unwrap_or_default();
                if lives && age <= bounds.max_age {
                    kept.push((used, size(&place), place))
                } else {
                    self.discard_unused(&place)
                }
            }
            // The objects and artifacts of a tree go with the last of its workspaces.
            if !folders(&of_tree).any(|it| it.join(LOCK).exists()) && of_tree != self.of_tree {
                let _ = self.discard(&of_tree);
            }
        }
        kept.sort();
        let mut total: u64 = kept.iter().map(|(_, size, _)| size).sum();
        for (_, size, place) in kept {
            if total <= bounds.max_bytes {
                break;
            }
            self.discard_unused(&place);
            total = total.saturating_sub(size);
        }
        for gone in folders(&self.root.join(GONE)) {
            let _ = remove(&gone);
        }
    }

    fn discard_unused(&self, place: &Path) {
        if let Ok(Some(_lock)) = locked(place) {
            // What cannot be moved away now is looked at again by the next run.
            let _ = self.discard(place);
        }
    }

    /// Out of sight at once; its removal takes longer.
    fn discard(&self, folder: &Path) -> io::Result<()> {
        let gone = self.root.join(GONE);
        make(&gone)?;
        let name = getrandom::u64().map_err(io::Error::other)?;
        match fs::rename(folder, gone.join(format!("{name:016x}"))) {
            Err(problem) if problem.kind() != io::ErrorKind::NotFound => Err(problem),
            _ => Ok(()),
        }
    }
}

impl Loan {
    pub fn kept(&self) -> BTreeMap<String, Kept> {
        let held = self.held.iter();
        held.map(|(name, held)| (name.clone(), Kept::new(held.place.clone())))
            .collect()
    }

    /// Everything is as it should be: the next run goes on with it. Without this it begins anew.
    pub fn give_back(self) -> io::Result<()> {
        for held in self.held.values() {
            // A job that never began left nothing.
            if held.place.join(TREE).exists() {
                File::create(held.place.join(USED))?;
            }
            fs::remove_file(held.place.join(OPEN))?;
        }
        Ok(())
    }
}

/// Readable, and no two alike.
pub(super) fn named(name: Option<&std::ffi::OsStr>, identity: &str) -> String {
    let name = name.unwrap_or_default().to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name: String = name.chars().filter(|c| plain(*c)).take(24).collect();
    let hash = digest::digest(&digest::SHA256, identity.as_bytes());
    let hash: String = hash.as_ref().iter().map(|it| format!("{it:02x}")).collect();
    format!("{name}-{}", &hash[..LETTERS])
}

/// Makes a place and locks it; nothing while another run has it.
fn locked(place: &Path) -> io::Result<Option<File>> {
    loop {
        make(place)?;
        let path = place.join(LOCK);
        let lock = File::create(&path)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        // Somebody may have moved it away before it was locked.
        let (ours, there) = (lock.metadata()?, fs::metadata(&path));
        if there.is_ok_and(|there| there.ino() == ours.ino()) {
            return Ok(Some(lock));
        }
    }
}

/// Bytes of a place, counted again when it was used since.
fn size(place: &Path) -> u64 {
    let time = |name: &str| {
        fs::metadata(place.join(name))
            .and_then(|it| it.modified())
            .ok()
    };
    let known = fs::read_to_string(place.join(SIZE)).ok();
    let known = known.and_then(|text| text.trim().parse().ok());
    if let (Some(known), true) = (known, time(SIZE) > time(USED)) {
        return known;
    }
    let (mut total, mut open) = (0, vec![place.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                open.push(entry.path())
            } else {
                total += meta.blocks() * 512
            }
        }
    }
    // Not known the next time, either, then.
    let _ = fs::write(place.join(SIZE), total.to_string());
    total
}

fn folders(of: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    let entries = entries.filter(|it| it.file_type().is_ok_and(|it| it.is_dir()));
    entries.map(|it| it.path())
}

fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE)
        .create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shelf(root: &Path) -> (tempfile::TempDir, Shelf) {
        let tree = tempfile::tempdir().expect("a tree");
        delta_testkit::git::git(tree.path(), &["init", "-q"]).expect("git");
        let shelf = Shelf::open(root, tree.path()).expect("a shelf");
        (tree, shelf.expect("a checkout"))
    }

    fn jobs(names: &[&str]) -> Vec<(String, String)> {
        let named = |name: &&str| ((*name).to_owned(), String::new());
        names.iter().map(named).collect()
    }

    /// Leaves something in the workspace of a job, as an attempt does.
    fn leave(loan: &Loan, job: &str) -> PathBuf {
        let tree = loan.held[job].place.join(TREE);
        fs::create_dir_all(&tree).expect("a folder");
        fs::write(tree.join("built"), vec![1; 100_000]).expect("a file");
        tree.join("built")
    }

    #[test]
    fn a_workspace_has_one_run_at_a_time_and_stays_when_it_was_left_in_order() {
        let root = tempfile::tempdir().expect("a folder");
        let (_tree, shelf) = shelf(root.path());
        let first = shelf.borrow(&jobs(&["a", "b"]), false).expect("a loan");
        assert_eq!((first.since, first.in_use.len()), (None, 0));
        let built = leave(&first, "a");
        let second = shelf.borrow(&jobs(&["a", "c"]), false).expect("a loan");
        assert_eq!(second.in_use, ["a"]);
        assert_eq!(second.kept().len(), 1);
        second.give_back().expect("in order");
        first.give_back().expect("in order");
        let third = shelf.borrow(&jobs(&["a"]), false).expect("a loan");
        assert!(third.since.is_some() && built.exists());
        // Its run is killed.
        drop(third);
        let fourth = shelf.borrow(&jobs(&["a"]), false).expect("a loan");
        assert!(fourth.since.is_none() && !built.exists());
        leave(&fourth, "a");
        fourth.give_back().expect("in order");
        // Another image, and a fresh one.
        let other = [("a".to_owned(), "node:22".to_owned())];
        assert!(shelf.borrow(&other, false).expect("a loan").since.is_none());
        shelf.borrow(&jobs(&["a"]), true).expect("a loan");
        assert!(!built.exists());
    }

    #[test]
    fn what_is_too_old_too_much_or_of_no_tree_goes_and_what_is_in_use_stays() {
        let root = tempfile::tempdir().expect("a folder");
        let (tree, old) = shelf(root.path());
        let (_tree, shelf) = shelf(root.path());
        let loan = shelf
            .borrow(&jobs(&["a", "b", "c"]), false)
            .expect("a loan");
        let (a, b) = (leave(&loan, "a"), leave(&loan, "b"));
        loan.give_back().expect("in order");
        let of_another = old.borrow(&jobs(&["a"]), false).expect("a loan");
        let gone = leave(&of_another, "a");
        of_another.give_back().expect("in order");
        let used = shelf.borrow(&jobs(&["b"]), false).expect("a loan");
        drop(tree);
        let now = SystemTime::now();
        shelf.trim(Bounds::USUAL, now);
        assert!(a.exists() && b.exists() && !gone.exists());
        assert!(!old.of_tree.exists());
        let little = Bounds {
            max_bytes: 1000,
            ..Bounds::USUAL
        };
        shelf.trim(little, now);
        assert!(!a.exists() && b.exists());
        used.give_back().expect("in order");
        shelf.trim(Bounds::USUAL, now + 2 * Bounds::USUAL.max_age);
        assert!(!b.exists());
        assert_eq!(folders(&root.path().join(GONE)).count(), 0);
    }
}
