//! Keys of other systems in a file, its jobs and steps, and in what starts a run.

use super::{idle, word};
use crate::fields::Foreign;
use crate::yaml::{Node, Value};

const EVERY_ENV: &str = "write it for every job at once: `defaults: {env: {NAME: value}}`";
const EVERY_IMAGE: &str = "write it for every job at once: `defaults: {image: …}`";
const EVERY_CACHE: &str =
    "write it for every job at once: `defaults: {caches: [{key: …, paths: […]}]}`";
const EVERY_AGENT: &str = "write it for every job at once: `defaults: {requires: [linux]}`";
const ORDER: &str = "jobs are ordered by `needs`: `test: {needs: [build], …}`";
const OWN_STEPS: &str = "steps belong to a job: `jobs: {build: {steps: [make]}}`";
const START: &str = "write `on: [push, pull_request]`";
const NO_TOKEN: &str =
    "a job has no token of the forge; what it needs is a secret: `secrets: [NAME]`";
const UNDER_JOBS: &str = "the jobs stand under `jobs`, what starts a run under `on`";

pub(crate) const FILE: &[Foreign] = &[
    idle(
        "name",
        "a run is called by its repository, ref and commit; remove the key",
    ),
    idle("description", "write it as a comment; remove the key"),
    idle("version", "the file has no version; remove the key"),
    idle(
        "run-name",
        "a run is called by its repository, ref and commit; remove the key",
    ),
    word("env", "", EVERY_ENV),
    word("environment", "", EVERY_ENV),
    word("variables", "", EVERY_ENV),
    word("image", "", EVERY_IMAGE),
    word("container", "", EVERY_IMAGE),
    word(
        "services",
        "",
        "write it for every job at once: `defaults: {container: {services: …}}`",
    ),
    word("cache", "", EVERY_CACHE),
    word("caches", "", EVERY_CACHE),
    word("runs-on", "", EVERY_AGENT),
    word("tags", "", EVERY_AGENT),
    word("agents", "", EVERY_AGENT),
    word("agent", "", EVERY_AGENT),
    word("labels", "", EVERY_AGENT),
    word("pool", "", EVERY_AGENT),
    word("platform", "", EVERY_AGENT),
    word(
        "requires",
        "",
        "write it for every job at once: `defaults: {requires: [linux]}`",
    ),
    word("stages", "", ORDER),
    word("stage", "", ORDER),
    word("needs", "", ORDER),
    word("depends_on", "", ORDER),
    word("steps", "jobs", OWN_STEPS),
    word("script", "jobs", OWN_STEPS),
    word("run", "jobs", OWN_STEPS),
    word("commands", "jobs", OWN_STEPS),
    word("pipeline", "jobs", UNDER_JOBS),
    word("pipelines", "jobs", UNDER_JOBS),
    word("workflow", "", UNDER_JOBS),
    word("workflows", "", UNDER_JOBS),
    word(
        "before_script",
        "",
        "write it as the first of `steps`, or as a template that the jobs extend",
    ),
    word(
        "after_script",
        "",
        "write it as a last step: `{run: …, if: always}`",
    ),
    word("when", "", START),
    word("trigger", "", START),
    word("triggers", "", START),
    word("only", "", START),
    word("pr", "", START),
    word(
        "strategy",
        "",
        "a matrix belongs to a job: `matrix: {version: [1, 2]}`",
    ),
    word(
        "matrix",
        "",
        "a matrix belongs to a job: `matrix: {version: [1, 2]}`",
    ),
    word("permissions", "", NO_TOKEN),
    word(
        "secrets",
        "",
        "write it for every job at once: `defaults: {secrets: [NAME]}`",
    ),
    word(
        "parameters",
        "",
        "what a person gives along is declared as `on: {manual: {inputs: {NAME: {type: text}}}}`",
    ),
    word(
        "inputs",
        "",
        "write `on: {manual: {inputs: {NAME: {type: text}}}}`",
    ),
    word(
        "clone",
        "",
        "write it for every job at once: `defaults: {checkout: {depth: 0}}`",
    ),
    word(
        "orbs",
        "",
        "there are no actions and no orbs: write the commands as `steps`",
    ),
    word(
        "language",
        "",
        "write what an agent must have: `requires: [python>=3.11]`, or an `image`",
    ),
    word(
        "executors",
        "",
        "write what jobs share as a template: `templates: {NAME: {image: …}}`",
    ),
];

