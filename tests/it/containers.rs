//! Jobs with an image: a real server, a real agent, a real dockerd.

use delta_testkit::docker::{Docker, IMAGE};
use delta_testkit::process::{Process, Spawn};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::faults_agent::{agent_with, only_job};
use crate::handover::log_of;
use crate::harness::{Options, Person, Server, until};

/// The agent `box`, each time on the same folders, with this daemon.
fn agent(server: &Server, docker: &Docker) -> Spawn {
    let agent = server.agent("box");
    let agent = agent.args(["--container-runtime", "docker", "--docker-host"]);
    agent.arg(docker.host())
}

fn run_in_container(step: &str, container: &Value) -> Value {
    json!({"jobs": [{
        "name": "work",
        "job_spec": {"steps": [step], "image": IMAGE, "container": container},
    }]})
}

fn agent_in_list(person: &Person, name: &str) -> Value {
    let list = until(
        "the agent is there",
        || person.get("/api/v1/agents"),
        |it| found(it, name).is_some(),
    );
    found(&list, name).unwrap()
}

fn found(list: &Value, name: &str) -> Option<Value> {
    let agents = list["agents"].as_array()?;
    agents.iter().find(|it| it["name"] == name).cloned()
}

/// Kills what watches over the attempts of the agent `box`.
fn kill_shims(server: &Server) {
    let place = server.folder().join("box/state/attempts");
    let place = place.canonicalize().unwrap();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let folder = place.as_os_str().as_encoded_bytes();
        if words.get(1) == Some(&&b"shim"[..]) && words[2].starts_with(folder) {
            let pid = process.file_name().to_string_lossy().parse().unwrap();
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        }
    }
}

fn nothing_left(docker: &Docker) {
    until(
        "no container is left",
        || docker.labelled().unwrap(),
        Vec::is_empty,
    );
}

fn kill(agent: &Process) {
    agent.kill9().unwrap();
}

// D7, F8, A64: it goes where containers are, the same container finishes under the next agent, and
// the log is what was printed.
#[test]
fn a_job_with_an_image_outlives_its_agent_and_leaves_nothing() {
    let docker = Docker::start().unwrap();
    let server = Server::start(Options::patient());
    let person = server.person();
    let none = ["--container-runtime", "/nonexistent"];
    let _plain = agent_with(&server, server.addr(), "plain", &none);
    assert_eq!(agent_in_list(&person, "plain")["docker"], false);
    let step = "hostname\ni=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); \
                until [ $i -lt 50 ] || [ -e /tmp/go ]; do sleep 0.05; done; done";
    let run = person.create(&run_in_container(step, &json!({"network": "none"})));
    let first = agent(&server, &docker).spawn().unwrap();
    let job = only_job(&person, &run);
    until(
        "it prints",
        || log_of(&person, &job),
        |log| log.contains("line 5\n"),
    );
    assert_eq!(agent_in_list(&person, "box")["docker"], true);
    let name = docker.labelled().unwrap().remove(0);
    let id = docker
        .run(&["inspect", "--format", "{{.Id}}", &name])
        .unwrap();
    kill(&first);
    let _second = agent(&server, &docker).spawn().unwrap();
    docker.run(&["exec", &name, "touch", "/tmp/go"]).unwrap();
    let over = person.until_over(&run);
    let log = log_of(&person, &job);
    assert_eq!(over["outcome"], "SUCCESS", "{over} {log}");
    let attempt = person.attempt(&job);
    assert_eq!(
        (&attempt["attempt"], &attempt["losses"]),
        (&json!(1), &json!(0))
    );
    let lines: String = (0..100).map(|n| format!("line {n}\n")).collect();
    let mark = "--- step 1: hostname …";
    assert_eq!(log, format!("{mark}\n{}\n{lines}", &id[..12]));
    nothing_left(&docker);
    server.check();
}

