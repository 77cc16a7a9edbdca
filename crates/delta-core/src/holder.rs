//! The other side of a lease: what its holder must do, and when it must stop.
//!
//! A pure machine for agents. The agent feeds it what happened on its own monotonic clock and asks
//! [`Holder::todo`]; the machine never executes anything. It keeps the rules that a holder owes:
//! no work before the acknowledgement was accepted (RP-2), a heartbeat every interval, an end to
//! the work when the lease is stale, the local time to live is over or a cancel came, and never a
//! result after that (RP-19, RP-45). The local time to live counts from the *sending* of the last
//! message that was answered, so a holder always stops before the server gives its work away.

use crate::time::{Millis, Span};

/// The holder ends the work this long before a cancel deadline, so that its answer still arrives.
pub const KILL_MARGIN: Span = Span::secs(5);

/// The first heartbeat says that the work is running, and goes out this long after it began: soon
/// enough for whoever watches, and late enough that short work, which says more by its result,
/// costs the server one message less.
pub const FIRST_HEARTBEAT: Span = Span(100);

/// What the grant promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    pub ttl: Span,
    pub heartbeat_interval: Span,
    pub max_runtime: Span,
    /// Time between TERM and KILL when the holder itself ends the work.
    pub grace: Span,
}

/// Why the work must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopWhy {
    /// The server asked; the answer is a cancel acknowledgement.
    Cancel,
    /// The job had its time; the answer is a completion that says so.
    MaxRuntime,
    /// The server said the lease is stale; nothing may be answered.
    Stale,
    /// The server was not heard for a whole time to live; nothing may be answered.
    OutOfTouch,
}

impl StopWhy {
    /// The lease is lost: no message may follow.
    pub fn is_loss(self) -> bool {
        matches!(self, StopWhy::Stale | StopWhy::OutOfTouch)
    }
}

/// What an answer to a heartbeat, or to the acknowledgement, said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Renewed {
        ttl: Span,
        cancel: Option<Span>,
    },
    /// The server has not seen the acknowledgement.
    NotAcknowledged,
    /// A result of this lease was taken before: whose answer got lost sends the same again and
    /// hears it. Nobody may work under it any more.
    AlreadyFinal,
    Stale,
}

