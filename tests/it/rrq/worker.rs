//! RRQ's own worker, with a real Redis, over runners of our SDKs: the same table. What a job comes
//! to is RRQ's to decide; that the worker understands every answer is ours.
//!
//! A worker serves one runner, so that there is one for what is called, one for what is stopped
//! and one whose runner is killed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use delta_testkit::process::{Process, Spawn, free_port};
use delta_testkit::python::PYTHON;
use delta_testkit::redis::Redis;
use delta_testkit::rrq::{NEW, OLD, Rrq};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Held, example, fixture, kill9};
use crate::harness::until;

const AT_ONCE: usize = 70;
/// How long a worker of this table waits for any answer, whatever a job's own time.
const RESPONSE_TIMEOUT: f64 = 4.0;

/// A runner of ours.
struct Runner {
    command: Vec<String>,
    python_path: String,
}

impl Runner {
    fn python() -> Runner {
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/python");
        let words = [PYTHON, "-m", "delta_runner", "sdk_table:app"];
        Runner {
            command: words.map(str::to_owned).into(),
            python_path: format!("{}:{}", sdk.display(), fixture("").display()),
        }
    }

    fn rust() -> Runner {
        Runner {
            command: vec![example("table").display().to_string()],
            python_path: String::new(),
        }
    }
}

/// A Redis, an RRQ, and a folder for everything around them.
struct Bench {
    redis: Redis,
    rrq: Rrq,
    version: &'static str,
    folder: TempDir,
}

/// A worker with its queue and its runner.
struct Worker<'a> {
    bench: &'a Bench,
    settings: PathBuf,
    process: Process,
}

impl Bench {
    fn new(version: &'static str) -> Bench {
        Bench {
            redis: Redis::start().expect("a Redis"),
            rrq: Rrq::version(version).expect("the package rrq"),
            version,
            folder: tempfile::tempdir().expect("a folder"),
        }
    }

    fn worker(&self, name: &str, runner: &Runner, more: &str) -> Worker<'_> {
        let port = free_port().expect("a port");
        let socket = if self.version == OLD {
            format!("tcp_socket = \"127.0.0.1:{port}\"")
        } else {
            format!("tcp_port = {port}")
        };
        let text = format!(
            "[rrq]\nredis_dsn = \"{redis}\"\ndefault_runner_name = \"{name}\"\n\
             default_queue_name = \"{name}\"\nbase_retry_delay_seconds = 0.05\n\
             default_poll_delay_seconds = 0.05\nrunner_enable_inflight_cancel_hints = true\n\
             runner_shutdown_term_grace_seconds = 1.0\n\
             [rrq.runners.{name}]\ntype = \"socket\"\ncmd = {command}\npool_size = 1\n\
             max_in_flight = 64\n{socket}\n{more}\n\
             env = {{ PYTHONPATH = \"{path}\", PYTHONDONTWRITEBYTECODE = \"1\" }}\n",
            redis = self.redis.url(),
            command = json!(runner.command),
            path = runner.python_path,
        );
        let settings = self.folder.path().join(format!("{name}.toml"));
        std::fs::write(&settings, text).expect("a file");
        let process = Spawn::new(self.rrq.program())
            .args(["worker", "run", "--config"])
            .arg(&settings)
            .spawn();
        Worker {
            bench: self,
            settings,
            process: process.expect("a worker"),
        }
    }

    fn held(&self, name: &str) -> Held {
        Held::new(self.folder.path(), name)
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        // Asked to, it ends its runner, too.
        let _ = self.process.terminate();
        let _ = self.process.wait(Duration::from_secs(10));
    }
}

impl Worker<'_> {
    /// Makes calls with RRQ's own producer.
    #[track_caller]
    fn enqueue(&self, calls: &Value) -> Vec<String> {
        let mut child = Command::new(PYTHON)
            .arg(fixture("rrq_enqueue.py"))
            .arg(&self.settings)
            .env("PYTHONPATH", self.bench.rrq.python_path())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut stdin = child.stdin.take().expect("its stdin");
        stdin.write_all(calls.to_string().as_bytes()).expect("told");
        drop(stdin);
        let output = child.wait_with_output().expect("its end");
        assert!(output.status.success());
        serde_json::from_slice(&output.stdout).expect("ids")
    }

    /// What the worker made of a job: its state, result, last error and retries.
    #[track_caller]
    fn ended(&self, id: &str) -> Ended {
        let key = format!("rrq:job:{id}");
        let field = |name: &str| self.bench.redis.field(&key, name).expect("Redis");
        let over = |state: &String| state == "COMPLETED" || state == "FAILED";
        until("the job has ended", || field("status"), over);
        Ended {
            state: field("status"),
            result: serde_json::from_str(&field("result")).unwrap_or_default(),
            error: field("last_error"),
            retries: field("current_retries"),
        }
    }

    fn is_dead(&self, id: &str) -> bool {
        let list = self
            .bench
            .redis
            .ask(&["LRANGE", "rrq:dlq:default", "0", "-1"]);
        format!("{:?}", list.expect("Redis")).contains(id)
    }
}

#[derive(Debug)]
struct Ended {
    state: String,
    result: Value,
    error: String,
    retries: String,
}

