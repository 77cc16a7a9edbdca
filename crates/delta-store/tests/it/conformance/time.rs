//! What is due, and when.

use delta_core::command::Status;
use delta_core::{AttemptState, Cause, Command, Millis, RunState, Span};
use delta_store::{Due, Store};

use super::Fixture;
use super::bench::{Bench, START, complete, header, new_job, policy, run_id};

fn due(bench: &mut Bench, now: Millis) -> Vec<Due> {
    bench.store.due(now, 100).unwrap()
}

pub fn only_what_is_due_is_found(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux", "linux"]);
    assert_eq!(due(&mut bench, START + Span::hours(1)), []);
    let held = bench.lease("r1", &["linux"]).expect("work");
    let ack_by = START + bench.settings.ack_timeout;
    assert_eq!(due(&mut bench, ack_by - Span(1)), []);
    assert_eq!(due(&mut bench, ack_by), [Due::Attempt(held.attempt())]);
    bench.ack(&held).unwrap();
    assert_eq!(due(&mut bench, ack_by), []);
    let mut bench = bench.reopen();
    let end = START + bench.settings.lease_ttl;
    assert_eq!(due(&mut bench, end - Span(1)), []);
    assert_eq!(due(&mut bench, end), [Due::Attempt(held.attempt())]);
    bench.complete(&held).unwrap();
    assert_eq!(due(&mut bench, end), []);
}

pub fn a_retry_is_due_when_its_delay_is_over(make: &dyn Fn() -> Fixture) {
    // A57
    let mut bench = Bench::new(make);
    let run = bench.create(1, &["linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    let clone = complete(&held, Status::Failed, Some(Cause::Clone));
    bench.one(clone).unwrap();
    let second = run.job(1).attempt(2);
    let waiting = bench.attempt(second);
    assert_eq!(waiting.state, AttemptState::Created);
    assert!(waiting.not_before > bench.now);
    assert!(bench.lease("r1", &["linux"]).is_none());
    let mut bench = bench.reopen();
    assert_eq!(due(&mut bench, waiting.not_before - Span(1)), []);
    let found = due(&mut bench, waiting.not_before);
    assert_eq!(found, [Due::Attempt(second)]);
    bench.now = waiting.not_before;
    bench.one(Command::AttemptDue { attempt: second }).unwrap();
    assert_eq!(due(&mut bench, waiting.not_before), []);
    let mut bench = bench.reopen();
    assert_eq!(due(&mut bench, waiting.not_before), []);
    assert_eq!(bench.work_off("r1", &["linux"]), Some(second));
}

pub fn a_renewal_moves_what_is_due(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    bench.create(1, &["linux"]);
    let held = bench.lease("r1", &["linux"]).expect("work");
    bench.ack(&held).unwrap();
    for seq in 1..=5 {
        bench.now = bench.now + Span::secs(20);
        bench.heartbeat(&held, seq).unwrap();
    }
    let end = bench.now + bench.settings.lease_ttl;
    assert_eq!(due(&mut bench, end - Span(1)), []);
    let mut bench = bench.reopen();
    assert_eq!(due(&mut bench, end - Span(1)), []);
    assert_eq!(due(&mut bench, end), [Due::Attempt(held.attempt())]);
}

pub fn runs_are_due_at_their_limits(make: &dyn Fn() -> Fixture) {
    let mut bench = Bench::new(make);
    let mut brief = header();
    brief.wait_timeout = Span::secs(10);
    brief.run_timeout = Span::secs(30);
    let jobs = vec![new_job("a", policy("linux"))];
    let first = bench.create_with(1, brief.clone(), jobs.clone());
    let second = bench.create_with(2, brief, jobs);
    let waited = START + Span::secs(10);
    let runs = [Due::Run(first), Due::Run(second)];
    assert_eq!(due(&mut bench, waited), runs);
    assert_eq!(bench.store.due(waited, 1).unwrap().len(), 1);
    let held = bench.lease("r1", &["linux"]).expect("work");
    assert_eq!(held.attempt().run(), first);
    bench.ack(&held).unwrap();
    let mut bench = bench.reopen();
    assert_eq!(due(&mut bench, waited), [Due::Run(second)]);
    bench.now = waited;
    bench.one(Command::RunDue { run: second }).unwrap();
    assert_eq!(bench.run(second).outcome, Some(RunState::Failed));
    assert_eq!(due(&mut bench, waited), []);
    let started = START + Span::secs(30);
    assert_eq!(due(&mut bench, started), [Due::Run(run_id(1))]);
}

pub fn leased_attempts_are_listed(make: &dyn Fn() -> Fixture) {
    // F41
    let mut bench = Bench::new(make);
    bench.create(1, &["linux", "linux", "linux"]);
    let first = bench.lease("r1", &["linux"]).expect("work");
    let second = bench.lease("r2", &["linux"]).expect("work");
    bench.ack(&second).unwrap();
    bench.work_off("r3", &["linux"]).expect("work");
    let both = [first.attempt(), second.attempt()];
    assert_eq!(bench.store.leased().unwrap(), both);
    let mut bench = bench.reopen();
    assert_eq!(bench.store.leased().unwrap(), both);
    // The clock went back: no lease outlives now + ttl.
    bench.now = START - Span::hours(1);
    for attempt in both {
        bench.one(Command::Clamp { attempt }).unwrap();
    }
    let end = bench.now + bench.settings.lease_ttl;
    let mut bench = bench.reopen();
    assert_eq!(due(&mut bench, end).len(), 2);
}
