//! Children: watched by what they say, paused, killed, and never left behind.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use delta_testkit::process::{Process, Spawn, binary, free_port};
use delta_testkit::wait::eventually;

const LONG: Duration = Duration::from_secs(30);

fn shell(script: &str) -> Process {
    Spawn::new("/bin/sh").args(["-c", script]).spawn().unwrap()
}

fn state_of(pid: u32) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit(") ").next()?.chars().next()
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists() && state_of(pid) != Some('Z')
}

#[test]
fn a_line_is_found_on_either_output() -> Result<()> {
    let child = shell("echo first one; echo second one >&2; exec sleep 1000");
    assert_eq!(child.wait_for_line("first", LONG)?, "first one");
    assert_eq!(child.wait_for_line("second", LONG)?, "second one");
    assert_eq!(child.stdout(), "first one\n");
    assert_eq!(child.stderr(), "second one\n");
    assert!(child.is_running());
    Ok(())
}

#[test]
fn an_unfinished_line_is_not_taken_for_a_line() {
    let child = shell("printf 'listening on 12'; exec sleep 1000");
    let wait = child.wait_for_line("listening", Duration::from_millis(100));
    assert!(wait.unwrap_err().to_string().contains("listening on 12"));
}

#[test]
fn an_early_end_is_reported_at_once_with_what_was_said() {
    let child = shell("echo the disk is missing >&2; exit 3");
    let error = child.wait_for_line("ready", LONG).unwrap_err().to_string();
    assert!(
        error.contains("the disk is missing") && error.contains("3"),
        "{error}"
    );
}

#[test]
fn the_environment_is_what_was_asked_for() -> Result<()> {
    let child = Spawn::new("/usr/bin/env")
        .clean_env()
        .env("GIVEN", "x")
        .spawn()?;
    assert!(child.wait(LONG)?.success());
    assert_eq!(child.stdout(), "GIVEN=x\n");
    let child = Spawn::new("/usr/bin/env").env("GIVEN", "x").spawn()?;
    child.wait_for_line("PATH=", LONG)?;
    child.wait_for_line("GIVEN=x", LONG)?;
    Ok(())
}

#[test]
fn terminate_asks_and_wait_tells_the_exit() -> Result<()> {
    let child = shell("trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done");
    child.wait_for_line("up", LONG)?;
    child.terminate()?;
    assert_eq!(child.wait(LONG)?.code(), Some(7));
    // Its pid is free for others now: signals go nowhere.
    child.stop()?;
    child.kill9()
}

#[test]
fn a_stopped_process_does_nothing_until_it_continues() -> Result<()> {
    let child = shell("echo up; exec sleep 1000");
    child.wait_for_line("up", LONG)?;
    child.stop()?;
    let stopped = |wanted: bool| match state_of(child.pid()) {
        state if (state == Some('T')) == wanted => Ok(()),
        state => Err(state),
    };
    eventually(LONG, "the child is stopped", || stopped(true));
    child.cont()?;
    eventually(LONG, "the child goes on", || stopped(false));
    Ok(())
}

#[test]
fn a_dropped_process_is_gone() {
    let child = shell("exec sleep 1000");
    let pid = child.pid();
    assert!(is_alive(pid));
    drop(child);
    assert!(!is_alive(pid));
}

#[test]
fn a_child_outlives_the_thread_that_started_it() {
    let child = std::thread::spawn(|| shell("echo up; exec sleep 1000"))
        .join()
        .unwrap();
    child.wait_for_line("up", LONG).unwrap();
    assert!(child.is_running());
}

#[test]
fn a_child_dies_with_a_killed_test_process() -> Result<()> {
    // A killed process cannot remove its output folder: it gets a place that we remove.
    let places = tempfile::tempdir()?;
    let holder = Spawn::new(env!("CARGO_BIN_EXE_delta-testkit"))
        .env("TMPDIR", places.path())
        .args(["hold", "/bin/sleep", "1000"])
        .spawn()?;
    let pid = holder.wait_for_line("", LONG)?.parse()?;
    assert!(is_alive(pid));
    holder.kill9()?;
    eventually(LONG, "the child is gone", || {
        if is_alive(pid) { Err(pid) } else { Ok(()) }
    });
    Ok(())
}

#[test]
fn a_missing_binary_is_named_with_the_command_that_builds_it() {
    let error = binary("delta-nothing").unwrap_err().to_string();
    assert!(
        error.contains("delta-nothing") && error.contains("cargo build"),
        "{error}"
    );
    assert!(Spawn::new("/no/such/program").spawn().is_err());
}

#[test]
fn a_workspace_binary_is_found_beside_the_test() -> Result<()> {
    let built = Path::new(env!("CARGO_BIN_EXE_delta-testkit")).canonicalize()?;
    assert_eq!(binary("delta-testkit")?.canonicalize()?, built);
    Ok(())
}

#[test]
fn free_ports_differ_and_can_be_bound_again_and_again() -> Result<()> {
    let ports: Vec<u16> = (0..50).map(|_| free_port()).collect::<Result<_>>()?;
    let mut distinct = ports.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), ports.len());
    for port in ports {
        drop(TcpListener::bind(("127.0.0.1", port))?);
        drop(TcpListener::bind(("127.0.0.1", port))?);
    }
    Ok(())
}
