//! Runners that die, stall, repeat themselves or do not listen. Each fault is one of the matrix.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use delta_testkit::proxy::HttpProxy;
use delta_testkit::rng::{Rng, fresh_seed};
use serde_json::{Value, json};

use crate::harness::person::SOON;
use crate::harness::{Grant, Options, Person, Server, job, jobs, until, walk};

const COMPLETE: &str = "/api/v1/runner/complete";

/// A server with a person and the grant of a one-job run, acknowledged by `one`.
fn with_a_lease(options: Options) -> (Server, Person, crate::harness::Runner, Grant) {
    let server = Server::start(options);
    let person = server.person();
    let one = server.runner("one");
    person.create(&jobs(1));
    let grant = one.take();
    (server, person, one, grant)
}

fn events(person: &Person, run: &str) -> usize {
    person.events(run).len()
}

// F1, RP-27, SM-44: no AckLease within the time for it.
#[test]
fn a_runner_that_dies_before_it_acknowledges_costs_no_attempt() {
    let server = Server::start(Options::quick().flag("ack-timeout", "800ms"));
    let person = server.person();
    person.create(&jobs(1));
    let grant = server.runner("dead").grant();
    let second = server.runner("alive").take();
    assert_eq!((&second.job, second.attempt), (&grant.job, 1));
    assert!(second.epoch > grant.epoch);
    let attempt = person.attempt(&grant.job);
    assert_eq!(attempt["leases"][0]["state"], "REVOKED", "{attempt}");
    assert_eq!(attempt["leases"][0]["reason"], "ACK_TIMEOUT", "{attempt}");
    assert_eq!(attempt["losses"], 0, "no work was lost: {attempt}");
    server.check();
}

// F2, RP-3, RP-57, SM-30, SM-60, LM-23: work under way, then silence.
#[test]
fn a_runner_that_dies_at_work_loses_its_lease_and_the_job_goes_on_elsewhere() {
    let (server, person, one, grant) = with_a_lease(Options::quick());
    one.heartbeat(&grant).unwrap().expect(200);
    let other = server.runner("two");
    let second = other.take();
    assert_eq!((&second.job, second.attempt), (&grant.job, 1));
    assert!(second.epoch > grant.epoch);
    other.succeed(&second);
    let run = person.until_over(&grant.run);
    assert_eq!(run["outcome"], "SUCCESS");
    let attempt = person.attempt(&grant.job);
    assert_eq!(attempt["losses"], 1, "{attempt}");
    assert_eq!(attempt["leases"][0]["state"], "EXPIRED", "{attempt}");
    server.check();
}

// F4: it dies after Complete was sent and before the answer came.
#[test]
fn a_result_stands_though_its_runner_died_before_the_answer() {
    let (server, person, one, grant) = with_a_lease(Options::patient());
    let proxy = HttpProxy::start(server.addr(), 1).unwrap();
    let held = proxy.hold_response(COMPLETE);
    let sent = one.through(proxy.addr()).http.open(
        "POST",
        COMPLETE,
        &[],
        one.done(&grant, "SUCCEEDED", 0).to_string().as_bytes(),
    );
    held.wait_arrived(SOON);
    drop(sent);
    assert_eq!(person.until_over(&grant.run)["outcome"], "SUCCESS");
    let before = events(&person, &grant.run);
    // The runner is back, knows nothing, and asks for work.
    assert_eq!(one.lease(0.1).unwrap().status, 204);
    assert_eq!(events(&person, &grant.run), before);
    server.check();
}

// F5, A18, RP-59: the answer is lost, the runner sends the same again.
#[test]
fn a_repeated_complete_gets_the_same_answer_and_changes_nothing() {
    let (server, person, one, grant) = with_a_lease(Options::patient());
    let proxy = HttpProxy::start(server.addr(), 1).unwrap();
    proxy.drop_response_once(COMPLETE);
    let far = one.through(proxy.addr());
    assert!(far.complete(&grant, "SUCCEEDED", 0).is_err());
    person.until_over(&grant.run);
    let before = events(&person, &grant.run);
    for _ in 0..3 {
        let again = far.complete(&grant, "SUCCEEDED", 0).unwrap().expect(200);
        assert_eq!(again.body["accepted"], true, "{}", again.text);
    }
    assert_eq!(events(&person, &grant.run), before);
    server.check();
}

// F33, A3: Complete overtakes AckLease.
#[test]
fn a_complete_that_overtakes_the_acknowledgement_is_asked_for_again() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let one = server.runner("one");
    person.create(&jobs(1));
    let grant = one.grant();
    let proxy = HttpProxy::start(server.addr(), 1).unwrap();
    let held = proxy.hold_request("/api/v1/runner/ack-lease");
    std::thread::scope(|scope| {
        let ack = scope.spawn(|| one.through(proxy.addr()).ack(&grant));
        held.wait_arrived(SOON);
        let early = one.complete(&grant, "SUCCEEDED", 0).unwrap().expect(409);
        assert_eq!(early.body["accepted"], false, "{}", early.text);
        assert_eq!(early.word("reason"), "NOT_ACKED");
        assert_eq!(person.attempt(&grant.job)["state"], "LEASED");
        held.release();
        ack.join().unwrap().unwrap().expect(200);
    });
    one.succeed(&grant);
    assert_eq!(person.until_over(&grant.run)["outcome"], "SUCCESS");
    server.check();
}

