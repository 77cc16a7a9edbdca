//! The exact words a person sees.

use delta_planner::parse;

fn said(text: &str) -> String {
    match parse(".delta-ci.yaml", text.as_bytes()) {
        Ok(pipeline) => panic!("expected faults, read {pipeline:?}"),
        Err(found) => found.to_string(),
    }
}

// A71: unknown fields of the pipeline file are refused with the nearest known name.
#[test]
fn an_unknown_key_names_the_nearest_one() {
    let text = "jobs:\n  unit:\n    step: [make]\n";
    assert_eq!(
        said(text),
        "\
.delta-ci.yaml:3:5: unknown key `step` in job `unit`
3 |     step: [make]
  |     ^^^^
  = did you mean `steps`?"
    );
}

#[test]
fn all_faults_are_told_at_once_in_file_order() {
    let text = "\
jobs:
  unit:
    steps: [make]
    timeout: 10min
    allow_failure: maybe
  deploy:
    needs: [unti]
    steps: [make deploy]
    retry: {attempts: 0}
";
    assert_eq!(
        said(text),
        "\
.delta-ci.yaml:4:14: the timeout `10min` is not usable: \
`min` is not a unit; the units are d, h, m, s and ms
4 |     timeout: 10min
  |              ^^^^^
  = write a duration such as `500ms`, `90s`, `10m` or `1h30m`

.delta-ci.yaml:5:20: `allow_failure` must be `true` or `false`
5 |     allow_failure: maybe
  |                    ^^^^^

.delta-ci.yaml:7:13: job `deploy` needs `unti`, which is not here
7 |     needs: [unti]
  |             ^^^^
  = did you mean `unit`?

.delta-ci.yaml:9:23: `attempts` must be a whole number from 1 to 20
9 |     retry: {attempts: 0}
  |                       ^"
    );
}

#[test]
fn a_circle_of_needs_prints_its_path() {
    let text = "\
jobs:
  a: {steps: [x], needs: [c]}
  b: {steps: [x], needs: [a]}
  c: {steps: [x], needs: [b]}
";
    assert_eq!(
        said(text),
        "\
.delta-ci.yaml:3:27: the needs go in a circle: a → c → b → a
3 |   b: {steps: [x], needs: [a]}
  |                           ^
  = remove one of these needs"
    );
}

#[test]
fn a_number_without_a_unit_is_taught_the_grammar() {
    let text = "jobs: {a: {steps: [x], timeout: 10}}\n";
    let said = said(text);
    assert!(
        said.contains("the timeout `10` is not usable: `10` has no unit; write 10s for seconds"),
        "{said}"
    );
    assert!(said.contains("`1h30m`"), "{said}");
}

#[test]
fn a_step_that_became_a_map_is_explained() {
    let text = "jobs:\n  a:\n    steps:\n      - echo hint: quote me\n";
    assert_eq!(
        said(text),
        "\
.delta-ci.yaml:4:9: each item of `steps` must be text, this is a map
4 |       - echo hint: quote me
  |         ^
  = text that contains `: ` needs quotes around it"
    );
}

#[test]
fn a_step_with_a_time_but_no_script_is_explained() {
    let said =
        said("jobs: {a: {steps: [{timeout: 5m}, {run: x, timeout: 5}, {run: x, tmeout: 5m}]}}\n");
    for wanted in [
        "1:20: a step of job `a` has no `run`",
        "a step's timeout `5` is not usable: `5` has no unit",
        "unknown key `tmeout` in a step of job `a`",
    ] {
        assert!(said.contains(wanted), "{said}");
    }
}

#[test]
fn keys_of_later_formats_say_so() {
    let text = "jobs:\n  a:\n    function: {name: x}\n    steps: [x]\n";
    let said = said(text);
    let wanted = "key `function` in job `a` is not supported by this version yet";
    assert!(said.contains(wanted), "{said}");
}

