//! One lease as its session sees it: a machine without I/O.
//!
//! Owns what has to be on disk before an agent's last word is passed on to the writer, and how many
//! renewals are on their way. [`HeldLease::step`] takes what happened and says what to do; the
//! session does it. Whether a lease is good is not judged here: that is the core's business.
//!
//! Three small machines stand side by side. The [`Standing`] says what became of the grant, the
//! [`WordState`] where the agent's last word is, and the [`RenewalState`] where its renewals are. A
//! last word is said again by an agent that did not hear the answer, also when the lease has ended
//! long ago: so the second does not follow from the first.

use std::time::Instant;

use delta_core::attempt::LateLog;
use delta_core::rights::Bond;
use delta_core::{Digest, LeaseState, Millis, Span, Text};

use super::results::ResultsClaim;

/// A lease the agent holds, or held a moment ago. `M` is a message as it was received.
#[derive(Debug)]
pub struct HeldLease<M> {
    pub slot: u32,
    /// Who the server granted it to: agent and slot.
    pub runner: Text,
    /// Of its token.
    token: Digest,
    pub origin: Origin,
    /// Until when the server lets it live, as last heard.
    pub until: Millis,
    /// Since when heartbeats leave it out.
    pub(super) left_out: Option<Instant>,
    standing: Standing,
    word: WordState<M>,
    renewal: RenewalState<M>,
    cancel: CancelState,
    artifacts: ArtifactState,
    /// Bytes of log that the last word declared.
    declared: u64,
    /// How often its log and its results were to be brought to disk, and are not yet.
    log_awaited: u32,
    results_awaited: u32,
}

/// How a session came by a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was given here.
    Granted,
    /// It was found in the store: its agent may not know of it.
    Stored,
}

/// What became of the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The agent has not said that it takes it.
    Offered,
    Accepted,
    /// It is over; the rest of its log may follow.
    Ended(LateLogWindow),
}

/// What may still come of the log of a lease that is over (I25), and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateLogWindow {
    pub log_length: u64,
    pub until: Instant,
}

/// Where the agent's last word is.
#[derive(Debug)]
enum WordState<M> {
    /// It has not come, or came and is to be sent again.
    Awaited,
    /// Kept back until what belongs to it is on disk.
    Settling(Box<KeptWord<M>>),
    /// With the writer; and what is told instead if nobody had asked for the cancel that it
    /// acknowledges (A34).
    Submitted { instead: Option<Box<M>> },
}

#[derive(Debug)]
struct KeptWord<M> {
    word: LastWord<M>,
    blame: Blame,
}

/// Where renewals are: no agent renews faster than it is answered.
#[derive(Debug)]
enum RenewalState<M> {
    Idle,
    Submitted,
    /// The newest that came meanwhile waits for the answer to the one before.
    SubmittedWithNext(Box<M>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CancelState {
    NotTold,
    Told,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArtifactState {
    None,
    Some,
}

/// An agent's last word about a lease, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastWord<M> {
    pub message: M,
    /// What is told instead if nobody had asked for the cancel that it acknowledges (A34).
    pub instead: Option<Box<M>>,
    pub claim: Claim,
    /// Bytes of log that it declares.
    pub log_length: u64,
    /// Artifacts that it counts.
    pub artifacts: u32,
    /// Bytes of the log may not be on disk yet.
    pub log: Belongs,
    /// Results of tests may not be, and this is what it says of them.
    pub results: Option<ResultsClaim>,
}

/// Whether a last word says that the work went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Success,
    Other,
}

/// Whether something belongs to a last word and has to be on disk before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belongs {
    Yes,
    No,
}

/// What a failure is to be blamed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    AsSaid,
    /// Flaky tests alone.
    FlakyTests,
}

/// Something that happened to a lease or its last word.
#[derive(Clone, Debug)]
pub enum LeaseEvent<M> {
    /// The agent takes the work.
    Accepted,
    /// The agent sent or announced an artifact.
    ArtifactSent,
    LastWord(Box<LastWord<M>>),
    /// Everything that was received of its log is on disk.
    LogStored,
    /// Its results of tests are.
    ResultsStored(Blame),
    /// So many artifacts of it are there as a whole; nothing where that cannot be known.
    ArtifactsListed {
        whole: Option<usize>,
        now: Millis,
    },
    /// The writer answered the last word.
    Judged(Judgement),
    Renewal(M),
    RenewalAnswered,
    /// The agent was told to end the work.
    CancelTold,
    /// The lease expired or was revoked. After a cancel, what there is of the log is taken until
    /// then.
    Lost {
        late_log_until: Instant,
    },
}

/// What the writer said to a last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Taken, be it for a cancel: the lease has ended. The rest of its log is taken until then.
    Final {
        late_log_until: Instant,
    },
    NotAcknowledged,
    /// Nothing changed; the agent says it again.
    NotDone,
    /// It acknowledges a cancel that nobody asked for.
    Unasked,
    /// An acknowledgement of a cancel, for a lease that ended another way.
    AlreadyFinal,
    Stale,
}

