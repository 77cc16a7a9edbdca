//! Copying a source tree into a workspace: files with their modes, links as links, nothing else.
//!
//! In a git checkout the files are those that git tracks or would track, so that build results and
//! caches stay out; elsewhere it is everything. `.git` and `.delta-ci` are never copied.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// Folders that never enter a copy: history may be huge and holds credentials, and our own data is
/// not part of the source.
const NEVER: [&str; 2] = [".git", ".delta-ci"];

/// Checkouts inside checkouts (submodules) that are followed; real trees have two or three levels.
const MAX_NESTED: usize = 8;

/// Why a tree could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("cannot {doing} {path}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("checkouts are nested too deeply at {path}")]
    TooDeep { path: PathBuf },
}

/// Copies `source` into the existing, empty folder `target`.
pub fn tree(source: &Path, target: &Path) -> Result<(), CopyError> {
    let source = source.canonicalize().map_err(io_error("resolve", source))?;
    let target = target.canonicalize().map_err(io_error("resolve", target))?;
    copy_checkout(&source, &target, MAX_NESTED)
}

fn copy_checkout(source: &Path, target: &Path, nested: usize) -> Result<(), CopyError> {
    let Some(files) = git_files(source) else {
        return copy_everything(source, target);
    };
    for file in files {
        let (from, to) = (source.join(&file), target.join(&file));
        // A tracked file may be deleted on disk; then there is nothing to copy.
        let Ok(meta) = fs::symlink_metadata(&from) else {
            continue;
        };
        if meta.is_dir() {
            let Some(left) = nested.checked_sub(1) else {
                return Err(CopyError::TooDeep { path: from });
            };
            fs::create_dir_all(&to).map_err(io_error("create", &to))?;
            copy_checkout(&from, &to, left)?;
            continue;
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(io_error("create", parent))?;
        }
        copy_one(&from, &to, &meta)?;
    }
    Ok(())
}

/// The files git knows or would add, relative to `folder`; nothing when it is no checkout or there
/// is no git.
fn git_files(folder: &Path) -> Option<Vec<PathBuf>> {
    // A folder inside somebody else's checkout is not a checkout itself.
    let top = git(folder, &["rev-parse", "--show-toplevel"])?;
    let top = PathBuf::from(std::ffi::OsStr::from_bytes(top.trim_ascii_end()));
    let here = top.canonicalize().is_ok_and(|top| folder.starts_with(top));
    let ignored = git(folder, &["check-ignore", "-q", "."]).is_some();
    if !here || ignored {
        return None;
    }
    let listed = git(folder, &["ls-files", "-z", "-co", "--exclude-standard"])?;
    let files = listed
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name)))
        .filter(|path| is_plain(path) && !is_never(path));
    Some(files.collect())
}

fn git(folder: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output.status.success().then_some(output.stdout)
}

fn is_plain(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_)))
}

fn is_never(path: &Path) -> bool {
    path.components()
        .any(|part| NEVER.iter().any(|name| part.as_os_str() == *name))
}

/// Copies a tree that no version control describes, without recursion.
fn copy_everything(source: &Path, target: &Path) -> Result<(), CopyError> {
    let mut open = vec![(source.to_owned(), target.to_owned())];
    while let Some((from, to)) = open.pop() {
        for entry in fs::read_dir(&from).map_err(io_error("list", &from))? {
            let entry = entry.map_err(io_error("list", &from))?;
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            if NEVER.iter().any(|name| entry.file_name() == *name) || from == target {
                continue;
            }
            let meta = fs::symlink_metadata(&from).map_err(io_error("look at", &from))?;
            if meta.is_dir() {
                fs::create_dir(&to).map_err(io_error("create", &to))?;
                open.push((from, to));
            } else {
                copy_one(&from, &to, &meta)?;
            }
        }
    }
    Ok(())
}

/// One file or link. Sockets, pipes and devices are left out.
fn copy_one(from: &Path, to: &Path, meta: &fs::Metadata) -> Result<(), CopyError> {
    if meta.is_symlink() {
        let aim = fs::read_link(from).map_err(io_error("read", from))?;
        return std::os::unix::fs::symlink(aim, to).map_err(io_error("create", to));
    }
    if meta.is_file() {
        fs::copy(from, to).map_err(io_error("copy", from))?;
    }
    Ok(())
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CopyError {
    let path = path.to_owned();
    move |source| CopyError::Io {
        doing,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    fn sample() -> tempfile::TempDir {
        let tree = tempfile::tempdir().expect("a tree");
        write(tree.path(), "src/main.rs", "fn main() {}");
        write(tree.path(), "target/huge.o", "x");
        write(tree.path(), ".delta-ci/data", "x");
        write(tree.path(), "run.sh", "true");
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(tree.path().join("run.sh"), mode).expect("a mode");
        symlink("src/main.rs", tree.path().join("link")).expect("a link");
        symlink("/nowhere", tree.path().join("broken")).expect("a link");
        tree
    }

    fn copied(tree: &Path) -> tempfile::TempDir {
        let target = tempfile::tempdir().expect("a target");
        super::tree(tree, target.path()).expect("a copy");
        let mode = fs::metadata(target.path().join("run.sh"))
            .expect("run.sh")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o755);
        let aim = fs::read_link(target.path().join("link")).expect("a link");
        assert_eq!(aim, Path::new("src/main.rs"));
        assert!(fs::symlink_metadata(target.path().join("broken")).is_ok());
        assert!(!target.path().join(".delta-ci").exists());
        assert!(!target.path().join(".git").exists());
        target
    }

    #[test]
    fn a_plain_tree_is_copied_whole() {
        let tree = sample();
        let target = copied(tree.path());
        assert!(target.path().join("target/huge.o").exists());
    }

    #[test]
    fn a_checkout_is_copied_without_what_git_ignores() {
        let tree = sample();
        write(tree.path(), ".gitignore", "target/\n");
        write(tree.path(), "gone", "x");
        for arguments in [&["init", "-q"][..], &["add", "-A"]] {
            git(tree.path(), arguments).expect("git");
        }
        write(tree.path(), "new/untracked.txt", "x");
        fs::remove_file(tree.path().join("gone")).expect("removed");
        let target = copied(tree.path());
        assert!(!target.path().join("target").exists());
        assert!(target.path().join("new/untracked.txt").exists());
        assert!(!target.path().join("gone").exists());
    }

    #[test]
    fn a_copy_into_the_tree_itself_ends() {
        let tree = sample();
        let target = tree.path().join("work/here");
        fs::create_dir_all(&target).expect("a folder");
        super::tree(tree.path(), &target).expect("a copy");
        assert!(target.join("run.sh").exists());
        assert!(!target.join("work/here").exists());
    }
}
