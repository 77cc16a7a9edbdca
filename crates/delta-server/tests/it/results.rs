//! Results of tests: over a stream and over HTTP, fenced, counted, shown and judged.

use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::result_stream::Payload;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AssignWork, Capabilities, HeldLease, RegisterRequest, RunComplete, RunStatus, RunSummary,
    TestResult, TestResultAck, TestStatus,
};
use serde_json::{Value, json};

use crate::agent::{Agent, request};
use crate::bench::{Bench, Lease, job, text};

fn result(name: &str, status: TestStatus) -> TestResult {
    TestResult {
        test_id: name.to_owned(),
        name: name.to_owned(),
        suite: "s".to_owned(),
        status: status.into(),
        duration_ms: 5,
        ..Default::default()
    }
}

impl Agent {
    fn tested(&self, work: &AssignWork, result: TestResult) -> Said {
        self.result(work, Payload::TestResult(result))
    }

    fn summed_up(&self, work: &AssignWork, passed: i32, failed: i32) -> Said {
        let summary = RunSummary {
            total_tests: passed + failed,
            passed,
            failed,
            ..Default::default()
        };
        let complete = RunComplete {
            status: RunStatus::Success.into(),
            summary: Some(summary),
            ..Default::default()
        };
        self.result(work, Payload::RunComplete(complete))
    }

    async fn results_acked(&mut self, received: u64) -> TestResultAck {
        self.hears(|say| match say {
            Say::TestResultAck(ack) if ack.received == received => Some(ack.clone()),
            _ => None,
        })
        .await
    }

    async fn complete_acked(&mut self) -> bool {
        self.hears(|say| match say {
            Say::CompleteAck(ack) => Some(ack.accepted),
            _ => None,
        })
        .await
    }
}

async fn at_work(bench: &Bench) -> (Agent, AssignWork, String) {
    let mut agent = Agent::new(bench).await;
    let (run, _) = bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    (agent, work, run)
}

async fn tests_of(bench: &Bench, run: &str, query: &str) -> Value {
    let path = format!("/api/v1/runs/{run}/tests{query}");
    bench.get(&path).await.expect(200)
}

fn names(list: &Value) -> Vec<String> {
    let tests = list["tests"].as_array().unwrap().iter();
    tests.map(|test| text(&test["name"])).collect()
}

#[tokio::test]
async fn results_are_stored_before_the_result_is_answered_and_a_repeat_is_one() {
    // EP-12, EP-16
    let bench = Bench::patient().await;
    let (mut agent, work, run) = at_work(&bench).await;
    let long = TestResult {
        error_message: "it broke".to_owned(),
        stack_trace: "x".repeat(3 << 20),
        duration_ms: -7,
        ..result("b", TestStatus::Fail)
    };
    agent
        .say([
            agent.tested(&work, result("a", TestStatus::Pass)),
            agent.tested(&work, long),
            agent.tested(&work, result("a", TestStatus::Pass)),
        ])
        .await;
    let ack = agent.results_acked(3).await;
    assert!(!ack.full);
    let again = agent.tested(&work, result("c", TestStatus::Skip));
    agent.say([again, agent.summed_up(&work, 1, 1)]).await;
    assert!(agent.complete_acked().await);
    // Too late: the result is final.
    let late = agent.tested(&work, result("d", TestStatus::Fail));
    agent.say([late]).await;
    agent
        .hears(|say| matches!(say, Say::StaleLease(_)).then_some(()))
        .await;
    let list = tests_of(&bench, &run, "").await;
    assert_eq!(names(&list), ["b", "c", "a"]);
    let failed = &list["tests"][0];
    assert_eq!(failed["duration_ms"], Value::Null, "a negative one is none");
    assert_eq!(failed["message"], "it broke");
    let trace = text(&failed["trace"]);
    assert!(trace.len() <= 64 * 1024 && trace.ends_with("[cut]"));
    let totals = &list["totals"][0];
    let counts = json!({ "passed": 1, "failed": 1, "skipped": 1, "errors": 0 });
    assert_eq!(totals["counts"], counts);
    // EP-15: what was received counts, and that more was said is shown.
    let claimed = json!({ "passed": 1, "failed": 1, "skipped": 0, "errors": 0 });
    assert_eq!(totals["claimed"], claimed);
    let failed = tests_of(&bench, &run, "?status=failed").await;
    assert_eq!(names(&failed), ["b"]);
    let path = format!("/api/v1/jobs/{}/tests?limit=2", work.job_id);
    let of_job = bench.get(&path).await.expect(200);
    assert_eq!(names(&of_job), ["b", "c"]);
    let next = text(&of_job["next_cursor"]);
    let path = format!("/api/v1/jobs/{}/tests?limit=2&cursor={next}", work.job_id);
    assert_eq!(names(&bench.get(&path).await.expect(200)), ["a"]);
}

