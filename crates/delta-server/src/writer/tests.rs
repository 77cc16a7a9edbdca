//! The writer on the memory store: what a commit that fails, a grant that reaches nobody and a full
//! lane do to those who wait.

use std::sync::mpsc;
use std::time::Duration;

use delta_core::command::NewRun;
use delta_core::requirement::Capabilities;
use delta_core::{AttemptState, Command, JobId, Refusal, Reply, RunId, RunState, Settings, Span};
use delta_store::memory::{Fault, MemoryReader, MemoryStore};
use delta_store::read::Reader;
use delta_wire::api::CreateRun;

use super::test_store::{Levers, TestStore};
use super::*;
use crate::new_run::{Asked, new_run};

pub(super) struct Desk {
    pub writer: Writer,
    pub reader: MemoryReader,
    pub levers: Arc<Levers>,
    settings: Settings,
}

fn desk(faults: &[Fault], people_limit: usize, longest_wait: Duration) -> Desk {
    desk_with(faults, |thread| {
        thread.people_limit = people_limit;
        thread.longest_wait = longest_wait;
    })
}

/// A writer on a store that can be disturbed; `set` changes what it is started with.
pub(super) fn desk_with(faults: &[Fault], set: impl FnOnce(&mut Thread)) -> Desk {
    let mut inner = MemoryStore::new();
    for fault in faults {
        inner.inject(*fault);
    }
    let reader = inner.reader();
    let now = inner.begin().unwrap();
    let levers = Arc::<Levers>::default();
    let mut thread = Thread {
        store: Box::new(TestStore {
            inner,
            levers: levers.clone(),
        }),
        clock: Clock::start(now, Millis::ZERO),
        settings: Settings::recommended(),
        metrics: Arc::default(),
        watchers: Watchers::default(),
        lease_floor: Millis::ZERO,
        several_writers: false,
        people_limit: 100,
        longest_wait: LONGEST_WAIT,
    };
    set(&mut thread);
    let settings = thread.settings.clone();
    let (writer, _) = thread.spawn().unwrap();
    Desk {
        writer,
        reader,
        levers,
        settings,
    }
}

fn plain(faults: &[Fault]) -> Desk {
    desk(faults, 100, LONGEST_WAIT)
}

impl Desk {
    fn new_run(&self, id: u128, body: &[u8]) -> (NewRun, Vec<Arc<str>>) {
        let asked = Asked {
            by: "u".into(),
            idempotency: None,
        };
        let request = CreateRun::parse(body).unwrap();
        new_run(RunId(id), &request, asked, &self.settings).unwrap()
    }

    pub async fn create(&self, id: u128) -> Result<Answer, NotDone> {
        let body = br#"{"jobs":[{"name":"a","job_spec":{"steps":["true"]}}]}"#;
        self.create_from(id, body).await
    }

    pub async fn create_from(&self, id: u128, body: &[u8]) -> Result<Answer, NotDone> {
        let (new, specs) = self.new_run(id, body);
        let command = Command::CreateRun(Box::new(new));
        self.writer.create(self.writer.now(), command, specs).await
    }

    pub async fn lease(&self, runner: &str, wait: Duration) -> LeaseAnswer {
        let tags = Offer::new(Capabilities::parse(["work:steps"]));
        let now = self.writer.now();
        self.writer
            .lease(now, "p".into(), runner.into(), tags, wait)
            .await
    }

    pub fn job_state(&self, job: JobId) -> AttemptState {
        self.reader.job(job).unwrap().unwrap().attempts[0].state
    }

    fn versions(&self, run: RunId) -> u64 {
        self.reader.run(run).unwrap().unwrap().version
    }
}

#[tokio::test]
async fn a_conflict_is_tried_again() {
    let desk = plain(&[Fault::Conflict, Fault::Conflict]);
    desk.create(1).await.unwrap();
    assert_eq!(desk.versions(RunId(1)), 1);
    assert_eq!(desk.writer.shared().metrics.conflicts.get(), 2);
}

#[tokio::test]
async fn an_unknown_commit_is_looked_up_and_done_once_either_way() {
    for fault in [Fault::UnknownApplied, Fault::UnknownNotApplied] {
        let desk = plain(&[fault]);
        desk.create(1).await.unwrap();
        assert_eq!(desk.versions(RunId(1)), 1, "{fault:?}");
    }
}

