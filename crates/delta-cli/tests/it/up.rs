//! `delta-ci up`, started again and again in one folder: the same agent, and its jobs go on.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use delta_testkit::process::Spawn;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{PATIENCE, Place, ServerProcess, binary, workspace};

/// Its server and its agent, in `data`.
fn up(place: &Place) -> ServerProcess {
    up_with(place, &[])
}

fn up_with(place: &Place, more: &[&str]) -> ServerProcess {
    let data = place.path().join("data");
    let process = Spawn::new(binary())
        .args(["up", "--json", "--listen", "127.0.0.1:0", "--slots", "2"])
        .args(["--retention", "30d", "--startup-grace", "1s", "--data"])
        .arg(&data)
        .args(more)
        .current_dir(place.path())
        .spawn()
        .unwrap();
    let line = process.wait_for_line("listening", PATIENCE);
    let line = line.unwrap_or_else(|error| panic!("{error}: {}", process.stderr()));
    let said: Value = serde_json::from_str(&line).expect("one line of JSON");
    let url = said["listening"].as_str().expect("an address").to_owned();
    ServerProcess { process, url, data }
}

fn works(up: &ServerProcess) {
    let (run, _) = up.submit(&["true"]);
    assert_eq!(up.outcome(&run), "SUCCESS", "{}", up.process.stderr());
}

fn interrupt(up: &ServerProcess) {
    up.process.signal(Signal::INT).unwrap();
    let ended = up.process.wait(PATIENCE).unwrap();
    assert_eq!(ended.code(), Some(0), "{}", up.process.stderr());
}

fn token_file(place: &Place) -> PathBuf {
    place.path().join("data/agent/state/token")
}

fn agents(up: &ServerProcess) -> usize {
    let (_, agents) = up.ask("GET", "/api/v1/agents", &Value::Null);
    agents["agents"].as_array().expect("a list").len()
}

#[test]
fn up_works_again_in_the_same_folder_as_the_same_agent() {
    // A26
    let place = Place::new();
    let first = up(&place);
    works(&first);
    interrupt(&first);
    let token = std::fs::read(token_file(&place)).unwrap();
    let mode = std::fs::metadata(token_file(&place)).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let second = up(&place);
    works(&second);
    assert_eq!(agents(&second), 1);
    interrupt(&second);
    assert_eq!(std::fs::read(token_file(&place)).unwrap(), token);
    // Without it there is another one, and no other agent.
    std::fs::remove_file(token_file(&place)).unwrap();
    let third = up(&place);
    works(&third);
    assert_eq!(agents(&third), 1);
    assert_ne!(std::fs::read(token_file(&place)).unwrap(), token);
    let listed = place.say("token list --data data").expect(0);
    assert!(listed.stdout.contains("revoked"), "{}", listed.stdout);
    interrupt(&third);
}

#[test]
fn a_job_goes_on_when_up_is_killed_and_started_again() {
    // D7, promise 3
    let place = Place::new();
    let go = place.path().join("go");
    let wait = format!(
        "echo started; until [ -e '{}' ]; do sleep 0.05; done; echo done",
        go.display()
    );
    let first = up(&place);
    let (run, job) = first.submit(&[&wait]);
    first.until(&job, "RUNNING");
    first.process.kill9().unwrap();
    first.process.wait(PATIENCE).unwrap();
    let second = up(&place);
    place.write("go", "");
    assert_eq!(
        second.outcome(&run),
        "SUCCESS",
        "{}",
        second.process.stderr()
    );
    let attempts = second.job(&job)["attempts"].clone();
    assert_eq!(attempts.as_array().expect("a list").len(), 1, "{attempts}");
    assert_eq!(attempts[0]["losses"], 0, "{attempts}");
    let log = place.delta(["logs", &job, "--data", "data"]).expect(0);
    let started = log.stdout.lines().filter(|line| *line == "started");
    assert_eq!(started.count(), 1, "the same process: {}", log.stdout);
    assert!(log.stdout.ends_with("done\n"), "{}", log.stdout);
    interrupt(&second);
}

#[test]
fn up_keeps_no_more_of_a_log_than_it_is_told_to() {
    // D15
    let place = Place::new();
    let up = up_with(&place, &["--log-limit", "16KiB"]);
    let (run, job) = up.submit(&["seq 20000"]);
    assert_eq!(up.outcome(&run), "SUCCESS", "{}", up.process.stderr());
    let log = place.delta(["logs", &job, "--data", "data"]).expect(0);
    let mark = "bytes were dropped here: a log may have 16384 bytes";
    assert!(log.stdout.contains(mark), "{}", log.stdout);
    assert!(log.stdout.len() < 17_000, "{}", log.stdout.len());
    interrupt(&up);
}

#[test]
fn up_calls_functions_and_takes_steps_only_when_it_is_mixed() {
    // D6, A46
    let place = Place::new();
    let sdk = workspace().join("sdk/python");
    let text = format!(
        "pools:\n  py:\n    command: [python3, -m, delta_runner, 'tests.handlers:app']\n    \
         working_folder: {sdk}\n    env: {{PYTHONPATH: {sdk}}}\n",
        sdk = sdk.display()
    );
    place.write("runners.yaml", &text);
    let up = up_with(&place, &["--runners", "runners.yaml", "--mixed"]);
    let call = |name: &str| {
        let function = json!({"name": name, "params": {"to": "x"}});
        let job = json!({"name": "call", "max_attempts": 1, "job_spec": {"function": function}});
        let (status, run) = up.ask("POST", "/api/v1/runs", &json!({ "jobs": [job] }));
        assert_eq!(status, 201, "{run}");
        up.outcome(run["run_id"].as_str().expect("an id"))
    };
    assert_eq!(call("py#echo"), "SUCCESS", "{}", up.process.stderr());
    assert_eq!(call("py#nosuch"), "FAILED");
    works(&up);
    interrupt(&up);
}

#[test]
fn a_file_of_runner_pools_that_is_wrong_is_told_with_its_place() {
    let place = Place::new();
    place.write("runners.yaml", "pools: {py: {comand: [x]}}");
    let ran = place.say("up --runners runners.yaml").expect(2);
    for words in [
        "runners.yaml:1:14: unknown key `comand` in pool `py`",
        "= did you mean `command`?",
    ] {
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    place.say("up --mixed").expect(2);
}
