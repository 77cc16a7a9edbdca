//! A job: the logical unit whose attempts follow one another, and how it was resolved.

use std::sync::Arc;

use crate::attempt::{Attempt, AttemptState};
use crate::cause::Cause;
use crate::id::{AttemptId, JobId};
use crate::policy::Policy;
use crate::time::Millis;
use crate::{Digest, Text};

/// How a job ended for good (SM-36 … SM-38).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resolution {
    Succeeded,
    Failed,
    Canceled,
}

impl Resolution {
    pub fn name(self) -> &'static str {
        match self {
            Resolution::Succeeded => "SUCCEEDED",
            Resolution::Failed => "FAILED",
            Resolution::Canceled => "CANCELED",
        }
    }

    pub fn from_name(name: &str) -> Option<Resolution> {
        [
            Resolution::Succeeded,
            Resolution::Failed,
            Resolution::Canceled,
        ]
        .into_iter()
        .find(|resolution| resolution.name() == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    pub id: JobId,
    pub name: Text,
    pub policy: Arc<Policy>,
    /// SHA-256 of the job spec's exact bytes, which are kept elsewhere.
    pub spec: Digest,
    /// Numbers of the jobs that need this one.
    pub dependents: Arc<[u32]>,
    /// Needs not yet met.
    pub waiting_on: u32,
    /// Index of the current attempt.
    pub attempts: u32,
    pub resolution: Option<Resolution>,
    pub cause: Option<Cause>,
    pub ended_at: Option<Millis>,
}

impl Job {
    pub fn current(&self) -> AttemptId {
        self.id.attempt(self.attempts)
    }

    /// The job's state mirrors its current attempt until it is resolved (SM-22). A failed attempt
    /// with a retry to come does not define the job (SM-59): the retry is already the current one.
    pub fn state_name(&self, current: &Attempt) -> &'static str {
        match self.resolution {
            Some(resolution) => resolution.name(),
            None => current.state.name(),
        }
    }

    /// A failure the run allows counts as a need that is met.
    pub fn meets_needs(&self) -> bool {
        match self.resolution {
            Some(Resolution::Succeeded) => true,
            Some(Resolution::Failed) => !self.policy.required,
            Some(Resolution::Canceled) | None => false,
        }
    }
}

/// The resolution that an ended attempt with no retry to come gives its job.
pub fn resolution_of(state: AttemptState) -> Option<Resolution> {
    match state {
        AttemptState::Succeeded => Some(Resolution::Succeeded),
        AttemptState::Failed | AttemptState::TimedOut => Some(Resolution::Failed),
        AttemptState::Canceled => Some(Resolution::Canceled),
        _ => None,
    }
}