#[tokio::test]
async fn a_store_that_is_away_answers_try_again_and_nothing_is_judged() {
    let desk = plain(&[Fault::Unavailable]);
    let refused = desk.create(1).await.unwrap_err();
    assert!(matches!(refused, NotDone::Unavailable(_)), "{refused:?}");
    assert!(desk.reader.run(RunId(1)).unwrap().is_none());
    desk.create(1).await.unwrap();
}

#[tokio::test]
async fn a_grant_that_reaches_nobody_is_taken_back_at_once() {
    // A67: dropping the answer is what a closed connection does.
    let desk = plain(&[]);
    desk.create(1).await.unwrap();
    let granted = desk.lease("r1", Duration::ZERO).await.unwrap().unwrap();
    let job = granted.lease.attempt.job;
    assert_eq!(desk.job_state(job), AttemptState::Leased);
    drop(granted);
    let again = desk
        .lease("r2", Duration::from_secs(10))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(again.lease.attempt.job, job);
    let rows = desk.reader.job(job).unwrap().unwrap();
    let first = &rows.past_leases[0].1;
    assert_eq!(
        first.revocation,
        Some(delta_core::lease::Revocation::Replaced)
    );
    assert_eq!(rows.attempts[0].dispatches, 0);
    again.delivery.delivered();
}

#[tokio::test]
async fn a_slot_is_served_in_the_batch_that_queues_its_work() {
    // D2: one commit makes the run and grants its job.
    let desk = plain(&[]);
    let waiting = desk.lease("r1", Duration::from_secs(10));
    let (granted, created) = tokio::join!(waiting, async {
        while desk.writer.shared().metrics.lease_requests.get() == 0 {
            tokio::task::yield_now().await;
        }
        desk.create(1).await
    });
    created.unwrap();
    let granted = granted.unwrap().unwrap();
    assert_eq!(desk.versions(RunId(1)), 2);
    assert_eq!(
        desk.reader.run(RunId(1)).unwrap().unwrap().run.state,
        RunState::Running
    );
    granted.delivery.delivered();
}

/// Keeps the writer busy until the sender is dropped.
pub(super) async fn block(desk: &Desk) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel::<()>();
    let (began, begins) = tokio::sync::oneshot::channel();
    let writer = desk.writer.clone();
    tokio::spawn(async move {
        let wait = move |_: &mut dyn Store| {
            let _ = began.send(());
            let _ = released.recv();
            Ok(())
        };
        let _ = writer.with_store(wait).await;
    });
    begins.await.unwrap();
    release
}

#[tokio::test]
async fn people_are_refused_under_overload_while_holders_are_served() {
    // D2: lane 3 is full, lane 1 is open.
    let desk = Arc::new(desk(&[], 2, LONGEST_WAIT));
    desk.create(1).await.unwrap();
    let granted = desk.lease("r1", Duration::ZERO).await.unwrap().unwrap();
    let release = block(&desk).await;
    let mut waiting = tokio::task::JoinSet::new();
    for id in 2..4 {
        let desk = desk.clone();
        waiting.spawn(async move { desk.create(id).await });
    }
    while desk.writer.depths()[2] < 2 {
        tokio::task::yield_now().await;
    }
    let refused = desk.create(4).await.unwrap_err();
    assert!(matches!(refused, NotDone::Overloaded));
    let command = Command::AckLease {
        proof: delta_core::command::LeaseProof {
            key: granted.lease,
            token: sha256(granted.token.expose().as_bytes()),
            principal: "p".into(),
            runner: "r1".into(),
            speaker: delta_core::rights::Speaker::anybody(),
        },
        job: granted.lease.attempt.job,
    };
    let (acknowledged, ()) = tokio::join!(
        desk.writer.command(Lane::Hold, desk.writer.now(), command),
        async { drop(release) }
    );
    let ttl = Span::secs(120);
    assert_eq!(acknowledged.unwrap().reply, Reply::Acknowledged { ttl });
    while let Some(created) = waiting.join_next().await {
        created.unwrap().unwrap();
    }
    granted.delivery.delivered();
}

#[tokio::test]
async fn a_command_that_waited_too_long_is_never_judged() {
    // A38
    let desk = Arc::new(desk(&[], 10, Duration::from_millis(20)));
    let release = block(&desk).await;
    let late = {
        let desk = desk.clone();
        tokio::spawn(async move { desk.create(1).await })
    };
    while desk.writer.depths()[2] < 1 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(40)).await;
    drop(release);
    let refused = late.await.unwrap().unwrap_err();
    assert!(matches!(refused, NotDone::Unavailable(_)), "{refused:?}");
    assert!(desk.reader.run(RunId(1)).unwrap().is_none());
}

