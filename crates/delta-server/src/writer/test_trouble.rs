//! The writer when things go wrong around it: a store that panics, clocks that disagree, timers
//! that are early, writers that are always first.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use delta_core::attempt::{Progress, Report};
use delta_core::command::LeaseProof;
use delta_core::requirement::Capabilities;
use delta_core::{AttemptState, Command, Reply, RunId, RunState, Settings, Span};
use delta_store::read::Reader;

use super::tests::{Desk, block, desk_with};
use super::*;
use crate::duties::every::Duty as _;
use crate::duties::{Sweep, Swept};

/// Long enough for a loaded machine; nothing waits this long when all is well.
const PATIENCE: Duration = Duration::from_secs(20);

fn sweep(desk: &Desk) -> Sweep {
    Sweep::new(desk.writer.clone(), Span::secs(1))
}

fn proof(granted: &GrantedLease, runner: &str) -> LeaseProof {
    LeaseProof {
        key: granted.lease,
        token: sha256(granted.token.expose().as_bytes()),
        principal: "p".into(),
        runner: runner.into(),
        speaker: delta_core::rights::Speaker::anybody(),
    }
}

/// A granted and acknowledged lease of a new run.
async fn acked(desk: &Desk, id: u128, runner: &str) -> Box<GrantedLease> {
    desk.create(id).await.unwrap();
    take(desk, runner).await
}

async fn take(desk: &Desk, runner: &str) -> Box<GrantedLease> {
    let granted = desk.lease(runner, Duration::ZERO).await.unwrap().unwrap();
    let ack = Command::AckLease {
        proof: proof(&granted, runner),
        job: granted.lease.attempt.job,
    };
    let now = desk.writer.now();
    desk.writer.command(Lane::Hold, now, ack).await.unwrap();
    granted
}

fn beat(granted: &GrantedLease, runner: &str) -> Command {
    Command::Heartbeat {
        proof: proof(granted, runner),
        seq: None,
        progress: Progress::default(),
        uploading: false,
    }
}

fn success(granted: &GrantedLease, runner: &str) -> Command {
    Command::Complete {
        proof: proof(granted, runner),
        digest: [1; 32],
        status: delta_core::command::Status::Succeeded,
        cause: None,
        report: Box::new(Report {
            exit_code: Some(0),
            ..Report::default()
        }),
    }
}

fn cancel(run: u128) -> Command {
    Command::CancelRun {
        run: RunId(run),
        cause: delta_core::Cause::CanceledByUser,
        by: "u".into(),
    }
}

async fn until(what: &str, mut look: impl FnMut() -> bool) {
    delta_testkit::wait::eventually_async(PATIENCE, what, async || {
        if look() { Ok(()) } else { Err("not yet") }
    })
    .await;
}

#[tokio::test]
async fn a_writer_that_panics_sends_everybody_home() {
    let desk = Arc::new(desk_with(&[], |_| {}));
    let granted = acked(&desk, 1, "r1").await;
    let release = block(&desk).await;
    desk.levers.panics.store(true, Relaxed);
    let now = desk.writer.now();
    let receipt = desk.writer.receive();
    let all = async {
        tokio::join!(
            desk.writer
                .holder_says(receipt, beat(&granted, "r1"), Duration::from_secs(15)),
            desk.lease("r2", Duration::from_secs(25)),
            desk.create(2),
            // Beyond what one batch takes of this lane: it is never even looked at.
            async {
                let mut all = tokio::task::JoinSet::new();
                for _ in 0..600 {
                    let (writer, command) = (desk.writer.clone(), beat(&granted, "r1"));
                    all.spawn(async move { writer.command(Lane::Hold, now, command).await });
                }
                while desk.writer.depths()[0] < 500 {
                    tokio::task::yield_now().await;
                }
                drop(release);
                all.join_all().await
            }
        )
    };
    let all = tokio::time::timeout(PATIENCE, all).await;
    let (beat, leased, created, more) = all.expect("nobody hangs");
    let away = |answer: &NotDone| matches!(answer, NotDone::Unavailable(_));
    assert!(beat.is_err_and(|why| away(&why)));
    assert!(leased.is_err_and(|why| away(&why)));
    assert!(created.is_err_and(|why| away(&why)));
    assert!(more.iter().any(|one| one.as_ref().is_err_and(away)));
    tokio::time::timeout(PATIENCE, desk.writer.ended())
        .await
        .unwrap();
    assert!(desk.create(3).await.is_err_and(|why| away(&why)));
    assert_eq!(desk.writer.depths(), [0, 0, 0]);
}

