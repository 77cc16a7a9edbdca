//! Pools of runners on a bench, without a server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use delta_agent::functions::{
    Call, CallEnd, Functions, PoolHealth, ProcessState, RunnerSettings, Surroundings,
};
use delta_agent::work::{BaseEnvironment, StopOrder};
use delta_shim::sandbox::Sandbox;
use delta_shim::stop::StopReason;
use delta_wire::JobSpec;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::bench::{PATIENCE, is_running, shim_program};

pub struct Pools {
    pub functions: Functions,
    _folder: tempfile::TempDir,
}

/// The runner that answers as it is asked to.
pub fn hostile() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runners/hostile.py")
}

/// A file with one pool of it, and further lines about that.
pub fn one_pool(more: &str) -> String {
    let program = hostile();
    let program = program.display();
    format!("pools:\n  h:\n    command: [python3, {program}]\n    {more}\n")
}

/// Files with one pool, `h`, of the runners that the SDKs test themselves with, in Python and in
/// Rust; with these arguments, and these variables.
pub fn sdk_runners(arguments: &str, env: &str) -> [String; 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().expect("the tree");
    let this = std::env::current_exe().expect("this program");
    let built = this.parent().and_then(|deps| deps.parent());
    let table = built.expect("a folder").join("examples/table");
    let python = format!(
        "[python3, -m, delta_runner, 'tests.handlers:app', {arguments}]\n    \
         working_folder: {}",
        root.join("sdk/python").display()
    );
    let rust = format!("[{}]\n    env: {{{env}}}", table.display());
    [python, rust].map(|command| format!("pools:\n  h:\n    command: {command}\n"))
}

pub fn settings(file: &str, folder: &Path) -> RunnerSettings {
    RunnerSettings::parse("runners.yaml", file, folder).expect("a good file")
}

impl Pools {
    /// One pool, `h`, of the hostile runner.
    pub fn start(more: &str) -> Pools {
        Pools::of(&one_pool(more))
    }

    pub fn of(file: &str) -> Pools {
        let folder = tempfile::tempdir().expect("a folder");
        let around = Surroundings {
            program: shim_program().program,
            base_environment: BaseEnvironment::Clean { pass: Vec::new() },
            sandbox: Sandbox::Host,
            secrets: Vec::new(),
            work_folder: folder.path().to_owned(),
        };
        let functions = Functions::start(settings(file, folder.path()), &around);
        Pools {
            functions,
            _folder: folder,
        }
    }

    pub async fn call(&self, name: &str, params: Value) -> CallEnd {
        self.call_until(name, params, watch::Sender::new(None).subscribe())
            .await
    }

    pub async fn call_until(
        &self,
        name: &str,
        params: Value,
        stop: watch::Receiver<Option<StopOrder>>,
    ) -> CallEnd {
        self.calls(&call(name, params), stop).await
    }

    /// The call of a job of its own.
    pub async fn call_job(&self, job: &str, name: &str, params: Value) -> CallEnd {
        let stop = watch::Sender::new(None);
        self.calls(&of_job(job, name, params), stop.subscribe())
            .await
    }

    pub async fn calls(&self, call: &Call, stop: watch::Receiver<Option<StopOrder>>) -> CallEnd {
        let end = tokio::time::timeout(PATIENCE, self.functions.call(call, stop)).await;
        end.expect("the call ends")
    }

    /// What a call returned, which must have succeeded.
    pub async fn result(&self, name: &str, params: Value) -> Value {
        result(&self.call(name, params).await)
    }

    pub fn pool(&self, name: &str) -> PoolHealth {
        let found = self
            .functions
            .health()
            .into_iter()
            .find(|it| it.name == name);
        found.expect("a pool of that name")
    }

