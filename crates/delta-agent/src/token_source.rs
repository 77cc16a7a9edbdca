//! Where an agent's credential comes from: a file, or whoever made it, and never an argument or the
//! environment of a child.

use std::io::{self, Read};
use std::path::PathBuf;

use delta_wire::Secret;

/// A token is a line; anything longer is the wrong file.
const MAX_TOKEN_BYTES: u64 = 16 * 1024;

/// Where a token comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// Read again whenever it is needed, so that it can be renewed in place.
    File(PathBuf),
    Memory(Secret),
}

impl TokenSource {
    pub fn read(&self) -> io::Result<Secret> {
        let path = match self {
            TokenSource::Memory(secret) => return Ok(secret.clone()),
            TokenSource::File(path) => path,
        };
        let mut text = String::new();
        std::fs::File::open(path)?
            .take(MAX_TOKEN_BYTES)
            .read_to_string(&mut text)?;
        let token = text.trim();
        if token.is_empty() || token.contains(char::is_whitespace) {
            return Err(io::Error::other("the file does not hold one token"));
        }
        Ok(Secret::new(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_show() {
        let source = TokenSource::Memory(Secret::new("canary"));
        assert!(!format!("{source:?}").contains("canary"));
    }

    #[test]
    fn a_token_file_is_read_again_and_trimmed() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let source = TokenSource::File(file.path().to_owned());
        assert!(source.read().is_err(), "an empty file is no token");
        std::fs::write(file.path(), "one\n").expect("written");
        assert_eq!(source.read().expect("a token").expose(), "one");
        std::fs::write(file.path(), "two").expect("written");
        assert_eq!(source.read().expect("a token").expose(), "two");
    }
}