#[tokio::test]
async fn a_summary_that_is_right_is_not_flagged() {
    // EP-15
    let bench = Bench::patient().await;
    let (mut agent, work, run) = at_work(&bench).await;
    let pass = agent.tested(&work, result("a", TestStatus::Pass));
    agent.say([pass, agent.summed_up(&work, 1, 0)]).await;
    assert!(agent.complete_acked().await);
    let totals = tests_of(&bench, &run, "").await["totals"][0].clone();
    assert_eq!(totals["counts"]["passed"], 1);
    assert_eq!(totals["claimed"], Value::Null);
}

#[tokio::test]
async fn results_that_are_taken_back_are_gone_and_the_summary_is_right() {
    // EP-15, EP-16
    let bench = Bench::patient().await;
    let (mut agent, work, run) = at_work(&bench).await;
    let sent = |name: &str| agent.tested(&work, result(name, TestStatus::Pass));
    let withdrawn = |test_id: &str| {
        let test_id = test_id.to_owned();
        let result = TestResult {
            test_id,
            withdrawn: true,
            ..Default::default()
        };
        agent.tested(&work, result)
    };
    let words = [sent("a"), sent("b"), withdrawn("a"), sent("c"), sent("a")];
    let words = words.into_iter().chain([withdrawn("b"), withdrawn("c")]);
    let words: Vec<Said> = words.collect();
    let (all, after) = (withdrawn(""), sent("d"));
    agent.say(words).await;
    agent.results_acked(7).await;
    assert_eq!(names(&tests_of(&bench, &run, "").await), ["a"]);
    agent.say([all, after, agent.summed_up(&work, 1, 0)]).await;
    assert!(agent.complete_acked().await);
    let list = tests_of(&bench, &run, "").await;
    assert_eq!(names(&list), ["d"]);
    assert_eq!(list["totals"][0]["claimed"], Value::Null);
}

#[tokio::test]
async fn after_a_reconnect_results_go_on_without_gap_or_double() {
    let bench = Bench::patient().await;
    let (mut agent, work, run) = at_work(&bench).await;
    agent
        .say([agent.tested(&work, result("a", TestStatus::Pass))])
        .await;
    agent.results_acked(1).await;
    let back = RegisterRequest {
        agent_id: agent.id.clone(),
        resume_secret: agent.registered.resume_secret.clone(),
        leases: vec![HeldLease {
            run_id: work.run_id.clone(),
            lease: work.lease.clone(),
        }],
        ..request()
    };
    drop(agent);
    let mut agent = Agent::register(&bench, back).await.unwrap();
    // What was acknowledged last is said again: it counts from the beginning of the stream.
    agent
        .say([
            agent.tested(&work, result("a", TestStatus::Pass)),
            agent.tested(&work, result("b", TestStatus::Pass)),
        ])
        .await;
    agent.results_acked(2).await;
    assert_eq!(names(&tests_of(&bench, &run, "").await), ["a", "b"]);
}

