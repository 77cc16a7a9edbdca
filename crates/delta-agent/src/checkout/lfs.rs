//! Large files: fetched where the repository has some and git-lfs is on this machine, from the
//! repository's own server, whatever a file in the repository says of another.

use super::address::{Address, Protocol};
use super::credential::Loan;
use super::git::{Call, Git};
use super::{Checkout, Trouble};

/// What a file of attributes says of them.
const MARK: &str = "filter=lfs";

/// Puts the files themselves where only their names are.
pub(super) async fn pull(
    checkout: &Checkout<'_>,
    git: &Git<'_>,
    address: &Address,
    loan: Option<&Loan>,
) -> Result<(), Trouble> {
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
    if git.call(search).await.is_err() {
        return Ok(());
    }
    let asked = git
        .call(Call::in_folder(workspace, &["lfs", "version"]))
        .await;
    if asked.is_err() {
        let text = "this repository keeps files in Git LFS, and git-lfs is not installed here: \
                    the workspace has their pointers only";
        checkout.log.mark(text);
        return Ok(());
    }
    // So that git in the job takes the files for what they are.
    let install = ["lfs", "install", "--local", "--skip-repo"];
    git.call(Call::in_folder(workspace, &install)).await?;
    let server = format!("lfs.url={}", server(address));
    let call = Call::in_folder(workspace, &["-c", &server, "lfs", "pull"]);
    git.call(call.over(address.protocol.name(), loan).shown())
        .await?;
    Ok(())
}

/// Where a repository's large files are unless somebody says otherwise.
fn server(address: &Address) -> String {
    let url = address.url.trim_end_matches('/');
    match address.protocol {
        Protocol::Https | Protocol::Http => {
            let url = url.strip_suffix(".git").unwrap_or(url);
            format!("{url}.git/info/lfs")
        }
        Protocol::Ssh | Protocol::File => url.to_owned(),
    }
}
