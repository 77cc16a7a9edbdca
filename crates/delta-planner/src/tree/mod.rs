//! A repository's files as planning sees them: a sorted list of paths, and bounded reads.
//!
//! Where they come from is behind [`Files`]: a folder on disk, a commit, a map in memory. Nothing
//! of the repository is ever executed, links are never followed, and everything is bounded: the
//! tree is a stranger's.

mod folder;
mod git;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

pub use delta_git::{branch_of, default_base, is_commit};
pub use folder::Folder;
pub use git::{Commit, changed_since};

/// Paths of one tree: twice the files of the largest repositories that are known to be one project.
pub const MAX_PATHS: usize = 1_000_000;

/// Bytes of one path, and folders above it: Linux's own limits are of this order.
const MAX_PATH_BYTES: usize = 4096;
const MAX_DEPTH: usize = 64;

/// Bytes of one file that is read. Manifests have kilobytes; lock files, which may be larger, are
/// looked for and never read.
pub const MAX_READ_BYTES: usize = 1024 * 1024;

/// Bytes read in all: ten thousand manifests of 25 KiB.
pub const MAX_TOTAL_BYTES: usize = 256 * 1024 * 1024;

/// Why there is no tree.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("cannot {doing} {path}")]
    Io {
        doing: &'static str,
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("git {what}: {why}")]
    Git { what: &'static str, why: String },
    #[error("there are more than {MAX_PATHS} files")]
    TooManyFiles,
}

/// Why a file's text is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unread {
    Missing,
    TooLarge,
    /// More was read from this tree than is allowed.
    Exhausted,
    NotText,
    Failed(String),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Missing => f.write_str("it is no plain file"),
            Unread::TooLarge => write!(f, "it has more than {MAX_READ_BYTES} bytes"),
            Unread::Exhausted => write!(f, "more than {MAX_TOTAL_BYTES} bytes were read already"),
            Unread::NotText => f.write_str("it is no UTF-8"),
            Unread::Failed(why) => f.write_str(why),
        }
    }
}

/// Where a tree's files are read from.
pub trait Files {
    /// The bytes of a plain file of at most `most` bytes. A link is no plain file, and neither is
    /// anything behind one.
    fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, Unread>;
}

/// The tree of a working folder, a commit, or a test.
pub struct Tree {
    /// Sorted by bytes, each once.
    paths: Vec<String>,
    files: Box<dyn Files>,
    read: Cell<usize>,
}

impl Tree {
    /// Takes paths over. What is no clean relative path in UTF-8, or is deeper than any real one,
    /// is left out: no tool could be told its name.
    pub fn new(
        paths: impl IntoIterator<Item = String>,
        files: Box<dyn Files>,
    ) -> Result<Tree, TreeError> {
        let mut kept = Vec::new();
        for path in paths.into_iter().filter(|path| is_clean(path)) {
            if kept.len() == MAX_PATHS {
                return Err(TreeError::TooManyFiles);
            }
            kept.push(path);
        }
        kept.sort_unstable();
        kept.dedup();
        Ok(Tree {
            paths: kept,
            files,
            read: Cell::new(0),
        })
    }

    /// A tree of texts.
    pub fn of(files: impl IntoIterator<Item = (String, String)>) -> Tree {
        let files: BTreeMap<String, String> = files.into_iter().collect();
        let paths: Vec<String> = files.keys().cloned().collect();
        Tree::new(paths, Box::new(Memory(files))).expect("a tree in memory is small")
    }

    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// Whether a file of exactly this path is there.
    pub fn has(&self, path: &str) -> bool {
        let found = self.paths.binary_search_by(|it| it.as_str().cmp(path));
        found.is_ok()
    }

    /// The files below a folder, at any depth; all of them for the root, which is empty.
    pub fn below(&self, folder: &str) -> &[String] {
        if folder.is_empty() {
            return &self.paths;
        }
        let prefix = format!("{folder}/");
        let from = self.paths.partition_point(|path| *path < prefix);
        let alike = self.paths[from..].iter();
        let count = alike.take_while(|path| path.starts_with(&prefix)).count();
        &self.paths[from..from + count]
    }

