//! Who is asking (D14): bearer tokens with roles, certificates of a trusted authority, tokens of an
//! OIDC issuer, and the local administrator of the admin socket.
//!
//! Owns credentials from their making to their revocation. A request is answered 401 without
//! saying whether its token is unknown, expired or revoked. What was good once is judged again by
//! [`Identity::recheck`], for whatever outlives a request.

pub mod admission;
mod look_up;
pub mod oidc;
pub mod peer;
pub mod scope;
#[cfg(test)]
mod tests;
mod token;

use std::fmt;
use std::sync::Arc;

use axum::http::{Extensions, HeaderMap, header};
use delta_core::{Digest, Millis, Text};
use delta_store::StoreError;
use delta_store::read::{Credential, Reader, Role, Scope};

pub use token::{NewToken, new_agent_id, new_token, vouched_row};

use self::look_up::{LookUp, Vouched};
use self::oidc::Oidc;
use self::peer::{ClientTrust, Peer};
use self::token::looks_like_a_token;
use crate::writer::sha256;

/// Name of whoever comes through the admin socket of a server.
pub const LOCAL_ADMIN: &str = "local-admin";

/// How the ids of those begin who have no token of ours.
pub const CERTIFICATE: &str = "cert:";
pub const OIDC: &str = "oidc:";

/// Who a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The credential's public id: what leases are bound to and records name.
    pub id: Text,
    pub role: Role,
    /// What it was granted; what an agent says of itself only narrows it ([`scope`]).
    pub scope: Arc<Scope>,
    /// The one agent that it may be.
    pub agent: Option<Text>,
    pub expires_at: Option<Millis>,
    proof: Proof,
}

/// What is looked at when a principal is judged again.
#[derive(Clone)]
enum Proof {
    /// The socket itself.
    Socket,
    /// The row with this hash.
    Token(Digest),
    /// The authorities, and a row that may take it away.
    Certificate(Arc<Peer>),
    /// Its own time, and a row that may take it away.
    Issuer,
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Proof::Socket => "socket",
            Proof::Token(_) => "token",
            Proof::Certificate(_) => "certificate",
            Proof::Issuer => "issuer",
        })
    }
}

