//! Plans: which jobs run for a trigger, with which needs, and the reason that is given.

use delta_planner::{Changed, Event, Facts, Pipeline, Plan, parse, plan};

fn read(text: &str) -> Pipeline {
    parse("f", text.as_bytes()).unwrap_or_else(|found| panic!("{found}"))
}

fn planned(text: &str, facts: &Facts) -> Plan {
    plan(&read(text), facts).unwrap_or_else(|faults| panic!("{faults:?}"))
}

fn said(plan: &Plan) -> Vec<String> {
    let jobs = plan.jobs.iter();
    let jobs = jobs.map(|it| format!("+ {}: {}", it.job.name, it.reason));
    let left_out = plan.omitted.iter();
    let left_out = left_out.map(|it| format!("- {}: {}", it.name, it.reason));
    jobs.chain(left_out).collect()
}

fn changed(files: &[&str]) -> Changed {
    Changed::files(files.iter().map(|it| (*it).to_owned()))
}

#[test]
fn every_job_has_its_reason() {
    let text = r#"
jobs:
  always: {steps: [x]}
  source: {steps: [x], if: 'changed("src/**")'}
  docs: {steps: [x], if: 'changed("docs/**")'}
  main: {steps: [x], if: branch == "main" && event == "push"}
  other: {steps: [x], if: branch == "dev" || tag =~ "v*"}
"#;
    let plan = planned(text, &Facts::push("main", changed(&["src/a.rs"])));
    assert_eq!(
        said(&plan),
        [
            "+ always: it has no condition",
            "+ source: `src/a.rs` changed",
            "+ main: branch is `main`, and event is `push`",
            "- docs: nothing changed under `docs/**`",
            "- other: branch is `main`, and there is no tag",
        ]
    );
    let unknown = Changed::Unknown("the history is not here".into());
    let plan = planned(text, &Facts::push("dev", unknown));
    assert_eq!(
        said(&plan)[2],
        "+ docs: what changed is not known: the history is not here"
    );
    let plan = planned(text, &Facts::push("dev", Changed::All));
    assert_eq!(said(&plan)[1], "+ source: everything is taken as changed");
}

#[test]
fn a_condition_that_does_not_hold_takes_along_what_needs_it() {
    let text = r#"
jobs:
  gate: {steps: [x], if: branch == "main"}
  deploy: {steps: [x], needs: [gate]}
  after: {steps: [x], needs: [deploy]}
"#;
    let plan = planned(text, &Facts::push("dev", Changed::All));
    assert_eq!(
        said(&plan),
        [
            "- gate: branch is `dev`",
            "- deploy: it needs `gate`, which is left out",
            "- after: it needs `deploy`, which is left out",
        ]
    );
}

#[test]
fn what_did_not_change_counts_as_met_and_its_own_needs_stay() {
    let text = r#"
jobs:
  first: {steps: [x]}
  middle: {steps: [x], needs: [first], if: 'changed("lib/**")'}
  last: {steps: [x], needs: [middle]}
"#;
    let plan = planned(text, &Facts::push("dev", changed(&["README.md"])));
    assert_eq!(
        said(&plan),
        [
            "+ first: it has no condition",
            "+ last: it has no condition",
            "- middle: nothing changed under `lib/**`",
        ]
    );
    assert_eq!(plan.jobs[1].job.needs, ["first"]);
}

#[test]
fn who_takes_artifacts_brings_back_what_makes_them() {
    let text = r#"
jobs:
  build: {steps: [x], if: 'changed("src/**")'}
  deploy: {steps: [x], needs: [build], inputs: [build]}
"#;
    let plan = planned(text, &Facts::push("main", changed(&["README.md"])));
    assert_eq!(
        said(&plan)[0],
        "+ build: `deploy` takes its artifacts, although nothing changed under `src/**`"
    );
    assert_eq!(plan.jobs[1].job.needs, ["build"]);
    // But not against a condition that does not hold whatever changed.
    let text = text.replace(
        "changed(\"src/**\")",
        "changed(\"src/**\") && branch == \"main\"",
    );
    let plan = planned(&text, &Facts::push("dev", changed(&["README.md"])));
    assert!(plan.jobs.is_empty(), "{:?}", said(&plan));
}

#[test]
fn triggers_decide_what_starts_by_itself() {
    let text = "on: {push: {branches: [main], paths: ['src/**']}, tag: {tags: ['v*']}}\n\
                jobs: {a: {steps: [x]}}";
    let count = |facts: &Facts| planned(text, facts).jobs.len();
    assert_eq!(count(&Facts::push("main", changed(&["src/a"]))), 1);
    let plan = planned(text, &Facts::push("main", changed(&["docs/a"])));
    assert_eq!(said(&plan), ["- a: nothing changed under `src/**`"]);
    let plan = planned(text, &Facts::push("dev", Changed::All));
    let why = "- a: the file runs on `push` for `main` only, this is `dev`";
    assert_eq!(said(&plan), [why]);
    let tag = |name: &str| Facts {
        event: Event::Tag,
        tag: Some(name.to_owned()),
        ..Facts::manual()
    };
    assert_eq!((count(&tag("v1")), count(&tag("x"))), (1, 0));
    let request = Facts {
        event: Event::PullRequest,
        ..Facts::manual()
    };
    let plan = planned(text, &request);
    assert_eq!(
        said(&plan),
        ["- a: the file does not run on `pull_request`"]
    );
    assert_eq!(count(&Facts::manual()), 1, "a person always may");
}

