//! Causes as people see them (D10): each produced for real by the agent of this project, and read
//! through the API. None of them is ever a success, and none of the machine's is the user's.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use delta_testkit::git::{GitHttp, Repository};
use delta_testkit::process::Process;
use delta_testkit::root;
use serde_json::{Value, json};

use crate::faults_agent::{agent_with, only_job, pid_in};
use crate::harness::{Options, Person, Server, until};

fn agent(server: &Server, name: &str, more: &[&str]) -> Process {
    agent_with(server, server.addr(), name, more)
}

/// A job that is tried once and may fail.
fn job(name: &str, more: &Value, spec: &Value) -> Value {
    let mut job = json!({
        "name": name, "required": false, "max_attempts": 1, "job_spec": spec,
    });
    let (fields, more) = (job.as_object_mut().unwrap(), more.as_object().unwrap());
    fields.extend(more.clone());
    job
}

/// The last attempt of each job of a run, by the job's name.
fn attempt_of(person: &Person, run: &Value, name: &str) -> Value {
    let jobs = run["jobs"].as_array().unwrap();
    let job = jobs.iter().find(|job| job["name"] == name).unwrap();
    person.attempt(job["job_id"].as_str().unwrap())
}

#[test]
fn every_end_of_a_step_has_its_cause_and_its_evidence() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, "worker", &["--slots", "4"]);
    let none = json!({});
    let steps = |step: &str| json!({ "steps": [step] });
    let jobs = [
        job("exit", &none, &steps("echo 'error: it broke'; exit 3")),
        job("signal", &none, &steps("kill -SEGV $$")),
        job("child", &none, &steps("sh -c 'kill -9 $$'; exit $?")),
        job(
            "step",
            &none,
            &json!({"steps": [{"run": "sleep 60", "timeout_seconds": 0.3}]}),
        ),
        job("job", &json!({"timeout_seconds": 0.5}), &steps("sleep 60")),
        job(
            "silence",
            &none,
            &json!({"steps": ["sleep 60"], "no_output_timeout_seconds": 0.3}),
        ),
        job(
            "spec",
            &none,
            &json!({"steps": ["true"], "workdir": "nowhere"}),
        ),
        job("needs", &json!({"needs": ["gate"]}), &steps("true")),
        job("gate", &json!({"required": true}), &steps("exit 1")),
    ];
    let run = person.create(&json!({ "jobs": jobs }));
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "FAILED", "{over}");
    for (name, state, cause, words) in [
        ("exit", "FAILED", "user_exit", "exit code 3"),
        ("signal", "FAILED", "user_signal", "signal 11 (SEGV)"),
        (
            "child",
            "FAILED",
            "user_signal",
            "137: a program of it got signal 9 (KILL)",
        ),
        (
            "step",
            "TIMED_OUT",
            "step_timeout",
            "longer than the 300ms that it may",
        ),
        ("job", "TIMED_OUT", "job_timeout", "time was up"),
        ("silence", "TIMED_OUT", "no_output", "printed nothing"),
        ("spec", "FAILED", "spec_error", "nowhere"),
        ("gate", "FAILED", "user_exit", "exit code 1"),
    ] {
        let attempt = attempt_of(&person, &over, name);
        assert_eq!(
            (&attempt["state"], &attempt["cause"]),
            (&json!(state), &json!(cause)),
            "{name}"
        );
        let summary = attempt["summary"].as_str().unwrap_or_default();
        assert!(summary.contains(words), "{name}: {summary}");
    }
    let evidence = |name: &str| attempt_of(&person, &over, name)["evidence"].clone();
    assert_eq!(evidence("exit")["last_lines"], json!(["error: it broke"]));
    assert_eq!(evidence("signal")["signal"], 11);
    assert_eq!(evidence("child")["signal"], 9);
    let jobs = over["jobs"].as_array().unwrap();
    let needs = jobs.iter().find(|job| job["name"] == "needs").unwrap();
    assert_eq!(needs["cause"], "dependency_failed", "{needs}");
    // In the history, too.
    let events = serde_json::to_string(&person.events(&run)).unwrap();
    assert!(
        events.contains("no_output") && events.contains("it broke"),
        "{events}"
    );
    server.check();
}

