//! From a push to a status: a real git server, a forge that records, a server, agents.

mod more;
mod refs;

use std::fs;
use std::path::Path;

use delta_testkit::forge::{Delivery, Fault, RecordingForge, Speaks, pull_body, push_body};
use delta_testkit::git::{GitHttp, Repository};
use delta_testkit::process::Process;
use serde_json::{Value, json};

use crate::handover::log_of;
use crate::harness::{Options, Person, Server, until};

const HOOK: &str = "the secret of the webhook";
const TOKEN: &str = "status-token-canary";
const NONE: &str = "0000000000000000000000000000000000000000";
const PUSH: &str = "delta-ci/push";
const REQUEST: &str = "delta-ci/pull_request";

/// A repository at a forge, registered with a server.
struct Project {
    speaks: Speaks,
    forge: RecordingForge,
    app: Repository,
    _http: GitHttp,
    root: tempfile::TempDir,
}

impl Project {
    fn new(speaks: Speaks, server: &Server, more: &[&str]) -> Project {
        let root = tempfile::tempdir().unwrap();
        let app = Repository::make(root.path(), "team/app.git").unwrap();
        let http = GitHttp::start(root.path()).unwrap();
        let forge = RecordingForge::start(speaks).unwrap();
        forge.require_token(TOKEN);
        secret(server, root.path(), "STATUS_TOKEN", TOKEN);
        let hook = root.path().join("hook");
        fs::write(&hook, format!("{HOOK}\n")).unwrap();
        let name = speaks.name();
        let (url, api) = (http.url("team/app.git"), forge.api());
        let known = [
            "repo",
            "add",
            "app",
            "--forge",
            name,
            "--url",
            &url,
            "--api",
            &api,
            "--token",
            "STATUS_TOKEN",
            "--webhook-secret-file",
            hook.to_str().unwrap(),
        ];
        let done = server.cli(&[&known[..], more].concat());
        assert_eq!(done.code, Some(0), "{done:?}");
        Project {
            speaks,
            forge,
            app,
            _http: http,
            root,
        }
    }

    /// Commits a pipeline file and pushes it.
    fn commit(&self, pipeline: &str) -> String {
        self.app.commit(".delta-ci.yaml", pipeline).unwrap()
    }

    /// What the forge says of a push to main.
    fn pushed(&self, id: &str, before: &str, after: &str) -> Delivery {
        let body = push_body("team/app", "refs/heads/main", before, after);
        Delivery::new(self.speaks, "push", id, &body, HOOK)
    }

    fn requested(&self, id: &str, head: &str, from: &str) -> Delivery {
        let body = pull_body("team/app", 7, "synchronize", head, from);
        Delivery::new(self.speaks, "pull_request", id, &body, HOOK)
    }
}

fn secret(server: &Server, folder: &Path, name: &str, value: &str) {
    let file = folder.join(name);
    fs::write(&file, value).unwrap();
    let file = file.to_str().unwrap();
    let done = server.cli(&["secret", "set", name, "--kind", "token", "--file", file]);
    assert_eq!(done.code, Some(0), "{done:?}");
}

fn deliver(person: &Person, delivery: &Delivery) -> crate::harness::http::Answer {
    let headers = delivery.headers.iter();
    let headers: Vec<(&str, &str)> = headers.map(|(name, it)| (&**name, &**it)).collect();
    let path = "/api/v1/webhooks/app";
    let sent = person
        .http
        .send("POST", path, &headers, delivery.body.as_bytes());
    sent.expect("an answer")
}

/// Delivers and returns the run.
#[track_caller]
fn run_of(person: &Person, delivery: &Delivery) -> String {
    deliver(person, delivery)
        .expect(202)
        .word("run_id")
        .to_owned()
}

fn agents(server: &Server, names: &[&str]) -> Vec<Process> {
    let agent = |name: &&str| server.agent(name).args(["--slots", "1"]).spawn().unwrap();
    names.iter().map(agent).collect()
}

