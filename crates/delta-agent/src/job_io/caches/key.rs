//! Keys of caches: text with `{hash:FILE}`, `{lock_hash}`, `{os}` and `{arch}`, resolved in the
//! workspace before the work. A file that is not there counts as such, and is said: the key is
//! then another one than with any file.

use std::io::{self, Read};

use aws_lc_rs::digest::{Context, SHA256};
use delta_shim::job_files::{FileError, Glob, Owner, Root, WalkError};
use delta_wire::job_spec::{BadKey, KeyPart, key_parts};
use tokio_util::sync::CancellationToken;

use super::super::transfer::hex;

/// Files whose hash stands for everything a project depends on.
const LOCK_FILES: [&str; 19] = [
    "Cargo.lock",
    "Gemfile.lock",
    "Pipfile.lock",
    "bun.lock",
    "composer.lock",
    "deno.lock",
    "flake.lock",
    "go.sum",
    "gradle.lockfile",
    "mix.lock",
    "npm-shrinkwrap.json",
    "package-lock.json",
    "packages.lock.json",
    "pdm.lock",
    "pnpm-lock.yaml",
    "poetry.lock",
    "requirements.txt",
    "uv.lock",
    "yarn.lock",
];
/// Files that one hash is taken of.
const MAX_FILES: usize = 10_000;
/// Digits of a hash in a key: enough that two are never the same by chance.
const DIGITS: usize = 32;
/// What stands for files that are not there.
const NONE: &str = "none";

/// Why a key cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError {
    #[error(transparent)]
    Bad(#[from] BadKey),
    #[error("`{0}` stands for too much")]
    Pattern(String),
    #[error("{0}: {1}")]
    Walk(String, WalkError),
    #[error("`{0}` cannot be read: {1}")]
    File(String, FileError),
}

/// A key, and what is to be said about it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Resolved {
    pub key: String,
    /// Patterns that match no file.
    pub missing: Vec<String>,
}

/// Resolves a key in a workspace.
pub(super) fn resolve(
    text: &str,
    root: &Root,
    owner: Owner,
    stopped: &CancellationToken,
) -> Result<Resolved, KeyError> {
    let mut resolved = Resolved::default();
    for part in key_parts(text)? {
        let patterns = match part {
            KeyPart::Text(text) => {
                resolved.key.push_str(text);
                continue;
            }
            KeyPart::Os => {
                resolved.key.push_str(std::env::consts::OS);
                continue;
            }
            KeyPart::Arch => {
                resolved.key.push_str(std::env::consts::ARCH);
                continue;
            }
            KeyPart::LockHash => LOCK_FILES.to_vec(),
            KeyPart::Hash(pattern) => vec![pattern],
        };
        match hash(&patterns, root, owner, stopped)? {
            Some(hash) => resolved.key.push_str(&hash),
            None => {
                resolved.key.push_str(NONE);
                resolved.missing.push(match part {
                    KeyPart::Hash(pattern) => format!("hash:{pattern}"),
                    _ => "lock_hash".to_owned(),
                });
            }
        }
    }
    Ok(resolved)
}

/// The hash of all files that the patterns mean, with their paths; nothing where there is none.
fn hash(
    patterns: &[&str],
    root: &Root,
    owner: Owner,
    stopped: &CancellationToken,
) -> Result<Option<String>, KeyError> {
    let mut globs = Vec::new();
    for text in patterns {
        globs.push(Glob::parse(text).ok_or_else(|| KeyError::Pattern((*text).to_owned()))?);
    }
    let walked = root.walk(&globs, MAX_FILES, stopped);
    let walked = walked.map_err(|error| KeyError::Walk(patterns.join(", "), error))?;
    if walked.files.is_empty() {
        return Ok(None);
    }
    let mut all = Context::new(&SHA256);
    for matched in &walked.files {
        let path = &matched.path;
        let one = one(root, path, owner);
        let one = one.map_err(|error| KeyError::File(path.clone(), error))?;
        // Lengths keep two different lists from being one text.
        all.update(&(path.len() as u64).to_be_bytes());
        all.update(path.as_bytes());
        all.update(&one);
    }
    let hash = hex(all.finish().as_ref());
    Ok(Some(hash[..DIGITS].to_owned()))
}

fn one(root: &Root, path: &str, owner: Owner) -> Result<Vec<u8>, FileError> {
    let (mut file, _) = root.file(path, owner)?;
    let (mut hash, mut buffer) = (Context::new(&SHA256), vec![0; 64 * 1024]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hash.finish().as_ref().to_vec()),
            Ok(count) => hash.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn key(root: &std::path::Path, text: &str) -> Result<Resolved, KeyError> {
        let owner = Owner(rustix::process::geteuid().as_raw());
        let root = Root::open(root).expect("a root");
        resolve(text, &root, owner, &CancellationToken::new())
    }

    #[test]
    fn a_key_changes_with_the_files_it_names_and_with_nothing_else() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path();
        fs::create_dir(root.join("sub")).expect("a folder");
        fs::write(root.join("Cargo.lock"), "one").expect("a file");
        fs::write(root.join("sub/a.lock"), "a").expect("a file");
        let first = key(root, "cargo-{os}-{hash:Cargo.lock}").expect("a key");
        assert!(first.key.starts_with("cargo-linux-") && first.missing.is_empty());
        let locks = key(root, "{lock_hash}").expect("a key");
        fs::write(root.join("other"), "x").expect("a file");
        assert_eq!(
            key(root, "cargo-{os}-{hash:Cargo.lock}").expect("a key"),
            first
        );
        let many = key(root, "{hash:{Cargo,sub/*}.lock}").expect("a key");
        fs::write(root.join("sub/a.lock"), "b").expect("a file");
        assert_ne!(key(root, "{hash:{Cargo,sub/*}.lock}").expect("a key"), many);
        assert_eq!(key(root, "{lock_hash}").expect("a key"), locks);
        fs::write(root.join("Cargo.lock"), "two").expect("a file");
        assert_ne!(key(root, "{lock_hash}").expect("a key"), locks);
        assert_ne!(
            key(root, "cargo-{os}-{hash:Cargo.lock}").expect("a key"),
            first
        );
    }

    #[test]
    fn a_missing_file_is_said_and_a_strange_word_refused() {
        let place = tempfile::tempdir().expect("a folder");
        let found = key(place.path(), "a-{hash:go.sum}-{lock_hash}").expect("a key");
        assert_eq!(found.key, "a-none-none");
        assert_eq!(found.missing, ["hash:go.sum", "lock_hash"]);
        assert!(matches!(
            key(place.path(), "{branch}"),
            Err(KeyError::Bad(BadKey::Unknown(_)))
        ));
        let open = key(place.path(), "a{os");
        assert!(matches!(open, Err(KeyError::Bad(BadKey::Open))));
        // T9: a link is no file.
        std::os::unix::fs::symlink("/etc/passwd", place.path().join("link")).expect("a link");
        let link = key(place.path(), "{hash:link}").expect("a key");
        assert_eq!(link.key, "none");
    }
}
