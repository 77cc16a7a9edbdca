//! The work of a job, as its reader takes it from a person: nearly everything may be said shortly,
//! as a text, or at length, as an object.

use serde_json::{Value, json};

use super::Schemas;
use super::texts::{
    environment, function, host, image, inside, items, key, map, name, saved, script, seconds,
    target, text, unbroken, user, variable,
};
use crate::api::create_run::{MAX_TIMEOUT, MIN_TIMEOUT};
use crate::job_spec::{
    CountTests, MAX_ARGUMENTS, MAX_CARRIED, MAX_DEPTH, MAX_ENV, MAX_ENV_VALUE_BYTES,
    MAX_ENVIRONMENT, MAX_INPUTS, MAX_PATH, MAX_PATTERNS, MAX_QUEUE, MAX_READY_TIMEOUT,
    MAX_RESTORE_KEYS, MAX_ROUTED, MAX_SECRETS, MAX_SERVICES, MAX_STEP_BYTES, MAX_STEPS,
    MAX_TEST_ARGUMENTS, MAX_TESTS, MAX_WORD, READY_PAUSES, ResultsFormat,
};
use crate::shell::{MAX_SHELL_WORD, MAX_SHELL_WORDS, Shell};
use crate::step::{MAX_STEP_ENV, MAX_STEP_NAME, StepWhen};

/// The largest container: what the readers of `container` and of a test's limits allow.
const MAX_MEMORY_MB: i64 = 64 * 1024 * 1024;
const MAX_PIDS: i64 = 4_194_304;

pub fn schemas() -> Schemas {
    let all = [
        ("JobSpec", spec()),
        ("Step", step()),
        ("StepObject", step_object()),
        ("Checkout", checkout()),
        ("Container", container()),
        ("Mount", mount()),
        ("FunctionWork", call()),
        ("TestWork", test()),
        (
            "ResultsFormat",
            words(ResultsFormat::ALL, ResultsFormat::as_str),
        ),
        ("StepWhen", words(StepWhen::ALL, StepWhen::as_str)),
    ];
    Schemas::from_iter(all.map(|(name, schema)| (name.to_owned(), schema)))
}

fn words<T: Copy>(all: &[T], word: fn(T) -> &'static str) -> Value {
    let all: Vec<&str> = all.iter().map(|it| word(*it)).collect();
    json!({"type": "string", "enum": all})
}

