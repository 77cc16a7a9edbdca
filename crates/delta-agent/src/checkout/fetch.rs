//! From an address to a commit in a repository: the exact commit where the server gives it away by
//! its hash, by way of the ref where it does not.

use std::path::Path;

use super::Trouble;
use super::address::{Address, check_commit, check_ref};
use super::credential::Loan;
use super::git::{Call, Git};
use crate::job_io::Origin;

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
pub(super) struct Wanted {
    pub address: Address,
    pub commit: Option<String>,
    pub git_ref: Option<String>,
    /// Commits of history; 0 is all of it.
    pub depth: u32,
}

impl Wanted {
    pub fn new(address: Address, origin: &Origin, depth: u32) -> Result<Wanted, Trouble> {
        let commit = origin.commit.as_deref().map(check_commit).transpose()?;
        if let Some(name) = &origin.git_ref {
            check_ref(name)?;
        }
        Ok(Wanted {
            address,
            commit,
            git_ref: origin.git_ref.clone(),
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
pub(super) async fn make(
    git: &Git<'_>,
    folder: &Path,
    bare: &[&str],
    wanted: &Wanted,
) -> Result<(), Trouble> {
    let options = ["init", "--quiet", "--template=", wanted.format()];
    let call = Call::in_folder(git.home, &options);
    let call = bare.iter().fold(call, |call, word| call.arg(*word));
    git.call(call.arg("--end-of-options").arg(folder)).await?;
    Ok(())
}

/// Whether the commit is here in as much depth as is wanted, without asking anybody. More history
/// than the commit itself may have been cut by a later fetch, and branches move: only the server
/// knows.
pub(super) async fn has_whole(git: &Git<'_>, repository: &Path, wanted: &Wanted) -> bool {
    let (Some(commit), 1) = (&wanted.commit, wanted.depth) else {
        return false;
    };
    let name = format!("{COMMITS}/{commit}^{{tree}}");
    let call = Call::bare(repository, &["rev-parse", "--quiet", "--verify", &name]);
    git.ask(call).await.is_ok()
}

/// Fetches what is wanted, and says which commit that is.
pub(super) async fn fetch(
    git: &Git<'_>,
    repository: &Path,
    wanted: &Wanted,
    loan: Option<&Loan>,
) -> Result<String, Trouble> {
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
        (Err(trouble), Some(commit)) if wants_a_name(&trouble) => {
            by_name(git, repository, commit, wanted, loan).await?;
        }
        (Err(trouble), _) => return Err(trouble),
    }
    let name = format!("{WANTED}^{{commit}}");
    let call = Call::bare(repository, &["rev-parse", "--verify", &name]);
    let found = git.ask(call).await?;
    let exact = |commit: &String| wanted.commit.as_ref().is_none_or(|it| it == commit);
    let commit = check_commit(&found).ok().filter(exact);
    let commit = commit.ok_or_else(|| Trouble::AnotherCommit {
        wanted: wanted.revision(),
        found,
    })?;
    let name = format!("{COMMITS}/{commit}");
    git.call(Call::bare(repository, &["update-ref", &name, &commit]))
        .await?;
    Ok(commit)
}

/// Some servers give away by hash only what a ref points at just now.
fn wants_a_name(trouble: &Trouble) -> bool {
    trouble.says("unadvertised object") || trouble.says("not our ref")
}

/// The commit by way of the ref that has it, or of all branches: first as deep as it is wanted, as
/// a ref that has not moved needs no more, then all history.
async fn by_name(
    git: &Git<'_>,
    repository: &Path,
    commit: &str,
    wanted: &Wanted,
    loan: Option<&Loan>,
) -> Result<(), Trouble> {
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
    Err(Trouble::NotThere(match &wanted.git_ref {
        Some(name) => format!("the commit {commit} is not part of {name}"),
        None => format!("the repository has no commit {commit}"),
    }))
}

async fn over_the_line(
    git: &Git<'_>,
    repository: &Path,
    options: &[&str],
    specs: &[&str],
    wanted: &Wanted,
    loan: Option<&Loan>,
) -> Result<(), Trouble> {
    let address = &wanted.address;
    let call = fetching(repository, options, &address.url, specs);
    let call = call.over(address.protocol.name(), loan).shown();
    git.call(call).await?;
    Ok(())
}

/// Copies a commit, with as much of its history as is wanted, from a repository of this machine.
/// Objects are written anew: nothing is shared.
pub(super) async fn copy(
    git: &Git<'_>,
    from: &Path,
    to: &Path,
    commit: &str,
    wanted: &Wanted,
) -> Result<(), Trouble> {
    let name = format!("{COMMITS}/{commit}");
    let all = "+refs/remotes/origin/*:refs/remotes/origin/*";
    let depth = format!("--depth={}", wanted.depth);
    let (options, specs) = match wanted.depth {
        0 => (vec![], vec![all, EVERYTHING[1], &name]),
        _ => (vec![&*depth], vec![&*name]),
    };
    let Some(from) = from.to_str() else {
        let odd = std::io::Error::other("the path is no text");
        return Err(Trouble::io("the state folder cannot be named")(odd));
    };
    let call = fetching(to, &options, &format!("file://{from}"), &specs);
    git.call(call.over("file", None))
        .await
        .map_err(Trouble::Copy)?;
    // Names there are only names; the hash is of what came.
    let whole = format!("{commit}^{{tree}}");
    git.call(Call::bare(to, &["rev-parse", "--verify", &whole]))
        .await
        .map_err(Trouble::Copy)?;
    Ok(())
}

/// Names that only we use.
pub(super) async fn forget_our_names(
    git: &Git<'_>,
    repository: &Path,
    commit: &str,
) -> Result<(), Trouble> {
    for name in [WANTED, &format!("{COMMITS}/{commit}")] {
        git.call(Call::bare(repository, &["update-ref", "-d", name]))
            .await?;
    }
    Ok(())
}

pub(super) fn fetching<'a>(
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
