//! Things that must happen at least once over a set of seeds: a simulator that never meets its own
//! faults proves nothing.

use delta_core::lease::{Revocation, Stale};
use delta_core::{
    AttemptEvent, AttemptState, Cause, Command, Fact, LeaseEvent, Reply, RunEvent, RunState,
};

use crate::check::{Memory, Step};

macro_rules! sometimes {
    ($($variant:ident $text:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Sometimes { $($variant,)* }

        impl Sometimes {
            pub const ALL: &[Sometimes] = &[$(Sometimes::$variant,)*];

            pub fn text(self) -> &'static str {
                match self { $(Sometimes::$variant => $text,)* }
            }
        }
    };
}

sometimes! {
    StaleComplete "a completion was stale",
    CompleteReplayed "a repeated completion got its first answer",
    ConflictingComplete "a second completion said something else",
    NotAcknowledged "a message came before its acknowledgement",
    ExpiredLeased "a lease ended unacknowledged",
    ExpiredStarting "a lease expired in STARTING",
    ExpiredRunning "a lease expired in RUNNING",
    ExpiredUploading "a lease expired in UPLOADING",
    CancelThenComplete "a completion came after a cancel",
    CompleteThenCancel "a cancel came after a completion",
    CancelAcknowledged "a cancel was acknowledged",
    ForcedCancel "a cancel was forced",
    LossesExhausted "an attempt lost its lease too often",
    DispatchesExhausted "nobody acknowledged an attempt",
    RetryAfterFailure "a failed attempt was retried",
    RetryAfterTimeout "a timed out attempt was retried",
    JobTimedOut "a job took too long",
    RunTimeoutLive "a run timed out with a live job",
    CancelWhilePlanning "a cancel came while planning",
    PlanTimedOut "planning took too long",
    NobodyCame "no agent came in time",
    DependencyDropped "a job was dropped with its need",
    FailFast "a failure stopped the rest",
    GrantReplaced "a runner asked again and got its attempt anew",
    RunnerBusy "a busy runner asked for more",
    ForgedToken "a forged or foreign token was refused",
    RunnerMismatch "a lease was used under another runner's name",
    KeyReplayed "a repeated request got the first run",
    CommitConflict "a commit met another writer",
    CommitUnknownApplied "a lost commit had been applied",
    CommitUnknownNot "a lost commit had not been applied",
    StoreAway "the store was away",
    CrashBeforeCommit "a server died with a batch in hand",
    ClockGuard "the clock had gone back across a restart",
    ClockForward "the clock had jumped ahead across a restart",
    TwoServers "two servers took turns",
    Rerun "a run was run again",
    Success "a run succeeded",
    Failed "a run failed",
    Canceled "a run was canceled",
}

/// How often each of them happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen(pub Vec<u64>);

impl Default for Seen {
    fn default() -> Seen {
        Seen(vec![0; Sometimes::ALL.len()])
    }
}

impl Seen {
    pub fn note(&mut self, what: Sometimes) {
        self.0[what as usize] += 1;
    }

