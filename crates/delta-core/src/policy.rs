//! What the server decides a job by: lifted out of the job spec at creation, so that the work
//! itself stays opaque afterwards (D1). And the one place that decides a retry (A57).

use std::collections::BTreeSet;

use crate::Text;
use crate::cause::{Cause, Class};
use crate::group::Concurrency;
use crate::settings::Settings;
use crate::time::{Millis, Span};

/// A word of `retry.on`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RetryOn {
    /// Every cause of the class infra.
    Infra,
    /// Every cause of the class timeout.
    Timeout,
    /// One cause.
    Cause(Cause),
}

impl RetryOn {
    pub fn covers(self, cause: Cause) -> bool {
        match self {
            RetryOn::Infra => cause.class() == Class::Infra,
            RetryOn::Timeout => cause.class() == Class::Timeout,
            RetryOn::Cause(listed) => listed == cause,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            RetryOn::Infra => "infra",
            RetryOn::Timeout => "timeout",
            RetryOn::Cause(cause) => cause.name(),
        }
    }

    pub fn from_name(name: &str) -> Option<RetryOn> {
        match name {
            "infra" => Some(RetryOn::Infra),
            "timeout" => Some(RetryOn::Timeout),
            other => Cause::from_name(other).map(RetryOn::Cause),
        }
    }
}

/// The policy of one job, fixed at creation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// A failure of a required job fails the run (SM-12, SM-13).
    pub required: bool,
    /// Numbers of the jobs in the same run that must end well first.
    pub needs: Vec<u32>,
    pub max_attempts: u32,
    /// How long one attempt may execute, from its acknowledgement.
    pub timeout: Span,
    /// Normalised requirements: see [`crate::requirement`].
    pub requires: Text,
    pub priority: i32,
    /// Never silently repeated.
    pub once: bool,
    pub retry_on: BTreeSet<RetryOn>,
    /// Names of the secrets that its attempts may fetch, sorted.
    pub secrets: Vec<Text>,
    /// The environment it works on, which decides among secrets of one name.
    pub environment: Option<Text>,
    /// Not before this is its first attempt queued. For a job without needs only.
    pub not_before: Option<Millis>,
    /// How long to wait between attempts; by the settings when absent.
    pub backoff: Option<Backoff>,
    /// A word that the cells of one matrix share: the first required one that fails cancels the
    /// others.
    pub fail_fast_group: Option<Text>,
    /// At most one job of this group is at work.
    pub concurrency: Option<Concurrency>,
}

/// Delays between attempts: doubling from the base up to the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backoff {
    pub base: Span,
    pub cap: Span,
}

impl Policy {
    /// Attempts when the job does not say (A57).
    pub const DEFAULT_ATTEMPTS: u32 = 3;

    /// Of a job that asks for nothing: required, without needs, for whoever comes first.
    pub fn plain(settings: &Settings) -> Policy {
        Policy {
            required: true,
            needs: Vec::new(),
            max_attempts: Policy::DEFAULT_ATTEMPTS,
            timeout: settings.job_timeout,
            requires: "".into(),
            priority: 0,
            once: false,
            retry_on: Policy::default_retry_on(),
            secrets: Vec::new(),
            environment: None,
            not_before: None,
            backoff: None,
            fail_fast_group: None,
            concurrency: None,
        }
    }

    /// Infra causes and detected flakes.
    pub fn default_retry_on() -> BTreeSet<RetryOn> {
        BTreeSet::from([RetryOn::Infra, RetryOn::Cause(Cause::Flaky)])
    }

    /// Whether attempt number `index`, ended by `cause`, is followed by another.
    pub fn retries(&self, cause: Cause, index: u32) -> bool {
        // A poison pill took its agents down, and a `once` job is for a person to judge.
        let never = matches!(
            cause,
            Cause::LeaseLost
                | Cause::LostOnce
                | Cause::NotAccepted
                | Cause::NoAgent
                | Cause::HandlerNotFound
        );
        !never
            && !self.once
            && index < self.max_attempts
            && self.retry_on.iter().any(|on| on.covers(cause))
    }
}

/// The delay before attempt `index + 1`: doubling from the base up to the cap, the upper half of it
/// jittered by `entropy` so that a crowd of failures does not come back as a crowd.
pub fn retry_delay(backoff: Backoff, index: u32, entropy: u64) -> Span {
    let doubled = backoff.base.times(1 << index.saturating_sub(1).min(20));
    let full = doubled.0.min(backoff.cap.0).max(0);
    let half = full / 2;
    let jitter = if half > 0 {
        (entropy % half as u64) as i64
    } else {
        0
    };
    Span(full - jitter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::test_support::policy;

    #[test]
    fn retry_needs_a_listed_cause_and_an_attempt_left() {
        // SM-34, SM-55, SM-56, A57: the truth table.
        let policy = Policy {
            max_attempts: 2,
            ..policy()
        };
        let table = [
            (Cause::Clone, 1, true),
            (Cause::Clone, 2, false),
            (Cause::UserExit, 1, false),
            (Cause::UserExit, 2, false),
            (Cause::StartUp, 1, true),
            (Cause::Registry, 1, true),
            (Cause::CacheFetch, 1, true),
            (Cause::Network, 1, true),
            (Cause::Flaky, 1, true),
            (Cause::SpecError, 1, false),
            (Cause::HandlerNotFound, 1, false),
            (Cause::JobTimeout, 1, false),
            (Cause::LeaseLost, 1, false),
        ];
        for (cause, index, expected) in table {
            assert_eq!(policy.retries(cause, index), expected, "{cause:?} {index}");
        }
    }

    #[test]
    fn a_job_may_ask_for_retries_of_user_failures() {
        let mut policy = policy();
        policy.retry_on.insert(RetryOn::Cause(Cause::UserExit));
        assert!(policy.retries(Cause::UserExit, 1));
        policy.once = true;
        assert!(
            !policy.retries(Cause::UserExit, 1),
            "A69: once is never retried"
        );
    }

    #[test]
    fn the_delay_doubles_up_to_its_cap_and_keeps_at_least_half() {
        let backoff = crate::Settings::recommended().backoff();
        for entropy in [0, 1, 499, 12_345, u64::MAX] {
            for (index, full) in [
                (1, 1_000),
                (2, 2_000),
                (3, 4_000),
                (10, 60_000),
                (60, 60_000),
            ] {
                let delay = retry_delay(backoff, index, entropy).0;
                assert!(
                    delay <= full && delay > full / 2,
                    "{index} {entropy} {delay}"
                );
            }
        }
    }

    #[test]
    fn words_of_retry_on_read_back() {
        for word in ["infra", "timeout", "user_exit", "flaky", "clone"] {
            assert_eq!(RetryOn::from_name(word).map(RetryOn::name), Some(word));
        }
        assert_eq!(RetryOn::from_name("exit 137"), None);
    }
}
