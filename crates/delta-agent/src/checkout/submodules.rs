//! Submodules, level by level, so that the address of each is checked before git goes there.
//!
//! What `.gitmodules` says is a stranger's: only the addresses that a run itself may name are
//! cloned, and only the way of updating that starts no program is taken.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use delta_git::{
    Address, Call, Credential, Git, Loan, MAX_OUTPUT, Protocol, RefusedAddress, found,
};

use super::{Checkout, CheckoutError};

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
) -> Result<(), CheckoutError> {
    let mut open = vec![(checkout.workspace.to_owned(), 0)];
    let mut count = 0;
    while let Some((folder, level)) = open.pop() {
        // Printed where there is one: only an answer says that there is none.
        let has_some = ["ls-tree", "HEAD", "--", ".gitmodules"];
        let has_some = git.call(Call::in_folder(&folder, &has_some)).await?;
        if has_some.is_empty() {
            continue;
        }
        if level == MAX_LEVELS {
            return Err(CheckoutError::TooDeep(MAX_LEVELS));
        }
        let below = one_level(checkout, git, loan, &folder, &mut count).await?;
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
    count: &mut usize,
) -> Result<Vec<PathBuf>, CheckoutError> {
    // Notes the addresses, and makes whole those that are relative to this one.
    git.call(Call::in_folder(folder, &["submodule", "--quiet", "init"]))
        .await?;
    let noted = ["config", "--local", "-z", "--get-regexp", ADDRESSES];
    let noted = listed(git, folder, &noted).await?;
    *count += noted.len();
    if *count > MAX_SUBMODULES {
        return Err(CheckoutError::TooMany(MAX_SUBMODULES));
    }
    let mut protocols = BTreeSet::new();
    for (name, url) in noted {
        // What is no text is not passed over: git would go where nobody looked.
        let allowed = allowed(checkout, &url.to_string_lossy());
        let protocol = allowed.map_err(|problem| CheckoutError::Submodule { name, problem })?;
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
fn allowed(checkout: &Checkout<'_>, url: &str) -> Result<Protocol, RefusedAddress> {
    let address = Address::parse(url, checkout.settings.protocols)?;
    let has_key = matches!(checkout.credential, Some(Credential::SshKey { .. }));
    if address.protocol == Protocol::Ssh && !has_key {
        Err(RefusedAddress::Protocol("ssh without a key".to_owned()))
    } else {
        Ok(address.protocol)
    }
}

/// Those that the index has as submodules, whatever `.gitmodules` says of paths.
async fn present(git: &Git<'_>, folder: &Path) -> Result<Vec<PathBuf>, CheckoutError> {
    let blob = [
        "config",
        "-z",
        "--blob",
        "HEAD:.gitmodules",
        "--get-regexp",
        PATHS,
    ];
    let mut below = Vec::new();
    for (_, path) in listed(git, folder, &blob).await? {
        // What leads out of here is in no index, and git would not even look.
        let inside = |it| matches!(it, Component::Normal(_));
        if !Path::new(&path).components().all(inside) {
            continue;
        }
        let entry = ["--literal-pathspecs", "ls-files", "-s", "-z", "--"];
        let entry = Call::in_folder(folder, &entry).arg(&path);
        let entry = git.call(entry).await?;
        let named = [b"\t", path.as_bytes(), b"\0"].concat();
        if !entry.starts_with(b"160000 ") || !entry.ends_with(&named) {
            continue;
        }
        let one = folder.join(&path);
        let there = one.join(".git").try_exists();
        if there.map_err(CheckoutError::io("a submodule cannot be read"))? {
            below.push(one);
        }
    }
    Ok(below)
}

/// What `git config -z --get-regexp` finds, all of it: it ends with 1 where that is nothing, and
/// what it prints beyond a bound would be known to git and not to us.
async fn listed(
    git: &Git<'_>,
    folder: &Path,
    search: &[&str],
) -> Result<Vec<(String, OsString)>, CheckoutError> {
    let printed = found(git.call(Call::in_folder(folder, search)).await)?;
    let printed = printed.unwrap_or_default();
    let pairs = pairs(&printed);
    if printed.len() >= MAX_OUTPUT || pairs.len() > MAX_SUBMODULES {
        Err(CheckoutError::TooMany(MAX_SUBMODULES))
    } else {
        Ok(pairs)
    }
}

/// A key, a line's end, a value, a NUL; of a key without a value there is no line's end.
fn pairs(printed: &[u8]) -> Vec<(String, OsString)> {
    let entries = printed.split(|byte| *byte == 0);
    let entries = entries.filter(|entry| !entry.is_empty()).map(|entry| {
        let end = entry.iter().position(|byte| *byte == b'\n');
        let (key, value) = entry.split_at(end.unwrap_or(entry.len()));
        let value = value.get(1..).unwrap_or_default().to_vec();
        let key = String::from_utf8_lossy(key).into_owned();
        (key, OsString::from_vec(value))
    });
    entries.collect()
}
