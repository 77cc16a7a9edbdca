//! Reports of tests: read along, read at the end, sent and counted; and tests that are the work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use delta_agent::local::LocalTree;
use delta_agent::workspace::Source;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::{RunStatus, TestResult, TestStatus};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::fake_server::{FakeServer, State};

fn results(state: &State) -> Vec<TestResult> {
    let results = state.seen.iter().filter_map(|(_, said)| match said {
        Said::Result(result) => match &result.payload {
            Some(Payload::TestResult(result)) => Some(result.clone()),
            _ => None,
        },
        _ => None,
    });
    results.collect()
}

/// What a server has in the end, by what it is known by: a repeat replaces, and what is taken back
/// is gone.
fn kept(state: &State) -> BTreeMap<(String, u32), TestResult> {
    let mut kept = BTreeMap::new();
    for it in results(state) {
        match (it.withdrawn, it.test_id.is_empty()) {
            (false, _) => drop(kept.insert((it.test_id.clone(), it.n), it)),
            (true, false) => drop(kept.remove(&(it.test_id, it.n))),
            (true, true) => kept.clear(),
        }
    }
    kept
}

/// What each test came to, by its name.
fn outcomes(state: &State) -> BTreeMap<String, TestStatus> {
    let results = kept(state).into_values();
    results.map(|it| (it.name.clone(), it.status())).collect()
}

fn spec(script: &str, results: Value) -> Value {
    json!({ "steps": [script], "results": results })
}

const JUNIT: &str = r#"<testsuite name="s" tests="3"><testcase name="one" time="0.5"/>
<testcase name="two"><failure message="no">at line 7</failure></testcase>
<testcase name="three"><skipped/></testcase></testsuite>"#;

// EP-12, EP-15
#[tokio::test]
async fn reports_of_several_formats_are_sent_and_summed_up() {
    let script = format!(
        "mkdir -p out; cat > out/junit.xml <<'END'\n{JUNIT}\nEND\n\
         printf '1..2\\nok 1 - four\\nnot ok 2 - five\\n' > out/report.tap"
    );
    let wanted = json!([
        { "format": "junit", "path": "out/*.xml" },
        { "format": "tap", "path": "out/report.tap" },
        { "format": "json", "path": "missing.json" },
    ]);
    let server = FakeServer::start(&[spec(&script, wanted)]).await;
    let agent = Agent::start(&server);
    let ended = server.wait_results(1).await;
    let outcomes = outcomes(&server.state());
    let wanted: [(&str, TestStatus); 5] = [
        ("five", TestStatus::Fail),
        ("four", TestStatus::Pass),
        ("one", TestStatus::Pass),
        ("three", TestStatus::Skip),
        ("two", TestStatus::Fail),
    ];
    let wanted = wanted.map(|(name, status)| (name.to_owned(), status));
    assert_eq!(outcomes, BTreeMap::from(wanted));
    // The exit code decides of steps; what the tests came to is said beside it.
    assert_eq!(ended[0].status(), RunStatus::Success);
    let summary = ended[0].summary.expect("a summary");
    assert_eq!((summary.total_tests, summary.passed), (5, 2));
    assert_eq!((summary.failed, summary.skipped), (2, 1));
    assert_eq!(summary.duration_ms, 500);
    let log = server.log();
    assert!(
        log.contains("tests: 2 passed, 2 failed, 1 skipped"),
        "{log}"
    );
    assert!(
        log.contains("no report of tests is at missing.json"),
        "{log}"
    );
    agent.shut_down().await;
}

