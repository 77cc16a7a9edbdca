//! Several servers on one PostgreSQL, and a PostgreSQL that restarts, dies, hangs or cuts
//! connections.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use delta_testkit::postgres::{PgDatabase, Postgres, Restart, fresh_database};
use delta_testkit::proxy::{CommitCut, Proxy};
use delta_testkit::rng::{SEED_VARIABLE, fresh_seed};

use crate::harness::{Grant, Load, Options, Person, Runner, Server, Shape, jobs, until, walk};

/// Two servers on one database.
fn two_servers(options: Options) -> (PgDatabase, Server, Server) {
    let database = fresh_database().unwrap();
    let options = options.on(&database.url);
    let (a, b) = (Server::start(options.clone()), Server::start(options));
    (database, a, b)
}

fn load_on(servers: &[&Server], seed: u64) -> Load {
    println!("{SEED_VARIABLE}={seed}");
    Load::start(Shape {
        addrs: servers.iter().map(|server| server.addr()).collect(),
        user: servers[0].token("user"),
        runner: servers[0].token("runner"),
        people: 2,
        runners: 4,
        seed,
    })
}

fn until_results(load: &Load, more: usize) {
    let before = load.history().completed.len();
    let wanted = |now: &usize| *now >= before + more;
    until(
        "results are accepted",
        || load.history().completed.len(),
        wanted,
    );
}

// D3, LM-8, RP-16: each message of a job to the other replica.
#[test]
fn any_replica_takes_any_message() {
    let (_database, a, b) = two_servers(Options::patient());
    let (person, one) = (a.person(), a.runner("one"));
    let other_person = Person::new(b.addr(), &person.http.token);
    let other_one = one.through(b.addr());
    for round in 0..4 {
        let (people, runners) = match round % 2 {
            0 => ([&person, &other_person], [&one, &other_one]),
            _ => ([&other_person, &person], [&other_one, &one]),
        };
        let run = people[0].create(&jobs(1));
        let grant = runners[1].grant();
        runners[0].ack(&grant).unwrap().expect(200);
        let beat = runners[1].heartbeat(&grant).unwrap().expect(200);
        assert_eq!(beat.body["extend_lease"], true, "{}", beat.text);
        let busy = runners[0].lease(0.0).unwrap().expect(409);
        assert_eq!(busy.word("code"), "RUNNER_BUSY");
        runners[1].succeed(&grant);
        // A replay at the other replica gets the stored answer (A18).
        runners[0].succeed(&grant);
        assert_eq!(people[1].until_over(&run)["outcome"], "SUCCESS");
    }
    // A cancel made here is heard there.
    let run = person.create(&jobs(1));
    let grant = one.take();
    other_person.cancel(&run).unwrap().expect(200);
    let beat = one.heartbeat(&grant).unwrap().expect(200);
    assert_eq!(beat.body["cancel_requested"], true, "{}", beat.text);
    other_one.cancel_ack(&grant).unwrap().expect(200);
    assert_eq!(person.until_over(&run)["outcome"], "CANCELED");
    a.check();
    b.check_log();
}

// A parked request at one replica hears of a run made at the other.
#[test]
fn work_made_at_one_replica_reaches_who_waits_at_the_other() {
    let (_database, a, b) = two_servers(Options::patient());
    let person = a.person();
    let waiting = Runner::new(b.addr(), &a.token("runner"), "waiting");
    std::thread::scope(|scope| {
        let grant = scope.spawn(|| waiting.take());
        let run = person.create(&jobs(1));
        let grant = grant.join().unwrap();
        assert_eq!(grant.run, run);
        waiting.succeed(&grant);
    });
    a.check();
    b.check_log();
}

