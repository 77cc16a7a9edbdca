//! `delta-ci run`: a pipeline executed here, its exit code the run's outcome.

use std::time::Duration;

use delta_testkit::process::Spawn;
use delta_testkit::wait::eventually;
use rustix::process::{Pid, Signal, test_kill_process};

use crate::support::{PATIENCE, Place, binary, comparable, workspace};

fn pipeline(place: &Place, text: &str) {
    place.write(".delta-ci.yaml", text);
}

#[test]
fn the_first_example_passes_retries_and_allows_a_failure() {
    let place = Place::new();
    let example = workspace().join("examples/first");
    let ran = place
        .delta([std::ffi::OsStr::new("run"), example.as_os_str()])
        .expect(0);
    let stdout = comparable(&ran.stdout);
    for line in [
        "lint SUCCEEDED 1 TIME job_ID_1",
        "unit SUCCEEDED 2 TIME job_ID_2 needed 2 attempts",
        "docs FAILED 1 TIME job_ID_3 step 2: exit code 3, allowed to fail",
        "package SUCCEEDED 1 TIME job_ID_4",
        "run_ID: SUCCESS in TIME",
        "unit | attempt 1: the database of this test was not up yet",
        "unit | attempt 2: the database answered",
        "package | greet.sh",
    ] {
        assert!(
            stdout.lines().any(|said| said == line),
            "{line:?} in\n{stdout}"
        );
    }
    let stderr = comparable(&ran.stderr);
    assert!(stderr.contains("unit attempt 2 started"), "{stderr}");
    assert!(!stderr.contains("WARN"), "{stderr}");
}

#[test]
fn a_required_failure_fails_the_run() {
    let place = Place::new();
    pipeline(
        &place,
        "jobs:\n  unit:\n    steps: [exit 3]\n  after:\n    needs: [unit]\n    steps: [x]\n",
    );
    let ran = place.say("--json run").expect(1);
    let view = ran.json();
    assert_eq!(view["outcome"], "FAILED");
    assert_eq!(view["jobs"][1]["cause"], "dependency_failed", "{view}");
}

#[test]
fn jobs_see_the_callers_variables_and_work_on_a_copy() {
    let place = Place::new();
    pipeline(
        &place,
        "jobs:\n  a:\n    steps: ['test \"$COLOUR\" = blue', 'touch left-behind']\n",
    );
    let output = place
        .command()
        .arg("run")
        .env("COLOUR", "blue")
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!place.path().join("left-behind").exists());
    let output = place
        .command()
        .args(["run", "--in-place"])
        .env("COLOUR", "blue")
        .output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    assert!(place.path().join("left-behind").exists());
}

#[test]
fn one_job_brings_what_it_needs_and_nothing_else() {
    let place = Place::new();
    pipeline(
        &place,
        "jobs:\n  a:\n    steps: [echo a]\n  b:\n    needs: [a]\n    steps: [echo b]\n  \
         c:\n    steps: [exit 1]\n",
    );
    let view = place.say("--json run --job b").expect(0).json();
    assert_eq!(view["jobs"].as_array().unwrap().len(), 2, "{view}");
    let ran = place.say("run --job d").expect(5);
    assert!(ran.stderr.contains("there is a, b, c"), "{}", ran.stderr);
}

#[test]
fn what_a_job_prints_cannot_steer_the_terminal() {
    let place = Place::new();
    pipeline(
        &place,
        "jobs:\n  a:\n    steps: [\"printf '\\\\033[2J\\\\033]0;t\\\\007\\\\033[31mred\\\\n'\"]\n",
    );
    let ran = place.say("run").expect(0);
    assert!(!ran.stdout.contains('\u{1b}'), "{:?}", ran.stdout);
    assert!(ran.stdout.contains("red"), "{:?}", ran.stdout);
    let ran = place.say("--color always run").expect(0);
    assert!(ran.stdout.contains("\u{1b}[31mred"), "{:?}", ran.stdout);
    assert!(!ran.stdout.contains("\u{1b}[2J"), "{:?}", ran.stdout);
}

