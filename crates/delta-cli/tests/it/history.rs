//! Looking at what ran: runs, show, logs, why, events, rerun, doctor, on a folder without a server.

use crate::support::{Place, comparable};

fn after_a_run() -> Place {
    let place = Place::new();
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  unit:\n    retry: {attempts: 2, on: [user_exit]}\n    \
         steps: ['echo hello; exit 4']\n  other:\n    steps: [echo fine]\n",
    );
    place.say("run --data .delta-ci").expect(1);
    place
}

#[test]
fn a_run_that_was_kept_can_be_looked_at_from_all_sides() {
    let place = after_a_run();
    let runs = place.say("runs").expect(0);
    let first = comparable(&runs.stdout);
    assert!(
        first
            .lines()
            .nth(1)
            .is_some_and(|line| line.starts_with("run_ID FAILED")),
        "{first}"
    );

    let run = place.say("show latest").expect(0);
    let shown = comparable(&run.stdout);
    assert!(
        shown.contains("unit FAILED 2 TIME job_ID_1 step 1: exit code 4"),
        "{shown}"
    );

    let job = comparable(&place.say("show latest/unit").expect(0).stdout);
    assert!(job.contains("attempts 2 of 2"), "{job}");
    assert!(job.contains("exit code 4"), "{job}");
    assert!(
        job.contains("step echo hello; exit 4 TIME, exit code 4"),
        "{job}"
    );

    let why = comparable(&place.say("why latest/unit").expect(0).stdout);
    assert!(why.starts_with("unit is FAILED"), "{why}");
    assert!(
        why.contains("step 1 `echo hello; exit 4` ended with exit code 4"),
        "{why}"
    );
    assert!(
        why.contains("Attempt 1 is FAILED: step 1 ended with exit code 4."),
        "{why}"
    );

    let logs = place.say("logs latest/unit").expect(0);
    assert!(
        logs.stdout.lines().any(|line| line == "hello"),
        "{}",
        logs.stdout
    );
    let raw = place.say("logs latest/other --raw").expect(0);
    assert!(
        raw.stdout.lines().any(|line| line == "fine"),
        "{}",
        raw.stdout
    );

    let events = place.say("--json events latest").expect(0);
    let versions: Vec<u64> = events
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|event| event["version"].as_u64().unwrap())
        .collect();
    let expected: Vec<u64> = (1..=versions.len() as u64).collect();
    assert_eq!(versions, expected);
    assert!(versions.len() > 5);
}

#[test]
fn an_abbreviated_id_is_enough_when_it_is_unique() {
    let place = after_a_run();
    let run = place.say("--json show latest").expect(0).json();
    let id = run["run_id"].as_str().unwrap();
    let short = &id[..16];
    let again = place.delta(["--json", "show", short]).expect(0).json();
    assert_eq!(again["run_id"], run["run_id"]);
    place.say("show run_ffffffff").expect(5);
    place.say("show nonsense!").expect(5);
    place.say("show latest/nobody").expect(5);
    let ran = place.say("artifacts get latest").expect(2);
    assert!(
        ran.stderr.contains("its jobs are unit, other"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_rerun_names_the_run_it_repeats() {
    let place = after_a_run();
    let first = place.say("--json show latest").expect(0).json();
    let again = place.say("--json rerun latest --failed").expect(0).json();
    assert_eq!(again["rerun_of"], first["run_id"], "{again}");
    assert_eq!(again["run_attempt"], 2);
    let jobs: Vec<&str> = again["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|job| job["kept_from"].is_null())
        .filter_map(|job| job["name"].as_str())
        .collect();
    assert_eq!(jobs, ["unit"]);
    let shown = place.say("show latest").expect(0).stdout;
    let kept = first["jobs"][1]["job_id"].as_str().unwrap();
    assert!(shown.contains(&format!("kept from {kept}")), "{shown}");
    let log = place.say("logs latest/other").expect(0).stdout;
    assert_eq!(
        log, "--- step 1: echo fine\nfine\n",
        "the log is that of the job it was kept from"
    );
    let old = first["run_id"].as_str().unwrap();
    let shown = place.delta(["show", old]).expect(0).stdout;
    let new = again["run_id"].as_str().unwrap();
    assert!(shown.contains(&format!("run again as  {new}")), "{shown}");
    let slip = place.say("rerun latest --job unti").expect(8);
    assert!(slip.stderr.contains("has not ended"), "{}", slip.stderr);
    // It waits for an agent, and says so; then it is canceled.
    place.say("why latest/unit").expect(0);
    place.say("cancel latest").expect(0);
    let view = place.say("--json show latest").expect(0).json();
    assert_eq!(view["outcome"], "CANCELED");
}

#[test]
fn a_damaged_database_is_called_damaged() {
    let place = Place::new();
    std::fs::create_dir(place.path().join("data")).unwrap();
    place.write("data/delta-ci.db", &"not a database ".repeat(1000));
    for command in ["doctor", "runs"] {
        let ran = place.delta([command, "--data", "data"]).expect(70);
        assert!(ran.stderr.contains("is damaged"), "{}", ran.stderr);
    }
}

#[test]
fn the_doctor_finds_nothing_after_a_run() {
    let place = after_a_run();
    let ran = place.say("--json doctor").expect(0).json();
    assert_eq!(ran["different"], 0, "{ran}");
    assert_eq!(ran["runs"], 1);
    place.say("doctor --data nowhere").expect(5);
    // Beside a running server, too.
    let server = Place::new();
    let running = server.server(&[]);
    running.submit(&["true"]);
    let ran = server.say("--json doctor --data data").expect(0).json();
    assert_eq!((&ran["different"], &ran["runs"]), (&0.into(), &1.into()));
}
