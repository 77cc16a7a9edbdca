//! What git knows: the files of a commit or a checkout, and what changed since the merge base.
//!
//! Names reach git as arguments behind `--end-of-options`, never through a shell, and contents are
//! asked for by object id. Hooks, monitors, external diffs and prompts are off, so that nothing of
//! the repository runs. Whatever git cannot say is unknown, and what is unknown runs.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use delta_wire::own_folder;

use super::{Files, MAX_PATHS, Tree, TreeError, Unread};
use crate::facts::Changed;

/// Bytes of names that are taken from git: a million paths of 100 bytes.
const MAX_LISTED_BYTES: u64 = 100 * 1024 * 1024;

/// Changed files that are told apart; beyond that everything runs anyhow.
const MAX_CHANGED: usize = 100_000;

/// Where a branch usually comes from, best first.
const BASES: [&str; 4] = ["origin/HEAD", "origin/main", "origin/master", "main"];
const LAST_BASE: &str = "master";

/// A commit's tree, read by object id.
pub struct Commit {
    objects: HashMap<String, String>,
    reader: RefCell<Option<Batch>>,
    repository: PathBuf,
}

impl Commit {
    /// Lists a commit of a repository, bare or not.
    pub fn tree(repository: &Path, commit: &str) -> Result<Tree, TreeError> {
        let id = resolved(repository, commit).ok_or(TreeError::Git {
            what: "rev-parse",
            why: "there is no such commit".to_owned(),
        })?;
        let listed = git(repository, &["ls-tree", "-r", "-z", "--full-tree", &id])?;
        let mut objects = HashMap::new();
        for line in listed.split(|byte| *byte == 0) {
            let Ok(line) = std::str::from_utf8(line) else {
                continue;
            };
            let Some((about, path)) = line.split_once('\t') else {
                continue;
            };
            let mut words = about.split(' ');
            // Links have mode 120000, submodules 160000.
            let plain = words.next().is_some_and(|mode| mode.starts_with("100"));
            if let (true, Some(object)) = (plain, words.nth(1)) {
                objects.insert(path.to_owned(), object.to_owned());
            }
            if objects.len() > MAX_PATHS {
                return Err(TreeError::TooManyFiles);
            }
        }
        let paths: Vec<String> = objects.keys().cloned().collect();
        let commit = Commit {
            objects,
            reader: RefCell::new(None),
            repository: repository.to_owned(),
        };
        Tree::new(paths, Box::new(commit))
    }
}

impl Files for Commit {
    fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, Unread> {
        let object = self.objects.get(path).ok_or(Unread::Missing)?;
        let failed = |error: std::io::Error| Unread::Failed(format!("git cat-file: {error}"));
        let mut reader = self.reader.borrow_mut();
        let batch = match reader.take() {
            Some(batch) => batch,
            None => Batch::start(&self.repository).map_err(failed)?,
        };
        // A reader that met something odd is not used again.
        let (batch, bytes) = batch.read(object, most)?;
        *reader = Some(batch);
        bytes.ok_or(Unread::TooLarge)
    }
}

/// Two git processes that stay: one tells sizes, the other contents, so that a large object is
/// never asked for.
struct Batch {
    sizes: Asked,
    contents: Asked,
}

struct Asked {
    child: Child,
    ask: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Batch {
    fn start(repository: &Path) -> std::io::Result<Batch> {
        Ok(Batch {
            sizes: Asked::start(repository, "--batch-check")?,
            contents: Asked::start(repository, "--batch")?,
        })
    }

    /// The object's bytes, or none when it is larger than `most`.
    fn read(mut self, object: &str, most: usize) -> Result<(Batch, Option<Vec<u8>>), Unread> {
        let failed = |error: std::io::Error| Unread::Failed(format!("git cat-file: {error}"));
        let size = self.sizes.header(object).map_err(failed)?;
        let size = size.ok_or(Unread::Missing)?;
        if size > most {
            return Ok((self, None));
        }
        let told = self.contents.header(object).map_err(failed)?;
        if told != Some(size) {
            return Err(Unread::Failed("git cat-file: another size".to_owned()));
        }
        let mut bytes = vec![0; size + 1];
        self.contents
            .answers
            .read_exact(&mut bytes)
            .map_err(failed)?;
        bytes.pop();
        Ok((self, Some(bytes)))
    }
}

impl Asked {
    fn start(repository: &Path, mode: &str) -> std::io::Result<Asked> {
        let mut child = command(repository)
            .args(["cat-file", mode])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (Some(ask), Some(answers)) = pipes else {
            return Err(std::io::Error::other("no pipes"));
        };
        Ok(Asked {
            child,
            ask,
            answers: BufReader::new(answers),
        })
    }

