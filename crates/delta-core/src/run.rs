//! The run machine (SM-5 … SM-21): eleven states, the edges of the specification and those of A66.
//!
//! Owns which run state may follow which. Refuses everything else with a typed error; the outcome
//! is kept apart from the state, so that `REPORTED` does not erase it.

use crate::cause::Cause;
use crate::group::{Concurrency, Member, Place};
use crate::id::RunId;
use crate::settings::Settings;
use crate::time::{Millis, Span};
use crate::{Digest, Text};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunState {
    /// The record exists; planning has not begun.
    Created,
    /// A plan is being made.
    Planning,
    /// Planning failed; passes to `Failed` in the same transaction.
    PlanFailed,
    /// Jobs exist and wait; nothing was granted yet.
    Queued,
    /// At least one attempt was granted.
    Running,
    /// A cancel was asked for; jobs may still be active.
    CancelRequested,
    /// Every required job succeeded.
    Success,
    /// A required job failed for good, or planning did.
    Failed,
    /// Ended by a cancel.
    Canceled,
    /// Exceeded its run timeout.
    Timeout,
    /// The outcome was published; nothing moves any more.
    Reported,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunEvent {
    PlanningStarted,
    Planned,
    PlanningFailed,
    Started,
    Succeeded,
    Failed,
    CancelRequested,
    Canceled,
    TimedOut,
    Reported,
}

/// An event that a state does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Illegal<S, E> {
    pub state: S,
    pub event: E,
}

impl RunState {
    pub const ALL: [RunState; 11] = [
        RunState::Created,
        RunState::Planning,
        RunState::PlanFailed,
        RunState::Queued,
        RunState::Running,
        RunState::CancelRequested,
        RunState::Success,
        RunState::Failed,
        RunState::Canceled,
        RunState::Timeout,
        RunState::Reported,
    ];

    /// The machine.
    pub fn next(self, event: RunEvent) -> Result<RunState, Illegal<RunState, RunEvent>> {
        use RunEvent as E;
        use RunState as S;
        match (self, event) {
            (S::Created, E::PlanningStarted) => Ok(S::Planning),
            (S::Planning, E::Planned) => Ok(S::Queued),
            (S::Planning, E::PlanningFailed) => Ok(S::PlanFailed),
            (S::PlanFailed, E::Failed) => Ok(S::Failed),
            (S::Queued, E::Started) => Ok(S::Running),
            (S::Running, E::Succeeded) => Ok(S::Success),
            (S::Queued | S::Running, E::Failed) => Ok(S::Failed),
            (S::Queued | S::Running, E::CancelRequested) => Ok(S::CancelRequested),
            (S::CancelRequested, E::Canceled) => Ok(S::Canceled),
            (S::Queued | S::Running, E::TimedOut) => Ok(S::Timeout),
            (S::Success | S::Failed | S::Canceled | S::Timeout, E::Reported) => Ok(S::Reported),
            (state, event) => Err(Illegal { state, event }),
        }
    }

    /// New attempts and grants are possible.
    pub fn takes_work(self) -> bool {
        matches!(self, RunState::Queued | RunState::Running)
    }

    /// An outcome is fixed, reported or not.
    pub fn has_ended(self) -> bool {
        use RunState as S;
        matches!(
            self,
            S::Success | S::Failed | S::Canceled | S::Timeout | S::Reported
        )
    }

    /// As the specification spells it.
    pub fn name(self) -> &'static str {
        match self {
            RunState::Created => "CREATED",
            RunState::Planning => "PLANNING",
            RunState::PlanFailed => "PLAN_FAILED",
            RunState::Queued => "QUEUED",
            RunState::Running => "RUNNING",
            RunState::CancelRequested => "CANCEL_REQUESTED",
            RunState::Success => "SUCCESS",
            RunState::Failed => "FAILED",
            RunState::Canceled => "CANCELED",
            RunState::Timeout => "TIMEOUT",
            RunState::Reported => "REPORTED",
        }
    }

    pub fn from_name(name: &str) -> Option<RunState> {
        RunState::ALL.into_iter().find(|state| state.name() == name)
    }
}

impl RunEvent {
    pub const ALL: [RunEvent; 10] = [
        RunEvent::PlanningStarted,
        RunEvent::Planned,
        RunEvent::PlanningFailed,
        RunEvent::Started,
        RunEvent::Succeeded,
        RunEvent::Failed,
        RunEvent::CancelRequested,
        RunEvent::Canceled,
        RunEvent::TimedOut,
        RunEvent::Reported,
    ];