#[test]
fn ends_that_the_user_did_not_cause_are_told_apart_and_tried_again() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let mark = server.folder().join("mark");
    let step = format!(
        "test \"$DELTA_ATTEMPT\" -gt 1 && exit 0; echo $$ > {0}.new; mv {0}.new {0}; sleep 60",
        mark.display()
    );
    let run = person.create(&json!({"jobs": [{"name": "work", "job_spec": {"steps": [step]}}]}));
    let first = agent(&server, "first", &["--shutdown-grace", "0s"]);
    pid_in(&mark);
    first.terminate().unwrap();
    let _second = agent(&server, "second", &[]);
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    let job = person.job(&only_job(&person, &run));
    let attempt = &job["attempts"][0];
    assert_eq!(attempt["cause"], "agent_shutdown", "{attempt}");
    server.check();
}

#[test]
fn a_run_that_nobody_can_take_ends_for_that() {
    let server = Server::start(Options::quick());
    let person = server.person();
    let _agent = agent(&server, "plain", &[]);
    let work = json!({"name": "work", "requires": ["gpu"], "job_spec": {"steps": ["true"]}});
    let run = person.create(&json!({"jobs": [work], "wait_timeout_seconds": 0.5}));
    let over = person.until_over(&run);
    assert_eq!(
        (&over["outcome"], &over["cause"]),
        (&json!("FAILED"), &json!("no_agent"))
    );
    server.check();
}

#[test]
fn a_cancel_names_its_cause_and_a_run_that_takes_too_long_its_own() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, "worker", &["--slots", "2"]);
    let long = |timeout: f64| {
        let work = json!({"name": "work", "job_spec": {"steps": ["sleep 60"]}});
        person.create(&json!({"jobs": [work], "timeout_seconds": timeout}))
    };
    let (canceled, late) = (long(600.0), long(1.0));
    until(
        "it runs",
        || person.run(&canceled)["state"].clone(),
        |state| state == "RUNNING",
    );
    person.cancel(&canceled).unwrap().expect(200);
    let over = person.until_over(&canceled);
    assert_eq!(
        (&over["outcome"], &over["cause"]),
        (&json!("CANCELED"), &json!("canceled_by_user"))
    );
    let over = person.until_over(&late);
    assert_eq!(
        (&over["outcome"], &over["cause"]),
        (&json!("TIMEOUT"), &json!("run_timeout"))
    );
    server.check();
}

// F9, A6, A69: nobody's fault but the machine's, and what may run once is left to a person.
#[test]
fn a_lost_agent_is_told_and_what_may_run_once_is_not_repeated() {
    let server = Server::start(Options::quick().flag("max-losses", "1"));
    let person = server.person();
    let mark = |name: &str| server.folder().join(name);
    let work = |name: &str, once: bool| {
        let step = format!(
            "echo $$ > {0}.new; mv {0}.new {0}; sleep 60",
            mark(name).display()
        );
        json!({"name": name, "once": once, "max_attempts": 3, "retry_on": [],
            "job_spec": {"steps": [step]}})
    };
    let run = person.create(&json!({"jobs": [work("once", true), work("often", false)]}));
    let lost = agent(&server, "lost", &["--slots", "2"]);
    for name in ["once", "often"] {
        pid_in(&mark(name));
    }
    lost.kill9().unwrap();
    let _other = agent(&server, "other", &[]);
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "FAILED", "{over}");
    for (name, cause) in [("once", "lost_once"), ("often", "lease_lost")] {
        let jobs = over["jobs"].as_array().unwrap();
        let job = jobs.iter().find(|job| job["name"] == name).unwrap();
        let job = person.job(job["job_id"].as_str().unwrap());
        assert_eq!(
            (&job["state"], &job["cause"]),
            (&json!("FAILED"), &json!(cause)),
            "{job}"
        );
        assert_eq!(job["attempts"].as_array().unwrap().len(), 1, "{job}");
        assert_eq!(job["attempts"][0]["losses"], 1, "{job}");
    }
    server.check();
}