const WRITE_STEPS: &str = "write `steps: [make test]`";
const WRITE_REQUIRES: &str = "write what an agent must have: `requires: [linux]`";
const WRITE_IF: &str = "write `if: branch == \"main\"`";
const WRITE_MATRIX: &str = "write `matrix: {version: [1, 2]}`";
const WRITE_NEEDS: &str = "write `needs: [build]`";
const WRITE_ENV: &str = "write `env: {NAME: value}`";
const WRITE_TIMEOUT: &str = "write `timeout: 10m`";
const WRITE_ALLOW: &str = "write `allow_failure: true`";
const IN_CONTAINER: &str = "it belongs to the container: `container: {…}` beside `image`";
const AT_TOP: &str = "it stands at the top of the file, beside `jobs`";
const BY_KEY: &str = "a job is called by its key in `jobs`; remove this one";
const HAND_ON: &str =
    "a job hands on files: keep them with `artifacts`, and take them with `inputs`";

pub(crate) const JOB: &[Foreign] = &[
    idle("name", BY_KEY),
    idle("description", "write it as a comment; remove the key"),
    idle("label", BY_KEY),
    word("script", "steps", WRITE_STEPS),
    word("run", "steps", WRITE_STEPS),
    word("command", "steps", WRITE_STEPS),
    word("commands", "steps", WRITE_STEPS),
    word(
        "uses",
        "steps",
        "there are no actions and no workflows to call: write the commands as `steps`",
    ),
    word(
        "with",
        "uses",
        "there are no actions: write `env: {NAME: value}`",
    ),
    word(
        "plugins",
        "steps",
        "there are no plugins: write the commands as `steps`",
    ),
    word(
        "settings",
        "steps",
        "there are no plugins: write the commands as `steps`",
    ),
    word("stage", "", "jobs are ordered by `needs`: `needs: [build]`"),
    word("depends_on", "needs", WRITE_NEEDS),
    word("dependson", "needs", WRITE_NEEDS),
    word(
        "dependencies",
        "needs",
        "write `needs: [build]`, and `inputs: [build]` for its artifacts",
    ),
    word("runs-on", "requires", WRITE_REQUIRES),
    word("tags", "requires", WRITE_REQUIRES),
    word("agents", "requires", WRITE_REQUIRES),
    word("agent", "requires", WRITE_REQUIRES),
    word("labels", "requires", WRITE_REQUIRES),
    word("pool", "requires", "write `requires: [pool=NAME]`"),
    word("platform", "requires", WRITE_REQUIRES),
    word("executor", "requires", WRITE_REQUIRES),
    word("resource_class", "requires", "write `requires: [cpu>=4]`"),
    word("when", "if", WRITE_IF),
    word("only", "if", WRITE_IF),
    word("branches", "if", WRITE_IF),
    word("rules", "if", WRITE_IF),
    word("condition", "if", WRITE_IF),
    word("filters", "if", WRITE_IF),
    word("except", "if", "write `if: branch != \"main\"`"),
    word("strategy", "matrix", WRITE_MATRIX),
    word("parallel", "matrix", WRITE_MATRIX),
    word("parallelism", "matrix", WRITE_MATRIX),
    word("variables", "env", WRITE_ENV),
    word("before_script", "", "write it as the first of `steps`"),
    word(
        "after_script",
        "",
        "write it as a last step: `{run: …, if: always}`",
    ),
    word("before_install", "", "write it as the first of `steps`"),
    word("install", "", "write it as the first of `steps`"),
    word(
        "services",
        "",
        "write `container: {services: [{name: db, image: \"postgres:16\"}]}`",
    ),
    word("docker", "image", "write `image: NAME:TAG`"),
    word("cache", "caches", "write `caches: [{key: …, paths: […]}]`"),
    word(
        "artifact_paths",
        "artifacts",
        "write `artifacts: [\"dist/**\"]`",
    ),
    word(
        "store_artifacts",
        "artifacts",
        "write `artifacts: [\"dist/**\"]`",
    ),
    word(
        "store_test_results",
        "results",
        "write `results: {format: junit, path: junit.xml}`",
    ),
    word("outputs", "", HAND_ON),
    word("timeout-minutes", "timeout", WRITE_TIMEOUT),
    word("timeout_in_minutes", "timeout", WRITE_TIMEOUT),
    word("timeoutInMinutes", "timeout", WRITE_TIMEOUT),
    word("continue-on-error", "allow_failure", WRITE_ALLOW),
    word("continue_on_error", "allow_failure", WRITE_ALLOW),
    word("soft_fail", "allow_failure", WRITE_ALLOW),
    word("failure", "allow_failure", WRITE_ALLOW),
    word(
        "interruptible",
        "",
        "write `concurrency: {group: \"{ref}\", cancel_older: true}` at the top",
    ),
    word("resource_group", "concurrency", "write `concurrency: NAME`"),
    word(
        "concurrency_group",
        "concurrency",
        "write `concurrency: NAME`",
    ),
    word("working-directory", "workdir", "write `workdir: FOLDER`"),
    word("working_directory", "workdir", "write `workdir: FOLDER`"),
    word("directory", "workdir", "write `workdir: FOLDER`"),
    word("clone", "checkout", "write `checkout: {depth: 0}`"),
    word("permissions", "", NO_TOKEN),
    word("id_tokens", "", NO_TOKEN),
    word("entrypoint", "", IN_CONTAINER),
    word("network", "", IN_CONTAINER),
    word("user", "", IN_CONTAINER),
    word(
        "volumes",
        "",
        "write `container: {mounts: [{source: FOLDER, target: /FOLDER}]}`",
    ),
    word(
        "privileged",
        "",
        "no container is privileged; remove the key",
    ),
    word("defaults", "", AT_TOP),
    word("templates", "", AT_TOP),
    word("on", "", AT_TOP),
    word("jobs", "", AT_TOP),
];

