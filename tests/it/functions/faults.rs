//! What is killed, stopped or taken away while functions are called: nothing is lost, nothing ends
//! twice, and everything goes on.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use delta_testkit::postgres::{Postgres, Restart};
use delta_testkit::wait::eventually;
use serde_json::{Value, json};

use super::{agent, call, ended, enqueue};
use crate::harness::{Options, Person, Server, storm_count, until, walk};

/// The lease of the calls of a drain: what an agent that died can delay them by.
const TTL: Duration = Duration::from_secs(2);
/// What finding out and doing the work again may take beside the lease, on a machine that does
/// other things, too. Far from the minutes of whoever waits for a job's own timeout.
const AFTER_LEASE: Duration = Duration::from_secs(20);
/// How long a whole drain may take: ten thousand calls on a machine that does other things, too.
const DRAINED: Duration = Duration::from_secs(900);

/// Makes so many calls that each note their number, a thousand at a time; their ids.
fn enqueue_notes(person: &Person, calls: u32, path: &Path) -> Vec<String> {
    let numbers: Vec<u32> = (0..calls).collect();
    let mut ids = Vec::new();
    for some in numbers.chunks(1000) {
        let bodies = some.iter().map(|n| {
            json!({"function": "py#note", "params": {"n": n, "path": path},
                "max_attempts": 20, "backoff_seconds": 0.05})
        });
        let bodies: Vec<Value> = bodies.collect();
        let made = enqueue(person, &json!({ "functions": bodies }));
        let made = made["functions"].as_array().expect("calls");
        let id = |it: &Value| it["id"].as_str().expect("an id").to_owned();
        ids.extend(made.iter().map(id));
    }
    ids
}

fn lines(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Every call has succeeded with its own result, each of its attempts ended once, and its handler
/// was called. How many calls needed more than one lease.
#[track_caller]
fn check_all(person: &Person, ids: &[String], path: &Path) -> usize {
    let mut repeated = 0;
    for (n, id) in ids.iter().enumerate() {
        let done = eventually(DRAINED, "the call has ended", || {
            let seen = person.get(&format!("/api/v1/functions/{id}?wait=20"));
            let over = seen.get("ended_at").is_some();
            if over { Ok(seen) } else { Err(seen) }
        });
        assert_eq!(
            (&done["state"], &done["result"]),
            (&json!("SUCCEEDED"), &json!(2 * n)),
            "{done}"
        );
        let walked = walk(person, id);
        let succeeded = walked.finals.values().filter(|it| *it == "succeeded");
        assert_eq!(succeeded.count(), 1, "{id}: {:?}", walked.finals);
        repeated += usize::from(walked.epochs.len() > 1);
    }
    let noted = lines(path);
    let seen: BTreeSet<&String> = noted.iter().collect();
    assert_eq!(seen.len(), ids.len(), "each was carried out");
    repeated
}

/// The calls that an agent has in hand.
fn held_by(person: &Person, name: &str) -> Vec<String> {
    let agents = person.get("/api/v1/agents");
    let agents = agents["agents"].as_array().expect("agents");
    let agent = agents.iter().find(|it| it["name"] == name);
    let Some(id) = agent.and_then(|it| it["agent_id"].as_str()) else {
        return Vec::new();
    };
    let shown = person.get(&format!("/api/v1/agents/{id}"));
    let leases = shown["leases"].as_array().expect("leases").clone();
    let job = |it: &Value| it["job_id"].as_str().expect("a job").to_owned();
    leases.iter().map(job).collect()
}

#[test]
fn a_poison_call_ends_in_the_dead_letters_and_others_go_on() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, "functions");
    let poison = json!({"function": "py#die", "max_attempts": 3, "backoff_seconds": 0.05});
    let poison = enqueue(&person, &poison);
    let path = server.folder().join("noted");
    let good: Vec<Value> = (0..20)
        .map(|n| {
            enqueue(
                &person,
                &json!({"function": "py#note", "params": {"n": n, "path": path},
            "max_attempts": 10, "backoff_seconds": 0.05}),
            )
        })
        .collect();
    let dead = ended(&person, &poison["id"]);
    assert_eq!(
        (&dead["attempts"], &dead["dead_letter"]),
        (&json!(3), &json!(true)),
        "{dead}"
    );
    assert_eq!(
        dead["cause"], "agent_error",
        "not the handler's word: {dead}"
    );
    for (n, call) in good.iter().enumerate() {
        let done = ended(&person, &call["id"]);
        assert_eq!(done["result"], json!(2 * n), "{done}");
    }
    server.check();
}

