//! What is told at once: why a job failed, what one waits for, and what a name alone means.

use serde_json::json;

use crate::support::{Place, comparable, git};

/// Two jobs; the tests of `unit` fail in its third step, behind more lines than are repeated.
const PIPELINE: &str = r#"
jobs:
  unit:
    steps:
      - echo built
      - {run: "exit 9", continue_on_error: true}
      - name: tests
        run: |
          for n in $(seq 30); do echo "line $n"; done
          cp report.xml junit.xml
          exit 3
      - {run: echo cleaned, if: always}
    results: {format: junit, path: junit.xml}
  lint:
    steps: [cp passed.xml lint.xml]
    results: {format: junit, path: lint.xml}
"#;

const REPORT: &str = r#"<testsuite name="math">
  <testcase classname="tests.test_add" name="test_add">
    <failure message="assert -1 == 3">E  assert -1 == 3
E  where -1 = add(1, 2)</failure>
  </testcase>
  <testcase classname="tests.test_add" name="test_zero"><failure message="zero"/></testcase>
  <testcase classname="tests.test_add" name="test_one"/>
</testsuite>"#;

const PASSED: &str = r#"<testsuite><testcase name="tidy"/><testcase name="neat"/></testsuite>"#;

fn failing() -> Place {
    let place = Place::new();
    place.write(".delta-ci.yaml", PIPELINE);
    place.write("report.xml", REPORT);
    place.write("passed.xml", PASSED);
    place
}

/// The lines that everybody tells.
fn assert_told(text: &str) {
    let text = comparable(text);
    for line in [
        "step 3 `tests` ended with exit code 3",
        "FAIL tests.test_add › test_add",
        "assert -1 == 3",
        "FAIL tests.test_add › test_zero",
        "| line 30",
    ] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
    assert!(
        !text.contains('\u{1b}') && !text.contains("(user_exit"),
        "{text}"
    );
}

#[test]
fn a_failure_is_told_with_its_step_its_tests_and_its_last_lines() {
    let place = failing();
    let ran = place.say("run --data .delta-ci").expect(1);
    assert_told(&ran.stdout);
    let last = comparable(&ran.stdout);
    assert!(
        last.contains("✗ unit FAILED in TIME: step 3 `tests` ended with exit code 3\n"),
        "{last}"
    );
    assert!(
        last.contains("unit FAILED 1 TIME job_ID_1 step 3: exit code 3"),
        "{last}"
    );
    assert!(
        ran.stderr.contains("FAILED in") && ran.stderr.contains(": step 3 `tests` ended with"),
        "{}",
        ran.stderr
    );

    for command in ["show latest", "show latest/unit", "why latest/unit"] {
        let told = place.say(command).expect(0).stdout;
        let told = told.replace("ended with a failure (user_exit)", "");
        assert_told(&told);
    }
    let why = comparable(&place.say("why unit").expect(0).stdout);
    assert!(!why.contains("it has ended"), "{why}");
}

/// Behind the board, if there was time for one.
#[test]
fn a_failure_is_told_on_a_terminal() {
    let place = failing();
    let (exit, seen) = place.on_a_terminal("run", 100);
    assert_eq!(exit, 1, "{seen}");
    let plain: Vec<&str> = seen.split('\u{1b}').collect();
    let plain = plain.iter().enumerate().map(|(at, part)| match at {
        0 => part,
        _ => part
            .split_once(|c: char| c.is_ascii_alphabetic())
            .map_or("", |it| it.1),
    });
    assert_told(&plain.collect::<String>().replace('\r', ""));
}

#[test]
fn a_failure_on_the_left_of_a_pipe_is_one_where_bash_is_asked_for() {
    let place = Place::new();
    let run = |job: &str| {
        place.write(".delta-ci.yaml", &format!("jobs:\n  a: {job}\n"));
        place.say("run")
    };
    run("{steps: ['false | true']}").expect(0);
    let whole = run("{shell: bash, steps: ['[[ a == a ]]', 'false | true', 'echo NEVER']}");
    let whole = whole.expect(1);
    let line = "step 2 `false | true` ended with exit code 1";
    assert!(whole.stdout.contains(line), "{}", whole.shown());
    assert!(!whole.stdout.contains("| NEVER"), "{}", whole.shown());
    let one = run("{steps: ['false | true', {run: 'false | true', shell: bash}]}").expect(1);
    assert!(one.stdout.contains(line), "{}", one.shown());
    let python = run("{shell: python, steps: ['print(6 * 7)']}").expect(0);
    assert!(python.stdout.contains("a | 42"), "{}", python.shown());
}

