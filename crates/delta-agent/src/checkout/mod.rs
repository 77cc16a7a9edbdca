//! Checkout: the run's repository in the workspace, at exactly the commit that the run is about.
//!
//! Runs in the agent before the work, with git itself. Everything that names the source is a
//! stranger's, so it is checked as text before a process sees it; what is in the repository is
//! never executed here. The credential never lies in a file. What may be cloned, how git is called
//! and how a commit is fetched is `delta-git`; here are `repositories` (what is kept for the next
//! attempt), `submodules`, `lfs` and `error` (why it failed).

mod error;
mod lfs;
mod repositories;
mod submodules;
#[cfg(test)]
mod tests;

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use delta_core::Cause;
use delta_git::{
    Address, Call, Credential, FetchError, FetchTarget, Git, HadCredential, Loan, Protocol,
    Protocols, fetch,
};
use delta_wire::job_spec::{CheckoutOptions, CheckoutSpec};

use self::error::CheckoutError;
pub use self::repositories::CacheBounds;
pub(crate) use self::repositories::Repositories;
use self::repositories::{Borrowed, Key};
use crate::job_io::secrets::checkout_credential;
use crate::job_io::{Around, Failed, Log, Origin};
use crate::private_folder::PRIVATE;
use crate::workspace::Source;

/// How repositories come into workspaces.
#[derive(Debug, Clone)]
pub struct CheckoutSettings {
    pub protocols: Protocols,
    /// The program.
    pub git: PathBuf,
    /// For all of a checkout, with its waiting.
    pub time_limit: Duration,
    pub cache: CacheBounds,
}

impl CheckoutSettings {
    /// https and ssh; half an hour, which is long for a clone; and a cache that fits on most disks.
    pub fn recommended() -> CheckoutSettings {
        CheckoutSettings {
            protocols: Protocols::default(),
            git: "git".into(),
            time_limit: Duration::from_secs(30 * 60),
            cache: CacheBounds {
                max_bytes: 10 << 30,
                max_age: Duration::from_secs(14 * 24 * 60 * 60),
            },
        }
    }
}

/// Checks out the run's repository, where it has one and the job wants it.
pub(crate) async fn prepare(around: &Around<'_>) -> Result<(), Failed> {
    let usual = CheckoutOptions::default();
    let options = match &around.spec.checkout {
        Some(CheckoutSpec::Off) => return Ok(()),
        Some(CheckoutSpec::On(options)) => options,
        None => &usual,
    };
    let context = around.context;
    let empty = matches!(context.settings.source, Source::Empty);
    if context.origin.repository.is_none() || !empty {
        return Ok(());
    }
    let credential = checkout_credential(around);
    let credential = credential.map_err(|problem| Failed {
        cause: Cause::SpecError,
        summary: format!("no checkout: the credential is of no use: {problem}"),
    })?;
    let checkout = Checkout {
        settings: &context.settings.checkout,
        repositories: &context.repositories,
        trusted: !context.untrusted,
        origin: &context.origin,
        options,
        credential: credential.as_ref(),
        workspace: &around.folder.workspace,
        tmp: &around.folder.tmp,
        log: around.log,
    };
    checkout.perform().await
}

/// One checkout to do.
pub(crate) struct Checkout<'a> {
    pub settings: &'a CheckoutSettings,
    pub repositories: &'a Arc<Repositories>,
    pub trusted: bool,
    pub origin: &'a Origin,
    pub options: &'a CheckoutOptions,
    pub credential: Option<&'a Credential>,
    /// Empty.
    pub workspace: &'a Path,
    /// Private, and removed with the workspace.
    pub tmp: &'a Path,
    pub log: &'a Log,
}

/// What came of it.
struct CheckedOut {
    commit: String,
    how: &'static str,
}

