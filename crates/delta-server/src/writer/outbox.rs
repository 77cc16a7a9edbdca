//! Where answers go: to one request that waits for its own, or into the outbox of a session, which
//! takes everything that a batch has for it at once.
//!
//! Owns the hand-over from the writer's thread to the tasks. An outbox is closed by its session;
//! what is put into a closed one is dropped, and a grant that is dropped revokes itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use delta_core::{AttemptId, Cause, Fact, LeaseEvent, LeaseKey, Record};
use tokio::sync::{Notify, oneshot};

use super::{Answer, LeaseAnswer};
use crate::not_done::NotDone;

/// Which message of a session an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub kind: TicketKind,
    pub lease: LeaseKey,
    /// As the message gave it.
    pub seq: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketKind {
    Accept,
    Decline,
    Renew,
    Complete,
    CancelAck,
}

/// Something that happened to a lease without its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    CancelAsked(Cause),
    Expired,
    Revoked,
}

/// What lies in an outbox.
#[derive(Debug)]
pub enum Delivered {
    Answer(Ticket, Result<Answer, NotDone>),
    /// An answer to the slot's request for work, and which of its requests.
    Lease {
        slot: u32,
        round: u32,
        answer: LeaseAnswer,
    },
    News(LeaseKey, News),
}

/// One session's side of the writer. Bounded by what the session has sent and not heard of.
#[derive(Default)]
pub struct Outbox {
    waiting: Mutex<Vec<Delivered>>,
    arrived: Notify,
    closed: AtomicBool,
    /// Set while the session wants no work.
    resting: AtomicBool,
}

impl Outbox {
    fn put(self: &Arc<Outbox>, delivered: Delivered, bells: &mut Bells) {
        if self.is_closed() {
            return;
        }
        let mut waiting = self.lock();
        waiting.push(delivered);
        if waiting.len() == 1 {
            bells.0.push(self.clone());
        }
    }

    /// Everything that has arrived; nothing when nothing has.
    pub fn take(&self) -> Vec<Delivered> {
        std::mem::take(&mut self.lock())
    }

    /// Returns when something may have arrived since the last [`Outbox::take`].
    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }

    /// Nobody reads it any more. Grants that lie in it are taken back.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        drop(self.take());
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether parked slots are to be left out of matching.
    pub fn rest(&self, resting: bool) {
        self.resting.store(resting, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Delivered>> {
        // A list has no state to spoil.
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Sessions that have something in their outbox and have not been told. They are when this goes:
/// one that woke at its first answer would find the others of its batch piece by piece.
#[derive(Default)]
pub(super) struct Bells(Vec<Arc<Outbox>>);

impl Drop for Bells {
    fn drop(&mut self) {
        for outbox in &self.0 {
            outbox.arrived.notify_one();
        }
    }
}

/// Who waits for a command's answer.
pub(super) enum AnswerTo {
    One(oneshot::Sender<Result<Answer, NotDone>>),
    Session(Arc<Outbox>, Ticket),
}

impl AnswerTo {
    pub fn send(self, answer: Result<Answer, NotDone>, bells: &mut Bells) {
        match self {
            AnswerTo::One(one) => drop(one.send(answer)),
            AnswerTo::Session(outbox, ticket) => {
                outbox.put(Delivered::Answer(ticket, answer), bells);
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        match self {
            AnswerTo::One(one) => one.is_closed(),
            AnswerTo::Session(outbox, _) => outbox.is_closed(),
        }
    }
}

/// Who waits for work.
pub(super) enum LeaseTo {
    One(oneshot::Sender<LeaseAnswer>),
    Session {
        outbox: Arc<Outbox>,
        slot: u32,
        round: u32,
    },
}

impl LeaseTo {
    /// A grant that nobody takes revokes itself as it is dropped.
    pub fn send(self, answer: LeaseAnswer, bells: &mut Bells) {
        match self {
            LeaseTo::One(one) => drop(one.send(answer)),
            LeaseTo::Session {
                outbox,
                slot,
                round,
            } => {
                let delivered = Delivered::Lease {
                    slot,
                    round,
                    answer,
                };
                outbox.put(delivered, bells);
            }
        }
    }

    /// Nobody is there to take a grant, or wants none.
    pub fn is_closed(&self) -> bool {
        match self {
            LeaseTo::One(one) => one.is_closed(),
            LeaseTo::Session { outbox, .. } => {
                outbox.is_closed() || outbox.resting.load(Ordering::Acquire)
            }
        }
    }

    /// The session that waits, if it is one.
    pub fn session(&self) -> Option<&Arc<Outbox>> {
        match self {
            LeaseTo::One(_) => None,
            LeaseTo::Session { outbox, .. } => Some(outbox),
        }
    }
}

/// Which session wants to hear of which lease. The writer's thread owns it.
#[derive(Default)]
pub(super) struct Listeners(BTreeMap<LeaseKey, Arc<Outbox>>);

impl Listeners {
    pub fn listen(&mut self, lease: LeaseKey, outbox: Arc<Outbox>) {
        self.0.insert(lease, outbox);
    }

    /// Forgets sessions that are gone; their leases live on without them.
    pub fn drop_closed(&mut self) {
        self.0.retain(|_, outbox| !outbox.is_closed());
    }

    /// Tells sessions what committed records say about their leases.
    pub fn tell(&mut self, records: &[Record], bells: &mut Bells) {
        if self.0.is_empty() {
            return;
        }
        for record in records {
            for fact in &record.facts {
                self.tell_fact(record, fact, bells);
            }
        }
    }

    fn tell_fact(&mut self, record: &Record, fact: &Fact, bells: &mut Bells) {
        let attempt = |job: u32, index: u32| record.run.job(job).attempt(index);
        match fact {
            Fact::CancelAsked { job, index, cancel } => {
                if let Some((lease, outbox)) = self.of(attempt(*job, *index)) {
                    let news = News::CancelAsked(cancel.cause);
                    outbox.put(Delivered::News(lease, news), bells);
                }
            }
            Fact::LeaseMoved {
                job, index, event, ..
            } => {
                let news = match event {
                    LeaseEvent::Expired => Some(News::Expired),
                    LeaseEvent::Revoked => Some(News::Revoked),
                    LeaseEvent::Completed | LeaseEvent::Canceled => None,
                    LeaseEvent::Acknowledged => return,
                };
                let Some((lease, outbox)) = self.of(attempt(*job, *index)) else {
                    return;
                };
                self.0.remove(&lease);
                if let Some(news) = news {
                    outbox.put(Delivered::News(lease, news), bells);
                }
            }
            _ => {}
        }
    }

    /// At most one lease of an attempt is live.
    fn of(&self, attempt: AttemptId) -> Option<(LeaseKey, Arc<Outbox>)> {
        let range = attempt.lease(0)..=attempt.lease(u64::MAX);
        let (lease, outbox) = self.0.range(range).next_back()?;
        Some((*lease, outbox.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_into_a_closed_outbox_is_dropped() {
        let outbox = Arc::new(Outbox::default());
        let mut bells = Bells::default();
        let lease = delta_core::RunId(1).job(0).attempt(1).lease(1);
        outbox.put(Delivered::News(lease, News::Expired), &mut bells);
        outbox.close();
        assert!(outbox.take().is_empty());
        outbox.put(Delivered::News(lease, News::Expired), &mut bells);
        assert!(outbox.take().is_empty());
    }
}
