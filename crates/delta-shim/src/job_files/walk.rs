//! Walks: every regular file beneath a root that a pattern means. Links are not followed, and what
//! a walk looks at and holds has bounds, whatever lies there.

use std::io;
use std::rc::Rc;

use rustix::fs::{AtFlags, Dir, FileType, statat};
use tokio_util::sync::CancellationToken;

use super::glob::{Glob, GlobPlace, Met};
use super::{Root, join, kind_of};

/// Entries of folders that one walk looks at: several times a large `node_modules`.
const MAX_ENTRIES: usize = 1_000_000;
/// Folders inside each other: more is a loop somebody built.
const MAX_DEPTH: usize = 128;
/// Bytes that a walk holds of folders it has yet to look at: a hundred thousand of them beside each
/// other, where somebody hostile could make it gigabytes.
const MAX_OPEN_BYTES: usize = 64 * 1024 * 1024;
/// Names that are told of those that cannot be taken.
const MAX_SKIPPED: usize = 20;

/// Said of a folder that somebody closed, or took away meanwhile.
const GONE: &str = "cannot be opened";

/// What a walk found, in the order of the paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Walked {
    pub files: Vec<Matched>,
    /// What a pattern names and what cannot be taken.
    pub skipped: Vec<Skipped>,
    /// For each pattern, whether anything was found.
    pub met: Vec<bool>,
}

/// What cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skipped {
    pub path: String,
    /// The rest of a sentence that begins with the path.
    why: &'static str,
}

impl Skipped {
    /// The sentence.
    pub fn said(&self) -> String {
        format!("`{}` {}", self.path.escape_debug(), self.why)
    }
}

/// A regular file, and the first pattern that means it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Matched {
    pub path: String,
    pub pattern: usize,
}

/// Why a walk was given up.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    #[error("more than {0} files match")]
    TooMany(usize),
    #[error("there are more than {MAX_ENTRIES} files to look at; narrow the pattern")]
    TooLarge,
    #[error("there are too many folders to look at with so many patterns; narrow them")]
    TooWide,
    #[error("folders are more than {MAX_DEPTH} deep")]
    TooDeep,
    #[error("it was stopped")]
    Stopped,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Root {
    /// Every regular file that one of the patterns means, at most so many.
    pub fn walk(
        &self,
        patterns: &[Glob],
        most: usize,
        stopped: &CancellationToken,
    ) -> Result<Walked, WalkError> {
        self.walk_within(MAX_OPEN_BYTES, patterns, most, stopped)
    }

    fn walk_within(
        &self,
        open_bytes: usize,
        patterns: &[Glob],
        most: usize,
        stopped: &CancellationToken,
    ) -> Result<Walked, WalkError> {
        let mut walk = Walk {
            root: self,
            patterns,
            most,
            seen: 0,
            open: Open::new(open_bytes),
            walked: Walked {
                met: vec![false; patterns.len()],
                ..Walked::default()
            },
        };
        let start: Vec<Reached> = patterns
            .iter()
            .map(|it| Reached::from(it.start()))
            .collect();
        walk.open.push(&"".into(), "", 0, start)?;
        while let Some(folder) = walk.open.pop() {
            if stopped.is_cancelled() {
                return Err(WalkError::Stopped);
            }
            if folder.depth > MAX_DEPTH {
                return Err(WalkError::TooDeep);
            }
            walk.folder(&folder)?;
        }
        walk.walked.files.sort();
        walk.walked.skipped.sort();
        Ok(walk.walked)
    }
}

/// How a pattern stands at a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Reached {
    /// The folder is meant, with everything in it.
    All,
    At(GlobPlace),
}

impl From<Met> for Reached {
    fn from(met: Met) -> Reached {
        if met.matched {
            Reached::All
        } else {
            Reached::At(met.below)
        }
    }
}

impl Reached {
    fn bytes(&self) -> usize {
        let below = match self {
            Reached::All => 0,
            Reached::At(place) => place.bytes(),
        };
        size_of::<Reached>() + below
    }
}