#[tokio::test]
async fn results_of_a_lease_that_is_over_are_refused_and_never_shown() {
    // D4, LM-13
    let bench = Bench::quick().await;
    let view = bench.create(json!([{ "name": "u", "job_spec": { "steps": ["true"] } }]));
    let run = text(&view.await["run_id"]);
    let old = bench.acked().await;
    bench
        .say("/results", handed(&old, &[("a", "FAIL")]))
        .await
        .expect(200);
    // It runs out, and another gets the attempt.
    let new = Lease::from(&bench.lease_as("r2", 10.0).await.expect(200), "r2");
    assert!(new.epoch > old.epoch);
    let stale = bench.say("/results", handed(&old, &[("b", "FAIL")])).await;
    assert_eq!(stale.status.as_u16(), 409, "{}", stale.text);
    bench.say("/ack-lease", new.ack()).await.expect(200);
    bench
        .say("/results", handed(&new, &[("a", "PASS")]))
        .await
        .expect(200);
    bench
        .say("/complete", new.complete("SUCCEEDED", 0))
        .await
        .expect(200);
    let list = tests_of(&bench, &run, "").await;
    assert_eq!(names(&list), ["a"]);
    assert_eq!(list["tests"][0]["status"], "pass");
    let late = bench.say("/results", handed(&new, &[("c", "PASS")])).await;
    assert_eq!(late.status.as_u16(), 409, "{}", late.text);
}

fn handed(lease: &Lease, results: &[(&str, &str)]) -> Value {
    let result = |(name, status): &(&str, &str)| json!({ "name": name, "status": status });
    let results: Vec<Value> = results.iter().map(result).collect();
    json!({ "type": "TestResults", "lease_id": lease.id, "runner_id": lease.runner,
        "results": results })
}

/// A run on a commit, whose one job hands in these results.
async fn tested_on(bench: &Bench, commit: &str, results: &[(&str, &str)]) -> String {
    tested_by(bench, ("unit", "trusted"), commit, results).await
}

async fn tested_by(
    bench: &Bench,
    (name, trust): (&str, &str),
    commit: &str,
    results: &[(&str, &str)],
) -> String {
    let body = json!({ "repository": "https://example.org/r.git", "ref": "main",
        "commit": commit, "trust": trust, "jobs": [job(name)] });
    let run = text(&bench.ask("/runs", body).await.expect(201)["run_id"]);
    let lease = bench.acked().await;
    bench
        .say("/results", handed(&lease, results))
        .await
        .expect(200);
    let done = bench.say("/complete", lease.complete("FAILED", 1));
    done.await.expect(200);
    run
}

#[tokio::test]
async fn a_test_is_flaky_on_one_commit_and_broken_when_it_only_fails() {
    let bench = Bench::patient().await;
    let (one, two) = ("1".repeat(40), "2".repeat(40));
    let all_fail = [("flaky", "FAIL"), ("broken", "FAIL"), ("changed", "FAIL")];
    let first = tested_on(&bench, &one, &all_fail).await;
    let list = tests_of(&bench, &first, "").await;
    // Seen failing once, and never passing.
    let verdicts = list["tests"].as_array().unwrap().iter();
    assert!(verdicts.clone().count() == 3);
    assert!(verdicts.clone().all(|it| it["verdict"] == "broken"));
    let some = [("flaky", "PASS"), ("broken", "ERROR")];
    tested_on(&bench, &one, &some).await;
    tested_on(&bench, &two, &[("changed", "PASS")]).await;
    let list = tests_of(&bench, &first, "?status=fail").await;
    let tests = list["tests"].as_array().unwrap().iter();
    let verdicts: Vec<_> = tests
        .map(|it| (text(&it["name"]), it["verdict"].clone()))
        .collect();
    // Another commit passes: that is a repair, or a break, and not a flaw of the test.
    let wanted = [
        ("flaky".to_owned(), json!("flaky")),
        ("broken".to_owned(), json!("broken")),
        ("changed".to_owned(), Value::Null),
    ];
    assert_eq!(verdicts, wanted);
    let history = bench.get("/api/v1/tests?name=flaky").await.expect(200);
    assert_eq!(history["results"].as_array().unwrap().len(), 2);
    assert_eq!(
        history["results"][0]["status"], "pass",
        "the newest is first"
    );
    assert_eq!(history["standings"][0]["verdict"], "flaky");
    assert_eq!(history["standings"][0]["flaky_on"], json!([one]));
    let broken = bench.get("/api/v1/tests?name=broken").await.expect(200);
    assert_eq!(broken["standings"][0]["verdict"], "broken");
    // A page does not decide what a test is: here it shows the failure alone.
    let pages = "/api/v1/tests?name=changed&limit=1";
    let newest = bench.get(pages).await.expect(200);
    let next = text(&newest["next_cursor"]);
    let oldest = bench
        .get(&format!("{pages}&cursor={next}"))
        .await
        .expect(200);
    assert_eq!(oldest["results"][0]["status"], "fail");
    assert_eq!(oldest["standings"][0]["verdict"], Value::Null);
    let elsewhere = "/api/v1/tests?name=flaky&repository=https://example.org/other.git";
    assert_eq!(bench.get(elsewhere).await.expect(200)["results"], json!([]));
}