fn refer(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

/// A text within these bounds.
fn string(mut bounds: Value) -> Value {
    bounds["type"] = "string".into();
    bounds
}

fn list(bounds: Value, item: Value) -> Value {
    let mut list = bounds;
    list["type"] = "array".into();
    list["items"] = item;
    list
}

/// An object with these fields and no other.
fn object(required: &[&str], properties: Value) -> Value {
    json!({
        "type": "object", "required": required, "properties": properties,
        "additionalProperties": false,
    })
}

fn about(words: &str, mut schema: Value) -> Value {
    schema["description"] = words.into();
    schema
}

fn variables(most: usize) -> Value {
    let name = json!({
        "minLength": 1, "maxLength": MAX_WORD, "pattern": "^[^=\\u0000-\\u001f\\u007f-\\u009f]+$",
    });
    let mut map = map(most, &name, &string(unbroken(MAX_ENV_VALUE_BYTES)));
    map["type"] = "object".into();
    map
}

fn spec() -> Value {
    let mut spec = object(&[], fields());
    spec["description"] =
        "What an agent is to do: exactly one of steps, tests and function, and what stands around \
         it."
        .into();
    let absent = |names: [&str; 2]| json!({"properties": {names[0]: false, names[1]: false}});
    spec["if"] = json!({"required": ["steps"]});
    spec["then"] = absent(["tests", "function"]);
    spec["else"] = json!({
        "if": {"required": ["tests"]},
        "then": absent(["steps", "function"]),
        "else": {"required": ["function"]},
    });
    // A container is made of an image; tests may each bring their own.
    spec["dependentSchemas"] = json!({"container": {
        "if": {"not": {"required": ["tests"]}}, "then": {"required": ["image"]},
    }, "count_tests": {
        "required": ["steps"],
        "if": {"properties": {"count_tests": {"const": "report"}}},
        "then": {"required": ["results"], "properties": {"results": {"minItems": 1}}},
    }});
    spec
}

fn fields() -> Value {
    let short = || string(text(MAX_WORD));
    let path = || string(inside(MAX_PATH));
    let artifact = object(
        &["type", "path_glob"],
        json!({"type": short(), "path_glob": path()}),
    );
    let paths = list(items(1, MAX_PATTERNS), string(saved(MAX_PATH)));
    let cache = object(
        &["key", "paths"],
        json!({
            "type": short(), "key": string(key(MAX_PATH)), "paths": paths,
            "restore_keys": list(items(0, MAX_RESTORE_KEYS), string(key(MAX_PATH))),
        }),
    );
    let input = object(
        &["job"],
        json!({"job": short(), "path_glob": path(), "into": path()}),
    );
    let secret = object(
        &["name"],
        json!({"name": string(variable(MAX_WORD)), "env": string(variable(MAX_WORD))}),
    );
    let report = object(
        &["format", "path"],
        json!({"format": refer("ResultsFormat"), "path": path()}),
    );
    let either = |one: Value, other: Value| json!({"anyOf": [one, other]});
    let reports = list(items(0, MAX_PATTERNS), report.clone());
    json!({
        "name": about("The job's own when absent.", short()),
        "workdir": about("Inside the work folder; `.` when absent.", path()),
        "image": about("Container image; without it the steps are plain processes.",
            string(image(MAX_PATH))),
        "container": refer("Container"),
        "checkout": refer("Checkout"),
        "steps": about("Carried out one after the other.",
            list(items(1, MAX_STEPS), refer("Step"))),
        "env": variables(MAX_ENV),
        "artifacts": about("Files to keep after the work.",
            list(items(0, MAX_PATTERNS), either(path(), artifact))),
        "caches": about("Files to restore before the work and to save after it.",
            list(items(0, MAX_PATTERNS), cache)),
        "inputs": about("Artifacts of jobs that this one needs.",
            list(items(0, MAX_INPUTS), either(short(), input))),
        "results": about("Reports of tests that the work writes.", either(report, reports)),
        "count_tests": about("Where it is told how many tests ran; none is a failure.",
            words(CountTests::ALL, CountTests::as_str)),
        "secrets": about("Secrets that the work gets as variables.",
            list(items(0, MAX_SECRETS), either(string(variable(MAX_WORD)), secret))),
        "environment": about("What it works on, such as production.",
            string(environment(MAX_ENVIRONMENT))),
        "no_output_timeout_seconds": number(seconds(MIN_TIMEOUT, MAX_TIMEOUT)),
        "tests": list(items(1, MAX_TESTS), refer("TestWork")),
        "function": refer("FunctionWork"),
    })
}

fn number(mut bounds: Value) -> Value {
    bounds["type"] = "number".into();
    bounds
}

fn step() -> Value {
    about(
        "A script for `sh -e`, or an object that says more of it.",
        json!({"anyOf": [string(script(MAX_STEP_BYTES)), refer("StepObject")]}),
    )
}

fn step_object() -> Value {
    let step = object(
        &["run"],
        json!({
            "run": string(script(MAX_STEP_BYTES)),
            "shell": shell(),
            "name": string(text(MAX_STEP_NAME)),
            "timeout_seconds": number(seconds(MIN_TIMEOUT, MAX_TIMEOUT)),
            "if": refer("StepWhen"),
            "env": variables(MAX_STEP_ENV),
            "continue_on_error": {"type": "boolean"},
        }),
    );
    about("A step of which more is said than its script.", step)
}

fn shell() -> Value {
    let names = json!({"type": "string", "enum": Shell::names()});
    let words = list(items(2, MAX_SHELL_WORDS), string(text(MAX_SHELL_WORD)));
    about(
        "What reads the script: one that is known by name, or a program and its arguments, of \
         which the script is the last.",
        json!({"anyOf": [names, words]}),
    )
}

fn checkout() -> Value {
    let options = object(
        &[],
        json!({
            "depth": {"type": "integer", "minimum": 0, "maximum": MAX_DEPTH},
            "submodules": {"type": "boolean"},
            "lfs": {"type": "boolean"},
            "credential": string(variable(MAX_WORD)),
        }),
    );
    about(
        "Whether and how the run's repository comes into the workspace.",
        json!({"anyOf": [{"type": "boolean"}, options]}),
    )
}

fn networks() -> Value {
    json!({"type": "string", "enum": ["none", "bridge", "host"]})
}

fn container() -> Value {
    let words = || list(items(0, MAX_ARGUMENTS), string(unbroken(MAX_PATH)));
    let service = object(
        &["name", "image"],
        json!({
            "name": string(host(63)), "image": string(image(MAX_PATH)),
            "env": variables(MAX_ENV), "command": words(), "ready": ready(),
        }),
    );
    let container = object(
        &[],
        json!({
            "entrypoint": words(),
            "network": networks(),
            "memory_mb": {"type": "integer", "minimum": 4, "maximum": MAX_MEMORY_MB},
            "cpus": {"type": "number", "minimum": 0.01, "maximum": 1024},
            "pids": {"type": "integer", "minimum": 1, "maximum": MAX_PIDS},
            "user": string(user(MAX_WORD)),
            "mounts": list(items(0, MAX_PATTERNS), refer("Mount")),
            "services": list(items(0, MAX_SERVICES), service),
        }),
    );
    about("How the container of the job's image is run.", container)
}

/// When a service is ready: by a script, or by a port.
fn ready() -> Value {
    let by = |sign: &'static str, schema: Value| {
        let (first, last) = (*READY_PAUSES.start(), *READY_PAUSES.end());
        let mut fields = json!({
            "timeout_seconds": number(seconds(MIN_TIMEOUT, MAX_READY_TIMEOUT)),
            "every_seconds": number(seconds(first, last)),
        });
        fields[sign] = schema;
        object(&[sign], fields)
    };
    let port = json!({"type": "integer", "minimum": 1, "maximum": u16::MAX});
    let by_run = by("run", string(script(MAX_STEP_BYTES)));
    json!({"anyOf": [by_run, by("port", port)]})
}