// F9, A6, I13: the work kills its runner, again and again.
#[test]
fn the_third_lost_lease_ends_the_attempt() {
    let server = Server::start(Options::quick().flag("max-losses", "3"));
    let person = server.person();
    let run = person.create(&jobs(1));
    let mut seen = Vec::new();
    for number in 1..=3 {
        seen.push(server.runner(&format!("victim-{number}")).take().epoch);
    }
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "FAILED", "{over}");
    let job = person.job(over["jobs"][0]["job_id"].as_str().unwrap());
    assert_eq!(job["state"], "FAILED");
    assert_eq!(job["cause"], "lease_lost", "{job}");
    assert_eq!(job["attempts"][0]["losses"], 3, "{job}");
    assert_eq!(job["attempts"][0]["leases"].as_array().unwrap().len(), 3);
    assert!(seen.is_sorted(), "{seen:?}");
    assert_eq!(server.runner("fourth").lease(0.1).unwrap().status, 204);
    server.check();
}

// F36, RP-5, I11: a cancel and a result at once, many times; whichever is committed first decides.
#[test]
fn a_cancel_and_a_result_are_decided_by_their_order() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let one = server.runner("one");
    let mut rng = Rng::new(fresh_seed());
    let (mut successes, mut cancels) = (0, 0);
    for round in 0..60 {
        person.create(&jobs(1));
        let grant = one.take();
        let start = Barrier::new(2);
        let complete = || one.complete(&grant, "SUCCEEDED", 0).unwrap();
        let cancel = || person.cancel(&grant.run).unwrap().expect(200);
        // The head start of one of them in a race.
        let lead = Duration::from_micros(round * 37 % 900);
        let (mine, theirs) = if rng.chance(0.5) {
            (Duration::ZERO, lead)
        } else {
            (lead, Duration::ZERO)
        };
        // The first rounds are each order on its own, the others a race.
        let answer = match round {
            0 => {
                let answer = complete();
                cancel();
                answer
            }
            1 => {
                cancel();
                complete()
            }
            _ => std::thread::scope(|scope| {
                let done = scope.spawn(|| {
                    start.wait();
                    std::thread::sleep(mine);
                    complete()
                });
                start.wait();
                std::thread::sleep(theirs);
                cancel();
                done.join().unwrap()
            }),
        };
        let over = person.until_over(&grant.run);
        let accepted = answer.body["accepted"] == true;
        let (state, outcome) = if accepted {
            ("SUCCEEDED", "SUCCESS")
        } else {
            ("CANCELED", "CANCELED")
        };
        successes += u32::from(accepted);
        cancels += u32::from(!accepted);
        assert_eq!(
            person.attempt(&grant.job)["state"],
            state,
            "{}",
            answer.text
        );
        assert_eq!(over["outcome"], outcome, "{over}");
        walk(&person, &grant.run);
    }
    println!("{successes} results first, {cancels} cancels first");
    assert!(successes > 0 && cancels > 0);
    server.check();
}

// F38, RP-36, RP-38, SM-33, SM-51, SM-53, SM-63: a runner that does not listen.
#[test]
fn a_runner_that_ignores_a_cancel_is_cut_off_at_the_deadline() {
    let (server, person, one, grant) = with_a_lease(Options::patient_but_forcing());
    person.cancel(&grant.run).unwrap().expect(200);
    let told = one.heartbeat(&grant).unwrap().expect(200);
    assert_eq!(told.body["cancel_requested"], true, "{}", told.text);
    let left = told.body["cancel_deadline_seconds"].as_f64().unwrap();
    assert!(left > 0.0 && left <= 3.25, "{}", told.text);
    // It goes on as if nothing had been said, until it is stale.
    let stale = until(
        "the lease is cut off",
        || one.heartbeat(&grant).unwrap().expect(200).body,
        |beat| beat["stale"] == true,
    );
    assert_eq!(stale["extend_lease"], false);
    assert_eq!(person.until_over(&grant.run)["outcome"], "CANCELED");
    let attempt = person.attempt(&grant.job);
    assert_eq!(attempt["state"], "CANCELED");
    assert_eq!(attempt["leases"][0]["state"], "REVOKED", "{attempt}");
    assert_eq!(attempt["leases"][0]["reason"], "FORCED_CANCEL", "{attempt}");
    let before = events(&person, &grant.run);
    let late = one.complete(&grant, "SUCCEEDED", 0).unwrap().expect(409);
    assert_eq!(late.word("type"), "StaleLease", "{}", late.text);
    assert_eq!(events(&person, &grant.run), before);
    server.check();
}