#[test]
fn work_that_runners_take_and_never_begin_is_told_as_that() {
    let options = Options::quick().flag("ack-timeout", "300ms");
    let server = Server::start(options.flag("max-dispatches", "2"));
    let person = server.person();
    let run = person.create(&json!({"jobs": [{"name": "work", "job_spec": {"steps": ["true"]}}]}));
    for name in ["one", "two"] {
        server.runner(name).grant();
    }
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "FAILED", "{over}");
    let job = person.job(&only_job(&person, &run));
    assert_eq!(job["cause"], "not_accepted", "{job}");
    server.check();
}

/// Folders that take files and give none back, until this is dropped.
struct Sticky(PathBuf);

impl Sticky {
    /// A `git` that makes folders of these names so, once it has checked them out below `work`.
    fn git(folder: &Path, work: &Path) -> Sticky {
        std::fs::create_dir_all(folder).unwrap();
        let git = folder.join("git");
        let script = format!(
            "#!/bin/sh\nPATH=${{PATH#*:}}\ngit \"$@\"; code=$?\n\
             find {0} -type d \\( -name deps -o -name other \\) -path '*/workspace/*' \\\n\
             -exec chattr +a {{}} + 2>/dev/null\nexit $code\n",
            work.display()
        );
        std::fs::write(&git, script).unwrap();
        std::fs::set_permissions(&git, std::fs::Permissions::from_mode(0o755)).unwrap();
        Sticky(work.to_owned())
    }
}

impl Drop for Sticky {
    fn drop(&mut self) {
        let mut chattr = Command::new("chattr");
        let _ = chattr.args(["-R", "-f", "-a"]).arg(&self.0).status();
    }
}

// D10, F43
#[test]
fn half_a_cache_that_cannot_be_taken_back_ends_the_attempt_with_its_own_cause() {
    root::required("a folder that gives nothing back").unwrap();
    let root = tempfile::tempdir().unwrap();
    let app = Repository::make(root.path(), "app.git").unwrap();
    app.commit("deps/own", "the repository's\n").unwrap();
    let commit = app.commit("other/tool", "the repository's\n").unwrap();
    let http = GitHttp::start(root.path()).unwrap();
    let server = Server::start(Options::patient());
    let person = server.person();
    let run_of = |step: &str| {
        let caches = json!([{"type": "deps", "key": "deps", "paths": ["deps", "other"]}]);
        let spec = json!({"steps": [step], "caches": caches});
        json!({"repository": http.url("app.git"), "ref": "refs/heads/main", "commit": commit,
            "jobs": [job("work", &json!({}), &spec)]})
    };
    let first = server.agent("first").spawn().unwrap();
    let saved = person.create(&run_of(
        "rm deps/own; echo new > deps/new; echo new > other/tool",
    ));
    let over = person.until_over(&saved);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    first.kill9().unwrap();
    // What is new goes in, what is to be replaced cannot go out, and the new cannot either.
    let (tools, work) = (
        server.folder().join("tools"),
        server.folder().join("sticky"),
    );
    let _sticky = Sticky::git(&tools, &work);
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let _second = server.agent("sticky").env("PATH", path).spawn().unwrap();
    let run = person.create(&run_of("true"));
    person.until_over(&run);
    let attempt = person.attempt(&only_job(&person, &run));
    let ended = (&attempt["state"], &attempt["cause"]);
    assert_eq!(ended, (&json!("FAILED"), &json!("cache")), "{attempt}");
    let shown = attempt.to_string();
    assert!(shown.contains("could not be undone"), "{shown}");
}
