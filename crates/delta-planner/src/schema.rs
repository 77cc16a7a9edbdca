//! The JSON Schema of the pipeline file, for editors: what keys there are, what they mean and what
//! may stand behind them. Everything the reader accepts is valid by it; what only the reader can
//! know (names that exist, circles, conditions) is left to the reader.
//!
//! An editor reads `10` as a number and `true` as a truth where the reader sees text, so that a
//! text is any scalar here.

use serde_json::{Map, Value, json};

use crate::facts::Event;
use crate::fields::Foreign;
use crate::foreign;
use crate::job::{DEFAULTS_KEYS, JOB_KEYS};
use crate::matrix::MAX_CELLS;
use crate::on::INPUT_TYPES;
use delta_wire::api::create_run::{MAX_ATTEMPTS, MAX_NEEDS, MAX_PRIORITY, MAX_REQUIRES};
use delta_wire::job_spec::{MAX_ENV, MAX_INPUTS, MAX_SECRETS, MAX_SERVICES, MAX_STEPS};
use delta_wire::shell::MAX_SHELL_WORDS;

/// Where the schema stands in this repository.
pub const SCHEMA_PATH: &str = "protocol/pipeline/v1.schema.json";

const CONDITION: &str = "Such as `branch == \"main\" && changed(\"src/**\")`. Facts: branch, tag, \
     event, ref, target, source, trust, inputs.NAME, matrix.NAME.";

/// The schema.
pub fn schema() -> Value {
    let job = job_properties();
    let some = |keys: &[&str]| -> Map<String, Value> {
        let known = keys
            .iter()
            .map(|key| ((*key).to_owned(), job[*key].clone()));
        known.collect()
    };
    let mut properties = json!({
            "jobs": {
                "description": "The jobs, by name.",
                "type": "object",
                "minProperties": 1,
                "propertyNames": { "$ref": "#/$defs/job_name" },
                "additionalProperties": { "$ref": "#/$defs/job" },
            },
            "on": on(),
            "defaults": {
                "description": "Keys for every job that does not give them itself.",
                "type": ["object", "null"],
                "additionalProperties": false,
                "properties": some(DEFAULTS_KEYS.known),
            },
            "templates": {
                "description": "Parts of jobs, by name, for `extends`.",
                "type": "object",
                "maxProperties": 200,
                "propertyNames": { "$ref": "#/$defs/job_name" },
                "additionalProperties": { "$ref": "#/$defs/job" },
            },
            "fail_fast": {
                "description": "The first failure of a required job cancels the rest of the run.",
                "type": "boolean",
                "default": false,
            },
            "concurrency": concurrency(
                "At most one run of this group is at work; the others wait, or end the older ones.",
            ),
            "timeout": about(duration(), "How long a run may take from its first job's start."),
    });
    idle(&mut properties, foreign::FILE);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Delta CI pipeline file",
        "description": "`.delta-ci.yaml` in the root of a repository.",
        "type": "object",
        "required": ["jobs"],
        "additionalProperties": false,
        "properties": properties,
        "$defs": definitions(some(JOB_KEYS.known)),
    })
}

/// Keys that are passed over with a warning.
fn idle(properties: &mut Value, table: &[Foreign]) {
    if let Value::Object(properties) = properties {
        for foreign in table.iter().filter(|it| it.idle) {
            let words = format!("Means nothing here: {}.", foreign.advice);
            let key = json!({ "description": words, "deprecated": true });
            properties.insert(foreign.word.to_owned(), key);
        }
    }
}