#[test]
fn a_pipeline_file_can_be_named_itself() {
    let place = Place::new();
    std::fs::create_dir(place.path().join("p")).unwrap();
    place.write("p/ci.yaml", "jobs:\n  a:\n    steps: [test -f ci.yaml]\n");
    place.say("run p/ci.yaml").expect(0);
}

#[test]
fn a_job_that_only_another_machine_can_take_is_refused_at_once() {
    let place = Place::new();
    pipeline(
        &place,
        "jobs:\n  a:\n    requires: [gpu]\n    steps: ['true']\n",
    );
    let ran = place.say("run").expect(8);
    assert!(ran.stderr.contains("requires gpu"), "{}", ran.stderr);
    place.say("run --label gpu").expect(0);
    place.say("run --skip-unfit").expect(8);
}

#[test]
fn a_job_that_this_machine_cannot_do_does_not_refuse_the_others() {
    let place = Place::new();
    pipeline(
        &place,
        "jobs:\n  far:\n    requires: ['go>=99.1']\n    steps: ['true']\n  after:\n    \
         needs: [far]\n    steps: ['true']\n  near:\n    steps: [echo near]\n",
    );
    let ran = place.say("run").expect(8);
    let hint = "--label go=99.1 if it is here";
    assert!(ran.stderr.contains(hint), "{}", ran.stderr);
    let ran = place.say("run --skip-unfit").expect(0);
    for said in [
        "not run: far, for it requires go>=99.1",
        "not run: after, for it needs far",
    ] {
        assert!(ran.stderr.contains(said), "{said} in\n{}", ran.stderr);
    }
    assert!(ran.stdout.contains("near | near"), "{}", ran.stdout);
    let view = place.say("--json run --skip-unfit").expect(0).json();
    assert_eq!(view["not_run"][1]["name"], "after", "{view}");
    // What the hint says works, and what asks is no label.
    place.say("run --label go=99.1").expect(0);
    let ran = place.say("run --label go>=99.1").expect(2);
    assert!(ran.stderr.contains("such as go=99.1"), "{}", ran.stderr);
}

#[test]
fn a_job_that_was_named_is_announced_as_such() {
    let place = Place::new();
    place.write("Makefile", "lint:\n\ttrue\ntest:\n\ttrue\n");
    let ran = place.say("run --job lint").expect(0);
    let said = "found 2 jobs; asked for: lint";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
}

#[test]
fn an_interrupt_cancels_and_leaves_no_process_behind() {
    let place = Place::new();
    let pid_file = place.path().join("pid");
    let step = format!("echo $$ > {}; echo begun; sleep 600", pid_file.display());
    pipeline(&place, &format!("jobs:\n  slow:\n    steps: ['{step}']\n"));
    let run = Spawn::new(binary())
        .arg("run")
        .env("XDG_CACHE_HOME", place.cache.path())
        .current_dir(place.path())
        .spawn()
        .unwrap();
    run.wait_for_line("slow | begun", PATIENCE).unwrap();
    run.signal(Signal::INT).unwrap();
    let status = run.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(3), "{}", run.stderr());
    assert!(run.stdout().contains("CANCELED"), "{}", run.stdout());
    let pid: i32 = std::fs::read_to_string(pid_file)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    eventually(
        Duration::from_secs(5),
        "the job's process is gone",
        || match test_kill_process(pid) {
            Err(_) => Ok(()),
            Ok(()) => Err("it lives"),
        },
    );
}

#[test]
fn a_second_interrupt_forces_the_end() {
    let place = Place::new();
    // It hears TERM and goes on: only KILL ends it.
    let step = "trap \"\" TERM; echo begun; while true; do sleep 1; done";
    pipeline(
        &place,
        &format!("jobs:\n  stubborn:\n    steps: ['{step}']\n"),
    );
    let run = Spawn::new(binary())
        .arg("run")
        .env("XDG_CACHE_HOME", place.cache.path())
        .current_dir(place.path())
        .spawn()
        .unwrap();
    run.wait_for_line("stubborn | begun", PATIENCE).unwrap();
    run.signal(Signal::INT).unwrap();
    run.wait_for_line("once more to force it", PATIENCE)
        .unwrap();
    run.signal(Signal::INT).unwrap();
    let status = run.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(3), "{}", run.stderr());
}

