//! Moves an unpacked cache to its places: all of it or nothing.
//!
//! Folders are merged, everything else is replaced. What is in the way is kept aside until all is
//! done, and each step is noted, so that a move that fails half-way is taken back and leaves the
//! workspace as it was.

use std::io;
use std::path::Path;
use std::rc::Rc;

use delta_shim::job_files::{Kind, Root, join};

use super::CachePlace;
use super::archive::{HOME, MAX_ENTRIES, WORKSPACE};

/// Why a cache is not in its place.
#[derive(Debug, thiserror::Error)]
pub(super) enum MoveError {
    /// It failed, and nothing is left of the try.
    #[error(transparent)]
    TakenBack(io::Error),
    /// What was restored so far is there, and cannot be told from what was there before.
    #[error("it was restored half ({moved}), and that could not be undone: {undo}")]
    Half { moved: io::Error, undo: io::Error },
}

/// A step that was done.
enum Step {
    /// A folder was made.
    Made(String),
    /// What was at a path lies aside, under this number.
    Aside(At, usize),
    Moved(At),
}

/// A path: of those beside each other the folder is held once, for it may be long, and they many.
#[derive(Clone)]
struct At {
    folder: Rc<str>,
    name: Rc<str>,
}

impl At {
    fn new(path: &str) -> At {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        At {
            folder: folder.into(),
            name: name.into(),
        }
    }

    fn path(&self) -> String {
        join(&self.folder, &self.name)
    }
}

/// Moves what was unpacked in a folder to these places of the workspace and of HOME.
pub(super) fn put_in_place(
    staging: &Path,
    workspace: &Path,
    home: &Path,
    places: &[CachePlace],
) -> Result<(), MoveError> {
    let mut moves = Vec::new();
    let roots = [(WORKSPACE, workspace), (HOME, home)];
    let all = roots.into_iter().try_for_each(|(part, to)| {
        let mut paths = places.iter().filter(|(of, _)| *of == part).peekable();
        if paths.peek().is_none() {
            return Ok(());
        }
        let staging = Root::open(staging)?;
        let from = match staging.folder(part) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            from => from?,
        };
        let aside = staging.make_folder(&format!("aside/{part}"))?;
        let mut moving = Moving::new(from, Root::open(to)?, aside);
        let moved = paths.try_for_each(|(_, path)| moving.path(path));
        // Also what failed: so far it was moved.
        moves.push(moving);
        moved
    });
    let Err(moved) = all else {
        return Ok(());
    };
    for moving in moves.into_iter().rev() {
        if let Err(undo) = moving.undo() {
            return Err(MoveError::Half { moved, undo });
        }
    }
    Err(MoveError::TakenBack(moved))
}

/// A move that is under way, from one root into another.
struct Moving {
    from: Root,
    to: Root,
    /// An empty folder on the same disk.
    aside: Root,
    steps: Vec<Step>,
}

impl Moving {
    fn new(from: Root, to: Root, aside: Root) -> Moving {
        Moving {
            from,
            to,
            aside,
            steps: Vec::new(),
        }
    }

    /// Moves what is at a path; nothing where there is none.
    fn path(&mut self, path: &str) -> io::Result<()> {
        match self.from.kind(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            kind => drop(kind?),
        }
        self.make_above(path)?;
        let mut open = vec![At::new(path)];
        while let Some(at) = open.pop() {
            let path = at.path();
            let there = match self.to.kind(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                kind => Some(kind?),
            };
            if (self.from.kind(&path)?, &there) == (Kind::Folder, &Some(Kind::Folder)) {
                // All of them are text: an archive has no others.
                let listed = self.from.names(&path, MAX_ENTRIES)?;
                let (names, _) = listed.ok_or_else(|| io::Error::other("it has too many files"))?;
                let folder: Rc<str> = path.into();
                open.extend(names.into_iter().map(|name| At {
                    folder: Rc::clone(&folder),
                    name: name.into(),
                }));
                continue;
            }
            if there.is_some() {
                let number = self.steps.len();
                let name = number.to_string();
                self.to.move_to(&path, &self.aside, &name)?;
                self.steps.push(Step::Aside(at.clone(), number));
            }
            self.from.move_to(&path, &self.to, &path)?;
            self.steps.push(Step::Moved(at));
        }
        Ok(())
    }