#[test]
fn what_stands_around_the_work_is_pointed_at_where_it_is_wrong() {
    let text = r"jobs:
  a:
    steps: [x]
    image: --privileged
    caches:
      - key: k
        paths: []
    results: {format: junt, path: out.xml}
    checkout: {dept: 1}
    secrets: [1X]
    artifacts: [../up]
";
    let said = said(text);
    for wanted in [
        "4:12: image: is no reference of an image",
        "7:16: caches[0].paths: is empty",
        "8:23: results.format: must be junit",
        "9:16: unknown key `dept` in `checkout`",
        "= did you mean `depth`?",
        "10:15: secrets[0]: has letters, digits",
        "11:17: artifacts[0]: must be a path inside the work folder",
    ] {
        assert!(said.contains(wanted), "{wanted}\n{said}");
    }
}

#[test]
fn every_fault_of_one_value_is_said_at_once() {
    let text = "\
jobs:
  a:
    steps: [x]
    image: i
    caches: [{ key: '', paths: [] }]
    container: { cpus: 0, pids: 0, services: [{ name: A, image: x }, { name: b, image: '-' }] }
";
    let said = said(text);
    for wanted in [
        "5:21: caches[0].key: is empty",
        "5:32: caches[0].paths: is empty",
        "6:24: container.cpus: must be from 0.01",
        "6:33: container.pids: must be a whole number",
        "container.services[0].name: is a host name",
        "container.services[1].image: is no reference of an image",
    ] {
        assert!(said.contains(wanted), "{wanted}\n{said}");
    }
}

#[test]
fn a_key_twice_names_the_first_line() {
    let text = "jobs:\n  a: {steps: [x]}\n  a: {steps: [y]}\n";
    assert_eq!(
        said(text),
        "\
.delta-ci.yaml:3:3: key `a` appears twice in `jobs`
3 |   a: {steps: [y]}
  |   ^
  = it stands on line 2 already; keep one of them"
    );
}

#[test]
fn broken_yaml_points_at_the_place() {
    let said = said("jobs:\n  a:\n    steps: [x\n");
    assert!(said.starts_with(".delta-ci.yaml:"), "{said}");
    assert!(said.contains("not valid YAML: "), "{said}");
}

// A68: empty work is a spec error at creation, never a success.
#[test]
fn a_job_without_work_is_refused() {
    for text in [
        "jobs: {a: {steps: []}}",
        "jobs: {a: {env: {}}}",
        "jobs: {a: {steps: ['']}}",
    ] {
        assert!(said(text).contains("step"), "{text}");
    }
}

#[test]
fn names_folders_and_variables_are_checked() {
    for (text, wanted) in [
        (
            "jobs: {'a b': {steps: [x]}}",
            "`a b` is not a name of a job",
        ),
        (
            "jobs: {a: {steps: [x], workdir: ../up}}",
            "workdir `../up` leaves the workspace",
        ),
        (
            "jobs: {a: {steps: [x], workdir: /etc}}",
            "workdir `/etc` leaves the workspace",
        ),
        (
            "jobs: {a: {steps: [x], env: {1A: x}}}",
            "`1A` is not a name of a variable",
        ),
        (
            "jobs: {a: {steps: [x], env: {DELTA_RUN_ID: x}}}",
            "`DELTA_RUN_ID` is reserved",
        ),
        (
            "jobs: {a: {steps: [x], requires: ['a b']}}",
            "`a b` is not a requirement",
        ),
        (
            "jobs: {a: {steps: [x], once: true, retry: {attempts: 2}}}",
            "contradicts `once`",
        ),
        (
            "jobs: {a: {steps: [x], retry: {attempts: 2, on: [infar]}}}",
            "did you mean `infra`?",
        ),
        (
            "jobs: {a: {steps: [x], priority: 5000}}",
            "a whole number from -1000 to 1000",
        ),
        (
            "jobs: {a: {steps: [x], needs: [a]}}",
            "the needs go in a circle: a → a",
        ),
        (
            "jobs: {unit: {steps: [x], needs: [unti]}}",
            "name a job of this file",
        ),
        ("jobs: {a: {steps: make}}", "write `[make]`"),
        (
            "jobs: {a: {steps: [x], timeout: 1ms}}",
            "it must be from 100ms to 7d",
        ),
        (
            "jobs: {a: {steps: [x], workdir: a/../b}}",
            "leaves the workspace",
        ),
        ("jobs: []", "`jobs` must be a map, this is a list"),
        ("jobs: {}", "`jobs` is empty"),
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("job: {}", "did you mean `jobs`?"),
    ] {
        let said = said(text);
        assert!(said.contains(wanted), "{text}\n{said}");
    }
}

