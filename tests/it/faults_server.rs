//! The server dies, is away, or is asked for more than it can do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use delta_testkit::proxy::HttpProxy;
use serde_json::json;

use crate::harness::http::{Answer, Pending};
use crate::harness::person::SOON;
use crate::harness::{Grant, Options, Person, Runner, Server, job, jobs, until, walk};

const COMPLETE: &str = "/api/v1/runner/complete";

// F10, RP-34: the message arrived and was not judged.
#[test]
fn a_server_that_dies_before_it_commits_did_nothing() {
    let mut server = Server::start(Options::patient());
    let person = server.person();
    let one = server.runner("one");
    person.create(&jobs(1));
    let grant = one.take();
    // Stopped, it takes the bytes into its socket and does nothing with them.
    server.process().stop().unwrap();
    let body = one.done(&grant, "SUCCEEDED", 0).to_string();
    let sent = one
        .http
        .open("POST", COMPLETE, &[], body.as_bytes())
        .unwrap();
    server.kill9();
    assert!(sent.answer().is_err(), "nobody answered");
    server.start_again();
    assert_eq!(person.attempt(&grant.job)["state"], "STARTING");
    one.succeed(&grant);
    assert_eq!(person.until_over(&grant.run)["outcome"], "SUCCESS");
    walk(&person, &grant.run);
    server.check();
}

// F11, A18, I15, I16: committed, and the answer never left.
#[test]
fn a_server_that_dies_after_it_committed_answers_the_same_again() {
    let mut server = Server::start(Options::patient());
    let person = server.person();
    let one = server.runner("one");
    person.create(&jobs(1));
    let grant = one.take();
    let proxy = HttpProxy::start(server.addr(), 1).unwrap();
    let held = proxy.hold_response(COMPLETE);
    let create = proxy.hold_response("/api/v1/runs");
    let far = one.through(proxy.addr());
    std::thread::scope(|scope| {
        let done = scope.spawn(|| far.complete(&grant, "SUCCEEDED", 0));
        let mut author = person.clone();
        author.http.addr = proxy.addr();
        let made = scope.spawn(move || author.create_keyed("k1", &jobs(2)));
        held.wait_arrived(SOON);
        create.wait_arrived(SOON);
        server.kill9();
        proxy.cut_all();
        assert!(done.join().unwrap().is_err());
        assert!(made.join().unwrap().is_err());
    });
    server.start_again();
    let before = person.events(&grant.run).len();
    let again = one.complete(&grant, "SUCCEEDED", 0).unwrap().expect(200);
    assert_eq!(again.body["accepted"], true);
    assert_eq!(person.events(&grant.run).len(), before);
    let first = person.create_keyed("k1", &jobs(2)).unwrap().expect(201);
    let second = person.create_keyed("k1", &jobs(2)).unwrap().expect(201);
    assert_eq!(first.word("run_id"), second.word("run_id"));
    assert_eq!(person.run_ids().len(), 2, "the key made one run");
    server.check();
}

// F12, RP-60: away for less than the time to live.
#[test]
fn leases_live_on_through_a_short_absence() {
    let mut server = Server::start(Options::patient());
    let person = server.person();
    let runners: Vec<_> = (0..4).map(|n| server.runner(&format!("r{n}"))).collect();
    person.create(&jobs(4));
    let grants: Vec<Grant> = runners.iter().map(|runner| runner.take()).collect();
    server.kill9();
    server.start_again();
    for (runner, grant) in runners.iter().zip(&grants) {
        let beat = runner.heartbeat(grant).unwrap().expect(200);
        assert_eq!(beat.body["extend_lease"], true, "{}", beat.text);
        runner.succeed(grant);
        assert_eq!(
            person.attempt(&grant.job)["leases"]
                .as_array()
                .unwrap()
                .len(),
            1
        );
    }
    assert_eq!(person.until_over(&grants[0].run)["outcome"], "SUCCESS");
    server.check();
}