/// Two jobs that wait for each other: each needs an agent of its own.
fn meeting(folder: &Path) -> String {
    let job = |own: &str, other: &str| {
        let (own, other) = (folder.join(own), folder.join(other));
        format!(
            "steps: ['touch {}; i=0; while [ ! -e {} ] && [ $i -lt 300 ]; do sleep 0.1; \
             i=$((i+1)); done; test -e {}']",
            own.display(),
            other.display(),
            other.display()
        )
    };
    format!(
        "jobs:\n  a: {{ {} }}\n  b: {{ {} }}\n",
        job("a", "b"),
        job("b", "a")
    )
}

fn from_a_push_to_a_status(speaks: Speaks) {
    let server = Server::start(Options::patient().flag("public-url", "https://ci.example"));
    let project = Project::new(speaks, &server, &[]);
    let person = server.person();
    let _agents = agents(&server, &["one", "two"]);
    let commit = project.commit(&meeting(project.root.path()));
    let run = run_of(&person, &project.pushed("d1", NONE, &commit));
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    assert_eq!(
        (&over["commit"], &over["trust"]),
        (&commit.into(), &"trusted".into())
    );
    let commit = over["commit"].as_str().unwrap();
    let states = project.forge.states(commit, PUSH);
    assert_eq!(
        states.last().map(String::as_str),
        Some("success"),
        "{states:?}"
    );
    assert!(states.len() <= 3 && states[..states.len() - 1].iter().all(|it| it == "pending"));
    let last = project.forge.posted().pop().unwrap();
    assert!(last.description.starts_with("2 jobs succeeded"), "{last:?}");
    assert_eq!(last.target_url, format!("https://ci.example/runs/{run}"));
    // The same again, by its number and by what was pushed, is the same run.
    for id in ["d1", "d2"] {
        let answer = deliver(&person, &project.pushed(id, NONE, commit)).expect(202);
        assert_eq!(answer.word("run_id"), run);
        assert_eq!(answer.body["replayed"], true);
    }
    // A failing one, compared with the one before.
    let failing = "jobs:\n  unit: { steps: ['exit 3'] }\n  lint: { steps: ['true'] }\n";
    let next = project.commit(failing);
    let run = run_of(&person, &project.pushed("d3", commit, &next));
    assert_eq!(person.until_over(&run)["outcome"], "FAILED");
    let last = project.forge.posted().pop().unwrap();
    assert_eq!(
        (last.state.as_str(), &*last.description),
        ("failure", "unit: user_exit")
    );
    let plan = person.get(&format!("/api/v1/runs/{run}/plan"));
    assert_eq!(plan["jobs"].as_array().map(Vec::len), Some(2), "{plan}");
    assert!(!project.forge.seen().contains(TOKEN) && !server.log().contains(TOKEN));
    server.check();
}

