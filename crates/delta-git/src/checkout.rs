//! A person's checkout: the files that git tracks or would track, and what differs from where the
//! work left its branch. Whatever git cannot say is an error, never an empty answer.

use std::collections::HashSet;
use std::path::Path;

use delta_wire::own_folder;

use crate::question::{NoAnswer, answer, in_folder};

/// Bytes of names that are taken from git: a million paths of 100 bytes.
pub(crate) const MAX_LISTED_BYTES: u64 = 100 * 1024 * 1024;

/// Where a branch usually comes from, best first.
const BASES: [&str; 4] = ["origin/HEAD", "origin/main", "origin/master", "main"];
const LAST_BASE: &str = "master";

/// Why it is not known what changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotCompared {
    #[error("there is no commit `{0}`")]
    NoCommit(String),
    #[error("there is no commit that both sides come from")]
    NothingInCommon,
    #[error("the name of a changed file is no UTF-8")]
    NotText,
    #[error(transparent)]
    NoAnswer(#[from] NoAnswer),
}

/// The files of a checkout that git tracks or would track and that are there, relative to `folder`;
/// none when it is no checkout of its own, or there is no git.
pub fn tracked(folder: &Path) -> Result<Option<Vec<String>>, NoAnswer> {
    if !is_checkout(folder) {
        return Ok(None);
    }
    let arguments = ["ls-files", "-z", "-co", "--exclude-standard"];
    let bytes = git(folder, &arguments)?;
    // What was deleted and not committed stays in the index.
    let gone = git(folder, &["ls-files", "-z", "-d"])?;
    let gone: HashSet<String> = names(&gone).collect();
    let there = names(&bytes).filter(|name| !gone.contains(name));
    Ok(Some(not_ours(folder, there).collect()))
}

/// Without what lies in folders of our own data, which may be in the middle of a tree.
fn not_ours<'a>(
    folder: &'a Path,
    names: impl Iterator<Item = String> + 'a,
) -> impl Iterator<Item = String> + 'a {
    let mut own = own_folder::Known::default();
    names.filter(move |name| !own.holds(folder, Path::new(name)))
}

fn is_checkout(folder: &Path) -> bool {
    let inside = git(folder, &["rev-parse", "--is-inside-work-tree"]);
    let ignored = git(folder, &["check-ignore", "-q", "."]);
    inside.is_ok_and(|said| said.starts_with(b"true")) && ignored.is_err()
}

fn names(bytes: &[u8]) -> impl Iterator<Item = String> {
    let names = bytes.split(|byte| *byte == 0);
    let texts = names.filter_map(|name| std::str::from_utf8(name).ok());
    texts.filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The branch that work here is most likely compared with.
pub fn default_base(folder: &Path) -> Option<String> {
    let names = BASES.into_iter().chain([LAST_BASE]);
    let mut there = names.filter(|name| resolved(folder, name).is_some());
    there.next().map(str::to_owned)
}

/// Whether a name is that of a commit.
pub fn is_commit(folder: &Path, name: &str) -> bool {
    resolved(folder, name).is_some()
}

/// The branch that is checked out.
pub fn branch_of(folder: &Path) -> Option<String> {
    let name = git(folder, &["symbolic-ref", "--short", "-q", "HEAD"]).ok()?;
    let name = String::from_utf8(name).ok()?.trim().to_owned();
    (!name.is_empty()).then_some(name)
}

/// What differs from the merge base with `base`: up to `head`, or up to the working tree with what
/// is not committed. Paths are relative to `folder`.
pub fn differing(
    folder: &Path,
    base: &str,
    head: Option<&str>,
) -> Result<Vec<String>, NotCompared> {
    let known = |name: &str| {
        let id = resolved(folder, name);
        id.ok_or_else(|| NotCompared::NoCommit(name.to_owned()))
    };
    let (base, tip) = (known(base)?, known(head.unwrap_or("HEAD"))?);
    let merge_base =
        git(folder, &["merge-base", &base, &tip]).map_err(|_| NotCompared::NothingInCommon)?;
    let merge_base = String::from_utf8_lossy(&merge_base).trim().to_owned();
    let mut arguments = vec![
        "diff",
        "--name-only",
        "-z",
        "--no-renames",
        "--no-ext-diff",
        "--no-textconv",
        "--ignore-submodules=none",
        "--relative",
        merge_base.as_str(),
    ];
    if head.is_some() {
        arguments.push(tip.as_str());
    }
    let mut paths = all_names(&git(folder, &arguments)?)?;
    if head.is_none() {
        let others = git(folder, &["ls-files", "-z", "-o", "--exclude-standard"]);
        let others = all_names(&others?)?;
        paths.extend(not_ours(folder, others.into_iter()));
    }
    Ok(paths)
}

/// All names, or none: one that is left out would be a change that nobody sees.
fn all_names(bytes: &[u8]) -> Result<Vec<String>, NotCompared> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(names(bytes).collect()),
        Err(_) => Err(NotCompared::NotText),
    }
}

/// The id of a commit by any name that a person gives it.
pub(crate) fn resolved(folder: &Path, name: &str) -> Option<String> {
    let name = format!("{name}^{{commit}}");
    let arguments = [
        "rev-parse",
        "--verify",
        "--quiet",
        "--end-of-options",
        &name,
    ];
    let id = git(folder, &arguments).ok()?;
    let id = String::from_utf8(id).ok()?.trim().to_owned();
    let hex = id.len() >= 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex.then_some(id)
}

pub(crate) fn git(folder: &Path, arguments: &[&str]) -> Result<Vec<u8>, NoAnswer> {
    let what = match arguments.first() {
        Some(&"ls-files" | &"ls-tree") => "list files",
        Some(&"diff") => "compare",
        _ => "look up a name",
    };
    let mut command = in_folder(folder);
    command.args(arguments);
    answer(command, what, MAX_LISTED_BYTES)
}
