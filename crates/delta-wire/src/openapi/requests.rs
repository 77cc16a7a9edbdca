//! What readers of requests insist on, field by field, out of the constants they read by.

use delta_core::Cause;
use serde_json::{Value, json};

use super::Schemas;
use super::texts::{
    address, address_part, agent, branch, environment, filled, function, items, items_of, label,
    line, lines, map, marked, name, positive, printable, requirement, said_line, seconds, text,
    unspaced, username, variable, whole, word,
};
use crate::api::caches::{MAX_CACHE_KEY, MAX_CACHE_PREFIXES};
use crate::api::create_run::{
    MAX_ATTEMPTS, MAX_GROUP, MAX_JOBS, MAX_NAME, MAX_NEEDS, MAX_PRIORITY, MAX_REQUIRES,
    MAX_RETRY_ON, MAX_SOURCE, MAX_TIMEOUT, MAX_WORD, MIN_TIMEOUT, NAME_MARKS,
};
use crate::api::functions::{
    MAX_BACKOFF, MAX_DELAY, MAX_FUNCTIONS, MAX_ID, MAX_NAMED, MAX_UNIQUE_KEY,
};
use crate::api::repositories::{
    MAX_INPUT, MAX_INPUT_NAME, MAX_INPUTS, MAX_REPOSITORY_NAME, MAX_WEBHOOK_SECRET,
    MIN_WEBHOOK_SECRET,
};
use crate::api::requests::MAX_JOB;
use crate::api::secrets::{
    MAX_KNOWN_HOSTS_BYTES, MAX_SECRET_BYTES, MAX_USERNAME, MIN_SECRET_BYTES,
};
use crate::api::tokens::{self, LONGEST_ENROLMENT, MAX_IDENTITY, MAX_WORDS};
use crate::job_spec::{
    MAX_CARRIED, MAX_ENVIRONMENT, MAX_FUNCTION, MAX_QUEUE, MAX_SECRETS, MAX_WORD as MAX_VARIABLE,
};
use crate::seconds::{MAX_SECONDS, Seconds};

/// The messages of the people's API that are read strictly.
pub const REQUESTS: &[&str] = &[
    "CancelRequest",
    "ChooseDeadLetters",
    "CreateFunction",
    "CreateFunctions",
    "CreateJob",
    "CreateRun",
    "CreateToken",
    "EnrolAgent",
    "FetchSecrets",
    "Group",
    "PutRepository",
    "RerunRequest",
    "RouteQueue",
    "SetSecret",
    "TriggerRun",
];

/// Requests that no type of their own describes.
pub fn schemas() -> Schemas {
    let several = json!({
        "description": "Up to a thousand calls, made in one commit or not at all.",
        "type": "object",
        "required": ["functions"],
        "properties": {"functions": {
            "type": "array", "minItems": 1, "maxItems": MAX_FUNCTIONS,
            "items": {"$ref": "#/components/schemas/CreateFunction"},
        }},
    });
    let any = |names: [&str; 2]| {
        let all = names.map(|it| json!({"$ref": format!("#/components/schemas/{it}")}));
        json!({"anyOf": all})
    };
    let all = [
        ("CreateFunctions", several),
        ("Calls", any(["CreateFunction", "CreateFunctions"])),
        ("CallsMade", any(["FunctionView", "FunctionList"])),
    ];
    Schemas::from_iter(all.map(|(name, schema)| (name.to_owned(), schema)))
}

/// What is put into a schema (`Name`) or into one of its properties (`Name.property`).
pub fn bounds() -> Vec<(&'static str, Value)> {
    [
        runs(),
        functions(),
        repositories(),
        secrets(),
        credentials(),
    ]
    .concat()
}