#[tokio::test]
async fn nobody_hears_anything_before_the_commit() {
    // D2: a request, a session, a parked slot, a person, and who listens to a lease.
    let desk = Arc::new(desk_with(&[], |_| {}));
    let (ends, renews) = (acked(&desk, 1, "r1").await, acked(&desk, 2, "r2").await);
    let (session, canceled) = (acked(&desk, 3, "s/1").await, acked(&desk, 4, "s/2").await);
    let outbox = Arc::<Outbox>::default();
    let listened = [canceled.lease].into_iter();
    desk.writer.listen(&outbox, listened).unwrap();
    let release = block(&desk).await;
    let (arrived, let_go) = desk.levers.stop_commit();
    let ticket = Ticket {
        kind: TicketKind::Renew,
        lease: session.lease,
        seq: None,
    };
    let said = (ticket, desk.writer.receive(), beat(&session, "s/1"));
    desk.writer
        .session_says(&outbox, [said].into_iter())
        .unwrap();
    let offer = Offer::new(Capabilities::parse(["work:steps"]));
    let slot = [(9, 1, "s/9".into(), offer)].into_iter();
    desk.writer.park(&outbox, &"p".into(), slot).unwrap();
    let mut asked = Vec::new();
    for command in [success(&ends, "r1"), beat(&renews, "r2"), cancel(4)] {
        let desk = desk.clone();
        asked.push(tokio::spawn(async move {
            let now = desk.writer.now();
            let done = desk.writer.command(Lane::Hold, now, command).await;
            done.map(drop)
        }));
    }
    for id in [5, 6] {
        let desk = desk.clone();
        asked.push(tokio::spawn(async move { desk.create(id).await.map(drop) }));
    }
    let waits = {
        let desk = desk.clone();
        tokio::spawn(async move { desk.lease("r9", PATIENCE).await })
    };
    until("all of it waits", || {
        desk.writer.depths().iter().sum::<usize>() >= 8
    })
    .await;
    drop(release);
    arrived.await.unwrap();
    // What the writer had sent by now would be here.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(outbox.take().is_empty(), "the session has heard something");
    assert!(asked.iter().all(|one| !one.is_finished()));
    assert!(!waits.is_finished(), "the slot has heard something");
    let state = || desk.job_state(ends.lease.attempt.job);
    assert_eq!(state(), AttemptState::Starting);
    drop(let_go);
    for one in asked {
        one.await.unwrap().unwrap();
    }
    let granted = waits.await.unwrap().unwrap();
    granted.expect("one of the new jobs").delivery.delivered();
    let mut heard = Vec::new();
    until("the session hears all of it", || {
        heard.extend(outbox.take());
        heard.len() >= 3
    })
    .await;
    assert_eq!(state(), AttemptState::Succeeded);
}

#[tokio::test]
async fn no_timer_is_judged_before_a_message_that_came_first() {
    // A38: the heartbeat was read in time; its credential took long to look up.
    let ttl = Span(400);
    let quick = Settings {
        lease_ttl: ttl,
        ..Settings::recommended()
    };
    let desk = desk_with(&[], |thread| thread.settings = quick);
    let granted = acked(&desk, 1, "r1").await;
    let job = granted.lease.attempt.job;
    let receipt = desk.writer.receive();
    let ends = receipt.at() + ttl;
    until("the lease is over", || desk.writer.now() >= ends).await;
    sweep(&desk).run_once().await.unwrap();
    assert_eq!(desk.job_state(job), AttemptState::Starting);
    let renewed = desk
        .writer
        .holder_says(receipt, beat(&granted, "r1"), Duration::ZERO);
    let reply = renewed.await.unwrap().reply;
    assert!(matches!(reply, Reply::Renewed { .. }), "{reply:?}");
    // Nothing is on its way any more.
    sweep(&desk).run_once().await.unwrap();
    assert_eq!(desk.job_state(job), AttemptState::Queued);
}