// A store that stays: what a killed run left is not gone on with, unasked, on another tree.
#[test]
fn what_a_killed_run_left_is_ended_and_not_executed() {
    let place = Place::new();
    pipeline(
        &place,
        "jobs:\n  hold:\n    priority: 10\n    steps: ['touch \"$MARKS/begun\"; sleep 600']\n  \
         deploy:\n    steps: ['touch \"$MARKS/deployed\"']\n",
    );
    let marks = tempfile::tempdir().unwrap();
    let killed = Spawn::new(binary())
        .args(["run", "--data", "kept", "--slots", "1"])
        .env("XDG_CACHE_HOME", place.cache.path())
        .env("MARKS", marks.path())
        .current_dir(place.path())
        .spawn()
        .unwrap();
    let begun = || {
        if marks.path().join("begun").exists() {
            Ok(())
        } else {
            Err("not yet")
        }
    };
    eventually(PATIENCE, "the first job begins", begun);
    killed.kill9().unwrap();
    pipeline(&place, "jobs:\n  unit:\n    steps: [sleep 1]\n");
    let again = || {
        let mut command = place.command();
        command.args(["run", "--data", "kept", "--slots", "1"]);
        command.env("MARKS", marks.path()).output().unwrap()
    };
    let ran = again();
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("was left unfinished"), "{stderr}");
    assert!(!marks.path().join("deployed").exists(), "{stderr}");
    // It is said once, and what was left comes to its end.
    let ran = again();
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(!stderr.contains("was left unfinished"), "{stderr}");
    let shown = place.say("--json runs --data kept").expect(0).json();
    assert_eq!(shown["runs"].as_array().map(Vec::len), Some(3), "{shown}");
    let old = &shown["runs"][2];
    assert!(
        !old["cancel"].is_null() || !old["outcome"].is_null(),
        "{old}"
    );
    assert!(!marks.path().join("deployed").exists());
}

// A server that is only stopped keeps its runs.
#[test]
fn runs_of_a_server_are_neither_executed_nor_ended() {
    // Whether they are of a repository or not.
    for repository in [Some("https://x.example/app.git"), None] {
        let place = Place::new();
        pipeline(&place, "jobs:\n  unit:\n    steps: ['true']\n");
        let server = place.server(&[]);
        let mut body = serde_json::json!({
            "jobs": [{"name": "deploy", "job_spec": {"steps": ["true"]}}],
        });
        if let Some(repository) = repository {
            body["repository"] = repository.into();
        }
        let (status, made) = server.ask("POST", "/api/v1/runs", &body);
        assert_eq!(status, 201, "{made}");
        server.process.kill9().unwrap();
        let ran = place.say("run --data data").expect(8);
        let run = made["run_id"].as_str().unwrap();
        let said = format!("{run} waits in");
        assert!(ran.stderr.contains(&said), "{}", ran.stderr);
        let shown = place
            .say(&format!("--json show {run} --data data"))
            .expect(0);
        assert_eq!(shown.json()["state"], "QUEUED", "{}", shown.stdout);
    }
}

#[test]
fn everything_means_what_asks_for_no_change_too() {
    let place = Place::new();
    pipeline(
        &place,
        "jobs:\n  docs:\n    if: changed(\"docs/**\")\n    steps: ['true']\n  code:\n    \
         if: '!changed(\"docs/**\")'\n    steps: ['true']\n",
    );
    for (arguments, count) in [("--all", 2), ("--job code", 1), ("--job docs", 1)] {
        let ran = place.say(&format!("--json run {arguments}")).expect(0);
        let jobs = ran.json()["jobs"].as_array().map(Vec::len);
        assert_eq!(jobs, Some(count), "{arguments}: {}", ran.stdout);
    }
}
