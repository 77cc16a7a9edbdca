//! States, spelled exactly as the State Machines document spells them.
//!
//! Runs say SUCCESS and TIMEOUT where attempts say SUCCEEDED and TIMED_OUT: that is the
//! specification's own difference, kept.

/// An enum whose variants travel as fixed words.
macro_rules! spelled {
    ($(#[doc = $about:literal])* $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[doc = $about])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize,
            serde::Deserialize,
        )]
        pub enum $name {
            $(#[serde(rename = $text)] $variant),+
        }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }

            pub fn from_text(text: &str) -> Option<Self> {
                match text { $($text => Some($name::$variant),)+ _ => None }
            }
        }

        // Of the words themselves: a derived schema does not see through this macro, and would
        // list the names of the variants.
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                let about = concat!($($about, "\n"),*);
                crate::openapi::words(about, $name::ALL.iter().map(|it| it.as_str()))
            }
        }

        impl utoipa::ToSchema for $name {}

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

pub(crate) use spelled;

spelled! {
    /// Where a run is.
    RunState {
        Created = "CREATED",
        Planning = "PLANNING",
        PlanFailed = "PLAN_FAILED",
        Queued = "QUEUED",
        Running = "RUNNING",
        CancelRequested = "CANCEL_REQUESTED",
        Success = "SUCCESS",
        Failed = "FAILED",
        Canceled = "CANCELED",
        Timeout = "TIMEOUT",
        Reported = "REPORTED",
    }
}

spelled! {
    /// How a run ended. It stays when the state has gone on to REPORTED.
    RunOutcome {
        Success = "SUCCESS",
        Failed = "FAILED",
        Canceled = "CANCELED",
        Timeout = "TIMEOUT",
    }
}

spelled! {
    /// Where an attempt is. STALE is only ever a label of a lost execution.
    AttemptState {
        Created = "CREATED",
        Queued = "QUEUED",
        Leased = "LEASED",
        Starting = "STARTING",
        Running = "RUNNING",
        Uploading = "UPLOADING",
        Succeeded = "SUCCEEDED",
        Failed = "FAILED",
        CancelRequested = "CANCEL_REQUESTED",
        Canceled = "CANCELED",
        TimedOut = "TIMED_OUT",
        Stale = "STALE",
    }
}

spelled! {
    /// Where a job is: its current attempt while one is live, its resolution after (SM-22). A job
    /// whose last attempt timed out is FAILED.
    JobState {
        Created = "CREATED",
        Queued = "QUEUED",
        Leased = "LEASED",
        Starting = "STARTING",
        Running = "RUNNING",
        Uploading = "UPLOADING",
        Succeeded = "SUCCEEDED",
        Failed = "FAILED",
        CancelRequested = "CANCEL_REQUESTED",
        Canceled = "CANCELED",
    }
}

spelled! {
    /// Where a lease is.
    LeaseState {
        Granted = "GRANTED",
        Active = "ACTIVE",
        Expired = "EXPIRED",
        Revoked = "REVOKED",
        Completed = "COMPLETED",
        Canceled = "CANCELED",
    }
}

impl RunState {
    /// Nothing that happens to the run's jobs changes its outcome any more.
    pub fn is_final(self) -> bool {
        matches!(
            self,
            RunState::Success
                | RunState::Failed
                | RunState::Canceled
                | RunState::Timeout
                | RunState::Reported
        )
    }
}

impl JobState {
    pub fn is_final(self) -> bool {
        matches!(
            self,
            JobState::Succeeded | JobState::Failed | JobState::Canceled
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<T: Copy>(all: &[T], as_str: fn(T) -> &'static str) -> String {
        all.iter()
            .map(|state| as_str(*state))
            .collect::<Vec<_>>()
            .join(" ")
    }

    // SM-5, SM-23, SM-39
    #[test]
    fn states_are_the_specifications_words() {
        assert_eq!(
            words(RunState::ALL, RunState::as_str),
            "CREATED PLANNING PLAN_FAILED QUEUED RUNNING CANCEL_REQUESTED SUCCESS FAILED CANCELED \
             TIMEOUT REPORTED"
        );
        assert_eq!(
            words(AttemptState::ALL, AttemptState::as_str),
            "CREATED QUEUED LEASED STARTING RUNNING UPLOADING SUCCEEDED FAILED CANCEL_REQUESTED \
             CANCELED TIMED_OUT STALE"
        );
        assert_eq!(
            words(LeaseState::ALL, LeaseState::as_str),
            "GRANTED ACTIVE EXPIRED REVOKED COMPLETED CANCELED"
        );
    }

    #[test]
    fn words_read_back_as_their_state() {
        for state in RunState::ALL {
            let json = serde_json::to_string(state).unwrap();
            assert_eq!(json, format!("\"{state}\""));
            assert_eq!(RunState::from_text(state.as_str()), Some(*state));
        }
    }
}
