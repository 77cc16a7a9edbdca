//! How a runner begins and ends.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::process::{Marks, PATIENCE, Process, free_port, program, request};

// RQ-7, RQ-8
#[test]
fn a_runner_listens_where_it_is_told_and_nowhere_else() {
    let address = format!("127.0.0.1:{}", free_port());
    let mut by_flag = Command::new(program());
    by_flag.arg("--tcp-socket").arg(&address);
    let runner = Process::spawn(by_flag, address);
    assert_eq!(
        runner.connect().ask("1", "echo", json!({}))["status"],
        "success"
    );
    for (arguments, words) in [
        (&[][..], "nobody said where to listen"),
        (&["--tcp-socket", "0.0.0.0:9000"], "not on the loopback"),
        (&["--tcp-socket=9000"], "no host:port"),
    ] {
        let output = Command::new(program())
            .args(arguments)
            .env_clear()
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_runner_that_is_asked_to_end_finishes_what_runs() {
    let mut runner = Process::start(&[]);
    let mut worker = runner.connect();
    worker.send(&request("1", "wait", json!({"seconds": 0.5})));
    assert_eq!(worker.ask("2", "echo", json!({}))["status"], "success");
    runner.signal("-TERM");
    assert_eq!(worker.hear().unwrap()["result"], "waited");
    assert_eq!(worker.hear(), None);
    assert_eq!(runner.code(), Some(0));
}

#[test]
fn what_does_not_end_in_time_is_ended() {
    let mut runner = Process::start(&[]);
    let mut worker = runner.connect();
    worker.send(&request("1", "wait", json!({"seconds": 300})));
    assert_eq!(worker.ask("2", "echo", json!({}))["status"], "success");
    runner.signal("-TERM");
    // It has heard when it takes nobody in any more. Whoever asks twice does not want to wait.
    runner.refuses("the runner did not hear");
    runner.signal("-TERM");
    assert_eq!(worker.hear().unwrap()["error"]["type"], "cancelled");
    assert_eq!(runner.code(), Some(0));
}

#[test]
fn a_runner_ends_with_whoever_started_it() {
    let address = format!("127.0.0.1:{}", free_port());
    let mut shell = Command::new("sh");
    let script = "\"$0\" --tcp-socket \"$1\" & wait";
    shell.args(["-c", script]).arg(program()).arg(&address);
    let mut parent = Process::spawn(shell, address);
    let mut worker = parent.connect();
    worker.send(&request("1", "wait", json!({"seconds": 300})));
    assert_eq!(worker.ask("2", "echo", json!({}))["status"], "success");
    parent.child.kill().unwrap();
    parent.child.wait().unwrap();
    let began = Instant::now();
    while worker.hear().is_some() {
        assert!(began.elapsed() < PATIENCE);
    }
    parent.refuses("the runner outlives its parent");
}

#[test]
fn a_thread_that_heeds_nothing_keeps_no_runner_from_its_end() {
    let marks = Marks::new();
    let mut runner = Process::start(&[]);
    let mut worker = runner.connect();
    worker.send(&request("1", "deaf", marks.params()));
    marks.begun();
    runner.signal("-TERM");
    runner.refuses("the runner did not hear");
    runner.signal("-TERM");
    assert_eq!(runner.code(), Some(0));
    assert_eq!(worker.hear(), None, "what goes on was not ended");
}

#[test]
fn a_thread_that_heeds_nothing_ends_with_whoever_started_it() {
    let (address, marks) = (format!("127.0.0.1:{}", free_port()), Marks::new());
    let mut shell = Command::new("sh");
    let script = "\"$0\" --tcp-socket \"$1\" & wait";
    shell.args(["-c", script]).arg(program()).arg(&address);
    let mut parent = Process::spawn(shell, address);
    let mut worker = parent.connect();
    worker.send(&request("1", "deaf", marks.params()));
    let pid = marks.begun();
    parent.child.kill().unwrap();
    parent.child.wait().unwrap();
    let began = Instant::now();
    while is_running(&pid) {
        assert!(began.elapsed() < PATIENCE, "the runner outlives its parent");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").starts_with(" Z"))
}

// RQ-12
#[test]
fn messages_of_unknown_types_are_counted_and_said_once() {
    let address = format!("127.0.0.1:{}", free_port());
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let mut command = Command::new(program());
    command.arg("--tcp-socket").arg(&address);
    let file = std::fs::File::create(&said).unwrap();
    let mut runner = Process::spawn_with(command, address, file.into());
    let mut worker = runner.connect();
    for _ in 0..3 {
        worker.send(&json!({"type": "hello", "payload": {}}));
    }
    assert_eq!(worker.ask("1", "echo", json!({}))["status"], "success");
    runner.signal("-TERM");
    assert_eq!(runner.code(), Some(0));
    let said = std::fs::read_to_string(&said).unwrap();
    assert_eq!(said.matches("unknown type \"hello\"").count(), 1, "{said}");
    assert!(said.contains("3 messages of unknown types"), "{said}");
}