    /// Asks for an object; its size, when it is a blob that is there.
    fn header(&mut self, object: &str) -> std::io::Result<Option<usize>> {
        writeln!(self.ask, "{object}")?;
        self.ask.flush()?;
        let mut line = String::new();
        (&mut self.answers).take(256).read_line(&mut line)?;
        let mut words = line.split_whitespace().skip(1);
        Ok(match (words.next(), words.next()) {
            (Some("blob"), Some(size)) => size.parse().ok(),
            _ => None,
        })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files of a checkout that git tracks or would track and that are there, relative to `folder`;
/// none when it is no checkout of its own, or there is no git.
pub(super) fn listed(folder: &Path) -> Result<Option<Vec<String>>, TreeError> {
    if !is_checkout(folder) {
        return Ok(None);
    }
    let arguments = ["ls-files", "-z", "-co", "--exclude-standard"];
    let bytes = git(folder, &arguments)?;
    // What was deleted and not committed stays in the index.
    let gone = git(folder, &["ls-files", "-z", "-d"])?;
    let gone: HashSet<String> = names(&gone).collect();
    let there = names(&bytes).filter(|name| !gone.contains(name));
    Ok(Some(not_ours(folder, there).collect()))
}

/// Without what lies in folders of our own data, which may be in the middle of a tree.
fn not_ours<'a>(
    folder: &'a Path,
    names: impl Iterator<Item = String> + 'a,
) -> impl Iterator<Item = String> + 'a {
    let mut own = own_folder::Known::default();
    names.filter(move |name| !own.holds(folder, Path::new(name)))
}

fn is_checkout(folder: &Path) -> bool {
    let inside = git(folder, &["rev-parse", "--is-inside-work-tree"]);
    let ignored = git(folder, &["check-ignore", "-q", "."]);
    inside.is_ok_and(|said| said.starts_with(b"true")) && ignored.is_err()
}

fn names(bytes: &[u8]) -> impl Iterator<Item = String> {
    let names = bytes.split(|byte| *byte == 0);
    let texts = names.filter_map(|name| std::str::from_utf8(name).ok());
    texts.filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The branch that work here is most likely compared with.
pub fn default_base(folder: &Path) -> Option<String> {
    let names = BASES.into_iter().chain([LAST_BASE]);
    let mut there = names.filter(|name| resolved(folder, name).is_some());
    there.next().map(str::to_owned)
}

/// Whether a name is that of a commit.
pub fn is_commit(folder: &Path, name: &str) -> bool {
    resolved(folder, name).is_some()
}

/// The branch that is checked out.
pub fn branch_of(folder: &Path) -> Option<String> {
    let name = git(folder, &["symbolic-ref", "--short", "-q", "HEAD"]).ok()?;
    let name = String::from_utf8(name).ok()?.trim().to_owned();
    (!name.is_empty()).then_some(name)
}

/// What differs from the merge base with `base`: up to `head`, or up to the working tree with what
/// is not committed. Paths are relative to `folder`.
pub fn changed_since(folder: &Path, base: &str, head: Option<&str>) -> Changed {
    match differing(folder, base, head) {
        Ok(paths) if paths.len() > MAX_CHANGED => {
            Changed::Unknown(format!("more than {MAX_CHANGED} files changed"))
        }
        Ok(paths) => Changed::files(paths),
        Err(why) => Changed::Unknown(why),
    }
}

fn differing(folder: &Path, base: &str, head: Option<&str>) -> Result<Vec<String>, String> {
    let unknown = |name: &str| format!("there is no commit `{}`", crate::diagnostic::shown(name));
    let base = resolved(folder, base).ok_or_else(|| unknown(base))?;
    let tip = head.unwrap_or("HEAD");
    let tip = resolved(folder, tip).ok_or_else(|| unknown(tip))?;
    let merge_base = git(folder, &["merge-base", &base, &tip])
        .map_err(|_| "there is no commit that both sides come from".to_owned())?;
    let merge_base = String::from_utf8_lossy(&merge_base).trim().to_owned();
    let said = |error: TreeError| error.to_string();
    let mut arguments = vec![
        "diff",
        "--name-only",
        "-z",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--ignore-submodules=none",
        "--relative",
        merge_base.as_str(),
    ];
    if head.is_some() {
        arguments.push(tip.as_str());
    }
    let mut paths: Vec<String> = undecodable(&git(folder, &arguments).map_err(said)?)?;
    if head.is_none() {
        let others = git(folder, &["ls-files", "-z", "-o", "--exclude-standard"]);
        let others = undecodable(&others.map_err(said)?)?;
        paths.extend(not_ours(folder, others.into_iter()));
    }
    Ok(paths)
}

/// All names, or why not all: one that is left out would be a change that nobody sees.
fn undecodable(bytes: &[u8]) -> Result<Vec<String>, String> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(names(bytes).collect()),
        Err(_) => Err("the name of a changed file is no UTF-8".to_owned()),
    }
}

/// The id of a commit by any name that a person gives it.
fn resolved(folder: &Path, name: &str) -> Option<String> {
    let name = format!("{name}^{{commit}}");
    let arguments = [
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        &name,
    ];
    let id = git(folder, &arguments).ok()?;
    let id = String::from_utf8(id).ok()?.trim().to_owned();
    let hex = id.len() >= 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex.then_some(id)
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(folder)
        .args([
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.hooksPath=/dev/null",
        ])
        .args(["-c", "core.quotePath=false"])
        // Set while a hook runs; the folder decides, not they.
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_NO_LAZY_FETCH", "1")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// What git prints, when it ends well and says no more than it may.
fn git(folder: &Path, arguments: &[&str]) -> Result<Vec<u8>, TreeError> {
    let what = match arguments.first() {
        Some(&"ls-files" | &"ls-tree") => "list files",
        Some(&"diff") => "compare",
        _ => "look up a name",
    };
    let failed = |why: String| TreeError::Git { what, why };
    let mut child = command(folder)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut bytes = Vec::new();
    let read = match child.stdout.take() {
        Some(stdout) => stdout.take(MAX_LISTED_BYTES + 1).read_to_end(&mut bytes),
        None => Ok(0),
    };
    let long = u64::try_from(bytes.len()).is_ok_and(|len| len > MAX_LISTED_BYTES);
    if long {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    match read {
        _ if long => Err(TreeError::TooManyFiles),
        Err(error) => Err(failed(error.to_string())),
        Ok(_) if status.success() => Ok(bytes),
        Ok(_) => Err(failed(format!("it ended with {status}"))),
    }
}