/// A folder that is yet to be looked at. What those beside each other have in common is held once.
struct Ahead {
    above: Rc<str>,
    name: Box<str>,
    depth: usize,
    reached: Rc<[Reached]>,
    /// What it added to the bytes that are held.
    bytes: usize,
}

/// The folders ahead of a walk, the last first.
struct Open {
    folders: Vec<Ahead>,
    bytes: usize,
    most: usize,
}

impl Open {
    fn new(most: usize) -> Open {
        Open {
            folders: Vec::new(),
            bytes: 0,
            most,
        }
    }

    fn push(
        &mut self,
        above: &Rc<str>,
        name: &str,
        depth: usize,
        reached: Vec<Reached>,
    ) -> Result<(), WalkError> {
        let mut bytes = size_of::<Ahead>() + name.len();
        let before = self.folders.last();
        if before.is_none_or(|it| !Rc::ptr_eq(&it.above, above)) {
            bytes += above.len();
        }
        let reached = match before.filter(|it| *it.reached == *reached) {
            Some(same) => Rc::clone(&same.reached),
            None => {
                bytes += reached.iter().map(Reached::bytes).sum::<usize>();
                reached.into()
            }
        };
        self.bytes += bytes;
        if self.bytes > self.most {
            return Err(WalkError::TooWide);
        }
        self.folders.push(Ahead {
            above: Rc::clone(above),
            name: name.into(),
            depth,
            reached,
            bytes,
        });
        Ok(())
    }

    /// Whoever is last in was last to share: the first has all that is counted, and goes last.
    fn pop(&mut self) -> Option<Ahead> {
        let last = self.folders.pop()?;
        self.bytes -= last.bytes;
        Some(last)
    }
}

struct Walk<'a> {
    root: &'a Root,
    patterns: &'a [Glob],
    most: usize,
    seen: usize,
    open: Open,
    walked: Walked,
}

