//! Submodules, level by level, so that the address of each is checked before git goes there.
//!
//! What `.gitmodules` says is a stranger's: only the addresses that a run itself may name are
//! cloned, and only the way of updating that starts no program is taken.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::address::{Address, Protocol, Refused};
use super::credential::{Credential, Loan};
use super::git::{Call, Git};
use super::{Checkout, Trouble};

/// Levels that are followed; real trees have two or three.
const MAX_LEVELS: usize = 8;
/// Submodules of all levels; more is a tree without end.
const MAX_SUBMODULES: usize = 1_000;

const ADDRESSES: &str = r"^submodule\..*\.url$";
const PATHS: &str = r"^submodule\..*\.path$";

/// Clones all submodules below the workspace.
pub(super) async fn update(
    checkout: &Checkout<'_>,
    git: &Git<'_>,
    loan: Option<&Loan>,
) -> Result<(), Trouble> {
    let mut open = vec![(checkout.workspace.to_owned(), 0)];
    let mut count = 0;
    while let Some((folder, level)) = open.pop() {
        let has_some = Call::in_folder(&folder, &["cat-file", "-e", "HEAD:.gitmodules"]);
        if git.call(has_some).await.is_err() {
            continue;
        }
        if level == MAX_LEVELS {
            return Err(Trouble::TooDeep(MAX_LEVELS));
        }
        let below = one_level(checkout, git, loan, &folder).await?;
        count += below.len();
        if count > MAX_SUBMODULES {
            return Err(Trouble::TooMany(MAX_SUBMODULES));
        }
        open.extend(below.into_iter().map(|folder| (folder, level + 1)));
    }
    Ok(())
}

/// The submodules of one repository; returns where they are.
async fn one_level(
    checkout: &Checkout<'_>,
    git: &Git<'_>,
    loan: Option<&Loan>,
    folder: &Path,
) -> Result<Vec<PathBuf>, Trouble> {
    // Notes the addresses, and makes whole those that are relative to this one.
    git.call(Call::in_folder(folder, &["submodule", "--quiet", "init"]))
        .await?;
    let noted = ["config", "--local", "-z", "--get-regexp", ADDRESSES];
    let noted = git.call(Call::in_folder(folder, &noted)).await;
    let mut protocols = BTreeSet::new();
    for (name, url) in pairs(&noted.unwrap_or_default()) {
        let allowed = allowed(checkout, &url);
        let protocol = allowed.map_err(|problem| Trouble::Submodule { name, problem })?;
        protocols.insert(protocol.name());
    }
    if protocols.is_empty() {
        return Ok(Vec::new());
    }
    let protocols: Vec<&str> = protocols.into_iter().collect();
    let update = ["submodule", "update", "--checkout", "--force"];
    let call = Call::in_folder(folder, &update);
    let call = match checkout.options.depth {
        0 => call,
        depth => call.arg(format!("--depth={depth}")),
    };
    git.call(call.over(&protocols.join(":"), loan).shown())
        .await?;
    present(git, folder).await
}

/// The ways a run itself may go; ssh with a key of its own only.
fn allowed(checkout: &Checkout<'_>, url: &str) -> Result<Protocol, Refused> {
    let address = Address::parse(url, checkout.settings.protocols)?;
    let has_key = matches!(checkout.credential, Some(Credential::SshKey { .. }));
    match address.protocol == Protocol::Ssh && !has_key {
        true => Err(Refused::Protocol("ssh without a key".to_owned())),
        false => Ok(address.protocol),
    }
}

/// Those that the index has as submodules, whatever `.gitmodules` says of paths.
async fn present(git: &Git<'_>, folder: &Path) -> Result<Vec<PathBuf>, Trouble> {
    let blob = [
        "config",
        "-z",
        "--blob",
        "HEAD:.gitmodules",
        "--get-regexp",
        PATHS,
    ];
    let named = git.call(Call::in_folder(folder, &blob)).await?;
    let mut found = Vec::new();
    for (_, path) in pairs(&named) {
        let entry = ["--literal-pathspecs", "ls-files", "-s", "-z", "--", &path];
        let Ok(entry) = git.call(Call::in_folder(folder, &entry)).await else {
            continue;
        };
        let below = folder.join(&path);
        let is_one = entry.starts_with(b"160000 ")
            && entry.ends_with(format!("\t{path}\0").as_bytes())
            && below.join(".git").exists();
        if is_one {
            found.push(below);
        }
    }
    Ok(found)
}

/// What `git config -z --get-regexp` prints: a key, a line's end, a value, a NUL. What is no text
/// is not passed over: git would go to an address that nobody looked at.
fn pairs(printed: &[u8]) -> Vec<(String, String)> {
    let entries = printed.split(|byte| *byte == 0);
    let entries = entries.filter_map(|entry| {
        let entry = String::from_utf8_lossy(entry);
        let (key, value) = entry.split_once('\n')?;
        Some((key.to_owned(), value.to_owned()))
    });
    entries.collect()
}
