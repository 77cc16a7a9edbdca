//! Templates, defaults, matrices, triggers: what they become.

use std::time::Duration;

use delta_planner::{On, Pipeline, PlannedJob, parse};
use serde_json::json;

fn good(text: &str) -> Pipeline {
    parse(".delta-ci.yaml", text.as_bytes()).unwrap_or_else(|found| panic!("{found}"))
}

fn names(pipeline: &Pipeline) -> Vec<&str> {
    pipeline.jobs.iter().map(|job| job.name.as_str()).collect()
}

fn variable<'a>(job: &'a PlannedJob, name: &str) -> Option<&'a str> {
    let mut env = job.env.iter();
    env.find(|(it, _)| it == name)
        .map(|(_, value)| value.as_str())
}

#[test]
fn a_job_has_what_it_extends_and_its_own_wins() {
    let pipeline = good(
        r"
defaults: {timeout: 5m, env: {A: default, D: default}, image: 'base:1'}
templates:
  one: {env: {A: one, B: one}, requires: [linux], steps: [one]}
  two: {extends: one, env: {B: two, C: two}, timeout: 10m}
  three: {requires: [gpu], image: 'three:1'}
jobs:
  plain: {steps: [x]}
  both: {extends: [two, three], env: {C: job}}
  without: {extends: three, steps: [x], image: , timeout: ~}
",
    );
    let plain = pipeline.job("plain").unwrap();
    assert_eq!(plain.timeout, Some(Duration::from_secs(300)));
    assert_eq!(plain.around["image"], "base:1");
    let both = pipeline.job("both").unwrap();
    let env: Vec<_> = ["A", "B", "C", "D"].map(|name| variable(both, name)).into();
    let wanted = ["one", "two", "job", "default"].map(Some);
    assert_eq!(env, wanted);
    assert_eq!(both.requires, ["gpu"]);
    assert_eq!(both.timeout, Some(Duration::from_secs(600)));
    assert_eq!(both.steps[0].spec.run, "one");
    assert_eq!(both.around["image"], "three:1");
    let without = pipeline.job("without").unwrap();
    assert_eq!((without.around.get("image"), without.timeout), (None, None));
}

#[test]
fn a_matrix_becomes_a_job_for_each_cell() {
    let pipeline = good(
        r"
jobs:
  unit:
    matrix:
      rust: [stable, 1.10]
      os: [linux, mac]
      exclude: [{rust: stable, os: mac}]
      include: [{rust: nightly, os: linux, flags: -Z}]
    image: 'rust:{matrix.rust}'
    requires: ['{matrix.os}']
    env: {WHO: 'me on {matrix.os}', JSON: '{x}', MATRIX_OS: mine}
    workdir: '{matrix.os}/src'
    caches: [{key: 'k-{matrix.rust}-{hash:Cargo.lock}', paths: ['{matrix.os}']}]
    steps: [{run: make, name: 'on {matrix.os}', env: {V: '{matrix.rust}'}}]
  lint: {steps: [x]}
  deploy:
    needs: [unit, lint]
    inputs: [{job: unit, into: all}, lint]
    steps: [x]
",
    );
    let wanted = [
        "unit (rust=stable, os=linux)",
        "unit (rust=1.10, os=linux)",
        "unit (rust=1.10, os=mac)",
        "unit (rust=nightly, os=linux, flags=-Z)",
        "lint",
        "deploy",
    ];
    assert_eq!(names(&pipeline), wanted);
    let cell = &pipeline.jobs[2];
    assert_eq!(cell.around["image"], "rust:1.10");
    assert_eq!(cell.requires, ["mac"]);
    assert_eq!(cell.workdir, "mac/src");
    assert_eq!(cell.around["caches"][0]["key"], "k-1.10-{hash:Cargo.lock}");
    assert_eq!(cell.steps[0].spec.name.as_deref(), Some("on mac"));
    assert_eq!(
        cell.steps[0].spec.env,
        [("V".to_owned(), "1.10".to_owned())]
    );
    assert_eq!(variable(cell, "MATRIX_RUST"), Some("1.10"));
    assert_eq!(variable(cell, "MATRIX_OS"), Some("mine"), "its own wins");
    assert_eq!(variable(cell, "WHO"), Some("me on mac"));
    assert_eq!(variable(cell, "JSON"), Some("{x}"));
    let of = cell.cell.as_ref().unwrap();
    assert_eq!(of.job, "unit");
    let deploy = pipeline.job("deploy").unwrap();
    assert_eq!(deploy.needs[..4], wanted[..4]);
    assert_eq!(deploy.needs[4], "lint");
    let inputs: Vec<&str> = deploy.inputs().collect();
    assert_eq!(inputs, wanted[..5]);
    assert_eq!(deploy.around["inputs"][3]["into"], "all");
}