fn definitions(job: Map<String, Value>) -> Value {
    let (mut job, mut step) = (Value::Object(job), step_properties());
    idle(&mut job, foreign::JOB);
    idle(&mut step, foreign::STEP);
    json!({
        "text": { "type": ["string", "number", "boolean"] },
        "value": { "type": ["string", "number", "boolean", "null"] },
        "duration": {
            "description": "Such as `90s`, `10m` or `1h30m`.",
            "type": "string",
            "pattern": "^([0-9]+(\\.[0-9]+)?(d|h|m|s|ms))+$",
            "examples": ["90s", "10m", "1h30m"],
        },
        "job_name": {
            "type": "string",
            "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
            "maxLength": 100,
        },
        "condition": {
            "description": CONDITION,
            "type": ["string", "boolean"],
            "maxLength": 4096,
        },
        "env": {
            "type": "object",
            "maxProperties": MAX_ENV,
            "propertyNames": { "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" },
            "additionalProperties": { "$ref": "#/$defs/value" },
        },
        "step": {
            "oneOf": [
                { "$ref": "#/$defs/text" },
                {
                    "type": "object",
                    "required": ["run"],
                    "additionalProperties": false,
                    "properties": step,
                },
            ],
        },
        "matrix": {
            "type": ["object", "null"],
            "properties": { "include": cells(), "exclude": cells() },
            "additionalProperties": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_CELLS,
                "items": { "$ref": "#/$defs/text" },
            },
        },
        "job": {
            "type": "object",
            "additionalProperties": false,
            "properties": job,
        },
    })
}

/// A name, or a map with one. It may speak of the trigger: `deploy-{branch}`.
fn concurrency(words: &str) -> Value {
    json!({
        "description": words,
        "oneOf": [
            { "$ref": "#/$defs/value" },
            {
                "type": "object",
                "required": ["group"],
                "additionalProperties": false,
                "properties": {
                    "group": about(
                        reference("text"),
                        "Its name; `{branch}`, `{tag}`, `{ref}`, `{target}`, `{source}` and \
                         `{event}` stand for what the run is of.",
                    ),
                    "cancel_older": {
                        "description": "End the older ones instead of waiting for them.",
                        "type": "boolean",
                        "default": false,
                    },
                },
            },
        ],
    })
}

/// A name that is known, or a program and its arguments.
fn shell(words: &str) -> Value {
    json!({
        "description": format!(
            "{words} `sh` (the default) is `sh -e`, `bash` is `bash -eo pipefail`, `python` is \
             `python3`; of any other, the program with its arguments, of which the script is the \
             last.",
        ),
        "type": ["string", "array", "null"],
        "items": { "$ref": "#/$defs/text" },
        "minItems": 1,
        "maxItems": MAX_SHELL_WORDS,
        "examples": ["bash", "python", ["perl", "-e"]],
    })
}

fn step_properties() -> Value {
    json!({
        "run": about(reference("text"), "A script for a shell of its own."),
        "shell": shell("What reads this step's script."),
        "name": about(reference("text"), "What people call it; its first line otherwise."),
        "if": about(
            reference("condition"),
            "When it is carried out: `success` (the default), `failure`, `always`, or a condition.",
        ),
        "env": about(reference("env"), "Variables of this step alone."),
        "timeout": about(duration(), "Past this it is ended, and the job's attempt with it."),
        "continue_on_error": {
            "description": "Its failure is shown and does not count.",
            "type": "boolean",
            "default": false,
        },
    })
}

fn cells() -> Value {
    json!({
        "type": "array",
        "maxItems": MAX_CELLS,
        "items": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": { "$ref": "#/$defs/text" },
        },
    })
}

fn on() -> Value {
    let events: Vec<&str> = Event::ALL.iter().map(|event| event.name()).collect();
    let patterns = one_or_more(json!({
        "type": "array", "minItems": 1, "maxItems": 100, "items": { "$ref": "#/$defs/text" },
    }));
    let mut of_branches = json!({ "branches": patterns, "paths": patterns });
    idle(&mut of_branches, foreign::BRANCHES);
    let branches = json!({
        "type": ["object", "boolean", "null"],
        "additionalProperties": false,
        "properties": of_branches,
    });
    json!({
        "description": "What starts a run by itself; everything when absent. A person always may.",
        "oneOf": [
            { "enum": events },
            { "type": "array", "maxItems": 4, "items": { "enum": events } },
            {
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "push": branches,
                    "pull_request": about(branches.clone(), "By the branch it is to go to."),
                    "tag": {
                        "type": ["object", "boolean", "null"],
                        "additionalProperties": false,
                        "properties": { "tags": patterns },
                    },
                    "manual": {
                        "type": ["object", "boolean", "null"],
                        "additionalProperties": false,
                        "properties": {
                            "inputs": {
                                "type": ["object", "null"],
                                "maxProperties": 50,
                                "propertyNames": { "pattern": "^[A-Za-z][A-Za-z0-9_-]*$" },
                                "additionalProperties": input(),
                            },
                        },
                    },
                },
            },
        ],
    })
}