#[test]
fn inputs_are_checked_and_become_variables() {
    let text = r"
on:
  push:
  manual:
    inputs:
      level: {options: [low, high], default: low}
      dry-run: {type: boolean}
      count: {type: number, required: true}
jobs:
  a: {steps: [x], env: {INPUT_LEVEL: mine}}
  b: {steps: [x], if: inputs.dry-run}
";
    let with = |pairs: &[(&str, &str)]| Facts {
        inputs: pairs
            .iter()
            .map(|(a, b)| ((*a).into(), (*b).into()))
            .collect(),
        ..Facts::manual()
    };
    let plan_of = |facts: &Facts| plan(&read(text), facts);
    let plan = plan_of(&with(&[("count", "3"), ("dry-run", "true")])).unwrap();
    let env = |n: usize| plan.jobs[n].job.env.clone();
    let own = |it: &[(&str, &str)]| -> Vec<(String, String)> {
        it.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect()
    };
    let wanted = own(&[
        ("INPUT_COUNT", "3"),
        ("INPUT_DRY_RUN", "true"),
        ("INPUT_LEVEL", "mine"),
    ]);
    assert_eq!(env(0), wanted);
    assert_eq!(env(1)[2].1, "low");
    let faults = plan_of(&with(&[
        ("levle", "x"),
        ("level", "middle"),
        ("dry-run", "yes"),
    ]));
    let faults: Vec<String> = faults
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        faults,
        [
            "input `levle` is not declared by the file; did you mean `level`?",
            "input `level` must be one of low, high",
            "input `dry-run` must be `true` or `false`",
            "input `count` is missing",
        ]
    );
    // A push brings no inputs and is not asked for any.
    let plan = plan_of(&Facts::push("main", Changed::All)).unwrap();
    assert_eq!(plan.jobs.len(), 1);
}

#[test]
fn conditions_of_steps_are_answered_as_far_as_they_can_be() {
    let text = r#"
jobs:
  a:
    steps:
      - {run: one, if: branch == "main"}
      - {run: two, if: failure && branch == "main"}
      - {run: three, if: always}
      - {run: four, if: failure || branch == "main"}
      - {run: five, if: 'changed("x")'}
  b:
    steps: [{run: only, if: branch == "main"}]
"#;
    let steps = |facts: &Facts| {
        let request = planned(text, facts).to_request();
        let steps = request["jobs"][0]["job_spec"]["steps"]
            .as_array()
            .unwrap()
            .clone();
        let shown = steps.iter().map(|step| match step.as_str() {
            Some(run) => run.to_owned(),
            None => format!(
                "{} on {}",
                step["run"].as_str().unwrap(),
                step["if"].as_str().unwrap()
            ),
        });
        shown.collect::<Vec<_>>()
    };
    let main = Facts::push("main", changed(&["y"]));
    assert_eq!(
        steps(&main),
        ["one", "two on failure", "three on always", "four on always"]
    );
    let dev = Facts::push("dev", Changed::All);
    assert_eq!(steps(&dev), ["three on always", "four on failure", "five"]);
    let plan = planned(text, &dev);
    assert_eq!(
        said(&plan)[1],
        "- b: the condition of none of its steps holds"
    );
}

// `--all`: what asks for a change, what asks for none, and steps that do.
#[test]
fn whoever_asks_for_everything_gets_everything() {
    let text = r#"
jobs:
  docs: {if: 'changed("docs/**")', steps: [x]}
  code: {if: '!changed("docs/**")', steps: [x]}
  both: {if: 'changed("src/**") && !changed("docs/**")', steps: [x]}
  steps: {steps: [{run: x, if: '!changed("docs/**")'}]}
  main: {if: 'branch == "main" && !changed("docs/**")', steps: [x]}
  after: {needs: [code], steps: [x]}
"#;
    let plan = planned(text, &Facts::push("dev", Changed::All));
    let names: Vec<&str> = plan.jobs.iter().map(|it| it.job.name.as_str()).collect();
    assert_eq!(names, ["docs", "code", "both", "steps", "after"]);
    let reason = &plan.jobs[1].reason;
    assert_eq!(reason, "everything is taken as changed");
    // What else it asks for still counts.
    assert_eq!(plan.omitted[0].reason, "branch is `dev`");
}