#[test]
fn a_failure_is_told_to_programs() {
    let place = failing();
    let ran = place.say("--json run --data .delta-ci").expect(1).json();
    let job = place.say("--json why latest/unit").expect(0).json();
    let shown = place.say("--json show latest").expect(0).json();
    for failure in [
        &ran["jobs"][0]["failure"],
        &job["failure"],
        &shown["jobs"][0]["failure"],
    ] {
        assert_eq!(failure["message"], "step 3 `tests` ended with exit code 3");
        let step = &failure["step"];
        assert_eq!(
            (
                &step["number"],
                &step["name"],
                &step["command"],
                &step["exit_code"]
            ),
            (
                &json!(3),
                &json!("tests"),
                &json!(
                    "for n in $(seq 30); do echo \"line $n\"; done\ncp report.xml junit.xml\nexit 3"
                ),
                &json!(3)
            )
        );
        assert_eq!(failure["exit_code"], 3);
        assert_eq!(failure["tests_failed"], 2);
        assert_eq!(failure["tests"][0]["name"], "test_add");
        assert_eq!(failure["tests"][0]["message"], "assert -1 == 3");
        let lines = failure["last_lines"].as_array().expect("lines");
        assert_eq!(lines.last(), Some(&json!("line 30")), "{failure}");
    }
    assert_eq!(ran["jobs"][0]["cause"], "user_exit");
    assert!(ran["jobs"][1]["failure"].is_null(), "{ran}");
}

/// Each failure below its own step: one that is silent has no lines of another, and one of several
/// lines shows that there are more.
#[test]
fn the_last_lines_are_those_of_the_step_that_failed() {
    let place = Place::new();
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  silent: {steps: [echo of another step, exit 1]}\n  loud:\n    steps:\n      \
         - echo of another step\n      - |\n        echo '--- FAIL: TestAdd (0.00s)'\n        \
         exit 1\n",
    );
    git(place.path(), &["init", "--quiet"]);
    git(place.path(), &["add", "."]);
    git(place.path(), &["commit", "--quiet", "--message", "all"]);
    let ran = place.say("run --data .delta-ci --slots 1").expect(1);
    let told = "\
✗ silent FAILED in TIME: step 2 `exit 1` ended with exit code 1; it printed nothing

✗ loud FAILED in TIME: step 2 `echo '--- FAIL: TestAdd (0.00s)' …` ended with exit code 1
| --- FAIL: TestAdd (0.00s)
";
    let (_, end) = ran.stdout.split_once("✗").expect("a failure");
    let end = comparable(&format!("✗{end}"));
    assert!(end.starts_with(told), "{end}");
    let shown = comparable(&place.say("show latest").expect(0).stdout);
    assert!(shown.ends_with(told.trim_end()), "{shown}");
    let seen = place.on_terminal(80, "run");
    assert!(comparable(&seen).contains("it printed\nnothing"), "{seen}");
    let why = comparable(&place.say("why latest/silent").expect(0).stdout);
    let wanted = "silent is FAILED\nstep 2 `exit 1` ended with exit code 1; it printed nothing";
    assert!(why.starts_with(wanted), "{why}");
    assert!(!why.contains("of another step"), "{why}");
    for line in ["run", "show latest", "why latest/silent"] {
        let told = place.say(&format!("--json {line} --data .delta-ci"));
        assert!(told.stdout.contains("; it printed nothing"), "{line}");
        assert!(
            !told.stdout.contains("of another step\""),
            "{}",
            told.stdout
        );
    }
    let json = place.say("--json show latest/loud").expect(0).json();
    let script = "echo '--- FAIL: TestAdd (0.00s)'\nexit 1";
    assert_eq!(json["failure"]["step"]["command"], script);
}

#[test]
fn a_name_alone_is_the_newest_runs_job() {
    let place = failing();
    place.say("run --data .delta-ci").expect(1);
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  db: {steps: [echo the database]}\n  cells:\n    matrix: {n: [1, 2]}\n    \
         steps: [echo cell]\n  one:\n    matrix: {os: [linux]}\n    steps: [echo one]\n",
    );
    place.say("run --data .delta-ci").expect(0);
    let newest = place.say("--json show latest").expect(0).json();
    let newest = newest["run_id"].as_str().expect("an id").to_owned();

    // `db` could be the beginning of an id, too.
    for (command, words) in [
        ("logs db", "the database"),
        ("show db", "db  SUCCEEDED"),
        ("why db", "db is SUCCEEDED"),
        ("logs one", "one"),
        ("tests lint", "tidy"),
    ] {
        let ran = place.say(command).expect(0);
        assert!(ran.stdout.contains(words), "{command}: {}", ran.stdout);
        assert!(
            ran.stderr.contains("` of run_"),
            "{command}: {}",
            ran.stderr
        );
    }
    let said = place.say("logs db").expect(0).stderr;
    assert!(said.contains(&format!("`db` of {newest}")), "{said}");
    assert_eq!(place.say("--json why db").expect(0).stderr, "");

    let several = place.say("why cells").expect(2).stderr;
    assert!(
        several.contains(&format!("{newest}/cells (n=1)")) && several.contains("type one of these"),
        "{several}"
    );
    let nobody = place.say("logs nobody").expect(5).stderr;
    assert!(
        nobody.contains("there is no run or job `nobody`"),
        "{nobody}"
    );
}

