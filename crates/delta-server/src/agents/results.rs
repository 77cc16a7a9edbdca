//! Results of tests of a session's leases, on their way into the store.
//!
//! One task per session writes in order and in groups, off the session's own task. What waits here
//! is bounded: beyond it the session is not read. A lease's last word waits for its results, so
//! that what was acknowledged is on disk and what comes after it is too late (EP-16).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use delta_core::LeaseKey;
use delta_core::rights::Right;
use delta_store::StoreError;
use delta_store::read::Reader;
use delta_store::results::{ResultCounts, ResultRow};
use delta_wire::agent::MAX_FRAME_MESSAGES;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{RunComplete, TestResult, TestResultAck};
use tokio::sync::mpsc;
use tonic::Status;

use super::execution;
use super::hear::{Proven, Refused};
use super::session::Session;
use crate::results::{self, Key, Ledger, Unusable};
use crate::standing::only_flaky_failed;

/// Bytes and orders that wait for the store, per session: some seconds of a fast suite.
const MAX_WAITING_BYTES: usize = 8 * 1024 * 1024;
const MAX_WAITING_ORDERS: usize = 4_096;
/// Results that are written together: one transaction of a few milliseconds.
const BATCH: usize = 512;
/// How often a store that does not answer is asked again, and how long after the first time; each
/// time twice as long. After that the agent connects anew and sends again what it has.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

enum Order {
    Put(LeaseKey, Box<ResultRow>),
    /// It is none any more; without a key all of the lease.
    Withdraw(LeaseKey, Option<Key>),
    /// The lease is about to be completed, and this is what it says of its results; whether flaky
    /// tests alone may be to blame.
    Settle(LeaseKey, Option<ResultCounts>, bool),
}

/// What became of orders.
pub struct Taken {
    lease: LeaseKey,
    /// Results of this lease in this session so far.
    received: u64,
    full: bool,
    settled: bool,
    flaky: bool,
    orders: usize,
    bytes: usize,
    /// The store did not take them.
    lost: bool,
}

/// The session's end of the task.
pub struct Writing {
    orders: mpsc::Sender<Order>,
    taken: mpsc::Receiver<Taken>,
    count: usize,
    bytes: usize,
}

impl Writing {
    pub fn has_room(&self) -> bool {
        self.count < MAX_WAITING_ORDERS && self.bytes < MAX_WAITING_BYTES
    }

    /// The next answer; never, while there is no task.
    pub async fn next(writing: &mut Option<Writing>) -> Option<Taken> {
        match writing {
            Some(writing) => writing.taken.recv().await,
            None => std::future::pending().await,
        }
    }
}

impl Session {
    /// A result is fenced like everything else (D4), and one behind its lease's last word is too
    /// late (EP-16).
    pub(super) fn test_result(&mut self, proven: &Proven, said: TestResult) -> Result<(), Refused> {
        let now = self.app.writer.now();
        let held = self.leases.get(proven.lease).ok_or(Refused::Stale)?;
        if held.last_word.is_some() {
            // Its answer is on its way; another word about the lease would only confuse.
            self.app.metrics().stale.inc();
            return Ok(());
        }
        self.given(proven, Right::Results)?;
        if let Some(key) = results::withdrawn(&said) {
            self.result_order(Order::Withdraw(proven.lease, key));
            return Ok(());
        }
        let row =
            results::row(said, now).map_err(|Unusable::Missing(field)| Refused::Missing(field))?;
        self.result_order(Order::Put(proven.lease, Box::new(row)));
        Ok(())
    }

    /// Whether a last word has to wait for results, and sees that it hears of them.
    pub(super) fn settle_results(
        &mut self,
        lease: LeaseKey,
        said: &RunComplete,
        may_be_flaky: bool,
    ) -> bool {
        let live = self.leases.get(lease).is_some_and(|it| it.ended.is_none());
        let claimed = results::claimed(said.summary.as_ref());
        let waits = live && (self.results.is_some() || claimed.is_some());
        if waits {
            self.result_order(Order::Settle(lease, claimed, may_be_flaky));
        }
        waits
    }

