//! The secrets of a job as canaries: set by a person, used by a job on a real agent, and found
//! nowhere else; and everybody who must not get one.

use std::fs;
use std::path::Path;

use delta_testkit::process::{Process, Spawn};
use serde_json::{Value, json};

use crate::faults_agent::{is_alive, only_job, pid_in};
use crate::handover::log_of;
use crate::harness::{Grant, Options, Person, Runner, Server, until};

const VALUE: &str = "canary-Zq8kW3vR1t";
const LOUD: (&str, &str) = ("RUST_LOG", "debug");

/// Sets a secret with the command line; the file with its value is gone afterwards.
fn set(server: &Server, name: &str, more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("value");
    fs::write(&file, format!("{VALUE}\n")).unwrap();
    let file = file.to_str().unwrap();
    let arguments = [&["secret", "set", name, "--file", file], more].concat();
    let done = server.cli(&arguments);
    assert_eq!(done.code, Some(0), "{done:?}");
}

fn agent(server: &Server) -> Spawn {
    server.agent("box").env(LOUD.0, LOUD.1)
}

fn run_with(steps: &[&str], more: Value) -> Value {
    let mut spec = json!({ "steps": steps, "secrets": ["CANARY"], "checkout": false });
    for (name, value) in more.as_object().unwrap() {
        spec[name] = value.clone();
    }
    json!({ "jobs": [{ "name": "a", "max_attempts": 2, "job_spec": spec }] })
}

/// In no form that anybody looks for.
#[track_caller]
fn not_in(place: &str, bytes: &[u8]) {
    for form in [VALUE, "Y2FuYXJ5LVpxOGtXM3ZSMX", "Zq8kW3vR1t"] {
        let found = bytes.windows(form.len()).any(|it| it == form.as_bytes());
        assert!(!found, "{form} is in {place}");
    }
}

fn not_in_files(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            not_in_files(&path);
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap_or_default();
            not_in(&path.display().to_string(), &bytes);
        }
    }
}

fn not_in_processes() {
    let mut seen = 0;
    for process in fs::read_dir("/proc").unwrap().flatten() {
        if let Ok(bytes) = fs::read(process.path().join("cmdline")) {
            seen += 1;
            not_in("a command line", &bytes);
        }
    }
    assert!(seen > 5, "processes were looked at");
}

fn not_in_answers(server: &Server, person: &Person, run: &str) {
    let job = only_job(person, run);
    let admin = Person::new(server.addr(), &server.token("admin"));
    for path in [
        "/metrics".to_owned(),
        "/api/v1/secrets".to_owned(),
        "/api/v1/agents".to_owned(),
        format!("/api/v1/runs/{run}"),
        format!("/api/v1/runs/{run}/events"),
        format!("/api/v1/jobs/{job}"),
        format!("/api/v1/jobs/{job}/log"),
    ] {
        let answer = admin.http.get(&path).unwrap().expect(200);
        not_in(&path, answer.text.as_bytes());
    }
    let listed = server.cli(&["secret", "list", "--json"]);
    assert!(listed.stdout.contains("CANARY"), "{listed:?}");
    not_in("the list", listed.stdout.as_bytes());
}

fn end(agent: &Process) {
    agent.terminate().unwrap();
    agent.wait(std::time::Duration::from_secs(30)).unwrap();
    let said = agent.stdout() + &agent.stderr();
    not_in("what the agent said", said.as_bytes());
}

/// Prints its secret in halves, in base64 and as it is, before and after somebody looked.
fn talkative(server: &Server) -> [String; 2] {
    let (mark, go) = (server.folder().join("mark"), server.folder().join("go"));
    let halves = "printf ${CANARY%??????????}; sleep 0.1; echo ${CANARY#???????} halves";
    [
        format!("echo raw $CANARY; {halves}; printf %s $CANARY | base64"),
        format!(
            "echo $$ > {mark}.new; mv {mark}.new {mark}; until [ -e {go} ]; do sleep 0.02; done; \
             echo again $CANARY; {halves}; echo kept > out.txt",
            mark = mark.display(),
            go = go.display()
        ),
    ]
}

// EP-18, A51, D8, T6: and the agent is killed while its job runs.
#[test]
fn a_secret_of_a_job_is_nowhere_but_in_its_environment() {
    let server = Server::start(Options::patient().env(LOUD.0, LOUD.1));
    let person = server.person();
    set(&server, "CANARY", &[]);
    let first = agent(&server).spawn().unwrap();
    let [one, two] = talkative(&server);
    // What is kept of it makes the second agent fetch the secret again.
    let kept = json!({ "artifacts": ["out.txt"] });
    let run = person.create(&run_with(&[&one, &two], kept));
    let worker = pid_in(&server.folder().join("mark"));
    let environ = fs::read(format!("/proc/{worker}/environ"));
    let has = |bytes: &[u8]| bytes.windows(VALUE.len()).any(|it| it == VALUE.as_bytes());
    assert!(environ.is_ok_and(|bytes| has(&bytes)), "the job has it");
    let job = only_job(&person, &run);
    let log = || log_of(&person, &job);
    until("it is printed", log, |log| log.contains("--- step 2"));
    not_in_processes();
    not_in_files(server.folder());
    not_in_answers(&server, &person, &run);
    first.kill9().unwrap();
    let second = agent(&server).spawn().unwrap();
    fs::write(server.folder().join("go"), "").unwrap();
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    until("it is gone", || is_alive(worker), |alive| !alive);
    let log = log();
    for part in ["raw ***\n*** halves\n***\n", "again ***\n*** halves\n"] {
        assert!(log.contains(part), "{part:?} in {log}");
    }
    assert!(log.contains("got 1 secret: CANARY"), "{log}");
    not_in_answers(&server, &person, &run);
    end(&second);
    not_in(
        "what the first agent said",
        (first.stdout() + &first.stderr()).as_bytes(),
    );
    not_in("what the server said", server.log().as_bytes());
    let read = server.log().matches("secret.read").count();
    assert!(read >= 1, "it is in the audit log: {}", server.log());
    // The database with its journal, the objects, the agent's folders: everything.
    not_in_files(server.folder());
    server.check();
}