    /// Paths whose last part is this name.
    pub fn named<'t>(&'t self, name: &'t str) -> impl Iterator<Item = &'t str> {
        let paths = self.paths.iter().map(String::as_str);
        paths.filter(move |path| file_name(path) == name)
    }

    pub fn text(&self, path: &str) -> Result<String, Unread> {
        if !self.has(path) {
            return Err(Unread::Missing);
        }
        let left = MAX_TOTAL_BYTES.saturating_sub(self.read.get());
        if left == 0 {
            return Err(Unread::Exhausted);
        }
        let bytes = self.files.read(path, MAX_READ_BYTES.min(left))?;
        self.read.set(self.read.get() + bytes.len());
        let text = String::from_utf8(bytes).map_err(|_| Unread::NotText)?;
        Ok(match text.strip_prefix('\u{feff}') {
            Some(rest) => rest.to_owned(),
            None => text,
        })
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tree of {} files", self.paths.len())
    }
}

struct Memory(BTreeMap<String, String>);

impl Files for Memory {
    fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, Unread> {
        match self.0.get(path) {
            Some(text) if text.len() > most => Err(Unread::TooLarge),
            Some(text) => Ok(text.clone().into_bytes()),
            None => Err(Unread::Missing),
        }
    }
}

fn is_clean(path: &str) -> bool {
    let mut depth = 0;
    path.len() <= MAX_PATH_BYTES
        && path.split('/').all(|part| {
            depth += 1;
            depth <= MAX_DEPTH && !matches!(part, "" | "." | ".." | ".git")
        })
        && !path.contains(|c: char| c.is_control())
}

/// The last part of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// What a path lies in; empty at the root.
pub(crate) fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// A path below a folder.
pub(crate) fn join(folder: &str, name: &str) -> String {
    match (folder, name) {
        ("", name) => name.to_owned(),
        (folder, "") => folder.to_owned(),
        (folder, name) => format!("{folder}/{name}"),
    }
}

/// Resolves `../b` seen from `folder`; nothing when it leads out of the tree or is absolute.
pub(crate) fn resolve(folder: &str, relative: &str) -> Option<String> {
    if relative.starts_with('/') || relative.contains('\\') {
        return None;
    }
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: &[&str]) -> Tree {
        Tree::of(paths.iter().map(|it| ((*it).to_owned(), (*it).to_owned())))
    }

    #[test]
    fn what_is_below_a_folder_is_not_what_begins_like_it() {
        let tree = tree(&["a/x", "a/b/y", "a-b/z", "ab", "a.txt"]);
        assert_eq!(tree.below("a"), ["a/b/y", "a/x"]);
        assert_eq!(tree.below("").len(), 5);
        assert!(tree.below("q").is_empty());
        assert!(tree.has("ab") && !tree.has("a"));
    }

    #[test]
    fn names_that_no_tool_could_be_told_are_left_out() {
        let deep = vec!["d"; 70].join("/");
        let paths = [
            "../up",
            "/abs",
            "a//b",
            "a/./b",
            ".git/config",
            "a\nb",
            "ok",
            deep.as_str(),
        ];
        assert_eq!(tree(&paths).paths(), ["ok"]);
    }

    #[test]
    fn a_relative_path_stays_inside_or_is_none() {
        assert_eq!(resolve("a/b", "../c").as_deref(), Some("a/c"));
        assert_eq!(resolve("a", "..").as_deref(), Some(""));
        assert_eq!(resolve("a", "../../c"), None);
        assert_eq!(resolve("a", "/c"), None);
    }

    #[test]
    fn a_large_file_is_not_read() {
        let text = "x".repeat(MAX_READ_BYTES + 1);
        let tree = Tree::of([("a".to_owned(), text)]);
        assert_eq!(tree.text("a"), Err(Unread::TooLarge));
        assert_eq!(tree.text("b"), Err(Unread::Missing));
    }
}
