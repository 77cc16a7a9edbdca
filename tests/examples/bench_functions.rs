//! Functions beside RRQ, in one run: `cargo run --release -p delta-e2e --example bench_functions`.
//!
//! Both sides take turns, with the same functions, one runner process and 64 calls at a time: ours
//! durable on SQLite, through server and agent; RRQ with its own worker, log turned down and
//! polling every 5 ms, on a Redis that keeps nothing on disk. Needs `delta-ci` and our runner in
//! the same profile: `cargo build --release -p delta-cli -p delta-runner --bins --examples`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use delta_testkit::process::{Spawn, free_port};
use delta_testkit::python::PYTHON;
use delta_testkit::redis::Redis;
use delta_testkit::rrq::{NEW, Rrq, rust_runner};
use serde_json::{Value, json};

/// Turns of each side; an odd number has a middle.
const ROUNDS: usize = 3;
const ALONE: &str = "200";
/// What takes some seconds each.
const TOGETHER: &str = "10000";

/// One row of the result.
struct Side {
    name: &'static str,
    runner: Vec<String>,
    python_path: String,
    ours: bool,
    found: Vec<Found>,
}

/// Calls a second, and from enqueue to handler.
#[derive(Clone, Copy)]
struct Found {
    rate: f64,
    p50: f64,
    p99: f64,
    steal: f64,
}

fn main() {
    let built = built();
    let rrq = Rrq::version(NEW).expect("the package rrq");
    let mut sides = sides(&built, &rrq);
    for round in 1..=ROUNDS {
        for side in &mut sides {
            let steal = Steal::now();
            let mut found = if side.ours {
                ours(&built, side)
            } else {
                theirs(&rrq, side)
            };
            found.steal = Steal::now().since(&steal);
            eprintln!("{round}: {}: {:.0} calls/s", side.name, found.rate);
            side.found.push(found);
        }
    }
    println!("| functions, 64 at a time in one process | calls/s | enqueue → handler p50 / p99 |");
    println!("|---|---|---|");
    for side in &sides {
        let middle = |of: fn(&Found) -> f64| median(side.found.iter().map(of).collect());
        println!(
            "| {} | {:.0} | {:.2} / {:.2} ms |",
            side.name,
            middle(|it| it.rate),
            middle(|it| it.p50),
            middle(|it| it.p99)
        );
    }
    let steal = sides.iter().flat_map(|it| &it.found).map(|it| it.steal);
    println!(
        "\nCPU steal at most {:.1} %, {ROUNDS} turns each",
        steal.fold(0.0, f64::max)
    );
}

/// Where cargo puts what it builds in this profile.
fn built() -> PathBuf {
    let here = std::env::current_exe().expect("this program's place");
    let folder = here.parent().and_then(Path::parent);
    folder.expect("a target folder").to_owned()
}

fn sides(built: &Path, rrq: &Rrq) -> Vec<Side> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fixtures = tests.join("fixtures/runners").display().to_string();
    let example = |name: &str| vec![built.join("examples").join(name).display().to_string()];
    let peer = rust_runner(&tests.join("peers/rrq-runner")).expect("the crate rrq-runner");
    let peer = vec![peer.display().to_string()];
    let sdk = [PYTHON, "-m", "delta_runner", "sdk_table:app"];
    let theirs = vec![
        rrq.runner().display().to_string(),
        "--settings".to_owned(),
        "rrq_table.settings".to_owned(),
    ];
    let sdk_path = format!("{}:{fixtures}", tests.join("../sdk/python").display());
    let rrq_path = format!("{}:{fixtures}", rrq.python_path().display());
    let side = |name, runner, python_path: &str, ours| Side {
        name,
        runner,
        python_path: python_path.to_owned(),
        ours,
        found: Vec::new(),
    };
    vec![
        side("Delta CI, our Rust runner", example("table"), "", true),
        side("RRQ, its Rust runner", peer, "", false),
        side(
            "Delta CI, our Python runner",
            sdk.map(str::to_owned).into(),
            &sdk_path,
            true,
        ),
        side(
            "Delta CI, RRQ's Python runner",
            theirs.clone(),
            &rrq_path,
            true,
        ),
        side("RRQ, its Python runner", theirs, &rrq_path, false),
    ]
}

fn ours(built: &Path, side: &Side) -> Found {
    // The agent gives its runners none of its variables: `env` sets them.
    let output = Command::new(built.join("delta-ci"))
        .args([
            "bench",
            "functions",
            "--json",
            "--function",
            "moment",
            "--pipeline",
        ])
        .args([
            "--in-flight",
            "64",
            "--alone",
            ALONE,
            "--together",
            TOGETHER,
            "--",
        ])
        .args(["/usr/bin/env", &format!("PYTHONPATH={}", side.python_path)])
        .args(&side.runner)
        .output()
        .expect("delta-ci");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("what it found");
    of(&found, &found["enqueue_to_handler"])
}

fn theirs(rrq: &Rrq, side: &Side) -> Found {
    let redis = Redis::start().expect("a Redis");
    let folder = tempfile::tempdir().expect("a folder");
    let settings = folder.path().join("rrq.toml");
    let text = format!(
        "[rrq]\nredis_dsn = \"{redis}\"\ndefault_runner_name = \"bench\"\n\
         default_queue_name = \"bench\"\ndefault_poll_delay_seconds = 0.005\n\
         [rrq.runners.bench]\ntype = \"socket\"\ncmd = {command}\npool_size = 1\n\
         max_in_flight = 64\ntcp_port = {port}\nenv = {{ PYTHONPATH = \"{path}\" }}\n",
        redis = redis.url(),
        command = json!(side.runner),
        port = free_port().expect("a port"),
        path = side.python_path,
    );
    std::fs::write(&settings, text).expect("a file");
    let worker = Spawn::new(rrq.program())
        .args(["worker", "run", "--config"])
        .arg(&settings)
        .env("RUST_LOG", "error")
        .spawn()
        .expect("a worker");
    let output = Command::new(PYTHON)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/runners/rrq_bench.py"))
        .arg(&settings)
        .args([ALONE, TOGETHER])
        .env("PYTHONPATH", rrq.python_path())
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // Asked to, it ends its runner, too.
    let _ = worker.terminate();
    let _ = worker.wait(Duration::from_secs(20));
    let found: Value = serde_json::from_slice(&output.stdout).expect("what it found");
    of(&found, &found)
}

fn of(found: &Value, waits: &Value) -> Found {
    let number = |value: &Value| value.as_f64().expect("a number");
    Found {
        rate: number(&found["calls_per_second"]),
        p50: number(&waits["p50_ms"]),
        p99: number(&waits["p99_ms"]),
        steal: 0.0,
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// What the machine under this one took away: all time and stolen time so far.
struct Steal(f64, f64);

impl Steal {
    fn now() -> Steal {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let times = line.split_whitespace().skip(1).take(8);
        let times: Vec<f64> = times.filter_map(|it| it.parse().ok()).collect();
        Steal(times.iter().sum(), times.get(7).copied().unwrap_or(0.0))
    }

    fn since(&self, before: &Steal) -> f64 {
        100.0 * (self.1 - before.1) / (self.0 - before.0).max(1.0)
    }
}