// T5
#[test]
fn an_untrusted_job_runs_without_its_secrets_and_says_so() {
    let server = Server::start(Options::patient());
    let person = server.person();
    set(&server, "CANARY", &[]);
    let agent = agent(&server).spawn().unwrap();
    let mut run = run_with(&["test -z \"$CANARY\"; echo none"], json!({}));
    run["trust"] = json!("untrusted");
    let run = person.create(&run);
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    let log = log_of(&person, &only_job(&person, &run));
    assert!(log.contains("not trusted: it gets no secrets"), "{log}");
    end(&agent);
    server.check();
}

#[test]
fn a_secret_that_is_not_set_fails_the_job_by_name() {
    let server = Server::start(Options::patient());
    let person = server.person();
    set(
        &server,
        "CANARY",
        &["--repository", "https://forge.test/other"],
    );
    let agent = agent(&server).spawn().unwrap();
    let run = person.create(&run_with(&["echo never"], json!({})));
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "FAILED", "{over}");
    let job = only_job(&person, &run);
    let attempt = person.attempt(&job);
    assert_eq!(attempt["cause"], "spec_error", "{attempt}");
    assert_eq!(
        attempt["attempt"], 1,
        "nothing changes by trying again: {attempt}"
    );
    let log = log_of(&person, &job);
    assert!(log.contains("the secret CANARY is not set"), "{log}");
    assert!(!log.contains("never"), "{log}");
    end(&agent);
    server.check();
}

fn fetch(runner: &Runner, grant: &Grant, names: &[&str]) -> (u16, String) {
    let body = json!({ "names": names }).to_string();
    let lease = [("Delta-Lease", grant.lease.as_str())];
    let path = "/api/v1/runner/secrets";
    let answer = runner.http.send("POST", path, &lease, body.as_bytes());
    let answer = answer.expect("an answer");
    (answer.status, answer.text)
}

// LM-13, D4, A51: a stale lease, another's lease, a name that the policy has not.
#[test]
fn whoever_has_no_right_to_a_secret_gets_nothing() {
    let server = Server::start(Options::quick().flag("lease-ttl", "5s"));
    let person = server.person();
    for name in ["CANARY", "OTHER"] {
        set(&server, name, &[]);
    }
    let (one, two) = (server.runner("one"), server.runner("two"));
    person.create(&run_with(&["true"], json!({})));
    let first = one.take();
    let (status, text) = fetch(&one, &first, &["CANARY"]);
    assert!(status == 200 && text.contains(VALUE), "{status} {text}");
    let refused = |(status, text): (u16, String), wanted: u16| {
        assert_eq!(status, wanted, "{text}");
        not_in("a refusal", text.as_bytes());
    };
    refused(fetch(&one, &first, &["OTHER"]), 403);
    refused(fetch(&one, &first, &["CANARY", "OTHER"]), 403);
    refused(fetch(&two, &first, &["CANARY"]), 409);
    // Left alone it runs out, and somebody else has the job.
    let second = two.take();
    refused(fetch(&one, &first, &["CANARY"]), 409);
    let (status, _) = fetch(&two, &second, &["CANARY"]);
    assert_eq!(status, 200);
    two.succeed(&second);
    refused(fetch(&two, &second, &["CANARY"]), 409);
    not_in("what the server said", server.log().as_bytes());
}

// I24: a name is seen by whoever sees the run.
#[test]
fn a_file_with_a_secret_in_its_name_is_no_artifact() {
    let server = Server::start(Options::patient());
    let person = server.person();
    set(&server, "CANARY", &[]);
    let _agent = agent(&server).spawn().unwrap();
    let steps = ["echo a > out-$CANARY.txt; mkdir $CANARY; echo b > $CANARY/x; echo c > out-plain"];
    let artifacts = json!({ "artifacts": ["out-*", "*/x"] });
    let run = person.create(&run_with(&steps, artifacts));
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    let list = person.get(&format!("/api/v1/runs/{run}/artifacts"));
    let names = list["artifacts"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["out-plain"], "{list}");
    let log = log_of(&person, &only_job(&person, &run));
    assert!(
        log.contains("no artifact: a secret is in the name"),
        "{log}"
    );
    not_in_answers(&server, &person, &run);
    not_in_files(&server.data());
}