#[test]
fn hostile_values_of_a_matrix_stay_data() {
    // T15
    let pipeline = good(
        "jobs:\n  a:\n    matrix: {v: ['\"; id; #', '$(id)']}\n    env: {V: '{matrix.v}'}\n    \
         steps: ['echo \"$MATRIX_V\"']\n",
    );
    assert_eq!(names(&pipeline), ["a (v=___id___)", "a (v=__id_)"]);
    assert_eq!(variable(&pipeline.jobs[0], "MATRIX_V"), Some("\"; id; #"));
    assert_eq!(variable(&pipeline.jobs[1], "V"), Some("$(id)"));
    assert_eq!(pipeline.jobs[0].steps[0].spec.run, "echo \"$MATRIX_V\"");
}

#[test]
fn a_long_cell_has_a_number() {
    let value = "x".repeat(120);
    let pipeline = good(&format!(
        "jobs: {{a: {{steps: [x], matrix: {{v: ['{value}', '{value}y']}}}}}}"
    ));
    assert_eq!(names(&pipeline), ["a (cell 1)", "a (cell 2)"]);
}

#[test]
fn triggers_are_read_short_and_long() {
    let all = On::default();
    let pipeline = good("jobs: {a: {steps: [x]}}");
    assert_eq!(pipeline.triggers.push, all);
    for text in [
        "on: push",
        "on: [push, manual]",
        "on: {push: }",
        "on: {push: true}",
    ] {
        let pipeline = good(&format!("{text}\njobs: {{a: {{steps: [x]}}}}"));
        assert_eq!(pipeline.triggers.push, all, "{text}");
        assert_eq!(pipeline.triggers.tag, On::Never, "{text}");
    }
    let pipeline = good(
        "on:\n  push: {branches: [main, 'release/*'], paths: ['src/**']}\n  manual:\n    \
         inputs:\n      level: {options: [a, b], default: b}\n      dry: {type: boolean}\n\
         jobs: {a: {steps: [x]}}",
    );
    let On::When { names, paths } = &pipeline.triggers.push else {
        panic!("no push")
    };
    assert_eq!((names.len(), paths.len()), (2, 1));
    assert_eq!(pipeline.triggers.inputs.len(), 2);
    assert_eq!(pipeline.triggers.inputs[0].kind.name(), "choice");
}

#[test]
fn what_is_said_about_the_whole_run() {
    let pipeline = good("fail_fast: true\ntimeout: 1h\njobs: {a: {steps: [x], required: false}}");
    let request = pipeline.to_request();
    assert_eq!(request["fail_fast"], true);
    assert_eq!(request["timeout_seconds"], 3600);
    assert_eq!(request["jobs"][0]["required"], false);
}

#[test]
fn the_cells_of_a_matrix_may_stop_with_the_first_failure() {
    let pipeline = good(
        "jobs:\n  unit: {matrix: {v: [1, 2]}, fail_fast: true, steps: [x]}\n  \
         other: {matrix: {v: [1, 2]}, steps: [x]}\n",
    );
    let jobs = pipeline.to_request()["jobs"].clone();
    let groups = [0, 1, 2, 3].map(|n| jobs[n]["fail_fast_group"].clone());
    assert_eq!(
        groups,
        [json!("unit"), json!("unit"), json!(null), json!(null)]
    );
    delta_wire::api::CreateRun::parse(pipeline.to_request().to_string().as_bytes()).unwrap();
}