// T12: what was read stands, and that there was more is seen beside it.
#[tokio::test]
async fn a_broken_report_of_steps_has_an_error_of_its_own_and_changes_no_outcome() {
    let broken = "<testsuite><testcase name=\"one\"/><testcase name=";
    let script = format!(
        "printf '%s' '{broken}' > broken.xml; \
         printf '<!DOCTYPE a>' > bomb.xml; ln -s /etc/passwd link.xml; mkfifo pipe.xml"
    );
    let wanted = json!([
        { "format": "junit", "path": "*.xml" },
        { "format": "junit", "path": "link.xml" },
        { "format": "tap", "path": "pipe.xml" },
    ]);
    let server = FakeServer::start(&[spec(&script, wanted)]).await;
    let agent = Agent::start(&server);
    let ended = server.wait_results(1).await;
    assert_eq!(ended[0].status(), RunStatus::Success);
    let names = ["bomb.xml", "broken.xml", "link.xml", "pipe.xml"];
    let errors = names.map(|name| (format!("report {name}"), TestStatus::Error));
    let mut wanted = BTreeMap::from(errors);
    wanted.insert("one".to_owned(), TestStatus::Pass);
    assert_eq!(outcomes(&server.state()), wanted);
    let broken = kept(&server.state()).into_values();
    let broken: Vec<TestResult> = broken.filter(|it| it.name.contains("broken")).collect();
    assert_eq!(broken[0].error_message, "the report ends in the middle");
    let log = server.log();
    for words in [
        "report broken.xml: ",
        "report bomb.xml: ",
        "report link.xml: ",
        "pipe.xml: ",
    ] {
        assert!(log.contains(words), "{words} in {log}");
    }
    agent.shut_down().await;
}

// What was seen is kept: it is with the server before the job ends.
#[tokio::test]
async fn a_report_that_grows_is_read_along_also_when_it_is_written_anew() {
    let place = tempfile::tempdir().expect("a folder");
    let at = |name: &str| place.path().join(name).display().to_string();
    let (anew, go) = (at("anew"), at("go"));
    let script = format!(
        "printf 'TAP version 13\\nok 1 - one\\nok 2 - two\\n' > r.tap; \
         until [ -e {anew} ]; do sleep 0.05; done; \
         printf 'ok 1 - three\\nok 2 - four\\n' > r.tap; \
         until [ -e {go} ]; do sleep 0.05; done; printf 'ok 3 - five\\n' >> r.tap"
    );
    let wanted = json!({ "format": "tap", "path": "r.tap" });
    let server = FakeServer::start(&[spec(&script, wanted)]).await;
    let agent = Agent::start(&server);
    server
        .wait_until(|state| outcomes(state).contains_key("one"))
        .await;
    // A line that breaks loses nothing.
    server.break_line();
    std::fs::write(&anew, "").expect("a file");
    server
        .wait_until(|state| outcomes(state).contains_key("three"))
        .await;
    assert_eq!(server.count("RunComplete"), 0, "the job goes on");
    std::fs::write(&go, "").expect("a file");
    let ended = server.wait_results(1).await;
    // EP-15: what is read last counts, and what was read of the report before is taken back.
    let names: Vec<String> = outcomes(&server.state()).into_keys().collect();
    assert_eq!(names, ["five", "four", "three"]);
    assert_eq!(ended[0].summary.map(|it| it.total_tests), Some(3));
    agent.shut_down().await;
}

// What a report says that the job has not written is nothing that happened in this attempt.
#[tokio::test]
async fn a_report_that_was_there_before_the_first_step_is_not_counted() {
    let tree = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| std::fs::write(tree.path().join(name), text);
    put("old.xml", JUNIT).expect("a file");
    put("old.tap", "ok 1 - old\n").expect("a file");
    put("grown.tap", "ok 1 - first\n").expect("a file");
    let script = "sleep 0.6; echo 'ok 2 - second' >> grown.tap";
    let wanted = json!([
        { "format": "junit", "path": "old.xml" },
        { "format": "tap", "path": "*.tap" },
    ]);
    let server = FakeServer::start(&[spec(script, wanted)]).await;
    let source = Source::Copy(LocalTree::of(tree.path()));
    let agent = Agent::start_with(&server, |settings| settings.source = source);
    let ended = server.wait_results(1).await;
    let sent = results(&server.state()).into_iter().map(|it| it.name);
    let sent: BTreeSet<String> = sent.collect();
    assert_eq!(sent, BTreeSet::from(["first", "second"].map(str::to_owned)));
    assert_eq!(ended[0].summary.map(|it| it.total_tests), Some(2));
    let log = server.log();
    for report in ["old.xml", "old.tap"] {
        let words = format!("report {report}: it was there before the first step");
        assert!(log.contains(&words), "{log}");
    }
    agent.shut_down().await;
}

