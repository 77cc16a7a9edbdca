//! Who is asking: bearer tokens with roles, and the local administrator of the admin socket (D14).
//!
//! Owns tokens from their making to their revocation. The token itself is shown once and never
//! stored; a request is answered 401 without saying whether the token is unknown, expired or
//! revoked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use delta_core::{Digest, Millis, Text};
use delta_store::StoreError;
use delta_store::read::{Credential, Reader, Role};

use crate::writer::{random, sha256};

/// How long a looked-up credential is believed: short, so that a revocation bites within seconds,
/// long enough that a heartbeat costs no read.
const BELIEVED_FOR: Duration = Duration::from_secs(2);

/// Remembered credentials: one per runner and person; beyond it the memory starts anew.
const MAX_REMEMBERED: usize = 10_000;

/// Characters of the secret part: 32 bytes in base64url.
const SECRET_CHARS: usize = 43;

/// Name of whoever comes through the admin socket.
pub const LOCAL_ADMIN: &str = "local-admin";

/// Who a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The credential's public id: what leases are bound to and records name.
    pub id: Text,
    pub role: Role,
}

impl Principal {
    pub fn local_admin() -> Principal {
        Principal {
            id: LOCAL_ADMIN.into(),
            role: Role::Admin,
        }
    }

    /// Runners speak the Runner Protocol and nothing else, people everything else; administrators
    /// are people with keys.
    pub fn may(&self, needed: Role) -> bool {
        match needed {
            Role::Runner => self.role == Role::Runner,
            Role::User => matches!(self.role, Role::User | Role::Admin),
            Role::Admin => self.role == Role::Admin,
        }
    }
}

/// A new token: the secret, shown once, and the row that stays.
pub struct NewToken {
    pub secret: String,
    pub credential: Credential,
}

pub fn new_token(role: Role, name: Text, now: Millis, expires_at: Option<Millis>) -> NewToken {
    let secret = URL_SAFE_NO_PAD.encode(random::<32>());
    let secret = format!("delta_{}_{secret}", role.name());
    let id = format!("tok_{:016x}", u64::from_be_bytes(random()));
    NewToken {
        credential: Credential {
            id: id.into(),
            name,
            role,
            hash: sha256(secret.as_bytes()),
            created_at: now,
            expires_at,
            revoked_at: None,
        },
        secret,
    }
}

/// Looks credentials up, and remembers the good ones for a moment.
pub struct Identity {
    reader: Arc<dyn Reader>,
    known: Mutex<HashMap<Digest, (Credential, Instant)>>,
}

impl Identity {
    pub fn new(reader: Arc<dyn Reader>) -> Identity {
        Identity {
            reader,
            known: Mutex::default(),
        }
    }

    /// Whose token this is; nobody's when it is unknown, expired or revoked.
    pub async fn whose(&self, token: &str, now: Millis) -> Result<Option<Principal>, StoreError> {
        if !looks_like_a_token(token) {
            return Ok(None);
        }
        let hash = sha256(token.as_bytes());
        let credential = match self.remembered(&hash) {
            Some(credential) => Some(credential),
            None => self.look_up(hash).await?,
        };
        Ok(credential
            .filter(|credential| is_good(credential, now))
            .map(|credential| Principal {
                id: credential.id,
                role: credential.role,
            }))
    }

    fn remembered(&self, hash: &Digest) -> Option<Credential> {
        let known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        let (credential, since) = known.get(hash)?;
        (since.elapsed() < BELIEVED_FOR).then(|| credential.clone())
    }

    async fn look_up(&self, hash: Digest) -> Result<Option<Credential>, StoreError> {
        let reader = self.reader.clone();
        let found = tokio::task::spawn_blocking(move || reader.credential(&hash)).await;
        let found = found.map_err(|error| StoreError::Unavailable(error.to_string()))??;
        if let Some(credential) = &found {
            let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
            if known.len() >= MAX_REMEMBERED {
                known.clear();
            }
            known.insert(hash, (credential.clone(), Instant::now()));
        }
        Ok(found)
    }

    /// A credential of this server changed: believe nothing remembered.
    pub fn forget(&self) {
        self.known.lock().unwrap_or_else(|e| e.into_inner()).clear();
    }
}

fn is_good(credential: &Credential, now: Millis) -> bool {
    credential.revoked_at.is_none() && credential.expires_at.is_none_or(|at| now < at)
}

/// Spares the store a look for what cannot be one.
fn looks_like_a_token(text: &str) -> bool {
    let Some((role, secret)) = text
        .strip_prefix("delta_")
        .and_then(|rest| rest.split_once('_'))
    else {
        return false;
    };
    Role::from_name(role).is_some()
        && secret.len() == SECRET_CHARS
        && secret
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_role_and_hides_the_rest_in_its_hash() {
        let token = new_token(Role::Runner, "r".into(), Millis(0), None);
        assert!(token.secret.starts_with("delta_runner_"));
        assert_eq!(token.secret.len(), "delta_runner_".len() + SECRET_CHARS);
        assert!(looks_like_a_token(&token.secret));
        assert_eq!(token.credential.hash, sha256(token.secret.as_bytes()));
        let again = new_token(Role::Runner, "r".into(), Millis(0), None);
        assert_ne!(token.secret, again.secret);
    }

    #[test]
    fn other_texts_are_not_looked_up() {
        let secret = "x".repeat(43);
        for text in [
            "",
            "Bearer",
            "delta_runner_short",
            &format!("delta_root_{secret}"),
            &format!("delta_user_{secret}y"),
            &format!("delta_user_{}", "é".repeat(43)),
        ] {
            assert!(!looks_like_a_token(text), "{text}");
        }
    }

    #[test]
    fn roles_reach_as_far_as_they_should() {
        let who = |role| Principal {
            id: "x".into(),
            role,
        };
        use Role::{Admin, Runner, User};
        let table: Vec<bool> = [Runner, User, Admin]
            .iter()
            .flat_map(|has| [Runner, User, Admin].map(|needs| who(*has).may(needs)))
            .collect();
        let expected = [
            true, false, false, // a runner
            false, true, false, // a user
            false, true, true, // an admin
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn an_expired_or_revoked_credential_is_nobodys() {
        let mut credential =
            new_token(Role::User, "u".into(), Millis(0), Some(Millis(10))).credential;
        assert!(is_good(&credential, Millis(9)));
        assert!(!is_good(&credential, Millis(10)));
        credential.expires_at = None;
        credential.revoked_at = Some(Millis(5));
        assert!(!is_good(&credential, Millis(6)));
    }
}