    fn make_above(&mut self, path: &str) -> io::Result<()> {
        for (end, _) in path.match_indices('/') {
            let folder = &path[..end];
            match self.to.kind(folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.to.make_one(folder)?;
                    self.steps.push(Step::Made(folder.to_owned()));
                }
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes everything back, the last first.
    fn undo(self) -> io::Result<()> {
        for step in self.steps.iter().rev() {
            match step {
                Step::Made(path) => self.to.remove_folder(path)?,
                Step::Aside(at, number) => {
                    let number = number.to_string();
                    self.aside.move_to(&number, &self.to, &at.path())?;
                }
                Step::Moved(at) => self.to.move_to(&at.path(), &self.from, &at.path())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};

    use super::*;

    struct Bench(tempfile::TempDir);

    impl Bench {
        fn path(&self, inside: &str) -> PathBuf {
            self.0.path().join(inside)
        }

        fn put(&self, places: &[(&'static str, &str)]) -> Result<(), MoveError> {
            let places = places.iter().map(|(part, path)| (*part, path.to_string()));
            let places: Vec<CachePlace> = places.collect();
            let (to, home) = (self.path("to"), self.path("home"));
            put_in_place(&self.path("staging"), &to, &home, &places)
        }

        /// Everything in the workspace and in HOME.
        fn seen(&self) -> BTreeMap<PathBuf, String> {
            let mut open = vec![self.path("to"), self.path("home")];
            let mut seen = BTreeMap::new();
            while let Some(path) = open.pop() {
                let found = fs::symlink_metadata(&path).expect("an entry");
                if found.is_dir() {
                    let entries = fs::read_dir(&path).expect("a folder").flatten();
                    open.extend(entries.map(|it| it.path()));
                }
                let text = fs::read_link(&path).map(|it| it.display().to_string());
                let text = text.or_else(|_| fs::read_to_string(&path));
                seen.insert(path, text.unwrap_or_default());
            }
            seen
        }
    }

    /// A workspace with things in the way, and a cache with several places.
    fn bench() -> Bench {
        let bench = Bench(tempfile::tempdir().expect("a folder"));
        for (path, text) in [
            ("staging/workspace/deps/shared/a", "cached a"),
            ("staging/workspace/deps/shared/b", "cached b"),
            ("staging/workspace/deps/swapped", "cached file"),
            ("staging/workspace/new/above/c", "cached c"),
            ("staging/home/tool/d", "cached d"),
            ("to/deps/shared/a", "own a"),
            ("to/deps/swapped/inside", "own folder"),
            ("to/other", "own other"),
            ("home/own", "own home"),
        ] {
            write(&bench.path(path), text);
        }
        bench
    }

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    #[test]
    fn folders_are_merged_and_everything_else_is_replaced() {
        let bench = bench();
        let places = [
            (WORKSPACE, "deps"),
            (WORKSPACE, "new/above"),
            (WORKSPACE, "missing"),
            (HOME, "tool"),
        ];
        bench.put(&places).expect("moved");
        let read = |path: &str| fs::read_to_string(bench.path(path)).expect("a file");
        assert_eq!(read("to/deps/shared/a"), "cached a");
        assert_eq!(read("to/deps/shared/b"), "cached b");
        assert_eq!(read("to/deps/swapped"), "cached file");
        assert_eq!(read("to/new/above/c"), "cached c");
        assert_eq!(read("home/tool/d"), "cached d");
        assert_eq!(read("to/other"), "own other");
        assert!(!bench.path("to/missing").exists());
    }

    #[test]
    fn a_move_that_fails_half_way_is_taken_back() {
        let bench = bench();
        // Nothing is moved through a link, and this one comes last.
        symlink("..", bench.path("home/tool")).expect("a link");
        write(&bench.path("staging/home/tool/e/f"), "cached f");
        let before = bench.seen();
        let places = [
            (WORKSPACE, "deps"),
            (WORKSPACE, "new/above"),
            (HOME, "tool/e"),
        ];
        let failed = bench.put(&places);
        assert!(matches!(failed, Err(MoveError::TakenBack(_))), "{failed:?}");
        assert_eq!(bench.seen(), before);
    }

    #[test]
    fn what_cannot_be_taken_back_is_said() {
        let bench = bench();
        let open = |path: &str| Root::open(&bench.path(path)).expect("a root");
        fs::create_dir(bench.path("aside")).expect("a folder");
        let mut moving = Moving::new(open("staging/workspace"), open("to"), open("aside"));
        moving.path("new/above").expect("moved");
        // Somebody else is at work here.
        write(&bench.path("to/new/theirs"), "theirs");
        assert!(moving.undo().is_err());
        assert!(bench.path("to/new/theirs").exists());
    }
}
