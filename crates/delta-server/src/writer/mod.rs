//! The writer: one thread that owns the store, decides every command and answers only after the
//! commit (D2).
//!
//! ```text
//! handlers ─► lanes ─► thread: begin · load · decide · match parked slots · commit ─► answers
//! ```
//!
//! While a commit runs, commands gather in the lanes and form the next batch by themselves; nothing
//! ever waits in order to be grouped. This file is the side that handlers see.

mod batch;
mod delivery;
mod grant;
mod held_heartbeats;
pub mod lanes;
mod outbox;
mod parking;
pub mod proof;
mod receipts;
mod stamped_command;
#[cfg(test)]
pub mod test_store;
#[cfg(test)]
mod test_trouble;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use delta_core::{Attempt, Command, Job, LeaseKey, Millis, Reply, Run, Settings, Span, Text};
use delta_store::{Store, StoreError};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

pub use delivery::{Delivery, GrantedLease};
pub use lanes::Lane;
pub use outbox::{Delivered, News, Outbox, Ticket, TicketKind};
pub use parking::Offer;
pub use receipts::Receipt;
pub use thread::Thread;

use crate::audit::Noticed;
use crate::clock::{Clock, DIVERGENCE};
use crate::functions::Rates;
use crate::metrics::Metrics;
use crate::not_done::NotDone;
use crate::watch::Watchers;
use lanes::{Lanes, Refused};
use outbox::{AnswerTo, LeaseTo};
use proof::Proof;
use receipts::Receipts;

/// A command that waited this long is answered "try again", never judged (A38): its sender has
/// given up on it, or will repeat it.
pub const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A session's slots wait as long as it lasts: a year is longer.
const FOR_GOOD: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a command was answered with, after its commit.
#[derive(Debug)]
pub struct Answer {
    pub reply: Reply,
    /// The rows of a run this command made.
    pub created: Option<Box<Created>>,
    /// What is odd about the message, to be said once it is answered.
    noticed: Option<Box<Noticed>>,
}

/// A run as it was made.
#[derive(Debug)]
pub struct Created {
    pub run: Arc<Run>,
    pub jobs: Vec<(Arc<Job>, Arc<Attempt>)>,
}

type LeaseAnswer = Result<Option<Box<GrantedLease>>, NotDone>;
type Task = Box<dyn FnOnce(&mut dyn Store) + Send>;

/// One message in a lane.
struct Item {
    /// When it was fully read (A23).
    at: Millis,
    /// Since when it waits to be judged.
    arrived: Instant,
    kind: Kind,
}

impl Item {
    /// How much there is to write for it, in jobs to create.
    fn weight(&self) -> usize {
        match &self.kind {
            Kind::Command(order) => order.specs.len().max(1),
            Kind::Several(orders) | Kind::Whole(orders) => orders.len(),
            _ => 1,
        }
    }
}

enum Kind {
    Command(Box<Order>),
    /// Commands that become durable in one commit, where the store lets them.
    Several(Vec<Order>),
    /// Commands of which all are carried out in one commit, or none.
    Whole(Vec<Order>),
    Ask(Ask),
    /// Tell this session what happens to a lease.
    Listen(LeaseKey, Arc<Outbox>),
    /// Look for queued attempts for the slots that wait.
    Wake,
    /// Something a duty needs of the store, outside any batch.
    Task(Task),
}

/// A command and who waits for it.
struct Order {
    command: Command,
    /// Specs of the jobs a new run has, in their order.
    specs: Vec<Arc<str>>,
    /// How long the answer to a heartbeat may be held back to bring news of a cancel (A70).
    hold: Duration,
    answer: Option<AnswerTo>,
    /// Keeps timers from being judged before it.
    receipt: Option<Receipt>,
}

impl Order {
    fn of(command: Command) -> Order {
        Order {
            command,
            specs: Vec::new(),
            hold: Duration::ZERO,
            answer: None,
            receipt: None,
        }
    }
}

/// A slot that asks for work.
struct Ask {
    principal: Text,
    runner: Text,
    offer: Arc<Offer>,
    until: Instant,
    answer: LeaseTo,
}

/// A command on its way.
pub struct Sent(oneshot::Receiver<Result<Answer, NotDone>>);

impl Sent {
    pub async fn answer(self) -> Result<Answer, NotDone> {
        self.0.await.unwrap_or_else(|_| Err(NotDone::stopping()))
    }
}

