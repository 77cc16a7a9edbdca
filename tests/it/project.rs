//! A real project in three languages: cloned with a token and with a key from real servers, built,
//! tested, and everything it leaves seen through the API. The second time its cache is found.

use std::fs;
use std::path::Path;
use std::time::Duration;

use delta_testkit::git::{GitHttp, Key, Repository, Sshd};
use delta_testkit::process::Process;
use serde_json::{Value, json};

use crate::handover::{agent, log_of};
use crate::harness::{Options, Person, Server};

/// A compiler on two cores that others use, too.
const BUILDS: Duration = Duration::from_secs(240);

const TOKEN: &str = "token-for-the-clone-Kx71";

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

fn repository(root: &Path) -> (Repository, String) {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/project");
    let repository = Repository::make(root, "project.git").unwrap();
    copy(&project, repository.work());
    let commit = repository.publish("the project").unwrap();
    (repository, commit)
}

fn builder(server: &Server) -> Process {
    // A toolchain finds itself by these.
    let mut spawn = agent(server).args(["--slots", "2"]);
    for name in ["HOME", "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"] {
        if let Ok(value) = std::env::var(name) {
            spawn = spawn.env(name, value).args(["--pass-env", name]);
        }
    }
    spawn.spawn().unwrap()
}

fn pipeline(url: &str, commit: &str) -> Value {
    let checkout = json!({ "credential": "CLONE" });
    json!({
        "repository": url, "ref": "refs/heads/main", "commit": commit,
        "jobs": [
            {"name": "rust", "job_spec": {
                "checkout": checkout, "workdir": "rust",
                "caches": [{"key": "rust-{hash:rust/Cargo.lock}", "paths": ["rust/target"]}],
                "env": {"RUSTC_BOOTSTRAP": "1", "CARGO_TERM_COLOR": "never"},
                "steps": [
                    "cargo build --offline",
                    "cargo test --offline -- -Z unstable-options --format json > ../rust.json",
                ],
                "results": [{"format": "json", "path": "rust.json"}],
                "artifacts": ["rust/target/debug/greeting"],
            }},
            {"name": "node", "job_spec": {
                "checkout": checkout, "workdir": "node",
                "steps": [
                    "npm ci --offline --no-audit --no-fund",
                    "npm test --silent -- --test-reporter=tap > ../node.tap",
                ],
                "results": [{"format": "tap", "path": "node.tap"}],
            }},
            {"name": "python", "required": false, "job_spec": {
                "checkout": checkout, "workdir": "python",
                "steps": ["pytest-3 -q -p no:cacheprovider --junitxml=../python.xml"],
                "results": [{"format": "junit", "path": "python.xml"}],
                "artifacts": ["python.xml"],
            }},
            {"name": "use", "needs": ["rust"], "job_spec": {
                "checkout": false, "inputs": ["rust"],
                "steps": ["chmod +x rust/target/debug/greeting; rust/target/debug/greeting"],
            }},
        ],
    })
}

fn job_id(run: &Value, name: &str) -> String {
    let jobs = run["jobs"].as_array().unwrap();
    let job = jobs.iter().find(|job| job["name"] == name).unwrap();
    job["job_id"].as_str().unwrap().to_owned()
}

/// Runs it and looks at everything it left.
fn goes_well(person: &Person, url: &str, commit: &str) -> Value {
    let run = person.create(&pipeline(url, commit));
    let over = person.until_over_within(BUILDS, &run);
    let log = |name: &str| log_of(person, &job_id(&over, name));
    assert_eq!(
        over["outcome"],
        "SUCCESS",
        "{}{}{}",
        log("rust"),
        log("node"),
        log("use")
    );
    for (name, passed, failed, skipped) in
        [("rust", 2, 0, 0), ("node", 1, 0, 1), ("python", 3, 1, 0)]
    {
        let id = job_id(&over, name);
        let tests = person.get(&format!("/api/v1/jobs/{id}/tests"));
        let list = tests["tests"].as_array().unwrap();
        let count = |status: &str| list.iter().filter(|it| it["status"] == status).count();
        let counted = (count("pass"), count("fail"), count("skip"));
        assert_eq!(counted, (passed, failed, skipped), "{name}: {tests}");
    }
    let python = person.attempt(&job_id(&over, "python"));
    assert_eq!(
        (&python["state"], &python["cause"]),
        (&json!("FAILED"), &json!("user_exit"))
    );
    assert!(log("use").contains("Hello, world!"), "{}", log("use"));
    for name in ["rust", "python"] {
        let listed = person.get(&format!("/api/v1/jobs/{}/artifacts", job_id(&over, name)));
        assert_eq!(listed["artifacts"].as_array().unwrap().len(), 1, "{listed}");
    }
    for name in ["rust", "node", "python"] {
        assert!(
            log(name).contains(&format!("checked out {commit}")),
            "{}",
            log(name)
        );
        assert!(
            !log(name).contains(TOKEN),
            "the token is in the log of {name}"
        );
    }
    over
}

fn set_secret(server: &Server, value: &str, more: &[&str]) {
    let file = server.folder().join("value");
    fs::write(&file, value).unwrap();
    let file = file.to_str().unwrap().to_owned();
    let done = server.cli(&[&["secret", "set", "CLONE", "--file", &file], more].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    fs::remove_file(file).unwrap();
}

// EP-18, EP-19, EP-21
#[test]
fn a_project_is_cloned_with_a_token_built_and_tested_and_its_cache_is_found_again() {
    let root = tempfile::tempdir().unwrap();
    let (_repository, commit) = repository(root.path());
    let http = GitHttp::start(root.path()).unwrap();
    http.require("git", TOKEN);
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = builder(&server);
    set_secret(&server, TOKEN, &["--kind", "token", "--username", "git"]);
    let url = http.url("project.git");
    let first = goes_well(&person, &url, &commit);
    let log = log_of(&person, &job_id(&first, "rust"));
    assert!(log.contains(": miss rust-"), "{log}");
    let second = goes_well(&person, &url, &commit);
    let log = log_of(&person, &job_id(&second, "rust"));
    assert!(log.contains(": hit rust-"), "{log}");
    server.check();
}

#[test]
fn a_project_is_cloned_with_a_key_from_a_host_that_is_known() {
    let root = tempfile::tempdir().unwrap();
    let (repository, commit) = repository(root.path());
    let key = Key::make().unwrap();
    let sshd = Sshd::start(&key).unwrap();
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = builder(&server);
    let hosts = server.folder().join("known_hosts");
    fs::write(&hosts, sshd.known_hosts()).unwrap();
    let hosts = hosts.to_str().unwrap();
    set_secret(
        &server,
        &key.private,
        &["--kind", "ssh-key", "--known-hosts", hosts],
    );
    let url = sshd.url(repository.path()).unwrap();
    goes_well(&person, &url, &commit);
    server.check();
}
