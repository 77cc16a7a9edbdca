//! Runners that nobody here wrote under our agent, each through the same table; and the smallest
//! one that can be, which does one thing at a time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use delta_testkit::process::Process;
use delta_testkit::rrq::{NEW, OLD, Rrq};
use serde_json::{Value, json};

use super::{Held, fixture, kill9, rust_peer};
use crate::faults_agent::agent_with;
use crate::harness::{Options, Person, Server, until};

/// How many at once: six more than a runner of RRQ takes on a connection.
const AT_ONCE: usize = 70;

/// How soon a cancel in flight is answered, and how often that is tried.
const QUICK: Duration = Duration::from_secs(1);
const QUICK_TRIES: usize = 5;

/// A runner to put the table to.
struct Peer {
    command: Vec<String>,
    python_path: Vec<PathBuf>,
    pipeline: bool,
    in_flight: u16,
    /// It hears a cancel while it works; otherwise its process is ended for it.
    heeds: bool,
}

impl Peer {
    /// The runner of the Python package of this version.
    fn python(version: &str) -> Peer {
        let rrq = Rrq::version(version).expect("the package rrq");
        Peer {
            command: vec![
                rrq.runner().display().to_string(),
                "--settings".to_owned(),
                "rrq_table.settings".to_owned(),
            ],
            python_path: vec![rrq.python_path().to_owned(), fixture("")],
            pipeline: true,
            in_flight: 64,
            heeds: true,
        }
    }

    /// One pool for what is called, one for what is stopped, one whose process is killed.
    fn pools(&self) -> Value {
        let paths = self.python_path.iter().map(|it| it.display().to_string());
        let paths: Vec<String> = paths.collect();
        let grace = if self.heeds { "60s" } else { "300ms" };
        let pool = json!({
            "command": self.command, "pipeline": self.pipeline, "in_flight": self.in_flight,
            "grace": grace,
            "env": {"PYTHONPATH": paths.join(":"), "PYTHONDONTWRITEBYTECODE": "1"},
        });
        json!({ "pools": { "main": pool, "stops": pool, "victim": pool } })
    }
}

/// A server, an agent with a peer's pools, and whoever calls them.
struct Bench {
    person: Person,
    folder: PathBuf,
    heeds: bool,
    /// Calls that the runner has under way at a time.
    at_once: usize,
}

impl Bench {
    #[track_caller]
    fn call(&self, function: &str, params: Value, more: Value) -> String {
        let mut body = json!({"function": function, "params": params, "backoff_seconds": 0.05});
        let (body_members, more) = (body.as_object_mut().expect("an object"), more);
        body_members.extend(more.as_object().expect("an object").clone());
        let answer = self.person.http.post("/api/v1/functions", &body);
        let answer = answer.expect("an answer").expect(201);
        answer.word("id").to_owned()
    }

    fn seen(&self, id: &str) -> Value {
        self.person.get(&format!("/api/v1/functions/{id}"))
    }

    /// The call, once it has ended. Nothing in its record is a runner that was busy.
    #[track_caller]
    fn ended(&self, id: &str) -> Value {
        let over = |call: &Value| call.get("ended_at").is_some();
        let call = until("the call has ended", || self.seen(id), over);
        assert!(!call.to_string().contains("busy"), "{call}");
        call
    }

    #[track_caller]
    fn done(&self, function: &str, params: Value, more: Value) -> Value {
        self.ended(&self.call(function, params, more))
    }

    fn held(&self, name: &str) -> Held {
        Held::new(&self.folder, name)
    }

    fn cancel(&self, id: &str) {
        let answer = self.person.cancel(id).expect("an answer");
        assert!(answer.status < 300, "{}", answer.text);
    }
}

type Case = fn(&Bench);

/// All of it, in parallel.
const TABLE: &[Case] = &[
    success,
    errors_with_retries,
    retry_after,
    handler_not_found,
    seventy_at_once,
    stops,
    kill_9_in_mid_job,
];

fn success(bench: &Bench) {
    // With what both sides must carry: text beyond ASCII, nulls, large numbers, nesting.
    let params = json!({"é\u{1F600}": [null, 1.5, {"k": "v"}], "n": 9_007_199_254_740_993_u64});
    let call = bench.done("main#echo", params.clone(), json!({}));
    assert_eq!(call["state"], "SUCCEEDED", "{call}");
    assert_eq!(call["result"]["params"], params, "{call}");
    assert_eq!(call["result"]["attempt"], 1, "{call}");
}

