//! `POST /api/v1/runs`: what is taken, and how everything wrong is told at once.

use delta_wire::api::{CreateJob, CreateRun, Trust};
use delta_wire::invalid::MAX_PROBLEMS;
use delta_wire::job_spec::WorkKind;
use serde_json::{Value, json};

fn parse(body: &Value) -> Result<CreateRun, Vec<String>> {
    CreateRun::parse(body.to_string().as_bytes())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn refused(body: &Value) -> Vec<String> {
    parse(body).expect_err("refused")
}

/// A run of jobs that each have one step; `more` is laid over the only job.
fn with(more: Value) -> Value {
    let mut job = json!({"name": "unit", "job_spec": {"steps": ["true"]}});
    for (name, value) in more.as_object().unwrap() {
        job[name] = value.clone();
    }
    json!({"jobs": [job]})
}

fn graph(jobs: &[(&str, &[&str])]) -> Value {
    let spec = json!({"steps": ["true"]});
    let job = |(name, needs): &(&str, &[&str])| {
        let spec = &spec;
        json!({"name": name, "needs": needs, "job_spec": spec})
    };
    json!({"jobs": jobs.iter().map(job).collect::<Vec<_>>()})
}

#[test]
fn what_is_not_said_has_its_default() {
    let run = parse(&with(json!({}))).unwrap();
    let job = &run.jobs[0];
    assert_eq!(
        (job.required, job.max_attempts, job.priority, job.once),
        (true, 3, 0, false)
    );
    assert_eq!(
        (job.timeout_seconds, &job.retry_on, job.work),
        (None, &None, WorkKind::Steps)
    );
    assert_eq!(
        (run.fail_fast, run.trust, run.priority),
        (false, Trust::Trusted, 0)
    );
}

#[test]
fn everything_may_be_said() {
    let body = json!({
        "jobs": [
            {"name": "lint", "job_spec": {"steps": ["make lint"]}},
            {"name": "unit (rust=beta)", "needs": ["lint"], "required": false, "max_attempts": 20,
             "timeout_seconds": 1.5, "requires": ["linux", "python>=3.11"], "priority": -1000,
             "once": true, "retry_on": ["infra", "user_exit"],
             "job_spec": {"name": "unit", "workdir": "sub/dir", "image": "rust:1",
                          "steps": ["cargo test"], "env": {"CI": "true"},
                          "artifacts": [{"type": "junit", "path_glob": "**/*.xml"}],
                          "caches": [{"type": "deps", "key": "k", "paths": ["~/.cargo"]}]}}
        ],
        "repository": "https://example.org/r.git", "ref": "refs/heads/main", "commit": "abc",
        "trust": "untrusted", "fail_fast": true, "timeout_seconds": 600,
        "wait_timeout_seconds": 60, "priority": 5
    });
    let run = parse(&body).unwrap();
    assert_eq!(run.jobs[1].timeout_seconds.unwrap().as_millis(), 1500);
    let written = serde_json::to_value(&run).unwrap();
    assert_eq!(
        parse(&written).unwrap(),
        run,
        "what is written means the same"
    );
}

#[test]
fn the_specs_text_is_kept_byte_for_byte() {
    let spec = "{ \"steps\":  [ \"true\" ], \"name\":\"x\" }";
    let body = format!(r#"{{"jobs":[{{"name":"a","job_spec":{spec}}}]}}"#);
    let run = CreateRun::parse(body.as_bytes()).unwrap();
    assert_eq!(run.jobs[0].job_spec.as_text(), spec);
}

#[test]
fn a_spec_without_a_name_gets_the_jobs() {
    let named = |spec: &str| {
        let body = format!(r#"{{"jobs":[{{"name":"unit","job_spec":{spec}}}]}}"#);
        let run = CreateRun::parse(body.as_bytes()).unwrap();
        run.jobs[0].job_spec.as_text().to_owned()
    };
    assert_eq!(
        named(r#"{ "steps": ["true"] }"#),
        r#"{"name":"unit", "steps": ["true"] }"#
    );
    let replaced = named(r#"{"name":null,"steps":["true"]}"#);
    assert_eq!(replaced.matches("name").count(), 1, "{replaced}");
    assert!(replaced.contains(r#""name":"unit""#), "{replaced}");
}

// A71
#[test]
fn unknown_fields_are_refused_with_the_nearest_name() {
    let body = json!({
        "job": 1,
        "fail-fast": true,
        "jobs": [
            {"name": "a", "neds": [], "job_spec": {"steps": ["true"]}},
            {"name": "b", "zebra": 1, "job_spec": {"stesp": ["x"], "steps": ["true"],
                "requires": ["linux"]}}
        ]
    });
    let problems = refused(&body);
    assert!(problems.contains(&"jobs[0].neds: is not known; did you mean `needs`?".into()));
    let beside = "jobs[1].job_spec.requires: stands beside `job_spec`, not in it";
    assert!(problems.contains(&beside.into()), "{problems:?}");
    let stesp = "jobs[1].job_spec.stesp: is not known; did you mean `steps`?";
    assert!(problems.contains(&stesp.into()), "{problems:#?}");
    assert!(problems.contains(&"job: is not known; did you mean `jobs`?".into()));
    assert!(problems.contains(&"fail-fast: is not known; did you mean `fail_fast`?".into()));
    assert!(
        problems
            .iter()
            .any(|it| it.starts_with("jobs[1].zebra: is not known; known here: "))
    );
    assert_eq!(problems.len(), 6);
}

#[test]
fn all_problems_are_listed_at_once() {
    let body = json!({
        "priority": 5000,
        "jobs": [
            {"name": "a;rm", "required": "yes", "max_attempts": 0, "timeout_seconds": 0,
             "requires": ["a b"], "retry_on": ["moon"], "job_spec": {"steps": []}},
            7,
            {"name": "c"}
        ]
    });
    let places: Vec<String> = refused(&body)
        .iter()
        .map(|it| it.split(": ").next().unwrap().to_owned())
        .collect();
    let expected = [
        "jobs[0].name",
        "jobs[0].required",
        "jobs[0].max_attempts",
        "jobs[0].timeout_seconds",
        "jobs[0].requires[0]",
        "jobs[0].retry_on[0]",
        "jobs[0].job_spec.steps",
        "jobs[1]",
        "jobs[2].job_spec",
        "priority",
    ];
    assert_eq!(places, expected);
}

#[test]
fn every_number_has_its_range() {
    for (name, good, bad) in [
        ("max_attempts", json!(20), json!(21)),
        ("max_attempts", json!(1), json!(1.5)),
        ("timeout_seconds", json!(604_800), json!(604_801)),
        ("timeout_seconds", json!(0.1), json!(0.05)),
        ("timeout_seconds", json!(1), json!("1")),
        ("priority", json!(1000), json!(1001)),
        ("priority", json!(-1000), json!(-1001)),
        ("once", json!(true), json!(1)),
        ("name", json!("n".repeat(100)), json!("n".repeat(101))),
        ("name", json!("a/b c-d_e.f"), json!(" a")),
        ("needs", json!([]), json!("lint")),
    ] {
        assert!(parse(&with(json!({ name: good }))).is_ok(), "{name}");
        let problems = refused(&with(json!({ name: bad })));
        assert!(
            problems[0].starts_with(&format!("jobs[0].{name}: ")),
            "{problems:?}"
        );
    }
}

#[test]
fn a_run_has_one_to_a_thousand_jobs() {
    assert_eq!(refused(&json!({})), ["jobs: is missing"]);
    assert_eq!(
        refused(&json!({"jobs": []})),
        ["jobs: is empty; a run has at least one job"]
    );
    let names: Vec<String> = (0..1001).map(|n| format!("job{n}")).collect();
    let jobs: Vec<(&str, &[&str])> = names
        .iter()
        .map(|name| (name.as_str(), [].as_slice()))
        .collect();
    assert!(parse(&graph(&jobs[..1000])).is_ok());
    assert_eq!(
        refused(&graph(&jobs)),
        ["jobs: has 1001 items, at most 1000"]
    );
}

// A65
#[test]
fn needs_exist_and_form_no_cycle() {
    let problems = refused(&graph(&[("lint", &[]), ("unit", &["lnit", "unit", "zzz"])]));
    assert_eq!(
        problems[0],
        "jobs[1].needs[0]: no job is named `lnit`; did you mean `lint`?"
    );
    assert_eq!(problems[1], "jobs[1].needs[1]: a job cannot need itself");
    assert_eq!(problems[2], "jobs[1].needs[2]: no job is named `zzz`");
    let problems = refused(&graph(&[
        ("a", &["b"]),
        ("b", &["c"]),
        ("c", &["a"]),
        ("d", &[]),
    ]));
    assert_eq!(
        problems,
        ["jobs[0].needs: these jobs wait for each other: a -> b -> c -> a"]
    );
    let problems = refused(&graph(&[("a", &[]), ("a", &[]), ("b", &["a", "a"])]));
    assert_eq!(problems[0], "jobs[1].name: `a` is also the name of jobs[0]");
    assert_eq!(problems[1], "jobs[2].needs[1]: `a` is listed twice");
}

// A68
#[test]
fn a_job_has_one_kind_of_work() {
    let parsed = |spec: Value| parse(&with(json!({ "job_spec": spec })));
    let kind = |spec: Value| parsed(spec).unwrap().jobs[0].work;
    assert_eq!(
        kind(json!({"tests": [{"test_id": "t", "execution": {"command": "pytest"}}]})),
        WorkKind::Tests
    );
    assert_eq!(
        kind(json!({"function": {"name": "python#f"}})),
        WorkKind::Function
    );
    for spec in [
        json!({}),
        json!({"tests": []}),
        json!({"steps": ["a"], "tests": [{"a": 1}]}),
    ] {
        assert!(parsed(spec.clone()).is_err(), "{spec}");
    }
}

#[test]
fn hostile_bodies_are_refused_in_bounded_words() {
    let many: Vec<Value> = (0..1000).map(|_| json!(1)).collect();
    assert_eq!(refused(&json!({ "jobs": many })).len(), MAX_PROBLEMS);
    for body in [
        "",
        "null",
        "[]",
        "{",
        "{\"jobs\":",
        "\u{feff}{}",
        "{\"jobs\":[{}]}x",
    ] {
        let problems = CreateRun::parse(body.as_bytes()).unwrap_err();
        assert_eq!(problems.iter().next().unwrap().place(), "body", "{body}");
    }
    assert!(CreateRun::parse(&[0xff, 0xfe]).is_err());
    let deep = format!(
        "{{\"jobs\":{}{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert!(CreateRun::parse(deep.as_bytes()).is_err());
    let wide: String = (0..2000).map(|n| format!("\"k{n}\":1,")).collect();
    let problems = CreateRun::parse(format!("{{{wide}\"jobs\":[]}}").as_bytes());
    assert!(
        problems
            .unwrap_err()
            .to_string()
            .contains("more than 1024 fields")
    );
}

#[test]
fn the_published_schema_asks_only_for_what_is_needed() {
    let schema = serde_json::to_value(<CreateJob as utoipa::PartialSchema>::schema()).unwrap();
    assert_eq!(schema["required"], json!(["name", "job_spec"]));
    assert_eq!(schema["properties"]["max_attempts"]["default"], json!(3));
    let schema = serde_json::to_value(<CreateRun as utoipa::PartialSchema>::schema()).unwrap();
    assert_eq!(schema["required"], json!(["jobs"]));
}
