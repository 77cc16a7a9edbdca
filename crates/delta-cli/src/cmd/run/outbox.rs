//! The folder that a run puts its artifacts into: this run's alone for as long as it takes, so that
//! two runs at once do not put theirs among each other's, nor one remove what the other has left.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use delta_agent::workspace;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::exit::Exit;
use crate::failure::{Failure, internal};
use crate::secret_input;

/// Held for the moment in which a folder is chosen.
const LOCK: &str = ".lock";

/// A folder, with a lock on it until dropped; one that nothing was put into is gone then.
pub struct Outbox {
    pub folder: PathBuf,
    made: bool,
    /// What it replaces, once there is something to replace it by.
    earlier: Vec<PathBuf>,
    _lock: Option<File>,
}

impl Outbox {
    /// One that somebody named; what is in it stays. Refused while another run has it: nobody could
    /// tell afterwards whose files are whose.
    pub fn named(folder: &Path) -> Result<Outbox, Failure> {
        let shown = secret_input::shown(folder);
        let failed = || internal(format!("artifacts cannot be put into {shown}"));
        let made = !folder.exists();
        fs::create_dir_all(folder).map_err(failed())?;
        let Some(lock) = lock(folder).map_err(failed())? else {
            let what = format!("another run puts its artifacts into {shown}");
            let next = "name another folder with --artifacts, or wait for its end";
            return Err(Failure::new(Exit::Refused, what).next(next));
        };
        Ok(Outbox {
            folder: folder.to_owned(),
            made,
            earlier: Vec::new(),
            _lock: lock,
        })
    }

    /// A numbered one in this folder. It replaces those of runs that were over when it was made.
    pub fn numbered(root: &Path) -> io::Result<Outbox> {
        DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        let choosing = File::create(root.join(LOCK))?;
        flock(&choosing, FlockOperation::LockExclusive)?;
        let (mut earlier, mut last) = (Vec::new(), 0);
        for entry in fs::read_dir(root)?.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|it| it.parse::<u64>().ok());
            last = last.max(number.unwrap_or(0));
            if name != LOCK && lock(&entry.path())?.is_some() {
                earlier.push(entry.path());
            }
        }
        let folder = root.join((last + 1).to_string());
        DirBuilder::new().mode(0o700).create(&folder)?;
        let lock = lock(&folder)?.flatten();
        Ok(Outbox {
            folder,
            made: true,
            earlier,
            _lock: lock,
        })
    }

    pub fn replace_earlier(&self) -> io::Result<()> {
        let mut earlier = self.earlier.iter();
        earlier.try_for_each(|it| workspace::remove_tree(it))
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        if self.made {
            // It fails where there is something in it, and then it is to stay.
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Nothing while somebody else has it. Some file systems cannot lock a folder: then it is taken
/// without.
fn lock(folder: &Path) -> io::Result<Option<Option<File>>> {
    let file = File::open(folder)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Some(file))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(_) => Ok(Some(None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(root: &Path) -> Vec<String> {
        let entries = fs::read_dir(root).unwrap().flatten();
        let names = entries.map(|it| it.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|it| it != LOCK).collect();
        names.sort();
        names
    }

    #[test]
    fn a_run_replaces_what_was_there_when_it_began_and_nothing_later() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("artifacts");
        let first = Outbox::numbered(&root).unwrap();
        let second = Outbox::numbered(&root).unwrap();
        for (outbox, name) in [(&first, "one"), (&second, "two")] {
            outbox.replace_earlier().unwrap();
            fs::write(outbox.folder.join(name), name).unwrap();
        }
        drop((first, second));
        assert_eq!(names(&root), ["1", "2"], "both are there");
        // One that leaves nothing takes nothing away.
        drop(Outbox::numbered(&root).unwrap());
        assert_eq!(names(&root), ["1", "2"]);
        let third = Outbox::numbered(&root).unwrap();
        third.replace_earlier().unwrap();
        fs::write(third.folder.join("three"), "").unwrap();
        assert_eq!(names(&root), ["3"]);
    }

    #[test]
    fn a_folder_that_was_named_is_one_runs_at_a_time_and_keeps_what_is_in_it() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a/b");
        let first = Outbox::named(&folder).unwrap();
        let refused = Outbox::named(&folder).err().unwrap().text();
        assert!(
            refused.contains("another run puts its artifacts"),
            "{refused}"
        );
        fs::write(folder.join("mine"), "").unwrap();
        drop(first);
        let second = Outbox::named(&folder).unwrap();
        second.replace_earlier().unwrap();
        assert!(folder.join("mine").exists());
    }
}
