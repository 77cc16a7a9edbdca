//! Folders with keys, tokens and logs in them, which may lie inside somebody's checkout: git is
//! told to pass over them, so that no `git add` takes a secret along.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// What git reads in every folder it looks into.
pub const FILE: &str = ".gitignore";

/// Everything in the folder, this file included.
const EVERYTHING: &str = "*\n";

/// Private keys: certificates beside them may be handed round.
const KEYS: &str = "*.key\n";

/// Keeps all that is in these folders out of git. They are made, for this user alone, where they
/// are missing; what somebody wrote into the file stays.
pub fn whole(folders: &[&Path]) {
    folders.iter().for_each(|folder| told(folder, EVERYTHING));
}

/// Keeps the private keys in a folder out of git.
pub fn keys(folder: &Path) {
    told(folder, KEYS);
}

fn told(folder: &Path, patterns: &str) {
    // A folder that cannot be written to is its owner's to complain about, with better words.
    let _ = write(folder, patterns);
}

fn write(folder: &Path, patterns: &str) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(folder)?;
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).open(folder.join(FILE)) {
        Ok(mut file) => file.write_all(patterns.as_bytes()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_wrote_stays() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("new/data");
        whole(&[&folder]);
        assert_eq!(std::fs::read_to_string(folder.join(FILE)).unwrap(), "*\n");
        std::fs::write(folder.join(FILE), "mine\n").unwrap();
        whole(&[&folder]);
        assert_eq!(
            std::fs::read_to_string(folder.join(FILE)).unwrap(),
            "mine\n"
        );
        // Neither a file nor a folder that may not be written stops anybody.
        whole(&[&folder.join(FILE)]);
    }
}