#[test]
fn a_misspelt_key_around_the_work_is_pointed_at_itself() {
    let text = "\
jobs:
  a:
    steps: [x]
    caches: [{ ky: a, paths: [b] }, { key: '', paths: [b] }, { key: k, pathes: [b] }]
";
    assert_eq!(
        said(text),
        "\
.delta-ci.yaml:4:16: unknown key `ky` in an item of `caches`
4 |     caches: [{ ky: a, paths: [b] }, { key: '', paths: [b] }, { key: k, pathes: [b] }]
  |                ^^
  = did you mean `key`?

.delta-ci.yaml:4:44: caches[1].key: is empty
4 |     caches: [{ ky: a, paths: [b] }, { key: '', paths: [b] }, { key: k, pathes: [b] }]
  |                                            ^^

.delta-ci.yaml:4:72: unknown key `pathes` in an item of `caches`
4 |     caches: [{ ky: a, paths: [b] }, { key: '', paths: [b] }, { key: k, pathes: [b] }]
  |                                                                        ^^^^^^
  = did you mean `paths`?"
    );
    let artifact = said("jobs: {a: {steps: [x], artifacts: [{ pathglob: x }]}}");
    assert!(artifact.contains("did you mean `path_glob`?"), "{artifact}");
    assert!(
        artifact.contains("artifacts[0].type: is missing"),
        "{artifact}"
    );
    assert!(!artifact.contains("path_glob: is missing"), "{artifact}");
    let deep = "jobs: {a: {steps: [x], image: i, container: {services: [{name: db, imag: y}]}}}";
    let deep = said(deep);
    assert!(
        deep.contains("unknown key `imag` in an item of `services`"),
        "{deep}"
    );
    assert!(!deep.contains("is missing"), "{deep}");
    let twice = said("jobs: {a: {steps: [x], checkout: {depth: 1, depth: 2}}}");
    assert!(twice.contains("key `depth` appears twice"), "{twice}");
}

#[test]
fn a_fault_elsewhere_hides_none() {
    // Each is told although another job is wrong already.
    let text = "\
jobs:
  broken: {stepz: [x]}
  fast: {steps: [x], fail_fast: true}
  none: {steps: [x], matrix: {v: [1], exclude: [{v: 1}]}}
  idle: {steps: [x], matrix: {v: [1], exclude: [{v: 2}]}}
";
    let said = said(text);
    for wanted in [
        "2:12: unknown key `stepz`",
        "3:33: `fail_fast` of job `fast` is about the cells of a matrix",
        "4:30: `matrix` of job `none` has no cell",
        "5:49: this excludes nothing",
    ] {
        assert!(said.contains(wanted), "{wanted}\n{said}");
    }
    // What follows from a fault of its own is not one more.
    let own = self::said(
        "jobs: {a: {steps: [x], fail_fast: true, matrix: {v: [[]], exclude: [{v: 1}]}}}",
    );
    assert_eq!(own.matches("^").count(), 1, "{own}");
}

#[test]
fn two_faults_of_one_place_are_two_and_shared_ones_are_one() {
    let long = "a".repeat(300);
    let needs = format!("jobs: {{a: {{steps: [x]}}, b: {{steps: [x], needs: [{long}, {long}]}}}}");
    let both = said(&needs);
    assert!(both.contains("which is not here"), "{both}");
    assert!(both.contains("twice"), "{both}");
    // Of a template, and of cells.
    let shared = "\
templates:
  t: {steps: [x], timeout: 5, bogus: 1}
jobs:
  a: {extends: t}
  b: {extends: t}
  c: {extends: t, matrix: {v: [1, 2]}}
  d: {steps: [x], matrix: {v: ['a b', 'c d']}, requires: ['{matrix.v}']}
";
    let once = said(shared);
    for wanted in ["unknown key `bogus`", "has no unit", "is not a requirement"] {
        assert_eq!(once.matches(wanted).count(), 1, "{wanted}\n{once}");
    }
}