#[test]
fn the_log_of_a_run_is_that_of_the_job_that_failed() {
    let place = failing();
    place.say("run --data .delta-ci").expect(1);
    let ran = place.say("logs latest").expect(0);
    assert!(ran.stdout.contains("line 17\n"), "{}", ran.stdout);
    assert!(
        ran.stderr.contains("the log of `unit`, which failed"),
        "{}",
        ran.stderr
    );
    place.write(
        ".delta-ci.yaml",
        "jobs: {a: {steps: [\"true\"]}, b: {steps: [\"true\"]}}\n",
    );
    place.say("run --data .delta-ci").expect(0);
    let ran = place.say("logs latest").expect(2);
    assert!(
        ran.stderr.contains("its jobs are a, b") && ran.stderr.contains("latest/NAME"),
        "{}",
        ran.stderr
    );
}

#[test]
fn the_tests_of_a_job_that_was_kept_are_those_of_the_rerun_too() {
    let place = failing();
    place.say("run --data .delta-ci").expect(1);
    let first = place.say("--json tests latest/lint").expect(0).json();
    assert_eq!(first["tests"].as_array().map(Vec::len), Some(2), "{first}");
    let again = place.say("--json rerun latest --failed").expect(0).json();
    let kept = again["jobs"][1]["job_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    for what in ["latest", "latest/lint"] {
        let list = place.delta(["--json", "tests", what]).expect(0).json();
        let names: Vec<&str> = list["tests"]
            .as_array()
            .expect("tests")
            .iter()
            .filter_map(|it| it["name"].as_str())
            .collect();
        assert_eq!(names, ["tidy", "neat"], "{what}: {list}");
        assert_eq!(list["totals"][0]["counts"]["passed"], 2, "{list}");
        assert_eq!(list["totals"][0]["job_id"], kept.as_str());
        assert_eq!(list["tests"][0]["job_id"], kept.as_str());
    }
    let said = place.say("tests latest").expect(0).stderr;
    assert!(said.contains("tests: 2 passed"), "{said}");
}

#[test]
fn a_run_says_what_its_waiting_jobs_wait_for() {
    let place = Place::new();
    let server = place.server(&[]);
    let body = json!({"jobs": [
        {"name": "db", "job_spec": {"name": "db", "steps": ["true"]}},
        {"name": "db2", "job_spec": {"name": "db2", "steps": ["true"]}},
        {"name": "after", "needs": ["db"], "job_spec": {"name": "after", "steps": ["true"]}},
    ]});
    let (status, run) = server.ask("POST", "/api/v1/runs", &body);
    assert_eq!(status, 201, "{run}");
    let shown = place.say("--json show latest --data data").expect(0).json();
    for job in shown["jobs"].as_array().expect("jobs") {
        let id = job["job_id"].as_str().expect("an id");
        assert_eq!(job["why"], server.job(id)["why"], "{job}");
        assert!(job["why"]["message"].is_string(), "{job}");
    }
    let table = comparable(&place.say("show latest --data data").expect(0).stdout);
    assert!(
        table.contains("db QUEUED 0 - job_ID_1 no agent has asked for work yet"),
        "{table}"
    );
    assert!(
        table.contains("after CREATED 0 - job_ID_3 waits for db"),
        "{table}"
    );
}

/// A failure, what needs it, and what needs that.
const CHAIN: &str = r#"
jobs:
  unit: {steps: [exit 3]}
  pack: {needs: [unit, lint], steps: [echo packed]}
  ship: {needs: [pack], steps: [echo shipped]}
  lint: {steps: ["true"]}
"#;