/// Templates and `defaults` are parts of jobs, but for what stands once for each.
pub(crate) const DEFAULTS: &[Foreign] = &[
    word(
        "steps",
        "",
        "steps of several jobs stand in a template: `templates: {NAME: {steps: …}}`",
    ),
    word("matrix", "", "write it in a template, and `extends` it"),
    word("if", "", "write it in a template, and `extends` it"),
    word(
        "before_script",
        "",
        "steps of several jobs stand in a template: `templates: {NAME: {steps: …}}`",
    ),
    word(
        "run",
        "",
        "steps of several jobs stand in a template: `templates: {NAME: {steps: …}}`",
    ),
    word("variables", "env", WRITE_ENV),
    word("runs-on", "requires", WRITE_REQUIRES),
    word("tags", "requires", WRITE_REQUIRES),
    word("cache", "caches", "write `caches: [{key: …, paths: […]}]`"),
    word(
        "services",
        "",
        "write `container: {services: [{name: db, image: \"postgres:16\"}]}`",
    ),
    word("timeout-minutes", "timeout", WRITE_TIMEOUT),
    word(
        "interruptible",
        "",
        "write `concurrency: {group: \"{ref}\", cancel_older: true}` at the top",
    ),
    word("artifacts", "", "write it in a template, and `extends` it"),
    word("needs", "", "each job says itself what it needs"),
];

const WRITE_RUN: &str = "write `run: make test`";
const OF_THE_JOB: &str = "it is a key of the job, beside `steps`";
const CD: &str = "`workdir` is a key of the job; or write `cd folder` in `run`";
const ONE_IMAGE: &str =
    "the image is the job's: steps that need another one are a job of their own";

pub(crate) const STEP: &[Foreign] = &[
    word("script", "run", WRITE_RUN),
    word("command", "run", WRITE_RUN),
    word("commands", "run", WRITE_RUN),
    word(
        "uses",
        "run",
        "there are no actions: write the commands as `run`",
    ),
    word(
        "with",
        "uses",
        "there are no actions: write `env: {NAME: value}`",
    ),
    word(
        "plugins",
        "run",
        "there are no plugins: write the commands as `run`",
    ),
    word(
        "settings",
        "run",
        "there are no plugins: write the commands as `run`",
    ),
    idle(
        "id",
        "a step hands on nothing by an id, but files; remove the key",
    ),
    idle(
        "key",
        "a step hands on nothing by a key, but files; remove the key",
    ),
    word("label", "name", "write `name`"),
    word("when", "if", "write `if: failure`, or a condition"),
    word("variables", "env", WRITE_ENV),
    word("environment", "env", WRITE_ENV),
    word(
        "continue-on-error",
        "continue_on_error",
        "write `continue_on_error: true`",
    ),
    word(
        "failure",
        "continue_on_error",
        "write `continue_on_error: true`",
    ),
    word(
        "allow_failure",
        "continue_on_error",
        "write `continue_on_error: true`",
    ),
    word("timeout-minutes", "timeout", WRITE_TIMEOUT),
    word("working-directory", "", CD),
    word("working_directory", "", CD),
    word("directory", "", CD),
    word("workdir", "", CD),
    word("image", "", ONE_IMAGE),
    word("container", "", OF_THE_JOB),
    word(
        "services",
        "",
        "write `container: {services: …}` beside `steps`",
    ),
    word(
        "depends_on",
        "",
        "steps run in order; what may run beside others is a job with `needs`",
    ),
    word(
        "needs",
        "",
        "steps run in order; what may run beside others is a job with `needs`",
    ),
    word("artifacts", "", OF_THE_JOB),
    word("caches", "", OF_THE_JOB),
    word("cache", "", "write `caches` beside `steps`"),
    word("inputs", "", OF_THE_JOB),
    word("matrix", "", OF_THE_JOB),
    word("requires", "", OF_THE_JOB),
    word("results", "", OF_THE_JOB),
    word("retry", "", OF_THE_JOB),
    word("secrets", "", OF_THE_JOB),
    word(
        "detach",
        "",
        "what runs beside the steps is a service: `container: {services: …}`",
    ),
];

