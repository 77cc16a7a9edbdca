//! The lease machine (SM-39 … SM-47): the exclusive, timed right to execute and finalise one
//! attempt. The token itself never enters the core; its SHA-256 does.

use crate::rights::Bond;
use crate::run::Illegal;
use crate::time::{Millis, Span};
use crate::{Digest, Text};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseState {
    /// Issued, not yet acknowledged.
    Granted,
    /// Acknowledged; its holder is expected to heartbeat.
    Active,
    /// Its time to live ran out.
    Expired,
    /// The server took it back.
    Revoked,
    /// Ended by an accepted completion.
    Completed,
    /// Ended by an accepted cancel acknowledgement.
    Canceled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeaseEvent {
    Acknowledged,
    Expired,
    Completed,
    Canceled,
    Revoked,
}

impl LeaseState {
    pub const ALL: [LeaseState; 6] = [
        LeaseState::Granted,
        LeaseState::Active,
        LeaseState::Expired,
        LeaseState::Revoked,
        LeaseState::Completed,
        LeaseState::Canceled,
    ];

    /// The machine.
    pub fn next(self, event: LeaseEvent) -> Result<LeaseState, Illegal<LeaseState, LeaseEvent>> {
        use LeaseEvent as E;
        use LeaseState as S;
        match (self, event) {
            (S::Granted, E::Acknowledged) => Ok(S::Active),
            (S::Granted | S::Active, E::Expired) => Ok(S::Expired),
            (S::Active, E::Completed) => Ok(S::Completed),
            (S::Active, E::Canceled) => Ok(S::Canceled),
            (S::Granted | S::Active, E::Revoked) => Ok(S::Revoked),
            (state, event) => Err(Illegal { state, event }),
        }
    }

    /// Still a right to its attempt.
    pub fn is_live(self) -> bool {
        matches!(self, LeaseState::Granted | LeaseState::Active)
    }

    /// As the specification spells it.
    pub fn name(self) -> &'static str {
        match self {
            LeaseState::Granted => "GRANTED",
            LeaseState::Active => "ACTIVE",
            LeaseState::Expired => "EXPIRED",
            LeaseState::Revoked => "REVOKED",
            LeaseState::Completed => "COMPLETED",
            LeaseState::Canceled => "CANCELED",
        }
    }

    pub fn from_name(name: &str) -> Option<LeaseState> {
        LeaseState::ALL
            .into_iter()
            .find(|state| state.name() == name)
    }
}

impl LeaseEvent {
    pub const ALL: [LeaseEvent; 5] = [
        LeaseEvent::Acknowledged,
        LeaseEvent::Expired,
        LeaseEvent::Completed,
        LeaseEvent::Canceled,
        LeaseEvent::Revoked,
    ];

    pub fn name(self) -> &'static str {
        match self {
            LeaseEvent::Acknowledged => "acknowledged",
            LeaseEvent::Expired => "expired",
            LeaseEvent::Completed => "completed",
            LeaseEvent::Canceled => "canceled",
            LeaseEvent::Revoked => "revoked",
        }
    }

    pub fn from_name(name: &str) -> Option<LeaseEvent> {
        LeaseEvent::ALL
            .into_iter()
            .find(|event| event.name() == name)
    }
}

/// Why a lease was revoked: a closed list (A17). A run that is out of time cancels its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Revocation {
    AckTimeout,
    Rejected,
    /// Its runner asked again, or the grant could not be delivered.
    Replaced,
    Disowned,
    JobTimeout,
    /// A cancel met a lease nobody had acknowledged.
    CanceledUnacknowledged,
    ForcedCancel,
    Operator,
}

impl Revocation {
    pub const ALL: [Revocation; 8] = [
        Revocation::AckTimeout,
        Revocation::Rejected,
        Revocation::Replaced,
        Revocation::Disowned,
        Revocation::JobTimeout,
        Revocation::CanceledUnacknowledged,
        Revocation::ForcedCancel,
        Revocation::Operator,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Revocation::AckTimeout => "ACK_TIMEOUT",
            Revocation::Rejected => "REJECTED",
            Revocation::Replaced => "REPLACED",
            Revocation::Disowned => "DISOWNED",
            Revocation::JobTimeout => "JOB_TIMEOUT",
            Revocation::CanceledUnacknowledged => "CANCELED_UNACKNOWLEDGED",
            Revocation::ForcedCancel => "FORCED_CANCEL",
            Revocation::Operator => "OPERATOR",
        }
    }

    pub fn from_name(name: &str) -> Option<Revocation> {
        Revocation::ALL
            .into_iter()
            .find(|reason| reason.name() == name)
    }
}