#[tokio::test]
async fn a_server_far_behind_the_others_judges_nothing() {
    // A23, F40
    let desk = desk_with(&[], |thread| thread.several_writers = true);
    let granted = acked(&desk, 1, "r1").await;
    desk.levers.clock_ahead.store(6_000, Relaxed);
    // The store's clock jumped: whoever runs goes on by its own.
    desk.create(3).await.unwrap();
    assert!(desk.writer.shared().unready().is_some());
    sweep(&desk).run_once().await.unwrap();
    assert_eq!(desk.writer.shared().unfit(), None);
    // Another one started by the new clock.
    desk.levers.others_ahead.store(6_000, Relaxed);
    sweep(&desk).run_once().await.unwrap();
    for answer in [
        desk.create(2).await.map(drop),
        desk.writer
            .holder_says(desk.writer.receive(), beat(&granted, "r1"), Duration::ZERO)
            .await
            .map(drop),
        desk.lease("r2", Duration::ZERO).await.map(drop),
    ] {
        let Err(NotDone::Unavailable(why)) = answer else {
            panic!("{answer:?}");
        };
        assert!(why.contains("clock"), "{why}");
    }
    assert_eq!(sweep(&desk).run_once().await.unwrap(), Swept::default());
    desk.levers.clock_ahead.store(0, Relaxed);
    // The sweep's wake-up looks at the clock again, although nobody waits.
    sweep(&desk).run_once().await.unwrap();
    until("the clocks agree", || {
        desk.writer.shared().unready().is_none()
    })
    .await;
    sweep(&desk).run_once().await.unwrap();
    desk.create(2).await.unwrap();
}

#[tokio::test]
async fn a_held_heartbeat_hears_at_once_of_a_cancel_that_matching_decided() {
    // A70, A54: the run is over, and a slot asks before the sweep looks.
    let short = Settings {
        run_timeout: Span(300),
        ..Settings::recommended()
    };
    let desk = Arc::new(desk_with(&[], |thread| thread.settings = short));
    let two = br#"{"jobs":[{"name":"a","job_spec":{"steps":["true"]}},
        {"name":"b","job_spec":{"steps":["true"]}}]}"#;
    desk.create_from(1, two).await.unwrap();
    let granted = take(&desk, "r1").await;
    let over = desk.writer.now() + Span(300);
    let beat = beat(&granted, "r1");
    let held = {
        let desk = desk.clone();
        let hold = Duration::from_secs(10);
        tokio::spawn(async move {
            let receipt = desk.writer.receive();
            desk.writer.holder_says(receipt, beat, hold).await
        })
    };
    until("the run is over", || desk.writer.now() >= over).await;
    let none = desk.lease("r2", Duration::ZERO).await.unwrap();
    assert!(none.is_none(), "nothing of it is granted");
    let reply = held.await.unwrap().unwrap().reply;
    let told = matches!(
        reply,
        Reply::Renewed {
            cancel: Some(_),
            ..
        }
    );
    assert!(told, "{reply:?}");
}

#[tokio::test]
async fn a_queue_that_cannot_be_read_keeps_nobody_from_renewing() {
    // F56
    let desk = desk_with(&[], |_| {});
    let granted = acked(&desk, 1, "r1").await;
    desk.create(2).await.unwrap();
    desk.levers.queue_damaged.store(true, Relaxed);
    let beat = || {
        let receipt = desk.writer.receive();
        desk.writer
            .holder_says(receipt, beat(&granted, "r1"), Duration::ZERO)
    };
    let wait = desk.lease("r2", Duration::from_millis(200));
    let (waited, renewed) = tokio::join!(wait, beat());
    assert!(waited.unwrap().is_none());
    assert!(matches!(renewed.unwrap().reply, Reply::Renewed { .. }));
}