// A pass in one job says nothing of a failure in another, wherever one asks.
#[tokio::test]
async fn the_same_test_in_another_job_is_another_one() {
    let bench = Bench::patient().await;
    let commit = "1".repeat(40);
    let mac = tested_by(&bench, ("mac", "trusted"), &commit, &[("t", "FAIL")]).await;
    // Both are the first job of their run.
    tested_by(&bench, ("linux", "trusted"), &commit, &[("t", "PASS")]).await;
    let list = tests_of(&bench, &mac, "").await;
    assert_eq!(list["tests"][0]["verdict"], "broken");
    let history = bench.get("/api/v1/tests?name=t").await.expect(200);
    assert_eq!(history["standings"][0]["verdict"], "broken");
    tested_by(&bench, ("mac", "trusted"), &commit, &[("t", "PASS")]).await;
    let list = tests_of(&bench, &mac, "").await;
    assert_eq!(list["tests"][0]["verdict"], "flaky");
    let history = bench.get("/api/v1/tests?name=t").await.expect(200);
    assert_eq!(history["standings"][0]["verdict"], "flaky");
}

// A tool that prints only what failed never says that a test passed.
#[tokio::test]
async fn a_test_that_was_read_from_output_has_no_verdict() {
    let bench = Bench::patient().await;
    let body = json!({ "repository": "https://example.org/r.git", "ref": "main",
        "commit": "1".repeat(40), "trust": "trusted", "jobs": [job("unit")] });
    let run = text(&bench.ask("/runs", body).await.expect(201)["run_id"]);
    let lease = bench.acked().await;
    let mut results = handed(&lease, &[("printed", "FAIL"), ("reported", "FAIL")]);
    results["results"][0]["metadata"] = json!({ "read_from": "output" });
    bench.say("/results", results).await.expect(200);
    let done = bench.say("/complete", lease.complete("FAILED", 1));
    done.await.expect(200);
    let list = tests_of(&bench, &run, "").await;
    for (name, verdict) in [("printed", Value::Null), ("reported", json!("broken"))] {
        let mut tests = list["tests"].as_array().unwrap().iter();
        let test = tests.find(|it| it["name"] == name).unwrap();
        assert_eq!(test["verdict"], verdict, "{name}");
        let history = format!("/api/v1/tests?name={name}");
        let history = bench.get(&history).await.expect(200);
        assert_eq!(history["standings"][0]["verdict"], verdict, "{name}");
    }
}