/// Which message ended a lease, and its digest: a repeat gets the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Closing {
    pub kind: ClosingKind,
    pub digest: Digest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClosingKind {
    Complete,
    CancelAck,
}

/// One lease. `expires_at` and `heartbeat_seq` move with heartbeats and are no facts; everything
/// else changes by facts alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Rising per job, unique for good: incarnation in the high half, `number` in the low.
    pub epoch: u64,
    /// The n-th lease of the job: what people see.
    pub number: u32,
    pub token: Digest,
    pub state: LeaseState,
    /// Who got it; every message must come from the same principal.
    pub principal: Text,
    pub runner: Text,
    pub granted_at: Millis,
    pub ack_by: Millis,
    pub acknowledged_at: Option<Millis>,
    pub ended_at: Option<Millis>,
    pub revocation: Option<Revocation>,
    pub closing: Option<Closing>,
    /// The time to live each renewal gives.
    pub ttl: Span,
    pub expires_at: Millis,
    pub heartbeat_seq: Option<u64>,
}

impl Lease {
    /// When a live lease ends unless somebody renews it: a grant nobody acknowledged ends with the
    /// wait for the acknowledgement (RP-27).
    pub fn ends_at(&self) -> Millis {
        match self.state {
            LeaseState::Granted => self.expires_at.min(self.ack_by),
            _ => self.expires_at,
        }
    }

    /// Until when a live lease is judged valid: never less than the operator's start-up grace,
    /// which ends at `floor`.
    pub fn judged_until(&self, floor: Millis) -> Millis {
        self.ends_at().max(floor)
    }

    /// Why a message that came at `now` is stale (A38).
    pub fn stale(&self, now: Millis, floor: Millis) -> Option<Stale> {
        Bond::of(self, floor, None).stale(now)
    }
}

/// The epoch of the `number`-th lease of a job.
pub fn epoch(incarnation: u32, number: u32) -> u64 {
    (u64::from(incarnation) << 32) | u64::from(number)
}

/// Why a message on a lease is refused as stale (A37).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stale {
    Expired,
    Revoked,
    /// A newer lease of the same attempt or job exists.
    Superseded,
    /// Not a lease of the caller's: unknown and foreign are answered alike.
    Unknown,
    AlreadyFinal,
}

impl Stale {
    pub fn name(self) -> &'static str {
        match self {
            Stale::Expired => "LEASE_EXPIRED",
            Stale::Revoked => "LEASE_REVOKED",
            Stale::Superseded => "LEASE_SUPERSEDED",
            Stale::Unknown => "UNKNOWN_LEASE",
            Stale::AlreadyFinal => "ALREADY_FINAL",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_are_those_of_the_specification() {
        // SM-39
        let names: Vec<&str> = LeaseState::ALL.iter().map(|s| s.name()).collect();
        assert_eq!(
            names.join(" "),
            "GRANTED ACTIVE EXPIRED REVOKED COMPLETED CANCELED"
        );
    }

    #[test]
    fn complete_and_cancel_ack_need_an_active_lease() {
        // SM-42, SM-43, SM-46
        for state in LeaseState::ALL {
            let active = state == LeaseState::Active;
            assert_eq!(
                state.next(LeaseEvent::Completed).is_ok(),
                active,
                "{state:?}"
            );
            assert_eq!(
                state.next(LeaseEvent::Canceled).is_ok(),
                active,
                "{state:?}"
            );
        }
    }

    #[test]
    fn an_ended_lease_never_moves() {
        // SM-47, I7
        for state in LeaseState::ALL.into_iter().filter(|s| !s.is_live()) {
            for event in LeaseEvent::ALL {
                assert!(state.next(event).is_err(), "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn a_grant_is_judged_by_the_wait_for_its_acknowledgement_too() {
        // RP-27, A38, A40
        let mut lease = crate::world::test_support::lease(LeaseState::Granted);
        (lease.ack_by, lease.expires_at) = (Millis(30), Millis(120));
        let stale = |lease: &Lease, now, floor| lease.stale(Millis(now), Millis(floor));
        assert_eq!(stale(&lease, 29, 0), None);
        assert_eq!(stale(&lease, 30, 0), Some(Stale::Expired));
        assert_eq!(stale(&lease, 30, 31), None, "the start-up grace");
        lease.state = LeaseState::Active;
        assert_eq!(stale(&lease, 119, 0), None);
        assert_eq!(stale(&lease, 120, 0), Some(Stale::Expired));
    }

    #[test]
    fn a_new_incarnation_never_reissues_an_epoch() {
        // A72
        assert!(epoch(2, 1) > epoch(1, u32::MAX));
        assert!(epoch(1, 2) > epoch(1, 1));
    }
}
