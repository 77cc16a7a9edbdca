//! The attempt machine (SM-23 … SM-35): one try of a job. `STALE` of the specification is the label
//! of a lost execution, not a stored state, so eleven states have edges.
//!
//! Owns which attempt state may follow which, and the row. An ended attempt never moves again: a
//! retry is a new attempt.

use crate::cause::Cause;
use crate::id::AttemptId;
use crate::lease::{Lease, LeaseState, Revocation};
use crate::run::Illegal;
use crate::settings::Settings;
use crate::time::{Millis, Span};
use crate::{Digest, Text};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttemptState {
    /// Exists; waits for other jobs or for its delay.
    Created,
    /// Ready to be leased.
    Queued,
    /// Granted to a runner that has not acknowledged.
    Leased,
    /// Acknowledged; the environment is being prepared.
    Starting,
    /// Work is executing.
    Running,
    /// Logs and artifacts are being uploaded.
    Uploading,
    Succeeded,
    Failed,
    /// A cancel was asked for and not yet answered.
    CancelRequested,
    Canceled,
    TimedOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AttemptEvent {
    /// Its needs are met and its delay is over.
    Published,
    Granted,
    Acknowledged,
    /// First heartbeat.
    Running,
    Uploading,
    Succeeded,
    /// A completion reported failure.
    Failed,
    /// Its lease ended without a result; the same attempt waits for another lease.
    Lost,
    /// Its lease ended without a result and no further lease is allowed.
    GivenUp,
    /// No agent took it in time.
    NoAgent,
    TimedOut,
    CancelRequested,
    Canceled,
    /// Ended before it was ever granted: a need failed, or the run ended.
    Dropped,
    /// Of a rerun: not tried again, the job succeeded in the run before.
    Kept,
    /// Of a rerun: not tried again, the job failed in the run before.
    KeptFailed,
}

impl AttemptState {
    pub const ALL: [AttemptState; 11] = [
        AttemptState::Created,
        AttemptState::Queued,
        AttemptState::Leased,
        AttemptState::Starting,
        AttemptState::Running,
        AttemptState::Uploading,
        AttemptState::Succeeded,
        AttemptState::Failed,
        AttemptState::CancelRequested,
        AttemptState::Canceled,
        AttemptState::TimedOut,
    ];

    /// The machine.
    pub fn next(
        self,
        event: AttemptEvent,
    ) -> Result<AttemptState, Illegal<AttemptState, AttemptEvent>> {
        use AttemptEvent as E;
        use AttemptState as S;
        match (self, event) {
            (S::Created, E::Published) => Ok(S::Queued),
            (S::Queued, E::Granted) => Ok(S::Leased),
            (S::Leased, E::Acknowledged) => Ok(S::Starting),
            (S::Starting, E::Running) => Ok(S::Running),
            (S::Running, E::Uploading) => Ok(S::Uploading),
            (S::Uploading, E::Succeeded) => Ok(S::Succeeded),
            (S::Uploading, E::Failed) => Ok(S::Failed),
            (S::Leased | S::Starting | S::Running | S::Uploading, E::Lost) => Ok(S::Queued),
            (S::Leased | S::Starting | S::Running | S::Uploading, E::GivenUp) => Ok(S::Failed),
            (S::Queued, E::NoAgent) => Ok(S::Failed),
            (S::Starting | S::Running | S::Uploading, E::TimedOut) => Ok(S::TimedOut),
            (
                S::Created | S::Queued | S::Leased | S::Starting | S::Running | S::Uploading,
                E::CancelRequested,
            ) => Ok(S::CancelRequested),
            (S::CancelRequested, E::Canceled) => Ok(S::Canceled),
            (S::Created | S::Queued, E::Dropped) => Ok(S::Canceled),
            (S::Created, E::Kept) => Ok(S::Succeeded),
            (S::Created, E::KeptFailed) => Ok(S::Failed),
            (state, event) => Err(Illegal { state, event }),
        }
    }

    pub fn is_final(self) -> bool {
        use AttemptState as S;
        matches!(self, S::Succeeded | S::Failed | S::Canceled | S::TimedOut)
    }

    /// Held by exactly one live lease.
    pub fn is_leased(self) -> bool {
        use AttemptState as S;
        matches!(
            self,
            S::Leased | S::Starting | S::Running | S::Uploading | S::CancelRequested
        )
    }

    /// As the specification spells it.
    pub fn name(self) -> &'static str {
        match self {
            AttemptState::Created => "CREATED",
            AttemptState::Queued => "QUEUED",
            AttemptState::Leased => "LEASED",
            AttemptState::Starting => "STARTING",
            AttemptState::Running => "RUNNING",
            AttemptState::Uploading => "UPLOADING",
            AttemptState::Succeeded => "SUCCEEDED",
            AttemptState::Failed => "FAILED",
            AttemptState::CancelRequested => "CANCEL_REQUESTED",
            AttemptState::Canceled => "CANCELED",
            AttemptState::TimedOut => "TIMED_OUT",
        }
    }

    pub fn from_name(name: &str) -> Option<AttemptState> {
        AttemptState::ALL
            .into_iter()
            .find(|state| state.name() == name)
    }
}

