//! Loading inside a batch, and reading outside of one.

use std::collections::BTreeSet;
use std::sync::Arc;

use delta_core::command::NewRun;
use delta_core::rights::{AgentShown, Barred, Speaker};
use delta_core::{Command, JobId, Millis, Refusal, Reply, RunState, Text, Want, World};
use delta_store::Store;
use delta_store::agents::{AgentRow, AgentSeen};
use delta_store::read::RunFilter;

use super::Fixture;
use super::bench::{Bench, digest, header, new_job, policy, run_id};

fn load(bench: &mut Bench, wants: &[Want]) -> World {
    let mut world = World::default();
    bench.store.begin().unwrap();
    let wants = wants.iter().cloned().collect();
    bench.store.load(&wants, &mut world).unwrap();
    bench.store.rollback();
    world
}

pub fn absent_rows_are_entered_as_absent(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let job = run_id(1).job(1);
    let lease = job.attempt(1).lease(1);
    let holder: (Text, Text) = ("agent".into(), "r1".into());
    let wants = [
        Want::Run(run_id(1)),
        Want::Job(job),
        Want::Attempt(job.attempt(1)),
        Want::PastLease(lease),
        Want::Key(digest(1)),
        Want::Holder(holder.0.clone(), holder.1.clone()),
        Want::LiveJobs(run_id(1)),
    ];
    let world = load(&mut bench, &wants);
    assert_eq!(world.runs.get(&run_id(1)), Some(&None));
    assert_eq!(world.jobs.get(&job), Some(&None));
    assert_eq!(world.attempts.get(&job.attempt(1)), Some(&None));
    assert_eq!(world.past_leases.get(&lease), Some(&None));
    assert_eq!(world.keys.get(&digest(1)), Some(&None));
    assert_eq!(world.holders.get(&holder), Some(&None));
    assert!(world.whole.contains(&run_id(1)));
    assert!(bench.reader.run(run_id(1)).unwrap().is_none());
    assert!(bench.reader.job(job).unwrap().is_none());
}

pub fn what_the_batch_knows_is_not_loaded_again(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let run = bench.create(1, &["linux", "linux"]);
    let mut world = load(&mut bench, &[Want::Job(run.job(1))]);
    let mut changed = world.jobs[&run.job(1)].clone().unwrap();
    Arc::make_mut(&mut changed).waiting_on = 77;
    world.jobs.insert(run.job(1), Some(changed.clone()));
    let wants = BTreeSet::from([Want::LiveJobs(run), Want::Job(run.job(1))]);
    bench.store.begin().unwrap();
    bench.store.load(&wants, &mut world).unwrap();
    bench.store.rollback();
    assert_eq!(world.jobs[&run.job(1)], Some(changed));
    assert!(world.jobs[&run.job(2)].is_some());
}

pub fn live_jobs_come_with_their_attempts(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let run = bench.create(1, &["linux", "linux", "windows"]);
    bench.create(2, &["linux"]);
    bench.work_off("r1", &["linux"]).expect("work");
    let mut bench = bench.reopen();
    let world = load(&mut bench, &[Want::LiveJobs(run)]);
    assert!(world.whole.contains(&run));
    assert_eq!(world.live_jobs(run), [run.job(2), run.job(3)]);
    for job in world.live_jobs(run) {
        let row = world.jobs[&job].as_ref().unwrap();
        assert!(world.attempts[&row.current()].is_some());
    }
    let others: Vec<&JobId> = world.jobs.keys().filter(|id| id.run != run).collect();
    assert!(others.is_empty(), "{others:?}");
}

pub fn holders_are_found_while_they_hold(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    let mut bench = bench.reopen();
    let key = |runner: &str| (Text::from("agent"), Text::from(runner));
    let want = |runner: &str| Want::Holder("agent".into(), runner.into());
    let world = load(&mut bench, &[want("r1"), want("r2")]);
    assert_eq!(world.holders[&key("r1")], Some(held.attempt()));
    assert_eq!(world.holders[&key("r2")], None);
    bench.complete(&held).unwrap();
    let world = load(&mut bench, &[want("r1")]);
    assert_eq!(world.holders[&key("r1")], None);
}

pub fn an_idempotency_key_finds_its_run(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let mut keyed = header();
    keyed.idempotency = Some((digest(1), digest(2)));
    let jobs = vec![new_job("a", policy("linux"))];
    let run = bench.create_with(1, keyed.clone(), jobs.clone());
    let mut bench = bench.reopen();
    let again = |header| {
        Command::CreateRun(Box::new(NewRun {
            id: run_id(2),
            header,
            jobs: Some(jobs.clone()),
        }))
    };
    let replayed = Reply::Created {
        run,
        replayed: true,
    };
    assert_eq!(bench.one(again(keyed.clone())), Ok(replayed));
    keyed.idempotency = Some((digest(1), digest(3)));
    assert_eq!(bench.one(again(keyed)), Err(Refusal::KeyReused(run)));
    assert!(bench.reader.run(run_id(2)).unwrap().is_none());
}