// T28, D9: what a crash of both left is found by its label, and nobody else's is touched.
#[test]
fn what_a_killed_agent_and_its_shims_left_is_removed_at_the_next_start() {
    let docker = Docker::start().unwrap();
    let server = Server::start(Options::patient());
    let person = server.person();
    let service = json!({"name": "db", "image": IMAGE, "command": ["sleep", "600"]});
    let container = json!({"services": [service], "memory_mb": 64});
    let step = "if [ $DELTA_ATTEMPT = 1 ]; then echo up; sleep 600; fi; echo again";
    let first = agent(&server, &docker).spawn().unwrap();
    let run = person.create(&run_in_container(step, &container));
    let job = only_job(&person, &run);
    until(
        "it runs",
        || log_of(&person, &job),
        |log| log.contains("\nup\n"),
    );
    assert_eq!(
        docker.labelled().unwrap().len(),
        3,
        "a job, a service, a network"
    );
    kill(&first);
    kill_shims(&server);
    let owner = std::fs::read_to_string(server.folder().join("box/state/owner")).unwrap();
    let stray = |name: &str, owner: &str| {
        let (agent, attempt) = (
            format!("delta-ci.agent={owner}"),
            format!("delta-ci.attempt={owner}-999"),
        );
        let labels = ["--label", &agent, "--label", &attempt, "--name", name];
        let start = ["run", "--detach", "--network", "none"];
        let words = [&start[..], &labels[..], &[IMAGE, "sleep", "600"]].concat();
        docker.run(&words).unwrap();
    };
    stray("stray", &owner);
    stray("somebody-elses", "another");
    let _second = agent(&server, &docker).spawn().unwrap();
    let over = person.until_over(&run);
    assert_eq!(
        over["outcome"],
        "SUCCESS",
        "{over} {}",
        log_of(&person, &job)
    );
    until(
        "only what is somebody else's is left",
        || docker.labelled().unwrap(),
        |left| left.as_slice() == ["somebody-elses"],
    );
    docker.run(&["rm", "--force", "somebody-elses"]).unwrap();
    server.check();
}

// EP-43: infrastructure, tried again, and named for what it is.
#[test]
fn an_image_that_cannot_be_had_is_named() {
    let docker = Docker::start().unwrap();
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, &docker).spawn().unwrap();
    let mut body = run_in_container("true", &json!({"network": "none"}));
    body["jobs"][0]["job_spec"]["image"] = json!("127.0.0.1:1/nosuch:1");
    body["jobs"][0]["max_attempts"] = json!(2);
    let run = person.create(&body);
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "FAILED", "{over}");
    let attempt = person.attempt(&only_job(&person, &run));
    assert_eq!(
        (&attempt["attempt"], &attempt["cause"]),
        (&json!(2), &json!("image"))
    );
    nothing_left(&docker);
    server.check();
}

// EP-43: a machine that starts no container is not what the file said wrong, and its work is tried
// again.
#[test]
fn a_machine_that_starts_no_container_is_not_blamed_on_the_file() {
    let docker = Docker::start_without_runtime().unwrap();
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, &docker).spawn().unwrap();
    let service = json!({"name": "db", "image": IMAGE, "command": ["sleep", "600"]});
    for container in [
        json!({"network": "none"}),
        json!({"network": "bridge", "services": [service]}),
    ] {
        let mut body = run_in_container("true", &container);
        body["jobs"][0]["max_attempts"] = json!(2);
        let run = person.create(&body);
        assert_eq!(person.until_over(&run)["outcome"], "FAILED");
        let attempt = person.attempt(&only_job(&person, &run));
        assert_eq!(attempt["cause"], "start_up", "{attempt}");
        assert_eq!(attempt["attempt"], 2, "{attempt}");
    }
    nothing_left(&docker);
    server.check();
}

// D10: told apart through everything up to the API, and tried again where the machine did it.
#[test]
fn what_ends_a_step_in_a_container_has_its_cause() {
    let docker = Docker::start().unwrap();
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, &docker).spawn().unwrap();
    // For want of memory, with everything that is in the container.
    let hogs = "i=0; while [ $i -lt 40 ]; do \
                (x=$(head -c 3000000 /dev/zero | tr '\\0' x); sleep 5) & i=$((i+1)); done; \
                wait; exit 1";
    let starved = run_in_container(hogs, &json!({"network": "none", "memory_mb": 24}));
    let run = person.create(&starved);
    assert_eq!(person.until_over(&run)["outcome"], "FAILED");
    let job = person.job(&only_job(&person, &run));
    let attempts = job["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 1, "{job}");
    assert_eq!(attempts[0]["cause"], "out_of_memory", "{job}");
    assert!(attempts[0]["evidence"]["oom_kills"].as_u64() >= Some(1));
    // By somebody at the machine.
    let step = "[ $DELTA_ATTEMPT != 1 ] || { echo up; while :; do sleep 1; done; }";
    let run = person.create(&run_in_container(step, &json!({"network": "none"})));
    let job = only_job(&person, &run);
    until(
        "it runs",
        || log_of(&person, &job),
        |log| log.contains("\nup\n"),
    );
    let name = docker.labelled().unwrap().remove(0);
    docker.run(&["kill", &name]).unwrap();
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    let job = person.job(&job);
    assert_eq!(job["attempts"][0]["cause"], "agent_error", "{job}");
    nothing_left(&docker);
    // With nobody there to make one.
    docker.stop();
    let mut body = run_in_container("true", &json!({"network": "none"}));
    body["jobs"][0]["max_attempts"] = json!(1);
    let run = person.create(&body);
    assert_eq!(person.until_over(&run)["outcome"], "FAILED");
    let attempt = person.attempt(&only_job(&person, &run));
    assert_eq!(attempt["cause"], "start_up", "{attempt}");
    server.check();
}
