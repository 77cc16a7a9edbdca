//! The repository of a copy: the branch, the tags and the history that the person has, and an index
//! that says of each change what theirs says of it. It is made anew each time, but for objects:
//! what a job did to it is gone.
//!
//! It has no hook, no reflog and no stash of theirs, and of their configuration what
//! [`super::config`] lets through.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::git::{self, Checkout};
use super::{config, objects};
use crate::private_folder::PRIVATE;

/// Names that a copy has, too. A stash is nobody else's business.
const REFS: [&str; 5] = [
    "refs/heads",
    "refs/tags",
    "refs/remotes",
    "refs/notes",
    "refs/replace",
];

/// Files that are taken as they are: where history is cut, and what is ignored.
const TAKEN: [&str; 4] = ["shallow", "info/exclude", "info/attributes", "info/grafts"];

/// Files that git marks as not there on purpose.
const SKIPPED: u8 = b'S';

/// What the person's repository says, read before its objects are: those of everything that is said
/// here are there then.
pub(super) struct Repository {
    head: String,
    /// As `packed-refs` has them.
    refs: String,
    /// Names of other names, such as `refs/remotes/origin/HEAD`.
    symbolic: BTreeMap<String, String>,
    /// As `update-index --index-info` takes them.
    entries: Vec<u8>,
    /// Files that the copy does not have and that nobody deleted.
    skipped: Vec<u8>,
    config: String,
}

impl Repository {
    pub fn read(checkout: &Checkout) -> io::Result<Repository> {
        let top = &checkout.top;
        let head = match git::ask(top, &["symbolic-ref", "-q", "HEAD"]) {
            Some(name) => format!("ref: {}", line(&name)),
            None => line(&git::must(top, &["rev-parse", "--verify", "HEAD"])?),
        };
        let format = "--format=%(objectname) %(refname) %(symref)";
        let mut asked = vec!["for-each-ref", format];
        asked.extend(REFS);
        let listed = git::must(top, &asked)?;
        let (mut refs, mut symbolic) = (String::new(), BTreeMap::new());
        for line in String::from_utf8_lossy(&listed).lines() {
            match *line.split(' ').collect::<Vec<_>>() {
                [_, name, aim] if !aim.is_empty() => {
                    symbolic.insert(name.to_owned(), aim.to_owned());
                }
                [object, name, _] => writeln!(refs, "{object} {name}").unwrap_or_default(),
                _ => {}
            }
        }
        let settings = git::must(top, &["config", "--local", "--no-includes", "--list", "-z"])?;
        let mut repository = Repository {
            head,
            refs,
            symbolic,
            entries: Vec::new(),
            skipped: Vec::new(),
            config: config::text(&settings, &checkout.format, top),
        };
        let listed = git::must(top, &["ls-files", "-s", "-t", "-z"])?;
        repository.take_entries(&listed, &checkout.prefix);
        Ok(repository)
    }

    /// Each is `H 100644 <object> 0<tab><path>`, the first letter its tag.
    fn take_entries(&mut self, listed: &[u8], prefix: &Path) {
        for entry in listed.split(|byte| *byte == 0) {
            let [tag, b' ', about @ ..] = entry else {
                continue;
            };
            let Some(tab) = about.iter().position(|byte| *byte == b'\t') else {
                continue;
            };
            let path = &about[tab + 1..];
            self.entries.extend_from_slice(about);
            self.entries.push(0);
            let outside = !Path::new(OsStr::from_bytes(path)).starts_with(prefix);
            if outside || *tag == SKIPPED {
                self.skipped.extend_from_slice(path);
                self.skipped.push(0);
            }
        }
    }

    /// Makes the repository of a copy.
    pub fn write(&self, checkout: &Checkout, shared: Option<&Path>, copy: &Path) -> io::Result<()> {
        let folder = copy.join(".git");
        clear(&folder)?;
        for inner in ["refs", "info"] {
            make(&folder.join(inner))?;
        }
        fs::write(folder.join("HEAD"), format!("{}\n", self.head))?;
        fs::write(folder.join("config"), &self.config)?;
        fs::write(folder.join("packed-refs"), &self.refs)?;
        for (name, aim) in &self.symbolic {
            let path = folder.join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(path, format!("ref: {aim}\n"))?;
        }
        for name in TAKEN {
            match fs::read(checkout.common.join(name)) {
                Ok(bytes) => fs::write(folder.join(name), bytes)?,
                Err(problem) if problem.kind() == io::ErrorKind::NotFound => {}
                Err(problem) => return Err(problem),
            }
        }
        let own = checkout.common.join("objects");
        objects::bring(&own, shared, &folder.join("objects"))?;
        let info = ["update-index", "-z", "--index-info"];
        git::feed(copy, &info, &self.entries)?;
        if !self.skipped.is_empty() {
            let skip = ["update-index", "-z", "--skip-worktree", "--stdin"];
            git::feed(copy, &skip, &self.skipped)?;
        }
        Ok(())
    }
}

/// Once all files are in their places: programs that compare the index with the times of files, and
/// never look into them, find it as it is after a checkout.
pub(super) fn settle(copy: &Path) {
    // It ends with 1 where something differs, which is what it is to say.
    let _ = git::ask(copy, &["update-index", "-q", "--refresh"]);
}

/// Removes what was there, but for objects.
fn clear(folder: &Path) -> io::Result<()> {
    match fs::symlink_metadata(folder) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => fs::remove_file(folder)?,
        Err(_) => {}
    }
    make(folder)?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() != "objects" {
            super::remove(&entry.path())?;
        }
    }
    Ok(())
}

fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE)
        .create(folder)
}

fn line(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}
