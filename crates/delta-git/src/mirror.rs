//! A repository without a work tree that is kept for planning: a commit with its history, the
//! branch it wants to go to, and where the ref stands now.
//!
//! It obeys the rules of a checkout: checked as text first, git without anybody's configuration,
//! the credential in memory and for one server.
//!
//! Whoever calls this is alone with the folder. What a git that was killed left in it is in
//! nobody's use then, and goes; a folder that is of no use any more is made anew, once.

use std::path::Path;
use std::{fs, io};

use delta_wire::Secret;
use delta_wire::planning::FetchOrder;

use crate::address::{Address, Protocol, Protocols, check_commit, check_ref};
use crate::call::{Call, Git, GitError};
use crate::credential::{Credential, Loan};
use crate::error::FetchError;
use crate::fetch::{FetchTarget, fetching, make};

/// Where the ref of the run stands, and the branch it wants to go to.
const HEAD: &str = "refs/delta/head";
const BASE: &str = "refs/delta/base";

/// What was brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirrored {
    /// The commit that was asked for, or that the ref is.
    pub commit: String,
    /// Where the ref stands now; none when it is gone.
    pub head: Option<String>,
    /// Where the branch stands that it wants to go to.
    pub base: Option<String>,
}

/// Why nothing was brought, in one sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotMirrored(String);

/// Brings what the order names into its folder; without a commit it only says where the ref stands.
/// `home` is private and empty.
pub async fn mirror(order: &FetchOrder, home: &Path) -> Result<Mirrored, NotMirrored> {
    let done = brought(order, home).await;
    done.map_err(|error| {
        let said = error.said().last().cloned();
        NotMirrored(match said {
            Some(said) => format!("{error}: {said}"),
            None => error.to_string(),
        })
    })
}

async fn brought(order: &FetchOrder, home: &Path) -> Result<Mirrored, FetchError> {
    let address = Address::parse(&order.url, Protocols::default())?;
    let commit = order.commit.as_deref().map(check_commit).transpose()?;
    let branch = order.base.as_ref().map(|base| format!("refs/heads/{base}"));
    for name in order.git_ref.iter().chain(&branch) {
        check_ref(name)?;
    }
    if address.protocol == Protocol::Ssh && order.credential.is_none() {
        return Err(FetchError::NoKey);
    }
    let loan = loan(order, &address, home)?;
    let work = Work {
        git: Git {
            program: Path::new("git"),
            home,
            shows: None,
        },
        folder: Path::new(&order.mirror),
        target: FetchTarget::new(address, commit.as_deref(), order.git_ref.as_deref(), 0)?,
        loan: loan.as_ref(),
    };
    let Some(commit) = commit else {
        return work.look(order.git_ref.as_deref().unwrap_or("HEAD")).await;
    };
    let wants = Wants {
        git_ref: order.git_ref.as_deref(),
        branch: branch.as_deref(),
        commit: &commit,
    };
    match work.bring(&wants).await {
        Err(error) if error.may_be_damage() && work.folder.exists() => {
            fs::remove_dir_all(work.folder).map_err(FetchError::io("a broken copy stays"))?;
            work.bring(&wants).await
        }
        done => done,
    }
}

/// What is to be brought.
struct Wants<'w> {
    git_ref: Option<&'w str>,
    branch: Option<&'w str>,
    commit: &'w str,
}

/// Removes what a git that was killed left behind: locks, which every later one would wait for or
/// stumble over, and packs that are not whole, which only take room.
pub fn sweep(folder: &Path) -> io::Result<()> {
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
                continue;
            }
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let left = name.ends_with(".lock") || name.starts_with("tmp_");
            if left {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

fn loan(order: &FetchOrder, address: &Address, home: &Path) -> Result<Option<Loan>, FetchError> {
    let Some(text) = &order.credential else {
        return Ok(None);
    };
    let credential = Credential::from_secret(&Secret::new(text.as_str()));
    let lent = credential.and_then(|credential| credential.lend(address, home));
    lent.map(Some).map_err(|problem| FetchError::Credential {
        name: "of the repository".into(),
        problem,
    })
}

struct Work<'w> {
    git: Git<'w>,
    folder: &'w Path,
    target: FetchTarget,
    loan: Option<&'w Loan>,
}

impl Work<'_> {
    async fn bring(&self, wants: &Wants<'_>) -> Result<Mirrored, FetchError> {
        if self.folder.join("HEAD").exists() {
            sweep(self.folder).map_err(FetchError::io("a copy cannot be tidied"))?;
        } else {
            make(&self.git, self.folder, &["--bare"], &self.target).await?;
        }
        let head = self.named(wants.git_ref, HEAD).await?;
        let base = self.named(wants.branch, BASE).await?;
        let commit = wants.commit.to_owned();
        if !self.has(&commit).await {
            // The ref has moved on, or is gone.
            self.fetch(&[&format!("+{commit}:refs/delta/commits/{commit}")])
                .await?;
        }
        if self.has(&commit).await {
            Ok(Mirrored { commit, head, base })
        } else {
            Err(FetchError::NotThere(format!(
                "the repository has no commit {commit}"
            )))
        }
    }

    /// Where a ref stands, with nothing fetched.
    async fn look(&self, name: &str) -> Result<Mirrored, FetchError> {
        let address = &self.target.address;
        // The commit of a tag that is an object of its own.
        let inner = format!("{name}^{{}}");
        let call = Call::in_folder(self.git.home, &["ls-remote", "--end-of-options"])
            .arg(&address.url)
            .arg(name)
            .arg(&inner)
            .over(address.protocol.name(), self.loan);
        let printed = self.git.call(call).await?;
        let printed = String::from_utf8_lossy(&printed);
        let lines = || printed.lines().filter_map(|line| line.split_once('\t'));
        let of = |wanted: &str| lines().find(|(_, found)| *found == wanted);
        let Some((commit, _)) = of(&inner).or_else(|| of(name)) else {
            return Err(FetchError::NotThere(format!(
                "the repository has no {name}"
            )));
        };
        let commit = check_commit(commit)?;
        Ok(Mirrored {
            head: Some(commit.clone()),
            commit,
            base: None,
        })
    }

    async fn fetch(&self, specs: &[&str]) -> Result<(), GitError> {
        let address = &self.target.address;
        let call = fetching(self.folder, &[], &address.url, specs)
            .over(address.protocol.name(), self.loan);
        self.git.call(call).await.map(drop)
    }

    /// Fetches a ref under a name of ours, and says which commit that is; none when there is none.
    async fn named(&self, name: Option<&str>, ours: &str) -> Result<Option<String>, FetchError> {
        let Some(name) = name else {
            return Ok(None);
        };
        let fetched = self.fetch(&[&format!("+{name}:{ours}")]).await;
        match fetched.map_err(FetchError::from) {
            Ok(()) => {}
            Err(error) if error.says("couldn't find remote ref") => return Ok(None),
            Err(error) => return Err(error),
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
