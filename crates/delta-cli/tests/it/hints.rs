//! What is told beside an end: what was not tried, which tests failed, what is missing, and what to
//! type.

use serde_json::json;

use crate::support::{Place, comparable, git};

/// A success says nothing of what was seen and not understood.
#[test]
fn a_run_of_jobs_that_were_found_names_what_it_left_out() {
    let place = Place::new();
    place.write("Makefile", "test:\n\ttrue\n");
    place.write("CMakeLists.txt", "project(a)\n");
    std::fs::create_dir_all(place.path().join(".github/workflows")).expect("a folder");
    place.write(".github/workflows/a.yml", "on: push\n");
    let line = "remarks on CMakeLists.txt, .github/workflows; delta-ci plan says them\n";
    let ran = place.say("run --all").expect(0);
    assert!(ran.stderr.contains(line), "{}", ran.shown());
    let planned = place.say("--json plan --all").expect(0).json();
    assert_eq!(planned["left_out"].as_array().map(Vec::len), Some(2));
    let ran = place.say("--json run --all").expect(0).json();
    assert_eq!(ran["left_out"], planned["left_out"]);
}

/// There are remarks on what runs, too, and several on one file.
#[test]
fn a_run_names_each_file_once_that_there_are_remarks_on() {
    let place = Place::new();
    place.write("Makefile", "test:\n\ttrue\ncheck-a:\n\ttrue\n");
    let scripts = json!({"scripts": {"test": "true", "check:a": "true"}});
    place.write("package.json", &scripts.to_string());
    let planned = place.say("--json plan --all").expect(0).json();
    let remarks = planned["left_out"].as_array().expect("remarks");
    let names: Vec<_> = remarks.iter().map(|it| it["what"].clone()).collect();
    assert_eq!(names, ["package.json", "package.json", "Makefile"]);
    let ran = place.say("run --all").expect(0);
    let line = "remarks on package.json, Makefile; delta-ci plan says them\n";
    assert!(ran.stderr.contains(line), "{}", ran.shown());
    assert!(!ran.stderr.contains("seen and left out"), "{}", ran.shown());
}

/// What libtest prints of a test with a backtrace is longer than the last lines.
#[test]
fn a_test_that_only_its_tool_printed_is_named_everywhere() {
    let place = Place::new();
    let frames: Vec<String> = (0..30).map(|n| format!("  {n}: frame")).collect();
    let printed = format!(
        "running 1 test\ntest a::bad ... FAILED\n\nfailures:\n\n---- a::bad stdout ----\n\
         thread 'a::bad' panicked at src/lib.rs:3:5:\nboo\nstack backtrace:\n{}\n\n\
         failures:\n    a::bad\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; \
         0 measured; 0 filtered out\n",
        frames.join("\n")
    );
    place.write("printed", &printed);
    let job = "{count_tests: output, steps: [cat printed; exit 101]}";
    place.write(
        ".delta-ci.yaml",
        &format!("jobs:\n  unit: {job}\n  other: {job}\n"),
    );
    let ran = place.say("run --data .delta-ci").expect(1);
    let named = "FAIL a::bad\nboo\nat src/lib.rs:3:5\n";
    assert!(comparable(&ran.stdout).contains(named), "{}", ran.shown());
    for line in [
        "show latest",
        "show latest/unit",
        "why latest/unit",
        "why latest",
    ] {
        let told = comparable(&place.say(line).expect(0).stdout);
        assert!(told.contains(named), "{line}: {told}");
        let json = place.say(&format!("--json {line}")).expect(0).json();
        let failure = if json["jobs"].is_null() {
            &json["failure"]
        } else {
            &json["jobs"][1]["failure"]
        };
        let test = json!({"name": "a::bad", "status": "fail", "message": "boo\nat src/lib.rs:3:5"});
        assert_eq!(failure["tests"], json!([test]), "{line}: {json}");
        assert_eq!(
            failure["message"],
            "step 1 `cat printed; exit 101` ended with exit code 101"
        );
    }
    // Nobody knows how many passed, or what it did before.
    let listed = place.say("tests latest/unit").expect(0);
    let said = comparable(&format!("{}{}", listed.stdout, listed.stderr));
    assert!(said.contains("tests: 1 failed"), "{said}");
    let past = place.say("tests --history a::bad").expect(0);
    let said = format!("{said}{}{}", past.stdout, past.stderr);
    assert!(
        !said.contains("broken") && !said.contains("passed"),
        "{said}"
    );
}

#[test]
fn a_program_that_is_missing_is_named_below_the_last_lines() {
    let place = Place::new();
    place.write("Makefile", "all:\n\ta-tool-that-nobody-has x\n");
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  a: {steps: [a-tool-that-nobody-has]}\n  b: {steps: [make all]}\n",
    );
    let ran = place.say("run --data .delta-ci").expect(1);
    let hint = "hint: `a-tool-that-nobody-has` is not there where the job ran";
    assert_eq!(ran.stdout.matches(hint).count(), 2, "{}", ran.shown());
    let why = place.say("why latest").expect(0).stdout;
    assert_eq!(why.matches(hint).count(), 2, "{why}");
}

