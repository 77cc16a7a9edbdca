//! The run's repository in the workspace: cloned by a real agent from a real git server.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use delta_testkit::git::{GitHttp, Repository};
use delta_testkit::process::Process;
use delta_testkit::proxy::{Held, HttpProxy};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::faults_agent::only_job;
use crate::handover::{agent, log_of};
use crate::harness::{Options, Person, Server, until};

/// A project that is built and tested with nothing but a shell.
fn project(root: &Path) -> (Repository, String) {
    let app = Repository::make(root, "app.git").unwrap();
    app.commit("src/greeting.txt", "hello from the commit\n")
        .unwrap();
    let build = "set -e\nmkdir out\ntr a-z A-Z < src/greeting.txt > out/greeting.txt\n\
                 git rev-parse HEAD > out/revision.txt\ncat out/greeting.txt out/revision.txt\n";
    let commit = app.commit("build.sh", build).unwrap();
    app.commit("src/greeting.txt", "hello from a later one\n")
        .unwrap();
    (app, commit)
}

fn run_at(url: &str, commit: &str, spec: Value) -> Value {
    json!({
        "repository": url,
        "ref": "refs/heads/main",
        "commit": commit,
        "jobs": [{"name": "work", "job_spec": spec}],
    })
}

fn cause(person: &Person, run: &str) -> (Value, Value) {
    let attempt = person.attempt(&only_job(person, run));
    (attempt["state"].clone(), attempt["cause"].clone())
}

// EP-19, EP-40
#[test]
fn a_run_is_cloned_built_and_the_next_one_finds_it_on_the_agent() {
    let root = tempfile::tempdir().unwrap();
    let (_app, commit) = project(root.path());
    let http = GitHttp::start(root.path()).unwrap();
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server).spawn().unwrap();
    let url = http.url("app.git");
    let build = json!({"steps": ["sh build.sh", "test -z \"$(git status --porcelain src)\""]});
    for how in ["anew", "from this agent's cache"] {
        http.forget_requests();
        let run = person.create(&run_at(&url, &commit, build.clone()));
        let over = person.until_over(&run);
        let log = log_of(&person, &only_job(&person, &run));
        assert_eq!(over["outcome"], "SUCCESS", "{over} {log}");
        assert!(log.contains("HELLO FROM THE COMMIT\n"), "{log}");
        assert!(log.contains(&format!("\n{commit}\n")), "{log}");
        assert!(
            log.contains(&format!("checked out {commit} {how}")),
            "{log}"
        );
        assert_eq!(http.requests().is_empty(), how != "anew");
    }
    // Whoever wants none gets none, and whoever cannot be served is told why.
    let off = json!({"checkout": false, "steps": ["test -z \"$(ls -A)\""]});
    let run = person.create(&run_at(&url, &commit, off));
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    let lost = person.create(&run_at(&url, &"1".repeat(40), build.clone()));
    assert_eq!(person.until_over(&lost)["outcome"], "FAILED");
    assert_eq!(cause(&person, &lost), (json!("FAILED"), json!("clone")));
    let evidence = &person.attempt(&only_job(&person, &lost))["evidence"];
    let last = evidence["last_lines"].to_string();
    assert!(last.contains("not our ref"), "{evidence}");
    // What git printed is no last line of a step that failed later, and silently.
    let silent = json!({"steps": ["exit 1"]});
    let silent = person.create(&run_at(&url, &commit, silent));
    assert_eq!(person.until_over(&silent)["outcome"], "FAILED");
    let attempt = person.attempt(&only_job(&person, &silent));
    assert_eq!(attempt["evidence"]["last_lines"], Value::Null, "{attempt}");
    assert_eq!(
        attempt["summary"],
        "step 1 ended with exit code 1; it printed nothing"
    );
    let hostile = person.create(&run_at("ext::id", &commit, build));
    assert_eq!(person.until_over(&hostile)["outcome"], "FAILED");
    assert_eq!(
        cause(&person, &hostile),
        (json!("FAILED"), json!("spec_error"))
    );
    server.check();
}

