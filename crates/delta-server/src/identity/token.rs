//! Tokens of our own: how they are made, and what can be one at a glance.
//!
//! The token is shown once and never stored: its hash is.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use delta_core::{Millis, Text};
use delta_store::read::{Credential, Role, Scope};
use delta_wire::api::tokens::MAX_AGENT_ID;

use crate::writer::{random, sha256};

/// Bytes of the secret part, and its characters in base64url.
pub const SECRET_BYTES: usize = 32;
pub const SECRET_CHARS: usize = 43;

/// A new token: the secret, shown once, and the row that stays.
pub struct NewToken {
    pub secret: String,
    pub credential: Credential,
}

pub fn new_token(role: Role, name: Text, now: Millis, expires_at: Option<Millis>) -> NewToken {
    let secret = URL_SAFE_NO_PAD.encode(random::<SECRET_BYTES>());
    let secret = format!("delta_{}_{secret}", role.name());
    let id = format!("tok_{:016x}", u64::from_be_bytes(random()));
    let scope = match role {
        Role::Runner => Scope::any_label(),
        Role::User | Role::Admin | Role::Enrolment => Scope::least(),
    };
    NewToken {
        credential: Credential {
            hash: sha256(secret.as_bytes()),
            expires_at,
            ..row(id.into(), name, role, scope, now)
        },
        secret,
    }
}

/// The row of somebody whom others vouch for: a certificate authority, an OIDC issuer.
pub fn vouched_row(id: Text, name: Text, scope: Scope, now: Millis) -> Credential {
    row(id, name, Role::Runner, scope, now)
}

fn row(id: Text, name: Text, role: Role, scope: Scope, now: Millis) -> Credential {
    Credential {
        hash: sha256(id.as_bytes()),
        id,
        name,
        role,
        created_at: now,
        expires_at: None,
        revoked_at: None,
        scope,
        agent: None,
        used_at: None,
        used_by: None,
        reused_at: None,
    }
}

/// A fresh id for an agent that people call `name`.
pub fn new_agent_id(name: &str) -> Text {
    // The number must fit behind it.
    let name: String = name.chars().take(MAX_AGENT_ID - 9).collect();
    format!("{name}-{:08x}", u32::from_be_bytes(random())).into()
}

/// Spares the store a look for what cannot be one.
pub fn looks_like_a_token(text: &str) -> bool {
    let Some((role, secret)) = text
        .strip_prefix("delta_")
        .and_then(|rest| rest.split_once('_'))
    else {
        return false;
    };
    let mut bytes = [0; SECRET_BYTES];
    Role::from_name(role).is_some()
        && secret.len() == SECRET_CHARS
        && URL_SAFE_NO_PAD.decode_slice(secret, &mut bytes) == Ok(SECRET_BYTES)
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
            "cert:agent-1",
        ] {
            assert!(!looks_like_a_token(text), "{text}");
        }
    }
}