// RP-8, RP-39, RP-40, SM-43: a runner that listens.
#[test]
fn a_cancel_is_requested_heard_and_acknowledged() {
    let (server, person, one, grant) = with_a_lease(Options::patient());
    let early = one.cancel_ack(&grant).unwrap().expect(409);
    assert_eq!(
        early.word("reason"),
        "CANCEL_NOT_REQUESTED",
        "{}",
        early.text
    );
    person.cancel(&grant.run).unwrap().expect(200);
    assert_eq!(person.attempt(&grant.job)["state"], "CANCEL_REQUESTED");
    let told = one.heartbeat(&grant).unwrap().expect(200);
    assert_eq!(told.body["cancel_requested"], true, "{}", told.text);
    let done = one.cancel_ack(&grant).unwrap().expect(200);
    assert_eq!(done.body["accepted"], true, "{}", done.text);
    assert_eq!(person.until_over(&grant.run)["outcome"], "CANCELED");
    let attempt = person.attempt(&grant.job);
    assert_eq!(attempt["leases"][0]["state"], "CANCELED", "{attempt}");
    server.check();
}

// F57, A67: the grant was committed and its answer lost.
#[test]
fn a_lost_grant_is_granted_anew_at_once() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let one = server.runner("one");
    person.create(&jobs(1));
    let proxy = HttpProxy::start(server.addr(), 1).unwrap();
    proxy.drop_response_once("/api/v1/runner/lease");
    assert!(one.through(proxy.addr()).lease(5.0).is_err());
    // Long before the acknowledgement is due: at once, and nobody waits.
    let grant = Grant::of(&one.lease(0.0).unwrap().expect(200));
    assert_eq!(grant.attempt, 1);
    let attempt = person.attempt(&grant.job);
    let leases = attempt["leases"].as_array().unwrap();
    assert_eq!(leases.len(), 2, "{attempt}");
    assert_eq!(leases[0]["state"], "REVOKED");
    assert_eq!(leases[0]["reason"], "REPLACED");
    assert_eq!(leases[1]["epoch"], leases[0]["epoch"].as_u64().unwrap() + 1);
    assert_eq!(
        attempt["dispatches"], 0,
        "not the runner's fault: {attempt}"
    );
    one.ack(&grant).unwrap().expect(200);
    // With work in its hands it gets no other (RP-9).
    let busy = one.lease(0.0).unwrap().expect(409);
    assert_eq!(busy.word("code"), "RUNNER_BUSY");
    one.succeed(&grant);
    server.check();
}

// F57, A67: whoever hung up gets no work.
#[test]
fn a_parked_request_whose_connection_closed_is_not_granted() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let gone = server.runner("gone");
    let there = server.runner("there");
    let body = gone.ask(30.0).to_string();
    let parked = gone
        .http
        .open("POST", "/api/v1/runner/lease", &[], body.as_bytes());
    person.until_parked(1);
    drop(parked);
    person.until_parked(0);
    let run = person.create(&jobs(1));
    let grant = there.take();
    assert_eq!(grant.run, run);
    there.succeed(&grant);
    server.check();
}

// F34, F35, A19, RP-30: heartbeats late and repeated, with sequence numbers.
#[test]
fn an_old_heartbeat_renews_nothing() {
    let (server, person, one, grant) = with_a_lease(Options::patient());
    let beat = |seq: u64| {
        let mut message = one.beat(&grant);
        message["seq"] = json!(seq);
        one.say("heartbeat", &message).unwrap().expect(200)
    };
    let ends = |person: &Person| person.attempt(&grant.job)["leases"][0]["expires_at"].clone();
    beat(5);
    let after_five = ends(&person);
    // A renewal from now on would show in the lease's end, which is told in milliseconds.
    let five = Instant::now();
    until(
        "a later moment",
        || five.elapsed(),
        |age| age.as_millis() > 1,
    );
    for seq in [1, 4, 5, 5] {
        assert_eq!(beat(seq).body["extend_lease"], true);
        assert_eq!(ends(&person), after_five, "seq {seq} is old news");
    }
    beat(6);
    assert_ne!(ends(&person), after_five);
    one.succeed(&grant);
    server.check();
}

// SM-26, SM-27, SM-28: from grant to upload, with what a person sees.
#[test]
fn states_follow_the_messages() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let one = server.runner("one");
    let run = person.create(&json!({"jobs": [job("a")]}));
    assert_eq!(person.run(&run)["state"], "QUEUED");
    let grant = one.grant();
    let state = |person: &Person| -> Value { person.attempt(&grant.job)["state"].clone() };
    assert_eq!(
        (state(&person), &person.run(&run)["state"]),
        (json!("LEASED"), &json!("RUNNING"))
    );
    one.ack(&grant).unwrap().expect(200);
    one.ack(&grant).unwrap().expect(200);
    assert_eq!(state(&person), "STARTING");
    one.heartbeat(&grant).unwrap().expect(200);
    assert_eq!(state(&person), "RUNNING");
    let mut uploading = one.beat(&grant);
    uploading["phase"] = json!("uploading");
    one.say("heartbeat", &uploading).unwrap().expect(200);
    assert_eq!(state(&person), "UPLOADING");
    one.succeed(&grant);
    assert_eq!(person.run(&run)["state"], "REPORTED");
    server.check();
}