/// What the session has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum LeaseAction<M> {
    StoreLog,
    SettleResults(ResultsClaim),
    ListArtifacts,
    /// Pass the last word on.
    Submit(M, Blame),
    SubmitRenewal(M),
    /// Refuse the last word: artifacts that it counts are not there.
    RefuseForArtifacts,
    /// Refuse the last word for now: what artifacts there are cannot be known.
    RefuseForDisk,
    /// The slot is free, and the lease remembered.
    FreeSlot,
    /// The lease is over and so is everything about it.
    Forget,
}

/// What to do, in order.
pub type LeaseActions<M> = [Option<LeaseAction<M>>; 2];

impl<M> HeldLease<M> {
    pub fn new(
        slot: u32,
        runner: Text,
        token: Digest,
        standing: Standing,
        until: Millis,
        origin: Origin,
    ) -> HeldLease<M> {
        HeldLease {
            slot,
            runner,
            token,
            origin,
            until,
            left_out: None,
            standing,
            word: WordState::Awaited,
            renewal: RenewalState::Idle,
            cancel: CancelState::NotTold,
            artifacts: ArtifactState::None,
            declared: 0,
            log_awaited: 0,
            results_awaited: 0,
        }
    }

    pub fn is_accepted(&self) -> bool {
        self.standing == Standing::Accepted
    }

    pub fn ended(&self) -> Option<LateLogWindow> {
        match self.standing {
            Standing::Ended(window) => Some(window),
            Standing::Offered | Standing::Accepted => None,
        }
    }

    /// The agent's last word is here and not answered: what comes behind it is too late.
    pub fn has_last_word(&self) -> bool {
        !matches!(self.word, WordState::Awaited)
    }

    /// Takes what happened and says what to do.
    pub fn step(&mut self, event: LeaseEvent<M>) -> LeaseActions<M> {
        match event {
            LeaseEvent::Accepted => {
                if self.standing == Standing::Offered {
                    self.standing = Standing::Accepted;
                }
                nothing()
            }
            LeaseEvent::ArtifactSent => {
                self.artifacts = ArtifactState::Some;
                nothing()
            }
            LeaseEvent::CancelTold => {
                self.cancel = CancelState::Told;
                nothing()
            }
            LeaseEvent::LastWord(word) => self.keep(*word),
            LeaseEvent::LogStored => {
                self.log_awaited = self.log_awaited.saturating_sub(1);
                self.settled()
            }
            LeaseEvent::ResultsStored(blame) => {
                self.results_awaited = self.results_awaited.saturating_sub(1);
                if let WordState::Settling(kept) = &mut self.word {
                    kept.blame = blame;
                }
                self.settled()
            }
            LeaseEvent::ArtifactsListed { whole, now } => self.listed(whole, now),
            LeaseEvent::Judged(judgement) => self.judged(judgement),
            LeaseEvent::Renewal(message) => self.renew(message),
            LeaseEvent::RenewalAnswered => self.renewal_answered(),
            LeaseEvent::Lost { late_log_until } => self.lost(late_log_until),
        }
    }

    fn keep(&mut self, word: LastWord<M>) -> LeaseActions<M> {
        if word.artifacts > 0 {
            self.artifacts = ArtifactState::Some;
        }
        self.declared = word.log_length;
        let (log, results) = (word.log, word.results);
        let blame = Blame::AsSaid;
        self.word = WordState::Settling(Box::new(KeptWord { word, blame }));
        let store_log = (log == Belongs::Yes).then_some(LeaseAction::StoreLog);
        let settle_results = results.map(LeaseAction::SettleResults);
        self.log_awaited += u32::from(store_log.is_some());
        self.results_awaited += u32::from(settle_results.is_some());
        match (store_log, settle_results) {
            (None, None) => self.settled(),
            actions => actions.into(),
        }
    }

    /// Passes a last word on if nothing of it is on its way to the disk, nor of one that came
    /// before it: orders are carried out in turn, and the last answer is the one that covers all.
    fn settled(&mut self) -> LeaseActions<M> {
        if self.is_settled() {
            self.pass_on()
        } else {
            nothing()
        }
    }

    fn is_settled(&self) -> bool {
        let kept = matches!(self.word, WordState::Settling(_));
        kept && self.log_awaited == 0 && self.results_awaited == 0
    }

    /// Log and results are on disk: now the artifacts where there are any, then the word itself.
    fn pass_on(&mut self) -> LeaseActions<M> {
        match self.artifacts {
            ArtifactState::Some => only(LeaseAction::ListArtifacts),
            ArtifactState::None => self.submit(),
        }
    }

    fn submit(&mut self) -> LeaseActions<M> {
        let WordState::Settling(kept) = std::mem::replace(&mut self.word, WordState::Awaited)
        else {
            return nothing();
        };
        let KeptWord { word, blame, .. } = *kept;
        self.word = WordState::Submitted {
            instead: word.instead,
        };
        only(LeaseAction::Submit(word.message, blame))
    }

