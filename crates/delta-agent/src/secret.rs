//! Credentials in memory: they have no `Display`, their `Debug` shows nothing, and they come from a
//! file or from whoever made them, never from an argument or the environment of a child.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::MemfdFlags;
use zeroize::Zeroizing;

/// A token is a line; anything longer is the wrong file.
const MAX_TOKEN_BYTES: u64 = 16 * 1024;

/// Text that must not be shown. It is wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(Zeroizing::new(text.into()))
    }

    /// The text itself, for a header and for nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a shim is told that no file may hold. It has no `Debug`.
#[derive(Default)]
pub struct Handed {
    /// Variables of the steps.
    pub env: Vec<(String, Secret)>,
    /// Every value that must not be seen in the log.
    pub masked: Vec<Secret>,
}

impl Handed {
    pub(crate) fn is_empty(&self) -> bool {
        self.env.is_empty() && self.masked.is_empty()
    }

    /// Puts it into a file that has no name and no disk, to be inherited by the shim.
    pub(crate) fn to_memory(&self) -> io::Result<File> {
        let env = self
            .env
            .iter()
            .map(|(name, it)| (name.as_str(), it.expose()));
        let env: Vec<(&str, &str)> = env.collect();
        let masked: Vec<&str> = self.masked.iter().map(Secret::expose).collect();
        let bytes = Zeroizing::new(serde_json::to_vec(&(env, masked))?);
        let file = rustix::fs::memfd_create("delta-ci", MemfdFlags::CLOEXEC)?;
        let mut file = File::from(file);
        file.write_all(&bytes)?;
        Ok(file)
    }

    /// Takes it out of there: nothing is left for whoever else gets the file.
    pub(crate) fn take_from_memory(file: &File) -> io::Result<Handed> {
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        let mut bytes = Zeroizing::new(vec![0; length]);
        file.read_exact_at(&mut bytes, 0)?;
        file.set_len(0)?;
        let read: (Vec<(String, String)>, Vec<String>) = serde_json::from_slice(&bytes)?;
        let (env, masked) = read;
        let env = env
            .into_iter()
            .map(|(name, value)| (name, Secret::new(value)));
        Ok(Handed {
            env: env.collect(),
            masked: masked.into_iter().map(Secret::new).collect(),
        })
    }
}

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
    fn what_is_handed_over_is_there_once() {
        let handed = Handed {
            env: vec![("TOKEN".to_owned(), Secret::new("canary\n'"))],
            masked: vec![Secret::new("canary\n'"), Secret::new("other")],
        };
        let file = handed.to_memory().expect("memory");
        let taken = Handed::take_from_memory(&file).expect("taken");
        assert!(taken.env == handed.env && taken.masked == handed.masked);
        assert_eq!(file.metadata().expect("a file").len(), 0);
        assert!(Handed::take_from_memory(&file).is_err(), "only once");
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