// T14
#[test]
fn nothing_that_the_agents_user_has_configured_has_a_say_in_a_clone() {
    let root = tempfile::tempdir().unwrap();
    let (app, _) = project(root.path());
    let commit = app.commit(".gitattributes", "* filter=evil\n").unwrap();
    let http = GitHttp::start(root.path()).unwrap();
    let server = Server::start(Options::patient());
    let person = server.person();
    let home = tempfile::tempdir().unwrap();
    let (hook, tripped) = (
        home.path().join("post-checkout"),
        home.path().join("tripped"),
    );
    let program = format!("touch {}", tripped.display());
    std::fs::write(&hook, format!("#!/bin/sh\n{program}\n")).unwrap();
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = format!(
        "[core]\n\thooksPath = {home}\n\tfsmonitor = {hook}\n\
         [filter \"evil\"]\n\tsmudge = {program}; cat\n\
         [credential]\n\thelper = !{program};\n\
         [url \"http://127.0.0.1:1/\"]\n\tinsteadOf = http://\n",
        home = home.path().display(),
        hook = hook.display(),
    );
    std::fs::write(home.path().join(".gitconfig"), config).unwrap();
    // The wire is live: git as the agent's user types it trips it.
    let own = Command::new("git")
        .args([
            "-c",
            "url.http://127.0.0.1:1/.insteadOf=none",
            "clone",
            "-q",
        ])
        .arg(app.path())
        .arg(home.path().join("clone"))
        .env("HOME", home.path())
        .status();
    assert!(own.unwrap().success() && tripped.exists());
    std::fs::remove_file(&tripped).unwrap();
    let _agent = agent(&server)
        .env("HOME", home.path())
        .env("GIT_SSH_COMMAND", &program)
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "core.hooksPath")
        .env("GIT_CONFIG_VALUE_0", home.path())
        .spawn()
        .unwrap();
    let steps = json!({"steps": ["cat src/greeting.txt"]});
    let run = person.create(&run_at(&http.url("app.git"), &commit, steps));
    let over = person.until_over(&run);
    let log = log_of(&person, &only_job(&person, &run));
    assert_eq!(over["outcome"], "SUCCESS", "{over} {log}");
    assert!(log.contains("hello from a later one\n"), "{log}");
    assert!(!tripped.exists());
    server.check();
}

/// A run whose clone hangs: the server's answer is held back.
struct InAClone {
    server: Server,
    person: Person,
    agent: Process,
    run: String,
    commit: String,
    held: Held,
    _parts: (TempDir, GitHttp, HttpProxy),
}

/// `limit`: the job's own time, in seconds.
fn in_a_clone(options: Options, limit: Option<u64>) -> InAClone {
    let root = tempfile::tempdir().unwrap();
    let (_app, commit) = project(root.path());
    let http = GitHttp::start(root.path()).unwrap();
    let proxy = HttpProxy::start(http.addr(), 1).unwrap();
    let server = Server::start(options);
    let person = server.person();
    let agent = agent(&server).spawn().unwrap();
    let held = proxy.hold_response("/app.git/git-upload-pack");
    let url = format!("{}/app.git", proxy.url());
    let mut body = run_at(&url, &commit, json!({"steps": ["sh build.sh"]}));
    if let Some(limit) = limit {
        body["jobs"][0]["timeout_seconds"] = json!(limit);
    }
    let run = person.create(&body);
    held.wait_arrived(Duration::from_secs(30));
    InAClone {
        server,
        person,
        agent,
        run,
        commit,
        held,
        _parts: (root, http, proxy),
    }
}

fn left_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

// T28
#[test]
fn an_agent_that_is_killed_in_a_clone_leaves_nothing_and_the_job_is_done_by_the_next() {
    let clone = in_a_clone(Options::quick().flag("lease-ttl", "5s"), None);
    let (server, person, run) = (&clone.server, &clone.person, &clone.run);
    let commit = &clone.commit;
    clone.agent.kill9().unwrap();
    let work = server.folder().join("box");
    assert_eq!(left_in(&work.join("state/repositories/trusted")), 1);
    assert_eq!(left_in(&work.join("attempts")), 1);
    let _next = agent(server).spawn().unwrap();
    let over = person.until_over(run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    let log = log_of(person, &only_job(person, run));
    assert!(log.contains(&format!("checked out {commit} anew")), "{log}");
    until(
        "its workspaces are gone",
        || left_in(&work.join("attempts")),
        |left| *left == 0,
    );
    let gone = work.join("state/repositories/gone");
    until(
        "what was begun is gone",
        || left_in(&gone),
        |left| *left == 0,
    );
    clone.held.release();
    server.check();
}

// T28
#[test]
fn a_cancel_ends_a_clone_at_once() {
    let clone = in_a_clone(Options::patient(), None);
    let (server, person, run) = (&clone.server, &clone.person, &clone.run);
    person.cancel(run).unwrap();
    assert_eq!(person.until_over(run)["outcome"], "CANCELED");
    let work = server.folder().join("box");
    until(
        "its workspace is gone",
        || left_in(&work.join("attempts")),
        |left| *left == 0,
    );
    let kept = work.join("state/repositories/trusted");
    until("nothing is kept", || left_in(&kept), |left| *left == 0);
    let log = log_of(person, &only_job(person, run));
    let wanted = "--- canceled before the first step, during the checkout\n";
    assert!(log.ends_with(wanted), "{log}");
    clone.held.release();
    server.check();
}

// D10
#[test]
fn a_job_whose_time_is_up_in_a_clone_had_not_begun_its_first_step() {
    let clone = in_a_clone(Options::patient(), Some(8));
    let (server, person, run) = (&clone.server, &clone.person, &clone.run);
    person.until_over(run);
    assert_eq!(
        cause(person, run),
        (json!("TIMED_OUT"), json!("job_timeout"))
    );
    let attempt = person.attempt(&only_job(person, run));
    let wanted = "the job's time was up before the first step, during the checkout";
    assert_eq!(attempt["summary"], wanted, "{attempt}");
    clone.held.release();
    server.check();
}
