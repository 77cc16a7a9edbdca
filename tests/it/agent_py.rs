//! The agent in Python, generated from `agent.proto` alone, against a real server: nothing of this
//! project but the schema is on its side.

use std::path::Path;

use delta_testkit::process::{Process, Spawn};
use serde_json::{Value, json};

use crate::faults_agent::{is_alive, only_job, pid_in, run_of};
use crate::handover::log_of;
use crate::harness::person::SOON;
use crate::harness::{Options, Person, Server, delta_ci, until};

/// Debian's packages are for Debian's Python, whichever else is on the path.
const PYTHON: &str = "/usr/bin/python3";

/// What agent.py stands on, and the packages that have it.
const NEEDS: [(&str, &str); 5] = [
    (PYTHON, "python3"),
    (
        "/usr/lib/python3/dist-packages/grpc/__init__.py",
        "python3-grpcio",
    ),
    ("/usr/bin/protoc", "protobuf-compiler"),
    ("/usr/bin/grpc_python_plugin", "protobuf-compiler-grpc"),
    (
        "/usr/include/google/protobuf/timestamp.proto",
        "libprotobuf-dev",
    ),
];

/// A lease that outlives a slow machine, and time enough to end a process.
fn server() -> Server {
    Server::start(Options::patient().flag("cancel-deadline", "20s"))
}

/// The agent `python` with this token, registered or about to be.
fn agent(server: &Server, token: &str) -> Process {
    for (file, package) in NEEDS {
        assert!(
            Path::new(file).is_file(),
            "examples/agent.py needs the Debian package {package}: \
             as root, cargo xtask test --install"
        );
    }
    let file = server.folder().join("python.token");
    std::fs::write(&file, token).unwrap();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/agent.py");
    Spawn::new(PYTHON)
        .clean_env()
        .env("PATH", "/usr/bin:/bin")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(program)
        .args(["--name", "python", "--server"])
        .arg(format!("http://{}", server.addr()))
        .arg("--token-file")
        .arg(&file)
        .spawn()
        .expect("python starts")
}

fn said(agent: &Process, line: &str) -> String {
    agent.wait_for_line(line, SOON).unwrap()
}

/// A step that notes its process, and waits for a file.
fn waiting(server: &Server) -> (String, std::path::PathBuf, std::path::PathBuf) {
    let (mark, go) = (server.folder().join("mark"), server.folder().join("go"));
    let step = format!(
        "echo $$ > {mark}.new; mv {mark}.new {mark}; until [ -e {go} ]; do sleep 0.05; done; \
         echo done",
        mark = mark.display(),
        go = go.display()
    );
    (step, mark, go)
}

/// The job had one attempt and one lease; returns the attempt.
fn only_attempt(person: &Person, job: &str) -> Value {
    let view = person.job(job);
    assert_eq!(view["attempts"].as_array().unwrap().len(), 1, "{view}");
    let attempt = view["attempts"][0].clone();
    assert_eq!(attempt["leases"].as_array().unwrap().len(), 1, "{view}");
    attempt
}

// EP-1, EP-26: one stream for everything, and the additions left out but for the lease.
#[test]
fn a_generated_client_executes_a_job_and_its_log_is_exact() {
    let server = server();
    let person = server.person();
    let agent = agent(&server, &server.token("runner"));
    let steps = [
        "echo attempt $DELTA_ATTEMPT of $COLOUR; echo problem >&2",
        "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done",
        "mkdir kept; printf end",
    ];
    let spec = json!({"steps": steps, "env": {"COLOUR": "red"}});
    let run = person.create(&json!({"jobs": [{"name": "work", "job_spec": spec}]}));
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    let job = only_job(&person, &run);
    said(&agent, &format!("{job} SUCCESS"));
    let mut wanted = "attempt 1 of red\nproblem\n".to_owned();
    wanted.extend((0..20_000).map(|line| format!("line {line}\n")));
    assert!(
        log_of(&person, &job) == wanted + "end",
        "the log is not what was printed"
    );
    let attempt = only_attempt(&person, &job);
    assert_eq!(attempt["exit_code"], 0, "{attempt}");
    assert_eq!(attempt["leases"][0]["state"], "COMPLETED", "{attempt}");
    // Then it is free for the next one.
    let next = person.create(&run_of("true"));
    assert_eq!(person.until_over(&next)["outcome"], "SUCCESS");
    assert_eq!(agent.stderr(), "", "nothing was refused");
    server.check();
}

// EP-14, EP-26
#[test]
fn a_generated_client_reports_a_failure() {
    let server = server();
    let person = server.person();
    let agent = agent(&server, &server.token("runner"));
    let spec = json!({"steps": ["echo before", "exit 3", "echo never"]});
    let run = person.create(&json!({"jobs": [{"name": "work", "job_spec": spec}]}));
    assert_eq!(person.until_over(&run)["outcome"], "FAILED");
    let job = only_job(&person, &run);
    said(&agent, &format!("{job} FAILURE"));
    assert_eq!(log_of(&person, &job), "before\n");
    let attempt = only_attempt(&person, &job);
    assert_eq!(attempt["state"], "FAILED", "{attempt}");
    assert_eq!(agent.stderr(), "", "nothing was refused");
    server.check();
}