/// What all sides share.
pub struct Shared {
    lanes: Lanes<Item>,
    pub clock: Clock,
    pub settings: Settings,
    pub metrics: Arc<Metrics>,
    pub watchers: Watchers,
    /// Rung when the line of a concurrency group moved: the sweep looks at once.
    pub turns: Arc<Notify>,
    /// Leases are not judged expired before this moment (A40).
    pub lease_floor: Millis,
    /// Several servers write to this store.
    pub several_writers: bool,
    /// Another server writes moments that are far ahead of this one's clock.
    pub behind: AtomicBool,
    /// What came and went by each queue.
    pub rates: Rates,
    /// Queues nothing of which is given out.
    paused: Mutex<Arc<BTreeSet<Text>>>,
    longest_wait: Duration,
    receipts: Arc<Receipts>,
    /// A wake-up is in its lane: one is as good as many.
    waking: AtomicBool,
    /// Parked requests are sent home and none is parked any more.
    closing: AtomicBool,
    /// The thread is gone for good.
    ended: CancellationToken,
    /// Whether the store takes what is written.
    proof: Proof,
}

/// The handlers' side of the writer. Cheap to clone.
#[derive(Clone)]
pub struct Writer {
    shared: Arc<Shared>,
}

impl Writer {
    pub fn now(&self) -> Millis {
        self.shared.clock.now()
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The moment a message has been fully read, to be handed on with its command (A23).
    pub fn receive(&self) -> Receipt {
        self.shared.receipts.open(&self.shared.clock)
    }

    /// Carries out a command that was fully read at `at`.
    pub async fn command(
        &self,
        lane: Lane,
        at: Millis,
        command: Command,
    ) -> Result<Answer, NotDone> {
        let order = Order::of(command);
        self.send(lane, at, order)?.answer().await
    }

    /// Makes a run. `specs` belong to its jobs, in order.
    pub async fn create(
        &self,
        at: Millis,
        command: Command,
        specs: Vec<Arc<str>>,
    ) -> Result<Answer, NotDone> {
        let order = Order {
            specs,
            ..Order::of(command)
        };
        self.send(Lane::People, at, order)?.answer().await
    }

    /// Carries out commands in one commit, each with the specs of the jobs it makes; their answers
    /// in their order. Each is decided alone: one may be refused and the next done, and what meets
    /// something unreadable holds up no other.
    pub async fn together(
        &self,
        at: Millis,
        commands: impl Iterator<Item = (Command, Vec<Arc<str>>)>,
    ) -> Result<Vec<Result<Answer, NotDone>>, NotDone> {
        self.send_all(at, Kind::Several, commands).await
    }

    /// Carries out all of these in one commit, or, where one is refused, none; their answers in
    /// their order.
    pub async fn all_or_none(
        &self,
        at: Millis,
        commands: impl Iterator<Item = (Command, Vec<Arc<str>>)>,
    ) -> Result<Vec<Answer>, NotDone> {
        let answers = self.send_all(at, Kind::Whole, commands).await?;
        answers.into_iter().collect()
    }

    async fn send_all(
        &self,
        at: Millis,
        kind: fn(Vec<Order>) -> Kind,
        commands: impl Iterator<Item = (Command, Vec<Arc<str>>)>,
    ) -> Result<Vec<Result<Answer, NotDone>>, NotDone> {
        let (mut orders, mut sent) = (Vec::new(), Vec::new());
        for (command, specs) in commands {
            let (answer, answered) = oneshot::channel();
            sent.push(Sent(answered));
            orders.push(Order {
                specs,
                answer: Some(AnswerTo::One(answer)),
                ..Order::of(command)
            });
        }
        self.push(Lane::People, at, self.arrived(at), kind(orders))?;
        let mut answers = Vec::with_capacity(sent.len());
        for sent in sent {
            answers.push(sent.answer().await);
        }
        Ok(answers)
    }

    /// Nothing of these queues is given out.
    pub fn pause(&self, queues: BTreeSet<Text>) {
        let mut paused = self.shared.paused.lock().unwrap_or_else(|e| e.into_inner());
        if **paused != queues {
            *paused = Arc::new(queues);
            drop(paused);
            self.wake();
        }
    }

    /// Carries out what the holder of a lease says. The answer to a heartbeat may be held back for
    /// up to `hold`, to bring news of a cancel.
    pub async fn holder_says(
        &self,
        receipt: Receipt,
        command: Command,
        hold: Duration,
    ) -> Result<Answer, NotDone> {
        let at = receipt.at();
        let order = Order {
            hold,
            receipt: Some(receipt),
            ..Order::of(command)
        };
        self.send(Lane::Hold, at, order)?.answer().await
    }

    fn send(&self, lane: Lane, at: Millis, order: Order) -> Result<Sent, NotDone> {
        self.send_since(lane, at, self.arrived(at), order)
    }

    /// Since when a message that was read at `at` waits: looking up who it comes from is part of
    /// it.
    fn arrived(&self, at: Millis) -> Instant {
        let waited = Duration::from_millis(self.now().since(at).0.unsigned_abs());
        let now = Instant::now();
        now.checked_sub(waited).unwrap_or(now)
    }

    fn send_since(
        &self,
        lane: Lane,
        at: Millis,
        arrived: Instant,
        mut order: Order,
    ) -> Result<Sent, NotDone> {
        let (answer, answered) = oneshot::channel();
        order.answer = Some(AnswerTo::One(answer));
        self.push(lane, at, arrived, Kind::Command(Box::new(order)))?;
        Ok(Sent(answered))
    }

    /// The moment up to which every message has been judged: what timers are judged at (A38).
    pub fn horizon(&self) -> Millis {
        self.shared.horizon()
    }

    /// Sends a command of a duty without waiting for its answer yet, so that many share a batch.
    pub fn send_duty(&self, at: Millis, command: Command) -> Result<Sent, NotDone> {
        self.send_since(Lane::Dispatch, at, Instant::now(), Order::of(command))
    }

    /// Asks for work, waiting up to `wait` for it. Dropping the future takes the request back.
    pub async fn lease(
        &self,
        at: Millis,
        principal: Text,
        runner: Text,
        offer: Arc<Offer>,
        wait: Duration,
    ) -> LeaseAnswer {
        let (answer, answered) = oneshot::channel();
        let ask = Ask {
            principal,
            runner,
            offer,
            until: Instant::now() + wait,
            answer: LeaseTo::One(answer),
        };
        self.push(Lane::Dispatch, at, Instant::now(), Kind::Ask(ask))?;
        answered.await.unwrap_or_else(|_| Err(NotDone::stopping()))
    }

    /// Carries out what a session's messages say, in their order; the answers go to its outbox.
    pub fn session_says(
        &self,
        outbox: &Arc<Outbox>,
        said: impl Iterator<Item = (Ticket, Receipt, Command)>,
    ) -> Result<(), NotDone> {
        let arrived = Instant::now();
        let items = said.map(|(ticket, receipt, command)| Item {
            at: receipt.at(),
            arrived,
            kind: Kind::Command(Box::new(Order {
                answer: Some(AnswerTo::Session(outbox.clone(), ticket)),
                receipt: Some(receipt),
                ..Order::of(command)
            })),
        });
        self.push_all(Lane::Hold, items.collect())
    }

    /// Parks slots of a session until they are granted something; the grants go to its outbox.
    pub fn park(
        &self,
        outbox: &Arc<Outbox>,
        principal: &Text,
        slots: impl Iterator<Item = (u32, u32, Text, Arc<Offer>)>,
    ) -> Result<(), NotDone> {
        let (at, arrived) = (self.now(), Instant::now());
        let items = slots.map(|(slot, round, runner, offer)| Item {
            at,
            arrived,
            kind: Kind::Ask(Ask {
                principal: principal.clone(),
                runner,
                offer,
                until: arrived + FOR_GOOD,
                answer: LeaseTo::Session {
                    outbox: outbox.clone(),
                    slot,
                    round,
                },
            }),
        });
        self.push_all(Lane::Dispatch, items.collect())
    }

    /// From now on the session hears what happens to these leases.
    pub fn listen(
        &self,
        outbox: &Arc<Outbox>,
        leases: impl Iterator<Item = LeaseKey>,
    ) -> Result<(), NotDone> {
        let (at, arrived) = (self.now(), Instant::now());
        let items = leases.map(|lease| Item {
            at,
            arrived,
            kind: Kind::Listen(lease, outbox.clone()),
        });
        self.push_all(Lane::Hold, items.collect())
    }

    fn push_all(&self, lane: Lane, items: Vec<Item>) -> Result<(), NotDone> {
        let pushed = self.shared.lanes.push_all(lane, items);
        pushed.map_err(|why| self.refused(&why))
    }

    /// Runs `task` on the store between two batches.
    pub async fn with_store<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, NotDone> {
        let (answer, answered) = oneshot::channel();
        let task = Box::new(move |store: &mut dyn Store| {
            let _ = answer.send(task(store).map_err(NotDone::from));
        });
        self.push(Lane::Dispatch, self.now(), Instant::now(), Kind::Task(task))?;
        answered.await.unwrap_or_else(|_| Err(NotDone::stopping()))
    }

    /// Work may be waiting for parked slots: look.
    pub fn wake(&self) {
        self.shared.wake();
    }

    /// Sends every parked request home with nothing; new ones find nothing at once.
    pub fn stop_parking(&self) {
        self.shared.closing.store(true, Ordering::Release);
        self.wake();
    }

    /// Takes no more; the thread ends once the lanes are empty and committed.
    pub fn close(&self) {
        self.shared.lanes.close();
    }

    pub fn is_dead(&self) -> bool {
        self.shared.ended.is_cancelled()
    }

    /// Waits for the end of the thread.
    pub async fn ended(&self) {
        self.shared.ended.cancelled().await;
    }

    /// Messages waiting per lane.
    pub fn depths(&self) -> [usize; 3] {
        self.shared.lanes.depths()
    }

    fn push(&self, lane: Lane, at: Millis, arrived: Instant, kind: Kind) -> Result<(), NotDone> {
        let item = Item { at, arrived, kind };
        let pushed = self.shared.lanes.push(lane, item);
        pushed.map_err(|why| self.refused(&why))
    }

    fn refused(&self, why: &Refused) -> NotDone {
        match why {
            Refused::Full => {
                self.shared.metrics.refused.inc();
                NotDone::Overloaded
            }
            Refused::Closed => NotDone::stopping(),
        }
    }
}

impl Shared {
    /// Takes back a grant that never reached its runner (A67).
    fn revoke_undelivered(&self, lease: LeaseKey) {
        let order = Order::of(Command::Revoke {
            lease,
            why: delta_core::lease::Revocation::Replaced,
        });
        let item = Item {
            at: self.clock.now(),
            arrived: Instant::now(),
            kind: Kind::Command(Box::new(order)),
        };
        self.lanes.push_own(Lane::Dispatch, item);
    }

