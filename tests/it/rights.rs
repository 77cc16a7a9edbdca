//! The rights of a lease through the real binary: what a revoked agent can still do with what it
//! held, and what a reconnect and a handover leave of an upload under way.

use std::path::{Path, PathBuf};
use std::time::Duration;

use delta_testkit::process::{Process, Spawn};
use delta_testkit::proxy::{Direction, Proxy};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::faults_agent::{is_alive, only_job, pid_in};
use crate::handover::log_of;
use crate::harness::http::Answer;
use crate::harness::{Http, Options, Server, delta_ci, until};

/// How long the largest file may take.
const LONG: Duration = Duration::from_secs(240);
/// Bytes a second of an upload that is to be met on its way.
const SLOW: u32 = 8_000_000;

/// An agent by the name `box` with this token, on folders of that name, at this address.
fn agent(server: &Server, addr: std::net::SocketAddr, token: &Path) -> Spawn {
    delta_ci()
        .args(["agent", "--name", "box", "--server"])
        .arg(format!("http://{addr}"))
        .arg("--token-file")
        .arg(token)
        .arg("--work-dir")
        .arg(server.folder().join("box"))
}

/// What a thief finds in the state folder of an agent at work: the lease, as it was granted.
fn stolen(server: &Server) -> Value {
    let found = until(
        "the agent holds a lease",
        || note_below(&server.folder().join("box/state")),
        Option::is_some,
    );
    found.unwrap()
}

fn note_below(folder: &Path) -> Option<Value> {
    let entries = std::fs::read_dir(folder).ok()?;
    entries.flatten().find_map(|entry| {
        let path: PathBuf = entry.path();
        if path.is_dir() {
            return note_below(&path);
        }
        let read: Value = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
        let granted = read.get("granted")?.clone();
        granted["lease_id"].is_string().then_some(granted)
    })
}

/// A request of somebody who has the token and the lease.
struct Thief {
    http: Http,
    lease: Value,
    runner: String,
}

impl Thief {
    fn says(&self, action: &str, mut body: Value) -> Answer {
        body["lease_id"] = self.lease["lease_id"].clone();
        body["runner_id"] = json!(self.runner);
        let path = format!("/api/v1/runner/{action}");
        self.http.post(&path, &body).unwrap()
    }

    fn asks_for_secrets(&self) -> Answer {
        let lease = self.lease["lease_id"].as_str().unwrap();
        let body = json!({ "names": ["TOKEN"] }).to_string();
        let headers = [("Delta-Lease", lease)];
        let path = "/api/v1/runner/secrets";
        self.http
            .send("POST", path, &headers, body.as_bytes())
            .unwrap()
    }

    /// What the finding was: renew, read a secret, complete.
    fn tries(&self) -> [Answer; 3] {
        [
            self.says("heartbeat", json!({ "type": "Heartbeat" })),
            self.asks_for_secrets(),
            self.says(
                "complete",
                json!({ "type": "Complete", "status": "SUCCEEDED", "exit_code": 0 }),
            ),
        ]
    }
}