    fn result_order(&mut self, order: Order) {
        let reader = &self.app.reader;
        let writing = self.results.get_or_insert_with(|| start(reader.clone()));
        let bytes = order.bytes();
        match writing.orders.try_send(order) {
            Ok(()) => {
                writing.count += 1;
                writing.bytes += bytes;
            }
            Err(_) => self.end = Some(Status::unavailable("results cannot be written")),
        }
    }

    pub(super) fn results_taken(&mut self, taken: &Taken) {
        if let Some(writing) = &mut self.results {
            writing.count = writing.count.saturating_sub(taken.orders);
            writing.bytes = writing.bytes.saturating_sub(taken.bytes);
        }
        if taken.lost {
            // The agent has them, and sends them again.
            self.end = Some(Status::unavailable("the store takes no results"));
            return;
        }
        if taken.settled {
            return self.results_settled(taken.lease, taken.flaky);
        }
        self.outgoing.say(Say::TestResultAck(TestResultAck {
            run_id: execution::name(taken.lease),
            received: taken.received,
            full: taken.full,
        }));
    }
}

impl Order {
    fn bytes(&self) -> usize {
        match self {
            Order::Put(_, row) => usize::try_from(row.size()).unwrap_or(usize::MAX),
            Order::Withdraw(..) | Order::Settle(..) => 0,
        }
    }
}

/// What is written together: neighbours of one lease.
enum Group {
    Put(Vec<ResultRow>),
    Withdraw(Option<Vec<Key>>),
}

impl Group {
    /// How many orders it is of, and their bytes.
    fn size(&self) -> (usize, usize) {
        match self {
            Group::Put(rows) => {
                let bytes = rows.iter().map(ResultRow::size).sum::<u64>();
                (rows.len(), usize::try_from(bytes).unwrap_or(usize::MAX))
            }
            Group::Withdraw(keys) => (keys.as_ref().map_or(1, Vec::len), 0),
        }
    }
}

fn start(reader: Arc<dyn Reader>) -> Writing {
    // A session that has the most waiting may have read one more frame before it stops.
    let (orders, waiting) = mpsc::channel(MAX_WAITING_ORDERS + MAX_FRAME_MESSAGES);
    let (answers, taken) = mpsc::channel(64);
    let task = Task {
        reader,
        ledgers: HashMap::new(),
        answers,
    };
    tokio::spawn(task.run(waiting));
    Writing {
        orders,
        taken,
        count: 0,
        bytes: 0,
    }
}

struct Task {
    reader: Arc<dyn Reader>,
    /// By lease: what it has, and how many came in this session.
    ledgers: HashMap<LeaseKey, (Ledger, u64)>,
    answers: mpsc::Sender<Taken>,
}

impl Task {
    async fn run(mut self, mut waiting: mpsc::Receiver<Order>) {
        let mut batch = Vec::new();
        while waiting.recv_many(&mut batch, BATCH).await > 0 {
            if self.carry_out(std::mem::take(&mut batch)).await.is_none() {
                return;
            }
        }
    }

    /// Nothing when nobody listens any more, or nothing can be written.
    async fn carry_out(&mut self, orders: Vec<Order>) -> Option<()> {
        let mut group: Option<(LeaseKey, Group)> = None;
        for order in orders {
            match (order, &mut group) {
                (Order::Put(lease, row), Some((of, Group::Put(rows)))) if *of == lease => {
                    rows.push(*row);
                }
                (Order::Withdraw(lease, Some(key)), Some((of, Group::Withdraw(Some(keys)))))
                    if *of == lease =>
                {
                    keys.push(key)
                }
                (order, _) => {
                    if let Some((lease, group)) = group.take() {
                        self.write(lease, group).await?;
                    }
                    match order {
                        Order::Put(lease, row) => group = Some((lease, Group::Put(vec![*row]))),
                        Order::Withdraw(lease, key) => {
                            let keys = key.map(|key| vec![key]);
                            group = Some((lease, Group::Withdraw(keys)));
                        }
                        Order::Settle(lease, counts, judged) => {
                            self.settle(lease, counts, judged).await?;
                        }
                    }
                }
            }
        }
        match group {
            Some((lease, group)) => self.write(lease, group).await,
            None => Some(()),
        }
    }