fn mount() -> Value {
    let fields = json!({
        "source": string(inside(MAX_PATH)), "target": string(target(MAX_PATH)),
        "read_only": {"type": "boolean"},
    });
    about(
        "A folder of the workspace at another place of the container.",
        object(&["source", "target"], fields),
    )
}

fn call() -> Value {
    let mut carried = map(MAX_CARRIED, &json!({}), &json!({"type": "string"}));
    carried["type"] = "object".into();
    let fields = json!({
        "name": string(function(MAX_ROUTED, MAX_QUEUE)),
        "params": {"type": "object"},
        "queue": string(name(MAX_QUEUE)),
        "enqueued_at": {"type": "string", "format": "date-time"},
        "trace_context": carried,
    });
    about("A call of a function.", object(&["name"], fields))
}

fn test() -> Value {
    let short = || string(text(MAX_WORD));
    let path = || string(inside(MAX_PATH));
    let limits = object(
        &[],
        json!({
            "cpu_millis": {"type": "integer", "minimum": 10, "maximum": 1_024_000},
            "memory_mb": {"type": "integer", "minimum": 4, "maximum": MAX_MEMORY_MB},
            "pids": {"type": "integer", "minimum": 1, "maximum": MAX_PIDS},
        }),
    );
    let arguments = string(unbroken(MAX_STEP_BYTES));
    let mut execution = object(
        &[],
        json!({
            "type": {"type": "string", "enum": ["SUBPROCESS", "CONTAINER"]},
            "command": string(script(MAX_PATH)),
            "args": list(items(0, MAX_TEST_ARGUMENTS), arguments),
            "working_dir": path(),
            "image": string(image(MAX_PATH)),
            "entrypoint": list(items(0, MAX_ARGUMENTS), string(unbroken(MAX_PATH))),
            "mounts": list(items(0, MAX_PATTERNS), refer("Mount")),
            "network_mode": networks(),
            "resource_limits": limits,
        }),
    );
    execution["if"] = json!({
        "required": ["type"], "properties": {"type": {"const": "CONTAINER"}},
    });
    execution["then"] = json!({"required": ["image"]});
    execution["else"] = json!({"required": ["command"]});
    let formats: Vec<String> = ResultsFormat::ALL
        .iter()
        .map(|it| it.as_str().to_uppercase())
        .collect();
    let mut config = object(
        &[],
        json!({
            "result_file": path(),
            "result_format": {"type": "string", "enum": formats},
            "artifact_paths": list(items(0, MAX_PATTERNS), path()),
        }),
    );
    config["dependentRequired"] = json!({"result_file": ["result_format"]});
    let fields = json!({
        "test_id": short(), "name": short(), "suite": short(),
        "execution": execution, "result_config": config,
    });
    about(
        "One test, or one program that runs many.",
        object(&["test_id", "execution"], fields),
    )
}
