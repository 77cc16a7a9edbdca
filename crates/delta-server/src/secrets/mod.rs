//! Secrets: kept sealed, opened for the holder of a lease whose policy names them (A51, D14).
//!
//! Owns which of several secrets of one name counts, and that a value leaves the server in one
//! answer only. The store sees sealed bytes, the log sees names.

mod keys;
mod seal;
mod webhooks;

use delta_core::run::RunHeader;
use delta_core::{Millis, Policy, Text};
use delta_store::StoreError;
use delta_store::read::Reader;
use delta_store::secrets::{SecretAbout, SecretId, SecretPlace, SecretRow};
use delta_wire::api::{SecretKind, SecretValue, SetSecret};
use zeroize::Zeroizing;

use crate::store_sides::StoreSides;
pub use keys::{KeyError, KeySource, KeyText, Keyring};
use seal::Value;
pub use webhooks::{open_webhook, seal_webhook};

/// All secrets of a server. A list of them is one answer, and an honest installation has hundreds.
const MAX_STORED: usize = 10_000;

/// How often a write is tried against others of the same secret.
const TRIES: usize = 5;

/// Why a secret was not set, opened or sealed anew.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error(
        "this server has no key to keep secrets with: start it with --secret-key-file, or with \
         DELTA_SECRET_KEY"
    )]
    NoKey,
    #[error(
        "the secret {name} is sealed with the key {key}, which this server does not have: add it \
         to its key file, below the one in use"
    )]
    OtherKey { name: Text, key: Text },
    #[error("the secret {0} does not open: its row was changed by somebody else")]
    Damaged(Text),
    #[error("there are {MAX_STORED} secrets, and no more are kept")]
    TooMany,
    #[error("the secret is being written by others; try again")]
    Busy,
    #[error("the secret could not be sealed")]
    Seal,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a job may not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotGranted {
    /// The run comes from people without rights here (T5).
    Untrusted,
    /// Its policy does not name it.
    NotNamed(Text),
}

/// Whether a job may fetch these: all of them, or none.
pub fn may_fetch(run: &RunHeader, policy: &Policy, names: &[Text]) -> Result<(), NotGranted> {
    if !run.trusted {
        return Err(NotGranted::Untrusted);
    }
    let stranger = names.iter().find(|name| !policy.secrets.contains(name));
    match stranger {
        Some(name) => Err(NotGranted::NotNamed(name.clone())),
        None => Ok(()),
    }
}

/// What was found of what was asked for.
pub enum Fetched {
    All(Vec<SecretValue>),
    Missing(Text),
}

/// The branch of a run, for secrets of branches: none for a tag and for a pull request, whose head
/// is not the branch's yet.
pub fn branch_of(run: &RunHeader) -> &str {
    let git_ref = run.git_ref.as_deref().unwrap_or_default();
    match git_ref.strip_prefix("refs/") {
        Some(rest) => rest.strip_prefix("heads/").unwrap_or_default(),
        None => git_ref,
    }
}

/// Opens the secrets of these names that are good for a place.
pub fn fetch(
    reader: &dyn Reader,
    keys: &Keyring,
    names: &[Text],
    place: SecretPlace<'_>,
) -> Result<Fetched, SecretError> {
    let rows = reader.secrets_for(names, place)?;
    let mut values = Vec::with_capacity(names.len());
    for name in names {
        let fit = rows.iter().filter(|row| row.about.id.name == *name);
        let Some(row) = fit.max_by_key(|row| narrowness(&row.about.id)) else {
            return Ok(Fetched::Missing(name.clone()));
        };
        let value = seal::open(keys, row)?;
        values.push(SecretValue {
            name: name.to_string(),
            kind: SecretKind::from_text(&row.about.kind).unwrap_or(SecretKind::Plain),
            value: value.value,
            username: value.username,
            known_hosts: value.known_hosts,
        });
    }
    Ok(Fetched::All(values))
}

/// The narrowest wins: one of the repository before one of the branch before one of the environment
/// before one of none.
fn narrowness(id: &SecretId) -> [bool; 3] {
    [&id.repository, &id.branch, &id.environment].map(|it| !it.is_empty())
}

/// Seals a secret and writes it, in place of the one that is there.
pub fn set(
    sides: &StoreSides,
    keys: &Keyring,
    request: &SetSecret,
    by: &Text,
    now: Millis,
) -> Result<SecretAbout, SecretError> {
    let any = |text: &Option<String>| Text::from(text.as_deref().unwrap_or_default());
    let id = SecretId {
        name: request.name.as_str().into(),
        repository: any(&request.repository),
        branch: any(&request.branch),
        environment: any(&request.environment),
    };
    let value = Value {
        value: request.value.clone(),
        username: request.username.clone(),
        known_hosts: request.known_hosts.clone(),
    };
    let plain = value.to_bytes();
    for _ in 0..TRIES {
        let there = sides.reader.secret(&id)?;
        if there.is_none() && sides.reader.secrets()?.len() >= MAX_STORED {
            return Err(SecretError::TooMany);
        }
        let before = there.as_ref().map(|row| row.about.version);
        let about = SecretAbout {
            id: id.clone(),
            kind: request.kind.as_str().into(),
            version: next_version(before, now),
            key: keys.first()?.id.clone(),
            created_at: there.map_or(now, |row| row.about.created_at),
            updated_at: now,
            updated_by: by.clone(),
        };
        let row = seal::seal(keys, about, &plain)?;
        if sides.tables.put_secret(&row, before)? {
            return Ok(row.about);
        }
    }
    Err(SecretError::Busy)
}

/// Seals everything anew that is not sealed with the first key; how many were, and of how many.
pub fn rotate(sides: &StoreSides, keys: &Keyring, now: Millis) -> Result<(u64, u64), SecretError> {
    let first = keys.first()?.id.clone();
    let all = sides.reader.secrets()?;
    let mut rotated = 0;
    for about in all.iter().filter(|about| about.key != first) {
        rotated += u64::from(reseal(sides, keys, &about.id, now)?);
    }
    let (webhooks, repositories) = webhooks::rotate(sides, keys, now)?;
    Ok((rotated + webhooks, all.len() as u64 + repositories))
}

/// Seals one anew; false when it is gone or somebody did it meanwhile.
fn reseal(
    sides: &StoreSides,
    keys: &Keyring,
    id: &SecretId,
    now: Millis,
) -> Result<bool, SecretError> {
    for _ in 0..TRIES {
        let Some(row) = sides.reader.secret(id)? else {
            return Ok(false);
        };
        let first = keys.first()?.id.clone();
        if row.about.key == first {
            return Ok(false);
        }
        let plain: Zeroizing<Vec<u8>> = seal::open(keys, &row)?.to_bytes();
        let before = row.about.version;
        let about = SecretAbout {
            version: next_version(Some(before), now),
            key: first,
            ..row.about
        };
        let row: SecretRow = seal::seal(keys, about, &plain)?;
        if sides.tables.put_secret(&row, Some(before))? {
            return Ok(true);
        }
    }
    Err(SecretError::Busy)
}

/// Rises, and by the clock too: a row from before a removal does not fit the one after it.
fn next_version(before: Option<u64>, now: Millis) -> u64 {
    let clock = now.0.max(0).unsigned_abs();
    before.map_or(clock, |before| clock.max(before + 1))
}

#[cfg(test)]
mod tests;