// SM-3, SM-17
#[test]
fn a_rerun_tells_the_commit_again_and_keeps_what_passed() {
    let server = Server::start(Options::patient());
    let project = Project::new(Speaks::GitHub, &server, &[]);
    let person = server.person();
    let _agents = agents(&server, &["one"]);
    let (flag, count) = (
        project.root.path().join("flag"),
        project.root.path().join("count"),
    );
    let pipeline = format!(
        "jobs:\n  build:\n    steps: ['echo x >> {}; echo built > dist']\n    artifacts: [dist]\n  \
         unit:\n    needs: [build]\n    inputs: [build]\n    \
         steps: ['grep built dist; test -e {}']\n",
        count.display(),
        flag.display()
    );
    let commit = project.commit(&pipeline);
    let old = run_of(&person, &project.pushed("d1", NONE, &commit));
    assert_eq!(person.until_over(&old)["outcome"], "FAILED");
    fs::write(&flag, "").unwrap();
    let done = server.cli(&["--json", "rerun", &old, "--failed"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let view: Value = serde_json::from_str(&done.stdout).unwrap();
    let new = view["run_id"].as_str().unwrap();
    let over = person.until_over(new);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    assert_eq!(over["rerun_of"], old.as_str());
    assert_eq!(
        over["jobs"][0]["kept_from"],
        jobs(&person, &old)[0].as_str()
    );
    assert_eq!(person.run(&old)["reruns"], json!([new]));
    assert_eq!(fs::read_to_string(&count).unwrap(), "x\n", "built once");
    let states = project.forge.states(&commit, PUSH);
    let ends: Vec<_> = states.iter().filter(|it| *it != "pending").collect();
    assert_eq!(ends, ["failure", "success"], "{states:?}");
    server.check();
}

// A12, A43
#[test]
fn what_the_file_says_about_the_run_counts_for_a_push() {
    let mut server = Server::start(Options::patient());
    let project = Project::new(Speaks::Gitea, &server, &[]);
    let person = server.person();
    let file = |n: u32| {
        format!(
            "concurrency: {{ group: '{{ref}}', cancel_older: true }}\nfail_fast: true\n\
             timeout: 90s\njobs:\n  unit: {{ steps: ['echo {n}'] }}\n"
        )
    };
    let first = project.commit(&file(1));
    let old = run_of(&person, &project.pushed("d1", NONE, &first));
    let look = || person.run(&old)["jobs"][0]["state"].clone();
    until("it is its turn", look, |state| state == "QUEUED");
    let view = person.run(&old);
    assert_eq!(view["concurrency"]["group"], "refs/heads/main");
    let configured = person.events(&old).iter().any(|event| {
        let text = event["facts"].to_string();
        text.contains("run_configured") && text.contains("90000")
    });
    assert!(configured, "the plan says so");
    // Who waits, waits after a restart too.
    let second = project.commit(&file(2));
    let new = run_of(&person, &project.pushed("d2", &first, &second));
    let over = person.until_over(&old);
    assert_eq!(
        (&over["outcome"], &over["cause"]),
        (&"CANCELED".into(), &"superseded".into())
    );
    server.kill9();
    server.start_again();
    let person = server.person();
    let _agents = agents(&server, &["one"]);
    assert_eq!(person.until_over(&new)["outcome"], "SUCCESS");
    server.check();
}

fn jobs(person: &Person, run: &str) -> Vec<String> {
    let run = person.run(run);
    let jobs = run["jobs"].as_array().expect("jobs").iter();
    jobs.map(|job| job["job_id"].as_str().unwrap().to_owned())
        .collect()
}

// SM-7, SM-8, SM-11, SM-17
#[test]
fn from_a_push_to_a_status_at_github() {
    from_a_push_to_a_status(Speaks::GitHub);
}

#[test]
fn from_a_push_to_a_status_at_gitea() {
    from_a_push_to_a_status(Speaks::Gitea);
}

#[test]
fn from_a_push_to_a_status_at_forgejo() {
    from_a_push_to_a_status(Speaks::Forgejo);
}

// SM-9, SM-10, A14, T18
#[test]
fn what_cannot_be_planned_or_believed_runs_nothing_and_says_why() {
    let server = Server::start(Options::patient());
    let project = Project::new(Speaks::GitHub, &server, &[]);
    let person = server.person();
    let broken = project.commit("jobs:\n  unit: { stepz: ['true'] }\n");
    let run = run_of(&person, &project.pushed("d1", NONE, &broken));
    let over = person.until_over(&run);
    assert_eq!(
        (&over["outcome"], &over["cause"]),
        (&"FAILED".into(), &"plan_error".into())
    );
    let last = project.forge.posted().pop().unwrap();
    assert_eq!(last.state, "error");
    assert!(
        last.description.starts_with(".delta-ci.yaml:2:"),
        "{last:?}"
    );
    let plan = person.get(&format!("/api/v1/runs/{run}/plan"));
    assert!(plan["error"].as_str().unwrap().contains("steps"), "{plan}");
    // Nothing of it is left out for good: no job is for this branch.
    let elsewhere = project.commit("jobs:\n  x: { if: branch == \"other\", steps: ['true'] }\n");
    let run = run_of(&person, &project.pushed("d2", &broken, &elsewhere));
    let over = person.until_over(&run);
    assert_eq!(
        (&over["outcome"], &over["cause"]),
        (&"SUCCESS".into(), &"nothing_to_run".into())
    );
    // Nothing is configured and nothing is found; then something is.
    project.app.git(&["rm", "-q", ".delta-ci.yaml"]).unwrap();
    let empty = project.app.publish("empty").unwrap();
    let run = run_of(&person, &project.pushed("d5", &elsewhere, &empty));
    assert_eq!(person.until_over(&run)["cause"], "empty_plan");
    let make = "test:\n\t./run-tests\n";
    let found = project.app.commit("Makefile", make).unwrap();
    let run = run_of(&person, &project.pushed("d6", &empty, &found));
    let look = || person.run(&run)["state"].clone();
    until("it has jobs", look, |state| state == "QUEUED");
    person.cancel(&run).unwrap().expect(200);
    assert_eq!(person.until_over(&run)["outcome"], "CANCELED");
    // A commit that is not there.
    let lost = "1".repeat(40);
    let run = run_of(&person, &project.pushed("d3", &elsewhere, &lost));
    assert_eq!(person.until_over(&run)["cause"], "plan_error");
    let before = person.run_ids().len();
    let good = project.pushed("d4", NONE, &broken);
    let mut forged = good.clone();
    forged.headers[0].1 = format!("sha256={}", "0".repeat(64));
    let mut swapped = good.clone();
    swapped.body = swapped.body.replace("refs/heads/main", "refs/heads/evil");
    let mut bare = good.clone();
    bare.headers.remove(0);
    for bad in [&forged, &swapped, &bare] {
        deliver(&person, bad).expect(401);
    }
    // Nobody learns which repositories there are.
    let headers: Vec<(&str, &str)> = Vec::new();
    let nobody = person
        .http
        .send("POST", "/api/v1/webhooks/other", &headers, b"{}");
    let nobody = nobody.unwrap().expect(401);
    assert_eq!(nobody.body, deliver(&person, &bare).expect(401).body);
    assert_eq!(person.run_ids().len(), before);
    server.check();
}

// SM-65, F48, A43, A45
#[test]
fn a_hundred_deliveries_in_any_order_make_one_run_each_and_the_newest_wins() {
    let server = Server::start(Options::patient());
    let project = Project::new(Speaks::Gitea, &server, &[]);
    let person = server.person();
    let heads: Vec<String> = (1..=5)
        .map(|n| {
            let text = format!("jobs:\n  unit: {{ steps: ['echo head {n}'] }}\n");
            let commit = project.commit(&text);
            let pull = format!("{commit}:refs/pull/7/head");
            project
                .app
                .git(&["push", "-q", "--force", "origin", &pull])
                .unwrap();
            commit
        })
        .collect();
    let deliveries: Vec<Delivery> = heads
        .iter()
        .enumerate()
        .map(|(n, head)| project.requested(&format!("d{n}"), head, "team/app"))
        .collect();
    let runs: Vec<(usize, String)> = std::thread::scope(|scope| {
        let send = |n: usize| {
            // The newest first, and everything mixed.
            let which = (n * 7 + 4) % 5;
            let (person, delivery) = (&person, &deliveries[which]);
            scope.spawn(move || (which, run_of(person, delivery)))
        };
        let sent: Vec<_> = (0..100).map(send).collect();
        sent.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let ids = person.run_ids();
    assert_eq!(ids.len(), 5, "one run each");
    let newest = &runs.iter().find(|(which, _)| *which == 4).unwrap().1;
    let ended = |run: &String| {
        let over = person.until_over(run);
        (over["outcome"].clone(), over["cause"].clone())
    };
    for old in ids.iter().filter(|run| *run != newest) {
        assert_eq!(ended(old), (json!("CANCELED"), json!("superseded")));
    }
    // Only now: what is quick would be over before it is overtaken.
    let _agents = agents(&server, &["one"]);
    assert_eq!(ended(newest), (json!("SUCCESS"), Value::Null));
    assert!(
        runs.iter()
            .all(|(which, run)| (*which == 4) == (run == newest))
    );
    let states = project.forge.states(&heads[4], REQUEST);
    assert_eq!(states.last().map(String::as_str), Some("success"));
    for old in &heads[..4] {
        let states = project.forge.states(old, REQUEST);
        assert_eq!(
            states.last().map(String::as_str),
            Some("error"),
            "{states:?}"
        );
    }
    server.check();
}

// SM-17, A44, F47
#[test]
fn a_server_that_is_killed_before_it_tells_tells_once() {
    let mut server = Server::start(Options::patient());
    let project = Project::new(Speaks::GitHub, &server, &[]);
    let person = server.person();
    let commit = project.commit("jobs:\n  unit: { steps: ['true'] }\n");
    project.forge.set_down(true);
    let _agents = agents(&server, &["one"]);
    let run = run_of(&person, &project.pushed("d1", NONE, &commit));
    let look = || person.run(&run)["state"].clone();
    until("it has ended", look, |state| state == "SUCCESS");
    server.kill9();
    project.forge.set_down(false);
    // The first words after the start get no answer.
    project.forge.next([Fault::DoneUnanswered]);
    server.start_again();
    let over = person.until_over_within(std::time::Duration::from_secs(90), &run);
    assert_eq!(over["outcome"], "SUCCESS");
    let states = project.forge.states(&commit, PUSH);
    assert_eq!(
        states,
        ["success"],
        "once, and nothing that was over by then"
    );
    server.check();
}

// T5, T7, T15, T19
#[test]
fn a_strangers_request_waits_and_gets_nothing() {
    let server = Server::start(Options::patient());
    let project = Project::new(Speaks::GitHub, &server, &[]);
    let person = server.person();
    secret(&server, project.root.path(), "DEPLOY", "deploy-canary-123");
    let text = "jobs:\n  plain: { steps: ['echo hello'] }\n  \
                thief: { secrets: [DEPLOY], steps: ['echo got:$DEPLOY:'] }\n";
    let head = project.commit(text);
    let pull = format!("{head}:refs/pull/7/head");
    project.app.git(&["push", "-q", "origin", &pull]).unwrap();
    let _agents = agents(&server, &["one"]);
    let run = run_of(&person, &project.requested("d1", &head, "stranger/app"));
    let waits = || project.forge.posted();
    let seen = until("it is told", waits, |posted| !posted.is_empty());
    assert!(
        seen[0].description.starts_with("Waits for approval"),
        "{seen:?}"
    );
    assert_eq!(person.run(&run)["state"], "PLANNING");
    let done = server.cli(&["approve", &run]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let over = person.until_over(&run);
    assert_eq!(
        (&over["outcome"], &over["trust"]),
        (&"SUCCESS".into(), &"untrusted".into())
    );
    let logs: Vec<String> = jobs(&person, &run)
        .iter()
        .map(|it| log_of(&person, it))
        .collect();
    assert!(logs[0].contains("hello"), "{logs:?}");
    assert!(logs[1].contains("got::"), "{logs:?}");
    // One that nobody approves can be ended, and one of our own needs nobody.
    let second = project.commit("jobs:\n  plain: { steps: ['echo again'] }\n");
    let run = run_of(&person, &project.requested("d2", &second, "stranger/app"));
    person.cancel(&run).unwrap().expect(200);
    assert_eq!(person.until_over(&run)["outcome"], "CANCELED");
    let pull = format!("{second}:refs/pull/7/head");
    project
        .app
        .git(&["push", "-q", "--force", "origin", &pull])
        .unwrap();
    let run = run_of(&person, &project.requested("d3", &second, "team/app"));
    let over = person.until_over(&run);
    assert_eq!(
        (&over["outcome"], &over["trust"]),
        (&"SUCCESS".into(), &"trusted".into())
    );
    assert!(!server.log().contains("canary"));
    server.check();
}