impl AttemptEvent {
    pub const ALL: [AttemptEvent; 16] = [
        AttemptEvent::Published,
        AttemptEvent::Granted,
        AttemptEvent::Acknowledged,
        AttemptEvent::Running,
        AttemptEvent::Uploading,
        AttemptEvent::Succeeded,
        AttemptEvent::Failed,
        AttemptEvent::Lost,
        AttemptEvent::GivenUp,
        AttemptEvent::NoAgent,
        AttemptEvent::TimedOut,
        AttemptEvent::CancelRequested,
        AttemptEvent::Canceled,
        AttemptEvent::Dropped,
        AttemptEvent::Kept,
        AttemptEvent::KeptFailed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            AttemptEvent::Published => "published",
            AttemptEvent::Granted => "granted",
            AttemptEvent::Acknowledged => "acknowledged",
            AttemptEvent::Running => "running",
            AttemptEvent::Uploading => "uploading",
            AttemptEvent::Succeeded => "succeeded",
            AttemptEvent::Failed => "failed",
            AttemptEvent::Lost => "lost",
            AttemptEvent::GivenUp => "given_up",
            AttemptEvent::NoAgent => "no_agent",
            AttemptEvent::TimedOut => "timed_out",
            AttemptEvent::CancelRequested => "cancel_requested",
            AttemptEvent::Canceled => "canceled",
            AttemptEvent::Dropped => "dropped",
            AttemptEvent::Kept => "kept",
            AttemptEvent::KeptFailed => "kept_failed",
        }
    }

    pub fn from_name(name: &str) -> Option<AttemptEvent> {
        AttemptEvent::ALL
            .into_iter()
            .find(|event| event.name() == name)
    }
}

/// A cancel of one attempt: what the holder must hear, and when the server stops waiting.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttemptCancel {
    pub cause: Cause,
    pub by: Text,
    pub requested_at: Millis,
    /// What the holder is given, counted from when it first hears of it.
    pub grace: Span,
    /// The end whether or not it was heard.
    pub force_at: Millis,
}

/// What a holder reported when it ended its lease. Stored, and only partly obeyed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Report {
    pub exit_code: Option<i64>,
    pub summary: Option<Text>,
    /// References as the holder gave them: JSON text the core does not read.
    pub artifacts: Option<Text>,
    /// What each step came to: JSON text the core does not read.
    pub steps: Option<Text>,
    /// Whether the holder saw that nothing of the work is left; absent when it does not say.
    pub confirmed: Option<bool>,
    /// What was seen at the end: JSON text the core does not read.
    pub evidence: Option<Text>,
    /// What a function answered: JSON text the core does not read.
    pub answer: Option<Text>,
    /// How long a function asked to be left alone before its next attempt (RQ-38).
    pub retry_after: Option<Span>,
    /// Length and hash of the log as the holder saw it.
    pub log: Option<(u64, Digest)>,
    /// Bytes that were to be in the log and that the holder dropped.
    pub log_dropped: Option<u64>,
    pub started_at: Option<Millis>,
    pub finished_at: Option<Millis>,
}

/// Best-effort progress; never decides anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    pub percent: Option<u8>,
    pub step_index: Option<u32>,
    pub current_step: Option<Text>,
    pub message: Option<Text>,
    /// Log bytes the holder says it handed over.
    pub log_bytes: Option<u64>,
}

/// One attempt with its latest lease. Earlier leases are kept apart; only their tokens matter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub id: AttemptId,
    pub state: AttemptState,
    pub created_at: Millis,
    /// Not before this may it be queued.
    pub not_before: Millis,
    pub queued_at: Option<Millis>,
    /// Smaller is sooner: see [`order_key`].
    pub order_key: i64,
    pub ended_at: Option<Millis>,
    pub cause: Option<Cause>,
    pub losses: u32,
    pub dispatches: u32,
    pub cancel: Option<AttemptCancel>,
    pub report: Option<Report>,
    pub lease: Option<Lease>,
    /// Leases issued for the job so far, this attempt's included.
    pub lease_number: u32,
    /// When the holder first heard of the cancel. Moves with heartbeats; no fact.
    pub cancel_told_at: Option<Millis>,
    /// Moves with heartbeats; no fact.
    pub progress: Progress,
}

impl Attempt {
    /// The lease, while it is a right to this attempt.
    pub fn live_lease(&self) -> Option<&Lease> {
        self.lease.as_ref().filter(|lease| lease.state.is_live())
    }

    /// A retry, or a first attempt with a delay: while it is CREATED it waits for its moment. Any
    /// other first attempt waits for its needs.
    pub fn waits_for_a_moment(&self) -> bool {
        self.id.index > 1 || self.not_before > self.created_at
    }

    /// When the server stops waiting for the holder to acknowledge a cancel.
    pub fn cancel_deadline(&self) -> Option<Millis> {
        let cancel = self.cancel.as_ref()?;
        let told = self.cancel_told_at.map(|at| at + cancel.grace);
        Some(told.map_or(cancel.force_at, |at| at.min(cancel.force_at)))
    }