// What a report says of failures before the last try counts, too.
#[tokio::test]
async fn a_test_that_passed_when_its_tool_tried_it_again_is_flaky() {
    let bench = Bench::patient().await;
    let body = json!({ "repository": "https://example.org/r.git", "ref": "main",
        "commit": "1".repeat(40), "trust": "trusted", "jobs": [job("unit")] });
    let run = text(&bench.ask("/runs", body).await.expect(201)["run_id"]);
    let lease = bench.acked().await;
    let mut results = handed(&lease, &[("again", "PASS"), ("at once", "PASS")]);
    results["results"][0]["metadata"] = json!({ "earlier_failures": "2" });
    bench.say("/results", results).await.expect(200);
    let done = bench.say("/complete", lease.complete("SUCCEEDED", 0));
    done.await.expect(200);
    let list = tests_of(&bench, &run, "").await;
    let verdicts = ["again", "at once"].map(|name| {
        let mut tests = list["tests"].as_array().unwrap().iter();
        tests.find(|it| it["name"] == name).unwrap()["verdict"].clone()
    });
    assert_eq!(verdicts, [json!("flaky"), Value::Null]);
    let history = bench.get("/api/v1/tests?name=again").await.expect(200);
    assert_eq!(history["standings"][0]["verdict"], "flaky");
}

async fn causes_of(bench: &Bench, run: &str) -> Vec<Value> {
    let view = bench.get(&format!("/api/v1/runs/{run}")).await.expect(200);
    let job = bench.show_job(&text(&view["jobs"][0]["job_id"])).await;
    let attempts = job["attempts"].as_array().unwrap().iter();
    attempts.map(|it| it["cause"].clone()).collect()
}

#[tokio::test]
async fn an_attempt_whose_failures_are_all_known_to_pass_failed_by_flaky_tests() {
    // A57, SM-55: over both protocols; and with one that is broken it is the user's.
    let bench = Bench::patient().await;
    let commit = "1".repeat(40);
    let fails = [("shaky", "FAIL")];
    let first = tested_on(&bench, &commit, &fails).await;
    assert_eq!(causes_of(&bench, &first).await, ["user_exit"]);
    // Neither a fork nor another job says anything about this one.
    for other in [("unit", "untrusted"), ("lint", "trusted")] {
        tested_by(&bench, other, &commit, &[("shaky", "PASS")]).await;
    }
    let alone = tested_on(&bench, &commit, &fails).await;
    assert_eq!(causes_of(&bench, &alone).await, ["user_exit"]);
    tested_on(&bench, &commit, &[("shaky", "PASS")]).await;
    let again = tested_on(&bench, &commit, &fails).await;
    assert_eq!(causes_of(&bench, &again).await, ["flaky"]);
    let both = tested_on(&bench, &commit, &[("shaky", "FAIL"), ("solid", "FAIL")]).await;
    assert_eq!(causes_of(&bench, &both).await, ["user_exit"]);
    let mut agent = Agent::new(&bench).await;
    let body = json!({ "repository": "https://example.org/r.git", "ref": "main",
        "commit": commit, "jobs": [{ "name": "unit", "job_spec": { "steps": ["true"] } }] });
    let run = text(&bench.ask("/runs", body).await.expect(201)["run_id"]);
    let work = agent.work().await;
    agent.accepts(&work).await;
    let failed = TestResult {
        test_id: String::new(),
        suite: String::new(),
        ..result("shaky", TestStatus::Fail)
    };
    let complete = RunComplete {
        status: RunStatus::Failure.into(),
        exit_code: Some(1),
        ..Default::default()
    };
    let complete = agent.result(&work, Payload::RunComplete(complete));
    agent.say([agent.tested(&work, failed), complete]).await;
    assert!(agent.complete_acked().await);
    // It is tried again by itself, and this time the tests say nothing.
    let work = agent.work().await;
    assert_eq!(work.attempt, 2);
    agent.accepts(&work).await;
    agent.say([agent.summed_up(&work, 0, 0)]).await;
    assert!(agent.complete_acked().await);
    assert_eq!(causes_of(&bench, &run).await, [json!("flaky"), Value::Null]);
}

