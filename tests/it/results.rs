//! Reports of a real job on a real agent, seen through the API and the command line.

use std::time::Duration;

use serde_json::{Value, json};

use crate::faults_agent::{only_job, pid_in};
use crate::handover::agent;
use crate::harness::{Options, Person, Server, delta_ci, until};

/// Longer than a command takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn run_with(step: &str, results: Value) -> Value {
    json!({ "jobs": [{ "name": "work", "max_attempts": 1,
        "job_spec": { "steps": [step], "results": results } }] })
}

fn names(person: &Person, run: &str, query: &str) -> Vec<String> {
    let list = person.get(&format!("/api/v1/runs/{run}/tests{query}"));
    let tests = list["tests"].as_array().expect("tests").iter();
    let name = |test: &Value| test["name"].as_str().expect("a name").to_owned();
    tests.map(name).collect()
}

/// What a command prints on a server's own machine.
fn typed(server: &Server, words: &[&str]) -> String {
    let command = delta_ci().args(words).arg("--data").arg(server.data());
    let process = command.spawn().expect("a command");
    let status = process.wait(PATIENCE).expect("an end");
    assert!(status.success(), "{}", process.stderr());
    format!("{}{}", process.stdout(), process.stderr())
}

// EP-12, EP-15, T20
#[test]
fn reports_of_a_job_are_seen_through_the_api_and_the_command_line() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server).spawn().unwrap();
    let step = "mkdir out; cat > out/junit.xml <<'END'\n\
        <testsuite name=\"api\"><testcase name=\"good\" time=\"0.01\"/>\n\
        <testcase name=\"bad\"><failure message=\"expected 1\">at &#x9b;line 7</failure></testcase>\n\
        </testsuite>\nEND\n\
        printf '1..2\\nok 1 - first\\nok 2 - later # SKIP no time\\n' > out/r.tap; exit 3";
    let results = json!([
        { "format": "junit", "path": "out/*.xml" },
        { "format": "tap", "path": "out/r.tap" },
    ]);
    let run = person.create(&run_with(step, results));
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "FAILED", "{over}");
    let mut all = names(&person, &run, "");
    assert_eq!(all[..2], ["bad", "later"], "what went wrong is first");
    all.sort();
    assert_eq!(all, ["bad", "first", "good", "later"]);
    assert_eq!(names(&person, &run, "?status=failed"), ["bad"]);
    let totals = person.get(&format!("/api/v1/runs/{run}/tests"))["totals"].clone();
    let counts = json!({ "passed": 2, "failed": 1, "skipped": 1, "errors": 0 });
    assert_eq!(totals[0]["counts"], counts);
    assert_eq!(totals[0]["claimed"], Value::Null, "the summary is right");
    let said = typed(&server, &["tests", &run, "--failed"]);
    assert!(
        said.contains("api › bad  (broken: it only fails)"),
        "{said}"
    );
    assert!(
        said.contains("line 7") && !said.contains('\u{9b}'),
        "{said:?}"
    );
    let line = "tests: 2 passed, 1 failed, 1 skipped";
    assert!(said.contains(line), "{said}");
    let shown = typed(&server, &["show", &run]);
    assert!(
        shown.contains(line) && shown.contains("api › bad"),
        "{shown}"
    );
    let past = typed(&server, &["tests", "--history", "bad"]);
    assert!(past.contains("FAIL"), "{past}");
    // Seen failing once, and never passing: the list, the API and the history say the same.
    assert!(
        past.contains("api › bad is broken: it only fails"),
        "{past}"
    );
    let failed = person.get(&format!("/api/v1/runs/{run}/tests?status=failed"));
    assert_eq!(failed["tests"][0]["verdict"], "broken");
}

// F2, F8: what was seen is kept, whatever ends the job.
#[test]
fn a_job_killed_in_the_middle_of_its_report_keeps_what_was_seen() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server).spawn().unwrap();
    let mark = server.folder().join("mark");
    let step = format!(
        "printf 'TAP version 13\\n1..100\\nok 1 - first\\nnot ok 2 - second\\n' > r.tap\n\
         echo $$ > {mark}.new; mv {mark}.new {mark}; sleep 300",
        mark = mark.display()
    );
    let results = json!({ "format": "tap", "path": "r.tap" });
    let run = person.create(&run_with(&step, results));
    let shell = pid_in(&mark);
    until(
        "results are seen while the job goes on",
        || names(&person, &run, ""),
        // The last line may be followed by more about the same test.
        |names| names.len() == 1,
    );
    assert_eq!(person.run(&run)["outcome"], Value::Null);
    let shell = rustix::process::Pid::from_raw(shell.cast_signed()).unwrap();
    rustix::process::kill_process(shell, rustix::process::Signal::KILL).unwrap();
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "FAILED", "{over}");
    // That there was more is seen beside it.
    let mut all = names(&person, &run, "");
    all.sort();
    assert_eq!(all, ["first", "report r.tap", "second"]);
    let job = only_job(&person, &run);
    assert_eq!(person.attempt(&job)["cause"], "user_signal");
}
