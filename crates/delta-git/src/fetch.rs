//! From an address to a commit in a repository: the exact commit where the server gives it away by
//! its hash, by way of the ref where it does not.

use std::path::Path;

use crate::address::{Address, RefusedAddress, check_commit, check_ref};
use crate::call::{Call, Git};
use crate::credential::Loan;
use crate::error::FetchError;

/// What was asked for last; a name that no server can send.
const WANTED: &str = "refs/delta/wanted";
/// Commits that are whole in a kept repository, each under its own hash.
const COMMITS: &str = "refs/delta/commits";
/// All branches and tags, as a clone has them.
const EVERYTHING: [&str; 2] = [
    "+refs/heads/*:refs/remotes/origin/*",
    "+refs/tags/*:refs/tags/*",
];
/// What git takes for no limit.
const ALL_HISTORY: &str = "--depth=2147483647";

/// What to fetch.
pub struct FetchTarget {
    pub address: Address,
    pub commit: Option<String>,
    pub git_ref: Option<String>,
    /// Commits of history; 0 is all of it.
    pub depth: u32,
}

impl FetchTarget {
    /// A commit, a ref, or both: then the commit, by way of the ref where a server wants that.
    pub fn new(
        address: Address,
        commit: Option<&str>,
        git_ref: Option<&str>,
        depth: u32,
    ) -> Result<FetchTarget, RefusedAddress> {
        let commit = commit.map(check_commit).transpose()?;
        if let Some(name) = git_ref {
            check_ref(name)?;
        }
        Ok(FetchTarget {
            address,
            commit,
            git_ref: git_ref.map(str::to_owned),
            depth,
        })
    }

    /// For people.
    pub fn revision(&self) -> String {
        match (&self.commit, &self.git_ref) {
            (Some(commit), Some(name)) => format!("{commit} ({name})"),
            (Some(commit), None) => commit.clone(),
            (None, Some(name)) => name.clone(),
            (None, None) => "its newest commit".to_owned(),
        }
    }

    /// Letters of the repository's hashes.
    pub fn hash_length(&self) -> usize {
        self.commit.as_ref().map_or(40, String::len)
    }

    fn format(&self) -> &'static str {
        match self.hash_length() {
            64 => "--object-format=sha256",
            _ => "--object-format=sha1",
        }
    }

    fn depth(&self) -> Vec<String> {
        match self.depth {
            0 => EVERYTHING.map(str::to_owned).to_vec(),
            depth => vec![format!("--depth={depth}")],
        }
    }
}

/// Makes an empty repository.
pub async fn make(
    git: &Git<'_>,
    folder: &Path,
    bare: &[&str],
    wanted: &FetchTarget,
) -> Result<(), FetchError> {
    let options = ["init", "--quiet", "--template=", wanted.format()];
    let call = Call::in_folder(git.home, &options);
    let call = bare.iter().fold(call, |call, word| call.arg(*word));
    git.call(call.arg("--end-of-options").arg(folder)).await?;
    Ok(())
}

/// Whether the commit is here in as much depth as is wanted, without asking anybody. More history
/// than the commit itself may have been cut by a later fetch, and branches move: only the server
/// knows.
pub async fn has_whole(git: &Git<'_>, repository: &Path, wanted: &FetchTarget) -> bool {
    let (Some(commit), 1) = (&wanted.commit, wanted.depth) else {
        return false;
    };
    let name = format!("{COMMITS}/{commit}^{{tree}}");
    let call = Call::bare(repository, &["rev-parse", "--quiet", "--verify", &name]);
    git.ask(call).await.is_ok()
}

/// Fetches what is wanted, and says which commit that is.
pub async fn fetch(
    git: &Git<'_>,
    repository: &Path,
    wanted: &FetchTarget,
    loan: Option<&Loan>,
) -> Result<String, FetchError> {
    let named = wanted.commit.as_deref().or(wanted.git_ref.as_deref());
    let spec = format!("+{}:{WANTED}", named.unwrap_or("HEAD"));
    let depth = wanted.depth();
    let (options, all) = match wanted.depth {
        0 => (Vec::new(), depth),
        _ => (depth, Vec::new()),
    };
    let specs: Vec<&str> = all.iter().map(String::as_str).chain([&*spec]).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let fetched = over_the_line(git, repository, &options, &specs, wanted, loan).await;
    match (fetched, &wanted.commit) {
        (Ok(()), _) => {}
        (Err(error), Some(commit)) if wants_a_name(&error) => {
            by_name(git, repository, commit, wanted, loan).await?;
        }
        (Err(error), _) => return Err(error),
    }
    let name = format!("{WANTED}^{{commit}}");
    let call = Call::bare(repository, &["rev-parse", "--verify", &name]);
    let found = git.ask(call).await?;
    let exact = |commit: &String| wanted.commit.as_ref().is_none_or(|it| it == commit);
    let commit =
        check_commit(&found)
            .ok()
            .filter(exact)
            .ok_or_else(|| FetchError::AnotherCommit {
                wanted: wanted.revision(),
                found,
            })?;
    let name = format!("{COMMITS}/{commit}");
    git.call(Call::bare(repository, &["update-ref", &name, &commit]))
        .await?;
    Ok(commit)
}