#[test]
fn a_secret_that_is_too_short_or_empty_is_named() {
    let place = Place::new();
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  a: {steps: ['true'], secrets: [TOKEN]}\n  \
         b: {steps: ['true'], secrets: [OTHER]}\n",
    );
    for (other, words) in [
        (
            "abc",
            "the variable OTHER, which job `b` asks for as a secret, has fewer than 6 bytes\n",
        ),
        ("", "job `b` asks for the secret `OTHER`, and there is none"),
    ] {
        let mut command = place.command();
        command
            .arg("run")
            .env("TOKEN", "abcdefgh")
            .env("OTHER", other);
        let output = command.output().expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains(words) && said.contains("next: export OTHER"),
            "{said}"
        );
    }
}

#[test]
fn the_log_of_a_job_that_waits_says_what_it_waits_for() {
    let place = Place::new();
    let server = place.server(&[]);
    let body = json!({"jobs": [
        {"name": "db", "job_spec": {"steps": ["true"]}},
        {"name": "after", "needs": ["db"], "job_spec": {"steps": ["true"]}},
    ]});
    let (status, run) = server.ask("POST", "/api/v1/runs", &body);
    assert_eq!(status, 201, "{run}");
    let said = place.say("logs latest/db --data data").expect(5).stderr;
    let words = "error: `db` has not begun, so there is no log yet\n  why: no agent has asked for \
                 work yet";
    assert!(said.contains(words), "{said}");
    assert!(said.contains("waits for it"), "{said}");
    let id = run["run_id"].as_str().expect("an id");
    place.delta(["cancel", id, "--data", "data"]).expect(0);
    assert_eq!(server.outcome(id), "CANCELED");
    let said = place.say("logs latest/db --data data").expect(5).stderr;
    assert!(
        said.contains("`db` never began, so there is no log"),
        "{said}"
    );
    // Nobody took an attempt up, so that none is told.
    let shown = comparable(&place.say("show latest/db --data data").expect(0).stdout);
    assert!(shown.contains("attempts 0 of 3"), "{shown}");
    assert!(
        !shown.contains("attempt 1") && shown.contains("cancel by"),
        "{shown}"
    );
}

#[test]
fn an_artifact_that_no_file_matches_is_told_at_the_end() {
    let place = Place::new();
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  a: {steps: ['true'], artifacts: ['out/**']}\n",
    );
    let ran = place.say("run --data .delta-ci").expect(0);
    let words = "no file matches the artifact `out/**`";
    assert!(ran.stdout.contains(words), "{}", ran.shown());
    let shown = place.say("show latest/a").expect(0).stdout;
    assert!(shown.contains(words), "{shown}");
}

/// Cells that look alike on a narrow terminal cannot be told apart.
#[test]
fn cells_of_a_matrix_differ_in_a_narrow_column() {
    let place = Place::new();
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  unit:\n    matrix: {python: ['3.11', '3.12'], db: [postgres]}\n    \
         steps: [echo hi]\n",
    );
    git(place.path(), &["init", "--quiet"]);
    for columns in [40, 60] {
        let shown = place.on_terminal(columns, "run --logs --slots 1");
        let lines = shown.lines().filter(|it| it.ends_with("| hi"));
        let mut lines: Vec<&str> = lines.collect();
        assert_eq!(lines.len(), 2, "{shown}");
        lines.dedup();
        assert_eq!(lines.len(), 2, "{shown}");
    }
}

#[test]
fn what_a_repository_lacks_names_its_flag() {
    let place = Place::new();
    let line = "repo add app --url http://127.0.0.1/app.git --forge gitea --data data";
    place.say("token create --role admin --data data").expect(0);
    place.write("secret", "long enough for a webhook's secret");
    let said = place.say(&format!("{line} --webhook-secret-file secret"));
    assert_ne!(said.exit, 0, "{}", said.shown());
    assert!(
        said.stderr.contains("--project OWNER/NAME"),
        "{}",
        said.shown()
    );
}

#[test]
fn a_token_of_the_wrong_role_is_told_which_one_is_needed() {
    let place = Place::new();
    let server = place.server(&[]);
    let made = place.say("token create --role user --data data").expect(0);
    place.write("token", &made.stdout);
    for line in ["token list", "secret list"] {
        let line = format!("{line} --server {} --token-file token", server.url);
        let said = place.say(&line).expect(7).stderr;
        let words = "this needs a token of role admin, and yours is a user token";
        assert!(said.contains(words), "{line}: {said}");
        assert!(!said.contains("--role user"), "{line}: {said}");
    }
}
