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
use delta_store::results::{ResultCounts, ResultRow};
use delta_wire::agent::MAX_FRAME_MESSAGES;
use delta_wire::agent::proto::server_message::Message as ToAgent;
use delta_wire::agent::proto::{RunComplete, TestResult, TestResultAck};
use tokio::sync::mpsc;
use tonic::Status;

use super::execution_id;
use super::held_lease::{Blame, LeaseEvent};
use super::receive::{MessageRefused, ProvenLease};
use super::session::Session;
use crate::results::{self, Key, Ledger, Unusable};
use crate::store_sides::StoreSides;
use crate::test_history::only_flaky_failed;

/// Bytes and orders that wait for the store, per session: some seconds of a fast suite.
const MAX_WAITING_BYTES: usize = 8 * 1024 * 1024;
const MAX_WAITING_ORDERS: usize = 4_096;
/// Results that are written together: one transaction of a few milliseconds.
const BATCH: usize = 512;
/// How often a store that does not answer is asked again, and how long after the first time; each
/// time twice as long. After that the agent connects anew and sends again what it has.
const TRIES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

enum ResultOrder {
    Put(LeaseKey, Box<ResultRow>),
    /// It is none any more; without a key all of the lease.
    Withdraw(LeaseKey, Option<Key>),
    /// The lease is about to be completed.
    Settle(LeaseKey, ResultsClaim),
}

/// What a last word says of the results before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultsClaim {
    pub counts: Option<ResultCounts>,
    pub tests: TestsBlamed,
}

/// Whether tests alone may be to blame for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestsBlamed {
    Perhaps,
    No,
}

/// What became of orders.
pub struct ResultsTaken {
    lease: LeaseKey,
    /// Results of this lease in this session so far.
    received: u64,
    full: bool,
    /// They are settled, as was asked for, and this is to blame for a failure.
    settled: Option<Blame>,
    orders: usize,
    bytes: usize,
    /// The store did not take them.
    lost: bool,
}

/// The session's end of the task.
pub struct ResultWriting {
    orders: mpsc::Sender<ResultOrder>,
    taken: mpsc::Receiver<ResultsTaken>,
    count: usize,
    bytes: usize,
}

impl ResultWriting {
    pub fn has_room(&self) -> bool {
        self.count < MAX_WAITING_ORDERS && self.bytes < MAX_WAITING_BYTES
    }

    /// The next answer; never, while there is no task.
    pub async fn next(writing: &mut Option<ResultWriting>) -> Option<ResultsTaken> {
        match writing {
            Some(writing) => writing.taken.recv().await,
            None => std::future::pending().await,
        }
    }
}

impl Session {
    /// A result is fenced like everything else (D4), and one behind its lease's last word is too
    /// late (EP-16).
    pub(super) fn test_result(
        &mut self,
        proven: &ProvenLease,
        said: TestResult,
    ) -> Result<(), MessageRefused> {
        let now = self.app.writer.now();
        let held = self.leases.get(proven.lease).ok_or(MessageRefused::Stale)?;
        if held.has_last_word() {
            // Its answer is on its way; another word about the lease would only confuse.
            self.app.metrics().stale.inc();
            return Ok(());
        }
        self.given(proven, Right::Results)?;
        if let Some(key) = results::withdrawn(&said) {
            self.result_order(ResultOrder::Withdraw(proven.lease, key));
            return Ok(());
        }
        let row = results::row(said, now)
            .map_err(|Unusable::Missing(field)| MessageRefused::Missing(field))?;
        self.result_order(ResultOrder::Put(proven.lease, Box::new(row)));
        Ok(())
    }

    /// What a last word claims of its results, where it has to wait for them.
    pub(super) fn results_claim(
        &self,
        lease: LeaseKey,
        said: &RunComplete,
        tests: TestsBlamed,
    ) -> Option<ResultsClaim> {
        let held = self.leases.get(lease);
        let is_live = held.is_some_and(|held| held.ended().is_none());
        let counts = results::claimed(said.summary.as_ref());
        let has_results = self.results.is_some() || counts.is_some();
        (is_live && has_results).then_some(ResultsClaim { counts, tests })
    }

