//! Who a request comes from, and whether that is enough: a credential that is good, of the role
//! that is needed. Both protocols ask here, and say the refusal in their own words.
//!
//! What the store says about its troubles is for the log: nobody knows yet who asks.

use axum::http::request::Parts;
use delta_store::read::Role;

use super::{Principal, Standing, Unknown};
use crate::app::App;
use crate::audit;

/// Why somebody is not let in.
#[derive(Debug, thiserror::Error)]
pub enum NotAdmitted {
    #[error("a valid bearer token is needed")]
    Unauthenticated,
    #[error(
        "this needs a token of role {}, and yours is a {} token",
        .needed.name(),
        .has.name()
    )]
    Forbidden { needed: Role, has: Role },
    /// Nobody can say who it is just now; the words are for anybody.
    #[error("{0}")]
    NotNow(&'static str),
}

impl From<Unknown> for NotAdmitted {
    fn from(unknown: Unknown) -> NotAdmitted {
        NotAdmitted::NotNow(match &unknown {
            Unknown::Flood => "too many callers are being looked up; try again",
            Unknown::Issuer(_) => "the keys of the token's issuer are not to be had; try again",
            Unknown::Store(error) => {
                tracing::warn!(%error, "a token could not be looked up");
                "the store does not answer; try again"
            }
        })
    }
}

impl App {
    /// Who calls, whatever its role.
    pub async fn caller(&self, request: &Parts) -> Result<Principal, NotAdmitted> {
        let now = self.writer.now();
        let who = self
            .identity
            .caller(&request.headers, &request.extensions, now);
        who.await?.ok_or_else(|| self.unauthenticated())
    }

    /// Who calls, if it has this role.
    pub async fn caller_with(&self, role: Role, request: &Parts) -> Result<Principal, NotAdmitted> {
        let who = self.caller(request).await?;
        if !who.may(role) {
            audit::forbidden(&who, role.name());
            return Err(NotAdmitted::Forbidden {
                needed: role,
                has: who.role,
            });
        }
        Ok(who)
    }

    /// Looks again at somebody whose request was parked: its credential may be revoked by now.
    pub async fn still_admitted(&self, who: &Principal) -> Result<(), NotAdmitted> {
        match self.identity.recheck(who, self.writer.now()).await? {
            Standing::Good => Ok(()),
            ended => {
                audit::ended(who, ended.why());
                Err(self.unauthenticated())
            }
        }
    }

    /// Whoever shows nothing that is good is counted.
    pub fn unauthenticated(&self) -> NotAdmitted {
        self.metrics().unauthenticated.inc();
        NotAdmitted::Unauthenticated
    }
}
