//! Reports in a workspace: which files a pattern means, and opening them so that no link, pipe or
//! device is ever followed or waited for.
//!
//! The workspace belongs to the job, which may change it at any moment. Every part of a path is
//! opened in the folder before it and never through a link, so that no path leaves the workspace.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat};

/// Entries that one search looks at: a workspace with all its dependencies has fewer.
const MAX_ENTRIES: usize = 500_000;
/// Folders inside each other that are searched.
const MAX_DEPTH: usize = 64;
/// Reports of one pattern.
const MAX_FILES: usize = 2_000;

const FOLDER: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Nothing is waited for, whatever it turns out to be.
const FILE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// Files that a pattern means, as paths inside the workspace, in order.
pub fn find(root: &Path, pattern: &str) -> io::Result<Vec<String>> {
    let parts: Vec<&str> = parts(pattern).collect();
    if !pattern.contains(['*', '?']) {
        return Ok(vec![parts.join("/")]);
    }
    let mut search = Search {
        found: Vec::new(),
        left: MAX_ENTRIES,
    };
    let root = openat(CWD, root, FOLDER, Mode::empty())?;
    search.walk(&root, "", &parts, 0);
    search.found.sort();
    search.found.dedup();
    search.found.truncate(MAX_FILES);
    Ok(search.found)
}

/// Opens a file inside the workspace: a regular one, with one name.
pub fn open(root: &Path, path: &str) -> io::Result<File> {
    let mut folder = openat(CWD, root, FOLDER, Mode::empty())?;
    let mut parts = parts(path).peekable();
    while let Some(part) = parts.next() {
        if part == ".." {
            break;
        }
        if parts.peek().is_some() {
            folder = openat(&folder, part, FOLDER, Mode::empty())?;
            continue;
        }
        let file = openat(&folder, part, FILE | OFlags::RDONLY, Mode::empty())?;
        let about = fstat(&file)?;
        // A second name may be that of somebody else's file.
        let plain = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile;
        return match plain && about.st_nlink == 1 {
            true => Ok(File::from(file)),
            false => Err(io::Error::other("it is not a plain file of its own")),
        };
    }
    Err(io::ErrorKind::NotFound.into())
}

fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !matches!(*part, "" | "."))
}

struct Search {
    found: Vec<String>,
    left: usize,
}

impl Search {
    /// What cannot be opened is not there.
    fn walk(&mut self, folder: &OwnedFd, path: &str, pattern: &[&str], depth: usize) {
        let Some((&first, rest)) = pattern.split_first() else {
            return;
        };
        if first == "**" && rest.is_empty() {
            return self.walk(folder, path, &["**", "*"], depth);
        }
        if first == "**" {
            self.walk(folder, path, rest, depth);
        }
        if depth >= MAX_DEPTH {
            return;
        }
        let Ok(entries) = Dir::read_from(folder) else {
            return;
        };
        for entry in entries.flatten() {
            if self.left == 0 || self.found.len() > MAX_FILES {
                return;
            }
            self.left -= 1;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if matches!(name, "." | "..") || !(first == "**" || fits(first, name)) {
                continue;
            }
            let inner = match path.is_empty() {
                true => name.to_owned(),
                false => format!("{path}/{name}"),
            };
            let deeper = if first == "**" { pattern } else { rest };
            if first != "**" && rest.is_empty() {
                if matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown) {
                    self.found.push(inner);
                }
            } else if let Ok(folder) = openat(folder, name, FOLDER, Mode::empty()) {
                self.walk(&folder, &inner, deeper, depth + 1);
            }
        }
    }
}

/// Whether a name fits a pattern of `*` and `?`.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn patterns_mean_files_below_the_workspace() {
        let root = tempfile::tempdir().unwrap();
        for file in ["a.xml", "x/b.xml", "x/y/c.xml", "x/y/d.txt"] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        let find = |pattern: &str| find(root.path(), pattern).unwrap();
        assert_eq!(find("*.xml"), ["a.xml"]);
        assert_eq!(find("**/*.xml"), ["a.xml", "x/b.xml", "x/y/c.xml"]);
        assert_eq!(find("x/**"), ["x/b.xml", "x/y/c.xml", "x/y/d.txt"]);
        assert_eq!(find("x/?/c*l"), ["x/y/c.xml"]);
        assert_eq!(find("./x//b.xml"), ["x/b.xml"]);
        assert!(open(root.path(), "x/b.xml").is_ok());
    }

    // EP-20, T11: a report is a file of the job's, and nothing else.
    #[test]
    fn links_pipes_and_ways_out_are_never_opened() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret.xml"), "secret").unwrap();
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        symlink(outside.path(), at("folder")).unwrap();
        symlink(outside.path().join("secret.xml"), at("link.xml")).unwrap();
        fs::write(at("plain.xml"), "plain").unwrap();
        fs::hard_link(at("plain.xml"), at("hard.xml")).unwrap();
        fs::create_dir(at("dir.xml")).unwrap();
        rustix::fs::mkfifoat(CWD, at("pipe.xml"), Mode::RUSR | Mode::WUSR).unwrap();
        for path in [
            "folder/secret.xml",
            "link.xml",
            "hard.xml",
            "dir.xml",
            "pipe.xml",
            "../secret.xml",
            "missing.xml",
            "",
        ] {
            assert!(open(root.path(), path).is_err(), "{path}");
        }
        let found = find(root.path(), "**/*.xml").unwrap();
        assert_eq!(found, ["hard.xml", "plain.xml"]);
    }
}