impl Walk<'_> {
    fn folder(&mut self, ahead: &Ahead) -> Result<(), WalkError> {
        let path: Rc<str> = join(&ahead.above, &ahead.name).into();
        let folder = match self.root.folder(&path) {
            Ok(folder) => folder,
            Err(problem) if path.is_empty() => return Err(problem.into()),
            Err(_) => {
                self.skip(path.to_string(), GONE);
                return Ok(());
            }
        };
        for entry in Dir::read_from(&folder.folder).map_err(io::Error::from)? {
            let entry = entry.map_err(io::Error::from)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            self.seen += 1;
            if self.seen > MAX_ENTRIES {
                return Err(WalkError::TooLarge);
            }
            let next: Vec<Reached> = self.meet(&ahead.reached, name);
            let meant = next.iter().position(|it| matches!(it, Reached::All));
            let alive = |it: &Reached| !matches!(it, Reached::At(place) if place.is_over());
            if !next.iter().any(alive) {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let found =
                        statat(&folder.folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                    FileType::from_raw_mode(found.map_err(io::Error::from)?.st_mode)
                }
                known => known,
            };
            let Ok(name) = std::str::from_utf8(name) else {
                self.skip(join(&path, "?"), "has a name that is no text");
                continue;
            };
            match (kind, meant) {
                (FileType::Directory, _) => self.open.push(&path, name, ahead.depth + 1, next)?,
                (FileType::RegularFile, Some(pattern)) => {
                    self.take(join(&path, name), pattern, &next)?;
                }
                (FileType::RegularFile, None) => {}
                (other, Some(_)) => self.skip(join(&path, name), kind_of(other)),
                (_, None) => {}
            }
        }
        Ok(())
    }

    fn meet(&self, reached: &[Reached], name: &[u8]) -> Vec<Reached> {
        let each = reached.iter().zip(self.patterns);
        let each = each.map(|(reached, pattern)| match reached {
            Reached::All => Reached::All,
            Reached::At(place) => pattern.meet(place, name).into(),
        });
        each.collect()
    }

    fn take(&mut self, path: String, pattern: usize, next: &[Reached]) -> Result<(), WalkError> {
        if self.walked.files.len() >= self.most {
            return Err(WalkError::TooMany(self.most));
        }
        for (met, reached) in self.walked.met.iter_mut().zip(next) {
            *met |= matches!(reached, Reached::All);
        }
        self.walked.files.push(Matched { path, pattern });
        Ok(())
    }

    fn skip(&mut self, path: String, why: &'static str) {
        if self.walked.skipped.len() < MAX_SKIPPED {
            self.walked.skipped.push(Skipped { path, why });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn walk(root: &Path, patterns: &[&str]) -> Result<Walked, WalkError> {
        let patterns: Vec<Glob> = patterns.iter().filter_map(|it| Glob::parse(it)).collect();
        let root = Root::open(root).expect("a root");
        root.walk(&patterns, 100, &CancellationToken::new())
    }

    #[test]
    fn a_walk_has_bounds() {
        let place = tempfile::tempdir().expect("a folder");
        for n in 0..101 {
            fs::write(place.path().join(n.to_string()), "").expect("a file");
        }
        let many = walk(place.path(), &["*"]);
        assert!(matches!(many, Err(WalkError::TooMany(100))), "{many:?}");
        let deep = vec!["d"; MAX_DEPTH + 2].join("/");
        fs::create_dir_all(place.path().join(deep)).expect("folders");
        let deep = walk(place.path(), &["d/**"]);
        assert!(matches!(deep, Err(WalkError::TooDeep)), "{deep:?}");
        let stopped = CancellationToken::new();
        stopped.cancel();
        let root = Root::open(place.path()).expect("a root");
        let walked = root.walk(&[], 1, &stopped);
        assert!(matches!(walked, Err(WalkError::Stopped)));
    }
    // T11, D15
    #[test]
    fn folders_beside_each_other_are_held_in_no_more_memory_than_their_bound() {
        let place = tempfile::tempdir().expect("a folder");
        let above = vec!["a".repeat(200); 10].join("/");
        for n in 0..200 {
            let inside = place.path().join(format!("{above}/{n}/b"));
            fs::create_dir_all(inside).expect("folders");
        }
        let root = Root::open(place.path()).expect("a root");
        let patterns: Vec<Glob> = (0..50)
            .filter_map(|n| Glob::parse(&format!("**/{{x{n},y}}/{{b,c,d}}/*.txt")))
            .collect();
        let walk = |bytes| root.walk_within(bytes, &patterns, 9, &CancellationToken::new());
        // With 200 times the path above them and the places of the patterns it would be megabytes.
        let walked = walk(256 * 1024);
        assert!(walked.is_ok(), "{walked:?}");
        let wide = walk(8 * 1024);
        assert!(matches!(wide, Err(WalkError::TooWide)), "{wide:?}");
    }

    #[test]
    fn what_is_left_out_is_said_in_a_sentence() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let place = tempfile::tempdir().expect("a folder");
        fs::create_dir(place.path().join("out")).expect("a folder");
        for folder in [place.path(), &place.path().join("out")] {
            fs::write(folder.join(OsStr::from_bytes(b"\xff")), "").expect("a file");
        }
        std::os::unix::fs::symlink("x", place.path().join("out/link")).expect("a link");
        let walked = walk(place.path(), &["**"]).expect("a walk");
        let said: Vec<String> = walked.skipped.iter().map(|it| it.said()).collect();
        let wanted = [
            "`?` has a name that is no text",
            "`out/?` has a name that is no text",
            "`out/link` is a link, which is not followed",
        ];
        assert_eq!(said, wanted);
        let gone = Skipped {
            path: "out/gone".to_owned(),
            why: GONE,
        };
        assert_eq!(gone.said(), "`out/gone` cannot be opened");
    }
}
