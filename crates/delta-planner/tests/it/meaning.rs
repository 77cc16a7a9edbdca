//! Good files and the requests they become.

use std::time::Duration;

use delta_planner::{Pipeline, PlannedJob, Retry, parse};
use serde_json::json;

fn good(text: &str) -> Pipeline {
    parse(".delta-ci.yaml", text.as_bytes()).unwrap_or_else(|found| panic!("{found}"))
}

fn scripts(job: &PlannedJob) -> Vec<&str> {
    job.steps
        .iter()
        .map(|step| step.spec.run.as_str())
        .collect()
}

#[test]
fn every_key_is_read_and_jobs_keep_file_order() {
    let pipeline = good(
        r"
jobs:
  zeta:
    steps:
      - cargo build
      - |
        set -x
        cargo test
    env: { RUST_BACKTRACE: full }
    timeout: 1h30m
    retry: { attempts: 4, on: [infra, user_exit] }
    requires: [linux, cpu>=4]
    priority: -5
    workdir: crates/core
  alpha:
    needs: [zeta]
    steps: [./deploy]
    once: true
    allow_failure: true
",
    );
    let names: Vec<_> = pipeline.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["zeta", "alpha"]);
    let zeta = pipeline.job("zeta").expect("zeta");
    assert_eq!(scripts(zeta), ["cargo build", "set -x\ncargo test\n"]);
    assert_eq!(zeta.timeout, Some(Duration::from_secs(5400)));
    let on = vec!["infra".to_owned(), "user_exit".to_owned()];
    let attempts = Some(4);
    assert_eq!(zeta.retry, Some(Retry { attempts, on }));
    assert_eq!(zeta.requires, ["linux", "cpu>=4"]);
    assert_eq!((zeta.priority, zeta.workdir.as_str()), (-5, "crates/core"));
    let alpha = pipeline.job("alpha").expect("alpha");
    assert!(alpha.once && alpha.allow_failure);
    assert_eq!(alpha.needs, ["zeta"]);
}

#[test]
fn retry_without_attempts_leaves_their_number_to_the_server() {
    let pipeline = good("jobs: {a: {steps: [x], retry: {on: [user_exit]}}}");
    let request =
        delta_wire::api::CreateRun::parse(pipeline.to_request().to_string().as_bytes()).unwrap();
    assert_eq!(request.jobs[0].max_attempts, 3);
    assert_eq!(
        request.jobs[0].retry_on.as_deref(),
        Some(&["user_exit".to_owned()][..])
    );
}

#[test]
fn env_values_become_their_text() {
    let pipeline = good(
        "jobs:\n  a:\n    steps: ['true']\n    env:\n      CI: true\n      PORT: 8080\n      \
         MODE: 0644\n      RATIO: 1.50\n      EMPTY:\n      QUOTED: \"\"\n      WORD: null\n",
    );
    let env: Vec<_> = pipeline.jobs[0]
        .env
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    let wanted = [
        ("CI", "true"),
        ("PORT", "8080"),
        ("MODE", "0644"),
        ("RATIO", "1.50"),
        ("EMPTY", ""),
        ("QUOTED", ""),
        ("WORD", "null"),
    ];
    assert_eq!(env, wanted);
}

#[test]
fn anchors_and_aliases_share_a_value() {
    let pipeline = good(
        "jobs:\n  a: &base\n    steps: [make]\n    env: &env { A: 1 }\n  b: *base\n  c:\n    \
         steps: [make c]\n    env: *env\n",
    );
    assert_eq!(scripts(&pipeline.jobs[1]), ["make"]);
    assert_eq!(pipeline.jobs[1].name, "b");
    assert_eq!(pipeline.jobs[2].env, [("A".to_owned(), "1".to_owned())]);
}

#[test]
fn the_request_carries_what_the_file_says_and_leaves_defaults_to_the_server() {
    let pipeline = good(
        "jobs:\n  unit:\n    steps: [make]\n    env: {A: 1}\n    timeout: 1500ms\n    \
         retry: {attempts: 2, on: [infra]}\n  lint:\n    steps: [make lint]\n    \
         allow_failure: true\n",
    );
    let wanted = json!({"jobs": [
        {
            "name": "unit", "needs": [], "required": true, "requires": [], "once": false,
            "priority": 0, "timeout_seconds": 1.5, "max_attempts": 2, "retry_on": ["infra"],
            "job_spec": {
                "name": "unit", "workdir": ".", "steps": ["make"], "env": {"A": "1"}
            },
        },
        {
            "name": "lint", "needs": [], "required": false, "requires": [], "once": false,
            "priority": 0,
            "job_spec": {"name": "lint", "workdir": ".", "steps": ["make lint"], "env": {}},
        },
    ]});
    assert_eq!(pipeline.to_request(), wanted);
}

#[test]
fn a_step_may_have_a_name_and_a_time_of_its_own() {
    let text = r"
jobs:
  a:
    steps:
      - make
      - {run: make test, timeout: 5m}
      - run: |
          ./deploy
        name: deploy
";
    let request = good(text).to_request();
    let wanted = json!([
        "make",
        {"run": "make test", "timeout_seconds": 300},
        {"run": "./deploy\n", "name": "deploy"},
    ]);
    assert_eq!(request["jobs"][0]["job_spec"]["steps"], wanted);
    delta_wire::api::CreateRun::parse(request.to_string().as_bytes())
        .unwrap_or_else(|problems| panic!("{problems:?}"));
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_harmless() {
    let pipeline = good("\u{feff}jobs:\r\n  a:\r\n    steps: [make]\r\n");
    assert_eq!(scripts(&pipeline.jobs[0]), ["make"]);
}

#[test]
fn what_passes_here_passes_the_api() {
    let pipeline = good(
        r"
jobs:
  build: {steps: [make], timeout: 7d, retry: {attempts: 20, on: [infra, timeout, user_exit]}}
  test.unit-1:
    needs: [build]
    steps: [make test]
    env: {A: 1}
    requires: [linux, zone=eu, python>=3.11, memory>=2GiB]
    priority: 1000
    workdir: ./deep/er
    allow_failure: true
  deploy: {needs: [build], steps: [./deploy], once: true, timeout: 100ms}
",
    );
    let body = pipeline.to_request().to_string();
    let request = delta_wire::api::CreateRun::parse(body.as_bytes())
        .unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(request.jobs.len(), 3);
    assert_eq!(request.jobs[0].max_attempts, 20);
    assert!(!request.jobs[1].required && request.jobs[2].once);
}
