//! Repositories without a pipeline file: planned, written down, and executed for real.

use serde_json::Value;

use crate::support::{Place, Ran, git, workspace};

/// The files of a fixture, in a folder of their own.
pub fn repository(name: &str) -> Place {
    let place = Place::new();
    let fixtures = workspace().join("tests/fixtures/repositories");
    let text = std::fs::read_to_string(fixtures.join(format!("{name}.repo"))).expect("a fixture");
    for file in format!("\n{text}").split("\n== ").skip(1) {
        let (path, text) = file.split_once('\n').unwrap_or((file, ""));
        let path = place.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        std::fs::write(path, format!("{}\n", text.trim_end_matches('\n'))).expect("a file");
    }
    place
}

/// A checkout with one commit on `main`.
pub fn checkout(name: &str) -> Place {
    let place = repository(name);
    git(place.path(), &["init", "-q", "-b", "main"]);
    git(place.path(), &["add", "-A"]);
    git(place.path(), &["commit", "-q", "-m", "one"]);
    place
}

/// Runs what is found, and says how each job ended.
fn execute(place: &Place) -> (Ran, Vec<(String, String)>) {
    let path = std::env::var("PATH").unwrap_or_default();
    // The machine's own Python has pytest; one of a version manager may not. What it has counts as
    // installed in the job's own folder, too, so that nothing is fetched.
    let output = place
        .command()
        .args(["--json", "run", "--data", "data"])
        .env("PATH", format!("/usr/bin:{path}"))
        .env("PYTHONPATH", "/usr/lib/python3/dist-packages")
        .env("PIP_NO_INDEX", "1")
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .expect("the binary runs");
    let ran = Ran {
        exit: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    let view: Value = serde_json::from_str(&ran.stdout).unwrap_or_default();
    let word = |job: &Value, key: &str| job[key].as_str().unwrap_or_default().to_owned();
    let jobs = view["jobs"].as_array().into_iter().flatten();
    let jobs = jobs
        .map(|job| (word(job, "name"), word(job, "state")))
        .collect();
    (ran, jobs)
}

/// Every job of a fixture succeeds, and so many results of tests are there.
#[track_caller]
fn executes(name: &str, jobs: &[&str], tests: usize) {
    let place = repository(name);
    let (ran, ended) = execute(&place);
    let wanted = jobs
        .iter()
        .map(|job| ((*job).to_owned(), "SUCCEEDED".to_owned()));
    assert_eq!(ended, wanted.collect::<Vec<_>>(), "{}", ran.shown());
    let ran = ran.expect(0);
    let told = place.say("--json tests latest --data data");
    let cases = told.stdout.matches("\"name\": \"").count();
    let passed = told
        .stdout
        .to_lowercase()
        .matches("\"status\": \"pass")
        .count();
    assert_eq!(
        passed,
        tests,
        "{cases} cases\n{}\n{}",
        told.shown(),
        ran.shown()
    );
}

#[test]
fn a_cargo_project_is_found_and_executed() {
    executes("cargo", &["fmt", "test"], 0);
}

#[test]
fn an_npm_project_is_found_and_executed_with_its_results() {
    executes("npm", &["lint", "test"], 1);
}

#[test]
fn a_python_project_is_found_and_executed_with_its_results() {
    executes("python", &["test"], 1);
}

#[test]
fn a_python_project_without_pytest_is_found_executed_and_counted() {
    executes("python-unittest", &["test"], 0);
}

#[test]
fn a_makefile_is_found_and_executed() {
    executes("make", &["lint", "test"], 0);
}

#[test]
fn a_failing_test_of_a_found_job_fails_the_run() {
    let place = repository("make");
    std::fs::write(place.path().join("hello.sh"), "echo Hello, Bob\n").expect("a file");
    let (ran, ended) = execute(&place);
    assert_eq!(ended[1], ("test".to_owned(), "FAILED".to_owned()));
    ran.expect(1);
}

#[test]
fn a_folder_with_nothing_to_run_says_what_was_looked_for() {
    let place = repository("empty");
    for command in ["plan", "run"] {
        let ran = place.say(command).expect(5);
        for words in [
            "EMPTY_PLAN",
            "Cargo.toml",
            "package.json",
            "go.mod",
            "is data of tests",
            "delta-ci init",
        ] {
            assert!(ran.stderr.contains(words), "{words}: {}", ran.stderr);
        }
    }
    git(place.path(), &["init", "-q"]);
    let below = place.path().join("below");
    std::fs::create_dir_all(&below).expect("a folder");
    let alone = place.say("plan below").expect(5).stderr;
    assert!(
        alone.contains("delta-ci init leaves .delta-ci.yaml"),
        "{alone}"
    );
    let file = "jobs: {build: {steps: [make]}}";
    std::fs::write(place.path().join(".delta-ci.yaml"), file).expect("a file");
    let told = place.say("plan below").expect(5).stderr;
    assert!(told.contains(".delta-ci.yaml is above"), "{told}");
}

/// What is seen and not understood is named, in words and for programs; the file that is left to
/// edit fails until somebody says what it is to do.
#[test]
fn what_is_not_understood_is_named_and_left_to_be_written() {
    let place = repository("strangers");
    let told = place.say("plan").expect(5).stderr;
    for words in [
        "pom.xml: is of Maven",
        "configure.ac: is of autotools",
        "mvn --batch-mode",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let mixed = repository("mixed");
    let told = mixed.say("--json plan").expect(0).json();
    let left_out = told["left_out"].to_string();
    assert!(
        left_out.contains("is of PHP, which is not understood"),
        "{told}"
    );
    place.say("init").expect(0);
    let file = std::fs::read_to_string(place.path().join(".delta-ci.yaml")).expect("written");
    assert!(file.contains("#   app/App.csproj: is of .NET"), "{file}");
    let ran = place.say("run");
    assert!(ran.stdout.contains("FAILED"), "{}", ran.shown());
}

/// A tool that a plan calls is a requirement like a runtime.
#[test]
fn a_tool_that_is_not_here_is_said_before_anything_runs() {
    let place = repository("make-tidy");
    let folder = place.path().join("no-tools");
    std::fs::create_dir_all(&folder).expect("a folder");
    for name in ["make", "sh", "git"] {
        let found = ["/usr/bin", "/bin"]
            .iter()
            .map(|it| std::path::Path::new(it).join(name));
        let found = found.into_iter().find(|it| it.exists()).expect("a program");
        std::os::unix::fs::symlink(found, folder.join(name)).expect("a link");
    }
    let output = place
        .command()
        .args(["run", "--job", "lint"])
        .env("PATH", &folder)
        .output()
        .expect("the binary runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_ne!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("clang-tidy"), "{told}");
    assert!(told.contains("apt install clang-tidy"), "{told}");
    assert!(!told.contains("not found"), "{told}");
}

#[test]
fn what_init_writes_is_what_was_planned() {
    let place = repository("npm-workspaces");
    let found = place.say("--json plan --all").expect(0).json();
    place.say("init").expect(0);
    let written = place.say("--json plan").expect(0).json();
    assert_eq!(found["run"], written["run"]);
    assert_eq!(found["from"], "discovery");
    let ran = place.say("init").expect(8);
    assert!(ran.stderr.contains("--force replaces it"), "{}", ran.stderr);
    place.say("init --force").expect(0);
    let file = std::fs::read_to_string(place.path().join(".delta-ci.yaml")).expect("written");
    assert_eq!(place.say("init --print").expect(0).stdout, file);
}

#[test]
fn what_init_writes_leaves_out_what_discovery_leaves_out() {
    let place = checkout("monorepo");
    place.say("init").expect(0);
    let file = std::fs::read_to_string(place.path().join(".delta-ci.yaml")).expect("written");
    let condition = "    if: 'changed(\".delta-ci.yaml\", \"Makefile\", \"web\")'\n";
    assert!(file.contains(condition), "{file}");
    // What several jobs have in common stands once.
    assert!(file.contains("\ntemplates:\n"), "{file}");
    let long = file
        .lines()
        .filter(|line| line.len() > 60 && !line.starts_with('#'));
    let long: Vec<&str> = long.collect();
    let once: std::collections::HashSet<&&str> = long.iter().collect();
    assert_eq!(once.len(), long.len(), "{file}");
    git(place.path(), &["add", "-A"]);
    git(place.path(), &["commit", "-q", "-m", "two"]);
    git(place.path(), &["checkout", "-q", "-b", "topic"]);
    std::fs::write(place.path().join("web/src/index.js"), "// x\n").expect("a file");
    let view = place.say("--json plan").expect(0).json();
    let jobs = view["run"]["jobs"].as_array().cloned().unwrap_or_default();
    let names: Vec<&str> = jobs.iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["lint", "test-web", "build"], "{view}");
    let reason = view["omitted"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("nothing changed under"), "{view}");
}

#[test]
fn the_schema_that_is_printed_is_the_one_that_is_published() {
    let printed = Place::new().say("plan --schema").expect(0);
    let published = workspace().join("protocol/pipeline/v1.schema.json");
    assert_eq!(
        printed.stdout,
        std::fs::read_to_string(published).expect("a schema")
    );
}

#[test]
fn a_change_narrows_the_plan_and_every_reason_is_said() {
    let place = checkout("monorepo");
    let clean = place.say("plan").expect(0);
    assert!(
        clean
            .stderr
            .contains("nothing differs from main: everything runs"),
        "{clean:?}"
    );
    git(place.path(), &["checkout", "-q", "-b", "topic"]);
    let source = "#[test]\nfn it_opens_twice() {}\n";
    std::fs::write(place.path().join("backend/crates/db/src/lib.rs"), source).expect("a file");
    let ran = place.say("plan").expect(0);
    for line in [
        "● test-backend  backend/Cargo.toml: tests; backend/crates/api depends on \
         backend/crates/db, which changed; backend/crates/db changed (src/lib.rs)",
        "$ cargo test --locked -p api -p db",
        "- test-web  nothing changed in it or in what it depends on",
    ] {
        assert!(ran.stdout.contains(line), "{line}\n{}", ran.stdout);
    }
    let all = place.say("--json plan --all").expect(0).json();
    assert_eq!(
        all["run"]["jobs"].as_array().map(Vec::len),
        Some(6),
        "{all}"
    );
}

const WHOLE: &str = "\
name: CI
jobs:
  unit:
    matrix: {v: [1, 2]}
    image: box:1
    container: {services: [{name: db, image: 'postgres:16', ready: {port: 5432}}]}
    timeout: 20m
    requires: [ubuntu-latest]
    caches: [{key: 'k-{lock_hash}', paths: [target]}]
    artifacts: dist/**
    secrets: [TOKEN]
    steps:
      - |
        first line
        second line
  lint: {steps: [make lint]}
";

#[test]
fn a_plan_shows_what_each_job_is_planned_with() {
    let place = Place::new();
    std::fs::write(place.path().join(".delta-ci.yaml"), WHOLE).expect("a file");
    let ran = place.say("plan").expect(0);
    let line = "image box:1; services db (postgres:16); requires ubuntu-latest; at most 20m; \
                caches target; keeps dist/**; secrets TOKEN";
    assert!(ran.stdout.contains(line), "{}", ran.stdout);
    assert!(ran.stdout.contains("● unit (v=1)\n"), "{}", ran.stdout);
    assert_eq!(
        ran.stderr.matches("it has no condition").count(),
        1,
        "{}",
        ran.shown()
    );
    assert!(
        !ran.stdout.contains("it has no condition"),
        "{}",
        ran.stdout
    );
    let full = place.say("plan --job unit").expect(0);
    for wanted in [
        "● unit (v=1)",
        "● unit (v=2)",
        "second line",
        "matrix: v = 2",
        "key: k-",
    ] {
        assert!(full.stdout.contains(wanted), "{wanted}\n{}", full.stdout);
    }
    assert!(!full.stdout.contains("lint"), "{}", full.stdout);
    let none = place.say("plan --job lnit").expect(5);
    assert!(
        none.stderr.contains("did you mean `lint`?"),
        "{}",
        none.stderr
    );
    let json = place.say("--json plan").expect(0).json();
    assert_eq!(json["cells"]["unit (v=2)"]["values"]["v"], "2", "{json}");
    assert_eq!(json["warnings"][0]["line"], 1, "{json}");
}

#[test]
fn a_warning_is_shown_and_fails_nothing() {
    let place = Place::new();
    let text = "name: CI\njobs:\n  a: {steps: ['true'], name: The first}\n";
    std::fs::write(place.path().join(".delta-ci.yaml"), text).expect("a file");
    for command in ["plan", "run"] {
        let ran = place.say(command).expect(0);
        let said = "1:1: warning: `name` of the file means nothing here\n1 | name: CI\n  | ^^^^\n";
        assert!(ran.stderr.contains(said), "{command}: {}", ran.shown());
        assert!(
            ran.stderr.contains("`name` of job `a` means nothing here"),
            "{}",
            ran.shown()
        );
    }
}

#[test]
fn a_cache_that_leaves_its_place_is_pointed_at() {
    let place = Place::new();
    let text = "jobs:\n  a:\n    steps: ['true']\n    caches: [{key: k, paths: [../up, /abs]}]\n";
    std::fs::write(place.path().join(".delta-ci.yaml"), text).expect("a file");
    let ran = place.say("plan").expect(2);
    for wanted in [
        "4:31: caches[0].paths[0]: must be",
        "4:38: caches[0].paths[1]: must be",
    ] {
        assert!(ran.stderr.contains(wanted), "{wanted}\n{}", ran.stderr);
    }
}

#[test]
fn a_change_of_documentation_is_a_success_without_jobs() {
    let place = checkout("documentation-only");
    git(place.path(), &["checkout", "-q", "-b", "topic"]);
    std::fs::write(place.path().join("docs/guide.md"), "# More\n").expect("a file");
    let ran = place.say("run").expect(0);
    assert!(ran.stdout.contains("nothing to run"), "{}", ran.shown());
    assert!(
        ran.stderr.contains("- test  only documentation changed"),
        "{}",
        ran.shown()
    );
    let view = place.say("--json run").expect(0).json();
    assert_eq!(view["cause"], "NOTHING_TO_RUN");
}

#[test]
fn a_monorepo_is_made_and_planned_by_the_bench() {
    let ran = Place::new()
        .say("--json bench plan --packages 40 --files 400")
        .expect(0);
    assert_eq!(ran.stdout.lines().count(), 5, "{}", ran.shown());
    for line in ran.stdout.lines() {
        let told: Value = serde_json::from_str(line).expect("JSON");
        assert!(told["jobs"].as_u64().is_some_and(|it| it > 0), "{line}");
    }
}

// This project's own pipeline file: its jobs are found, and what they call is there.
#[test]
fn the_projects_own_file_plans_its_checks() {
    let (place, root) = (Place::new(), workspace());
    let shown = place.delta(["--json", "plan", "--all", root.to_str().unwrap()]);
    let plan = shown.expect(0).json();
    let jobs = plan["run"]["jobs"].as_array().unwrap();
    let names: Vec<&str> = jobs.iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["fmt", "house-rules", "clippy", "unit"]);
    let chores = std::fs::read_to_string(root.join("xtask/src/main.rs")).unwrap();
    let mut called = Vec::new();
    for step in jobs
        .iter()
        .flat_map(|it| it["job_spec"]["steps"].as_array().unwrap())
    {
        let script = step.as_str().or(step["run"].as_str()).unwrap();
        let words: Vec<&str> = script.split_whitespace().collect();
        assert!(matches!(words[0], "cargo" | "git"), "{script}");
        for pair in words.windows(2).filter(|pair| pair[0] == "-p") {
            let there = ["crates", "."].map(|it| root.join(it).join(pair[1]).is_dir());
            assert!(there.contains(&true), "{script}: there is no {}", pair[1]);
        }
        if let Some((_, chore)) = script.split_once("-p xtask -- ") {
            assert!(chores.contains(&format!("[\"{chore}\"] =>")), "{script}");
            called.push(chore.to_owned());
        }
    }
    assert_eq!(called, ["tidy", "deps", "purity", "coverage"]);
}