// F14: one server stands still beyond the time to live, and wakes up into a changed world.
#[test]
fn a_server_that_stood_still_changes_nothing_when_it_wakes() {
    let (_database, a, b) = two_servers(Options::quick());
    let (person, one) = (b.person(), a.runner("one"));
    let run = person.create(&jobs(1));
    let old = one.take();
    // A result on its way into a server that stands still.
    a.process().stop().unwrap();
    let body = one.done(&old, "FAILED", 1).to_string();
    let late = one
        .http
        .open("POST", "/api/v1/runner/complete", &[], body.as_bytes())
        .unwrap();
    let other = b.runner("other");
    let grant = other.take();
    assert_eq!((&grant.job, grant.attempt), (&old.job, 1));
    assert!(grant.epoch > old.epoch);
    other.succeed(&grant);
    let before = person.until_over(&run);
    assert_eq!(before["outcome"], "SUCCESS");
    a.process().cont().unwrap();
    let answer = late.answer().unwrap();
    assert_ne!(answer.status, 200, "{}", answer.text);
    let stale = one.complete(&old, "FAILED", 1).unwrap().expect(409);
    assert_eq!(stale.word("type"), "StaleLease");
    let after = person.run(&run);
    assert_eq!(
        (&after["version"], &after["outcome"]),
        (&before["version"], &before["outcome"])
    );
    walk(&person, &run);
    // It works again.
    let again = Person::new(a.addr(), &person.http.token).create(&jobs(1));
    let grant = one.take();
    assert_eq!(grant.run, again);
    one.succeed(&grant);
    a.check();
    b.check_log();
}

// F15, I28: both look for what is due at the same time.
#[test]
fn two_servers_that_sweep_together_fire_each_timer_once() {
    // Long enough for all of them to be taken before the first one runs out.
    let options = Options::quick()
        .flag("lease-ttl", "5s")
        .flag("sweep", "10ms")
        .flag("max-losses", "2");
    let (_database, a, b) = two_servers(options);
    let person = a.person();
    let token = a.token("runner");
    let run = person.create(&jobs(20));
    let at = |n: usize| [a.addr(), b.addr()][n % 2];
    for n in 0..20 {
        Runner::new(at(n), &token, &format!("dead-{n}")).take();
    }
    let expired = |run: &serde_json::Value| {
        run["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|job| job["state"] == "QUEUED")
    };
    until("all have expired", || person.run(&run), expired);
    for summary in person.run(&run)["jobs"].as_array().unwrap() {
        let attempt = person.attempt(summary["job_id"].as_str().unwrap());
        assert_eq!(attempt["losses"], 1, "{attempt}");
        assert_eq!(attempt["leases"].as_array().unwrap().len(), 1, "{attempt}");
    }
    walk(&person, &run);
    a.check();
    b.check_log();
}

// F16, F17: PostgreSQL restarts cleanly, is cut off, and is killed, all under load.
#[test]
fn a_postgres_that_restarts_or_dies_loses_nothing() {
    let cluster = Postgres::start().unwrap();
    let database = cluster.fresh_database().unwrap();
    let server = Server::start(Options::patient_with_mortal_runners().on(&database.url));
    let person = server.person();
    let load = load_on(&[&server], fresh_seed());
    until_results(&load, 5);
    cluster.restart(Restart::Fast).unwrap();
    until_results(&load, 5);
    cluster.restart(Restart::Immediate).unwrap();
    until_results(&load, 5);
    cluster.kill9_postmaster().unwrap();
    cluster.start_again().unwrap();
    until_results(&load, 5);
    // A store that is away is said to be away, with a time to come back.
    cluster.stop(Restart::Fast).unwrap();
    let refused = person.http.post("/api/v1/runs", &jobs(1)).unwrap();
    cluster.start_again().unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.header("retry-after").is_some());
    assert_eq!(refused.word("code"), "UNAVAILABLE");
    let history = load.finish(&person);
    assert!(history.repeated > 0, "somebody must have felt it");
    server.check();
}

// F18: it hangs, with its connections open.
#[test]
fn a_postgres_that_hangs_is_answered_for_in_bounded_time() {
    let cluster = Postgres::start().unwrap();
    let database = cluster.fresh_database().unwrap();
    let options = Options::patient().flag("lease-ttl", "30s");
    let server = Server::start(options.on(&database.url));
    let (person, one) = (server.person(), server.runner("one"));
    person.create(&jobs(1));
    let grant: Grant = one.take();
    let memory = resident_kilobytes(server.process().pid());
    cluster.pause_backends().unwrap();
    let asked = Instant::now();
    let (create, beat) = std::thread::scope(|scope| {
        let create = scope.spawn(|| person.http.post("/api/v1/runs", &jobs(1)).unwrap());
        let beat = scope.spawn(|| one.heartbeat(&grant).unwrap());
        (create.join().unwrap(), beat.join().unwrap())
    });
    let took = asked.elapsed();
    let grown = resident_kilobytes(server.process().pid()).saturating_sub(memory);
    cluster.resume_backends().unwrap();
    for answer in [&create, &beat] {
        assert_eq!(answer.status, 503, "{}", answer.text);
        assert!(answer.header("retry-after").is_some());
    }
    assert!(took < Duration::from_secs(25), "{took:?}");
    assert!(grown < 64 * 1024, "{grown} kB more");
    // The heartbeat is repeated, as a runner does, and the lease has lived on.
    let answered = |answer: &crate::harness::http::Answer| answer.status == 200;
    let beat = until("it is back", || one.heartbeat(&grant).unwrap(), answered);
    assert_eq!(beat.body["extend_lease"], true, "{}", beat.text);
    one.succeed(&grant);
    server.check();
}

