//! Why a message changes nothing: the lease is stale, not acknowledged yet, or being canceled.

use serde::{Serialize, Serializer};

use super::{MAX_WORD, Message, token::LeaseToken};
use crate::fields::{Fields, Node};
use crate::invalid::Invalid;

/// The word that travels with a refusal of the protocol (A37).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    LeaseExpired,
    LeaseRevoked,
    LeaseSuperseded,
    UnknownLease,
    AlreadyFinal,
    /// The lease lives but was never acknowledged: send AckLease, then the same message again.
    NotAcked,
    /// A cancel was asked for first, and it won.
    CancelRequested,
    /// CancelAck without a cancel.
    CancelNotRequested,
    /// A word of a newer server. A runner treats what it does not know as final.
    Other(String),
}

impl Reason {
    const KNOWN: [Reason; 8] = [
        Reason::LeaseExpired,
        Reason::LeaseRevoked,
        Reason::LeaseSuperseded,
        Reason::UnknownLease,
        Reason::AlreadyFinal,
        Reason::NotAcked,
        Reason::CancelRequested,
        Reason::CancelNotRequested,
    ];

    pub fn as_str(&self) -> &str {
        match self {
            Reason::LeaseExpired => "LEASE_EXPIRED",
            Reason::LeaseRevoked => "LEASE_REVOKED",
            Reason::LeaseSuperseded => "LEASE_SUPERSEDED",
            Reason::UnknownLease => "UNKNOWN_LEASE",
            Reason::AlreadyFinal => "ALREADY_FINAL",
            Reason::NotAcked => "NOT_ACKED",
            Reason::CancelRequested => "CANCEL_REQUESTED",
            Reason::CancelNotRequested => "CANCEL_NOT_REQUESTED",
            Reason::Other(word) => word,
        }
    }

    pub fn from_text(text: &str) -> Reason {
        let known = Reason::KNOWN
            .into_iter()
            .find(|reason| reason.as_str() == text);
        known.unwrap_or_else(|| Reason::Other(text.to_owned()))
    }

    /// The lease is over for this runner: it stops working and says nothing more.
    pub fn is_stale(&self) -> bool {
        matches!(
            self,
            Reason::LeaseExpired
                | Reason::LeaseRevoked
                | Reason::LeaseSuperseded
                | Reason::UnknownLease
                | Reason::AlreadyFinal
        )
    }

    pub(super) fn read(node: Node<'_>) -> Result<Reason, Invalid> {
        Ok(Reason::from_text(&node.text(MAX_WORD)?))
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The answer to everything but a heartbeat on a lease that is over (RP-44).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub struct StaleLease {
    pub lease_id: LeaseToken,
    pub reason: Reason,
}

impl Message for StaleLease {
    const TYPE: &'static str = "StaleLease";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        Ok(StaleLease {
            lease_id: f.must("lease_id", LeaseToken::read)?,
            reason: f.must("reason", Reason::read)?,
        })
    }
}