// EP-15, A57: a success whose results nobody has is none, and it is not the job's fault.
#[tokio::test]
async fn results_that_the_server_does_not_take_are_no_success() {
    let wanted = json!({ "format": "tap", "path": "r.tap" });
    let server = FakeServer::start(&[spec("echo 'ok 1 - one' > r.tap", wanted)]).await;
    server.change(|state| state.hold.extend(["TestResult"]));
    let agent = Agent::start_with(&server, |settings| {
        settings.results_patience = Duration::from_millis(300);
    });
    let ended = server.wait_results(1).await;
    assert_ne!(ended[0].status(), RunStatus::Success);
    assert_eq!(ended[0].cause, "agent_error");
    let words = "1 result of a test could not be stored";
    assert_eq!(ended[0].message, words);
    assert!(server.log().contains(words), "{}", server.log());
    // What there was is said, so that what is missing can be seen.
    assert_eq!(ended[0].summary.map(|it| it.total_tests), Some(1));
    agent.shut_down().await;
}

#[tokio::test]
async fn the_next_agent_sends_them_again_under_the_same_names() {
    let place = tempfile::tempdir().expect("a folder");
    let go = place.path().join("go");
    let script = format!(
        "printf 'ok 1 - one\\nok 2 - one\\n' > r.tap; until [ -e {} ]; do sleep 0.05; done",
        go.display()
    );
    let wanted = json!({ "format": "tap", "path": "r.tap" });
    let server = FakeServer::start(&[spec(&script, wanted)]).await;
    let agent = Agent::start(&server);
    server.wait_for("TestResult", 1).await;
    let agent = agent.replaced(&server).await;
    std::fs::write(&go, "").expect("a file");
    let ended = server.wait_results(1).await;
    assert_eq!(ended[0].summary.map(|it| it.total_tests), Some(2));
    let sent = results(&server.state());
    let keys = sent.iter().filter(|it| !it.withdrawn);
    let keys: BTreeSet<_> = keys.map(|it| (it.test_id.clone(), it.n)).collect();
    assert_eq!(keys.len(), 2, "one test, twice: {keys:?}");
    // It does not know what the first has sent: what it finds at the end is what there is.
    assert!(sent.iter().any(|it| it.withdrawn && it.test_id.is_empty()));
    assert_eq!(kept(&server.state()).len(), 2);
    agent.shut_down().await;
}

// A crash keeps what was seen: nobody can read again what is gone.
#[tokio::test]
async fn the_next_agent_takes_nothing_back_that_it_cannot_read_again() {
    let place = tempfile::tempdir().expect("a folder");
    let go = place.path().join("go");
    let wait = format!("until [ -e {} ]; do sleep 0.05; done", go.display());
    let lines = "printf 'ok 1 - one\\nok 2 - two\\n'";
    let script = format!("{lines} > r.tap; {wait}; rm r.tap");
    let gone = spec(&script, json!({ "format": "tap", "path": "r.tap" }));
    // Its shim is lost in the middle of the test, so that nothing is set aside.
    let script = format!("{lines} > r.tap; {wait}; kill -9 $PPID");
    let mut lost = test("lost", "sh", &["-c", &script]);
    lost["result_config"] = json!({ "result_file": "r.tap", "result_format": "TAP" });
    for job in [gone, json!({ "tests": [lost] })] {
        let _ = std::fs::remove_file(&go);
        let server = FakeServer::start(&[job]).await;
        let agent = Agent::start(&server);
        // A line is known to be whole when the next has come.
        server.wait_for("TestResult", 1).await;
        let agent = agent.replaced(&server).await;
        std::fs::write(&go, "").expect("a file");
        server.wait_results(1).await;
        let left = outcomes(&server.state());
        assert_eq!(left.get("one"), Some(&TestStatus::Pass), "{left:?}");
        agent.shut_down().await;
    }
}

/// Bytes of memory that this process has now.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let now = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = now.and_then(|it| it.trim().strip_suffix(" kB"));
    kilobytes
        .and_then(|it| it.parse::<usize>().ok())
        .expect("a number")
        * 1024
}

