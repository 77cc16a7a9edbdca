//! Real git repositories, and real servers that hand them out.

pub mod hostile;
mod http;
mod lfs;
mod ssh;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

pub use self::http::GitHttp;
pub(crate) use self::http::{Request, read};
pub use self::ssh::{Key, Sshd};

/// A bare repository below a folder that servers hand out, with a work tree to commit from.
#[derive(Debug)]
pub struct Repository {
    work: PathBuf,
    bare: PathBuf,
}

impl Repository {
    /// `name` is its path below `root`, like `app.git`.
    pub fn make(root: &Path, name: &str) -> Result<Repository> {
        let repository = Repository {
            work: root.join(format!("{name}.work")),
            bare: root.join(name),
        };
        fs::create_dir_all(&repository.work)?;
        let bare = repository.bare.to_string_lossy();
        git(root, &["init", "-q", "--bare", "-b", "main", &bare])?;
        repository.git(&["init", "-q", "-b", "main"])?;
        repository.git(&["remote", "add", "origin", &bare])?;
        Ok(repository)
    }

    /// Where the bare repository is.
    pub fn path(&self) -> &Path {
        &self.bare
    }

    /// Where commits are made.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Writes a file, commits everything to `main` and hands it out. Returns the commit.
    pub fn commit(&self, file: &str, text: &str) -> Result<String> {
        let path = self.work.join(file);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text)?;
        self.publish(&format!("change {file}"))
    }

    /// Commits what is in the work tree, and hands it out.
    pub fn publish(&self, message: &str) -> Result<String> {
        self.git(&["add", "-A"])?;
        self.git(&["commit", "-q", "--allow-empty", "-m", message])?;
        self.git(&["push", "-q", "--force", "origin", "HEAD:main"])?;
        self.git(&["rev-parse", "HEAD"])
    }

    /// Commits a submodule, and hands it out: whatever `url` is, nothing is cloned.
    pub fn link(&self, path: &str, url: &str, commit: &str) -> Result<String> {
        let file = self.work.join(".gitmodules");
        let before = fs::read_to_string(&file).unwrap_or_default();
        let entry = format!("[submodule \"{path}\"]\n\tpath = {path}\n\turl = {url}\n");
        fs::write(file, before + &entry)?;
        // Without its folder it would be taken for removed.
        fs::create_dir_all(self.work.join(path))?;
        let link = format!("160000,{commit},{path}");
        self.git(&["update-index", "--add", "--cacheinfo", &link])?;
        self.publish(&format!("link {path}"))
    }

    /// Any other command in the work tree; returns what it printed, trimmed.
    pub fn git(&self, arguments: &[&str]) -> Result<String> {
        git(&self.work, arguments)
    }
}

/// git as a test uses it: with a name, without anybody's configuration.
pub fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(["-c", "user.name=Test", "-c", "user.email=test@example.org"])
        .args(["-c", "protocol.file.allow=always"])
        .args(arguments)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdin(Stdio::null())
        .output()
        .context("git is not on the PATH; install the package git")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {arguments:?}: {said}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
