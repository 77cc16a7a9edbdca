//! The writer's thread: waits for the first message, takes what else is there, runs it as one
//! batch, and answers after the commit.
//!
//! Owns the store, the parked slots and the held heartbeats; nobody else touches them, so none of
//! them needs a lock.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use delta_core::{Command, Fact, LeaseKey, Millis, Reply, Settings};
use delta_store::{Store, StoreError, Writes};
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, Failed, wants};
use super::delivery::{Delivery, GrantedLease};
use super::grant::{Given, Matches, match_slots};
use super::held_heartbeats::{Held, HeldHeartbeats};
use super::lanes::{Drained, Lanes};
use super::outbox::{AnswerTo, Bells, Listeners};
use super::parking::{Parking, SlotId};
use super::proof::Proof;
use super::receipts::Receipts;
use super::stamped_command::{Stamped, units};
use super::{Answer, Item, Kind, Order, Shared, Writer, entropy};
use crate::clock::Clock;
use crate::functions::Rates;
use crate::metrics::Metrics;
use crate::not_done::NotDone;
use crate::watch::Watchers;

/// Commands of one batch: beyond a hundred or so a flush is spread thin enough that more gains
/// nothing, and everybody in the batch waits for its last command.
const BATCH: usize = 256;

/// From this many messages in a batch on, the next one waits a moment for those who were just
/// answered and will be back: fewer flushes carry the same work. Whoever is alone never waits.
const BUSY: usize = 16;
const GATHER: Duration = Duration::from_micros(400);

/// How often a batch is run again because another writer was first. Conflicts on the same runs end
/// quickly; a batch that loses this often meets a store in trouble.
const MAX_TRIES: u32 = 8;

/// The pause after a conflict grows by this with every try, and by as much again at random: about
/// the length of a commit, so that two writers do not meet again and again.
const PAUSE: Duration = Duration::from_millis(1);

/// How often slots whose connection is gone are looked for. Those that would be granted something
/// are noticed then; this is only about memory.
const CLEAN_EVERY: Duration = Duration::from_secs(5);

/// What the thread is started with.
pub struct Thread {
    pub store: Box<dyn Store>,
    pub clock: Clock,
    pub settings: Settings,
    pub metrics: Arc<Metrics>,
    pub watchers: Watchers,
    pub lease_floor: Millis,
    pub several_writers: bool,
    pub people_limit: usize,
    pub longest_wait: Duration,
}

impl Thread {
    pub fn spawn(self) -> std::io::Result<(Writer, std::thread::JoinHandle<()>)> {
        let shared = Arc::new(Shared {
            lanes: Lanes::new(self.people_limit),
            clock: self.clock,
            settings: self.settings,
            metrics: self.metrics,
            watchers: self.watchers,
            lease_floor: self.lease_floor,
            several_writers: self.several_writers,
            behind: AtomicBool::new(false),
            rates: Rates::default(),
            paused: Mutex::default(),
            longest_wait: self.longest_wait,
            receipts: Arc::new(Receipts::default()),
            waking: AtomicBool::new(false),
            turns: Arc::default(),
            closing: AtomicBool::new(false),
            ended: CancellationToken::new(),
            proof: Proof::new(),
        });
        let mut turns = Turns {
            shared: shared.clone(),
            store: self.store,
            parking: Parking::default(),
            held: HeldHeartbeats::default(),
            listeners: Listeners::default(),
            cleaned: Instant::now(),
        };
        let thread = std::thread::Builder::new().name("writer".into());
        let handle = thread.spawn(move || {
            let ran = catch_unwind(AssertUnwindSafe(|| turns.run()));
            if ran.is_err() {
                tracing::error!("the writer panicked; the server cannot write any more");
            }
            turns.abandon();
        })?;
        Ok((Writer { shared }, handle))
    }
}

struct Turns {
    shared: Arc<Shared>,
    store: Box<dyn Store>,
    parking: Parking,
    held: HeldHeartbeats,
    listeners: Listeners,
    /// When closed connections were looked for.
    cleaned: Instant,
}