    pub fn name(self) -> &'static str {
        match self {
            RunEvent::PlanningStarted => "planning_started",
            RunEvent::Planned => "planned",
            RunEvent::PlanningFailed => "planning_failed",
            RunEvent::Started => "started",
            RunEvent::Succeeded => "succeeded",
            RunEvent::Failed => "failed",
            RunEvent::CancelRequested => "cancel_requested",
            RunEvent::Canceled => "canceled",
            RunEvent::TimedOut => "timed_out",
            RunEvent::Reported => "reported",
        }
    }

    pub fn from_name(name: &str) -> Option<RunEvent> {
        RunEvent::ALL.into_iter().find(|event| event.name() == name)
    }
}

/// What a run was made for and how long it may take: fixed at creation, but for what its plan says
/// about the whole run ([`RunSettings`]).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunHeader {
    /// Every table and query is scoped by project from the start.
    pub project: Text,
    pub repository: Option<Text>,
    pub git_ref: Option<Text>,
    pub commit: Option<Text>,
    /// Whether the run's code may see secrets; decided by the server, never by the run.
    pub trusted: bool,
    /// Counted from 1 per rerun chain (SM-3).
    pub run_attempt: u32,
    pub rerun_of: Option<RunId>,
    pub priority: i32,
    /// A failed required job cancels the rest.
    pub fail_fast: bool,
    /// At most one run of this group is at work.
    pub concurrency: Option<Concurrency>,
    /// A reporter must publish the outcome before `REPORTED`; without one it follows at once.
    pub needs_report: bool,
    pub run_timeout: Span,
    pub wait_timeout: Span,
    pub planning_timeout: Span,
    /// Who asked for it.
    pub created_by: Text,
    /// SHA-256 of the caller's idempotency key and of the request it came with.
    pub idempotency: Option<(Digest, Digest)>,
    /// For a function: the queue it came by. Where it fails for good, somebody must look at it: it
    /// stays a dead letter until it is put aside.
    pub queue: Option<Text>,
    /// For a function: nobody could say whether its runner exists when it came. Whoever judges it
    /// later reads this; no decision here does.
    pub unjudged: bool,
    /// For a function: no other of this key until then.
    pub unique: Option<Unique>,
    /// How long it is kept after its end; as long as any other when absent.
    pub keep: Option<Span>,
    /// What triggered it, as the rim wrote it down for whoever plans and reports; no decision
    /// reads it.
    pub trigger: Option<Text>,
}

/// What a plan says about the run as a whole. A run that is planned later has the server's own
/// until its plan is accepted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunSettings {
    pub priority: i32,
    pub fail_fast: bool,
    pub run_timeout: Span,
    pub concurrency: Option<Concurrency>,
}

/// The one project that there is until there are more.
pub const PROJECT: &str = "default";

impl RunHeader {
    /// Of a run that asks for nothing: untrusted, of no repository, with the server's own limits.
    pub fn plain(created_by: impl Into<Text>, settings: &Settings) -> RunHeader {
        RunHeader {
            project: PROJECT.into(),
            repository: None,
            git_ref: None,
            commit: None,
            trusted: false,
            run_attempt: 1,
            rerun_of: None,
            priority: 0,
            fail_fast: false,
            concurrency: None,
            needs_report: false,
            run_timeout: settings.run_timeout,
            wait_timeout: settings.wait_timeout,
            planning_timeout: settings.planning_timeout,
            created_by: created_by.into(),
            idempotency: None,
            queue: None,
            unjudged: false,
            unique: None,
            keep: None,
            trigger: None,
        }
    }

    pub fn settings(&self) -> RunSettings {
        RunSettings {
            priority: self.priority,
            fail_fast: self.fail_fast,
            run_timeout: self.run_timeout,
            concurrency: self.concurrency.clone(),
        }
    }

    pub(crate) fn set(&mut self, settings: &RunSettings) {
        self.priority = settings.priority;
        self.fail_fast = settings.fail_fast;
        self.run_timeout = settings.run_timeout;
        self.concurrency = settings.concurrency.clone();
    }
}

/// A key that one run at a time may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unique {
    /// SHA-256 of it.
    pub key: Digest,
    pub until: Millis,
}

/// A cancel of the whole run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunCancel {
    pub at: Millis,
    pub cause: Cause,
    pub by: Text,
}

/// A run: header, state and the counters that finalisation needs without reading its jobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    pub id: RunId,
    pub header: RunHeader,
    pub state: RunState,
    /// `Success`, `Failed`, `Canceled` or `Timeout`, from the moment it is fixed.
    pub outcome: Option<RunState>,
    pub cause: Option<Cause>,
    pub cancel: Option<RunCancel>,
    pub created_at: Millis,
    pub queued_at: Option<Millis>,
    /// The first grant: the run timeout counts from here.
    pub started_at: Option<Millis>,
    pub ended_at: Option<Millis>,
    pub jobs: u32,
    /// Jobs not yet resolved.
    pub live_jobs: u32,
    /// Required jobs that failed for good, and those that were canceled.
    pub required_failed: u32,
    pub required_canceled: u32,
    /// In the line of its group, from when it is planned.
    pub place: Option<Place>,
}

