//! Words of the core in the words of the wire, and places of leases the other way round.
//!
//! Whole messages become commands at the server's rim, where principal and hash are known; here is
//! only what has one meaning everywhere.

use delta_core::command::Status as CoreStatus;
use delta_core::lease::Stale;
use delta_core::{LeaseKey, RunId};

use crate::runner::{CompleteStatus, LeaseToken, Locator, Reason};
use crate::seconds::Seconds;
use crate::states::{AttemptState, JobState, LeaseState, RunOutcome, RunState};
use crate::time::Millis;

impl From<delta_core::Millis> for Millis {
    fn from(at: delta_core::Millis) -> Self {
        Millis(at.0)
    }
}

impl From<Millis> for delta_core::Millis {
    fn from(at: Millis) -> Self {
        delta_core::Millis(at.0)
    }
}

/// What is left of a span on the wire: never 0.
impl From<delta_core::Span> for Seconds {
    fn from(span: delta_core::Span) -> Self {
        Seconds::remaining(span.0)
    }
}

impl From<Seconds> for delta_core::Span {
    fn from(seconds: Seconds) -> Self {
        delta_core::Span(i64::try_from(seconds.as_millis()).unwrap_or(i64::MAX))
    }
}

/// Two enums with the same variants.
macro_rules! same_words {
    ($from:ty => $to:ident { $($variant:ident)+ }) => {
        impl From<$from> for $to {
            fn from(state: $from) -> Self {
                match state { $(<$from>::$variant => $to::$variant),+ }
            }
        }
    };
}

same_words!(delta_core::RunState => RunState {
    Created Planning PlanFailed Queued Running CancelRequested Success Failed Canceled Timeout
    Reported
});
same_words!(delta_core::AttemptState => AttemptState {
    Created Queued Leased Starting Running Uploading Succeeded Failed CancelRequested Canceled
    TimedOut
});
same_words!(delta_core::LeaseState => LeaseState {
    Granted Active Expired Revoked Completed Canceled
});
same_words!(delta_core::Resolution => JobState { Succeeded Failed Canceled });
same_words!(CompleteStatus => CoreStatus { Succeeded Failed TimedOut });

impl From<Stale> for Reason {
    fn from(stale: Stale) -> Self {
        match stale {
            Stale::Expired => Reason::LeaseExpired,
            Stale::Revoked => Reason::LeaseRevoked,
            Stale::Superseded => Reason::LeaseSuperseded,
            Stale::Unknown => Reason::UnknownLease,
            Stale::AlreadyFinal => Reason::AlreadyFinal,
        }
    }
}

impl RunOutcome {
    /// The outcome a run that is in this state has; REPORTED alone does not tell.
    pub fn of_state(state: delta_core::RunState) -> Option<RunOutcome> {
        match state {
            delta_core::RunState::Success => Some(RunOutcome::Success),
            delta_core::RunState::Failed => Some(RunOutcome::Failed),
            delta_core::RunState::Canceled => Some(RunOutcome::Canceled),
            delta_core::RunState::Timeout => Some(RunOutcome::Timeout),
            _ => None,
        }
    }
}

impl JobState {
    /// A job that is not resolved mirrors its current attempt (SM-22).
    pub fn of(
        resolution: Option<delta_core::Resolution>,
        current: delta_core::AttemptState,
    ) -> JobState {
        use delta_core::AttemptState as A;
        match (resolution, current) {
            (Some(resolution), _) => resolution.into(),
            (None, A::Created) => JobState::Created,
            (None, A::Queued) => JobState::Queued,
            (None, A::Leased) => JobState::Leased,
            (None, A::Starting) => JobState::Starting,
            (None, A::Running) => JobState::Running,
            (None, A::Uploading) => JobState::Uploading,
            (None, A::CancelRequested) => JobState::CancelRequested,
            (None, A::Succeeded) => JobState::Succeeded,
            (None, A::Failed | A::TimedOut) => JobState::Failed,
            (None, A::Canceled) => JobState::Canceled,
        }
    }
}

impl From<Locator> for LeaseKey {
    fn from(at: Locator) -> Self {
        RunId(u128::from_be_bytes(at.run))
            .job(at.job)
            .attempt(at.attempt)
            .lease(at.epoch)
    }
}

impl LeaseToken {
    /// A fresh token for a lease.
    pub fn for_lease(key: LeaseKey, random: [u8; 32]) -> LeaseToken {
        let job = key.attempt.job;
        LeaseToken::mint(
            job.run.0.to_be_bytes(),
            job.n,
            key.attempt.index,
            key.epoch,
            random,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_and_wire_spell_every_state_alike() {
        for state in delta_core::RunState::ALL {
            assert_eq!(RunState::from(state).as_str(), state.name());
        }
        for state in delta_core::AttemptState::ALL {
            assert_eq!(AttemptState::from(state).as_str(), state.name());
        }
        for state in delta_core::LeaseState::ALL {
            assert_eq!(LeaseState::from(state).as_str(), state.name());
        }
    }

    #[test]
    fn a_token_leads_back_to_its_lease() {
        let key = RunId(0x0197_f3c4_a1b2_7c3d_9e8f_0a1b_2c3d_4e5f)
            .job(7)
            .attempt(2)
            .lease(1 << 33);
        let token = LeaseToken::for_lease(key, [3; 32]);
        assert_eq!(token.locator().map(LeaseKey::from), Some(key));
    }

    #[test]
    fn what_is_left_of_a_span_is_never_zero() {
        assert_eq!(Seconds::from(delta_core::Span(0)).as_millis(), 1);
        assert_eq!(
            delta_core::Span::from(Seconds::from_secs(2)),
            delta_core::Span::secs(2)
        );
    }
}