    pub fn add(&mut self, other: &Seen) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    pub fn missing(&self) -> Vec<&'static str> {
        let never = |what: &&Sometimes| self.0[**what as usize] == 0;
        Sometimes::ALL
            .iter()
            .filter(never)
            .map(|what| what.text())
            .collect()
    }

    /// Notes what a committed step shows.
    pub fn observe(&mut self, step: &Step, memory: &Memory) {
        use Sometimes as S;
        match (step.command, step.reply) {
            (Command::Complete { .. }, Reply::Stale(stale)) => {
                self.note(S::StaleComplete);
                if *stale == Stale::AlreadyFinal {
                    self.note(S::ConflictingComplete);
                }
            }
            (Command::Complete { .. }, Reply::Completed) if !step.changed() => {
                self.note(S::CompleteReplayed);
            }
            (Command::Complete { .. }, Reply::CompletedAfterCancel) => {
                self.note(S::CancelThenComplete);
            }
            (_, Reply::NotAcknowledged) => self.note(S::NotAcknowledged),
            (_, Reply::CancelAcknowledged) => self.note(S::CancelAcknowledged),
            (Command::CancelJob { job, .. }, Reply::Done { changed: false }) => {
                let current = step.job_after(*job).map(|job| job.current());
                let state = current.and_then(|id| memory.attempts.get(&id));
                if state == Some(&AttemptState::Succeeded) {
                    self.note(S::CompleteThenCancel);
                }
            }
            (_, Reply::Created { replayed: true, .. }) => self.note(S::KeyReplayed),
            (Command::CancelRun { run, .. }, Reply::Done { changed: true })
                if memory.runs.get(run) == Some(&RunState::Planning) =>
            {
                self.note(S::CancelWhilePlanning);
            }
            _ => {}
        }
        if matches!(step.reply, Reply::Stale(Stale::Unknown)) {
            self.note(S::ForgedToken);
        }
        for fact in step.facts() {
            self.observe_fact(step, memory, fact);
        }
    }

    fn observe_fact(&mut self, step: &Step, memory: &Memory, fact: &Fact) {
        use Sometimes as S;
        match fact {
            Fact::LeaseMoved {
                job,
                index,
                event,
                ending,
            } => {
                let id = step.run_id().job(*job).attempt(*index);
                let was = memory.attempts.get(&id);
                match (event, ending.revocation, was) {
                    (LeaseEvent::Revoked, Some(Revocation::AckTimeout), _) => {
                        self.note(S::ExpiredLeased)
                    }
                    (LeaseEvent::Revoked, Some(Revocation::ForcedCancel), _) => {
                        self.note(S::ForcedCancel)
                    }
                    (LeaseEvent::Revoked, Some(Revocation::Replaced), _) => {
                        self.note(S::GrantReplaced)
                    }
                    (LeaseEvent::Revoked, Some(Revocation::JobTimeout), _) => {
                        self.note(S::JobTimedOut)
                    }
                    (LeaseEvent::Expired, _, Some(AttemptState::Starting)) => {
                        self.note(S::ExpiredStarting)
                    }
                    (LeaseEvent::Expired, _, Some(AttemptState::Running)) => {
                        self.note(S::ExpiredRunning)
                    }
                    (LeaseEvent::Expired, _, Some(AttemptState::Uploading)) => {
                        self.note(S::ExpiredUploading)
                    }
                    _ => {}
                }
            }
            Fact::AttemptMoved { event, cause, .. } => self.observe_move(*event, *cause),
            Fact::AttemptCreated { job, index, .. } => {
                let former = step.run_id().job(*job).attempt(index - 1);
                match step.attempt_after(former).map(|attempt| attempt.state) {
                    Some(AttemptState::TimedOut) => self.note(S::RetryAfterTimeout),
                    _ => self.note(S::RetryAfterFailure),
                }
            }
            Fact::RunMoved { event, cause } => self.observe_run(step, *event, *cause),
            _ => {}
        }
    }

    fn observe_move(&mut self, event: AttemptEvent, cause: Option<Cause>) {
        use Sometimes as S;
        match (event, cause) {
            (AttemptEvent::GivenUp, Some(Cause::LeaseLost)) => self.note(S::LossesExhausted),
            (AttemptEvent::GivenUp, Some(Cause::NotAccepted)) => self.note(S::DispatchesExhausted),
            (AttemptEvent::Dropped, Some(Cause::DependencyFailed)) => {
                self.note(S::DependencyDropped)
            }
            (AttemptEvent::Dropped, Some(Cause::FailFast)) => self.note(S::FailFast),
            (AttemptEvent::NoAgent, _) => self.note(S::NobodyCame),
            _ => {}
        }
    }

    fn observe_run(&mut self, step: &Step, event: RunEvent, cause: Option<Cause>) {
        use Sometimes as S;
        let live = step.run_after(step.run_id()).map_or(0, |run| run.live_jobs);
        match (event, cause) {
            (RunEvent::TimedOut, _) if live > 0 => self.note(S::RunTimeoutLive),
            (RunEvent::Failed, Some(Cause::PlanTimeout)) => self.note(S::PlanTimedOut),
            (RunEvent::Failed, _) => self.note(S::Failed),
            (RunEvent::Succeeded, _) => self.note(S::Success),
            (RunEvent::Canceled, _) => self.note(S::Canceled),
            _ => {}
        }
    }
}