pub fn filters_and_pages_of_runs(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    for n in 1..=6 {
        let mut header = header();
        header.repository = Some(if n % 2 == 0 { "even" } else { "odd" }.into());
        header.git_ref = Some("refs/heads/main".into());
        header.commit = Some(format!("c{n}").into());
        bench.create_with(n, header, vec![new_job("a", policy("linux"))]);
    }
    bench.work_off("r1", &["linux"]).expect("work");
    let runs = |filter: RunFilter, limit| -> Vec<u128> {
        let found = bench.reader.runs(&filter, limit).unwrap();
        found.iter().map(|run| run.id.0 - run_id(0).0).collect()
    };
    let any = RunFilter::default;
    assert_eq!(runs(any(), 4), [6, 5, 4, 3]);
    let before = Some(run_id(3));
    assert_eq!(runs(RunFilter { before, ..any() }, 4), [2, 1]);
    let repository = Some(Text::from("even"));
    let even = RunFilter {
        repository,
        ..any()
    };
    assert_eq!(runs(even.clone(), 9), [6, 4, 2]);
    let before = Some(run_id(6));
    assert_eq!(runs(RunFilter { before, ..even }, 1), [4]);
    let commit = Some(Text::from("c5"));
    assert_eq!(runs(RunFilter { commit, ..any() }, 9), [5]);
    let git_ref = Some(Text::from("refs/heads/other"));
    assert!(runs(RunFilter { git_ref, ..any() }, 9).is_empty());
    let state = Some(RunState::Queued);
    assert_eq!(runs(RunFilter { state, ..any() }, 9), [6, 5, 4, 3, 2]);
    let state = Some(RunState::Reported);
    assert_eq!(runs(RunFilter { state, ..any() }, 9), [1]);
    let outcome = Some(RunState::Success);
    assert_eq!(runs(RunFilter { outcome, ..any() }, 9), [1]);
    let ids = bench.reader.run_ids(Some(run_id(4)), 9).unwrap();
    assert_eq!(ids, [run_id(5), run_id(6)]);
    assert_eq!(bench.reader.run_ids(None, 1).unwrap(), [run_id(1)]);
}

pub fn stats_count_what_is_there(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux", "linux"]);
    bench.create(2, &["linux"]);
    bench.lease("r1", &["linux"]).expect("work");
    let bench = bench.reopen();
    bench.reader.ping().unwrap();
    let stats = bench.reader.stats().unwrap();
    assert_eq!((stats.runs, stats.queued, stats.leased), (2, 2, 1));
}

pub fn agents_are_kept_seen_drained_and_revoked(make: &dyn Fn() -> Fixture) {
    let bench = Bench::new(make);
    let agent = |n: u64| AgentRow {
        id: format!("agt_{n}").into(),
        principal: "tok_1".into(),
        resume: (n == 1).then(|| digest(n)),
        slots: 4,
        about: "{\"name\":\"\0\"}".into(),
        session: u64::MAX / 2,
        drain: None,
        created_at: Millis(5),
        seen_at: Millis(5),
        revoked_at: None,
        process: (n == 2).then(|| "first".into()),
    };
    let (one, two) = (agent(1), agent(2));
    assert!(bench.tables.new_agent(&two).unwrap());
    assert!(bench.tables.new_agent(&one).unwrap());
    let taken = AgentRow {
        principal: "tok_2".into(),
        ..one.clone()
    };
    assert!(!bench.tables.new_agent(&taken).unwrap());
    let bench = bench.reopen();
    assert_eq!(bench.reader.agent("agt_1").unwrap(), Some(one.clone()));
    assert_eq!(bench.reader.agent("agt_9").unwrap(), None);
    let both = [one.clone(), two.clone()];
    assert_eq!(bench.reader.agents("", 10).unwrap(), both);
    assert_eq!(bench.reader.agents("agt_1", 10).unwrap(), both[1..]);
    assert_eq!(bench.reader.agents("", 1).unwrap(), both[..1]);
    let seen = |id: &str, slots, at| AgentSeen {
        id: id.into(),
        slots,
        about: "{}".into(),
        session: 7,
        seen_at: Millis(at),
    };
    let news = [
        seen("agt_1", 2, 9),
        seen("agt_2", 8, 3),
        seen("agt_9", 1, 1),
    ];
    bench.tables.agents_seen(&news).unwrap();
    assert!(bench.tables.drain_agent("agt_2", Some("d1")).unwrap());
    assert!(!bench.tables.drain_agent("agt_9", Some("d1")).unwrap());
    assert!(bench.tables.revoke_agent("agt_1", Millis(20)).unwrap());
    assert!(bench.tables.revoke_agent("agt_1", Millis(30)).unwrap());
    assert!(!bench.tables.revoke_agent("agt_9", Millis(20)).unwrap());
    let bench = bench.reopen();
    let found = bench.reader.agents("", 10).unwrap();
    let as_of = |row: &AgentRow| (row.slots, row.seen_at.0, row.drain.clone(), row.revoked_at);
    assert_eq!(as_of(&found[0]), (4, 9, None, Some(Millis(20))));
    assert_eq!(as_of(&found[1]), (8, 5, Some("d1".into()), None));
    assert!(bench.tables.drain_agent("agt_2", None).unwrap());
    let bound = two.principal.to_string();
    let rebind = |id: &str, from: &str| bench.tables.rebind_agent(id, from, "tok_new").unwrap();
    assert!(!rebind("agt_2", "tok_other") && !rebind("agt_9", &bound));
    assert!(rebind("agt_2", &bound));
    assert!(!rebind("agt_2", &bound), "it is bound to the new one");
    let now = bench.reader.agent("agt_2").unwrap().unwrap();
    assert_eq!(&*now.principal, "tok_new");
    assert_eq!(bench.reader.agent("agt_2").unwrap().unwrap().drain, None);
    // D15: who has not been seen for long is forgotten, but not what was ordered for it.
    assert_eq!(bench.tables.forget_agents(Millis(5)).unwrap(), 0);
    assert!(bench.tables.drain_agent("agt_2", Some("d2")).unwrap());
    assert_eq!(bench.tables.forget_agents(Millis(1_000)).unwrap(), 0);
    assert!(bench.tables.drain_agent("agt_2", None).unwrap());
    assert_eq!(bench.tables.forget_agents(Millis(1_000)).unwrap(), 1);
    assert_eq!(bench.reader.agent("agt_2").unwrap(), None);
    assert!(
        bench.reader.agent("agt_1").unwrap().is_some(),
        "it was revoked"
    );
}

