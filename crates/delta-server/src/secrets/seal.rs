//! How a value is sealed: AES-256-GCM with a random nonce, bound to everything that says what the
//! secret is good for. A row that was moved, renamed or set back by somebody else does not open.
//!
//! Written down as one byte of version, the nonce, and the sealed bytes with their tag.

use aws_lc_rs::aead::{Aad, NONCE_LEN, Nonce};
use delta_store::secrets::{SecretAbout, SecretRow};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::{Keyring, SecretError};

/// The first, and so far the only, way to write it down.
const VERSION: u8 = 1;

/// What is sealed.
#[derive(Serialize, Deserialize)]
pub(super) struct Value {
    pub value: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_hosts: Option<String>,
}

impl Value {
    pub fn to_bytes(&self) -> Zeroizing<Vec<u8>> {
        // Texts: nothing in it can fail to be written.
        Zeroizing::new(serde_json::to_vec(self).unwrap_or_default())
    }
}

pub(super) fn seal(
    keys: &Keyring,
    about: SecretAbout,
    plain: &[u8],
) -> Result<SecretRow, SecretError> {
    let key = keys.get(&about.key).ok_or(SecretError::NoKey)?;
    let mut bytes = Zeroizing::new(plain.to_vec());
    let nonce = key
        .key
        .seal_in_place_append_tag(Aad::from(bound(&about)), &mut *bytes);
    let nonce = nonce.map_err(|_| SecretError::Seal)?;
    let mut sealed = vec![VERSION];
    sealed.extend_from_slice(nonce.as_ref());
    sealed.extend_from_slice(&bytes);
    Ok(SecretRow { about, sealed })
}

pub(super) fn open(keys: &Keyring, row: &SecretRow) -> Result<Value, SecretError> {
    let about = &row.about;
    let key = keys.get(&about.key).ok_or_else(|| SecretError::OtherKey {
        name: about.id.name.clone(),
        key: about.key.clone(),
    })?;
    let damaged = || SecretError::Damaged(about.id.name.clone());
    let [VERSION, rest @ ..] = row.sealed.as_slice() else {
        return Err(damaged());
    };
    let (nonce, sealed) = rest.split_at_checked(NONCE_LEN).ok_or_else(damaged)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| damaged())?;
    let mut bytes = Zeroizing::new(sealed.to_vec());
    let plain = key
        .key
        .open_in_place(nonce, Aad::from(bound(about)), &mut bytes);
    let plain = plain.map_err(|_| damaged())?;
    let value = serde_json::from_slice(plain).map_err(|_| damaged());
    plain.zeroize();
    value
}

/// What a value is sealed together with: each part with its length before it, so that no two
/// secrets have the same.
fn bound(about: &SecretAbout) -> Vec<u8> {
    let version = about.version.to_string();
    let parts = [
        "delta-ci secret",
        "default",
        &about.id.name,
        &about.id.repository,
        &about.id.environment,
        &about.kind,
        &version,
    ];
    let mut bound = Vec::new();
    // Rows from before there were branches have none, and open as they were sealed.
    let branch = (!about.id.branch.is_empty()).then_some(&*about.id.branch);
    for part in parts.into_iter().chain(branch) {
        bound.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bound.extend_from_slice(part.as_bytes());
    }
    bound
}
