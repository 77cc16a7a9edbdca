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

/// There is a repository, and git does not say what is in it.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It belongs to another user, say.
    #[error("git refuses its repository: {said}")]
    ByGit {
        /// Git's own reason.
        said: String,
        /// What git advises to type, if it does.
        advice: Option<String>,
    },
    /// There is no git to ask.
    #[error("{} is a repository, and git cannot be started: {problem}", repository.display())]
    NoGit {
        /// The folder of its files.
        repository: PathBuf,
        problem: io::Error,
    },
}

impl Refused {
    /// Nothing where git only says that there is no repository, or none with files.
    fn of(stderr: &[u8]) -> Option<Refused> {
        let text = String::from_utf8_lossy(stderr);
        let lines = text.lines().map(str::trim);
        let reason = lines.clone().find_map(|it| it.strip_prefix("fatal: "))?;
        if NO_REPOSITORY.iter().any(|it| reason.starts_with(it)) {
            return None;
        }
        let mut lines = lines;
        Some(Refused::ByGit {
            said: reason.to_owned(),
            advice: lines.find(|it| it.starts_with(ADVICE)).map(str::to_owned),
        })
    }

    /// Without git, nothing but the sign of a repository in the folder or above it is known.
    fn without_git(folder: &Path, problem: io::Error) -> Option<Refused> {
        let signed = |it: &&Path| it.join(SIGN).symlink_metadata().is_ok();
        let repository = folder.ancestors().find(signed)?.to_owned();
        Some(Refused::NoGit {
            repository,
            problem,
        })
    }
}

/// What git finds a repository by: a folder, or a file that leads to one.
const SIGN: &str = ".git";

/// How git begins when there is nothing to refuse.
const NO_REPOSITORY: [&str; 2] = [
    "not a git repository",
    "this operation must be run in a work tree",
];

/// How it begins its advice for a repository of another user.
const ADVICE: &str = "git config --global --add safe.directory ";

impl Checkout {
    /// Nothing where git does not track the folder. Where git cannot be asked, a folder in a
    /// repository is refused: what is ignored in it would be taken for the rest.
    pub fn of(folder: &Path) -> Result<Option<Checkout>, Refused> {
        let asked = [
            "rev-parse",
            "--show-toplevel",
            "--git-common-dir",
            "--show-object-format",
        ];
        let output = match command(folder).args(asked).output() {
            Ok(output) => output,
            Err(problem) => return Refused::without_git(folder, problem).map_or(Ok(None), Err),
        };
        if output.status.success() {
            return Ok(Checkout::read(folder, &output.stdout));
        }
        Refused::of(&output.stderr).map_or(Ok(None), Err)
    }

    fn read(folder: &Path, said: &[u8]) -> Option<Checkout> {
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

/// What git prints; that it does not end well is an error.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_from_a_folder_without_a_repository() {
        let refused = |text: &str| match Refused::of(text.as_bytes())? {
            Refused::ByGit { said, advice } => Some((said, advice)),
            other @ Refused::NoGit { .. } => panic!("{other}"),
        };
        for none in [
            "",
            "fatal: not a git repository (or any of the parent directories): .git\n",
            "fatal: not a git repository: ../.git/modules/gone\n",
            "fatal: this operation must be run in a work tree\n",
        ] {
            assert_eq!(refused(none), None, "{none}");
        }
        let advice = "git config --global --add safe.directory /srv/app";
        let text = format!(
            "fatal: detected dubious ownership in repository at '/srv/app'\n\
             To add an exception for this directory, call:\n\n\t{advice}\n"
        );
        let said = "detected dubious ownership in repository at '/srv/app'";
        assert_eq!(refused(&text), Some((said.into(), Some(advice.into()))));
        let text = "warning: x\nfatal: unknown repository extension found:\n\tnew\n";
        let said = "unknown repository extension found:";
        assert_eq!(refused(text), Some((said.into(), None)));
    }

    #[test]
    fn without_git_a_sign_of_a_repository_is_enough() {
        let place = tempfile::tempdir().unwrap();
        let inside = place.path().join("a/b");
        std::fs::create_dir_all(&inside).unwrap();
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        assert!(Refused::without_git(&inside, missing()).is_none());
        // A worktree or a submodule has a file there.
        std::fs::write(place.path().join("a/.git"), "gitdir: /elsewhere\n").unwrap();
        let refused = Refused::without_git(&inside, missing())
            .unwrap()
            .to_string();
        let named = format!("{} is a repository", place.path().join("a").display());
        assert!(refused.starts_with(&named), "{refused}");
    }
}
