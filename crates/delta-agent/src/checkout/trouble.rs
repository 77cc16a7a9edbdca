//! Why a checkout failed, in one sentence and a cause, from what git said last.
//!
//! git has one exit code for everything: its words are all there is. They are English, since we
//! ask for them to be. What is not recognised is said as git said it.

use std::path::Path;
use std::time::Duration;

use delta_core::Cause;

use super::address::Refused;
use super::credential::NoUse;
use super::git::GitError;
use crate::job_io::Failed;

/// Characters of git's own words in a summary; all of them are in the log.
const MAX_QUOTE: usize = 400;
/// Lines of git's that are quoted.
const QUOTED_LINES: usize = 3;

/// Why there is no source to work on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("the credential `{name}` is of no use here: {problem}")]
    Credential { name: String, problem: NoUse },
    #[error(
        "the repository is reached by ssh, which takes a key: name one as `checkout.credential`"
    )]
    NoKey,
    #[error("the submodule `{name}` is refused: {problem}")]
    Submodule { name: String, problem: Refused },
    #[error("submodules are nested more than {0} deep")]
    TooDeep(usize),
    #[error("the repository has more than {0} submodules")]
    TooMany(usize),
    #[error("no large file could be fetched: {0}")]
    Lfs(String),
    #[error("the server of large files sends us to `{host}`, and that is refused: {problem}")]
    LfsAway { host: String, problem: Refused },
    #[error("git checked out {found} instead of {wanted}")]
    AnotherCommit { wanted: String, found: String },
    #[error("{0}")]
    NotThere(String),
    #[error("it took longer than {}", in_words(*.0))]
    Time(Duration),
    #[error(transparent)]
    Git(#[from] GitError),
    #[error("what was fetched could not be copied")]
    Copy(GitError),
    #[error("{doing}: {source}")]
    Io {
        doing: &'static str,
        source: std::io::Error,
    },
}

impl Trouble {
    pub fn io(doing: &'static str) -> impl FnOnce(std::io::Error) -> Trouble {
        move |source| Trouble::Io { doing, source }
    }

    /// What git said before it gave up.
    pub fn said(&self) -> &[String] {
        match self {
            Trouble::Git(GitError::Ended { last, .. })
            | Trouble::Copy(GitError::Ended { last, .. }) => last,
            _ => &[],
        }
    }

    pub fn says(&self, words: &str) -> bool {
        self.said().iter().any(|line| line.contains(words))
    }

    pub fn is_disk_full(&self) -> bool {
        let full = |problem: &std::io::Error| {
            use std::io::ErrorKind::{QuotaExceeded, StorageFull};
            matches!(problem.kind(), StorageFull | QuotaExceeded)
        };
        match self {
            Trouble::Io { source, .. }
            | Trouble::Git(GitError::Start(source))
            | Trouble::Credential {
                problem: NoUse::Io(source),
                ..
            } => full(source),
            _ => self.says("No space left on device") || self.says("Disk quota exceeded"),
        }
    }

    /// What git says of a repository that somebody has broken is nothing that it says of a server.
    pub fn may_be_damage(&self) -> bool {
        let damage = match self {
            Trouble::Copy(_) => true,
            Trouble::Git(GitError::Ended { .. }) => self.why() == Why::Unknown,
            _ => false,
        };
        damage && !self.is_disk_full()
    }

    fn why(&self) -> Why {
        let known = KNOWN.iter().find(|(words, _)| self.says(words));
        known.map_or(Why::Unknown, |(_, why)| *why)
    }

    /// How the attempt ends. `host` is whom git talked to, `credential` whether it had one.
    pub fn into_failed(self, host: &str, credential: bool, workspace: &Path) -> Failed {
        if self.is_disk_full() {
            return disk_full(workspace);
        }
        let (cause, sentence) = match &self {
            // The credential is right, and this machine could not lay it out.
            Trouble::Credential {
                problem: NoUse::Io(_),
                ..
            } => (Cause::Clone, self.to_string()),
            Trouble::Refused(_)
            | Trouble::NoKey
            | Trouble::Submodule { .. }
            | Trouble::LfsAway { .. }
            | Trouble::TooDeep(_)
            | Trouble::TooMany(_)
            | Trouble::Credential { .. } => (Cause::SpecError, self.to_string()),
            Trouble::Git(GitError::Start(problem))
                if problem.kind() == std::io::ErrorKind::NotFound =>
            {
                let text = "git is not installed on this agent".to_owned();
                (Cause::Clone, text)
            }
            Trouble::Git(GitError::Ended { .. }) => {
                (Cause::Clone, self.why().sentence(host, credential))
            }
            _ => (Cause::Clone, self.to_string()),
        };
        Failed {
            cause,
            summary: format!("no checkout: {sentence}{}", self.quote()),
        }
    }

