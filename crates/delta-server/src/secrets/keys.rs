//! The keys that secrets are sealed with. The first one seals, all of them open: a new key is put
//! in front, everything is sealed anew (`delta-ci secret rotate`), and the old one can go.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, RandomizedNonceKey};
use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use delta_core::Text;
use zeroize::Zeroizing;

use super::SecretError;

/// AES-256.
const KEY_BYTES: usize = 32;
/// The file in the data folder of a server that was given no key.
const OWN_FILE: &str = "secret.key";
/// Bytes of a key file: dozens of keys and their comments.
const MAX_FILE_BYTES: u64 = 16 * 1024;
/// Keys at a time: one in use, and those that are on their way out.
const MAX_KEYS: usize = 16;

/// Where the keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file in the data folder, made when there is none. Right for one server on its own files.
    Own,
    /// The file in the data folder where there is one; it is not made.
    OwnIfThere,
    /// No key: secrets can neither be set nor read.
    None,
    File(PathBuf),
    Text(KeyText),
}

/// Keys as text, which is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyText(Zeroizing<String>);

impl KeyText {
    pub fn new(text: String) -> KeyText {
        KeyText(Zeroizing::new(text))
    }
}

impl std::fmt::Debug for KeyText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyText(…)")
    }
}

/// Why there are no keys. A key is in none of these sentences.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot be read")]
    Io(#[from] io::Error),
    #[error("others may read it")]
    Open,
    #[error("line {0} is no key: a key is 32 bytes in base64 or hexadecimal")]
    NoKey(usize),
    #[error("has no key; a key is 32 bytes in base64 or hexadecimal, one in a line")]
    Empty,
    #[error("has more than {MAX_KEYS} keys")]
    TooMany,
}

/// One key and its public name.
pub struct Key {
    pub id: Text,
    pub(super) key: RandomizedNonceKey,
}

/// Every key there is, the one in use first.
pub struct Keyring(Vec<Key>);

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keyring({} keys)", self.0.len())
    }
}

impl Keyring {
    /// Reads the keys; `data` is the server's own folder, locked by it.
    pub fn open(source: &KeySource, data: &Path) -> Result<Keyring, (PathBuf, KeyError)> {
        match source {
            KeySource::None => Ok(Keyring(Vec::new())),
            KeySource::Text(text) => {
                Keyring::parse(&text.0).map_err(|why| ("DELTA_SECRET_KEY".into(), why))
            }
            KeySource::File(path) => from_file(path).map_err(|why| (path.clone(), why)),
            KeySource::OwnIfThere if !data.join(OWN_FILE).exists() => Ok(Keyring(Vec::new())),
            KeySource::Own | KeySource::OwnIfThere => {
                let path = data.join(OWN_FILE);
                let made = if path.exists() {
                    Ok(())
                } else {
                    make(&path, data)
                };
                made.map_err(KeyError::from)
                    .and_then(|()| from_file(&path))
                    .map_err(|why| (path, why))
            }
        }
    }

    /// Keys one in a line or with spaces between them; what follows a `#` is a comment.
    pub fn parse(text: &str) -> Result<Keyring, KeyError> {
        let mut keys: Vec<Key> = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let line = line.split('#').next().unwrap_or_default();
            for word in line.split([' ', '\t', ',']).filter(|word| !word.is_empty()) {
                let key = Key::parse(word.trim()).ok_or(KeyError::NoKey(number))?;
                if keys.iter().all(|other| other.id != key.id) {
                    keys.push(key);
                }
            }
        }
        match keys.len() {
            0 => Err(KeyError::Empty),
            1..=MAX_KEYS => Ok(Keyring(keys)),
            _ => Err(KeyError::TooMany),
        }
    }

    /// The key that seals.
    pub fn first(&self) -> Result<&Key, SecretError> {
        self.0.first().ok_or(SecretError::NoKey)
    }

    pub(super) fn get(&self, id: &str) -> Option<&Key> {
        self.0.iter().find(|key| *key.id == *id)
    }
}

impl Key {
    fn parse(text: &str) -> Option<Key> {
        let bytes = Zeroizing::new(unhex(text).or_else(|| {
            let engines = [&STANDARD, &STANDARD_NO_PAD, &URL_SAFE, &URL_SAFE_NO_PAD];
            engines.iter().find_map(|it| it.decode(text).ok())
        })?);
        if bytes.len() != KEY_BYTES {
            return None;
        }
        // A name for it that says nothing about it.
        let named = [b"delta-ci secret key\0".as_slice(), &bytes].concat();
        let named = Zeroizing::new(named);
        let hash = digest::digest(&digest::SHA256, &named);
        Some(Key {
            id: crate::runner_commands::hex(&hash.as_ref()[..8]).into(),
            key: RandomizedNonceKey::new(&AES_256_GCM, &bytes).ok()?,
        })
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 2 * KEY_BYTES || !text.is_ascii() {
        return None;
    }
    let pairs = (0..KEY_BYTES).map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16));
    pairs.collect::<Result<_, _>>().ok()
}

fn from_file(path: &Path) -> Result<Keyring, KeyError> {
    let file = File::open(path)?;
    let mode = file.metadata()?.mode();
    if mode & 0o077 != 0 {
        return Err(KeyError::Open);
    }
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_FILE_BYTES).read_to_string(&mut text)?;
    Keyring::parse(&text)
}

/// A fresh key, on disk before anything is sealed with it, whole or not at all.
fn make(path: &Path, data: &Path) -> io::Result<()> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES]);
    getrandom::fill(bytes.as_mut_slice()).map_err(|error| io::Error::other(error.to_string()))?;
    let text = Zeroizing::new(format!("{}\n", STANDARD.encode(bytes.as_slice())));
    let draft = data.join(format!("{OWN_FILE}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&draft, path)?;
    File::open(data)?.sync_all()
}
