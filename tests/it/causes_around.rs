//! Causes that take a disk, a report, an artifact or another job to produce (D10): by the agent of
//! this project, read through the API.

use delta_testkit::disk::Mounted;
use delta_testkit::memory::LittleMemory;
use serde_json::{Value, json};

use crate::faults_agent::{agent_with, only_job};
use crate::handover::log_of;
use crate::harness::{Options, Person, Server, until};

/// The causes of the attempts of a run's only job.
fn causes(person: &Person, run: &str) -> Vec<Value> {
    let job = person.job(&only_job(person, run));
    let attempts = job["attempts"].as_array().unwrap().iter();
    attempts.map(|it| it["cause"].clone()).collect()
}

// F43: and the next try is another agent's, because this one rests.
#[test]
fn a_step_that_filled_its_disk_is_tried_again_elsewhere() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _disk = Mounted::of(&server.folder().join("small"), "32m").unwrap();
    let small = ["--min-free-mb", "1"];
    let _small = agent_with(&server, server.addr(), "small", &small);
    let fill = "[ $DELTA_ATTEMPT != 1 ] || head -c 60m /dev/zero > big";
    let clean = json!({"run": "pwd; rm -f big", "if": "always"});
    let spec = json!({"steps": [fill, clean]});
    let run = person.create(&json!({"jobs": [{"name": "work", "job_spec": spec}]}));
    until(
        "the disk was full",
        || causes(&person, &run),
        |causes| causes.first().is_some_and(|cause| !cause.is_null()),
    );
    let _roomy = agent_with(&server, server.addr(), "roomy", &[]);
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    assert_eq!(causes(&person, &run), [json!("disk_full"), Value::Null]);
    let log = log_of(&person, &only_job(&person, &run));
    assert!(log.contains("/roomy/"), "{log}");
    server.check();
}

// D10: whatever its tools made of it, and not the one beside it.
#[test]
fn only_the_job_that_ran_out_of_memory_is_told_so() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let little = LittleMemory::of(256 << 20).unwrap();
    let agent = agent_with(&server, server.addr(), "worker", &["--slots", "2"]);
    little.add(agent.pid()).unwrap();
    let go = server.folder().join("go");
    let go = go.display();
    let hungry = format!(
        "printf 'all:\\n\\thead -c 1000m /dev/zero | tail > kept\\n' > Makefile\n\
         make || {{ touch {go}; exit 2; }}"
    );
    let beside = format!("until [ -e {go} ]; do sleep 0.05; done; kill -9 $$");
    let work = |name: &str, step: &str| json!({"name": name, "required": false, "job_spec": {"steps": [step]}});
    let jobs = [work("beside", &beside), work("hungry", &hungry)];
    let run = person.create(&json!({ "jobs": jobs }));
    let over = person.until_over(&run);
    let enforced = person.get("/api/v1/agents")["agents"][0]["enforced"].to_string();
    assert!(enforced.contains("\"memory:"), "{enforced}");
    for (name, cause, code, kills) in [
        ("beside", "user_signal", Value::Null, Value::Null),
        ("hungry", "out_of_memory", json!(2), json!(1)),
    ] {
        let jobs = over["jobs"].as_array().unwrap();
        let job = jobs.iter().find(|job| job["name"] == name).unwrap();
        let job = person.job(job["job_id"].as_str().unwrap());
        let attempts = job["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 1, "not tried again: {job}");
        let attempt = &attempts[0];
        let ended = (&attempt["cause"], &attempt["exit_code"]);
        assert_eq!(ended, (&json!(cause), &code), "{attempt}");
        assert_eq!(attempt["evidence"]["oom_kills"], kills, "{attempt}");
    }
    server.check();
}

/// A report of one test, as a step that leaves it.
fn report(status: &str) -> String {
    let failure = match status {
        "fails" => "<failure message=\"no\"/>",
        _ => "",
    };
    format!(
        "printf '<testsuite name=\"s\"><testcase name=\"shaky\">{failure}</testcase>\
         </testsuite>' > r.xml"
    )
}

// A57: and a step that fails after such tests has a reason of its own.
#[test]
fn only_the_step_whose_tests_are_flaky_is_called_so() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent_with(&server, server.addr(), "worker", &[]);
    let ends_with = |steps: &[String]| {
        let results = json!({"format": "junit", "path": "r.xml"});
        let spec = json!({"steps": steps, "results": results, "checkout": false});
        let run = person.create(&json!({
            "repository": "https://example.org/r.git", "ref": "main", "commit": "1".repeat(40),
            "jobs": [{"name": "unit", "job_spec": spec}],
        }));
        person.until_over(&run);
        causes(&person, &run)
    };
    let (passes, fails) = (report("passes"), report("fails"));
    assert_eq!(ends_with(std::slice::from_ref(&passes)), [Value::Null]);
    let again = format!("if [ $DELTA_ATTEMPT = 1 ]; then {fails}; exit 1; fi; {passes}");
    assert_eq!(ends_with(&[again]), [json!("flaky"), Value::Null]);
    let lint = "exit 4".to_owned();
    assert_eq!(ends_with(&[fails, lint]), [json!("user_exit")]);
    server.check();
}

#[test]
fn a_mistake_with_artifacts_is_not_tried_again() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent_with(&server, server.addr(), "worker", &[]);
    let many = "mkdir d; i=0; while [ $i -lt 1001 ]; do : > d/$i; i=$((i+1)); done";
    for (step, pattern, words) in [
        (many, "d/**", "more than 1000 files match"),
        ("echo x > a:b", "a:b", "its name"),
        ("truncate -s 11G big", "big", "at most"),
    ] {
        let spec = json!({"steps": [step], "artifacts": [pattern]});
        let run = person.create(&json!({"jobs": [{"name": "work", "job_spec": spec}]}));
        assert_eq!(person.until_over(&run)["outcome"], "FAILED");
        assert_eq!(causes(&person, &run), ["spec_error"], "{pattern}");
        let attempt = person.attempt(&only_job(&person, &run)).to_string();
        assert!(attempt.contains(words), "{attempt}");
    }
    server.check();
}

#[test]
fn a_run_names_the_rule_that_ended_it_and_so_do_its_jobs() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent_with(&server, server.addr(), "worker", &["--slots", "2"]);
    let mark = server.folder().join("mark");
    let waits = format!(
        "until [ -e {} ]; do sleep 0.05; done; exit 1",
        mark.display()
    );
    let goes_on = format!("touch {}; sleep 60", mark.display());
    let work = |name: &str, step: &str| json!({"name": name, "max_attempts": 1, "job_spec": {"steps": [step]}});
    let jobs = [work("fails", &waits), work("other", &goes_on)];
    let run = person.create(&json!({"jobs": jobs, "fail_fast": true}));
    let over = person.until_over(&run);
    let ended = (&over["outcome"], &over["cause"]);
    let wanted = (&json!("FAILED"), &json!("required_job_failed"));
    assert_eq!(ended, wanted, "{over}");
    let jobs = over["jobs"].as_array().unwrap();
    let other = jobs.iter().find(|job| job["name"] == "other").unwrap();
    let ended = (&other["state"], &other["cause"]);
    assert_eq!(ended, (&json!("CANCELED"), &json!("fail_fast")), "{other}");
    server.check();
}