#[tokio::test]
async fn a_failure_that_the_agent_saw_another_reason_for_is_not_called_flaky() {
    // A57
    let bench = Bench::patient().await;
    let commit = "1".repeat(40);
    tested_on(&bench, &commit, &[("shaky", "PASS")]).await;
    let mut agent = Agent::new(&bench).await;
    for (by_tests, cause) in [
        (Some(false), "user_exit"),
        (Some(true), "flaky"),
        (None, "flaky"),
    ] {
        let body = json!({ "repository": "https://example.org/r.git", "ref": "main",
            "commit": commit, "jobs": [job("unit")] });
        let run = text(&bench.ask("/runs", body).await.expect(201)["run_id"]);
        let work = agent.work().await;
        agent.accepts(&work).await;
        let failed = TestResult {
            test_id: String::new(),
            suite: String::new(),
            ..result("shaky", TestStatus::Fail)
        };
        let complete = RunComplete {
            status: RunStatus::Failure.into(),
            exit_code: Some(4),
            cause: "user_exit".to_owned(),
            failed_by_tests: by_tests,
            ..Default::default()
        };
        let complete = agent.result(&work, Payload::RunComplete(complete));
        agent.say([agent.tested(&work, failed), complete]).await;
        assert!(agent.complete_acked().await);
        assert_eq!(causes_of(&bench, &run).await, [cause], "{by_tests:?}");
    }
}

#[tokio::test]
async fn tests_of_nothing_and_questions_that_make_no_sense_are_refused() {
    let bench = Bench::patient().await;
    let (run, _) = bench.create_one().await;
    let none = tests_of(&bench, &run, "").await;
    assert_eq!(
        (none["tests"].clone(), none["totals"].clone()),
        (json!([]), json!([]))
    );
    for (path, status) in [
        (
            "/runs/run_00000000000000000000000000000000/tests".to_owned(),
            404,
        ),
        (format!("/runs/{run}/tests?status=red"), 422),
        (format!("/runs/{run}/tests?limit=0"), 422),
        (format!("/runs/{run}/tests?cursor=x"), 422),
        (format!("/runs/{run}/tests?attempt=1"), 422),
        (format!("/runs/{run}/tests?colour=red"), 422),
        (
            format!("/{}_9/tests", run.replacen("run_", "jobs/job_", 1)),
            404,
        ),
        ("/tests".to_owned(), 422),
    ] {
        let answer = bench.get(&format!("/api/v1{path}")).await;
        assert_eq!(answer.status.as_u16(), status, "{path}: {}", answer.text);
    }
    let lease = bench.acked().await;
    let wrong = handed(&lease, &[("a", "GREAT")]);
    let answer = bench.say("/results", wrong).await.expect(422);
    assert_eq!(answer["field"], "results[0].status");
}

#[tokio::test]
async fn an_agent_for_tests_is_told_of_them_word_by_word() {
    // EP-20, EP-21, A68
    let bench = Bench::patient().await;
    let mut registration = request();
    registration.capabilities = Some(Capabilities {
        max_parallel: 1,
        os: "linux".into(),
        ..Default::default()
    });
    let mut agent = Agent::register(&bench, registration).await.unwrap();
    let spec = json!({ "tests": [{ "test_id": "t1", "execution": {
        "command": "prove", "args": ["-v", "$HOME"], "working_dir": "sub" },
        "result_config": { "result_file": "out.tap", "result_format": "TAP" } }] });
    bench
        .create(json!([{ "name": "u", "job_spec": spec }]))
        .await;
    let work = agent.work().await;
    let test = &work.tests[0];
    let execution = test.execution.as_ref().unwrap();
    assert_eq!((&*test.test_id, &*test.name), ("t1", "t1"));
    assert_eq!(
        (&*execution.command, &*execution.args[1]),
        ("prove", "$HOME")
    );
    assert_eq!(execution.working_dir, "sub");
    assert_eq!(test.result_config.as_ref().unwrap().result_file, "out.tap");
    let empty = json!({ "jobs": [{ "name": "u", "job_spec": { "tests": [] } }] });
    bench.ask("/runs", empty).await.expect(422);
}