fn runs() -> Vec<(&'static str, Value)> {
    let timeout = || seconds(MIN_TIMEOUT, MAX_TIMEOUT);
    let priority = || whole((-MAX_PRIORITY).into(), MAX_PRIORITY.into());
    let causes = Cause::ALL.iter().map(|it| it.name());
    let causes: Vec<&str> = ["infra", "timeout"].into_iter().chain(causes).collect();
    vec![
        ("Seconds", json!({"minimum": 0, "maximum": MAX_SECONDS})),
        ("CreateRun.jobs", items(1, MAX_JOBS)),
        ("CreateRun.repository", printable(MAX_SOURCE)),
        ("CreateRun.ref", printable(MAX_SOURCE)),
        ("CreateRun.commit", printable(MAX_SOURCE)),
        ("CreateRun.timeout_seconds", timeout()),
        ("CreateRun.wait_timeout_seconds", timeout()),
        ("CreateRun.priority", priority()),
        ("Group.group", said_line(MAX_GROUP)),
        ("CreateJob.name", marked(MAX_NAME, NAME_MARKS)),
        ("CreateJob.needs", items_of(0, MAX_NEEDS, &text(MAX_NAME))),
        ("CreateJob.max_attempts", whole(1, MAX_ATTEMPTS.into())),
        ("CreateJob.timeout_seconds", timeout()),
        (
            "CreateJob.requires",
            items_of(0, MAX_REQUIRES, &requirement(MAX_WORD)),
        ),
        ("CreateJob.priority", priority()),
        ("CreateJob.fail_fast_group", text(MAX_NAME)),
        (
            "CreateJob.job_spec",
            json!({"$ref": "#/components/schemas/JobSpec"}),
        ),
        (
            "CreateJob.retry_on",
            items_of(0, MAX_RETRY_ON, &json!({"enum": causes})),
        ),
        ("RerunRequest.job", text(MAX_JOB)),
        // One of the two chooses what is run again.
        ("RerunRequest", unless("failed_only", true, &["job"])),
    ]
}

fn functions() -> Vec<(&'static str, Value)> {
    let zero = Seconds::ZERO;
    let carried = map(MAX_CARRIED, &json!({}), &json!({"type": "string"}));
    vec![
        ("CreateFunction.function", function(MAX_FUNCTION, MAX_QUEUE)),
        ("CreateFunction.queue", name(MAX_QUEUE)),
        (
            "CreateFunction.priority",
            whole((-MAX_PRIORITY).into(), MAX_PRIORITY.into()),
        ),
        ("CreateFunction.delay_seconds", seconds(zero, MAX_DELAY)),
        ("CreateFunction.unique_key", text(MAX_UNIQUE_KEY)),
        ("CreateFunction.unique_seconds", seconds(zero, MAX_DELAY)),
        ("CreateFunction.max_attempts", whole(1, MAX_ATTEMPTS.into())),
        ("CreateFunction.backoff_seconds", seconds(zero, MAX_BACKOFF)),
        (
            "CreateFunction.backoff_cap_seconds",
            seconds(zero, MAX_BACKOFF),
        ),
        (
            "CreateFunction.timeout_seconds",
            seconds(MIN_TIMEOUT, MAX_TIMEOUT),
        ),
        (
            "CreateFunction.result_ttl_seconds",
            seconds(zero, MAX_DELAY),
        ),
        ("CreateFunction.trace_context", carried),
        (
            "CreateFunction",
            json!({
                "dependentRequired": {"unique_seconds": ["unique_key"]},
                "not": {"required": ["delay_seconds", "not_before"]},
            }),
        ),
        (
            "ChooseDeadLetters.ids",
            items_of(0, MAX_NAMED, &text(MAX_ID)),
        ),
        ("ChooseDeadLetters.queue", name(MAX_QUEUE)),
        (
            "ChooseDeadLetters.function",
            function(MAX_FUNCTION, MAX_QUEUE),
        ),
        ("ChooseDeadLetters.cause", text(MAX_ID)),
        ("ChooseDeadLetters.before", text(MAX_ID)),
        ("ChooseDeadLetters", chosen()),
        ("RouteQueue.runner", name(MAX_QUEUE)),
        // Null is a word of its own here: nobody's.
        ("RouteQueue.runner", json!({"type": ["string", "null"]})),
        ("FindCache.key", line(MAX_CACHE_KEY)),
        (
            "FindCache.restore_keys",
            items_of(0, MAX_CACHE_PREFIXES, &line(MAX_CACHE_KEY)),
        ),
    ]
}

/// By id, or by what is said of them, and not by nothing.
fn chosen() -> Value {
    let absent = |names: &[&str]| {
        let all = names.iter().map(|name| ((*name).to_owned(), json!(false)));
        Value::Object(all.collect())
    };
    let mut unsaid = absent(&["queue", "function", "cause"]);
    unsaid["all"] = json!({"const": false});
    json!({
        "if": {"required": ["ids"], "properties": {"ids": {"minItems": 1}}},
        "then": {"properties": unsaid},
        "else": {"not": {"properties": unsaid}},
    })
}