    async fn write(&mut self, lease: LeaseKey, group: Group) -> Option<()> {
        let (ledger, received) = *self.ledgers.entry(lease).or_default();
        let (orders, bytes) = group.size();
        let done = self.store(ledger, move |ledger, reader| match &group {
            Group::Put(rows) => ledger.put(reader, lease, rows),
            Group::Withdraw(keys) => ledger.withdraw(reader, lease, keys.as_deref()),
        });
        let done = done.await;
        let received = received + orders as u64;
        let ledger = done.as_ref().copied().unwrap_or(ledger);
        self.ledgers.insert(lease, (ledger, received));
        let taken = Taken {
            lease,
            received,
            full: ledger.is_full(),
            settled: false,
            flaky: false,
            orders,
            bytes,
            lost: done.is_err(),
        };
        self.answer(taken).await
    }

    async fn settle(
        &mut self,
        lease: LeaseKey,
        counts: Option<ResultCounts>,
        judged: bool,
    ) -> Option<()> {
        let (ledger, received) = self.ledgers.remove(&lease).unwrap_or_default();
        let done = self.store(ledger, move |ledger, reader| {
            ledger.settle(reader, lease, counts)
        });
        let done = done.await;
        let flaky = judged && done.is_ok() && self.is_flaky(lease).await;
        self.answer(Taken {
            lease,
            received,
            full: false,
            settled: true,
            flaky,
            orders: 1,
            bytes: 0,
            lost: done.is_err(),
        })
        .await
    }

    /// A store that cannot say so now leaves the cause as it was said.
    async fn is_flaky(&self, lease: LeaseKey) -> bool {
        let reader = self.reader.clone();
        let judged = tokio::task::spawn_blocking(move || only_flaky_failed(&*reader, lease));
        matches!(judged.await, Ok(Ok(true)))
    }

    async fn answer(&self, taken: Taken) -> Option<()> {
        let lost = taken.lost;
        self.answers.send(taken).await.ok()?;
        (!lost).then_some(())
    }

    /// Does something with the store, again while it is away and somebody waits for it. After that
    /// the agent sends on another session, and what is done here would undo what is done there.
    async fn store(
        &self,
        ledger: Ledger,
        work: impl Fn(&mut Ledger, &dyn Reader) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> Result<Ledger, ()> {
        let work = Arc::new(work);
        let mut pause = FIRST_PAUSE;
        for _ in 0..TRIES {
            if self.answers.is_closed() {
                return Err(());
            }
            let (reader, work, mut ledger) = (self.reader.clone(), work.clone(), ledger);
            let done = tokio::task::spawn_blocking(move || {
                work(&mut ledger, reader.as_ref()).map(|()| ledger)
            });
            match done.await {
                Ok(Ok(ledger)) => return Ok(ledger),
                Ok(Err(error)) => tracing::warn!(%error, "results could not be written"),
                Err(error) => tracing::error!(%error, "writing results failed"),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        Err(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use delta_store::memory::MemoryStore;

    use super::*;

    // A72, EP-16: the writer of a session that is gone does nothing more, least of all again.
    #[tokio::test]
    async fn a_session_that_is_gone_writes_nothing_more() {
        let (answers, taken) = mpsc::channel(1);
        let task = Task {
            reader: Arc::new(MemoryStore::new().reader()),
            ledgers: HashMap::new(),
            answers,
        };
        let (tries, taken) = (Arc::new(AtomicU32::new(0)), Mutex::new(Some(taken)));
        let counted = tries.clone();
        // The store is away, and the session ends meanwhile.
        let work = move |_: &mut Ledger, _: &dyn Reader| {
            counted.fetch_add(1, Ordering::Relaxed);
            taken.lock().unwrap().take();
            Err(StoreError::Unavailable("away".to_owned()))
        };
        assert!(task.store(Ledger::default(), work).await.is_err());
        assert_eq!(tries.load(Ordering::Relaxed), 1);
    }
}