/// T3, D14: with a token that many share, and with one that is bound to the agent.
#[test]
fn a_revoked_agent_renews_nothing_reads_no_secret_and_completes_nothing() {
    for bound in [false, true] {
        let server = Server::start(Options::patient().flag("lease-ttl", "4s"));
        let person = server.person();
        let value = server.folder().join("value");
        std::fs::write(&value, "canary-4f1c").unwrap();
        let value = value.to_str().unwrap();
        let set = server.cli(&["secret", "set", "TOKEN", "--file", value]);
        assert_eq!(set.code, Some(0), "{set:?}");
        let token = if bound {
            let made = server.cli(&["token", "create", "--role", "runner", "--agent", "build-1"]);
            assert_eq!(made.code, Some(0), "{made:?}");
            made.stdout.trim_end().to_owned()
        } else {
            server.token("runner")
        };
        let file = server.folder().join("box.token");
        std::fs::write(&file, &token).unwrap();
        let revoked = agent(&server, server.addr(), &file).spawn().unwrap();
        let mark = server.folder().join("mark");
        let step = format!(
            "if [ -e {mark} ]; then exit 0; fi; echo $$ > {mark}.new; mv {mark}.new {mark}; \
             sleep 600",
            mark = mark.display()
        );
        let run = person.create(&json!({ "trust": "trusted", "jobs": [{ "name": "work",
            "job_spec": { "steps": [step], "secrets": ["TOKEN"] } }] }));
        pid_in(&mark);
        let job = only_job(&person, &run);
        let runs = |state: &Value| state == "RUNNING";
        until(
            "it is told of",
            || person.attempt(&job)["state"].clone(),
            runs,
        );
        let lease = stolen(&server);
        let listed = person.get("/api/v1/agents");
        let id = listed["agents"][0]["agent_id"].as_str().unwrap().to_owned();
        let thief = Thief {
            http: Http {
                addr: server.addr(),
                token,
            },
            runner: format!("{id}/1"),
            lease,
        };
        if !bound {
            // The token and the lease alone are not the agent.
            for answer in thief.tries() {
                assert_eq!(answer.expect(403).word("code"), "AGENT_UNPROVEN");
            }
        }
        let done = server.cli(&["agents", "revoke", &id]);
        assert_eq!(done.code, Some(0), "{done:?}");
        for answer in thief.tries() {
            assert!(!answer.text.contains("canary"), "{}", answer.text);
            assert_eq!(answer.expect(403).word("code"), "AGENT_REVOKED");
        }
        revoked.wait(Duration::from_secs(60)).unwrap();
        let other = server.agent("other").spawn().unwrap();
        let over = person.until_over(&run);
        assert_eq!(over["outcome"], "SUCCESS", "{}", log_of(&person, &job));
        let attempt = person.attempt(&job);
        assert_eq!(attempt["losses"], 1, "tried again elsewhere: {attempt}");
        for answer in thief.tries() {
            assert_eq!(answer.expect(403).word("code"), "AGENT_REVOKED");
        }
        drop(other);
        server.check();
    }
}

/// T3: what a revoked agent had begun is ended by the agent itself, long before its lease runs out,
/// also where it does not go by itself; meanwhile `why` says what became of its holder.
#[test]
fn a_revoked_agent_leaves_nothing_running_and_why_says_so() {
    let server = Server::start(Options::patient().flag("lease-ttl", "10m"));
    let person = server.person();
    let file = server.folder().join("box.token");
    std::fs::write(&file, server.token("runner")).unwrap();
    let revoked = agent(&server, server.addr(), &file).spawn().unwrap();
    let mark = server.folder().join("mark");
    let step = format!(
        "trap '' TERM; echo $$ > {mark}.new; mv {mark}.new {mark}; sleep 600 & wait; sleep 600",
        mark = mark.display()
    );
    let run = person.create(&json!({ "trust": "trusted", "jobs": [{ "name": "work",
        "job_spec": { "steps": [step] } }] }));
    let pid = pid_in(&mark);
    let job = only_job(&person, &run);
    let runs = |state: &Value| state == "RUNNING";
    until(
        "it is told of",
        || person.attempt(&job)["state"].clone(),
        runs,
    );
    let listed = person.get("/api/v1/agents");
    let id = listed["agents"][0]["agent_id"].as_str().unwrap().to_owned();
    // Another credential is in its file by now, which is no way back either.
    std::fs::write(&file, server.token("runner")).unwrap();
    let done = server.cli(&["agents", "revoke", &id]);
    assert_eq!(done.code, Some(0), "{done:?}");
    revoked.wait(Duration::from_secs(90)).unwrap();
    assert!(!is_alive(pid), "{}", revoked.stderr());
    let why = server.cli(&["why", "work"]);
    assert!(why.stdout.contains("its agent was revoked"), "{why:?}");
    let why = person.get(&format!("/api/v1/jobs/{job}"))["why"].clone();
    assert_eq!(why["code"], "holder_revoked", "{why}");
}