    pub(super) fn settle_results(&mut self, lease: LeaseKey, claim: ResultsClaim) {
        self.result_order(ResultOrder::Settle(lease, claim));
    }

    fn result_order(&mut self, order: ResultOrder) {
        let sides = &self.app.sides;
        let writing = self.results.get_or_insert_with(|| start(sides.clone()));
        let bytes = order.bytes();
        match writing.orders.try_send(order) {
            Ok(()) => {
                writing.count += 1;
                writing.bytes += bytes;
            }
            Err(_) => self.end = Some(Status::unavailable("results cannot be written")),
        }
    }

    pub(super) fn results_taken(&mut self, taken: &ResultsTaken) {
        if let Some(writing) = &mut self.results {
            writing.count = writing.count.saturating_sub(taken.orders);
            writing.bytes = writing.bytes.saturating_sub(taken.bytes);
        }
        if taken.lost {
            // The agent has them, and sends them again.
            self.end = Some(Status::unavailable("the store takes no results"));
            return;
        }
        if let Some(blame) = taken.settled {
            return self.happened(taken.lease, LeaseEvent::ResultsStored(blame));
        }
        self.outgoing.say(ToAgent::TestResultAck(TestResultAck {
            run_id: execution_id::name(taken.lease),
            received: taken.received,
            full: taken.full,
        }));
    }
}

impl ResultOrder {
    fn bytes(&self) -> usize {
        match self {
            ResultOrder::Put(_, row) => usize::try_from(row.size()).unwrap_or(usize::MAX),
            ResultOrder::Withdraw(..) | ResultOrder::Settle(..) => 0,
        }
    }
}

/// What is written together: neighbours of one lease.
enum ResultGroup {
    Put(Vec<ResultRow>),
    Withdraw(Option<Vec<Key>>),
}

impl ResultGroup {
    /// How many orders it is of, and their bytes.
    fn size(&self) -> (usize, usize) {
        match self {
            ResultGroup::Put(rows) => {
                let bytes = rows.iter().map(ResultRow::size).sum::<u64>();
                (rows.len(), usize::try_from(bytes).unwrap_or(usize::MAX))
            }
            ResultGroup::Withdraw(keys) => (keys.as_ref().map_or(1, Vec::len), 0),
        }
    }
}

fn start(sides: StoreSides) -> ResultWriting {
    // A session that has the most waiting may have read one more frame before it stops.
    let (orders, waiting) = mpsc::channel(MAX_WAITING_ORDERS + MAX_FRAME_MESSAGES);
    let (answers, taken) = mpsc::channel(64);
    let task = ResultTask {
        sides,
        ledgers: HashMap::new(),
        answers,
    };
    tokio::spawn(task.run(waiting));
    ResultWriting {
        orders,
        taken,
        count: 0,
        bytes: 0,
    }
}

struct ResultTask {
    sides: StoreSides,
    /// By lease: what it has, and how many came in this session.
    ledgers: HashMap<LeaseKey, (Ledger, u64)>,
    answers: mpsc::Sender<ResultsTaken>,
}

impl ResultTask {
    async fn run(mut self, mut waiting: mpsc::Receiver<ResultOrder>) {
        let mut batch = Vec::new();
        while waiting.recv_many(&mut batch, BATCH).await > 0 {
            if self.carry_out(std::mem::take(&mut batch)).await.is_none() {
                return;
            }
        }
    }

    /// Nothing when nobody listens any more, or nothing can be written.
    async fn carry_out(&mut self, orders: Vec<ResultOrder>) -> Option<()> {
        let mut group: Option<(LeaseKey, ResultGroup)> = None;
        for order in orders {
            match (order, &mut group) {
                (ResultOrder::Put(lease, row), Some((of, ResultGroup::Put(rows))))
                    if *of == lease =>
                {
                    rows.push(*row);
                }
                (
                    ResultOrder::Withdraw(lease, Some(key)),
                    Some((of, ResultGroup::Withdraw(Some(keys)))),
                ) if *of == lease => keys.push(key),
                (order, _) => {
                    if let Some((lease, group)) = group.take() {
                        self.write(lease, group).await?;
                    }
                    match order {
                        ResultOrder::Put(lease, row) => {
                            group = Some((lease, ResultGroup::Put(vec![*row])))
                        }
                        ResultOrder::Withdraw(lease, key) => {
                            let keys = key.map(|key| vec![key]);
                            group = Some((lease, ResultGroup::Withdraw(keys)));
                        }
                        ResultOrder::Settle(lease, claim) => self.settle(lease, claim).await?,
                    }
                }
            }
        }
        match group {
            Some((lease, group)) => self.write(lease, group).await,
            None => Some(()),
        }
    }