    /// What the holder of a lease that is over may still hand over of its log, and nothing else:
    /// the rest of what it declared, so that no result has to wait for its log, and after a
    /// forced cancel what is known of a job that would not stop.
    pub fn late_log(&self, settings: &Settings) -> Option<LateLog> {
        let lease = self.lease.as_ref()?;
        let ended_at = lease.ended_at?;
        if lease.revocation == Some(Revocation::ForcedCancel) {
            return Some(LateLog {
                until: ended_at + settings.late_log,
                up_to: None,
            });
        }
        let its_own_end = matches!(lease.state, LeaseState::Completed | LeaseState::Canceled);
        let (length, _) = self.report.as_ref().filter(|_| its_own_end)?.log?;
        Some(LateLog {
            until: ended_at + DECLARED_LOG,
            up_to: Some(length),
        })
    }
}

/// How long after its end a holder may hand over the rest of the log it declared.
pub const DECLARED_LOG: Span = Span::secs(600);

/// A right to a log that outlives its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateLog {
    pub until: Millis,
    /// No byte beyond this one; as many as there are when absent.
    pub up_to: Option<u64>,
}

/// The queue's order (A64): earlier first, each point of priority worth a minute, and each place
/// inside the run worth a second, so that a run of a thousand jobs does not starve a run of one.
pub fn order_key(queued_at: Millis, priority: i32, rank: u32) -> i64 {
    queued_at.0 - i64::from(priority) * 60_000 + i64::from(rank) * 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_are_those_of_the_specification() {
        // SM-23; STALE is a label, A59.
        let names: Vec<&str> = AttemptState::ALL.iter().map(|s| s.name()).collect();
        assert_eq!(
            names.join(" "),
            "CREATED QUEUED LEASED STARTING RUNNING UPLOADING SUCCEEDED FAILED CANCEL_REQUESTED \
             CANCELED TIMED_OUT"
        );
    }

    #[test]
    fn an_ended_attempt_never_moves() {
        // SM-35, I7, A7, A8
        for state in AttemptState::ALL.into_iter().filter(|s| s.is_final()) {
            for event in AttemptEvent::ALL {
                assert!(state.next(event).is_err(), "{state:?} {event:?}");
            }
        }
    }

    #[test]
    fn a_large_run_does_not_starve_a_small_one() {
        // A64
        let thousandth = order_key(Millis(0), 0, 999);
        let single = order_key(Millis(10_000), 0, 0);
        assert!(single < thousandth);
        assert!(order_key(Millis(50_000), 1, 0) < order_key(Millis(0), 0, 0));
    }

    #[test]
    fn the_cancel_deadline_counts_from_the_first_delivery() {
        // A70
        let mut attempt = crate::world::test_support::attempt();
        attempt.cancel = Some(AttemptCancel {
            cause: Cause::CanceledByUser,
            by: "ann".into(),
            requested_at: Millis(0),
            grace: Span::secs(30),
            force_at: Millis(50_000),
        });
        assert_eq!(attempt.cancel_deadline(), Some(Millis(50_000)));
        attempt.cancel_told_at = Some(Millis(5_000));
        assert_eq!(attempt.cancel_deadline(), Some(Millis(35_000)));
        attempt.cancel_told_at = Some(Millis(30_000));
        assert_eq!(attempt.cancel_deadline(), Some(Millis(50_000)));
    }

    #[test]
    fn a_forced_cancel_leaves_time_for_the_log() {
        // A42
        let mut attempt = crate::world::test_support::attempt();
        let settings = Settings::recommended();
        assert_eq!(attempt.late_log(&settings), None);
        for why in Revocation::ALL {
            let mut lease = crate::world::test_support::lease(crate::LeaseState::Revoked);
            (lease.revocation, lease.ended_at) = (Some(why), Some(Millis(1_000)));
            attempt.lease = Some(lease);
            let late = (why == Revocation::ForcedCancel).then_some(LateLog {
                until: Millis(61_000),
                up_to: None,
            });
            assert_eq!(attempt.late_log(&settings), late, "{why:?}");
        }
    }

    #[test]
    fn the_rest_of_a_declared_log_may_come_later() {
        // I25: up to the length that was declared, and only for the lease that declared it.
        let mut attempt = crate::world::test_support::attempt();
        let settings = Settings::recommended();
        let declared = Report {
            log: Some((7, [0; 32])),
            ..Report::default()
        };
        for state in LeaseState::ALL {
            let mut lease = crate::world::test_support::lease(state);
            lease.ended_at = (!state.is_live()).then_some(Millis(1_000));
            attempt.lease = Some(lease);
            attempt.report = Some(Report::default());
            assert_eq!(attempt.late_log(&settings), None, "{state:?}");
            attempt.report = Some(declared.clone());
            let own = matches!(state, LeaseState::Completed | LeaseState::Canceled);
            let late = own.then_some(LateLog {
                until: Millis(601_000),
                up_to: Some(7),
            });
            assert_eq!(attempt.late_log(&settings), late, "{state:?}");
        }
    }
}