impl Checkout<'_> {
    pub async fn perform(&self) -> Result<(), Failed> {
        let began = Instant::now();
        let url = self.origin.repository.as_deref().unwrap_or_default();
        let address = Address::parse(url, self.settings.protocols);
        let host = address.as_ref().map(|it| it.host.clone());
        let host = host.unwrap_or_default();
        let limit = self.settings.time_limit;
        let done = match address {
            Ok(address) => tokio::time::timeout(limit, self.of(address)).await,
            Err(refused) => Ok(Err(refused.into())),
        };
        let done = done.unwrap_or(Err(CheckoutError::Time(limit)));
        match done {
            Ok(CheckedOut { commit, how }) => {
                let took = began.elapsed().as_secs_f64();
                self.log
                    .mark(&format!("checked out {commit} {how}, in {took:.1} s"));
                Ok(())
            }
            Err(error) => {
                let credential = match self.credential {
                    Some(_) => HadCredential::Yes,
                    None => HadCredential::No,
                };
                Err(error.into_failed(&host, credential, self.workspace))
            }
        }
    }

    async fn of(&self, address: Address) -> Result<CheckedOut, CheckoutError> {
        let wanted = FetchTarget::new(
            address,
            self.origin.commit.as_deref(),
            self.origin.git_ref.as_deref(),
            self.options.depth,
        )?;
        if wanted.address.protocol == Protocol::Ssh && self.credential.is_none() {
            return Err(FetchError::NoKey.into());
        }
        let home = Scratch::make(self.tmp).map_err(CheckoutError::io("no folder to fetch with"))?;
        let loan = self.loan(&wanted.address, &home.0)?;
        let shows = |line: &str| self.log.output(format!("{line}\n").as_bytes());
        let git = Git {
            program: &self.settings.git,
            home: &home.0,
            shows: Some(&shows),
        };
        let (url, revision) = (&wanted.address.url, wanted.revision());
        self.log.mark(&format!("checkout of {url} at {revision}"));
        fetch::make(&git, self.workspace, &[], &wanted).await?;
        let remote = ["remote", "add", "--end-of-options", "origin"];
        git.call(Call::in_folder(self.workspace, &remote).arg(url))
            .await?;
        let (commit, how) = match self.settings.cache.max_bytes {
            0 => (
                self.fetch_directly(&git, &wanted, loan.as_ref()).await?,
                "anew",
            ),
            _ => self.fetch_by_cache(&git, &wanted, loan.as_ref()).await?,
        };
        let checkout = ["checkout", "--progress", "--force", "--detach", &commit];
        git.call(Call::in_folder(self.workspace, &checkout).shown())
            .await?;
        let head = ["rev-parse", "--verify", "HEAD"];
        let found = git.ask(Call::in_folder(self.workspace, &head)).await?;
        if found != commit {
            let wanted = commit;
            return Err(FetchError::AnotherCommit { wanted, found }.into());
        }
        if self.options.submodules {
            submodules::update(self, &git, loan.as_ref()).await?;
        }
        if self.options.lfs {
            lfs::pull(self, &git, &wanted.address, loan.as_ref()).await?;
        }
        Ok(CheckedOut { commit, how })
    }

    fn loan(&self, address: &Address, home: &Path) -> Result<Option<Loan>, CheckoutError> {
        let lent = self.credential.map(|it| it.lend(address, home));
        let lent = lent.transpose().map_err(|problem| FetchError::Credential {
            name: self.options.credential.clone().unwrap_or_default(),
            problem,
        });
        Ok(lent?)
    }

    async fn fetch_directly(
        &self,
        git: &Git<'_>,
        wanted: &FetchTarget,
        loan: Option<&Loan>,
    ) -> Result<String, CheckoutError> {
        let repository = self.workspace.join(".git");
        let commit = fetch::fetch(git, &repository, wanted, loan).await?;
        // From here on only the work tree keeps it, as in any clone.
        let head = ["update-ref", "--no-deref", "HEAD", &commit];
        git.call(Call::bare(&repository, &head)).await?;
        fetch::forget_our_names(git, &repository, &commit).await?;
        Ok(commit)
    }

    /// By way of the repository that is kept for the next attempt.
    async fn fetch_by_cache(
        &self,
        git: &Git<'_>,
        wanted: &FetchTarget,
        loan: Option<&Loan>,
    ) -> Result<(String, &'static str), CheckoutError> {
        let key = Key {
            trusted: self.trusted,
            url: &wanted.address.url,
            // One that could not be had opens nothing.
            credential: self.credential.and(self.options.credential.as_deref()),
            depth: wanted.depth,
            hash_length: wanted.hash_length(),
        };
        let done = loop {
            let waits = || self.log.mark("another job fetches this repository: wait");
            let kept = self.repositories.borrow(&key, waits).await;
            let kept = kept.map_err(CheckoutError::io("no repository to fetch into"))?;
            let known = kept.git_folder().join("HEAD").exists();
            let done = self.by_way_of(&kept, known, git, wanted, loan).await;
            match &done {
                // The next round finds nothing, and so does not come here.
                Err(error) if known && error.may_be_damage() => {
                    let text = "what this agent has kept of the repository is of no use";
                    self.log.mark(text);
                }
                // There was no room for it: that is given back.
                Err(error) if error.is_disk_full() => break done,
                // git has ended by itself, so whatever it said, it is as it should be.
                _ => {
                    kept.give_back();
                    break done;
                }
            }
        };
        let (repositories, bounds) = (Arc::clone(self.repositories), self.settings.cache);
        let trimmed = move || repositories.trim(bounds, SystemTime::now());
        // A checkout does not wait for it.
        drop(tokio::task::spawn_blocking(trimmed));
        done
    }

    async fn by_way_of(
        &self,
        kept: &Borrowed,
        known: bool,
        git: &Git<'_>,
        wanted: &FetchTarget,
        loan: Option<&Loan>,
    ) -> Result<(String, &'static str), CheckoutError> {
        let repository = kept.git_folder();
        if !known {
            fetch::make(git, &repository, &["--bare"], wanted).await?;
        }
        let (commit, how) = match &wanted.commit {
            Some(commit) if known && fetch::has_whole(git, &repository, wanted).await => {
                (commit.clone(), "from this agent's cache")
            }
            _ => {
                let commit = fetch::fetch(git, &repository, wanted, loan).await?;
                let how = if known {
                    "with the help of this agent's cache"
                } else {
                    "anew"
                };
                (commit, how)
            }
        };
        let to = self.workspace.join(".git");
        fetch::copy(git, &repository, &to, &commit, wanted).await?;
        Ok((commit, how))
    }
}

/// A folder that is there for as long as this is.
struct Scratch(PathBuf);

impl Scratch {
    fn make(tmp: &Path) -> std::io::Result<Scratch> {
        let folder = tmp.join("checkout");
        fs::DirBuilder::new().mode(PRIVATE).create(&folder)?;
        Ok(Scratch(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(problem) = fs::remove_dir_all(&self.0) {
            tracing::warn!(error = %problem, "a folder of a checkout is left behind");
        }
    }
}