#[test]
fn runs_and_jobs_have_groups() {
    let pipeline = good(
        "concurrency: {group: \"{ref}\", cancel_older: true}\njobs:\n  \
         deploy: {concurrency: production, steps: [x]}\n  \
         cell: {matrix: {v: [1]}, concurrency: \"c-{matrix.v}-{event}\", steps: [x]}\n  \
         tag: {concurrency: \"release-{tag}\", steps: [x]}\n",
    );
    let mut facts = delta_planner::Facts::manual();
    facts.git_ref = Some("refs/heads/main".into());
    let plan = delta_planner::plan(&pipeline, &facts).unwrap().to_request();
    let group = |name: &str, cancel_older| json!({ "group": name, "cancel_older": cancel_older });
    assert_eq!(plan["concurrency"], group("refs/heads/main", true));
    assert_eq!(plan["jobs"][0]["concurrency"], group("production", false));
    assert_eq!(plan["jobs"][1]["concurrency"], group("c-1-manual", false));
    assert_eq!(
        plan["jobs"][2]["concurrency"],
        json!(null),
        "there is no tag"
    );
    delta_wire::api::CreateRun::parse(plan.to_string().as_bytes()).unwrap();
}

#[test]
fn a_shell_is_said_of_a_job_and_of_a_step() {
    let pipeline = good(
        "defaults: {shell: bash}\ntemplates:\n  py: {shell: python}\njobs:\n  a:\n    steps:\n      \
         - make | tee log\n      - {run: print(1), shell: [python3, -I, -c]}\n      \
         - {run: plain, shell: sh}\n  b: {extends: py, steps: [print(2)]}\n  \
         c: {shell: , steps: [make]}\n  d:\n    matrix: {how: [node, deno]}\n    \
         shell: '{matrix.how} -e'\n    steps: [log()]\n",
    );
    let plan = delta_planner::plan(&pipeline, &delta_planner::Facts::manual()).unwrap();
    let request = plan.to_request();
    let steps = |job: usize| request["jobs"][job]["job_spec"]["steps"].clone();
    assert_eq!(
        steps(0),
        json!([
            {"run": "make | tee log", "shell": "bash"},
            {"run": "print(1)", "shell": ["python3", "-I", "-c"]},
            "plain",
        ])
    );
    assert_eq!(steps(1), json!([{"run": "print(2)", "shell": "python"}]));
    assert_eq!(
        steps(2),
        json!(["make"]),
        "nothing takes away what is inherited"
    );
    assert_eq!(steps(4), json!([{"run": "log()", "shell": ["deno", "-e"]}]));
    delta_wire::api::CreateRun::parse(request.to_string().as_bytes()).unwrap();
}

#[test]
fn a_step_says_when_it_runs() {
    let pipeline = good(
        "jobs:\n  a:\n    steps:\n      - make\n      - {run: tidy, if: always, env: {A: 1}, \
         continue_on_error: true}\n",
    );
    let plan = delta_planner::plan(&pipeline, &delta_planner::Facts::manual()).unwrap();
    let steps = &plan.to_request()["jobs"][0]["job_spec"]["steps"];
    let tidy = json!({
        "run": "tidy", "if": "always", "env": {"A": "1"}, "continue_on_error": true,
    });
    assert_eq!(*steps, json!(["make", tidy]));
}

#[test]
fn a_path_of_a_cache_alone_is_a_list_of_one() {
    let read = |caches: &str| {
        let text = format!("jobs: {{a: {{steps: [x], caches: [{caches}]}}}}");
        let pipeline = parse("f", text.as_bytes()).unwrap_or_else(|found| panic!("{found}"));
        pipeline.jobs[0].around["caches"].clone()
    };
    let alone = read("{key: k, paths: node_modules, restore_keys: k-}");
    assert_eq!(
        alone,
        read("{key: k, paths: [node_modules], restore_keys: [k-]}")
    );
}
