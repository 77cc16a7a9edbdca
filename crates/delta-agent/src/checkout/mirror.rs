//! A repository without a work tree that is kept for planning: a commit with its history, the
//! branch it wants to go to, and where the ref stands now.
//!
//! The same rules as for a checkout: checked as text first, git without anybody's configuration,
//! the credential in memory and for one server.

use std::path::Path;

use delta_wire::planning::FetchOrder;

use super::Trouble;
use super::address::{Address, Protocol, Protocols, check_commit, check_ref};
use super::credential::{Credential, Loan};
use super::fetch::{Wanted, fetching, make};
use super::git::{Call, Git, GitError};
use crate::around::Origin;
use crate::secret::Secret;

/// Where the ref of the run stands, and the branch it wants to go to.
const HEAD: &str = "refs/delta/head";
const BASE: &str = "refs/delta/base";

/// What was brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirrored {
    /// Where the ref stands now; none when it is gone.
    pub head: Option<String>,
    /// Where the branch stands that it wants to go to.
    pub base: Option<String>,
}

/// Why nothing was brought, in one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotMirrored(String);

/// Brings what the order names into its folder. `home` is private and empty.
pub async fn mirror(order: &FetchOrder, home: &Path) -> Result<Mirrored, NotMirrored> {
    let done = brought(order, home).await;
    done.map_err(|trouble| {
        let said = trouble.said().last().cloned();
        NotMirrored(match said {
            Some(said) => format!("{trouble}: {said}"),
            None => trouble.to_string(),
        })
    })
}

async fn brought(order: &FetchOrder, home: &Path) -> Result<Mirrored, Trouble> {
    let address = Address::parse(&order.url, Protocols::default())?;
    let commit = check_commit(&order.commit)?;
    let branch = order.base.as_ref().map(|it| format!("refs/heads/{it}"));
    for name in order.git_ref.iter().chain(&branch) {
        check_ref(name)?;
    }
    if address.protocol == Protocol::Ssh && order.credential.is_none() {
        return Err(Trouble::NoKey);
    }
    let loan = loan(order, &address, home)?;
    let origin = Origin {
        repository: Some(order.url.clone()),
        git_ref: order.git_ref.clone(),
        commit: Some(commit.clone()),
    };
    let work = Work {
        git: Git {
            program: Path::new("git"),
            home,
            log: None,
        },
        folder: Path::new(&order.mirror),
        wanted: Wanted::new(address, &origin, 0)?,
        loan: loan.as_ref(),
    };
    if !work.folder.join("HEAD").exists() {
        make(&work.git, work.folder, &["--bare"], &work.wanted).await?;
    }
    let head = work.named(order.git_ref.as_deref(), HEAD).await?;
    let base = work.named(branch.as_deref(), BASE).await?;
    if !work.has(&commit).await {
        // The ref has moved on, or is gone.
        work.fetch(&[&format!("+{commit}:refs/delta/commits/{commit}")])
            .await?;
    }
    match work.has(&commit).await {
        true => Ok(Mirrored { head, base }),
        false => Err(Trouble::NotThere(format!(
            "the repository has no commit {commit}"
        ))),
    }
}

fn loan(order: &FetchOrder, address: &Address, home: &Path) -> Result<Option<Loan>, Trouble> {
    let Some(text) = &order.credential else {
        return Ok(None);
    };
    let credential = Credential::from_secret(&Secret::new(text.as_str()));
    let lent = credential.and_then(|it| it.lend(address, home));
    lent.map(Some).map_err(|problem| Trouble::Credential {
        name: "of the repository".into(),
        problem,
    })
}

struct Work<'w> {
    git: Git<'w>,
    folder: &'w Path,
    wanted: Wanted,
    loan: Option<&'w Loan>,
}

impl Work<'_> {
    async fn fetch(&self, specs: &[&str]) -> Result<(), GitError> {
        let address = &self.wanted.address;
        let call = fetching(self.folder, &[], &address.url, specs);
        let call = call.over(address.protocol.name(), self.loan);
        self.git.call(call).await.map(drop)
    }

    /// Fetches a ref under a name of ours, and says which commit that is; none when there is none.
    async fn named(&self, name: Option<&str>, ours: &str) -> Result<Option<String>, Trouble> {
        let Some(name) = name else {
            return Ok(None);
        };
        let fetched = self.fetch(&[&format!("+{name}:{ours}")]).await;
        match fetched.map_err(Trouble::from) {
            Ok(()) => {}
            Err(trouble) if trouble.says("couldn't find remote ref") => return Ok(None),
            Err(trouble) => return Err(trouble),
        }
        let tip = format!("{ours}^{{commit}}");
        let call = Call::bare(self.folder, &["rev-parse", "--verify", &tip]);
        Ok(Some(check_commit(&self.git.ask(call).await?)?))
    }

    async fn has(&self, commit: &str) -> bool {
        let whole = format!("{commit}^{{tree}}");
        let call = Call::bare(self.folder, &["cat-file", "-e", &whole]);
        self.git.call(call).await.is_ok()
    }
}
