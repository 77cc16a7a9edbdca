//! Why a checkout failed, in one sentence and a cause.

use std::path::Path;
use std::time::Duration;

use delta_core::Cause;
use delta_git::{FetchError, GitError, HadCredential, RefusedAddress, UnusableCredential};

use crate::job_io::Failed;

/// Characters of git's own words in a summary; all of them are in the log.
const MAX_QUOTE: usize = 400;
/// Lines of git's that are quoted.
const QUOTED_LINES: usize = 3;

/// Why there is no source to work on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckoutError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("the submodule `{name}` is refused: {problem}")]
    Submodule {
        name: String,
        problem: RefusedAddress,
    },
    #[error("submodules are nested more than {0} deep")]
    TooDeep(usize),
    #[error("the repository has more than {0} submodules")]
    TooMany(usize),
    #[error("no large file could be fetched: {0}")]
    Lfs(String),
    #[error("the server of large files sends us to `{host}`, and that is refused: {problem}")]
    LfsAway {
        host: String,
        problem: RefusedAddress,
    },
    #[error("it took longer than {}", in_words(*.0))]
    Time(Duration),
}

impl From<GitError> for CheckoutError {
    fn from(error: GitError) -> CheckoutError {
        CheckoutError::Fetch(error.into())
    }
}

impl From<RefusedAddress> for CheckoutError {
    fn from(refused: RefusedAddress) -> CheckoutError {
        CheckoutError::Fetch(refused.into())
    }
}

impl CheckoutError {
    pub fn io(doing: &'static str) -> impl FnOnce(std::io::Error) -> CheckoutError {
        move |source| CheckoutError::Fetch(FetchError::Io { doing, source })
    }

    /// What git said before it gave up.
    fn said(&self) -> &[String] {
        match self {
            CheckoutError::Fetch(error) => error.said(),
            _ => &[],
        }
    }

    pub fn is_disk_full(&self) -> bool {
        matches!(self, CheckoutError::Fetch(error) if error.is_disk_full())
    }

    /// Whether what is kept of the repository may be broken.
    pub fn may_be_damage(&self) -> bool {
        matches!(self, CheckoutError::Fetch(error) if error.may_be_damage())
    }

    /// How the attempt ends. `host` is whom git talked to.
    pub fn into_failed(self, host: &str, credential: HadCredential, workspace: &Path) -> Failed {
        if self.is_disk_full() {
            return disk_full(workspace);
        }
        let (cause, sentence) = match &self {
            CheckoutError::Fetch(error) => told(error, host, credential),
            CheckoutError::Submodule { .. }
            | CheckoutError::LfsAway { .. }
            | CheckoutError::TooDeep(_)
            | CheckoutError::TooMany(_) => (Cause::SpecError, self.to_string()),
            CheckoutError::Lfs(_) | CheckoutError::Time(_) => (Cause::Clone, self.to_string()),
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

fn told(error: &FetchError, host: &str, credential: HadCredential) -> (Cause, String) {
    match error {
        // The credential is right, and this machine could not lay it out.
        FetchError::Credential {
            problem: UnusableCredential::Io(_),
            ..
        } => (Cause::Clone, error.to_string()),
        FetchError::Refused(_) | FetchError::NoKey | FetchError::Credential { .. } => {
            (Cause::SpecError, error.to_string())
        }
        FetchError::Git(GitError::Start(problem))
            if problem.kind() == std::io::ErrorKind::NotFound =>
        {
            let text = "git is not installed on this agent".to_owned();
            (Cause::Clone, text)
        }
        FetchError::Git(GitError::Ended { .. }) => {
            (Cause::Clone, error.reason().sentence(host, credential))
        }
        FetchError::AnotherCommit { .. }
        | FetchError::NotThere(_)
        | FetchError::Git(GitError::Start(_))
        | FetchError::Copy(_)
        | FetchError::Io { .. } => (Cause::Clone, error.to_string()),
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
        let cause = |problem: UnusableCredential| {
            let name = "key".to_owned();
            let error = FetchError::Credential { name, problem };
            let failed =
                CheckoutError::from(error).into_failed("host", HadCredential::Yes, Path::new("/"));
            failed.cause
        };
        assert_eq!(cause(UnusableCredential::KeyWanted), Cause::SpecError);
        let broken = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(cause(UnusableCredential::Io(broken)), Cause::Clone);
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(cause(UnusableCredential::Io(full)), Cause::DiskFull);
    }
}
