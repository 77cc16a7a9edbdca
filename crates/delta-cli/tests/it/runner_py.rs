//! The runner in Python, written from the specification alone, against a real server.

use delta_testkit::process::{Process, Spawn};
use delta_testkit::wait::eventually;

use crate::support::{PATIENCE, Place, ServerProcess, workspace};

/// Fast enough for a test; every other timing is as specified.
const FAST: [&str; 4] = ["--lease-ttl", "6s", "--heartbeat-interval", "300ms"];

fn python() -> std::path::PathBuf {
    let path = std::env::var_os("PATH").expect("a PATH");
    std::env::split_paths(&path)
        .map(|folder| folder.join("python3"))
        .find(|file| file.is_file())
        .expect("python3 is on the PATH; install the package python3")
}

fn runner(place: &Place, server: &ServerProcess) -> Process {
    let made = place
        .say("token create --role runner --data data")
        .expect(0);
    place.write("token", &made.stdout);
    Spawn::new(python())
        .arg(workspace().join("examples/runner.py"))
        .args(["--server", &server.url, "--token-file", "token"])
        .args(["--runner-id", "snake", "--capability", "linux", "--once"])
        .current_dir(place.path())
        .spawn()
        .expect("python starts")
}

#[test]
fn a_third_party_runner_executes_a_job_and_uploads_its_log() {
    // RP: lease, acknowledge, heartbeat, upload, complete
    let place = Place::new();
    let server = place.server(&FAST);
    let runner = runner(&place, &server);
    let (run, job) = server.submit(&["echo attempt $DELTA_ATTEMPT", "sleep 1"]);
    runner
        .wait_for_line(&format!("{job} SUCCEEDED"), PATIENCE)
        .unwrap();
    assert_eq!(server.outcome(&run), "SUCCESS");
    let logs = place.delta(["logs", &job, "--data", "data"]).expect(0);
    assert_eq!(logs.stdout, "attempt 1\n");
    let view = server.job(&job);
    assert_eq!(view["attempts"][0]["exit_code"], 0, "{view}");
    assert_eq!(view["attempts"][0]["leases"][0]["runner_id"], "snake");
    assert_eq!(view["attempts"][0]["leases"][0]["state"], "COMPLETED");
    assert_eq!(runner.wait(PATIENCE).unwrap().code(), Some(0));
}

#[test]
fn a_third_party_runner_fetches_a_spec_that_is_too_large_for_its_grant() {
    // RP-24
    let place = Place::new();
    let server = place.server(&FAST);
    let runner = runner(&place, &server);
    let long = format!("# {}", "x".repeat(40_000));
    let (run, job) = server.submit(&["echo fetched", &long, &long]);
    runner
        .wait_for_line(&format!("{job} SUCCEEDED"), PATIENCE)
        .unwrap();
    assert_eq!(server.outcome(&run), "SUCCESS");
    let logs = place.delta(["logs", &job, "--data", "data"]).expect(0);
    assert_eq!(logs.stdout, "fetched\n");
}

#[test]
fn the_third_party_runner_stays_short() {
    let text = std::fs::read_to_string(workspace().join("examples/runner.py")).unwrap();
    assert!(text.lines().count() < 150);
}

#[test]
fn a_third_party_runner_reports_a_failure_with_its_exit_code() {
    let place = Place::new();
    let server = place.server(&FAST);
    let runner = runner(&place, &server);
    let (run, job) = server.submit(&["exit 3", "echo never"]);
    runner
        .wait_for_line(&format!("{job} FAILED"), PATIENCE)
        .unwrap();
    assert_eq!(server.outcome(&run), "FAILED");
    assert_eq!(server.job(&job)["attempts"][0]["exit_code"], 3);
}

#[test]
fn a_third_party_runner_obeys_a_cancel() {
    let place = Place::new();
    let server = place.server(&FAST);
    let runner = runner(&place, &server);
    let (run, job) = server.submit(&["sleep 600"]);
    server.until(&job, "RUNNING");
    place.delta(["cancel", &run, "--data", "data"]).expect(0);
    runner
        .wait_for_line(&format!("{job} canceled"), PATIENCE)
        .unwrap();
    assert_eq!(server.outcome(&run), "CANCELED");
    let view = server.job(&job);
    assert_eq!(
        view["attempts"][0]["leases"][0]["state"], "CANCELED",
        "{view}"
    );
}

#[test]
fn a_third_party_runner_that_slept_too_long_is_told_it_is_stale() {
    let place = Place::new();
    let server = place.server(&FAST);
    let runner = runner(&place, &server);
    let (_, job) = server.submit(&["sleep 600"]);
    server.until(&job, "RUNNING");
    runner.stop().unwrap();
    eventually(PATIENCE, "the lease expires", || {
        let view = server.job(&job);
        if view["attempts"][0]["leases"][0]["state"] == "EXPIRED" {
            Ok(())
        } else {
            Err(view["attempts"][0]["leases"].clone())
        }
    });
    runner.cont().unwrap();
    runner
        .wait_for_line(&format!("{job} stale"), PATIENCE)
        .unwrap();
    // The job waits for somebody else; what the stale runner did changed nothing.
    let view = server.job(&job);
    assert_eq!(view["state"], "QUEUED", "{view}");
    assert_eq!(view["attempts"][0]["losses"], 1, "{view}");
}