    pub async fn until(&self, what: &str, reached: impl Fn(&PoolHealth) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !reached(&self.pool("h")) {
            let health = self.pool("h");
            assert!(Instant::now() < deadline, "never: {what}: {health:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn ready(&self) {
        let ready = |pool: &PoolHealth| {
            let mut processes = pool.processes.iter();
            processes.all(|it| it.state == ProcessState::Ready)
        };
        self.until("every process is ready", ready).await;
    }

    /// The runner says itself how many it is at, beside the one that asks.
    pub async fn until_running(&self, count: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.result("h#stats", json!({})).await["now"] != count + 1 {
            assert!(Instant::now() < deadline, "never called");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until another process takes calls in place of this one, which goes on meanwhile.
    pub async fn replaced(&self, before: &Value) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.result("h#process", json!({})).await;
            if now["pid"] != before["pid"] {
                assert!(is_running(&before["pid"].to_string()), "{before}");
                return now;
            }
            assert!(Instant::now() < deadline, "never replaced");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// It fails, and what it says contains these words.
    pub async fn never_ready(&self, words: &str) {
        let failed = |pool: &PoolHealth| {
            let error = pool.processes[0].last_error.as_deref();
            error.is_some_and(|error| error.contains(words))
        };
        self.until(words, failed).await;
    }
}

/// A call that is under way beside others, until it is told to end.
pub struct Neighbour(tempfile::TempDir);

impl Neighbour {
    pub fn new() -> Neighbour {
        Neighbour(tempfile::tempdir().expect("a folder"))
    }

    pub async fn call(&self, pools: &Pools) -> CallEnd {
        self.call_of("job_1_1", pools).await
    }

    /// As a call of this job.
    pub async fn call_of(&self, job: &str, pools: &Pools) -> CallEnd {
        let params = json!({"path": self.0.path().join("go")});
        pools.call_job(job, "h#until", params).await
    }

    /// It may end.
    pub fn go(&self) {
        std::fs::write(self.0.path().join("go"), "").expect("a file");
    }
}

pub fn result(end: &CallEnd) -> Value {
    let answer = end.answer.as_ref().unwrap_or_else(|| panic!("{end:?}"));
    let text = answer.result.as_ref().unwrap_or_else(|| panic!("{end:?}"));
    serde_json::from_str(text.as_str()).expect("JSON")
}

pub fn call(name: &str, params: Value) -> Call {
    let spec = json!({ "function": {
        "name": name,
        "params": params,
        "queue": "mail",
        "enqueued_at": "2026-01-04T08:00:00.123456789Z",
        "trace_context": { "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" },
    }});
    let spec = JobSpec::parse(spec.to_string().as_bytes()).expect("a spec");
    Call {
        job_id: "job_7_1".to_owned(),
        attempt: 2,
        lease_epoch: (3 << 32) + 5,
        function: spec.function.expect("a function"),
        finish_by: Instant::now() + Duration::from_secs(60),
        worker_id: "box/1".to_owned(),
    }
}

pub fn of_job(job: &str, name: &str, params: Value) -> Call {
    Call {
        job_id: job.to_owned(),
        ..call(name, params)
    }
}

/// An order that takes effect at once, with this grace.
pub fn order(reason: StopReason, grace: Duration) -> Option<StopOrder> {
    Some(StopOrder {
        reason,
        kill_at: Instant::now() + grace,
    })
}

/// Drives all of them at once.
pub async fn join_all<T>(calls: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut calls: Vec<_> = calls.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = calls.iter().map(|_| None).collect();
    let all = std::future::poll_fn(|context| {
        let mut left = false;
        for (call, done) in calls
            .iter_mut()
            .zip(&mut done)
            .filter(|(_, done)| done.is_none())
        {
            match call.as_mut().poll(context) {
                std::task::Poll::Ready(answer) => *done = Some(answer),
                std::task::Poll::Pending => left = true,
            }
        }
        match left {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(()),
        }
    });
    let in_time = tokio::time::timeout(PATIENCE, all).await;
    in_time.expect("all calls end");
    done.into_iter().flatten().collect()
}
