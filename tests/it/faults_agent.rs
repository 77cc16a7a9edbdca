//! The agent of this project as a process: killed, stopped and continued while it works.

use std::net::SocketAddr;
use std::path::Path;

use delta_testkit::process::Process;
use serde_json::{Value, json};

use crate::harness::{Options, Person, Server, delta_ci, until};

/// Starts an agent with one slot and a token file of its own.
fn agent(server: &Server, name: &str) -> Process {
    agent_at(server, server.addr(), name)
}

/// Starts an agent with one slot by way of another address.
pub fn agent_at(server: &Server, addr: SocketAddr, name: &str) -> Process {
    agent_with(server, addr, name, &[])
}

/// Starts an agent with one slot by way of this address, with further arguments.
pub fn agent_with(server: &Server, addr: SocketAddr, name: &str, more: &[&str]) -> Process {
    let file = server.folder().join(format!("{name}.token"));
    std::fs::write(&file, server.token("runner")).unwrap();
    delta_ci()
        // How each lease ended is told, too.
        .env("RUST_LOG", "warn,delta_agent=info")
        .args([
            "agent",
            "--server",
            &format!("http://{addr}"),
            "--name",
            name,
        ])
        .arg("--token-file")
        .arg(&file)
        .arg("--work-dir")
        .arg(server.folder().join(name))
        .args(more)
        .spawn()
        .unwrap()
}

pub fn run_of(step: &str) -> Value {
    json!({"jobs": [{"name": "work", "job_spec": {"steps": [step]}}]})
}

pub fn only_job(person: &Person, run: &str) -> String {
    person.run(run)["jobs"][0]["job_id"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Waits for the step to write its process id.
pub fn pid_in(file: &Path) -> u32 {
    until(
        "the step has begun",
        || {
            std::fs::read_to_string(file)
                .unwrap_or_default()
                .trim()
                .parse()
                .ok()
        },
        Option::is_some,
    )
    .unwrap()
}

pub fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

// F2, RP-57: kill -9 of an agent at work; another one does the same attempt.
#[test]
fn a_killed_agent_is_replaced_by_another() {
    let server = Server::start(Options::quick().flag("lease-ttl", "3s"));
    let person = server.person();
    let first = agent(&server, "first");
    let mark = server.folder().join("mark");
    // The first execution waits for good, the second one ends.
    let step = format!(
        "echo $$ > {mark}.new; mv {mark}.new {mark}; \
         test \"$DELTA_LEASE_EPOCH\" -gt \"$(cat {mark}.epoch 2>/dev/null || echo 999999999999)\" \
         && exit 0; echo \"$DELTA_LEASE_EPOCH\" > {mark}.epoch; exec sleep 20",
        mark = mark.display()
    );
    let run = person.create(&run_of(&step));
    pid_in(&mark);
    until(
        "the epoch is noted",
        || mark.with_extension("epoch").exists(),
        |it| *it,
    );
    first.kill9().unwrap();
    let _second = agent(&server, "second");
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    let attempt = person.attempt(&only_job(&person, &run));
    assert_eq!(
        (&attempt["attempt"], &attempt["losses"]),
        (&json!(1), &json!(1)),
        "{attempt}"
    );
    server.check();
}

// F6: stopped for less than the time to live.
#[test]
fn an_agent_paused_for_less_than_its_lease_loses_nothing() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let agent = agent(&server, "sleepy");
    let mark = server.folder().join("mark");
    let (go, end) = (server.folder().join("go"), server.folder().join("end"));
    let step = format!(
        "echo $$ > {}; until [ -e {} ]; do sleep 0.05; done; touch {}",
        mark.display(),
        go.display(),
        end.display()
    );
    let run = person.create(&run_of(&step));
    pid_in(&mark);
    agent.stop().unwrap();
    // The job begins its end, and ends, while its agent is away.
    std::fs::write(&go, "").unwrap();
    until("the step has ended", || end.exists(), |there| *there);
    agent.cont().unwrap();
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    let attempt = person.attempt(&only_job(&person, &run));
    assert_eq!(attempt["losses"], 0, "{attempt}");
    assert_eq!(attempt["leases"].as_array().unwrap().len(), 1, "{attempt}");
    server.check();
}

// F7, RP-45, RP-58: stopped for longer; the work is somebody else's when it wakes up.
#[test]
fn an_agent_paused_for_longer_ends_its_work_when_it_wakes() {
    let server = Server::start(Options::quick().flag("lease-ttl", "3s"));
    let person = server.person();
    let sleepy = agent(&server, "sleepy");
    let mark = server.folder().join("mark");
    let step = format!("echo $$ > {}; sleep 60", mark.display());
    let run = person.create(&run_of(&step));
    let worker = pid_in(&mark);
    sleepy.stop().unwrap();
    let other = server.runner("other");
    let grant = other.take();
    assert_eq!((&grant.run, grant.attempt), (&run, 1));
    other.succeed(&grant);
    let before = person.until_over(&run);
    assert_eq!(before["outcome"], "SUCCESS");
    sleepy.cont().unwrap();
    until(
        "the stale work has ended",
        || is_alive(worker),
        |alive| !alive,
    );
    // It is free again, and what it did meanwhile changed nothing.
    let next = person.create(&run_of("true"));
    assert_eq!(person.until_over(&next)["outcome"], "SUCCESS");
    let after = person.run(&run);
    assert_eq!(after["version"], before["version"], "{after}");
    let attempt = person.attempt(&grant.job);
    assert_eq!(attempt["leases"][0]["state"], "EXPIRED", "{attempt}");
    server.check();
}

// F12, RP-60: the server is killed and comes back while an agent works.
#[test]
fn an_agent_works_on_while_its_server_is_killed_and_comes_back() {
    let mut server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, "steady");
    let mark = server.folder().join("mark");
    let step = format!(
        "echo begun; echo $$ > {}; sleep 3; echo ended",
        mark.display()
    );
    let run = person.create(&run_of(&step));
    pid_in(&mark);
    server.kill9();
    server.start_again();
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    let job = only_job(&person, &run);
    let attempt = person.attempt(&job);
    assert_eq!(attempt["losses"], 0, "{attempt}");
    assert_eq!(attempt["leases"].as_array().unwrap().len(), 1, "{attempt}");
    let log = person
        .http
        .get(&format!("/api/v1/jobs/{job}/log"))
        .unwrap()
        .expect(200);
    assert!(
        log.text.contains("begun") && log.text.contains("ended"),
        "{}",
        log.text
    );
    server.check();
}