// T12: a hundred thousand cases, in memory that does not follow their number.
#[tokio::test]
async fn a_hundred_thousand_cases_are_sent_in_bounded_memory() {
    const CASES: usize = 100_000;
    let script = format!(
        "(echo '<testsuites><testsuite name=\"s\">'; seq 1 {CASES} | sed \
         's|.*|<testcase name=\"case_&\" classname=\"a.long.enough.name.of.a.class\"/>|'; \
         echo '</testsuite></testsuites>') > big.xml"
    );
    let wanted = json!({ "format": "junit", "path": "big.xml" });
    let server = FakeServer::start(&[]).await;
    server.change(|state| {
        state.ttl = Duration::from_secs(120);
        state.timeout_seconds = 600;
        state.keep_results = false;
        state.jobs.push_back(spec(&script, wanted));
    });
    let before = memory();
    let agent = Agent::start_unwatched(&server);
    server.wait_results(1).await;
    let summary = server.results()[0].summary.expect("a summary");
    assert_eq!(summary.total_tests as usize, CASES);
    let taken: u64 = server.state().results.values().sum();
    assert_eq!(taken as usize, CASES, "each was sent once");
    let grown = memory().saturating_sub(before);
    assert!(grown < 128 << 20, "{grown} bytes");
    agent.shut_down().await;
}

fn test(id: &str, command: &str, args: &[&str]) -> Value {
    json!({ "test_id": id, "suite": "s", "execution": { "command": command, "args": args } })
}

// EP-20, EP-21, A68: in order, word by word, each with a result; a failure stops no other.
#[tokio::test]
async fn tests_that_are_the_work_run_in_order_without_a_shell() {
    let mut reported = test(
        "reported",
        "sh",
        &["-c", "printf 'ok 1 - a\\nok 2 - b\\n' > r.tap"],
    );
    reported["result_config"] = json!({ "result_file": "r.tap", "result_format": "TAP" });
    let mut silent = test("silent", "true", &[]);
    silent["result_config"] = json!({ "result_file": "none.xml", "result_format": "JUNIT" });
    let mut inside = test("inside", "pwd", &[]);
    inside["execution"]["working_dir"] = json!("sub/folder");
    let spec = json!({ "tests": [
        test("words", "echo", &["$HOME; `id`", "*"]),
        test("fails", "sh", &["-c", "exit 3"]),
        test("absent", "no-such-program-here", &[]),
        test("folder", "mkdir", &["-p", "sub/folder"]),
        inside, reported, silent,
    ]});
    let server = FakeServer::start(&[spec]).await;
    let agent = Agent::start(&server);
    let ended = server.wait_results(1).await;
    let wanted: [(&str, TestStatus); 8] = [
        ("a", TestStatus::Pass),
        ("absent", TestStatus::Error),
        ("b", TestStatus::Pass),
        ("fails", TestStatus::Fail),
        ("folder", TestStatus::Pass),
        ("inside", TestStatus::Pass),
        ("silent", TestStatus::Error),
        ("words", TestStatus::Pass),
    ];
    let wanted = wanted.map(|(name, status)| (name.to_owned(), status));
    assert_eq!(outcomes(&server.state()), BTreeMap::from(wanted));
    assert_eq!(ended[0].status(), RunStatus::Failure);
    assert_eq!(ended[0].exit_code, Some(3), "of the first that failed");
    assert_eq!(
        ended[0].summary.map(|it| (it.failed, it.errors)),
        Some((1, 2))
    );
    let log = server.log();
    assert!(log.contains("$HOME; `id` *"), "no shell has read it: {log}");
    assert!(log.contains("/sub/folder"), "{log}");
    let work = server.registrations()[0]
        .capabilities
        .clone()
        .unwrap_or_default()
        .work;
    assert_eq!(work, ["steps", "tests"]);
    agent.shut_down().await;
}

// A68: what is reported counts, whatever the exit code says.
#[tokio::test]
async fn a_test_whose_report_has_a_failure_fails_the_attempt() {
    let mut lying = test("lying", "sh", &["-c", "echo 'not ok 1 - a' > r.tap"]);
    lying["result_config"] = json!({ "result_file": "r.tap", "result_format": "TAP" });
    let server = FakeServer::start(&[json!({ "tests": [lying] })]).await;
    let agent = Agent::start(&server);
    let ended = server.wait_results(1).await;
    assert_ne!(ended[0].status(), RunStatus::Success);
    assert_eq!(ended[0].cause, "user_exit");
    assert_eq!(ended[0].message, "1 of 1 test failed");
    agent.shut_down().await;
}

