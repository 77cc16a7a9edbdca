//! What git knows, as planning sees it: the files of a commit, and what changed since the merge
//! base. Whatever git cannot say is unknown, and what is unknown runs.

use std::path::Path;

use delta_git::{CommitFiles, NoAnswer, NotCompared, UnreadFile};

use super::{Files, MAX_PATHS, Tree, TreeError, Unread};
use crate::facts::Changed;

/// Changed files that are told apart; beyond that everything runs anyhow.
const MAX_CHANGED: usize = 100_000;

/// A commit's tree, read by object id.
pub struct Commit(CommitFiles);

impl Commit {
    /// Lists a commit of a repository, bare or not.
    pub fn tree(repository: &Path, commit: &str) -> Result<Tree, TreeError> {
        let files = CommitFiles::list(repository, commit, MAX_PATHS)?;
        let paths: Vec<String> = files.paths().map(str::to_owned).collect();
        Tree::new(paths, Box::new(Commit(files)))
    }
}

impl Files for Commit {
    fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, Unread> {
        self.0.read(path, most).map_err(|unread| match unread {
            UnreadFile::Missing => Unread::Missing,
            UnreadFile::TooLarge => Unread::TooLarge,
            failed @ UnreadFile::Failed(_) => Unread::Failed(failed.to_string()),
        })
    }
}

impl From<NoAnswer> for TreeError {
    fn from(error: NoAnswer) -> TreeError {
        match error {
            NoAnswer::Failed { what, why } => TreeError::Git { what, why },
            NoAnswer::TooMuch { .. } => TreeError::TooManyFiles,
        }
    }
}

/// What differs from the merge base with `base`: up to `head`, or up to the working tree with what
/// is not committed. Paths are relative to `folder`.
pub fn changed_since(folder: &Path, base: &str, head: Option<&str>) -> Changed {
    match delta_git::differing(folder, base, head) {
        Ok(paths) if paths.len() > MAX_CHANGED => {
            Changed::Unknown(format!("more than {MAX_CHANGED} files changed"))
        }
        Ok(paths) => Changed::files(paths),
        Err(NotCompared::NoCommit(name)) => {
            let name = crate::diagnostic::shown(&name);
            Changed::Unknown(format!("there is no commit `{name}`"))
        }
        Err(NotCompared::NoAnswer(NoAnswer::TooMuch { .. })) => {
            Changed::Unknown(TreeError::TooManyFiles.to_string())
        }
        Err(why) => Changed::Unknown(why.to_string()),
    }
}