pub(crate) const ON: &[Foreign] = &[
    word("merge_request", "pull_request", "write `pull_request`"),
    word("merge_requests", "pull_request", "write `pull_request`"),
    word(
        "merge_request_event",
        "pull_request",
        "write `pull_request`",
    ),
    word(
        "pull_request_target",
        "pull_request",
        "write `pull_request`; a run of a fork has no secrets",
    ),
    word("workflow_dispatch", "manual", "write `manual`"),
    word("dispatch", "manual", "write `manual`"),
    word("web", "manual", "write `manual`"),
    word("api", "manual", "write `manual`"),
    word("release", "tag", "write `tag: {tags: [\"v*\"]}`"),
    word("tags", "tag", "write `tag: {tags: [\"v*\"]}`"),
    word("branches", "push", "write `push: {branches: [main]}`"),
    word("branch", "push", "write `push: {branches: [main]}`"),
    word("paths", "push", "write `push: {paths: [\"src/**\"]}`"),
    word(
        "event",
        "",
        "name the events themselves: `on: [push, pull_request]`",
    ),
    word(
        "workflow_call",
        "",
        "a file calls no other; write the jobs here",
    ),
    word(
        "workflow_run",
        "",
        "a file follows no other; write the jobs here, ordered by `needs`",
    ),
    word(
        "issue_comment",
        "",
        "comments start nothing; `manual` is for people",
    ),
];

pub(crate) const BRANCHES: &[Foreign] = &[
    word(
        "tags",
        "",
        "tags have a trigger of their own: `tag: {tags: [\"v*\"]}`",
    ),
    word(
        "branches-ignore",
        "branches",
        "name those that count, or leave jobs out: `if: branch != \"NAME\"`",
    ),
    word(
        "paths-ignore",
        "paths",
        "name those that count, or leave jobs out: `if: '!changed(\"docs/**\")'`",
    ),
    word("include", "", "write `branches: [main]`"),
    word(
        "exclude",
        "",
        "name those that count, or leave jobs out: `if: branch != \"NAME\"`",
    ),
    idle(
        "types",
        "every new state of a pull request starts a run; remove the key",
    ),
];

pub(crate) const CONCURRENCY: &[Foreign] = &[
    word("cancel-in-progress", "cancel_older", "write `cancel_older`"),
    word("cancel_in_progress", "cancel_older", "write `cancel_older`"),
    word("name", "group", "write `group`"),
    word(
        "limit",
        "",
        "of a group one at a time is at work; remove the key",
    ),
];

/// What elsewhere is an action, by how its name begins.
const ACTIONS: &[(&str, &str)] = &[
    (
        "actions/checkout",
        "the repository is checked out already; remove this step (`checkout` of the job says how)",
    ),
    (
        "actions/cache",
        "write it beside `steps`: `caches: [{key: …, paths: […]}]`",
    ),
    (
        "actions/upload-artifact",
        "write it beside `steps`: `artifacts: [\"dist/**\"]`",
    ),
    (
        "actions/download-artifact",
        "write it beside `steps`: `inputs: [build]`",
    ),
    (
        "actions/setup-",
        "write an `image` beside `steps`, or what an agent must have: `requires: [python>=3.12]`",
    ),
    (
        "docker://",
        "write the `image` beside `steps`, and the commands as `run`",
    ),
];

/// What to write in the place of an action.
pub(crate) fn of_step(key: &str, value: &Node) -> Option<&'static str> {
    let Value::Scalar { text, .. } = &value.value else {
        return None;
    };
    let mut known = ACTIONS.iter().filter(|_| key == "uses");
    let action = known.find(|(begins, _)| text.starts_with(begins));
    action.map(|(_, advice)| *advice)
}

/// Keys by which something at the top of a file is seen to be a job.
const JOB_MARKS: [&str; 7] = [
    "script", "steps", "stage", "image", "runs-on", "commands", "run",
];

/// What to write where a job stands at the top of the file.
pub(crate) fn of_file(_: &str, value: &Node) -> Option<&'static str> {
    let Value::Map(pairs) = &value.value else {
        return None;
    };
    let is_mark = |(key, _): &(Node, Node)| match &key.value {
        Value::Scalar { text, .. } => JOB_MARKS.contains(&text.as_str()),
        _ => false,
    };
    let advice = "a job stands under `jobs`: `jobs: {NAME: {steps: [make]}}`";
    pairs.iter().any(is_mark).then_some(advice)
}
