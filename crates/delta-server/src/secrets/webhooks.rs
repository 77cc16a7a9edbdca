//! Secrets of webhooks: sealed like any other, and kept with their repository. They are no secrets
//! that a job could name, so none of them ever leaves the server.

use delta_core::{Millis, Text};
use delta_store::forges::RepositoryRow;
use delta_store::secrets::{SecretAbout, SecretId, SecretRow};

use super::seal::{self, Value};
use super::{Keyring, SecretError, TRIES, next_version};
use crate::store_sides::StoreSides;

/// A kind that nobody can set: a row of the other table does not open as one of these.
const KIND: &str = "webhook";

/// The secret of a repository's webhook, sealed with the first key: the key and the bytes.
pub fn seal_webhook(
    keys: &Keyring,
    repository: &Text,
    version: u64,
    text: &str,
) -> Result<(Text, Vec<u8>), SecretError> {
    let key = keys.first()?.id.clone();
    let value = Value {
        value: text.to_owned(),
        username: None,
        known_hosts: None,
    };
    let about = about(repository, version, &key);
    let row = seal::seal(keys, about, &value.to_bytes())?;
    Ok((key, row.sealed))
}

pub fn open_webhook(keys: &Keyring, row: &RepositoryRow) -> Result<String, SecretError> {
    let sealed = SecretRow {
        about: about(&row.name, row.version, &row.key),
        sealed: row.sealed.clone(),
    };
    Ok(seal::open(keys, &sealed)?.value)
}

/// Seals anew what is not sealed with the first key; how many were, and of how many.
pub(super) fn rotate(
    sides: &StoreSides,
    keys: &Keyring,
    now: Millis,
) -> Result<(u64, u64), SecretError> {
    let first = keys.first()?.id.clone();
    let all = sides.reader.repositories()?;
    let mut rotated = 0;
    for row in all.iter().filter(|row| row.key != first) {
        rotated += u64::from(reseal(sides, keys, &row.name, now)?);
    }
    Ok((rotated, all.len() as u64))
}

fn reseal(
    sides: &StoreSides,
    keys: &Keyring,
    name: &str,
    now: Millis,
) -> Result<bool, SecretError> {
    for _ in 0..TRIES {
        let Some(mut row) = sides.reader.repository(name)? else {
            return Ok(false);
        };
        let text = open_webhook(keys, &row)?;
        let before = row.version;
        row.version = next_version(Some(before), now);
        (row.key, row.sealed) = seal_webhook(keys, &row.name, row.version, &text)?;
        if sides.tables.put_repository(&row, Some(before))? {
            return Ok(true);
        }
    }
    Err(SecretError::Busy)
}

fn about(repository: &Text, version: u64, key: &Text) -> SecretAbout {
    SecretAbout {
        id: SecretId {
            name: KIND.into(),
            repository: repository.clone(),
            branch: "".into(),
            environment: "".into(),
        },
        kind: KIND.into(),
        version,
        key: key.clone(),
        created_at: Millis::ZERO,
        updated_at: Millis::ZERO,
        updated_by: "".into(),
    }
}