// EP-23, EP-27: the process is ended first, then CANCELLED is said.
#[test]
fn a_generated_client_ends_what_is_canceled() {
    let server = server();
    let person = server.person();
    let agent = agent(&server, &server.token("runner"));
    let (step, mark, _) = waiting(&server);
    let run = person.create(&run_of(&step));
    let worker = pid_in(&mark);
    person.cancel(&run).unwrap();
    assert_eq!(person.until_over(&run)["outcome"], "CANCELED");
    assert!(!is_alive(worker), "it ended before that was said");
    let job = only_job(&person, &run);
    said(&agent, &format!("{job} CANCELLED"));
    let attempt = only_attempt(&person, &job);
    assert_eq!(attempt["state"], "CANCELED", "{attempt}");
    assert_eq!(attempt["leases"][0]["state"], "CANCELED", "{attempt}");
    assert_eq!(agent.stderr(), "", "nothing was refused");
    server.check();
}

// EP-24, EP-25, EP-28: it finishes its job, says so, and gets nothing new.
#[test]
fn a_generated_client_drains() {
    let server = server();
    let person = server.person();
    let agent = agent(&server, &server.token("runner"));
    let (step, mark, go) = waiting(&server);
    let run = person.create(&run_of(&step));
    pid_in(&mark);
    let drain = delta_ci()
        .args(["drain", "python", "--wait", "--timeout", "1m", "--data"])
        .arg(server.data())
        .spawn()
        .unwrap();
    drain.wait_for_line("1 lease left", SOON).unwrap();
    let next = person.create(&run_of("echo later"));
    std::fs::write(&go, "").unwrap();
    assert_eq!(drain.wait(SOON).unwrap().code(), Some(0), "{drain:?}");
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    assert_eq!(log_of(&person, &only_job(&person, &run)), "done\n");
    let waits = only_job(&person, &next);
    assert_eq!(person.job(&waits)["state"], "QUEUED", "nothing new");
    // Taken back, it works on in the same session.
    let undrained = server.cli(&["undrain", "python"]);
    assert_eq!(undrained.code, Some(0), "{undrained:?}");
    assert_eq!(person.until_over(&next)["outcome"], "SUCCESS");
    assert_eq!(agent.stderr(), "", "nothing was refused");
    server.check();
}

// EP-29, EP-36: the server is killed and comes back; the same agent goes on with the same job.
#[test]
fn a_generated_client_comes_back_with_its_id_and_its_work() {
    let mut server = Server::start(Options::patient().flag("lease-ttl", "20s"));
    let person = server.person();
    let agent = agent(&server, &server.token("runner"));
    let (step, mark, go) = waiting(&server);
    let run = person.create(&run_of(&step));
    let worker = pid_in(&mark);
    let registered = said(&agent, "registered");
    server.kill9();
    said(&agent, "disconnected: UNAVAILABLE");
    server.start_again();
    until(
        "it registers again",
        || {
            agent
                .stdout()
                .lines()
                .filter(|it| *it == registered)
                .count()
        },
        |times| *times == 2,
    );
    assert!(is_alive(worker));
    std::fs::write(&go, "").unwrap();
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    let job = only_job(&person, &run);
    assert_eq!(log_of(&person, &job), "done\n");
    assert_eq!(only_attempt(&person, &job)["losses"], 0);
    server.check();
}

// A31, RP-57: its heartbeats renew the lease; stopped for longer than that lives, it is told so,
// ends its work and reports nothing.
#[test]
fn a_generated_client_keeps_its_lease_and_ends_its_work_when_it_is_lost() {
    let server = Server::start(Options::quick().flag("lease-ttl", "6s"));
    let person = server.person();
    let agent = agent(&server, &server.token("runner"));
    let long = person.create(&run_of("sleep 8"));
    assert_eq!(person.until_over(&long)["outcome"], "SUCCESS");
    assert_eq!(
        only_attempt(&person, &only_job(&person, &long))["losses"],
        0
    );
    let (step, mark, _) = waiting(&server);
    let run = person.create(&run_of(&step));
    let worker = pid_in(&mark);
    agent.stop().unwrap();
    let other = server.runner("other");
    let grant = other.take();
    assert_eq!((&grant.run, grant.attempt), (&run, 1));
    other.succeed(&grant);
    let before = person.until_over(&run);
    agent.cont().unwrap();
    said(&agent, &format!("{} stale", grant.job));
    assert!(!is_alive(worker));
    // What it did meanwhile changed nothing, and it is free again.
    let next = person.create(&run_of("true"));
    assert_eq!(person.until_over(&next)["outcome"], "SUCCESS");
    assert_eq!(person.run(&run)["version"], before["version"]);
    server.check();
}

// EP-35
#[test]
fn a_generated_client_ends_when_its_credential_is_refused() {
    let server = server();
    let agent = agent(&server, &server.token("user"));
    let status = agent.wait(SOON).unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(agent.stderr().contains("refused"), "{}", agent.stderr());
    server.check();
}