#[tokio::test]
async fn closing_sends_parked_slots_home_and_commits_what_waits() {
    let desk = plain(&[]);
    let (parked, ()) = tokio::join!(desk.lease("r1", Duration::from_secs(20)), async {
        while desk.writer.shared().metrics.lease_requests.get() == 0 {
            tokio::task::yield_now().await;
        }
        desk.writer.stop_parking();
    });
    assert!(parked.unwrap().is_none());
    assert!(
        desk.lease("r2", Duration::from_secs(20))
            .await
            .unwrap()
            .is_none()
    );
    desk.create(1).await.unwrap();
    desk.writer.close();
    let refused = desk.create(2).await.unwrap_err();
    assert!(matches!(refused, NotDone::Unavailable(_)));
    assert_eq!(desk.versions(RunId(1)), 1);
}

#[tokio::test]
async fn one_bad_command_fails_alone() {
    let desk = plain(&[]);
    let release = block(&desk).await;
    let now = desk.writer.now();
    let cancel = Command::CancelRun {
        run: RunId(99),
        cause: delta_core::Cause::CanceledByUser,
        by: "u".into(),
    };
    let (bad, good, ()) = tokio::join!(
        desk.writer.command(Lane::People, now, cancel),
        desk.create(1),
        async { drop(release) }
    );
    assert!(matches!(bad, Err(NotDone::Refused(Refusal::NoSuchRun(_)))));
    good.unwrap();
}

#[tokio::test]
async fn a_grant_lost_to_a_conflict_is_made_again_in_the_same_turn() {
    // No sweep runs here: only the retry can find the job.
    let desk = plain(&[Fault::UnknownApplied, Fault::Conflict, Fault::Conflict]);
    desk.create(1).await.unwrap();
    let granted = desk
        .lease("r1", Duration::from_secs(10))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(granted.lease.attempt.job.run, RunId(1));
    granted.delivery.delivered();
}

/// Commands that make runs, each under its key with this request.
fn creations(desk: &Desk, runs: &[(u128, u8, u8)]) -> Vec<(Command, Vec<Arc<str>>)> {
    let body = br#"{"jobs":[{"name":"a","job_spec":{"steps":["true"]}}]}"#;
    let made = runs.iter().map(|(id, key, request)| {
        let (mut new, specs) = desk.new_run(*id, body);
        new.header.idempotency = Some(([*key; 32], [*request; 32]));
        (Command::CreateRun(Box::new(new)), specs)
    });
    made.collect()
}

#[tokio::test]
async fn where_one_is_refused_none_of_all_is_done() {
    let desk = plain(&[]);
    let all = async |runs: &[(u128, u8, u8)]| {
        let commands = creations(&desk, runs);
        let now = desk.writer.now();
        desk.writer.all_or_none(now, commands.into_iter()).await
    };
    assert_eq!(all(&[(1, 1, 1), (2, 2, 1)]).await.unwrap().len(), 2);
    // Another request under the key of the second, and one longer than the first was.
    for runs in [[(3, 3, 9), (4, 2, 9)], [(3, 1, 9), (4, 4, 9)]] {
        let refused = all(&runs).await.unwrap_err();
        assert!(matches!(refused, NotDone::Refused(_)), "{refused:?}");
        for id in [3, 4] {
            assert!(desk.reader.run(RunId(id)).unwrap().is_none(), "{runs:?}");
        }
    }
    let again = all(&[(5, 1, 1), (6, 2, 1)]).await.unwrap();
    let replayed = |it: &Answer| matches!(it.reply, Reply::Created { replayed: true, .. });
    assert!(again.iter().all(replayed));
}

#[tokio::test]
async fn all_or_none_is_not_split_where_others_are_always_first() {
    // As often as a batch is tried.
    let desk = plain(&[Fault::Conflict; 9]);
    let commands = creations(&desk, &[(1, 1, 1), (2, 2, 1)]);
    let now = desk.writer.now();
    let answer = desk
        .writer
        .all_or_none(now, commands.clone().into_iter())
        .await;
    let why = answer.unwrap_err();
    assert!(matches!(why, NotDone::Unavailable(_)), "{why:?}");
    for id in [1, 2] {
        assert!(desk.reader.run(RunId(id)).unwrap().is_none());
    }
    let now = desk.writer.now();
    let made = desk.writer.all_or_none(now, commands.into_iter()).await;
    assert_eq!(made.unwrap().len(), 2);
}