// A68: one of which only a part is known did not pass, whatever the exit code says.
#[tokio::test]
async fn a_test_whose_report_breaks_off_fails_the_attempt() {
    let with = |id: &str, format: &str, text: &str, end: &str| {
        let script = format!("printf '%s\\n' '{text}' > {id}.out; {end}");
        let mut test = test(id, "sh", &["-c", &script]);
        let file = format!("{id}.out");
        test["result_config"] = json!({ "result_file": file, "result_format": format });
        test
    };
    let cut = "<testsuite tests=\"3\" failures=\"1\"><testcase name=\"one\"/>\
               <testcase name=\"two\"><failure";
    let claims = "<testsuite tests=\"2\" failures=\"1\"><testcase name=\"three\"/>\
                  <testcase name=\"four\"/></testsuite>";
    let specs = [
        (
            with("tap", "TAP", "1..3\nok 1 - a\nok 2 - b", "true"),
            "ends in the middle",
        ),
        (with("cut", "JUNIT", cut, "true"), "ends in the middle"),
        (
            with("claims", "JUNIT", claims, "true"),
            "more failures than are in it",
        ),
        (
            with("bad", "JUNIT", "<testsuite><a></b>", "true"),
            "report bad.out: near byte",
        ),
        (with("exits", "JUNIT", cut, "exit 4"), "exit code 4"),
    ];
    let jobs: Vec<Value> = specs
        .iter()
        .map(|(test, _)| json!({ "tests": [test] }))
        .collect();
    let server = FakeServer::start(&jobs).await;
    let agent = Agent::start(&server);
    let ended = server.wait_results(jobs.len()).await;
    for ended in &ended {
        assert_ne!(ended.status(), RunStatus::Success, "{}", ended.message);
        assert_eq!(ended.cause, "user_exit");
    }
    let kept = kept(&server.state());
    for (test, words) in &specs {
        let id = test["test_id"].as_str().expect("a name");
        let own = &kept[&(id.to_owned(), 0)];
        assert_ne!(own.status(), TestStatus::Pass);
        assert_eq!(own.status() == TestStatus::Fail, id == "exits", "{id}");
        assert_eq!((own.name.as_str(), own.suite.as_str()), (id, "s"));
        assert!(own.error_message.contains(words), "{}", own.error_message);
    }
    // What was read of them stands.
    let names = outcomes(&server.state());
    for name in ["a", "b", "one", "three", "four"] {
        assert_eq!(names.get(name), Some(&TestStatus::Pass), "{name}");
    }
    agent.shut_down().await;
}

// EP-21: each has results of its own, whatever lies there from the one before.
#[tokio::test]
async fn tests_that_share_a_report_are_not_counted_for_each_other() {
    let with = |id: &str, script: &str, file: &str| {
        let mut test = test(id, "sh", &["-c", script]);
        test["result_config"] = json!({ "result_file": file, "result_format": "TAP" });
        test
    };
    let place = tempfile::tempdir().expect("a folder");
    let go = place.path().join("go");
    let last = format!(
        "until [ -e {} ]; do sleep 0.05; done; echo 'ok 1 - d' > s.tap",
        go.display()
    );
    let spec = json!({ "tests": [
        with("first", "echo 'ok 1 - a' > r.tap", "r.tap"),
        with("second", "printf 'ok 1 - b\nnot ok 2 - c\n' > r.tap", "r.tap"),
        with("third", "true", "*.tap"),
        with("fourth", &last, "*.tap"),
    ]});
    let server = FakeServer::start(&[spec]).await;
    let agent = Agent::start(&server);
    // What a test has left is sent when it has ended, and not only when all have.
    server
        .wait_until(|state| outcomes(state).contains_key("c"))
        .await;
    std::fs::write(&go, "").expect("a file");
    let ended = server.wait_results(1).await;
    let kept = kept(&server.state()).into_values();
    let of = |it: &TestResult| it.test_id.split('/').next().map(str::to_owned);
    let kept: BTreeMap<String, (Option<String>, TestStatus)> = kept
        .map(|it| (it.name.clone(), (of(&it), it.status())))
        .collect();
    let wanted: [(&str, &str, TestStatus); 5] = [
        ("a", "first", TestStatus::Pass),
        ("b", "second", TestStatus::Pass),
        ("c", "second", TestStatus::Fail),
        ("d", "fourth", TestStatus::Pass),
        ("third", "third", TestStatus::Error),
    ];
    let wanted = wanted.map(|(name, of, status)| (name.to_owned(), (Some(of.to_owned()), status)));
    assert_eq!(kept, BTreeMap::from(wanted));
    let summary = ended[0].summary.expect("a summary");
    assert_eq!((summary.total_tests, summary.errors), (5, 1));
    agent.shut_down().await;
}