/// Two proofs are equal when they are of one kind; whose each is says the id.
impl PartialEq for Proof {
    fn eq(&self, other: &Proof) -> bool {
        match (self, other) {
            (Proof::Token(one), Proof::Token(other)) => one == other,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl Eq for Proof {}

impl Principal {
    pub fn local_admin() -> Principal {
        Principal {
            id: LOCAL_ADMIN.into(),
            role: Role::Admin,
            scope: Arc::new(Scope::least()),
            agent: None,
            expires_at: None,
            proof: Proof::Socket,
        }
    }

    /// Whoever comes through the admin socket, under the name that records have of them.
    pub fn of_socket(name: &str) -> Principal {
        Principal {
            id: name.into(),
            ..Principal::local_admin()
        }
    }

    fn of_token(credential: &Credential) -> Principal {
        Principal {
            id: credential.id.clone(),
            role: credential.role,
            scope: Arc::new(credential.scope.clone()),
            agent: credential.agent.clone(),
            expires_at: credential.expires_at,
            proof: Proof::Token(credential.hash),
        }
    }

    /// Of somebody others vouch for; the row, where there is one, says what is granted.
    fn of_peer(id: Text, peer: &Arc<Peer>, row: Option<&Credential>) -> Principal {
        let scope = row.map_or_else(Scope::least, |row| row.scope.clone());
        let ends = row.and_then(|row| row.expires_at);
        Principal {
            id,
            role: Role::Runner,
            scope: Arc::new(scope),
            agent: row.and_then(|row| row.agent.clone()),
            expires_at: Some(ends.map_or(peer.expires_at(), |at| at.min(peer.expires_at()))),
            proof: Proof::Certificate(peer.clone()),
        }
    }

    /// Runners speak the Runner Protocol and nothing else, people everything else; administrators
    /// are people with keys. An enrolment is exchanged and does nothing more.
    pub fn may(&self, needed: Role) -> bool {
        match needed {
            Role::Runner => self.role == Role::Runner,
            Role::User => matches!(self.role, Role::User | Role::Admin),
            Role::Admin => self.role == Role::Admin,
            Role::Enrolment => self.role == Role::Enrolment,
        }
    }

    /// Whether it may speak as this agent, or as a slot of it (`AGENT/1`); any agent, where it is
    /// bound to none (A26).
    pub fn may_be(&self, agent_or_slot: &str) -> bool {
        let Some(agent) = &self.agent else {
            return true;
        };
        let rest = agent_or_slot.strip_prefix(&**agent);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// What has become of somebody who was good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Good,
    /// Revoked, or gone, or of an authority that is trusted no more.
    Revoked,
    Expired,
    /// It grants something else than it did: come again to be judged by that.
    Changed,
}

impl Standing {
    /// In words, for whoever is sent away.
    pub fn why(self) -> &'static str {
        match self {
            Standing::Good => "the credential is good",
            Standing::Revoked => "the credential was revoked",
            Standing::Expired => "the credential has expired",
            Standing::Changed => "the credential was changed; connect again",
        }
    }
}

/// Why nobody knows who it is.
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    #[error("too many tokens are being looked up")]
    Flood,
    #[error("the keys of the issuer {0} are not to be had")]
    Issuer(Text),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Knows who is asking, and remembers it for a moment.
pub struct Identity {
    look_up: LookUp,
    trust: Arc<ClientTrust>,
    oidc: Oidc,
}

impl Identity {
    pub fn new(reader: Arc<dyn Reader>, trust: Arc<ClientTrust>, oidc: Oidc) -> Identity {
        Identity {
            look_up: LookUp::new(reader),
            trust,
            oidc,
        }
    }

    /// Whether it is worth asking who this is: nothing is read of a request that is nobody's.
    pub fn could_be_somebody(&self, headers: &HeaderMap, extensions: &Extensions) -> bool {
        match bearer(headers) {
            Some(token) => looks_like_a_token(token) || self.oidc.could_be(token),
            None => {
                extensions.get::<Principal>().is_some() || extensions.get::<Arc<Peer>>().is_some()
            }
        }
    }

    /// Who sends this: by its bearer token, otherwise by what its connection says. Nobody, when
    /// what it shows is unknown, expired or revoked.
    pub async fn caller(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
        now: Millis,
    ) -> Result<Option<Principal>, Unknown> {
        if let Some(token) = bearer(headers) {
            return self.whose(token, now).await;
        }
        // Only the admin socket puts a principal there.
        if let Some(admin) = extensions.get::<Principal>() {
            return Ok(Some(admin.clone()));
        }
        match extensions.get::<Arc<Peer>>() {
            Some(peer) => self.peer(peer, now).await,
            None => Ok(None),
        }
    }

    /// Whose token this is.
    pub async fn whose(&self, token: &str, now: Millis) -> Result<Option<Principal>, Unknown> {
        if looks_like_a_token(token) {
            let hash = sha256(token.as_bytes());
            let credential = self.look_up.find(hash, Vouched::No).await?;
            return Ok(credential
                .filter(|credential| is_good(credential, now))
                .map(|credential| Principal::of_token(&credential)));
        }
        let Some(who) = self.oidc.verify(token, now).await? else {
            return Ok(None);
        };
        let row = self.row(&who.id).await?;
        Ok(row.is_none_or(|row| is_good(&row, now)).then_some(who))
    }

    async fn peer(&self, peer: &Arc<Peer>, now: Millis) -> Result<Option<Principal>, Unknown> {
        if self.trust.still(peer, now).is_err() {
            return Ok(None);
        }
        let id = certificate_id(peer.name());
        let row = self.row(&id).await?;
        if row.as_ref().is_some_and(|row| !is_good(row, now)) {
            return Ok(None);
        }
        Ok(Some(Principal::of_peer(id, peer, row.as_deref())))
    }

    /// The row of somebody others vouch for.
    async fn row(&self, id: &str) -> Result<Option<Arc<Credential>>, Unknown> {
        self.look_up.find(sha256(id.as_bytes()), Vouched::Yes).await
    }

    /// Judges again somebody who was good: what a long stream asks now and then. An error says
    /// nothing about the credential.
    pub async fn recheck(&self, who: &Principal, now: Millis) -> Result<Standing, Unknown> {
        if who.expires_at.is_some_and(|at| now >= at) {
            return Ok(Standing::Expired);
        }
        let (row, again) = match &who.proof {
            Proof::Socket => return Ok(Standing::Good),
            Proof::Token(hash) => {
                let Some(row) = self.look_up.find(*hash, Vouched::No).await? else {
                    return Ok(Standing::Revoked);
                };
                let again = Principal::of_token(&row);
                (Some(row), again)
            }
            Proof::Certificate(peer) => {
                if self.trust.still(peer, now).is_err() {
                    return Ok(Standing::Revoked);
                }
                let row = self.row(&who.id).await?;
                let again = Principal::of_peer(who.id.clone(), peer, row.as_deref());
                (row, again)
            }
            Proof::Issuer => (self.row(&who.id).await?, who.clone()),
        };
        Ok(match row {
            Some(row) if row.revoked_at.is_some() => Standing::Revoked,
            Some(row) if !is_good(&row, now) => Standing::Expired,
            _ if again != *who => Standing::Changed,
            _ => Standing::Good,
        })
    }

    /// A credential of this server changed: believe nothing remembered. Who was known is still
    /// looked up before strangers.
    pub fn forget(&self) {
        self.look_up.forget();
    }
}

/// The id of whoever shows a certificate of this name.
pub fn certificate_id(name: &str) -> Text {
    format!("{CERTIFICATE}{name}").into()
}

pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn is_good(credential: &Credential, now: Millis) -> bool {
    credential.revoked_at.is_none() && credential.expires_at.is_none_or(|at| now < at)
}
