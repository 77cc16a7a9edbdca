//! Functions with everything real: the server, agents with runner pools, runners in Python and
//! Rust, the command line and the Python client; and what is killed or stopped while they are
//! called.

mod clients;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use delta_testkit::process::Process;
use serde_json::{Value, json};

use crate::faults_agent::agent_with;
use crate::harness::{Options, Person, Server, storm_count, until};

/// What the runner in Python does.
const HANDLERS: &str = r#"
import os, time
from delta_runner import App, Context, Failure, Retry

app = App()

@app.handler
def note(n: int, path: str) -> int:
    with open(path, "a") as file:
        file.write(f"{n}\n")
    return n * 2

@app.handler
def slow(path: str, go: str) -> str:
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\n")
    while not os.path.exists(go):
        time.sleep(0.02)
    return "done"

@app.handler
async def die() -> None:
    os._exit(1)

@app.handler
async def fail() -> None:
    raise Failure("no address", type="bad_address", details={"to": 1})

@app.handler
async def later(context: Context) -> int:
    if context.attempt == 1:
        raise Retry("not yet", after=0.05)
    return context.attempt
"#;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A runner in Rust that cargo has built beside the tests.
fn rust_runner() -> PathBuf {
    let tests = std::env::current_exe().expect("this test's own place");
    let built = tests.parent().and_then(Path::parent).expect("target/debug");
    built.join("examples/table")
}

/// An agent of this name with a pool in each language.
fn agent(server: &Server, name: &str) -> Process {
    std::fs::write(server.folder().join("jobs.py"), HANDLERS).unwrap();
    let pools = format!(
        "default: py\n\
         pools:\n  py:\n    command: [python3, -m, delta_runner, 'jobs:app']\n    \
         env: {{PYTHONPATH: '{sdk}:{folder}', PYTHONDONTWRITEBYTECODE: '1'}}\n    size: 2\n  \
         rs:\n    command: ['{rust}']\n    pipeline: true\n    in_flight: 64\n",
        sdk = repository().join("sdk/python").display(),
        folder = server.folder().display(),
        rust = rust_runner().display(),
    );
    let file = server.folder().join("runners.yaml");
    std::fs::write(&file, pools).unwrap();
    let file = file.to_str().expect("a readable path");
    agent_with(server, server.addr(), name, &["--runners", file])
}

#[track_caller]
fn enqueue(person: &Person, body: &Value) -> Value {
    let answer = person.http.post("/api/v1/functions", body);
    answer.expect("an answer").expect(201).body
}

fn call(person: &Person, id: &Value) -> Value {
    person.get(&format!(
        "/api/v1/functions/{}",
        id.as_str().expect("an id")
    ))
}

#[track_caller]
fn ended(person: &Person, id: &Value) -> Value {
    let over = |call: &Value| call.get("ended_at").is_some();
    until("the call has ended", || call(person, id), over)
}

#[test]
fn functions_are_called_from_the_command_line_in_two_languages() {
    // RQ-3, RQ-18, RQ-29, RQ-30, RQ-37, RQ-45
    let server = Server::start(Options::patient());
    let _agent = agent(&server, "functions");
    let path = server.folder().join("noted");
    let params = json!({"n": 21, "path": path}).to_string();
    let done = server.cli(&["enqueue", "py#note", "--params", &params, "--wait"]);
    assert_eq!((done.code, done.stdout.trim()), (Some(0), "42"), "{done:?}");
    let done = server.cli(&["enqueue", "rs#echo", "--params", r#"{"a":[1]}"#, "--wait"]);
    let result: Value = serde_json::from_str(&done.stdout).expect("a result");
    assert_eq!(result["params"], json!({"a": [1]}), "{done:?}");
    assert_eq!(
        (&result["attempt"], &result["queue"]),
        (&json!(1), &json!("default"))
    );
    assert!(result["epoch"].as_u64().expect("an epoch") > 0, "A72");
    // By the agent's own route, and tried again when it asks for it.
    let done = server.cli(&["enqueue", "later", "--wait"]);
    assert_eq!((done.code, done.stdout.trim()), (Some(0), "2"), "{done:?}");
    let done = server.cli(&["enqueue", "py#fail", "--max-attempts", "1", "--wait"]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("no address"), "{done:?}");
    let done = server.cli(&["enqueue", "py#nosuch", "--wait"]);
    assert!(done.stderr.contains("handler_not_found"), "{done:?}");
    let done = server.cli(&["enqueue", "ruby#x"]);
    assert!(done.stderr.contains("no agent has this runner"), "{done:?}");
    let done = server.cli(&["dead-letters"]);
    assert_eq!(
        done.stdout.lines().count(),
        4,
        "a header and three: {done:?}"
    );
    let done = server.cli(&["requeue", "--function", "nosuch", "--dry-run"]);
    assert!(done.stderr.contains("1 would be called again"), "{done:?}");
    let done = server.cli(&["requeue", "--all", "--purge"]);
    assert!(done.stderr.contains("3 put aside"), "{done:?}");
    let done = server.cli(&["queues"]);
    assert!(done.stdout.contains("default"), "{done:?}");
    let done = server.cli(&["enqueue", "py#note", "--params", "[1]"]);
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("params"), "{done:?}");
    server.check();
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
    let calls = storm_count("DELTA_CALLS", 300);
    let mut server = Server::start(Options::quick().flag("lease-ttl", "2s"));
    let person = server.person();
    let first = agent(&server, "one");
    let path = server.folder().join("noted");
    let bodies: Vec<Value> = (0..calls)
        .map(|n| {
            json!({"function": "py#note", "params": {"n": n, "path": path},
            "max_attempts": 10, "backoff_seconds": 0.05})
        })
        .collect();
    let mut ids = Vec::new();
    for some in bodies.chunks(1000) {
        let made = enqueue(&person, &json!({ "functions": some }));
        ids.extend(made["functions"].as_array().expect("calls").iter().cloned());
    }
    let noted = || {
        std::fs::read_to_string(&path)
            .unwrap_or_default()
            .lines()
            .count()
    };
    until("work has begun", noted, |count| *count >= 20);
    server.kill9();
    server
        .process()
        .wait(Duration::from_secs(20))
        .expect("its end");
    server.start_again();
    until("it goes on", noted, |count| *count >= 60);
    first.kill9().expect("kill -9");
    let _second = agent(&server, "two");
    for (n, made) in ids.iter().enumerate() {
        let done = ended(&person, &made["id"]);
        assert_eq!(
            (&done["state"], &done["result"]),
            (&json!("SUCCEEDED"), &json!(2 * n)),
            "{done}"
        );
        let ends = person.events(done["id"].as_str().expect("an id"));
        let ends = ends
            .iter()
            .filter(|event| event.to_string().contains(r#""succeeded""#));
        assert!(ends.count() >= 1, "it ended in its history");
    }
    let text = std::fs::read_to_string(&path).expect("what was noted");
    let seen: BTreeSet<&str> = text.lines().collect();
    assert_eq!(seen.len(), calls as usize, "each was carried out");
    server.check();
}

#[test]
fn a_stopped_agent_wakes_up_to_a_call_that_another_has_finished() {
    // LM-12, F3: one result, whoever says what afterwards.
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
