//! Large files: fetched where the repository has some and git-lfs is on this machine, from the
//! repository's own server, whatever a file in the repository says of another.
//!
//! That server says where each file is, and git-lfs would go wherever that is. So they are fetched
//! here, each address checked first like that of a repository, and git-lfs only puts them in their
//! places.

mod names;
mod ssh;
mod transfer;

use std::collections::BTreeMap;

use delta_git::{Address, Call, Git, GitError, Loan, MAX_OUTPUT, Protocol, found};

use super::{Checkout, CheckoutError};

/// What a file of attributes says of them.
const MARK: &str = "filter=lfs";
/// The files that are meant, by their attributes.
const MEANT: &str = ":(attr:filter=lfs)";
/// The lines of a pointer.
const LINES: &str =
    "^(version https://git-lfs.github.com/spec/v1|oid sha256:[0-9a-f]{64}|size [0-9]{1,18})$";

/// What stands in the repository for a large file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pointer {
    /// The SHA-256 of its bytes, in hexadecimal.
    oid: String,
    size: u64,
}

/// Puts the files themselves where only their names are.
pub(super) async fn pull(
    checkout: &Checkout<'_>,
    git: &Git<'_>,
    address: &Address,
    loan: Option<&Loan>,
) -> Result<(), CheckoutError> {
    let workspace = checkout.workspace;
    let search = [
        "--glob-pathspecs",
        "grep",
        "-q",
        "-I",
        "-F",
        "-e",
        MARK,
        "HEAD",
        "--",
    ];
    let search = Call::in_folder(workspace, &search).arg("**/.gitattributes");
    if found(git.call(search).await)?.is_none() {
        return Ok(());
    }
    let asked = git
        .call(Call::in_folder(workspace, &["lfs", "version"]))
        .await;
    if !is_installed(asked)? {
        let text = "this repository keeps files in Git LFS, and git-lfs is not installed here: \
                    the workspace has their pointers only";
        checkout.log.mark(text);
        return Ok(());
    }
    // So that git in the job takes the files for what they are.
    let install = ["lfs", "install", "--local", "--skip-repo"];
    git.call(Call::in_folder(workspace, &install)).await?;
    if address.protocol == Protocol::File {
        // They are beside the repository, and no host is asked.
        let server = format!("lfs.url={}", address.url.trim_end_matches('/'));
        let call = Call::in_folder(workspace, &["-c", &server, "lfs", "pull"]);
        git.call(call.over(address.protocol.name(), loan).shown())
            .await?;
        return Ok(());
    }
    let pointers = pointers(git, checkout).await?;
    if pointers.is_empty() {
        return Ok(());
    }
    let granted = match loan.filter(|_| address.protocol == Protocol::Ssh) {
        Some(loan) => Some(ssh::ask(checkout, git, address, loan).await?),
        None => None,
    };
    transfer::fetch(checkout, address, granted, &pointers).await?;
    git.call(Call::in_folder(workspace, &["lfs", "checkout"]).shown())
        .await?;
    Ok(())
}

/// Whether git knows the other: it says in words that it does not, and any other failure is one.
fn is_installed(asked: Result<Vec<u8>, GitError>) -> Result<bool, GitError> {
    let unknown = |line: &String| line.contains("'lfs' is not a git command");
    match asked {
        Ok(_) => Ok(true),
        Err(GitError::Ended { status, last })
            if status.code() == Some(1) && last.iter().any(unknown) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// What the index has of them, each once.
async fn pointers(git: &Git<'_>, checkout: &Checkout<'_>) -> Result<Vec<Pointer>, CheckoutError> {
    let grep = [
        "grep", "--cached", "-h", "-I", "-E", "-e", LINES, "--", MEANT,
    ];
    let printed = found(git.call(Call::in_folder(checkout.workspace, &grep)).await)?;
    let printed = printed.unwrap_or_default();
    if printed.len() >= MAX_OUTPUT {
        return Err(CheckoutError::Lfs("there are too many of them".to_owned()));
    }
    Ok(read(&String::from_utf8_lossy(&printed)))
}

/// Pointers are three lines in this order.
fn read(text: &str) -> Vec<Pointer> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = BTreeMap::new();
    for three in lines.windows(3) {
        let oid = three[1].strip_prefix("oid sha256:");
        let size = three[2]
            .strip_prefix("size ")
            .and_then(|it| it.parse().ok());
        if let ([version, ..], Some(oid), Some(size)) = (three, oid, size)
            && version.starts_with("version ")
        {
            found.insert(oid.to_owned(), size);
        }
    }
    let each = found.into_iter();
    each.map(|(oid, size)| Pointer { oid, size }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_three_lines_and_each_file_counts_once() {
        let (one, two) = ("1".repeat(64), "2".repeat(64));
        let version = "version https://git-lfs.github.com/spec/v1";
        let pointer = |oid: &str, size: u64| format!("{version}\noid sha256:{oid}\nsize {size}\n");
        let text = [
            pointer(&two, 7),
            pointer(&one, 5),
            pointer(&two, 7),
            format!("oid sha256:{}\nsize 3\n", "3".repeat(64)),
            format!("{version}\nsize 3\n"),
        ];
        let found = read(&text.concat());
        let found: Vec<_> = found.iter().map(|it| (it.oid.as_str(), it.size)).collect();
        assert_eq!(found, [(one.as_str(), 5), (two.as_str(), 7)]);
    }
}
