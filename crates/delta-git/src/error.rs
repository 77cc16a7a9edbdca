//! Why nothing was fetched, from what git said last.
//!
//! git has one exit code for everything: its words are all there is. They are English, since we
//! ask for them to be. What is not recognised is said as git said it.

use crate::address::RefusedAddress;
use crate::call::GitError;
use crate::credential::UnusableCredential;

/// Why there is no commit to work on.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(transparent)]
    Refused(#[from] RefusedAddress),
    #[error("the credential `{name}` is of no use here: {problem}")]
    Credential {
        name: String,
        problem: UnusableCredential,
    },
    #[error(
        "the repository is reached by ssh, which takes a key: name one as `checkout.credential`"
    )]
    NoKey,
    #[error("git checked out {found} instead of {wanted}")]
    AnotherCommit { wanted: String, found: String },
    #[error("{0}")]
    NotThere(String),
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

impl FetchError {
    pub fn io(doing: &'static str) -> impl FnOnce(std::io::Error) -> FetchError {
        move |source| FetchError::Io { doing, source }
    }

    /// What git said before it gave up.
    pub fn said(&self) -> &[String] {
        match self {
            FetchError::Git(GitError::Ended { last, .. })
            | FetchError::Copy(GitError::Ended { last, .. }) => last,
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
            FetchError::Io { source, .. }
            | FetchError::Git(GitError::Start(source))
            | FetchError::Credential {
                problem: UnusableCredential::Io(source),
                ..
            } => full(source),
            _ => self.says("No space left on device") || self.says("Disk quota exceeded"),
        }
    }

    /// What git says of a repository that somebody has broken is nothing that it says of a server.
    pub fn may_be_damage(&self) -> bool {
        let damage = match self {
            FetchError::Copy(_) => true,
            FetchError::Git(GitError::Ended { .. }) => self.reason() == GitReason::Unknown,
            _ => false,
        };
        damage && !self.is_disk_full()
    }

    /// What git's last words mean.
    pub fn reason(&self) -> GitReason {
        let known = KNOWN.iter().find(|(words, _)| self.says(words));
        known.map_or(GitReason::Unknown, |(_, reason)| *reason)
    }
}

/// Whether git had a credential when it was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HadCredential {
    Yes,
    No,
}

/// GitReason git could not fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitReason {
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
const KNOWN: [(&str, GitReason); 34] = [
    ("Host key verification failed", GitReason::HostKey),
    ("host key is known for", GitReason::HostKey),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", GitReason::HostKey),
    ("Authentication failed", GitReason::Credential),
    ("could not read Username", GitReason::Credential),
    ("could not read Password", GitReason::Credential),
    ("unable to get password from user", GitReason::Credential),
    ("returned error: 401", GitReason::Credential),
    ("returned error: 403", GitReason::Credential),
    ("Permission denied (", GitReason::Credential),
    ("Load key ", GitReason::Credential),
    (
        "unable to update url base from redirection",
        GitReason::Redirect,
    ),
    ("returned error: 301", GitReason::Redirect),
    ("returned error: 302", GitReason::Redirect),
    ("returned error: 307", GitReason::Redirect),
    ("returned error: 308", GitReason::Redirect),
    ("not our ref", GitReason::Revision),
    ("couldn't find remote ref", GitReason::Revision),
    ("unadvertised object", GitReason::Revision),
    ("certificate", GitReason::Certificate),
    ("Could not resolve host", GitReason::Unreachable),
    ("Failed to connect", GitReason::Unreachable),
    ("Couldn't connect", GitReason::Unreachable),
    ("Connection refused", GitReason::Unreachable),
    ("Connection timed out", GitReason::Unreachable),
    ("No route to host", GitReason::Unreachable),
    ("Operation too slow", GitReason::Silent),
    ("not found", GitReason::Repository),
    (
        "does not appear to be a git repository",
        GitReason::Repository,
    ),
    ("RPC failed", GitReason::BrokenOff),
    ("early EOF", GitReason::BrokenOff),
    ("hung up unexpectedly", GitReason::BrokenOff),
    ("unable to access", GitReason::Unreachable),
    (
        "Could not read from remote repository",
        GitReason::BrokenOff,
    ),
];

impl GitReason {
    /// In one sentence; `host` is whom git talked to.
    pub fn sentence(self, host: &str, credential: HadCredential) -> String {
        let host = if host.is_empty() {
            "the repository's machine"
        } else {
            host
        };
        match (self, credential) {
            (GitReason::Credential, HadCredential::Yes) => format!("{host} refuses the credential"),
            (GitReason::Credential, HadCredential::No) => {
                format!("{host} asks for a credential, and the job has none for it")
            }
            (GitReason::HostKey, _) => {
                format!("the host key of {host} is not the one that the credential names")
            }
            (GitReason::Revision, _) => "the repository has no such commit or ref".to_owned(),
            (GitReason::Repository, _) => {
                format!("{host} has no such repository, or does not show it to everybody")
            }
            (GitReason::Redirect, _) => format!(
                "{host} says that the repository is elsewhere, which is not followed: name its \
                 last address"
            ),
            (GitReason::Certificate, _) => {
                format!("the certificate of {host} is not to be believed")
            }
            (GitReason::Unreachable, _) => format!("{host} cannot be reached"),
            (GitReason::Silent, _) => format!("{host} went silent"),
            (GitReason::BrokenOff, _) => format!("{host} broke off"),
            (GitReason::Unknown, _) => "the repository could not be fetched".to_owned(),
        }
    }
}