fn input() -> Value {
    json!({
        "description": "What a person gives along; steps see `$INPUT_NAME`.",
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": {
            "type": { "enum": INPUT_TYPES, "default": "text" },
            "required": { "type": "boolean" },
            "default": { "$ref": "#/$defs/text" },
            "description": { "$ref": "#/$defs/text" },
            "options": one_or_more(json!({
                "type": "array", "minItems": 1, "items": { "$ref": "#/$defs/text" },
            })),
        },
    })
}

/// Every key of a job. A template may leave out `steps`, and so may a job that extends one.
fn job_properties() -> Map<String, Value> {
    let text = reference("text");
    let texts =
        |most: usize| one_or_more(json!({ "type": "array", "maxItems": most, "items": text }));
    let truth = |words: &str| json!({ "description": words, "type": ["boolean", "null"] });
    let mut keys = around_properties();
    let own = json!({
        "steps": {
            "description": "Shell scripts, in order.",
            "type": "array", "minItems": 1, "maxItems": MAX_STEPS,
            "items": { "$ref": "#/$defs/step" },
        },
        "extends": {
            "description": "Templates whose keys this job has unless it gives them itself.",
            "oneOf": texts(16)["oneOf"],
        },
        "if": about(reference("condition"), "Whether it belongs to a run."),
        "matrix": about(
            reference("matrix"),
            "A job for each combination of values, as `$MATRIX_NAME` and `{matrix.name}`.",
        ),
        "env": about(reference("env"), "Variables for its steps."),
        "needs": about(texts(MAX_NEEDS), "Jobs that must have ended well before."),
        "timeout": about(duration(), "Longest runtime of one attempt."),
        "retry": {
            "description": "How often it is tried in all, and after which causes.",
            "type": ["object", "null"],
            "additionalProperties": false,
            "properties": {
                "attempts": { "type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS },
                "on": texts(64),
            },
        },
        "required": truth("`false`: its failure does not fail the run."),
        "allow_failure": truth("Its failure does not fail the run."),
        "fail_fast": truth("The first failed cell of the job's matrix cancels its other cells."),
        "concurrency": concurrency(
            "At most one job of this group is at work, in whichever run of the repository.",
        ),
        "requires": about(texts(MAX_REQUIRES), "What an agent must have: `linux`, `cpu>=4`."),
        "once": truth("Never silently repeated: after a lost agent a person decides."),
        "priority": {
            "description": "A step of it is worth a minute of waiting.",
            "type": ["integer", "null"], "minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY,
        },
        "shell": shell("What reads the scripts of its steps."),
        "workdir": about(reference("value"), "Where steps start, inside the workspace."),
        "no_output_timeout": about(duration(), "Longest silence of a step."),
    });
    if let Value::Object(own) = own {
        keys.extend(own);
    }
    keys
}

/// Keys about what stands around the work.
fn around_properties() -> Map<String, Value> {
    let around = json!({
        "image": about(reference("value"), "The steps run in a container of this image."),
        "container": container(),
        "checkout": {
            "description": "How the repository comes into the workspace; `false` for not at all.",
            "type": ["boolean", "object", "null"],
            "additionalProperties": false,
            "properties": {
                "depth": { "type": "integer", "minimum": 0 },
                "submodules": { "type": "boolean" },
                "lfs": { "type": "boolean" },
                "credential": { "type": "string" },
            },
        },
        "environment": about(reference("value"), "What it works on, such as `production`."),
        "inputs": {
            "description": "Artifacts of jobs in `needs`, put into the workspace.",
            "type": ["array", "string", "null"], "maxItems": MAX_INPUTS,
            "items": either(object(&["job"], &["path_glob", "into"])),
        },
        "artifacts": {
            "description": "Files to keep: patterns inside the workspace.",
            "type": ["array", "string", "null"], "maxItems": 100,
            "items": either(object(&["type", "path_glob"], &[])),
        },
        "results": {
            "description": "Reports of tests that the steps write.",
            "oneOf": [result(), { "type": "array", "items": result() }, { "type": "null" }],
        },
        "count_tests": {
            "description": "Where it is told how many tests ran; none is a failure (`no_tests`).",
            "enum": ["report", "output", "none", null],
        },
        "caches": {
            "description": "Files to restore before and save after the work.",
            "type": ["array", "null"], "maxItems": 100,
            "items": {
                "type": "object",
                "required": ["key", "paths"],
                "additionalProperties": false,
                "properties": {
                    "type": { "type": "string" },
                    "key": { "type": "string" },
                    "paths": {
                        "type": ["array", "string"], "minItems": 1, "items": { "type": "string" },
                    },
                    "restore_keys": {
                        "type": ["array", "string"], "items": { "type": "string" },
                    },
                },
            },
        },
        "secrets": {
            "description": "Names of secrets, each a variable of the steps.",
            "type": ["array", "string", "null"], "maxItems": MAX_SECRETS,
            "items": either(object(&["name"], &["env"])),
        },
    });
    match around {
        Value::Object(around) => around,
        _ => Map::new(),
    }
}

fn container() -> Value {
    let words = json!({ "type": "array", "items": { "type": "string" } });
    let service = json!({
        "type": "object",
        "required": ["name", "image"],
        "additionalProperties": false,
        "properties": {
            "name": { "type": "string" },
            "image": { "type": "string" },
            "env": { "$ref": "#/$defs/env" },
            "command": words,
            "ready": {
                "description": "The steps begin when it is ready: `run` ends well in its \
                                container, or it listens on `port`.",
                "type": "object",
                "additionalProperties": false,
                "oneOf": [{ "required": ["run"] }, { "required": ["port"] }],
                "properties": {
                    "run": { "type": "string" },
                    "port": { "type": "integer", "minimum": 1, "maximum": 65535 },
                    "timeout": about(duration(), "How long it may take in all; 1m otherwise."),
                    "every": about(duration(), "Between two looks; 1s otherwise."),
                },
            },
        },
    });
    let mount = json!({
        "type": "object",
        "required": ["source", "target"],
        "additionalProperties": false,
        "properties": {
            "source": { "type": "string" },
            "target": { "type": "string" },
            "read_only": { "type": "boolean" },
        },
    });
    json!({
        "description": "How the container of `image` is run, and what runs beside it.",
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": {
            "entrypoint": words,
            "network": { "enum": ["none", "bridge", "host"] },
            "memory_mb": { "type": "integer", "minimum": 4 },
            "cpus": { "type": "number", "minimum": 0.01, "maximum": 1024 },
            "pids": { "type": "integer", "minimum": 1 },
            "user": { "type": "string" },
            "mounts": { "type": "array", "items": mount },
            "services": { "type": "array", "maxItems": MAX_SERVICES, "items": service },
        },
    })
}

fn result() -> Value {
    json!({
        "type": "object",
        "required": ["format", "path"],
        "additionalProperties": false,
        "properties": {
            "format": { "enum": ["junit", "jest", "playwright", "tap", "json"] },
            "path": { "type": "string" },
        },
    })
}

/// A list, or its only item.
fn one_or_more(list: Value) -> Value {
    json!({ "oneOf": [{ "$ref": "#/$defs/text" }, list] })
}

/// A text, or the same said at length.
fn either(long: Value) -> Value {
    json!({ "oneOf": [{ "type": "string" }, long] })
}

fn object(required: &[&str], more: &[&str]) -> Value {
    let keys = required.iter().chain(more);
    let keys = keys.map(|key| ((*key).to_owned(), json!({ "type": "string" })));
    json!({
        "type": "object",
        "required": required,
        "additionalProperties": false,
        "properties": keys.collect::<Map<_, _>>(),
    })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/$defs/{name}") })
}

fn duration() -> Value {
    json!({ "oneOf": [{ "$ref": "#/$defs/duration" }, { "type": "null" }] })
}

fn about(mut schema: Value, words: &str) -> Value {
    if let Value::Object(fields) = &mut schema {
        fields.insert("description".to_owned(), json!(words));
    }
    schema
}
