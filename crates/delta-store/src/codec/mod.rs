//! How rows and facts are written down: JSON with fixed names and a fixed order of fields.
//!
//! Owns the encoding, shared by both SQL stores. The core stays free of serde: the types here
//! mirror it field by field. What is written once must stay readable for good, so a field is only
//! ever added, with a default; a change of meaning needs a new version of the record.

pub mod column;
pub(crate) mod fact;
pub(crate) mod part;
pub(crate) mod primitives;
pub mod row;

use crate::StoreError;

/// What is stored cannot be read back: a person must look.
pub fn corrupt(what: &str, why: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(format!("{what}: {why}"))
}