/// What a committed batch has to say.
struct Done {
    writes: Writes,
    answers: Vec<Result<Answer, NotDone>>,
    news: Vec<(LeaseKey, Result<Answer, NotDone>)>,
    matches: Matches,
}

impl Turns {
    fn run(&mut self) {
        let mut items = Vec::with_capacity(BATCH);
        let mut busy = false;
        loop {
            let deadlines = [self.parking.next_deadline(), self.held.next_deadline()];
            let until = deadlines.into_iter().flatten().min();
            if busy {
                std::thread::sleep(GATHER);
            }
            let drained = self
                .shared
                .lanes
                .drain(BATCH, until, Item::weight, &mut items);
            if drained == Drained::Closed {
                break;
            }
            busy = items.len() >= BUSY;
            if self.serve(&mut items) {
                // Behind whatever came meanwhile: many grants must not hold up heartbeats.
                self.shared.wake();
            }
            self.send_home();
        }
        self.parking.release_all();
        self.held.release_all();
    }

    /// The thread ends, well or not: whoever still waits hears that nothing was done.
    fn abandon(&mut self) {
        drop(self.shared.lanes.abandon());
        drop(std::mem::take(&mut self.parking));
        drop(std::mem::take(&mut self.held));
        self.shared.ended.cancel();
    }

    /// Answers whoever has waited long enough, and everybody at the end.
    fn send_home(&mut self) {
        if self.shared.is_closing() {
            self.parking.release_all();
            self.held.release_all();
        } else {
            let now = Instant::now();
            self.parking.release_due(now);
            self.held.release_due(now);
        }
        let parked = i64::try_from(self.parking.len()).unwrap_or(i64::MAX);
        self.shared.metrics.parked.set(parked);
    }

    /// Sorts a turn's messages and runs them. True when more can be granted at once.
    fn serve(&mut self, items: &mut Vec<Item>) -> bool {
        let (mut orders, mut asked, mut wake) = (Vec::new(), Vec::new(), false);
        let mut bells = Bells::default();
        for (index, item) in items.drain(..).enumerate() {
            let late = self.is_late(item.arrived);
            match item.kind {
                Kind::Command(order) if late => {
                    self.shared.metrics.too_late.inc();
                    answer(order.answer, Err(too_late()), &mut bells);
                }
                Kind::Several(all) | Kind::Whole(all) if late => {
                    for order in all {
                        self.shared.metrics.too_late.inc();
                        answer(order.answer, Err(too_late()), &mut bells);
                    }
                }
                Kind::Several(all) => {
                    let all = all.into_iter().map(Box::new);
                    orders.extend(all.map(|order| Stamped::new(item.at, item.arrived, order)));
                }
                Kind::Whole(all) => {
                    let all = all.into_iter().map(Box::new);
                    let stamped = all.map(|order| Stamped {
                        whole: Some(index),
                        ..Stamped::new(item.at, item.arrived, order)
                    });
                    orders.extend(stamped);
                }
                Kind::Ask(ask) if late => {
                    self.shared.metrics.too_late.inc();
                    ask.answer.send(Err(too_late()), &mut bells);
                }
                Kind::Command(order) => {
                    orders.push(Stamped::new(item.at, item.arrived, order));
                }
                Kind::Ask(ask) if self.shared.is_closing() => {
                    ask.answer.send(Ok(None), &mut bells);
                }
                Kind::Ask(ask) => {
                    self.shared.metrics.lease_requests.inc();
                    asked.extend(self.parking.park(ask));
                }
                Kind::Wake => {
                    // Acquires what those saw to who found it set and left.
                    self.shared.waking.swap(false, Ordering::AcqRel);
                    wake = true;
                    self.clean();
                }
                Kind::Listen(lease, outbox) => self.listeners.listen(lease, outbox),
                Kind::Task(task) => task(self.store.as_mut()),
            }
        }
        drop(bells);
        if orders.is_empty() && asked.is_empty() {
            if wake && self.parking.len() > 0 {
                return self.run_batch(orders, asked, wake);
            }
            if wake {
                self.look_at_the_clock();
            }
            return false;
        }
        self.run_batch(orders, asked, wake)
    }

