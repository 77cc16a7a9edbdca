//! Functions with everything real: the server, agents with runner pools, runners in Python and
//! Rust, the command line and the Python client; and what is killed or stopped while they are
//! called.

mod clients;
mod faults;
mod guide;
mod room;

use std::path::{Path, PathBuf};

use delta_testkit::process::Process;
use serde_json::{Value, json};

use crate::faults_agent::agent_with;
use crate::harness::{Options, Person, Server, until};

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
pub fn rust_runner() -> PathBuf {
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
    let unknown = "no agent has the runner `ruby`";
    assert!(done.stderr.contains(unknown), "{done:?}");
    let id = done.stdout.trim().to_owned();
    let done = server.cli(&["dead-letters", &id]);
    assert!(done.stdout.contains(unknown), "{done:?}");
    let done = server.cli(&["dead-letters"]);
    assert!(done.stdout.contains(unknown), "{done:?}");
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
fn a_dead_letter_shows_what_was_asked_and_every_attempt() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, "functions");
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let call = json!({"function": "py#fail", "queue": "mail", "max_attempts": 2,
        "backoff_seconds": 0.01, "trace_context": {"traceparent": parent}});
    let made = enqueue(&person, &call);
    ended(&person, &made["id"]);
    let id = made["id"].as_str().expect("an id");
    for filter in [
        ["--queue", "mail"],
        ["--function", "fail"],
        ["--cause", "user_exit"],
    ] {
        let found = server.cli(&[&["dead-letters"], &filter[..]].concat());
        assert!(found.stdout.contains(id), "{filter:?}: {found:?}");
    }
    for other in [["--queue", "default"], ["--cause", "job_timeout"]] {
        let found = server.cli(&[&["dead-letters"], &other[..]].concat());
        assert!(!found.stdout.contains(id), "{other:?}: {found:?}");
    }
    let shown = server.cli(&["dead-letters", id]).stdout;
    for line in [
        "params  {}",
        "attempt 1  FAILED  user_exit",
        "attempt 2  FAILED  user_exit",
        "  bad_address: no address",
        r#"  {"to":1}"#,
    ] {
        assert!(shown.lines().any(|it| it == line), "{line:?} in\n{shown}");
    }
    let trace = shown
        .lines()
        .find(|it| it.starts_with("trace   traceparent"));
    let trace = trace.expect("its trace");
    assert!(
        trace.contains("0af7651916cd43dd8448eb211c80319c"),
        "{trace}"
    );
    // What is wrong with parameters is said before anything is sent, or by the handler.
    let done = server.cli(&["enqueue", "py#note", "--params", "{n: 1}"]);
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.stderr.contains("--params is no JSON"), "{done:?}");
    assert!(done.stderr.contains("give an object"), "{done:?}");
    let params = r#"{"n":"x","path":"/dev/null"}"#;
    let done = server.cli(&[
        "enqueue",
        "py#note",
        "--params",
        params,
        "--max-attempts",
        "1",
        "--wait",
    ]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("params.n must be"), "{done:?}");
    assert!(
        done.stderr.contains("RUNNING") || done.stderr.contains("FAILED"),
        "{done:?}"
    );
    server.check();
}

#[test]
fn a_dead_letter_of_the_agents_fault_says_why_and_the_beginning_of_an_id_is_enough() {
    let server = Server::start(Options::patient());
    let _agent = agent(&server, "functions");
    let done = server.cli(&["enqueue", "py#die", "--max-attempts", "1", "--wait"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    // No handler said anything: the agent did.
    assert!(done.stderr.contains("the runner"), "{done:?}");
    let list = server.cli(&["dead-letters"]).stdout;
    let line = list.lines().nth(1).expect("a dead letter");
    assert!(line.contains("the runner"), "{line}");
    let id = line.split_whitespace().next().expect("an id");
    let short = &id[..20];
    let shown = server.cli(&["dead-letters", short]);
    assert!(shown.stdout.starts_with(id), "{shown:?}");
    assert!(shown.stdout.contains("  the runner"), "{shown:?}");
    let shown = server.cli(&["show", short]);
    assert!(shown.stdout.starts_with(id), "{shown:?}");
    let again = server.cli(&["requeue", short, "--purge"]);
    assert_eq!(
        (again.code, again.stdout.trim()),
        (Some(0), id),
        "{again:?}"
    );
    for unknown in ["run_ffff", "run_ffffffffffffffffffffffffffffffff"] {
        for command in ["dead-letters", "requeue"] {
            let done = server.cli(&[command, unknown]);
            assert_ne!(done.code, Some(0), "{done:?}");
            assert!(done.stderr.contains("dead-letters lists"), "{done:?}");
            assert!(!done.stderr.contains("--version"), "{done:?}");
        }
    }
    server.check();
}
