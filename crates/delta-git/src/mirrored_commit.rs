//! A commit in a repository that a server keeps: one file of it, and what changed up to it. Git
//! runs without anybody's configuration and within small windows of memory.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::question::{NoAnswer, answer};

/// Bytes that are taken from git: a list of a million changed paths.
const MAX_BYTES: u64 = 64 << 20;

/// A commit in a repository without a work tree.
#[derive(Debug, Clone, Copy)]
pub struct MirroredCommit<'m> {
    pub mirror: &'m Path,
    pub commit: &'m str,
}

/// What is at a path of a commit.
#[derive(Debug, PartialEq, Eq)]
pub enum CommitEntry {
    Bytes(Vec<u8>),
    TooLarge,
    /// Something that is no plain file, in words.
    NoFile(&'static str),
    Missing,
}

/// From where a change is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// Where the commit left the other one's branch.
    MergeBase,
    /// The other commit itself.
    Commit,
}

impl MirroredCommit<'_> {
    /// A file of at most `most` bytes. A link is none: what it points at could be anything.
    pub fn entry(&self, path: &str, most: usize) -> Result<CommitEntry, NoAnswer> {
        let listed = [
            "ls-tree",
            "-z",
            "--full-tree",
            "-l",
            self.commit,
            "--",
            path,
        ];
        let listed = String::from_utf8_lossy(&self.git("ls-tree", &listed)?).into_owned();
        // `100644 blob HASH    SIZE\tPATH`
        let mut words = listed.split_ascii_whitespace();
        let (mode, _, hash) = (words.next(), words.next(), words.next());
        let size: Option<usize> = words.next().and_then(|size| size.parse().ok());
        match (mode, hash, size) {
            (Some("100644" | "100755"), Some(hash), Some(size)) if size <= most => {
                let bytes = self.git("cat-file", &["cat-file", "blob", hash]);
                bytes.map(CommitEntry::Bytes)
            }
            (Some("100644" | "100755"), _, Some(_)) => Ok(CommitEntry::TooLarge),
            (Some("120000"), ..) => Ok(CommitEntry::NoFile("a link")),
            (Some("040000"), ..) => Ok(CommitEntry::NoFile("a folder")),
            (Some("160000"), ..) => Ok(CommitEntry::NoFile("a submodule")),
            _ => Ok(CommitEntry::Missing),
        }
    }

    /// Whether the repository has another commit.
    pub fn knows(&self, commit: &str) -> bool {
        let whole = format!("{commit}^{{commit}}");
        self.git("cat-file", &["cat-file", "-e", &whole]).is_ok()
    }

    /// The names of what changed since another commit, each before a NUL.
    pub fn changed(&self, base: &str, since: Since) -> Result<Vec<u8>, NoAnswer> {
        let range = match since {
            Since::MergeBase => format!("{base}...{}", self.commit),
            Since::Commit => format!("{base}..{}", self.commit),
        };
        let diff = ["diff", "--name-only", "-z", "--no-renames", &range, "--"];
        self.git("diff", &diff)
    }

    fn git(&self, what: &'static str, arguments: &[&str]) -> Result<Vec<u8>, NoAnswer> {
        let mut command = Command::new("git");
        command
            .args(["-c", "core.packedGitWindowSize=32m"])
            .args(["-c", "core.packedGitLimit=256m"])
            .args(["-c", "core.hooksPath=/dev/null", "-c", "diff.external="])
            .arg("--git-dir")
            .arg(self.mirror)
            .args(arguments)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_ATTR_NOSYSTEM", "1")
            .env("GIT_ALLOW_PROTOCOL", "none")
            .env("LC_ALL", "C")
            // Heard only when the process that asks fails: then it is why.
            .stderr(Stdio::inherit());
        answer(command, what, MAX_BYTES)
    }
}