/// Some servers give away by hash only what a ref points at just now.
fn wants_a_name(error: &FetchError) -> bool {
    error.says("unadvertised object") || error.says("not our ref")
}

/// The commit by way of the ref that has it, or of all branches: first as deep as it is wanted, as
/// a ref that has not moved needs no more, then all history.
async fn by_name(
    git: &Git<'_>,
    repository: &Path,
    commit: &str,
    wanted: &FetchTarget,
    loan: Option<&Loan>,
) -> Result<(), FetchError> {
    let depth = format!("--depth={}", wanted.depth);
    let shallow = (wanted.depth > 0).then_some(depth.as_str());
    let specs = match &wanted.git_ref {
        Some(name) => vec![name.as_str()],
        None => EVERYTHING.to_vec(),
    };
    for depth in shallow.into_iter().chain([ALL_HISTORY]) {
        over_the_line(git, repository, &[depth], &specs, wanted, loan).await?;
        let whole = format!("{commit}^{{commit}}");
        let call = Call::bare(repository, &["cat-file", "-e", &whole]);
        if git.call(call).await.is_ok() {
            let call = Call::bare(repository, &["update-ref", WANTED, commit]);
            git.call(call).await?;
            return Ok(());
        }
    }
    Err(FetchError::NotThere(match &wanted.git_ref {
        Some(name) => format!("the commit {commit} is not part of {name}"),
        None => format!("the repository has no commit {commit}"),
    }))
}

async fn over_the_line(
    git: &Git<'_>,
    repository: &Path,
    options: &[&str],
    specs: &[&str],
    wanted: &FetchTarget,
    loan: Option<&Loan>,
) -> Result<(), FetchError> {
    let address = &wanted.address;
    let call = fetching(repository, options, &address.url, specs)
        .over(address.protocol.name(), loan)
        .shown();
    git.call(call).await?;
    Ok(())
}

/// Copies a commit, with as much of its history as is wanted, from a repository of this machine.
/// Objects are written anew: nothing is shared.
pub async fn copy(
    git: &Git<'_>,
    from: &Path,
    to: &Path,
    commit: &str,
    wanted: &FetchTarget,
) -> Result<(), FetchError> {
    let name = format!("{COMMITS}/{commit}");
    let all = "+refs/remotes/origin/*:refs/remotes/origin/*";
    let depth = format!("--depth={}", wanted.depth);
    let (options, specs) = match wanted.depth {
        0 => (vec![], vec![all, EVERYTHING[1], &name]),
        _ => (vec![&*depth], vec![&*name]),
    };
    let Some(from) = from.to_str() else {
        let odd = std::io::Error::other("the path is no text");
        return Err(FetchError::io("the state folder cannot be named")(odd));
    };
    let call = fetching(to, &options, &format!("file://{from}"), &specs);
    git.call(call.over("file", None))
        .await
        .map_err(FetchError::Copy)?;
    // Names there are only names; the hash is of what came.
    let whole = format!("{commit}^{{tree}}");
    git.call(Call::bare(to, &["rev-parse", "--verify", &whole]))
        .await
        .map_err(FetchError::Copy)?;
    Ok(())
}

/// Names that only we use.
pub async fn forget_our_names(
    git: &Git<'_>,
    repository: &Path,
    commit: &str,
) -> Result<(), FetchError> {
    for name in [WANTED, &format!("{COMMITS}/{commit}")] {
        git.call(Call::bare(repository, &["update-ref", "-d", name]))
            .await?;
    }
    Ok(())
}

pub fn fetching<'a>(
    repository: &'a Path,
    options: &[&str],
    from: &str,
    specs: &[&str],
) -> Call<'a> {
    let fixed = [
        "fetch",
        "--progress",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-auto-maintenance",
    ];
    let mut call = Call::bare(repository, &fixed);
    for option in options {
        call = call.arg(*option);
    }
    call = call.arg("--end-of-options").arg(from);
    specs.iter().fold(call, |call, spec| call.arg(*spec))
}