fn repositories() -> Vec<(&'static str, Value)> {
    let secret = || variable(MAX_VARIABLE);
    let input = json!({"minLength": 1, "maxLength": MAX_INPUT_NAME});
    let value = json!({"type": "string", "maxLength": MAX_INPUT});
    vec![
        ("PutRepository.name", address_part(MAX_REPOSITORY_NAME)),
        ("PutRepository.clone_url", address(MAX_SOURCE)),
        ("PutRepository.api", address(MAX_SOURCE)),
        ("PutRepository.project", text(MAX_SOURCE)),
        ("PutRepository.token", secret()),
        ("PutRepository.credential", secret()),
        (
            "PutRepository.webhook_secret",
            json!({"minLength": MIN_WEBHOOK_SECRET, "maxLength": MAX_WEBHOOK_SECRET}),
        ),
        ("PutRepository.notify_url", address(MAX_SOURCE)),
        ("PutRepository.notify_secret", secret()),
        (
            "PutRepository",
            json!({"dependentRequired": {
                "notify_url": ["notify_secret"], "notify_secret": ["notify_url"],
            }}),
        ),
        ("TriggerRun.ref", text(MAX_SOURCE)),
        ("TriggerRun.inputs", map(MAX_INPUTS, &input, &value)),
    ]
}

fn secrets() -> Vec<(&'static str, Value)> {
    let of_kind =
        |kind: &str| json!({"required": ["kind"], "properties": {"kind": {"const": kind}}});
    vec![
        ("SetSecret.name", variable(MAX_VARIABLE)),
        (
            "SetSecret.value",
            filled(MIN_SECRET_BYTES, MAX_SECRET_BYTES),
        ),
        ("SetSecret.repository", printable(MAX_SOURCE)),
        ("SetSecret.branch", branch(MAX_SOURCE)),
        ("SetSecret.environment", environment(MAX_ENVIRONMENT)),
        ("SetSecret.username", username(MAX_USERNAME)),
        ("SetSecret.known_hosts", lines(MAX_KNOWN_HOSTS_BYTES)),
        (
            "SetSecret",
            json!({
                "if": of_kind("token"),
                "then": {"properties": {"value": unspaced(), "known_hosts": false}},
                "else": {
                    "if": of_kind("ssh-key"),
                    "then": {
                        "required": ["known_hosts"],
                        "properties": {
                            "value": {"pattern": "PRIVATE KEY-----"}, "username": false,
                        },
                    },
                    "else": {"properties": {"username": false, "known_hosts": false}},
                },
            }),
        ),
        (
            "FetchSecrets.names",
            items_of(1, MAX_SECRETS + 1, &variable(MAX_VARIABLE)),
        ),
    ]
}

fn credentials() -> Vec<(&'static str, Value)> {
    let of_role = |role: &str| json!({"properties": {"role": {"const": role}}});
    let longest = json!({"maximum": LONGEST_ENROLMENT});
    vec![
        ("CreateToken.name", line(tokens::MAX_NAME)),
        ("CreateToken.expires_in_seconds", positive(MAX_SECONDS)),
        ("CreateToken.pool", word(tokens::MAX_NAME)),
        (
            "CreateToken.zones",
            items_of(0, MAX_WORDS, &word(tokens::MAX_NAME)),
        ),
        (
            "CreateToken.labels",
            items_of(0, MAX_WORDS, &label(tokens::MAX_NAME)),
        ),
        ("CreateToken.agent_id", agent(tokens::MAX_NAME)),
        ("CreateToken.certificate", line(MAX_IDENTITY)),
        (
            "CreateToken",
            json!({
                "if": of_role("enrolment"),
                "then": {"properties": {
                    "expires_in_seconds": longest, "agent_id": false, "certificate": false,
                }},
                "else": {
                    "if": {"not": of_role("runner")},
                    "then": {"properties": {
                        "pool": false, "zones": false, "labels": false, "agent_id": false,
                        "certificate": false,
                    }},
                },
            }),
        ),
        ("EnrolAgent.agent_name", agent(tokens::MAX_NAME)),
    ]
}

/// Where a field has this value, these others are absent.
fn unless(field: &str, value: impl Into<Value>, absent: &[&str]) -> Value {
    let absent = absent.iter().map(|name| ((*name).to_owned(), json!(false)));
    let absent: serde_json::Map<String, Value> = absent.collect();
    json!({
        "if": {"required": [field], "properties": {field: {"const": value.into()}}},
        "then": {"properties": absent},
    })
}