    /// A server with nothing to do still notices that the store's clock jumped (A23).
    fn look_at_the_clock(&mut self) {
        if Batch::begin(&self.shared, self.store.as_mut()).is_ok() {
            self.store.rollback();
        }
    }

    fn is_late(&self, arrived: Instant) -> bool {
        arrived.elapsed() > self.shared.longest_wait
    }

    fn clean(&mut self) {
        if self.cleaned.elapsed() >= CLEAN_EVERY {
            self.parking.drop_closed();
            self.listeners.drop_closed();
            self.cleaned = Instant::now();
        }
    }

    fn run_batch(&mut self, orders: Vec<Stamped>, asked: Vec<SlotId>, wake: bool) -> bool {
        let why = match self.try_often(&orders, &asked, wake) {
            Ok(done) => return self.finish(orders, done),
            // The sweep says so once, not every batch.
            Err(Failed::Unfit(why)) => NotDone::Unavailable(why.into()),
            Err(Failed::Again) => match self.apart(&orders, &asked, &StoreError::Conflict) {
                None => return self.run_singly(orders, asked),
                Some(why) => why,
            },
            Err(Failed::Store(error)) => match self.apart(&orders, &asked, &error) {
                None => return self.run_singly(orders, asked),
                Some(why) => why,
            },
        };
        let mut bells = Bells::default();
        for Stamped { order, .. } in orders {
            answer(order.answer, Err(why.clone()), &mut bells);
        }
        for slot in asked {
            self.parking.answer(slot, Err(why.clone()), &mut bells);
        }
        false
    }

    /// Runs a batch again while another writer is first.
    fn try_often(
        &mut self,
        orders: &[Stamped],
        asked: &[SlotId],
        wake: bool,
    ) -> Result<Done, Failed> {
        for tries in 1.. {
            match self.attempt(orders, asked, wake) {
                Ok(done) => return Ok(done),
                Err(failed) => {
                    self.parking.look_again();
                    if !matches!(failed, Failed::Again) || tries > MAX_TRIES {
                        return Err(failed);
                    }
                }
            }
            self.shared.metrics.conflicts.inc();
            let step = PAUSE.as_micros() as u64;
            let jitter = entropy() % step;
            std::thread::sleep(Duration::from_micros(step * u64::from(tries - 1) + jitter));
        }
        Err(Failed::Again)
    }

    /// What to answer everybody of a batch that failed; nothing when each is to be tried alone,
    /// since one of them met something unreadable or a run that others keep changing.
    fn apart(&self, orders: &[Stamped], asked: &[SlotId], error: &StoreError) -> Option<NotDone> {
        let commands = units(orders).count() + asked.len();
        let alone = matches!(error, StoreError::Corrupt(_) | StoreError::Conflict);
        if alone && commands > 1 {
            tracing::warn!(%error, commands, "a batch is run one by one");
            return None;
        }
        tracing::warn!(%error, commands, "a batch could not be committed");
        self.shared.metrics.failed_batches.inc();
        self.shared.proof.failed(error);
        Some(NotDone::from(error))
    }

    fn run_singly(&mut self, orders: Vec<Stamped>, asked: Vec<SlotId>) -> bool {
        let mut more = false;
        let mut orders = orders.into_iter().peekable();
        while let Some(order) = orders.next() {
            let mut unit = vec![order];
            while let Some(next) = orders.next_if(|next| unit[0].is_whole_with(next)) {
                unit.push(next);
            }
            // Those before it took their time (A38).
            if self.is_late(unit[0].arrived) {
                let mut bells = Bells::default();
                for Stamped { order, .. } in unit {
                    self.shared.metrics.too_late.inc();
                    answer(order.answer, Err(too_late()), &mut bells);
                }
                continue;
            }
            more |= self.run_batch(unit, Vec::new(), false);
        }
        for slot in asked {
            more |= self.run_batch(Vec::new(), vec![slot], false);
        }
        more
    }