fn errors_with_retries(bench: &Bench) {
    let call = bench.done("main#fail", json!({}), json!({"max_attempts": 3}));
    let ended = (&call["state"], &call["attempts"], &call["dead_letter"]);
    assert_eq!(ended, (&json!("FAILED"), &json!(3), &json!(true)), "{call}");
    assert_eq!(call["cause"], "user_exit", "{call}");
    assert_eq!(call["error"]["message"], "boom", "{call}");
    let call = bench.done(
        "main#flaky",
        json!({"until": 3}),
        json!({"max_attempts": 5}),
    );
    assert_eq!(
        (&call["state"], &call["result"]),
        (&json!("SUCCEEDED"), &json!(3)),
        "{call}"
    );
    assert_eq!(call["tries"][0]["error"]["message"], "not yet", "{call}");
}

fn retry_after(bench: &Bench) {
    let began = std::time::Instant::now();
    let call = bench.done("main#later", json!({"seconds": 0.4}), json!({}));
    assert_eq!(
        (&call["state"], &call["result"]),
        (&json!("SUCCEEDED"), &json!(2)),
        "{call}"
    );
    assert_eq!(call["tries"][0]["error"]["message"], "later", "{call}");
    assert!(
        began.elapsed().as_secs_f64() >= 0.4,
        "not before it asked for"
    );
}