// A68, EP-21: what another test has left where a report is looked for is not this test's.
#[tokio::test]
async fn a_test_does_not_pass_on_a_report_that_another_wrote() {
    let place = tempfile::tempdir().expect("a folder");
    let go = place.path().join("go");
    let script = format!(
        "printf 'ok 1 - a\\nok 2 - b\\n1..2\\n' > r.tap; until [ -e {} ]; do sleep 0.05; done",
        go.display()
    );
    let mut second = test("second", "true", &[]);
    second["result_config"] = json!({ "result_file": "r.tap", "result_format": "TAP" });
    let spec = json!({ "tests": [test("first", "sh", &["-c", &script]), second] });
    let server = FakeServer::start(&[spec]).await;
    let agent = Agent::start(&server);
    // It was read along, for the second.
    server
        .wait_until(|state| outcomes(state).contains_key("a"))
        .await;
    std::fs::write(&go, "").expect("a file");
    let ended = server.wait_results(1).await;
    let wanted = [("first", TestStatus::Pass), ("second", TestStatus::Error)];
    let wanted = wanted.map(|(name, status)| (name.to_owned(), status));
    assert_eq!(outcomes(&server.state()), BTreeMap::from(wanted));
    assert_eq!(ended[0].cause, "user_exit");
    agent.shut_down().await;
}

// D10: that this machine could not keep a report is not the job's fault.
#[tokio::test]
async fn a_report_that_this_machine_lost_is_not_the_jobs_fault() {
    let place = tempfile::tempdir().expect("a folder");
    let at = |name: &str| place.path().join(name).display().to_string();
    let (here, go) = (at("here"), at("go"));
    let script = format!(
        "touch {here}; until [ -e {go} ]; do sleep 0.05; done; echo 'ok 1 - a' > $0.tap; exit $1"
    );
    let with = |id: &str, code: &str| {
        let mut test = test(id, "sh", &["-c", &script, id, code]);
        let file = format!("{id}.tap");
        test["result_config"] = json!({ "result_file": file, "result_format": "TAP" });
        test
    };
    let jobs = [
        (
            json!({ "tests": [with("one", "0"), with("two", "0")] }),
            "agent_error",
        ),
        (
            json!({ "tests": [with("one", "0"), with("two", "3")] }),
            "user_exit",
        ),
    ];
    for (job, cause) in jobs {
        for file in [&here, &go] {
            let _ = std::fs::remove_file(file);
        }
        let server = FakeServer::start(&[job]).await;
        let agent = Agent::start(&server);
        crate::bench::until("the test runs", || std::path::Path::new(&here).exists()).await;
        let attempts = agent.folder.path().join("work/state/attempts");
        for attempt in std::fs::read_dir(attempts).expect("a folder").flatten() {
            // A file where the folder of reports would be.
            std::fs::write(attempt.path().join("reports"), "").expect("a file");
        }
        std::fs::write(&go, "").expect("a file");
        let ended = server.wait_results(1).await;
        assert_eq!(ended[0].cause, cause, "{}", ended[0].message);
        assert_ne!(ended[0].status(), RunStatus::Success);
        let kept = kept(&server.state());
        assert_eq!(kept[&("one".to_owned(), 0)].status(), TestStatus::Error);
        agent.shut_down().await;
    }
}