#[test]
fn a_drain_outlives_kill_9_of_server_and_agent() {
    // I1, RQ-2: nothing is lost, and nothing ends twice.
    let calls = storm_count("DELTA_STORM_CALLS", 300);
    let ttl = format!("{}s", TTL.as_secs());
    let mut server = Server::start(Options::quick().flag("lease-ttl", &ttl));
    let person = server.person();
    // Both are there before anything happens: what is measured is the lease alone.
    let first = agent(&server, "one");
    let _second = agent(&server, "two");
    until(
        "both are there",
        || person.get("/api/v1/agents"),
        |seen| seen["agents"].as_array().is_some_and(|it| it.len() == 2),
    );
    let path = server.folder().join("noted");
    let began = Instant::now();
    let ids = enqueue_notes(&person, calls, &path);
    let part = (calls / 10) as usize;
    let noted = |wanted: usize| {
        eventually(DRAINED, "calls are carried out", || {
            let count = lines(&path).len();
            if count >= wanted {
                Ok(count)
            } else {
                Err(count)
            }
        })
    };
    noted(part);
    server.kill9();
    server
        .process()
        .wait(Duration::from_secs(20))
        .expect("its end");
    server.start_again();
    noted(3 * part);
    let held = held_by(&person, "one");
    first.kill9().expect("kill -9");
    let died = Instant::now();
    for job in &held {
        let run = job.replacen("job_", "run_", 1);
        let run = run.rsplit_once('_').expect("a number").0.to_owned();
        let over = |seen: &Value| seen.get("ended_at").is_some();
        until(
            "its call is taken over",
            || call(&person, &json!(run)),
            over,
        );
    }
    let recovered = died.elapsed();
    assert!(
        recovered < TTL + AFTER_LEASE,
        "{} calls were taken over only {recovered:.1?} later",
        held.len()
    );
    let repeated = check_all(&person, &ids, &path);
    println!(
        "{calls} calls in {:.1?}: 0 lost, 0 finalised twice, {repeated} leased again; \
         {} in hand when the agent died, all over {recovered:.1?} later (lease {TTL:?})",
        began.elapsed(),
        held.len(),
    );
    server.check();
}

#[test]
fn calls_go_on_when_the_store_was_away() {
    // F16: acknowledged calls are there afterwards, and leases that ran out are given anew.
    let calls = storm_count("DELTA_STORM_CALLS", 200).min(3000);
    let away = Duration::from_secs(storm_count("DELTA_STORM_AWAY_SECONDS", 3).into());
    let cluster = Postgres::start().expect("PostgreSQL");
    let database = cluster.fresh_database().expect("a database");
    let ttl = format!("{}s", TTL.as_secs());
    let options = Options::quick().flag("lease-ttl", &ttl);
    let server = Server::start(options.on(&database.url));
    let person = server.person();
    let _agent = agent(&server, "one");
    let path = server.folder().join("noted");
    let ids = enqueue_notes(&person, calls, &path);
    until(
        "work has begun",
        || lines(&path).len(),
        |count| *count >= 20,
    );
    cluster.stop(Restart::Fast).expect("a stop");
    let left = Instant::now();
    let refused = person
        .http
        .post("/api/v1/functions", &json!({"function": "py#note"}));
    let refused = refused.expect("an answer").expect(503);
    assert_eq!(refused.word("code"), "UNAVAILABLE");
    std::thread::sleep(away.saturating_sub(left.elapsed()));
    cluster.start_again().expect("a start");
    let back = Instant::now();
    let before = lines(&path).len();
    let goes_on = |count: &usize| *count > before || *count >= ids.len();
    until("it goes on", || lines(&path).len(), goes_on);
    let resumed = back.elapsed();
    let repeated = check_all(&person, &ids, &path);
    println!(
        "{calls} calls, the store away for {:.1?}: 0 lost, 0 finalised twice, {repeated} leased \
         again; work went on {resumed:.1?} after it was back",
        back.duration_since(left),
    );
    server.check();
}

#[test]
fn a_stopped_agent_wakes_up_to_a_call_that_another_has_finished() {
    // LM-12, F7: one result, whoever says what afterwards.
    let server = Server::start(Options::quick());
    let person = server.person();
    let first = agent(&server, "one");
    let (path, go) = (server.folder().join("pids"), server.folder().join("go"));
    let body = json!({"function": "py#slow", "params": {"path": path, "go": go},
        "timeout_seconds": 60});
    let made = enqueue(&person, &body);
    let begun = || {
        std::fs::read_to_string(&path)
            .unwrap_or_default()
            .lines()
            .count()
    };
    until("the first has begun", begun, |count| *count == 1);
    first.stop().expect("SIGSTOP");
    let _second = agent(&server, "two");
    until("the second has begun", begun, |count| *count >= 2);
    std::fs::write(&go, "").unwrap();
    let done = ended(&person, &made["id"]);
    assert_eq!(
        (&done["state"], &done["result"]),
        (&json!("SUCCEEDED"), &json!("done"))
    );
    let before = call(&person, &made["id"]);
    first.cont().expect("SIGCONT");
    // It says what it has, hears that it is late, and takes the next call.
    let next = json!({"function": "rs#echo", "params": {}});
    for _ in 0..5 {
        ended(&person, &enqueue(&person, &next)["id"]);
    }
    assert_eq!(call(&person, &made["id"]), before, "nothing changed");
    assert_eq!(before["attempts"], 1, "the same attempt, another lease");
    server.check();
}