pub fn a_batch_sees_how_an_agent_stands_now(make: &dyn Fn() -> Fixture) {
    // I23: whatever a batch before it saw, and whichever way the agent was changed.
    let mut bench = Bench::new(make);
    let row = AgentRow {
        id: "agt_1".into(),
        principal: "agent".into(),
        resume: Some(digest(1)),
        slots: 1,
        about: "{}".into(),
        session: 3,
        drain: None,
        created_at: Millis(5),
        seen_at: Millis(5),
        revoked_at: None,
        process: None,
    };
    bench.create(1, &["linux"]);
    let held = bench.lease("agt_1/1", &["linux"]).expect("work");
    let barred = |why| Err(Refusal::Barred(why));
    assert!(bench.ack(&held).is_ok(), "nobody has registered");
    assert!(bench.tables.new_agent(&row).unwrap());
    assert!(
        bench.heartbeat(&held, 1).is_ok(),
        "it shows nothing in requests"
    );
    let begin = |bench: &Bench, floor, process| {
        let begun = bench.tables.begin_session("agt_1", floor, Some(process));
        begun.unwrap()
    };
    assert_eq!(begin(&bench, 4, "first\0"), Some(4));
    assert_eq!(bench.heartbeat(&held, 2), barred(Barred::Unproven));
    let shows = |process: &str| {
        let mut held = held.clone();
        held.proof.speaker = Speaker::Request {
            bound: None,
            shown: Some(Box::new(AgentShown {
                process: process.into(),
                secret: Some(digest(1)),
            })),
        };
        held
    };
    assert!(bench.heartbeat(&shows("first\0"), 3).is_ok());
    assert_eq!(begin(&bench, 9, "first\0"), Some(9));
    let later = begin(&bench, 2, "second");
    assert_eq!(later, Some(10), "whatever a clock says, it is the newest");
    let none = bench.tables.begin_session("agt_9", 1, None);
    assert_eq!(none.unwrap(), None);
    let superseded = barred(Barred::Superseded);
    assert_eq!(bench.heartbeat(&shows("first\0"), 4), superseded);
    let mut bench = bench.reopen();
    assert_eq!(bench.heartbeat(&shows("first\0"), 5), superseded);
    assert!(bench.heartbeat(&shows("second"), 6).is_ok());
    let mut old_session = held.clone();
    old_session.proof.speaker = Speaker::Session {
        agent: "agt_1".into(),
        epoch: 10,
    };
    assert!(bench.heartbeat(&old_session, 7).is_ok());
    let seen = AgentSeen {
        id: "agt_1".into(),
        slots: 1,
        about: "{}".into(),
        session: 11,
        seen_at: Millis(9),
    };
    bench.tables.agents_seen(&[seen]).unwrap();
    assert_eq!(bench.heartbeat(&old_session, 8), superseded);
    assert!(bench.tables.revoke_agent("agt_1", Millis(20)).unwrap());
    let revoked = barred(Barred::Revoked);
    assert_eq!(bench.heartbeat(&shows("second"), 9), revoked);
    assert_eq!(bench.complete(&shows("second")), revoked);
    let mut bench = bench.reopen();
    assert_eq!(bench.complete(&shows("second")), revoked);
}
