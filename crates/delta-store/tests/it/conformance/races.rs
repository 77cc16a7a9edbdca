//! Many at once. Where a store allows several writers each thread has its own; elsewhere the
//! threads hand one store round, as a server's handlers do.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use delta_core::command::{LeaseProof, Status};
use delta_core::{AttemptId, Reply, RunState, Settings, Text};
use delta_store::Store;
use delta_store::memory::MemoryStore;
use delta_store::reference_driver::{self, LeaseAsk};

use super::Fixture;
use super::bench::{Bench, Held, START, ack, complete, context, digest, header, new_job, policy};
use super::faulty::Faulty;

/// A store for each thread, or the same one for all.
type Hand = Arc<Mutex<Box<dyn Store>>>;

fn hands(bench: &Bench, count: usize, shared_store: &Hand) -> Vec<Hand> {
    let hand = |_| {
        if bench.fixture.shared {
            Arc::new(Mutex::new((bench.fixture.open)().0))
        } else {
            shared_store.clone()
        }
    };
    (0..count).map(hand).collect()
}

fn ask(runner: usize) -> LeaseAsk {
    LeaseAsk {
        keys: vec!["linux".into()],
        principal: "agent".into(),
        runner: format!("r{runner}").into(),
        token: digest(runner as u64),
    }
}

fn held(ask: &LeaseAsk, attempt: AttemptId, epoch: u64) -> Held {
    Held {
        proof: LeaseProof {
            key: attempt.lease(epoch),
            token: ask.token,
            principal: ask.principal.clone(),
            runner: ask.runner.clone(),
            speaker: delta_core::rights::Speaker::anybody(),
        },
    }
}

/// Leases, acknowledges and completes until nothing is left; the attempts it had.
fn drain(hand: &Hand, ask: &LeaseAsk, settings: &Settings) -> Vec<AttemptId> {
    let now = context(START, settings, 1);
    let mut had = Vec::new();
    loop {
        let given = reference_driver::lease(&mut **hand.lock().unwrap(), ask, &now).unwrap();
        let Some(given) = given else {
            return had;
        };
        assert!(given.answer.is_ok(), "{:?}", given.answer);
        let held = held(ask, given.attempt, given.epoch);
        for command in [ack(&held), complete(&held, Status::Succeeded, None)] {
            let answers =
                reference_driver::apply(&mut **hand.lock().unwrap(), &[command], &now).unwrap();
            let fine = matches!(
                answers[0],
                Ok(Reply::Acknowledged { .. } | Reply::Completed)
            );
            assert!(fine, "{answers:?}");
        }
        had.push(given.attempt);
    }
}

fn drain_by(mut bench: Bench, threads: usize) -> (Bench, Vec<AttemptId>) {
    let settings = bench.settings.clone();
    // The bench gives its store away and opens it again in the end.
    let idle = Faulty::new(Box::new(MemoryStore::new()));
    let one: Hand = Arc::new(Mutex::new(std::mem::replace(&mut bench.store, idle).inner));
    let hands = hands(&bench, threads, &one);
    let start = Barrier::new(threads);
    let had = thread::scope(|scope| {
        let work = |(n, hand): (usize, &Hand)| {
            let (hand, settings, start) = (hand.clone(), &settings, &start);
            scope.spawn(move || {
                start.wait();
                drain(&hand, &ask(n), settings)
            })
        };
        let threads: Vec<_> = hands.iter().enumerate().map(work).collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.flatten().collect()
    });
    drop((hands, one));
    (bench.reopen(), had)
}

pub fn many_runners_each_get_their_own(make: &dyn Fn() -> Fixture) {
    // SM-2, I3
    let mut bench = Bench::new(make);
    for n in 1..=20 {
        bench.create(n, &["linux", "linux"]);
    }
    let (bench, had) = drain_by(bench, 8);
    let distinct: BTreeSet<AttemptId> = had.iter().copied().collect();
    assert_eq!(had.len(), 40);
    assert_eq!(distinct.len(), 40, "each attempt was granted once");
    for n in 1..=20 {
        let run = bench.run(super::bench::run_id(n));
        assert_eq!(run.outcome, Some(RunState::Success));
    }
    let report = delta_store::doctor::examine(&*bench.reader, &mut |_| {}).unwrap();
    assert_eq!(report.first_difference, None);
}

pub fn sixty_four_clients_on_one_run(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let jobs = (0..64).map(|n| new_job(&format!("j{n}"), policy("linux")));
    let run = bench.create_with(1, header(), jobs.collect());
    let (bench, had) = drain_by(bench, 64);
    assert_eq!(had.len(), 64);
    let rows = bench.run_rows(run);
    assert_eq!(rows.run.outcome, Some(RunState::Success));
    assert_eq!(rows.version, 1 + 3 * 64);
    let report = delta_store::doctor::examine(&*bench.reader, &mut |_| {}).unwrap();
    assert_eq!(report.first_difference, None);
}

pub fn two_claims_never_grant_one_attempt_twice(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux"]);
    let first = bench.lease("r1", &["linux"]);
    assert!(first.is_some());
    let second = bench.lease("r2", &["linux"]);
    assert!(second.is_none());
    if bench.fixture.shared {
        let (mut other, _, _) = (bench.fixture.open)();
        let settings = bench.settings.clone();
        let given = reference_driver::lease(&mut *other, &ask(3), &context(START, &settings, 1));
        assert!(given.unwrap().is_none());
    }
    let runner: Text = "r1".into();
    assert_eq!(first.unwrap().proof.runner, runner);
}
