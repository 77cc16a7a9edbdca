//! Credentials as rows: who may come in, as what, and for which part of the work.
//!
//! Owns their fields and how a scope is spelled in a column. It holds the hash of a secret, never
//! the secret.

use std::collections::BTreeSet;

use delta_core::{Digest, Millis, Text};

use crate::StoreError;

/// The pool of whoever was given no other.
pub const DEFAULT_POOL: &str = "default";

/// Among labels: any.
const ANY: &str = "*";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Runner,
    User,
    Admin,
    /// Is exchanged, once, for the credential of one new agent; good for nothing else.
    Enrolment,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Runner, Role::User, Role::Admin, Role::Enrolment];

    pub fn name(self) -> &'static str {
        match self {
            Role::Runner => "runner",
            Role::User => "user",
            Role::Admin => "admin",
            Role::Enrolment => "enrolment",
        }
    }

    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Which labels an agent may claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Labels {
    Any,
    Only(BTreeSet<Text>),
}

/// What whoever made a credential grants to an agent. What the agent says only narrows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    pub pool: Text,
    pub zones: BTreeSet<Text>,
    pub labels: Labels,
}

impl Scope {
    /// The default pool, no zone, no label: for those who were granted nothing.
    pub fn least() -> Scope {
        Scope {
            pool: DEFAULT_POOL.into(),
            zones: BTreeSet::new(),
            labels: Labels::Only(BTreeSet::new()),
        }
    }

    /// The default pool, no zone, any label: a runner token of which nothing else was said.
    pub fn any_label() -> Scope {
        Scope {
            labels: Labels::Any,
            ..Scope::least()
        }
    }

    pub(crate) fn zones_column(&self) -> String {
        join(&self.zones)
    }

    pub(crate) fn labels_column(&self) -> String {
        match &self.labels {
            Labels::Any => ANY.into(),
            Labels::Only(labels) => join(labels),
        }
    }

    pub(crate) fn from_columns(pool: Text, zones: &str, labels: &str) -> Scope {
        Scope {
            pool,
            zones: split(zones),
            labels: match labels {
                ANY => Labels::Any,
                labels => Labels::Only(split(labels)),
            },
        }
    }
}

fn join(words: &BTreeSet<Text>) -> String {
    let words: Vec<&str> = words.iter().map(|word| &**word).collect();
    words.join(" ")
}

fn split(words: &str) -> BTreeSet<Text> {
    words.split_ascii_whitespace().map(Text::from).collect()
}

/// A credential's row: of a bearer token, or of somebody whom a certificate authority or an OIDC
/// issuer vouches for.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Its public name, `tok_…`, `cert:…` or `oidc:…`: what lists show and revocation takes.
    pub id: Text,
    pub name: Text,
    pub role: Role,
    /// Of the token; of the id, where there is no token.
    pub hash: Digest,
    pub created_at: Millis,
    pub expires_at: Option<Millis>,
    pub revoked_at: Option<Millis>,
    pub scope: Scope,
    /// The one agent that may use it.
    pub agent: Option<Text>,
    /// Of an enrolment: when it was used, for which agent, and when it was last shown again.
    pub used_at: Option<Millis>,
    pub used_by: Option<Text>,
    pub reused_at: Option<Millis>,
}

/// Without the hash: it is as good as the token for whoever can write to the store.
impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential")
            .field("id", &self.id)
            .field("name", &self.name)
            .field("role", &self.role)
            .field("created_at", &self.created_at)
            .field("expires_at", &self.expires_at)
            .field("revoked_at", &self.revoked_at)
            .field("scope", &self.scope)
            .field("agent", &self.agent)
            .field("used_at", &self.used_at)
            .field("used_by", &self.used_by)
            .field("reused_at", &self.reused_at)
            .finish_non_exhaustive()
    }
}

impl Credential {
    /// Whether this enrolment may be exchanged now.
    pub fn may_enrol(&self, now: Millis) -> bool {
        self.role == Role::Enrolment
            && self.used_at.is_none()
            && self.revoked_at.is_none()
            && self.expires_at.is_none_or(|at| now < at)
    }
}

/// Credentials, read.
pub trait CredentialReader {
    fn credential(&self, hash: &Digest) -> Result<Option<Credential>, StoreError>;
    fn credentials(&self) -> Result<Vec<Credential>, StoreError>;
}

/// Credentials, written. Beside the writer: who asks is known before there is a command, and a
/// command carries the name of whoever it came from, not the credential.
pub trait CredentialTable {
    /// Writes it, or writes it anew; one that was revoked or used stays so.
    fn put_credential(&self, credential: &Credential) -> Result<(), StoreError>;

    /// Marks it revoked; false when there is none of that id.
    fn revoke_credential(&self, id: &str, at: Millis) -> Result<bool, StoreError>;

    /// Uses the enrolment `id` up and writes the credential it is exchanged for, both or neither;
    /// false, with a note of its reuse, when it is not good any more. Of several callers at once,
    /// one gets true.
    fn exchange_enrolment(
        &self,
        id: &str,
        at: Millis,
        fresh: &Credential,
    ) -> Result<bool, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_survives_its_columns() {
        let set = |words: &[&str]| words.iter().map(|word| Text::from(*word)).collect();
        let scopes = [
            Scope::least(),
            Scope::any_label(),
            Scope {
                pool: "gpu".into(),
                zones: set(&["eu", "us"]),
                labels: Labels::Only(set(&["gpu", "team=a"])),
            },
        ];
        for scope in scopes {
            let (zones, labels) = (scope.zones_column(), scope.labels_column());
            let read = Scope::from_columns(scope.pool.clone(), &zones, &labels);
            assert_eq!(read, scope);
        }
    }
}
