//! Secrets as rows: sealed bytes, and what may be known about them in the clear.
//!
//! The store holds no key and cannot open one of them. Where a secret is good for is part of what
//! it is sealed with, so a row that was moved or renamed by somebody else does not open any more.

use delta_core::{Millis, Text};

use crate::StoreError;

/// What a secret is good for. An empty text means any: rows are found by all four.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretId {
    pub name: Text,
    pub repository: Text,
    pub branch: Text,
    pub environment: Text,
}

/// Where a secret is wanted. An empty text is nothing that a secret could be narrowed to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecretPlace<'a> {
    pub repository: &'a str,
    pub branch: &'a str,
    pub environment: &'a str,
}

/// A secret without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretAbout {
    pub id: SecretId,
    /// What its value is: `plain`, `token`, `ssh-key`.
    pub kind: Text,
    /// Rises with every write, also over a removal.
    pub version: u64,
    /// Which key it is sealed with; not the key.
    pub key: Text,
    pub created_at: Millis,
    pub updated_at: Millis,
    pub updated_by: Text,
}

/// A secret as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretRow {
    pub about: SecretAbout,
    pub sealed: Vec<u8>,
}

/// Without the sealed bytes: nobody reads them in a log.
impl std::fmt::Debug for SecretRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "SecretRow({:?}, {} bytes)",
            self.about,
            self.sealed.len()
        )
    }
}

/// Secrets, read.
pub trait SecretReader {
    /// All of them, in the order of their ids, without the sealed bytes.
    fn secrets(&self) -> Result<Vec<SecretAbout>, StoreError>;

    fn secret(&self, id: &SecretId) -> Result<Option<SecretRow>, StoreError>;

    /// Every secret of these names that is good there: up to eight of each name.
    fn secrets_for(
        &self,
        names: &[Text],
        place: SecretPlace<'_>,
    ) -> Result<Vec<SecretRow>, StoreError>;
}

/// Secrets, written, as sealed bytes. Beside the writer: no command reads them, and of two who
/// write one at the same moment the version lets one through.
pub trait SecretTable {
    /// Writes a secret in place of the version that is there, or of none; false when there is
    /// another. When it was created stays what it was.
    fn put_secret(&self, row: &SecretRow, instead_of: Option<u64>) -> Result<bool, StoreError>;

    /// Removes a secret; false when there is none.
    fn remove_secret(&self, id: &SecretId) -> Result<bool, StoreError>;
}