#[tokio::test]
async fn an_idle_server_notices_that_the_clock_jumped() {
    // A23: alone, it goes on by its own clock, and says so.
    let desk = desk_with(&[], |_| {});
    desk.levers.clock_ahead.store(60_000, Relaxed);
    sweep(&desk).run_once().await.unwrap();
    let clock = &desk.writer.shared().clock;
    until("the jump is seen", || clock.trouble().is_some()).await;
    desk.create(1).await.unwrap();
}

#[tokio::test]
async fn a_batch_that_is_never_first_is_run_one_by_one() {
    let desk = desk_with(&[], |_| {});
    desk.levers.conflicts.store(u32::MAX, Relaxed);
    let release = block(&desk).await;
    let (one, two, ()) = tokio::join!(desk.create(1), desk.create(2), async { drop(release) });
    one.unwrap();
    two.unwrap();
    assert!(desk.writer.shared().metrics.conflicts.get() > 0);
    assert_eq!(desk.writer.shared().metrics.failed_batches.get(), 0);
}

#[tokio::test]
async fn a_command_that_became_too_old_among_the_single_ones_is_not_judged() {
    // A38
    let desk = desk_with(&[], |thread| {
        thread.longest_wait = Duration::from_millis(300)
    });
    desk.levers.conflicts.store(u32::MAX, Relaxed);
    desk.levers.slow_commit.store(200, Relaxed);
    let release = block(&desk).await;
    let (one, two, three, ()) =
        tokio::join!(desk.create(1), desk.create(2), desk.create(3), async {
            drop(release)
        });
    let late = [one, two, three].into_iter().filter(Result::is_err).count();
    assert!(late > 0, "each commit takes two thirds of the longest wait");
    let metrics = &desk.writer.shared().metrics;
    assert_eq!(metrics.too_late.get(), late as u64);
}

#[tokio::test]
async fn many_wake_ups_are_one() {
    let desk = desk_with(&[], |_| {});
    let release = block(&desk).await;
    for _ in 0..1_000 {
        desk.writer.wake();
    }
    assert_eq!(desk.writer.depths(), [0, 1, 0]);
    let begun = desk.levers.begun.load(Relaxed);
    drop(release);
    until("it woke", || desk.levers.begun.load(Relaxed) > begun).await;
    desk.writer.wake();
    until("and again", || desk.levers.begun.load(Relaxed) > begun + 1).await;
}

#[tokio::test]
async fn what_stays_due_does_not_keep_the_sweep_from_the_rest() {
    // Leases within the start-up grace (A40) are due by the store's reckoning only.
    let quick = Settings {
        lease_ttl: Span(50),
        // Long enough for five of them to be taken up on a busy machine.
        wait_timeout: Span(2_000),
        ..Settings::recommended()
    };
    let desk = desk_with(&[], |thread| {
        thread.settings = quick;
        thread.lease_floor = thread.clock.now() + Span::hours(1);
    });
    let mut kept = Vec::new();
    for n in 1..=5 {
        kept.push(acked(&desk, n, &format!("r{n}")).await);
    }
    desk.create(6).await.unwrap();
    let over = desk.writer.now() + Span(2_000);
    until("all are due", || desk.writer.now() >= over).await;
    let swept = sweep(&desk).settle_due(2).await.unwrap();
    assert_eq!((swept.looked_at, swept.changed), (6, 1));
    let run = desk.reader.run(RunId(6)).unwrap().unwrap().run;
    assert_eq!(run.outcome, Some(RunState::Failed));
}

#[tokio::test]
async fn a_run_past_its_waiting_limit_is_ended_and_not_granted() {
    // A33, A54: no sweep runs here, as right after a start.
    let quick = Settings {
        wait_timeout: Span(30),
        ..Settings::recommended()
    };
    let desk = desk_with(&[], |thread| thread.settings = quick);
    desk.create(1).await.unwrap();
    let over = desk.writer.now() + Span(30);
    until("its limit is over", || desk.writer.now() >= over).await;
    assert!(desk.lease("r1", Duration::ZERO).await.unwrap().is_none());
    let run = desk.reader.run(RunId(1)).unwrap().unwrap().run;
    let ended = (run.outcome, run.cause.map(|cause| cause.name()));
    assert_eq!(ended, (Some(RunState::Failed), Some("no_agent")));
}