/// EP-35: what a revoked agent advises is what works, with a token that many share and with one
/// that is bound to the agent.
#[test]
fn a_revoked_agent_says_how_its_machine_comes_back() {
    for bound in [false, true] {
        let server = Server::start(Options::quick());
        let person = server.person();
        let file = server.folder().join("box.token");
        let mut create = vec!["token", "create", "--role", "runner"];
        create.extend(
            bound
                .then_some(["--agent", "build-1"])
                .into_iter()
                .flatten(),
        );
        let made = server.cli(&create);
        assert_eq!(made.code, Some(0), "{made:?}");
        std::fs::write(&file, made.stdout.trim_end()).unwrap();
        let at_work = || {
            let agents = person.get("/api/v1/agents")["agents"].clone();
            let agents = agents.as_array().cloned().unwrap_or_default();
            let found = agents.into_iter().find(|it| it["status"] == "IDLE");
            found.map(|it| it["agent_id"].as_str().unwrap().to_owned())
        };
        let start = || agent(&server, server.addr(), &file).spawn().unwrap();
        let first = start();
        let id = until("it is there", at_work, Option::is_some).unwrap();
        let done = server.cli(&["agents", "revoke", &id]);
        assert_eq!(done.code, Some(0), "{done:?}");
        let identity = server.folder().join("box/state/agent.json");
        let identity = identity.canonicalize().unwrap();
        let says_how = |ended: Process| {
            ended.wait(Duration::from_secs(60)).unwrap();
            let said = ended.stderr();
            assert!(said.contains("AGENT_REVOKED"), "{said}");
            assert!(
                said.contains(&format!("remove {}", identity.display())),
                "{said}"
            );
            assert!(!said.contains("token create --role runner"), "{said}");
        };
        // At once, and whenever it is started again: not before the first has left its folder.
        says_how(first);
        says_how(start());
        std::fs::remove_file(&identity).unwrap();
        if bound {
            let ended = start();
            ended.wait(Duration::from_secs(60)).unwrap();
            assert!(
                ended.stderr().contains("AGENT_REVOKED"),
                "{}",
                ended.stderr()
            );
            assert!(ended.stderr().contains("for another id"));
            let made = server.cli(&["token", "create", "--role", "runner", "--agent", "build-2"]);
            std::fs::write(&file, made.stdout.trim_end()).unwrap();
        }
        let _new = start();
        let new = until("it is there again", at_work, Option::is_some).unwrap();
        assert_ne!(new, id);
        server.check();
    }
}

/// Files that are being received, and are not empty.
fn being_received(server: &Server) -> usize {
    use std::os::unix::fs::MetadataExt;
    let parts = std::fs::read_dir(server.data().join("objects/parts"));
    let parts = parts.into_iter().flatten().flatten();
    let begun = parts.filter(|it| it.metadata().is_ok_and(|it| it.blocks() > 2_000));
    begun.count()
}

#[track_caller]
fn in_mid_upload(server: &Server) {
    until("bytes come", || being_received(server), |parts| *parts > 0);
}

/// F45, I23, D7: the line and the upload break together, then the agent hands over; the process
/// that goes on proves itself by the same secret, and the artifact is there once and whole.
#[test]
fn an_upload_under_way_outlives_a_reconnect_and_a_handover() {
    let server = Server::start(Options::patient().flag("lease-ttl", "60s"));
    let person = server.person();
    let way = Proxy::start(server.addr(), 1).unwrap();
    way.throttle(Direction::ToServer, Some(SLOW));
    let file = server.folder().join("box.token");
    std::fs::write(&file, server.token("runner")).unwrap();
    let first = agent(&server, way.addr(), &file).spawn().unwrap();
    let step = "head -c 60000000 /dev/urandom > big; sha256sum big";
    let run = person.create(&json!({ "trust": "trusted", "jobs": [{ "name": "work",
        "job_spec": { "steps": [step], "artifacts": ["big"] } }] }));
    in_mid_upload(&server);
    assert!(way.cut_all() > 0, "there is a line");
    until(
        "what was begun is gone",
        || being_received(&server),
        |parts| *parts == 0,
    );
    in_mid_upload(&server);
    first.signal(Signal::USR2).unwrap();
    first.wait(Duration::from_secs(60)).unwrap();
    way.throttle(Direction::ToServer, None);
    let _second = agent(&server, way.addr(), &file).spawn().unwrap();
    let over = person.until_over_within(LONG, &run);
    let job = only_job(&person, &run);
    let log = log_of(&person, &job);
    assert_eq!(over["outcome"], "SUCCESS", "{log}");
    let attempt = person.attempt(&job);
    assert_eq!(
        (&attempt["attempt"], &attempt["losses"]),
        (&json!(1), &json!(0)),
        "{attempt}"
    );
    let list = person.get(&format!("/api/v1/jobs/{job}/artifacts"));
    let hash = list["artifacts"][0]["sha256"].as_str().unwrap();
    assert!(log.contains(hash), "{list}");
    server.check();
}