    /// One try at a batch, from begin to commit.
    fn attempt(
        &mut self,
        orders: &[Stamped],
        asked: &[SlotId],
        wake: bool,
    ) -> Result<Done, Failed> {
        let mut batch = Batch::begin(&self.shared, self.store.as_mut())?;
        let filled = fill(&mut batch, orders).and_then(|mut answers| {
            let matches = match_slots(&mut batch, &mut self.parking, asked, wake)?;
            let news = tell(&mut batch, orders, &mut answers, &self.held)?;
            Ok((answers, news, matches))
        });
        match filled {
            Ok((answers, news, matches)) => Ok(Done {
                writes: batch.commit()?,
                answers,
                news,
                matches,
            }),
            Err(error) => {
                self.store.rollback();
                Err(error.into())
            }
        }
    }

    /// The commit is durable: tell everybody.
    fn finish(&mut self, orders: Vec<Stamped>, done: Done) -> bool {
        let size = orders.len() + done.matches.given.len();
        self.shared.metrics.batch(size, self.store.flushes());
        if !done.writes.is_empty() {
            self.shared.proof.wrote();
        }
        let mut bells = Bells::default();
        // Before new grants are heard of: what ended did not end them.
        self.listeners.tell(&done.writes.records, &mut bells);
        // A slot hears that its work is over before it hears of the next.
        for (stamped, answered) in orders.into_iter().zip(done.answers) {
            self.reply(stamped.order, answered, &mut bells);
        }
        for given in done.matches.given {
            let slot = given.slot;
            if let Some(outbox) = self.parking.session(slot) {
                self.listeners.listen(given.lease, outbox);
            }
            let granted = self.granted(given);
            let granted = Ok(Some(Box::new(granted)));
            self.parking.answer(slot, granted, &mut bells);
        }
        for (slot, why) in done.matches.refused {
            self.parking.answer(slot, Err(why), &mut bells);
        }
        for (lease, news) in done.news {
            if let Some(held) = self.held.take(lease) {
                held.answer.send(news, &mut bells);
            }
        }
        for record in &done.writes.records {
            self.shared.watchers.wake(record.run);
        }
        if moves_a_line(&done.writes) {
            self.shared.turns.notify_one();
        }
        self.shared
            .rates
            .note(&done.writes, self.shared.clock.now());
        done.matches.more
    }

    fn granted(&self, given: Given) -> GrantedLease {
        self.shared.metrics.grants.inc();
        GrantedLease {
            delivery: Delivery::new(self.shared.clone(), given.lease),
            token: given.token,
            lease: given.lease,
            ttl: given.ttl,
            max_runtime: given.max_runtime,
            spec: given.spec,
            name: given.name,
            priority: given.priority,
            trusted: given.trusted,
            secrets: given.secrets,
            origin: given.origin,
            waits_since: given.waits_since,
        }
    }

    fn reply(&mut self, mut order: Box<Order>, answered: Answered, bells: &mut Bells) {
        // It is judged: timers may go on before its sender does.
        drop(order.receipt.take());
        if let Some(noticed) = answered.as_ref().ok().and_then(|it| it.noticed.as_ref()) {
            noticed.log();
        }
        let hold = order.hold;
        let (Some(to), Ok(Reply::Renewed { ttl, cancel: None })) =
            (&order.answer, answered.as_ref().map(|answer| &answer.reply))
        else {
            return answer(order.answer, answered, bells);
        };
        if hold.is_zero() || to.is_closed() || self.shared.is_closing() {
            return answer(order.answer, answered, bells);
        }
        let (ttl, now) = (*ttl, Instant::now());
        if let (Some(answer), Some((lease, command))) = (order.answer, unnumbered(order.command)) {
            let held = Held {
                command,
                ttl,
                since: now,
                until: now + hold,
                answer,
            };
            self.held.hold(lease, held);
        }
    }
}

