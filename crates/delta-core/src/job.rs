//! A job: the logical unit whose attempts follow one another, and how it was resolved.

use std::sync::Arc;

use crate::attempt::{Attempt, AttemptState};
use crate::cause::Cause;
use crate::group::{Member, Place};
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

    /// A failure the run allows counts as a need that is met.
    pub fn meets_needs(self, required: bool) -> bool {
        match self {
            Resolution::Succeeded => true,
            Resolution::Failed => !required,
            Resolution::Canceled => false,
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
    /// The job of an earlier run whose result this one has: it is not run again (SM-3).
    pub kept: Option<JobId>,
    /// In the line of its group, from when nothing else keeps it.
    pub place: Option<Place>,
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

    pub fn meets_needs(&self) -> bool {
        let resolution = self.resolution;
        resolution.is_some_and(|resolution| resolution.meets_needs(self.policy.required))
    }

    /// Whether others of its group come first.
    pub fn waits_for_turn(&self) -> bool {
        self.place.is_some_and(|place| place.waits()) && self.resolution.is_none()
    }

    /// What it is to its group, until it is resolved.
    pub fn member(&self) -> Option<Member> {
        let place = self.place.filter(|_| self.resolution.is_none())?;
        Some(Member {
            id: self.id,
            taken: !place.waits(),
            cancel_older: self.policy.concurrency.as_ref()?.cancel_older,
        })
    }

    /// Where its results are: its own, or those of the job it was kept from.
    pub fn source(&self) -> JobId {
        self.kept.unwrap_or(self.id)
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
