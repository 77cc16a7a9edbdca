//! Secrets as canaries: while jobs run and print, with everything logged that can be, none of them
//! is anywhere but where it must be.

use std::fs;
use std::path::Path;

use delta_testkit::process::{Process, Spawn};
use serde_json::Value;

use crate::faults_agent::{only_job, pid_in, run_of};
use crate::harness::{Options, Person, Server, delta_ci, until};

/// Everything that Rust code here can be made to log, but for single bytes.
const LOUD: (&str, &str) = ("RUST_LOG", "debug");

/// A secret, and what is searched for: its end, which no id has.
struct Canary {
    what: &'static str,
    end: String,
}

fn canary(what: &'static str, secret: &str) -> Canary {
    let secret = secret.trim();
    assert!(secret.len() >= 32, "{what} is a secret");
    let end = secret[secret.len() - 20..].to_owned();
    Canary { what, end }
}

/// None of them is in this text.
#[track_caller]
fn none_in(canaries: &[Canary], place: &str, bytes: &[u8]) {
    for Canary { what, end } in canaries {
        let found = bytes.windows(end.len()).any(|it| it == end.as_bytes());
        assert!(!found, "{what} is in {place}");
    }
}

fn agent(server: &Server, name: &str) -> Spawn {
    delta_ci()
        .env(LOUD.0, LOUD.1)
        .args(["agent", "--name", name, "--server"])
        .arg(format!("http://{}", server.addr()))
        .arg("--work-dir")
        .arg(server.folder().join(name))
}

/// An agent with a token of its role, and one that enrols; and both their secrets.
fn agents(server: &Server) -> ([Process; 2], Vec<Canary>) {
    let file = |name: &str, token: &str| {
        let path = server.folder().join(name);
        fs::write(&path, token).unwrap();
        path
    };
    let (runner, once) = (server.token("runner"), server.token("enrolment"));
    let plain = agent(server, "plain")
        .arg("--token-file")
        .arg(file("runner.token", &runner));
    let enrolled = agent(server, "enrolled")
        .arg("--enroll-token-file")
        .arg(file("once.token", &once));
    let agents = [plain.spawn().unwrap(), enrolled.spawn().unwrap()];
    let state = |name: &str, file: &str| {
        let path = server.folder().join(name).join("state").join(file);
        let read = || fs::read_to_string(&path).unwrap_or_default();
        until("the agent is known", read, |text| !text.trim().is_empty())
    };
    let known: Value = serde_json::from_str(&state("plain", "agent.json")).unwrap();
    let canaries = vec![
        canary("a runner token", &runner),
        canary("an enrolment token", &once),
        canary("an agent's credential", &state("enrolled", "credential")),
        canary("a resume secret", known["resume_secret"].as_str().unwrap()),
    ];
    (agents, canaries)
}

/// The secrets of the lease that this agent holds.
fn of_lease(server: &Server, agent: &str) -> Vec<Canary> {
    let attempts = server.folder().join(agent).join("state/attempts");
    let entries = fs::read_dir(attempts).unwrap();
    let mut notes = entries.filter_map(|entry| fs::read(entry.unwrap().path().join("note")).ok());
    let note: Value = serde_json::from_slice(&notes.next().unwrap()).unwrap();
    let granted = &note["granted"];
    let mut canaries = vec![canary(
        "a lease token",
        granted["lease_id"].as_str().unwrap(),
    )];
    let cancel = granted["cancel_token"].as_str();
    canaries.extend(cancel.map(|token| canary("a cancel token", token)));
    canaries
}

/// Command line and environment of every process there is: agents, shims, jobs, and whoever else.
fn check_processes(canaries: &[Canary]) {
    let mut seen = 0;
    for process in fs::read_dir("/proc").unwrap().flatten() {
        for file in ["environ", "cmdline"] {
            // Not a process, gone, or somebody else's.
            if let Ok(bytes) = fs::read(process.path().join(file)) {
                seen += 1;
                none_in(canaries, &format!("a process's {file}"), &bytes);
            }
        }
    }
    assert!(seen > 10, "processes were looked at");
}

/// What people can ask for about a run, and what machines can about the server.
fn check_answers(canaries: &[Canary], person: &Person, run: &str) {
    let job = only_job(person, run);
    for path in [
        "/metrics".to_owned(),
        "/readyz".to_owned(),
        "/api/v1/runs".to_owned(),
        "/api/v1/agents".to_owned(),
        format!("/api/v1/runs/{run}"),
        format!("/api/v1/runs/{run}/events"),
        format!("/api/v1/jobs/{job}"),
        format!("/api/v1/jobs/{job}/log"),
    ] {
        let answer = person.http.get(&path).unwrap().expect(200);
        none_in(canaries, &path, answer.text.as_bytes());
        for (name, value) in &answer.headers {
            none_in(canaries, &format!("{path}: {name}"), value.as_bytes());
        }
    }
}

/// Every file below: databases, their journals, log segments.
fn check_files(canaries: &[Canary], folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            check_files(canaries, &path)
        } else {
            none_in(
                canaries,
                &path.display().to_string(),
                &fs::read(&path).unwrap_or_default(),
            )
        }
    }
}

// T2, I24, A24: two jobs that print all they can see, under two kinds of credential.
#[test]
fn no_secret_is_logged_stored_shown_or_handed_to_a_process() {
    let server = Server::start(Options::patient().env(LOUD.0, LOUD.1));
    let person = server.person();
    let (agents, mut canaries) = agents(&server);
    let go = server.folder().join("go");
    let begin = |name: &str| {
        let mark = server.folder().join(format!("{name}.mark"));
        let step = format!(
            "env; cat /proc/self/environ /proc/$PPID/environ /proc/$PPID/cmdline; \
             i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; \
             echo $$ > {mark}.new; mv {mark}.new {mark}; \
             until [ -e {go} ]; do sleep 0.02; done",
            mark = mark.display(),
            go = go.display()
        );
        (mark, person.create(&run_of(&step)))
    };
    let begun = ["one", "two"].map(begin);
    for (mark, _) in &begun {
        pid_in(mark);
    }
    for agent in ["plain", "enrolled"] {
        canaries.extend(of_lease(&server, agent));
    }
    assert!(canaries.len() >= 6);
    check_processes(&canaries);
    for (_, run) in &begun {
        check_answers(&canaries, &person, run);
    }
    fs::write(&go, "").unwrap();
    for (_, run) in &begun {
        assert_eq!(person.until_over(run)["outcome"], "SUCCESS");
        check_answers(&canaries, &person, run);
    }
    for agent in &agents {
        agent.terminate().unwrap();
        agent.wait(std::time::Duration::from_secs(30)).unwrap();
        let said = agent.stdout() + &agent.stderr();
        assert!(said.contains("DEBUG"), "it logs what it can");
        none_in(&canaries, "what the agent said", said.as_bytes());
    }
    let said = server.log();
    assert!(said.contains("DEBUG"), "it logs what it can");
    none_in(&canaries, "what the server said", said.as_bytes());
    check_files(&canaries, &server.data());
    server.check();
}