fn resident_kilobytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap()
}

// F19: the connection is cut around COMMIT: before it, in it, after it.
#[test]
fn a_commit_with_an_unknown_result_is_never_applied_twice() {
    let seed = fresh_seed();
    let database = fresh_database().unwrap();
    let proxy = Proxy::start(database.addr().unwrap(), seed).unwrap();
    let url = database.url_through(proxy.addr()).unwrap();
    let server = Server::start(Options::patient_with_mortal_runners().on(&url));
    let person = server.person();
    let load = load_on(&[&server], seed);
    until_results(&load, 5);
    for cut in [
        CommitCut::Before,
        CommitCut::Unknown,
        CommitCut::After,
        CommitCut::Unknown,
    ] {
        proxy.cut_commits(cut, 3, 0.5);
        until(
            &format!("{cut:?} has happened"),
            || proxy.armed(),
            |armed| *armed == 0,
        );
        until_results(&load, 5);
    }
    proxy.heal();
    load.finish(&person);
    server.check();
}

// F22: 64 clients on one run, over two servers.
#[test]
fn sixty_four_runners_share_one_run_over_two_servers() {
    let (_database, a, b) = two_servers(Options::patient());
    let person = a.person();
    let token = a.token("runner");
    let run = person.create(&jobs(64));
    std::thread::scope(|scope| {
        for n in 0..64 {
            let addrs = [a.addr(), b.addr()];
            let token = &token;
            scope.spawn(move || {
                let runner = Runner::new(addrs[n % 2], token, &format!("r{n}"));
                let other = runner.through(addrs[(n + 1) % 2]);
                let grant = runner.take();
                other.heartbeat(&grant).unwrap().expect(200);
                runner.succeed(&grant);
            });
        }
    });
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS");
    let walked = walk(&person, &run);
    assert_eq!((walked.finals.len(), walked.epochs.len()), (64, 64));
    a.check();
    b.check_log();
}

// F36, I11: a cancel at one replica races a result at the other.
#[test]
fn a_cancel_here_and_a_result_there_are_decided_by_their_commits() {
    let (_database, a, b) = two_servers(Options::patient());
    let (person, one) = (a.person(), a.runner("one"));
    let there = one.through(b.addr());
    let (mut successes, mut cancels) = (0, 0);
    for round in 0..30 {
        person.create(&jobs(1));
        let grant = one.take();
        // Now the one and now the other has a head start of up to three milliseconds.
        let lead = |mine: u64| Duration::from_micros(((round + mine) % 2) * (round * 211 % 3000));
        let start = Barrier::new(2);
        let answer = std::thread::scope(|scope| {
            let done = scope.spawn(|| {
                start.wait();
                std::thread::sleep(lead(0));
                there.complete(&grant, "SUCCEEDED", 0).unwrap()
            });
            start.wait();
            std::thread::sleep(lead(1));
            person.cancel(&grant.run).unwrap().expect(200);
            done.join().unwrap()
        });
        let accepted = answer.body["accepted"] == true;
        successes += u32::from(accepted);
        cancels += u32::from(!accepted);
        let outcome = if accepted { "SUCCESS" } else { "CANCELED" };
        let over = person.until_over(&grant.run);
        assert_eq!(over["outcome"], outcome, "{over}: {}", answer.text);
        walk(&person, &grant.run);
    }
    println!("{successes} results first, {cancels} cancels first");
    a.check();
    b.check_log();
}