    /// Puts a wake-up into its lane unless one is there.
    fn wake(&self) {
        if self.waking.swap(true, Ordering::AcqRel) {
            return;
        }
        let item = Item {
            at: self.clock.now(),
            arrived: Instant::now(),
            kind: Kind::Wake,
        };
        self.lanes.push_own(Lane::Dispatch, item);
    }

    fn horizon(&self) -> Millis {
        let longest = i64::try_from(self.longest_wait.as_millis()).unwrap_or(i64::MAX);
        self.receipts.horizon(&self.clock, Span(longest))
    }

    /// Why others should be asked instead: beside them a clock must agree with the store's, while
    /// a lone server on its own file is right by definition (A23).
    pub fn unready(&self) -> Option<String> {
        self.clock.trouble().filter(|_| self.several_writers)
    }

    /// Why this server must not write now (A23). A store's clock that jumps is no reason: all who
    /// run go on by their own (F40). Another server that has started since, and writes by the new
    /// clock, is one: what the two say about the same lease would contradict.
    pub fn unfit(&self) -> Option<String> {
        self.behind.load(Ordering::Acquire).then(|| {
            format!(
                "this server's clock is more than {DIVERGENCE} behind what others have written; \
                 restart it"
            )
        })
    }

    fn paused(&self) -> Arc<BTreeSet<Text>> {
        let paused = self.paused.lock().unwrap_or_else(|e| e.into_inner());
        Arc::clone(&paused)
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

/// 64 fresh random bits for jitter.
fn entropy() -> u64 {
    u64::from_le_bytes(random())
}

/// Bytes from the operating system's generator.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system has randomness");
    bytes
}

pub(crate) fn sha256(bytes: &[u8]) -> delta_core::Digest {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let mut out = [0; 32];
    out.copy_from_slice(digest.as_ref());
    out
}