type Answered = Result<Answer, NotDone>;

/// Decides every command in order.
fn fill(batch: &mut Batch, orders: &[Stamped]) -> Result<Vec<Answered>, StoreError> {
    let mut wanted = BTreeSet::new();
    for Stamped { order, .. } in orders {
        wants(&order.command, &mut wanted);
    }
    batch.load(&wanted)?;
    let mut answers = Vec::with_capacity(orders.len());
    for unit in units(orders) {
        if let Some(why) = refused_whole(batch, unit)? {
            answers.extend(unit.iter().map(|_| Err(why.clone())));
            continue;
        }
        for Stamped { at, order, .. } in unit {
            answers.push(batch.decide(*at, &order.command, &order.specs)?);
        }
    }
    Ok(answers)
}

/// Why none of these is done. Asked before the first is: what is decided cannot be taken back out
/// of its batch.
fn refused_whole(batch: &mut Batch, unit: &[Stamped]) -> Result<Option<NotDone>, StoreError> {
    if unit.len() < 2 {
        return Ok(None);
    }
    for Stamped { at, order, .. } in unit {
        if let Some(why) = batch.refusal(*at, &order.command)? {
            return Ok(Some(why));
        }
    }
    Ok(None)
}

/// Decides once more the heartbeats whose lease has news, also from matching: those of this batch,
/// in place of their answer, and those that are held.
fn tell(
    batch: &mut Batch,
    orders: &[Stamped],
    answers: &mut [Answered],
    held: &HeldHeartbeats,
) -> Result<Vec<(LeaseKey, Answered)>, StoreError> {
    for (Stamped { order, .. }, answered) in orders.iter().zip(answers) {
        if let Some(command) = overtaken(batch, order, answered) {
            let now = batch.shared.clock.now();
            *answered = batch.decide(now, &command, &[])?;
        }
    }
    let mut news = Vec::new();
    for (lease, command) in held.with_news(&batch.writes.records) {
        let now = batch.shared.clock.now();
        news.push((lease, batch.decide(now, &command, &[])?));
    }
    Ok(news)
}

/// A heartbeat that would be held although a cancel came in the same batch.
fn overtaken(batch: &Batch, order: &Order, answered: &Result<Answer, NotDone>) -> Option<Command> {
    let renewed = matches!(
        answered.as_ref().map(|answer| &answer.reply),
        Ok(Reply::Renewed { cancel: None, .. })
    );
    if !renewed || order.hold.is_zero() {
        return None;
    }
    let (lease, command) = unnumbered(order.command.clone())?;
    let attempt = batch.attempt(lease.attempt)?;
    let changed = attempt.cancel.is_some() || attempt.live_lease().is_none();
    changed.then_some(command)
}

/// A heartbeat without its sequence number, to be judged on the lease as it is now.
fn unnumbered(command: Command) -> Option<(LeaseKey, Command)> {
    match command {
        Command::Heartbeat {
            proof,
            progress,
            uploading,
            ..
        } => Some((
            proof.key,
            Command::Heartbeat {
                proof,
                seq: None,
                progress,
                uploading,
            },
        )),
        _ => None,
    }
}

/// Whether somebody came into the line of a concurrency group or left it.
fn moves_a_line(writes: &Writes) -> bool {
    let edits = &writes.edits;
    let mut runs = edits.runs.values();
    let mut jobs = edits.jobs.values();
    let mut facts = writes.records.iter().flat_map(|record| &record.facts);
    runs.any(|run| run.place.is_some() && run.member().is_none())
        || jobs.any(|job| job.place.is_some() && job.member().is_none())
        || facts.any(|fact| matches!(fact, Fact::LineEntered { .. }))
}

fn answer(to: Option<AnswerTo>, answered: Answered, bells: &mut Bells) {
    if let Some(to) = to {
        to.send(answered, bells);
    }
}

fn too_late() -> NotDone {
    NotDone::Unavailable("the request waited too long to be judged; send it again".into())
}
