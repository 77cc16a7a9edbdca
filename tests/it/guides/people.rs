//! What people ask of a server that is there: repositories, secrets, reruns.

use std::fs;

use delta_testkit::git::{GitHttp, Repository};
use serde_json::Value;

use super::{block, follow, json_of};
use crate::harness::until;
use crate::typist::{SOON, Typist, Unprinted};

#[test]
fn a_repository_is_registered_as_the_page_says() {
    let mut typist = Typist::new(Unprinted::Any);
    fs::write(typist.folder.path().join("token"), "status-token\n").unwrap();
    typist.start_server("delta-ci up --listen 127.0.0.1:0 --public-url https://ci.example");
    let text = block("docs/forges.md", "$ delta-ci secret set STATUS_TOKEN");
    follow(&mut typist, &text);
}

#[test]
fn a_branch_is_run_by_hand_as_the_page_says() {
    let root = tempfile::tempdir().unwrap();
    let app = Repository::make(root.path(), "team/app.git").unwrap();
    let pipeline = "\
on:
  manual:
    inputs:
      level: { default: staging }
jobs:
  deploy:
    steps: ['echo to $DELTA_INPUT_LEVEL']
";
    app.commit(".delta-ci.yaml", pipeline).unwrap();
    let http = GitHttp::start(root.path()).unwrap();
    let mut typist = Typist::new(Unprinted::Any);
    typist.start_server("delta-ci up --listen 127.0.0.1:0");
    let url = http.url("team/app.git");
    typist.type_all(&format!(
        "$ openssl rand -hex 32 > hook.secret\n\
         $ delta-ci repo add app --url {url} --forge gitea --project team/app \
         --webhook-secret-file hook.secret\n"
    ));
    typist.type_all(&block("docs/forges.md", "$ delta-ci trigger app"));
    let over = over(&typist, "latest");
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
}

fn over(typist: &Typist, run: &str) -> Value {
    let command = format!("delta-ci --json show {run}");
    let show = || json_of(typist, &command);
    until("the run is over", show, |it| !it["outcome"].is_null())
}

#[test]
fn runs_are_run_again_as_the_page_says() {
    let mut typist = Typist::new(Unprinted::Any);
    typist.start_server("delta-ci up --listen 127.0.0.1:0");
    let jobs = r#"{"jobs":[{"name":"lint","job_spec":{"steps":["exit 1"]}},
        {"name":"unit","job_spec":{"steps":["true"]}}]}"#;
    fs::write(typist.folder.path().join("run.json"), jobs).unwrap();
    typist.type_all(
        "$ delta-ci token create --role user --out user.token\n\
         $ curl -sf http://127.0.0.1:7878/api/v1/runs -d @run.json \
         -H 'Content-Type: application/json' -H \"Authorization: Bearer $(cat user.token)\"\n",
    );
    let first = over(&typist, "latest");
    assert_eq!(first["outcome"], "FAILED", "{first}");
    let id = first["run_id"].as_str().expect("its id").to_owned();
    typist.instead(" RUN", format!(" {id}"));
    typist.type_all(&block("docs/reruns.md", "$ delta-ci rerun RUN"));
    let again = over(&typist, &id);
    assert_eq!(again["reruns"].as_array().map(Vec::len), Some(3), "{again}");
}

#[test]
fn secrets_are_set_as_the_page_says() {
    let mut typist = Typist::new(Unprinted::Any);
    let folder = typist.folder.path().to_owned();
    fs::write(folder.join("token"), "a-secret-word\n").unwrap();
    fs::write(folder.join("hosts"), "git.example ssh-ed25519 AAAA\n").unwrap();
    typist.type_all("$ ssh-keygen -q -t ed25519 -N '' -f id_ed25519\n");
    let token = ("TOKEN".to_owned(), "another-word".to_owned());
    typist.variables.push(token);
    typist.start_server("delta-ci up --listen 127.0.0.1:0");
    typist.type_all(&block("docs/secrets.md", "$ printf %s"));
    let list = json_of(&typist, "delta-ci --json secret list").to_string();
    assert!(
        list.contains("CLONE") && !list.contains("production"),
        "{list}"
    );
}

#[test]
fn the_key_of_secrets_is_changed_as_the_page_says() {
    let mut typist = Typist::new(Unprinted::Any);
    typist.start_server("delta-ci server --data ./data --listen 127.0.0.1:0");
    typist.type_all("$ echo a-secret-word | delta-ci secret set WORD --data ./data\n");
    let first = typist.running.pop().expect("a server");
    first.terminate().unwrap();
    first.wait(SOON).unwrap();
    follow(&mut typist, &block("docs/secrets.md", "$ (umask 077"));
    // The old key goes from the file, and what was set is opened with the new one.
    let second = typist.running.pop().expect("a server");
    second.terminate().unwrap();
    second.wait(SOON).unwrap();
    typist.type_all(
        "$ (umask 077; head -n 1 new.key > newest.key)\n\
         $ rm new.key ./data/secret.key\n",
    );
    typist.start_server(
        "delta-ci server --data ./data --listen 127.0.0.1:0 --secret-key-file newest.key",
    );
    typist.type_all("$ delta-ci secret rotate --data ./data\n");
}
