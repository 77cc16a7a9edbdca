//! How many tests the jobs of found projects ran: counted where a tool says so, and nowhere else.

use serde_json::Value;

use crate::plan::repository;
use crate::support::{Place, Ran};

/// A stand-in for a tool that is not on this machine, which says this much and succeeds.
fn stand_in(place: &Place, name: &str, says: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let folder = place.path().join("bin");
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join(name);
    std::fs::write(&file, format!("#!/bin/sh\ncat <<'END'\n{says}\nEND\n")).expect("a file");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    folder
}

/// Runs one job of what is found, with these programs first.
fn run_job(place: &Place, job: &str, programs: &std::path::Path) -> (Ran, Value) {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = place
        .command()
        .args(["--json", "run", "--job", job])
        .env("PATH", format!("{}:/usr/bin:{path}", programs.display()))
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .expect("the binary runs");
    let ran = Ran {
        exit: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    let view: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
    (ran, view["jobs"][0].clone())
}

/// tox takes environments that are not available for a success.
#[test]
fn a_test_run_in_which_no_environment_was_available_fails() {
    let place = repository("python-uv-tox");
    let nothing = "  py: SKIP (0.04 seconds)\n  congratulations :) (0.11 seconds)";
    let (ran, job) = run_job(&place, "test", &stand_in(&place, "uv", nothing));
    assert_eq!(ran.exit, 1, "{}", ran.shown());
    assert_eq!(job["cause"], "no_tests", "{}", ran.shown());
    let summary = job["summary"].as_str().unwrap_or_default();
    assert_eq!(summary, "no test ran, as its tool says");
    let tests = "===== 297 passed, 3 skipped in 1.20s =====\n  congratulations :) (2.11 seconds)";
    let (ran, job) = run_job(&place, "test", &stand_in(&place, "uv", tests));
    assert_eq!(ran.exit, 0, "{}", ran.shown());
    assert_eq!(job["summary"], "1 step succeeded; 297 tests ran");
}

/// A tool that fails as it found no test is no failure of some command, and another failure is.
#[test]
fn a_tool_that_fails_for_want_of_tests_says_so() {
    for (tool, says, code, cause) in [
        ("pytest", "=== no tests ran in 0.01s ===", 5, "no_tests"),
        ("pytest", "=== no tests ran in 0.01s ===", 4, "user_exit"),
        ("pytest", "=== 1 error in 0.01s ===", 5, "user_exit"),
        ("jest", "No tests found, exiting with code 1", 1, "no_tests"),
        (
            "mocha",
            "Error: No test files found: \"test\"",
            1,
            "no_tests",
        ),
    ] {
        let place = Place::new();
        place.write("Makefile", &format!("test:\n\t{tool}\n"));
        let programs = stand_in(
            &place,
            tool,
            &format!("{says}\nEND\nexit {code}\ncat <<'END'"),
        );
        let (ran, job) = run_job(&place, "test", &programs);
        assert_eq!(ran.exit, 1, "{}", ran.shown());
        assert_eq!(job["cause"], cause, "{tool} {code}: {}", ran.shown());
    }
    let place = Place::new();
    let steps = "[\"true\", \"echo NO TESTS RAN; exit 5\"]";
    let job = format!("jobs:\n  unit:\n    count_tests: output\n    steps: {steps}\n");
    place.write(".delta-ci.yaml", &job);
    let (ran, job) = run_job(&place, "unit", place.path());
    assert_eq!(job["cause"], "no_tests", "{}", ran.shown());
    let summary = job["summary"].as_str().unwrap_or_default();
    assert!(summary.contains("exit code 5: no test ran"), "{summary}");
    assert_eq!(job["failure"]["exit_code"], 5, "{job}");
}

/// `go test` has a line for each package, and tests are not packages.
#[test]
fn packages_of_go_are_not_called_tests() {
    let place = Place::new();
    place.write("Makefile", "test:\n\tgo test ./...\n");
    let run = |says: &str| run_job(&place, "test", &stand_in(&place, "go", says)).1;
    let job = run("ok  \ta\t0.1s\n?   \tb\t[no test files]");
    assert_eq!(job["summary"], "1 step succeeded; 1 package tested");
    let job = run("?   \ta\t[no test files]\nok  \tb\t0.1s [no tests to run]");
    assert_eq!(job["cause"], "no_tests", "{job}");
}

/// A name in a comment, in a message or in another word is no tool that says how many tests ran.
#[test]
fn a_clean_tree_is_not_red_for_the_name_of_a_tool() {
    for recipe in [
        "# not by pytest\n\t@sh ./unittests",
        "@echo no pytest here; sh ./unittests",
        "sh ./unittests | sed s/x/y/",
    ] {
        let place = Place::new();
        place.write("Makefile", &format!("test:\n\t{recipe}\n"));
        place.write("unittests", "echo all is well\n");
        let planned = place.say("plan").expect(0).stdout;
        assert!(planned.contains("tests not counted"), "{planned}");
        let ran = place.say("run").expect(0);
        assert!(ran.stdout.contains("tests not counted"), "{}", ran.shown());
    }
    let place = Place::new();
    place.write("unittests.js", "console.log('all is well')\n");
    let script = "node unittests.js | node -e 'process.stdin.pipe(process.stdout)'";
    let scripts = serde_json::json!({"scripts": {"test": script}});
    place.write("package.json", &scripts.to_string());
    place.say("run").expect(0);
}

/// Tests that Cargo runs are run wherever they stand, and those of another machine make none red.
#[test]
fn tests_of_a_crate_run_wherever_cargo_finds_them() {
    let test = "#[test]\nfn a() {}\n";
    let crate_of = |manifest: &str, files: &[(&str, &str)]| {
        let place = Place::new();
        let head = "[package]\nname = \"a\"\nversion = \"0.1.0\"\nedition = \"2021\"\n";
        place.write("Cargo.toml", &format!("{head}{manifest}"));
        for (name, text) in files {
            let path = place.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            std::fs::write(path, text).expect("a file");
        }
        place
    };
    let macros = "macro_rules! make {\n    ($a:ident) => {\n        #[test]\n        fn $a() {}\n    \
                  };\n}\n#[cfg(test)]\nmake!(a);\n";
    for (manifest, files, told) in [
        (
            "[lib]\npath = \"lib/a.rs\"\n",
            &[("lib/a.rs", test)][..],
            "1 test ran",
        ),
        (
            "[[test]]\nname = \"x\"\npath = \"checks/x.rs\"\n",
            &[("src/lib.rs", ""), ("checks/x.rs", test)],
            "1 test ran",
        ),
        ("", &[("src/lib.rs", macros)], "tests not counted"),
        (
            "",
            &[("src/lib.rs", "#[cfg(windows)]\n#[test]\nfn a() {}\n")],
            "tests not counted",
        ),
        (
            "[lib]\ntest = false\n",
            &[("src/lib.rs", test)],
            "tests not counted",
        ),
    ] {
        let place = crate_of(manifest, files);
        let (ran, job) = run_job(&place, "test", place.path());
        let wanted = format!("1 step succeeded; {told}");
        assert_eq!(job["summary"], wanted, "{manifest} {}", ran.shown());
    }
}

/// The runner of node finds no file, and is content.
#[test]
fn a_runner_that_finds_no_test_fails_by_its_report() {
    let place = repository("npm");
    let file = place.path().join("test/greet.test.js");
    std::fs::rename(file, place.path().join("greeting.js")).expect("a file");
    let (ran, job) = run_job(&place, "test", place.path());
    assert_eq!(job["cause"], "no_tests", "{}", ran.shown());
    let place = repository("cargo");
    let (ran, job) = run_job(&place, "test", place.path());
    assert_eq!(
        job["summary"],
        "1 step succeeded; 2 tests ran",
        "{}",
        ran.shown()
    );
    std::fs::write(
        place.path().join("src/lib.rs"),
        "#[test]\n#[cfg_attr(not(any()), ignore)]\nfn a() {}\n",
    )
    .expect("x");
    let (ran, job) = run_job(&place, "test", place.path());
    assert_eq!(job["cause"], "no_tests", "{}", ran.shown());
    assert_eq!(job["summary"], "no test ran: 1 was skipped");
    // Whoever ignores all of them has said that none is to run.
    let ignored = "#[test]\n#[ignore]\nfn a() {}\n";
    std::fs::write(place.path().join("src/lib.rs"), ignored).expect("x");
    let (ran, job) = run_job(&place, "test", place.path());
    assert_eq!(ran.exit, 0, "{}", ran.shown());
    assert_eq!(job["summary"], "1 step succeeded; tests not counted");
}

/// Where nobody can tell how many tests ran, that is said before, at the end and afterwards.
#[test]
fn tests_that_cannot_be_counted_are_said_not_to_be() {
    let place = repository("make");
    let planned = place.say("plan").expect(0).stdout;
    assert!(planned.contains("tests not counted"), "{planned}");
    let ran = place.say("run --data data").expect(0);
    let said = |text: &str| {
        text.lines()
            .any(|it| it.contains("SUCCEEDED") && it.contains("not counted"))
    };
    assert!(said(&ran.stdout), "{}", ran.shown());
    let shown = place.say("show latest --data data").expect(0).stdout;
    assert!(said(&shown), "{shown}");
    let job = place.say("show latest/test --data data").expect(0).stdout;
    assert!(job.contains("1 step succeeded; tests not counted"), "{job}");
}

/// A pipeline file asks for it by one key.
#[test]
fn a_job_of_a_file_may_ask_for_tests_to_be_counted() {
    let place = Place::new();
    let run = |step: &str, more: &str| {
        let job = format!("jobs:\n  unit:\n    count_tests: {more}\n    steps: [\"{step}\"]\n");
        place.write(".delta-ci.yaml", &job);
        let ran = place.say("--json run");
        (ran.exit, ran.json()["jobs"][0].clone())
    };
    let (exit, job) = run("echo 0 passed in 0.01s", "output");
    assert_eq!((exit, &job["cause"]), (1, &Value::from("no_tests")));
    // A form that nobody knows has not said that there was none.
    let (exit, job) = run("echo all 3 checks are fine", "output");
    let words = "1 step succeeded; tests not counted: nothing that was printed tells how many ran";
    assert_eq!((exit, &job["summary"]), (0, &Value::from(words)));
    let (exit, job) = run("echo 'test result: ok. 2 passed; 0 failed'", "output");
    assert_eq!(
        (exit, &job["summary"]),
        (0, &Value::from("1 step succeeded; 2 tests ran"))
    );
    let (exit, job) = run(
        "echo 'test result: ok. 2 passed; 0 failed'; exit 3",
        "output",
    );
    assert_eq!((exit, &job["cause"]), (1, &Value::from("user_exit")));
    place.write(
        ".delta-ci.yaml",
        "jobs: {a: {count_tests: report, steps: [x]}}",
    );
    let told = place.say("plan").stderr;
    assert!(
        told.contains("counts in reports, and `results` names none"),
        "{told}"
    );
}