// F13, A40: away for longer; every lease is judged by its time to live, and requeued once.
#[test]
fn leases_end_in_a_long_absence_and_each_job_goes_on_once() {
    let ttl = Duration::from_secs(2);
    let mut server = Server::start(Options::quick().flag("lease-ttl", "2s"));
    let person = server.person();
    let runners: Vec<_> = (0..4).map(|n| server.runner(&format!("r{n}"))).collect();
    let run = person.create(&jobs(4));
    let old: Vec<Grant> = runners.iter().map(|runner| runner.take()).collect();
    let last_renewed = Instant::now();
    server.kill9();
    until("leases to end", || last_renewed.elapsed(), |age| *age > ttl);
    server.start_again();
    for (runner, grant) in runners.iter().zip(&old) {
        let beat = runner.heartbeat(grant).unwrap().expect(200);
        assert_eq!(beat.body["stale"], true, "{}", beat.text);
        let late = runner.complete(grant, "SUCCEEDED", 0).unwrap().expect(409);
        assert_eq!(late.word("type"), "StaleLease");
    }
    for runner in &runners {
        let grant = runner.take();
        runner.succeed(&grant);
    }
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    for grant in &old {
        let job = person.job(&grant.job);
        let attempts = job["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 1, "no second attempt: {job}");
        assert_eq!(attempts[0]["losses"], 1, "{job}");
        assert_eq!(attempts[0]["leases"].as_array().unwrap().len(), 2, "{job}");
    }
    walk(&person, &run);
    server.check();
}

// A67: a stop that is asked for sends parked requests home and keeps everything.
#[test]
fn a_stop_answers_those_who_wait_and_keeps_leases() {
    let mut server = Server::start(Options::patient());
    let person = server.person();
    let (one, two) = (server.runner("one"), server.runner("two"));
    person.create(&jobs(1));
    let grant = one.take();
    let body = two.ask(30.0).to_string();
    let parked = two
        .http
        .open("POST", "/api/v1/runner/lease", &[], body.as_bytes())
        .unwrap();
    person.until_parked(1);
    server.process().terminate().unwrap();
    assert_eq!(parked.answer().unwrap().status, 204);
    let status = server.process().wait(SOON).unwrap();
    assert_eq!(status.code(), Some(0));
    server.start_again();
    one.succeed(&grant);
    server.check();
}

/// Requests of people that may wait, for a machine where a thousand would take too long.
const QUEUE: usize = 64;

/// Runs that are asked for at once: many times what the queue holds.
const FLOOD: usize = 16 * QUEUE;

/// Jobs of each: a batch must not be filled up with them (D2).
const HEAVY: usize = 100;

/// Sends heavy requests one after the other without waiting for an answer, then reads them all.
fn flood(person: &Person, count: usize) -> Vec<Answer> {
    let heavy: Vec<_> = (0..HEAVY).map(|n| job(&format!("j{n}"))).collect();
    let heavy = json!({ "jobs": heavy }).to_string();
    let open = || {
        person
            .http
            .open("POST", "/api/v1/runs", &[], heavy.as_bytes())
            .unwrap()
    };
    let sent: Vec<Pending> = (0..count).map(|_| open()).collect();
    sent.into_iter().map(|it| it.answer().unwrap()).collect()
}

/// Heartbeats, as a runner does, until there is no more need; returns the slowest answer. One that
/// a busy machine has not judged in time is sent again, as the answer says.
fn beat_until(over: &AtomicBool, runner: &Runner, grant: &Grant) -> Duration {
    let mut slowest = Duration::ZERO;
    while !over.load(Ordering::SeqCst) {
        let sent = Instant::now();
        let beat = runner.heartbeat(grant).unwrap();
        slowest = slowest.max(sent.elapsed());
        // Never 429: runners are refused only when nobody else is left to be.
        if beat.status != 503 {
            assert_eq!(beat.expect(200).body["extend_lease"], true);
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    slowest
}

// F58, D2: more runs than it can make, while leases are held and results come in.
#[test]
fn a_flood_of_runs_is_turned_away_and_live_work_goes_on() {
    let options = Options::patient()
        .flag("lease-ttl", "30s")
        .flag("ack-timeout", "30s")
        .flag("waiting-requests", &QUEUE.to_string());
    let server = Server::start(options);
    let person = server.person();
    let token = server.token("runner");
    let run = person.create(&jobs(40));
    let held: Vec<(Runner, Grant)> = (0..40)
        .map(|n| {
            let runner = Runner::new(server.addr(), &token, &format!("r{n}"));
            let grant = runner.take();
            (runner, grant)
        })
        .collect();
    let over = AtomicBool::new(false);
    let (answers, flooded, slowest) = std::thread::scope(|scope| {
        let began = Instant::now();
        let beats: Vec<_> = held
            .iter()
            .map(|(runner, grant)| scope.spawn(|| beat_until(&over, runner, grant)))
            .collect();
        let floods: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| flood(&person, FLOOD / 2)))
            .collect();
        let answers: Vec<_> = floods
            .into_iter()
            .flat_map(|it| it.join().unwrap())
            .collect();
        let flooded = began.elapsed();
        over.store(true, Ordering::SeqCst);
        let slowest = beats.into_iter().map(|it| it.join().unwrap()).max();
        (answers, flooded, slowest.unwrap_or_default())
    });
    let count = |status: u16| answers.iter().filter(|it| it.status == status).count();
    let (made, refused, late) = (count(201), count(429), count(503));
    println!("{made} made, {refused} refused, {late} late in {flooded:?}");
    println!("slowest heartbeat {slowest:?}");
    assert!(refused > 0, "it was never too much");
    assert_eq!(made + refused + late, FLOOD, "anything else is a mistake");
    for refusal in answers.iter().filter(|it| it.status != 201) {
        assert!(
            refusal.header("retry-after").is_some(),
            "{:?}",
            refusal.headers
        );
        assert_eq!(refusal.body["retryable"], true);
    }
    for (runner, grant) in &held {
        runner.succeed(grant);
        assert_eq!(person.attempt(&grant.job)["losses"], 0);
    }
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    // What was acknowledged is there, and nothing that was refused.
    assert_eq!(person.run_ids().len(), made + 1);
    server.check();
}