    fn quote(&self) -> String {
        let said = self.said();
        if said.is_empty() {
            return String::new();
        }
        let last = &said[said.len().saturating_sub(QUOTED_LINES)..];
        let text: String = last.join(" | ").chars().take(MAX_QUOTE).collect();
        format!("; git said: {text}")
    }
}

fn disk_full(workspace: &Path) -> Failed {
    // What failed has given some of it back by now, maybe.
    let free = rustix::fs::statvfs(workspace).ok();
    let free = free.map(|it| it.f_bavail.saturating_mul(it.f_frsize));
    let free = free.map_or(String::new(), |free| format!("; {free} bytes are free"));
    Failed {
        cause: Cause::DiskFull,
        summary: format!("no checkout: the disk is full{free}"),
    }
}

/// Why git could not fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Credential,
    HostKey,
    Revision,
    Repository,
    Redirect,
    Certificate,
    Unreachable,
    Silent,
    BrokenOff,
    Unknown,
}

/// Words of git, curl and ssh, the telling ones first.
const KNOWN: [(&str, Why); 34] = [
    ("Host key verification failed", Why::HostKey),
    ("host key is known for", Why::HostKey),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", Why::HostKey),
    ("Authentication failed", Why::Credential),
    ("could not read Username", Why::Credential),
    ("could not read Password", Why::Credential),
    ("unable to get password from user", Why::Credential),
    ("returned error: 401", Why::Credential),
    ("returned error: 403", Why::Credential),
    ("Permission denied (", Why::Credential),
    ("Load key ", Why::Credential),
    ("unable to update url base from redirection", Why::Redirect),
    ("returned error: 301", Why::Redirect),
    ("returned error: 302", Why::Redirect),
    ("returned error: 307", Why::Redirect),
    ("returned error: 308", Why::Redirect),
    ("not our ref", Why::Revision),
    ("couldn't find remote ref", Why::Revision),
    ("unadvertised object", Why::Revision),
    ("certificate", Why::Certificate),
    ("Could not resolve host", Why::Unreachable),
    ("Failed to connect", Why::Unreachable),
    ("Couldn't connect", Why::Unreachable),
    ("Connection refused", Why::Unreachable),
    ("Connection timed out", Why::Unreachable),
    ("No route to host", Why::Unreachable),
    ("Operation too slow", Why::Silent),
    ("not found", Why::Repository),
    ("does not appear to be a git repository", Why::Repository),
    ("RPC failed", Why::BrokenOff),
    ("early EOF", Why::BrokenOff),
    ("hung up unexpectedly", Why::BrokenOff),
    ("unable to access", Why::Unreachable),
    ("Could not read from remote repository", Why::BrokenOff),
];

impl Why {
    fn sentence(self, host: &str, credential: bool) -> String {
        let host = match host.is_empty() {
            true => "the repository's machine",
            false => host,
        };
        match (self, credential) {
            (Why::Credential, true) => format!("{host} refuses the credential"),
            (Why::Credential, false) => {
                format!("{host} asks for a credential, and the job has none for it")
            }
            (Why::HostKey, _) => {
                format!("the host key of {host} is not the one that the credential names")
            }
            (Why::Revision, _) => "the repository has no such commit or ref".to_owned(),
            (Why::Repository, _) => {
                format!("{host} has no such repository, or does not show it to everybody")
            }
            (Why::Redirect, _) => format!(
                "{host} says that the repository is elsewhere, which is not followed: name its \
                 last address"
            ),
            (Why::Certificate, _) => format!("the certificate of {host} is not to be believed"),
            (Why::Unreachable, _) => format!("{host} cannot be reached"),
            (Why::Silent, _) => format!("{host} went silent"),
            (Why::BrokenOff, _) => format!("{host} broke off"),
            (Why::Unknown, _) => "the repository could not be fetched".to_owned(),
        }
    }
}

fn in_words(span: Duration) -> String {
    match span.as_secs() {
        seconds if seconds >= 60 && seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    // D10
    #[test]
    fn a_credential_that_this_machine_cannot_lay_out_is_not_the_jobs_mistake() {
        let cause = |problem: NoUse| {
            let name = "key".to_owned();
            let trouble = Trouble::Credential { name, problem };
            trouble.into_failed("host", true, Path::new("/")).cause
        };
        assert_eq!(cause(NoUse::KeyWanted), Cause::SpecError);
        let broken = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(cause(NoUse::Io(broken)), Cause::Clone);
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(cause(NoUse::Io(full)), Cause::DiskFull);
    }
}