fn handler_not_found(bench: &Bench) {
    let call = bench.done("main#nosuch", json!({}), json!({"max_attempts": 5}));
    let ended = (&call["cause"], &call["attempts"], &call["dead_letter"]);
    assert_eq!(
        ended,
        (&json!("handler_not_found"), &json!(1), &json!(true)),
        "{call}"
    );
    let message = call["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("nosuch"), "{call}");
}

/// More than it takes, and then the next wave at the very moment the first is answered.
fn seventy_at_once(bench: &Bench) {
    let held = bench.held("seventy");
    let one = json!({"function": "main#hold", "params": held.params(), "max_attempts": 1});
    let echo = json!({"function": "main#echo", "params": {}, "max_attempts": 1});
    let mut all = vec![one; AT_ONCE];
    all.extend(vec![echo; 4 * AT_ONCE]);
    let answer = bench
        .person
        .http
        .post("/api/v1/functions", &json!({ "functions": all }));
    let made = answer.expect("an answer").expect(201).body;
    // Full: what comes now waits, and nobody hears that it is busy.
    held.until_begun(bench.at_once);
    held.let_go();
    for call in made["functions"].as_array().expect("calls") {
        let call = bench.ended(call["id"].as_str().expect("an id"));
        assert_eq!(
            (&call["state"], &call["attempts"]),
            (&json!("SUCCEEDED"), &json!(1)),
            "{call}"
        );
    }
}

/// One after the other: whoever does one thing at a time is ended for each.
fn stops(bench: &Bench) {
    let slow = bench.held("timeout");
    let once = json!({"max_attempts": 1, "timeout_seconds": 1});
    let call = bench.done("stops#hold", slow.params(), once);
    let ended = (&call["cause"], &call["attempts"], &call["dead_letter"]);
    assert_eq!(
        ended,
        (&json!("job_timeout"), &json!(1), &json!(true)),
        "{call}"
    );
    assert_eq!(call["tries"][0]["state"], "TIMED_OUT", "{call}");

    let canceled = bench.held("cancel");
    let id = bench.call("stops#hold", canceled.params(), json!({}));
    let pid = canceled.until_begun(1).remove(0);
    bench.cancel(&id);
    let call = bench.ended(&id);
    assert_eq!(
        (&call["state"], &call["attempts"]),
        (&json!("CANCELED"), &json!(1)),
        "{call}"
    );
    // What heeds a cancel has answered, long before its grace would have been over: it is the same
    // process that takes the next call.
    let next = bench.held("next");
    next.let_go();
    let call = bench.done("stops#hold", next.params(), json!({}));
    assert_eq!(call["state"], "SUCCEEDED", "{call}");
    assert_eq!(
        next.lines()[0] == pid,
        bench.heeds,
        "{pid} {:?}",
        next.lines()
    );
    if bench.heeds {
        let told = |lines: &Vec<String>| lines.iter().any(|line| line == "cancelled");
        until("the handler was told", || canceled.lines(), told);
    }
}

/// A cancel that is heeded is answered within a second, counted by whoever asked for it. A machine
/// with other things to do is late now and then, an agent or a runner that waits for something is
/// late each time: one of a few tries must do.
fn a_cancel_is_quick(bench: &Bench) {
    let took = (0..QUICK_TRIES).map(|n| {
        let held = bench.held(&format!("quick{n}"));
        let id = bench.call("stops#hold", held.params(), json!({}));
        held.until_begun(1);
        let asked = Instant::now();
        bench.cancel(&id);
        let call = bench.ended(&id);
        assert_eq!(call["state"], "CANCELED", "{call}");
        asked.elapsed()
    });
    let mut late = Vec::new();
    for took in took {
        if took < QUICK {
            return;
        }
        late.push(took);
    }
    panic!("answered after {late:?}");
}

fn kill_9_in_mid_job(bench: &Bench) {
    let held = bench.held("victim");
    let id = bench.call("victim#hold", held.params(), json!({"max_attempts": 3}));
    let first = held.until_begun(1).remove(0);
    kill9(&first);
    let second = held.until_begun(2).remove(1);
    assert_ne!(first, second, "another process");
    held.let_go();
    let call = bench.ended(&id);
    assert_eq!(
        (&call["state"], &call["result"]),
        (&json!("SUCCEEDED"), &json!("done")),
        "{call}"
    );
    assert_eq!(call["attempts"], 2, "{call}");
    assert_eq!(
        call["tries"][0]["cause"], "agent_error",
        "not the handler's word: {call}"
    );
}

fn start(server: &Server, peer: &Peer) -> Process {
    let file = server.folder().join("runners.yaml");
    // JSON is YAML, too.
    std::fs::write(&file, peer.pools().to_string()).expect("a file");
    let file = file.to_str().expect("a readable path");
    agent_with(server, server.addr(), "peers", &["--runners", file])
}

fn put_the_table_to(peer: &Peer) {
    let server = Server::start(Options::patient());
    let agent = start(&server, peer);
    let bench = Bench {
        person: server.person(),
        folder: server.folder().to_owned(),
        heeds: peer.heeds,
        at_once: if peer.heeds { peer.in_flight.into() } else { 1 },
    };
    std::thread::scope(|scope| {
        for case in TABLE {
            scope.spawn(|| case(&bench));
        }
    });
    if bench.heeds {
        a_cancel_is_quick(&bench);
    }
    assert!(agent.is_running());
    server.check();
}

// RQ-7, RQ-13 … RQ-16, RQ-29 … RQ-45
#[test]
fn the_python_runner_of_the_specifications_time_is_served() {
    put_the_table_to(&Peer::python(OLD));
}

#[test]
fn the_newest_python_runner_is_served() {
    put_the_table_to(&Peer::python(NEW));
}

#[test]
fn the_python_runner_is_served_as_the_specification_reads_one_request_a_connection() {
    let mut peer = Peer::python(NEW);
    (peer.pipeline, peer.in_flight) = (false, 16);
    put_the_table_to(&peer);
}

#[test]
fn the_rust_runner_that_others_wrote_is_served() {
    put_the_table_to(&Peer {
        command: vec![rust_peer().display().to_string()],
        python_path: Vec::new(),
        pipeline: true,
        in_flight: 64,
        heeds: true,
    });
}

#[test]
fn a_runner_that_does_one_thing_at_a_time_is_served_with_eight_in_flight() {
    let script = fixture("sequential.py");
    let lines = std::fs::read_to_string(&script).expect("a script");
    assert!(lines.lines().count() < 60, "it stays small");
    put_the_table_to(&Peer {
        command: vec!["/usr/bin/python3".to_owned(), script_of(&script)],
        python_path: Vec::new(),
        pipeline: false,
        in_flight: 8,
        heeds: false,
    });
}

fn script_of(path: &Path) -> String {
    path.display().to_string()
}