#[test]
fn a_job_that_was_not_begun_says_which_need_of_it_failed_and_why() {
    let place = Place::new();
    place.write(".delta-ci.yaml", CHAIN);
    let ran = place.say("run --data .delta-ci").expect(1);
    let table = comparable(&ran.stdout);
    assert!(table.contains("dependency failed: unit"), "{table}");

    let failed = "FAILED: step 1 `exit 3` ended with exit code 3";
    for command in ["why pack", "show pack"] {
        let told = comparable(&place.say(command).expect(0).stdout);
        let words = format!("It needs unit, which is {failed}");
        assert!(told.contains(&words), "{command}: {told}");
        assert!(!told.contains("It needs lint"), "{command}: {told}");
    }
    // What was not begun itself is not where the reason is.
    let told = comparable(&place.say("why ship").expect(0).stdout);
    let root = "It needs pack, which is CANCELED: because of `unit`: step 1 `exit 3` ended with";
    assert!(told.contains(root), "{told}");

    let told = place.say("--json why pack").expect(0).json();
    let need = &told["failed_needs"][0];
    assert_eq!(
        (&need["name"], &need["state"], &need["message"]),
        (
            &json!("unit"),
            &json!("FAILED"),
            &json!("step 1 `exit 3` ended with exit code 3; it printed nothing")
        ),
        "{told}"
    );
}

#[test]
fn why_of_a_run_tells_each_job_that_did_not_succeed_or_waits() {
    let place = Place::new();
    place.write(".delta-ci.yaml", CHAIN);
    place.say("run --data .delta-ci").expect(1);
    let told = comparable(&place.say("why latest").expect(0).stdout);
    for words in [
        "run_ID is FAILED",
        "unit is FAILED\nstep 1 `exit 3` ended with exit code 3; it printed nothing\n",
        "pack is CANCELED\nIt needs unit, which is FAILED: step 1 `exit 3` ended with exit code 3",
        "ship is CANCELED\nIt needs pack, which is CANCELED: because of `unit`",
        "1 job succeeded",
    ] {
        assert!(told.contains(words), "{words:?} in {told}");
    }
    assert!(!told.contains("lint is"), "{told}");
    let told = place.say("--json why latest").expect(0).json();
    let names: Vec<_> = told["jobs"].as_array().expect("jobs").iter().collect();
    assert_eq!(names.len(), 3, "{told}");
    assert_eq!(told["jobs"][0]["failure"]["exit_code"], 3, "{told}");

    let place = Place::new();
    let server = place.server(&[]);
    let body = json!({"jobs": [
        {"name": "db", "job_spec": {"name": "db", "steps": ["true"]}},
        {"name": "after", "needs": ["db"], "job_spec": {"name": "after", "steps": ["true"]}},
    ]});
    assert_eq!(server.ask("POST", "/api/v1/runs", &body).0, 201);
    let told = comparable(&place.say("why latest --data data").expect(0).stdout);
    assert!(
        told.contains("db is QUEUED\nno agent has asked for work yet\n")
            && told.contains("after is CREATED\nwaits for db"),
        "{told}"
    );
}

// I25
#[test]
fn a_log_that_was_cut_says_so_wherever_it_is_told() {
    let place = Place::new();
    place.write(
        ".delta-ci.yaml",
        "jobs:\n  long: {steps: [echo first, seq 20000, echo last]}\n  short: {steps: [seq 100]}\n",
    );
    let ran = place
        .say("--json run --data .delta-ci --log-limit 16KiB")
        .expect(0)
        .json();
    let dropped = ran["jobs"][0]["log_dropped"].as_u64().expect("a number");
    assert!(dropped > 90_000, "{ran}");
    assert!(ran["jobs"][1]["log_dropped"].is_null(), "{ran}");

    let job = place.say("--json show long").expect(0).json();
    let log = &job["attempts"][0]["log"];
    assert_eq!(
        (
            &log["complete"],
            &log["state"],
            &log["cut"],
            &log["dropped"]
        ),
        (
            &json!(false),
            &json!("incomplete"),
            &json!(true),
            &json!(dropped)
        )
    );
    let words = format!("cut: {dropped} bytes dropped");
    let shown = place.say("show long").expect(0).stdout;
    assert!(shown.contains(&words), "{shown}");
    let table = place.say("show latest").expect(0).stdout;
    assert!(table.contains("log cut: "), "{table}");

    for command in ["logs long", "logs -f long"] {
        let read = place.say(command).expect(0);
        assert!(read.stderr.contains(&words), "{command}: {}", read.stderr);
        let text = read.stdout;
        assert!(text.starts_with("--- step 1: echo first\nfirst\n--- step 2: seq 20000\n1\n2\n"));
        assert!(
            text.ends_with("\n19999\n20000\n--- step 3: echo last\nlast\n"),
            "{command}"
        );
        let mark = format!("--- {dropped} bytes were dropped here: a log may have 16384 bytes\n");
        assert_eq!(text.matches(&mark).count(), 1, "{command}");
        assert!(text.len() < 17_000, "{}", text.len());
    }
    let whole = place.say("logs short").expect(0);
    assert!(whole.stderr.contains("log complete"), "{}", whole.stderr);
    place.say("run --log-limit 1GiB").expect(2);
}