/// What the agent must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Todo {
    /// Send `AckLease`, and again until it is answered.
    Acknowledge,
    /// Begin the work: exactly once.
    StartWork,
    Heartbeat,
    /// Ask the work to end (TERM), then [`Todo::KillWork`] at the given moment.
    StopWork(StopWhy),
    /// End the whole process group (KILL).
    KillWork(StopWhy),
    /// Send the completion, the same each time, until it is answered.
    Complete,
    /// Send the cancel acknowledgement until it is answered.
    CancelAck,
    /// Nothing before this moment.
    Wait(Millis),
    /// Release everything; `Some` says that the lease was lost.
    Release(Option<StopWhy>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Granted; the acknowledgement is not answered.
    Offered,
    /// Acknowledged; the work has not begun.
    Accepted,
    Working,
    /// The work was told to end; `killed` once it was forced.
    Stopping {
        why: StopWhy,
        asked: bool,
        kill_at: Millis,
        killed: bool,
    },
    /// The work has ended; its result waits for an answer.
    Reporting {
        cancel: bool,
    },
    Done {
        lost: Option<StopWhy>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    terms: Terms,
    phase: Phase,
    /// The work is, or may be, executing.
    work_alive: bool,
    /// Past this moment the lease must be taken for lost.
    valid_until: Millis,
    next_heartbeat: Millis,
    must_finish_by: Millis,
    /// When the acknowledgement was first due to be sent. A repeat is answered exactly like the
    /// first one, so the time that the answer gives counts from here.
    first_ack: Option<Millis>,
}

impl Holder {
    /// `asked_at` is when the lease request that brought the grant was sent, or the moment the
    /// grant arrived if that is not known.
    pub fn new(terms: Terms, asked_at: Millis) -> Holder {
        Holder {
            terms,
            phase: Phase::Offered,
            work_alive: false,
            valid_until: asked_at + terms.ttl,
            next_heartbeat: Millis::FAR,
            must_finish_by: Millis::FAR,
            first_ack: None,
        }
    }

    /// A lease under which an earlier process of the holder began to work: acknowledged, and valid
    /// until then unless it is renewed. `stopping` says why the work was told to end, if it was,
    /// and when it is to be forced.
    pub fn adopt(
        terms: Terms,
        valid_until: Millis,
        must_finish_by: Millis,
        stopping: Option<(StopWhy, Millis)>,
        now: Millis,
    ) -> Holder {
        let phase = match stopping {
            None => Phase::Working,
            Some((why, kill_at)) => Phase::Stopping {
                why,
                asked: true,
                kill_at,
                killed: false,
            },
        };
        Holder {
            terms,
            phase,
            work_alive: true,
            valid_until,
            next_heartbeat: now,
            must_finish_by,
            first_ack: None,
        }
    }

    /// What must be done at `now`. Asking changes nothing but the choice to stop, and remembers
    /// when the acknowledgement was first asked for.
    pub fn todo(&mut self, now: Millis) -> Todo {
        self.notice(now);
        match self.phase {
            Phase::Offered => {
                self.first_ack.get_or_insert(now);
                Todo::Acknowledge
            }
            Phase::Accepted => Todo::StartWork,
            Phase::Working if now >= self.next_heartbeat => Todo::Heartbeat,
            Phase::Working => Todo::Wait(
                self.next_heartbeat
                    .min(self.must_finish_by)
                    .min(self.valid_until),
            ),
            Phase::Stopping {
                why, asked: false, ..
            } => Todo::StopWork(why),
            Phase::Stopping {
                why,
                kill_at,
                killed: false,
                ..
            } if now >= kill_at => Todo::KillWork(why),
            Phase::Stopping {
                why,
                kill_at,
                killed,
                ..
            } => {
                let heartbeats = !why.is_loss();
                if heartbeats && now >= self.next_heartbeat {
                    return Todo::Heartbeat;
                }
                let kill = if killed { Millis::FAR } else { kill_at };
                let beat = if heartbeats {
                    self.next_heartbeat
                } else {
                    Millis::FAR
                };
                Todo::Wait(kill.min(beat))
            }
            Phase::Reporting { .. } if now >= self.next_heartbeat => Todo::Heartbeat,
            Phase::Reporting { cancel: true } => Todo::CancelAck,
            Phase::Reporting { cancel: false } => Todo::Complete,
            Phase::Done { lost } => Todo::Release(lost),
        }
    }

    /// Time alone may end the right to work.
    fn notice(&mut self, now: Millis) {
        let out_of_touch = now >= self.valid_until;
        match self.phase {
            Phase::Done { .. } => {}
            Phase::Stopping { why, .. } if why.is_loss() => {}
            Phase::Offered | Phase::Accepted | Phase::Reporting { .. } if out_of_touch => {
                self.phase = Phase::Done {
                    lost: Some(StopWhy::OutOfTouch),
                };
            }
            Phase::Working | Phase::Stopping { .. } if out_of_touch => {
                self.stop(StopWhy::OutOfTouch, now);
            }
            Phase::Working if now >= self.must_finish_by => {
                self.stop(StopWhy::MaxRuntime, now + self.terms.grace);
            }
            _ => {}
        }
    }

    fn stop(&mut self, why: StopWhy, kill_at: Millis) {
        let asked = matches!(self.phase, Phase::Stopping { asked: true, .. });
        self.phase = Phase::Stopping {
            why,
            asked,
            kill_at,
            killed: false,
        };
    }

    /// The acknowledgement sent at `sent_at` was answered at `now`.
    pub fn acknowledged(&mut self, sent_at: Millis, answer: Answer, now: Millis) {
        let sent_at = self.first_ack.map_or(sent_at, |first| first.min(sent_at));
        match (self.phase, answer) {
            (Phase::Offered, Answer::Renewed { ttl, .. }) => {
                self.phase = Phase::Accepted;
                self.valid_until = sent_at + ttl;
                self.next_heartbeat = now + FIRST_HEARTBEAT.min(self.terms.heartbeat_interval);
                self.must_finish_by = now + self.terms.max_runtime;
            }
            // Sent again because the server had not seen it; the work goes on.
            (_, Answer::Renewed { ttl, .. }) => self.renew(sent_at, ttl),
            (_, Answer::AlreadyFinal) => self.already_final(now),
            (_, Answer::Stale | Answer::NotAcknowledged) => self.lose(now),
        }
    }

    pub fn work_started(&mut self) {
        if self.phase == Phase::Accepted {
            self.phase = Phase::Working;
            self.work_alive = true;
        }
    }

    /// A heartbeat went out; the next is due one interval later whether or not it is answered.
    pub fn heartbeat_sent(&mut self, now: Millis) {
        self.next_heartbeat = now + self.terms.heartbeat_interval;
    }

    /// The heartbeat sent at `sent_at` was answered at `now`.
    pub fn heartbeat_answered(&mut self, sent_at: Millis, answer: Answer, now: Millis) {
        match answer {
            Answer::Stale => self.lose(now),
            Answer::AlreadyFinal => self.already_final(now),
            Answer::NotAcknowledged => {}
            Answer::Renewed { ttl, cancel } => {
                self.renew(sent_at, ttl);
                if let Some(deadline) = cancel {
                    let margin = Span(KILL_MARGIN.0.min(deadline.0 / 2));
                    self.cancel(now + Span(deadline.0 - margin.0));
                }
            }
        }
    }

    /// A cancel that is heard again may come earlier than it was first known, never later.
    fn cancel(&mut self, by: Millis) {
        match &mut self.phase {
            Phase::Working => self.stop(StopWhy::Cancel, by),
            Phase::Stopping {
                why: StopWhy::Cancel,
                kill_at,
                killed: false,
                ..
            } => *kill_at = by.min(*kill_at),
            _ => {}
        }
    }

    fn renew(&mut self, sent_at: Millis, ttl: Span) {
        let lost = matches!(self.phase, Phase::Stopping { why, .. } if why.is_loss());
        if !lost {
            self.valid_until = self.valid_until.max(sent_at + ttl);
        }
    }

    fn already_final(&mut self, now: Millis) {
        if !matches!(self.phase, Phase::Reporting { .. } | Phase::Done { .. }) {
            self.lose(now);
        }
    }

    fn lose(&mut self, now: Millis) {
        if self.work_alive {
            self.stop(StopWhy::Stale, now);
        } else {
            self.phase = Phase::Done {
                lost: Some(StopWhy::Stale),
            };
        }
    }

    /// The work was asked to end.
    pub fn stop_asked(&mut self) {
        if let Phase::Stopping { asked, .. } = &mut self.phase {
            *asked = true;
        }
    }

    /// The work was forced to end; [`Holder::work_ended`] follows when it has.
    pub fn kill_sent(&mut self) {
        if let Phase::Stopping { killed, .. } = &mut self.phase {
            *killed = true;
        }
    }

    /// Nothing of the work is left.
    pub fn work_ended(&mut self) {
        self.work_alive = false;
        self.phase = match self.phase {
            Phase::Stopping { why, .. } if why.is_loss() => Phase::Done { lost: Some(why) },
            Phase::Stopping {
                why: StopWhy::Cancel,
                ..
            } => Phase::Reporting { cancel: true },
            Phase::Working | Phase::Stopping { .. } => Phase::Reporting { cancel: false },
            other => other,
        };
    }

    /// Why the work was stopped, while it is being stopped.
    pub fn stopping(&self) -> Option<StopWhy> {
        match self.phase {
            Phase::Stopping { why, .. } => Some(why),
            _ => None,
        }
    }

    /// When the work that is being stopped is forced to end.
    pub fn kill_at(&self) -> Option<Millis> {
        match self.phase {
            Phase::Stopping { kill_at, .. } => Some(kill_at),
            _ => None,
        }
    }

    /// The result was answered: accepted, or overtaken by a cancel, or stale. All end the lease.
    pub fn result_answered(&mut self, stale: bool) {
        let lost = stale.then_some(StopWhy::Stale);
        self.phase = Phase::Done { lost };
    }

    /// Past this moment the lease must be taken for lost.
    pub fn valid_until(&self) -> Millis {
        self.valid_until
    }

    /// The moment at which the work has had its time.
    pub fn must_finish_by(&self) -> Millis {
        self.must_finish_by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms = Terms {
        ttl: Span::secs(120),
        heartbeat_interval: Span::secs(20),
        max_runtime: Span::secs(600),
        grace: Span::secs(10),
    };

    fn at(seconds: i64) -> Millis {
        Millis(seconds * 1000)
    }

    fn renewed(cancel: Option<Span>) -> Answer {
        Answer::Renewed {
            ttl: TERMS.ttl,
            cancel,
        }
    }

    fn working() -> Holder {
        let mut holder = Holder::new(TERMS, at(0));
        holder.acknowledged(at(0), renewed(None), at(1));
        assert_eq!(holder.todo(at(1)), Todo::StartWork);
        holder.work_started();
        holder
    }

    #[test]
    fn nothing_starts_before_the_acknowledgement_is_accepted() {
        // RP-2
        let mut holder = Holder::new(TERMS, at(0));
        for second in 0..119 {
            assert_eq!(holder.todo(at(second)), Todo::Acknowledge);
        }
        assert_eq!(
            holder.todo(at(120)),
            Todo::Release(Some(StopWhy::OutOfTouch))
        );
    }

    #[test]
    fn a_heartbeat_is_due_every_interval() {
        let mut holder = working();
        assert_eq!(holder.todo(at(1)), Todo::Wait(at(1) + FIRST_HEARTBEAT));
        assert_eq!(holder.todo(at(2)), Todo::Heartbeat);
        holder.heartbeat_sent(at(2));
        assert_eq!(holder.todo(at(2)), Todo::Wait(at(22)));
        holder.heartbeat_answered(at(2), renewed(None), at(3));
        assert_eq!(holder.todo(at(22)), Todo::Heartbeat);
    }

    #[test]
    fn short_work_is_reported_without_a_heartbeat_before() {
        let mut holder = working();
        holder.work_ended();
        assert_eq!(holder.todo(at(1)), Todo::Complete);
        // An interval that is shorter counts.
        let terms = Terms {
            heartbeat_interval: Span(20),
            ..TERMS
        };
        let mut holder = Holder::new(terms, at(0));
        holder.acknowledged(at(0), renewed(None), at(1));
        holder.work_started();
        assert_eq!(holder.todo(at(1)), Todo::Wait(at(1) + Span(20)));
    }

    #[test]
    fn the_local_ttl_counts_from_the_sending_of_the_last_answered_message() {
        // F30, F31, D7: answers that take long never stretch the right to work.
        let mut holder = working();
        holder.heartbeat_sent(at(20));
        holder.heartbeat_answered(at(20), renewed(None), at(100));
        holder.heartbeat_sent(at(139));
        assert_eq!(holder.valid_until(), at(140));
        assert_eq!(holder.todo(at(140)), Todo::StopWork(StopWhy::OutOfTouch));
        holder.stop_asked();
        assert_eq!(holder.todo(at(140)), Todo::KillWork(StopWhy::OutOfTouch));
        holder.kill_sent();
        holder.work_ended();
        // RP-19, RP-45: no result, no heartbeat.
        assert_eq!(
            holder.todo(at(141)),
            Todo::Release(Some(StopWhy::OutOfTouch))
        );
    }

    #[test]
    fn a_stale_lease_ends_the_work_without_a_result() {
        // RP-45
        let mut holder = working();
        holder.heartbeat_sent(at(20));
        holder.heartbeat_answered(at(20), Answer::Stale, at(21));
        assert_eq!(holder.todo(at(21)), Todo::StopWork(StopWhy::Stale));
        holder.stop_asked();
        assert_eq!(holder.todo(at(21)), Todo::KillWork(StopWhy::Stale));
        holder.kill_sent();
        assert_eq!(
            holder.todo(at(60)),
            Todo::Wait(Millis::FAR),
            "no heartbeat on a stale lease"
        );
        holder.work_ended();
        assert_eq!(holder.todo(at(61)), Todo::Release(Some(StopWhy::Stale)));
    }

    #[test]
    fn a_cancel_is_asked_then_forced_before_its_deadline_then_acknowledged() {
        // RP-37, A70
        let mut holder = working();
        holder.heartbeat_sent(at(20));
        holder.heartbeat_answered(at(20), renewed(Some(Span::secs(30))), at(20));
        assert_eq!(holder.todo(at(20)), Todo::StopWork(StopWhy::Cancel));
        holder.stop_asked();
        assert_eq!(holder.todo(at(30)), Todo::Wait(at(40)), "heartbeats go on");
        assert_eq!(holder.todo(at(45)), Todo::KillWork(StopWhy::Cancel));
        holder.kill_sent();
        holder.work_ended();
        holder.heartbeat_sent(at(45));
        assert_eq!(holder.todo(at(46)), Todo::CancelAck);
        holder.result_answered(false);
        assert_eq!(holder.todo(at(46)), Todo::Release(None));
    }

    #[test]
    fn a_cancel_heard_again_is_never_put_off_and_may_come_sooner() {
        // An agent that took the work over knows the deadline only from its own heartbeat.
        let stopping = Some((StopWhy::Cancel, at(86_400)));
        let mut holder = Holder::adopt(TERMS, at(120), at(600), stopping, at(0));
        let cancel = |seconds| renewed(Some(Span::secs(seconds)));
        holder.heartbeat_answered(at(0), cancel(20), at(0));
        assert_eq!(holder.kill_at(), Some(at(15)));
        holder.heartbeat_answered(at(1), cancel(60), at(1));
        assert_eq!(holder.kill_at(), Some(at(15)));
        holder.heartbeat_sent(at(15));
        assert_eq!(holder.todo(at(15)), Todo::KillWork(StopWhy::Cancel));
    }

    #[test]
    fn the_work_is_ended_at_its_max_runtime_and_reported() {
        // RP-50
        let mut holder = working();
        for n in 0..30 {
            let now = at(1 + n * 20);
            holder.heartbeat_sent(now);
            holder.heartbeat_answered(now, renewed(None), now);
        }
        assert_eq!(holder.todo(at(601)), Todo::StopWork(StopWhy::MaxRuntime));
        holder.stop_asked();
        assert_eq!(holder.todo(at(610)), Todo::Heartbeat);
        holder.heartbeat_sent(at(610));
        assert_eq!(holder.todo(at(611)), Todo::KillWork(StopWhy::MaxRuntime));
        holder.kill_sent();
        holder.work_ended();
        assert_eq!(holder.todo(at(612)), Todo::Complete);
    }

    #[test]
    fn a_result_is_sent_again_until_it_is_answered_and_the_lease_kept_alive_meanwhile() {
        let mut holder = working();
        holder.heartbeat_sent(at(1));
        holder.work_ended();
        assert_eq!(holder.todo(at(5)), Todo::Complete);
        assert_eq!(holder.todo(at(10)), Todo::Complete);
        assert_eq!(holder.todo(at(21)), Todo::Heartbeat);
        holder.heartbeat_sent(at(21));
        assert_eq!(holder.todo(at(22)), Todo::Complete);
        holder.result_answered(false);
        // RP-35: nothing follows the answer.
        assert_eq!(holder.todo(at(100)), Todo::Release(None));
    }

    #[test]
    fn a_result_whose_answer_got_lost_is_sent_again_though_the_lease_is_final() {
        // A18, F5
        let mut holder = working();
        holder.heartbeat_sent(at(2));
        holder.work_ended();
        holder.heartbeat_answered(at(2), Answer::AlreadyFinal, at(3));
        assert_eq!(holder.todo(at(3)), Todo::Complete);
        holder.result_answered(false);
        assert_eq!(holder.todo(at(4)), Todo::Release(None));
        // RP-19: work that goes on under such a lease is ended and says nothing.
        let mut holder = working();
        holder.heartbeat_answered(at(1), Answer::AlreadyFinal, at(2));
        assert_eq!(holder.todo(at(2)), Todo::StopWork(StopWhy::Stale));
        holder.work_ended();
        assert_eq!(holder.todo(at(3)), Todo::Release(Some(StopWhy::Stale)));
    }

    #[test]
    fn a_repeated_acknowledgement_counts_from_the_first_sending() {
        // LM-5, LM-17, I16: the server accepted the first one and its answer was lost.
        let mut holder = Holder::new(TERMS, at(0));
        assert_eq!(holder.todo(at(1)), Todo::Acknowledge);
        assert_eq!(holder.todo(at(90)), Todo::Acknowledge);
        holder.acknowledged(at(90), renewed(None), at(91));
        assert_eq!(holder.valid_until(), at(121), "not 90 + 120");
    }

    #[test]
    fn an_adopted_lease_goes_on_where_it_stood() {
        // F8: at once a heartbeat, and the old deadlines.
        let adopt = |stopping| Holder::adopt(TERMS, at(120), at(600), stopping, at(100));
        let mut holder = adopt(None);
        assert_eq!(holder.todo(at(100)), Todo::Heartbeat);
        holder.heartbeat_sent(at(100));
        assert_eq!(holder.todo(at(101)), Todo::Wait(at(120)));
        assert_eq!(holder.todo(at(120)), Todo::StopWork(StopWhy::OutOfTouch));
        let mut holder = adopt(Some((StopWhy::Cancel, at(105))));
        holder.heartbeat_sent(at(100));
        assert_eq!(holder.todo(at(105)), Todo::KillWork(StopWhy::Cancel));
        holder.kill_sent();
        holder.work_ended();
        assert_eq!(holder.todo(at(106)), Todo::CancelAck);
        let mut late = Holder::adopt(TERMS, at(120), at(600), None, at(130));
        assert_eq!(late.todo(at(130)), Todo::StopWork(StopWhy::OutOfTouch));
    }

    #[test]
    fn no_result_is_sent_after_the_local_ttl() {
        // RP-19
        let mut holder = working();
        holder.work_ended();
        holder.heartbeat_sent(at(119));
        assert_eq!(holder.todo(at(119)), Todo::Complete);
        assert_eq!(
            holder.todo(at(120)),
            Todo::Release(Some(StopWhy::OutOfTouch))
        );
    }
}