    /// No success without the artifacts that it is to have. Any other result is not held back by a
    /// disk in trouble (F44), nor is one that was taken before and is only said again.
    fn listed(&mut self, whole: Option<usize>, now: Millis) -> LeaseActions<M> {
        let WordState::Settling(kept) = &self.word else {
            return nothing();
        };
        // A word that came again meanwhile waits for its own, and asks for the list anew.
        if !self.is_settled() {
            return nothing();
        }
        let (counted, claim) = (kept.word.artifacts, kept.word.claim);
        let is_live = self.ended().is_none() && now < self.until;
        let refused = match whole {
            None if counted > 0 => Some(LeaseAction::RefuseForDisk),
            Some(whole) if whole < counted as usize => Some(LeaseAction::RefuseForArtifacts),
            _ => None,
        };
        if refused.is_some() && is_live && claim == Claim::Success {
            self.word = WordState::Awaited;
            return [refused, None];
        }
        self.submit()
    }

    fn judged(&mut self, judgement: Judgement) -> LeaseActions<M> {
        match judgement {
            Judgement::Final { late_log_until } => {
                self.word_answered();
                let log_length = self.declared;
                self.end(LateLogWindow {
                    log_length,
                    until: late_log_until,
                })
            }
            Judgement::NotAcknowledged | Judgement::NotDone => {
                self.word_answered();
                nothing()
            }
            Judgement::Unasked => self.submit_instead(),
            // A repeat of such an end: what was told then finds its answer (A18).
            Judgement::AlreadyFinal => match self.submit_instead() {
                [None, _] => only(LeaseAction::Forget),
                told => told,
            },
            Judgement::Stale => only(LeaseAction::Forget),
        }
    }

    /// The next that comes is a new one. One that came again meanwhile is not answered yet.
    fn word_answered(&mut self) {
        if matches!(self.word, WordState::Submitted { .. }) {
            self.word = WordState::Awaited;
        }
    }

    /// A stop that nobody asked for is the agent's own doing: its result says so.
    fn submit_instead(&mut self) -> LeaseActions<M> {
        match &mut self.word {
            WordState::Submitted { instead } => instead.take().map_or_else(nothing, |message| {
                only(LeaseAction::Submit(*message, Blame::AsSaid))
            }),
            WordState::Awaited | WordState::Settling(_) => nothing(),
        }
    }

    fn lost(&mut self, late_log_until: Instant) -> LeaseActions<M> {
        match (self.standing, self.cancel) {
            (Standing::Ended(_), _) => nothing(),
            // After a forced cancel the rest of the log is still welcome (A42).
            (_, CancelState::Told) => self.end(LateLogWindow {
                log_length: u64::MAX,
                until: late_log_until,
            }),
            (_, CancelState::NotTold) => only(LeaseAction::Forget),
        }
    }

    fn end(&mut self, window: LateLogWindow) -> LeaseActions<M> {
        if self.ended().is_some() {
            return nothing();
        }
        self.standing = Standing::Ended(window);
        only(LeaseAction::FreeSlot)
    }

    fn renew(&mut self, message: M) -> LeaseActions<M> {
        match &mut self.renewal {
            RenewalState::Idle => {
                self.renewal = RenewalState::Submitted;
                only(LeaseAction::SubmitRenewal(message))
            }
            RenewalState::Submitted | RenewalState::SubmittedWithNext(_) => {
                self.renewal = RenewalState::SubmittedWithNext(Box::new(message));
                nothing()
            }
        }
    }

    fn renewal_answered(&mut self) -> LeaseActions<M> {
        match std::mem::replace(&mut self.renewal, RenewalState::Idle) {
            RenewalState::SubmittedWithNext(message) => self.renew(*message),
            RenewalState::Idle | RenewalState::Submitted => nothing(),
        }
    }

    /// What its rights hang on, as far as this session has heard.
    pub fn bond<'a>(&'a self, principal: &'a Text, now: Millis, floor: Millis) -> Bond<'a> {
        let late = self.ended().map(|ended| {
            let left = ended.until.saturating_duration_since(Instant::now());
            let left = i64::try_from(left.as_millis()).unwrap_or(i64::MAX);
            LateLog {
                until: now + Span(left),
                up_to: Some(ended.log_length),
            }
        });
        let state = match self.standing {
            Standing::Ended(_) => LeaseState::Completed,
            Standing::Accepted => LeaseState::Active,
            Standing::Offered => LeaseState::Granted,
        };
        Bond {
            token: &self.token,
            principal,
            state,
            until: self.until.max(floor),
            late,
        }
    }
}

fn nothing<M>() -> LeaseActions<M> {
    [None, None]
}

fn only<M>(action: LeaseAction<M>) -> LeaseActions<M> {
    [Some(action), None]
}

#[cfg(test)]
#[path = "held_lease_tests.rs"]
mod tests;
