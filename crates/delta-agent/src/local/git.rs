//! Calls of git in a person's repository and in copies of it. In theirs nothing is written, not
//! even to make the next call faster; no hook, monitor or prompt of theirs starts.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Variables that name a repository beside the folder one is in. Git sets some of them for its
/// hooks, and a run may be started by one.
pub(crate) const REPOSITORY_VARIABLES: [&str; 15] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_QUARANTINE_PATH",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];

/// A folder of a checkout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Checkout {
    /// Where its files begin.
    pub top: PathBuf,
    /// From there to the folder; empty when it is the same.
    pub prefix: PathBuf,
    /// What all worktrees of the repository share.
    pub common: PathBuf,
    /// `sha1` or `sha256`.
    pub format: String,
}

impl Checkout {
    /// Nothing where git does not track the folder, or is not there.
    pub fn of(folder: &Path) -> Option<Checkout> {
        let asked = [
            "rev-parse",
            "--show-toplevel",
            "--git-common-dir",
            "--show-object-format",
        ];
        let said = ask(folder, &asked)?;
        let lines: Vec<&[u8]> = said.trim_ascii_end().split(|byte| *byte == b'\n').collect();
        let [top, common, format] = lines[..] else {
            return None;
        };
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let top = path(top).canonicalize().ok()?;
        let prefix = folder.strip_prefix(&top).ok()?.to_owned();
        // A folder inside somebody else's checkout is not a checkout itself.
        if ask(folder, &["check-ignore", "-q", "."]).is_some() {
            return None;
        }
        let common = folder.join(path(common)).canonicalize().ok()?;
        let format = String::from_utf8_lossy(format).into_owned();
        Some(Checkout {
            top,
            prefix,
            common,
            format,
        })
    }
}

/// What git prints where it ends well.
pub(super) fn ask(folder: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let output = command(folder).args(arguments).output().ok()?;
    output.status.success().then_some(output.stdout)
}

/// The same, where it must.
pub(super) fn must(folder: &Path, arguments: &[&str]) -> io::Result<Vec<u8>> {
    let output = command(folder).args(arguments).output()?;
    succeeded(arguments, &output)?;
    Ok(output.stdout)
}

/// Hands it an input, which it must take.
pub(super) fn feed(folder: &Path, arguments: &[&str], input: &[u8]) -> io::Result<()> {
    let mut child = command(folder)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    let fed = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(input),
        None => Ok(()),
    };
    let output = child.wait_with_output()?;
    succeeded(arguments, &output)?;
    fed
}

fn succeeded(arguments: &[&str], output: &std::process::Output) -> io::Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or_default();
    let call = arguments.first().copied().unwrap_or_default();
    let text = format!("git {call} ended with {}: {said}", output.status);
    Err(io::Error::other(text))
}

/// The names in an answer that separates them by zeros.
pub(super) fn names(bytes: &[u8]) -> impl Iterator<Item = &Path> {
    let names = bytes.split(|byte| *byte == 0).filter(|it| !it.is_empty());
    names.map(|name| Path::new(OsStr::from_bytes(name)))
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args([
        "-c",
        "core.fsmonitor=false",
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "core.quotePath=false",
    ]);
    for name in REPOSITORY_VARIABLES {
        command.env_remove(name);
    }
    command
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}