impl Run {
    /// When the run itself must move on, if nothing else moves it first.
    pub fn due_at(&self) -> Option<Millis> {
        match self.state {
            RunState::Created | RunState::Planning => {
                Some(self.created_at + self.header.planning_timeout)
            }
            RunState::Queued => Some(self.waits_since()? + self.header.wait_timeout),
            RunState::Running => Some(self.started_at? + self.header.run_timeout),
            _ => None,
        }
    }

    /// Since when it waits for what it waits for now: its turn, or a first grant. Another server's
    /// clock may be behind the one that planned it.
    pub fn waits_since(&self) -> Option<Millis> {
        let turn = self
            .place
            .map(|place| place.taken_at.unwrap_or(place.since));
        turn.max(self.queued_at)
    }

    /// Whether others of its group come first.
    pub fn waits_for_turn(&self) -> bool {
        self.place.is_some_and(|place| place.waits()) && self.state.takes_work()
    }

    /// What it is to its group, until it is over.
    pub fn member(&self) -> Option<Member> {
        let over = self.state.has_ended() && self.live_jobs == 0;
        let place = self.place.filter(|_| !over)?;
        Some(Member {
            id: self.id.job(0),
            taken: !place.waits(),
            cancel_older: self.header.concurrency.as_ref()?.cancel_older,
        })
    }

    /// A required job is lost: the run cannot succeed any more, even while others go on.
    pub fn will_fail(&self) -> bool {
        self.required_failed + self.required_canceled > 0
    }

    /// A function that failed for good, and nobody has put it aside yet.
    pub fn is_dead_letter(&self) -> bool {
        let failed = matches!(self.state, RunState::Failed | RunState::Timeout);
        self.header.queue.is_some() && failed && self.live_jobs == 0
    }

    /// When it may be forgotten, where it says so itself: not while somebody must still look at it,
    /// nor while nobody else may have its key.
    pub fn keep_until(&self) -> Option<Millis> {
        let until = self.ended_at? + self.header.keep?;
        if self.is_dead_letter() {
            return None;
        }
        let unique = self.header.unique.map_or(until, |unique| unique.until);
        Some(until.max(unique))
    }

    /// The moment the run times out, once it has started.
    pub fn deadline(&self) -> Option<Millis> {
        Some(self.started_at? + self.header.run_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_are_those_of_the_specification() {
        // SM-5
        let names: Vec<&str> = RunState::ALL.iter().map(|s| s.name()).collect();
        assert_eq!(
            names.join(" "),
            "CREATED PLANNING PLAN_FAILED QUEUED RUNNING CANCEL_REQUESTED SUCCESS FAILED CANCELED \
             TIMEOUT REPORTED"
        );
    }

    #[test]
    fn reported_is_the_end() {
        // SM-18
        for event in RunEvent::ALL {
            assert!(RunState::Reported.next(event).is_err(), "{event:?}");
        }
    }

    #[test]
    fn a_run_never_goes_back_to_queued() {
        // A15: the only edge into QUEUED comes from planning.
        for state in RunState::ALL {
            for event in RunEvent::ALL {
                if state.next(event) == Ok(RunState::Queued) {
                    assert_eq!(state, RunState::Planning);
                }
            }
        }
    }

    #[test]
    fn a_time_to_keep_ends_no_dead_letter_and_frees_no_key() {
        let header = RunHeader {
            trusted: true,
            queue: Some("mail".into()),
            keep: Some(Span::secs(10)),
            ..RunHeader::plain("ann", &Settings::recommended())
        };
        let mut run = Run {
            id: RunId(1),
            header,
            state: RunState::Reported,
            outcome: Some(RunState::Success),
            cause: None,
            cancel: None,
            created_at: Millis::ZERO,
            queued_at: None,
            started_at: None,
            ended_at: Some(Millis(1000)),
            jobs: 1,
            live_jobs: 0,
            required_failed: 0,
            required_canceled: 0,
            place: None,
        };
        assert_eq!(run.keep_until(), Some(Millis(11_000)));
        let until = Millis(60_000);
        run.header.unique = Some(Unique {
            key: [7; 32],
            until,
        });
        assert_eq!(run.keep_until(), Some(until));
        run.state = RunState::Failed;
        assert_eq!(run.keep_until(), None, "somebody must look at it");
        run.state = RunState::Reported;
        run.header.unique = None;
        assert_eq!(run.keep_until(), Some(Millis(11_000)), "put aside");
        run.header.keep = None;
        assert_eq!(run.keep_until(), None);
    }

    #[test]
    fn names_read_back() {
        for state in RunState::ALL {
            assert_eq!(RunState::from_name(state.name()), Some(state));
        }
        for event in RunEvent::ALL {
            assert_eq!(RunEvent::from_name(event.name()), Some(event));
        }
    }
}