    async fn write(&mut self, lease: LeaseKey, group: ResultGroup) -> Option<()> {
        let (ledger, received) = *self.ledgers.entry(lease).or_default();
        let (orders, bytes) = group.size();
        let done = self.store(ledger, move |ledger, sides| match &group {
            ResultGroup::Put(rows) => ledger.put(sides, lease, rows),
            ResultGroup::Withdraw(keys) => ledger.withdraw(sides, lease, keys.as_deref()),
        });
        let done = done.await;
        let received = received + orders as u64;
        let ledger = done.as_ref().copied().unwrap_or(ledger);
        self.ledgers.insert(lease, (ledger, received));
        let taken = ResultsTaken {
            lease,
            received,
            full: ledger.is_full(),
            settled: None,
            orders,
            bytes,
            lost: done.is_err(),
        };
        self.answer(taken).await
    }

    async fn settle(&mut self, lease: LeaseKey, claim: ResultsClaim) -> Option<()> {
        let counts = claim.counts;
        let (ledger, received) = self.ledgers.remove(&lease).unwrap_or_default();
        let done = self.store(ledger, move |ledger, sides| {
            ledger.settle(sides, lease, counts)
        });
        let done = done.await;
        let may_be_flaky = claim.tests == TestsBlamed::Perhaps && done.is_ok();
        let blame = if may_be_flaky && self.is_flaky(lease).await {
            Blame::FlakyTests
        } else {
            Blame::AsSaid
        };
        self.answer(ResultsTaken {
            lease,
            received,
            full: false,
            settled: Some(blame),
            orders: 1,
            bytes: 0,
            lost: done.is_err(),
        })
        .await
    }

    /// A store that cannot say so now leaves the cause as it was said.
    async fn is_flaky(&self, lease: LeaseKey) -> bool {
        let reader = self.sides.reader.clone();
        let judged = tokio::task::spawn_blocking(move || only_flaky_failed(&*reader, lease));
        matches!(judged.await, Ok(Ok(true)))
    }

    async fn answer(&self, taken: ResultsTaken) -> Option<()> {
        let lost = taken.lost;
        self.answers.send(taken).await.ok()?;
        (!lost).then_some(())
    }

    /// Does something with the store, again while it is away and somebody waits for it. After that
    /// the agent sends on another session, and what is done here would undo what is done there.
    async fn store(
        &self,
        ledger: Ledger,
        work: impl Fn(&mut Ledger, &StoreSides) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> Result<Ledger, ()> {
        let work = Arc::new(work);
        let mut pause = FIRST_PAUSE;
        for _ in 0..TRIES {
            if self.answers.is_closed() {
                return Err(());
            }
            let (sides, work, mut ledger) = (self.sides.clone(), work.clone(), ledger);
            let done =
                tokio::task::spawn_blocking(move || work(&mut ledger, &sides).map(|()| ledger));
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

    use super::*;

    // D4, EP-16: the writer of a session that is gone does nothing more, least of all again.
    #[tokio::test]
    async fn a_session_that_is_gone_writes_nothing_more() {
        let (answers, taken) = mpsc::channel(1);
        let task = ResultTask {
            sides: StoreSides::in_memory(),
            ledgers: HashMap::new(),
            answers,
        };
        let (tries, taken) = (Arc::new(AtomicU32::new(0)), Mutex::new(Some(taken)));
        let counted = tries.clone();
        // The store is away, and the session ends meanwhile.
        let work = move |_: &mut Ledger, _: &StoreSides| {
            counted.fetch_add(1, Ordering::Relaxed);
            taken.lock().unwrap().take();
            Err(StoreError::Unavailable("away".to_owned()))
        };
        assert!(task.store(Ledger::default(), work).await.is_err());
        assert_eq!(tries.load(Ordering::Relaxed), 1);
    }
}