impl Ended {
    #[track_caller]
    fn assert_completed(&self, result: Value, retries: &str) {
        let ended = (&*self.state, &self.result, &*self.retries);
        assert_eq!(ended, ("COMPLETED", &result, retries), "{self:?}");
    }

    #[track_caller]
    fn assert_failed(&self, words: &str, retries: &str) {
        let ended = (&*self.state, &*self.retries);
        assert_eq!(ended, ("FAILED", retries), "{self:?}");
        assert!(self.error.contains(words), "{self:?}");
    }
}

fn called(bench: &Bench, runner: &Runner) {
    let worker = bench.worker("main", runner, "");
    let params = json!({"é\u{1F600}": [null, 1.5, {"k": "v"}], "n": 9_007_199_254_740_993_u64});
    let held = bench.held("seventy");
    held.let_go();
    let mut calls = vec![
        json!({"function": "echo", "params": params}),
        json!({"function": "fail", "options": {"max_retries": 2}}),
        json!({"function": "flaky", "params": {"until": 3}}),
        json!({"function": "later", "params": {"seconds": 0.4}}),
        json!({"function": "nosuch"}),
    ];
    let many = json!({"function": "hold", "params": held.params(), "options": {"max_retries": 1}});
    calls.extend(vec![many; AT_ONCE]);
    let ids = worker.enqueue(&json!(calls));
    let echoed = worker.ended(&ids[0]);
    assert_eq!(
        (&*echoed.state, &echoed.result["params"]),
        ("COMPLETED", &params),
        "{echoed:?}"
    );
    worker.ended(&ids[1]).assert_failed("boom", "2");
    worker.ended(&ids[2]).assert_completed(json!(3), "2");
    worker.ended(&ids[3]).assert_completed(json!(2), "1");
    worker
        .ended(&ids[4])
        .assert_failed("No handler registered for function 'nosuch'", "1");
    for dead in [&ids[1], &ids[4]] {
        until("it is a dead letter", || worker.is_dead(dead), |dead| *dead);
    }
    for id in &ids[5..] {
        worker.ended(id).assert_completed(json!("done"), "0");
    }
    assert_eq!(held.lines().len(), AT_ONCE, "each was called once");
}

fn stopped(bench: &Bench, runner: &Runner) {
    let more = format!("response_timeout_seconds = {RESPONSE_TIMEOUT}");
    let worker = bench.worker("stops", runner, &more);
    // Its own time: a dead letter at once, to RRQ. The worker ends the runner for it.
    let slow = bench.held("timeout");
    let options = json!({"job_timeout_seconds": 1});
    let call = json!([{"function": "hold", "params": slow.params(), "options": options}]);
    let id = worker.enqueue(&call).remove(0);
    worker.ended(&id).assert_failed("timed out", "1");
    // A cancel from the worker: it waits no longer for the first, and a neighbour is on the
    // connection, so that it ends the one call and not the process.
    let (first, second) = (bench.held("first"), bench.held("second"));
    let call = |held: &Held| {
        let options = json!({"job_timeout_seconds": 60, "max_retries": 1});
        json!([{"function": "hold", "params": held.params(), "options": options}])
    };
    let canceled = worker.enqueue(&call(&first)).remove(0);
    first.until_begun(1);
    std::thread::sleep(Duration::from_secs_f64(RESPONSE_TIMEOUT / 2.0));
    let neighbour = worker.enqueue(&call(&second)).remove(0);
    let told = |lines: &Vec<String>| lines.iter().any(|line| line == "cancelled");
    let pid = until("the handler was told", || first.lines(), told).remove(0);
    second.let_go();
    worker
        .ended(&canceled)
        .assert_failed("response timeout", "1");
    worker
        .ended(&neighbour)
        .assert_completed(json!("done"), "0");
    assert_eq!(second.lines(), [pid], "the same process");
}

fn killed(bench: &Bench, runner: &Runner) {
    let worker = bench.worker("victim", runner, "");
    let held = bench.held("victim");
    let call = json!([{"function": "hold", "params": held.params()}]);
    let id = worker.enqueue(&call).remove(0);
    let first = held.until_begun(1).remove(0);
    kill9(&first);
    let second = held.until_begun(2).remove(1);
    assert_ne!(first, second, "another process");
    held.let_go();
    worker.ended(&id).assert_completed(json!("done"), "1");
}

fn put_the_table_to(version: &'static str, runner: &Runner) {
    let bench = &Bench::new(version);
    std::thread::scope(|scope| {
        for case in [called, stopped, killed] {
            scope.spawn(move || case(bench, runner));
        }
    });
}

// RQ-6 … RQ-16, RQ-18 … RQ-44: as the newest worker puts them.
#[test]
fn the_newest_worker_drives_our_python_runner() {
    put_the_table_to(NEW, &Runner::python());
}

#[test]
fn the_newest_worker_drives_our_rust_runner() {
    put_the_table_to(NEW, &Runner::rust());
}

#[test]
fn the_worker_of_the_specifications_time_drives_our_python_runner() {
    put_the_table_to(OLD, &Runner::python());
}

#[test]
fn the_worker_of_the_specifications_time_drives_our_rust_runner() {
    put_the_table_to(OLD, &Runner::rust());
}
