//! What parameters must be, wherever one of that name stands: ids, pages, headers.

use delta_wire::api::create_run::MAX_SOURCE;
use delta_wire::api::list::{DEFAULT_LIMIT, MAX_LIMIT};
use delta_wire::api::results::{MAX_VALUE, STATUSES};
use delta_wire::api::tokens::MAX_AGENT_ID;
use delta_wire::api::{MAX_CACHE_KEY, TestStatus, repositories::MAX_REPOSITORY_NAME};
use delta_wire::job_spec::{MAX_QUEUE, MAX_WORD};
use delta_wire::openapi::texts::{
    address_part, agent, line, name, printable, sha256, text, variable,
};
use serde_json::{Value, json};

use super::Operation;
use crate::http::functions::LONGEST_WAIT;
use crate::http::runs::MAX_KEY_BYTES;

pub fn complete(operation: &mut Operation<'_>) {
    let path = operation.path;
    let Some(Value::Array(parameters)) = operation.fields.get_mut("parameters") else {
        return;
    };
    // The attempt is asked for of one job.
    parameters.retain(|it| !(path == "/api/v1/runs/{id}/tests" && it["name"] == "attempt"));
    for parameter in parameters {
        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
        let bounds = match parameter["in"].as_str() {
            Some("path") => in_path(path, &name),
            Some("query") => in_query(path, &name),
            _ => in_header(path, &name),
        };
        let schema = &mut parameter["schema"];
        // What is absent is absent: no parameter is null.
        if let Some(types) = schema["type"].as_array() {
            let kind = types.iter().find(|it| *it != "null");
            schema["type"] = kind.cloned().unwrap_or_default();
        }
        for (key, value) in bounds.as_object().into_iter().flatten() {
            schema[key] = value.clone();
        }
        if parameter["description"].is_null()
            && let Some(about) = about(path, &name)
        {
            parameter["description"] = about.into();
        }
    }
}

fn in_path(path: &str, name: &str) -> Value {
    let run = || json!({"pattern": "^run_[0-9a-f]{32}$"});
    let before = path.split(&format!("/{{{name}}}")).next();
    match before.and_then(|it| it.rsplit('/').next()) {
        Some("runs" | "functions") => run(),
        Some("jobs") => json!({"pattern": "^job_[0-9a-f]{32}_[1-9][0-9]{0,8}$"}),
        Some("agents") => agent(MAX_AGENT_ID),
        Some("queues") => self::name(MAX_QUEUE),
        Some("repositories" | "webhooks") => address_part(MAX_REPOSITORY_NAME),
        Some("secrets") => variable(MAX_WORD),
        _ => json!({"minLength": 1}),
    }
}

fn in_query(path: &str, name: &str) -> Value {
    let number = |most: i64| json!({"minimum": 0, "maximum": most});
    let of_tests = path.ends_with("/tests");
    match name {
        "limit" => json!({"minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}),
        "cursor" if path == "/api/v1/agents" => json!({"maxLength": MAX_AGENT_ID}),
        "cursor" if path == "/api/v1/tests" => json!({"pattern": "^[0-9]{1,18}$"}),
        "cursor" if of_tests => {
            let statuses: Vec<&str> = TestStatus::ALL.iter().map(|it| it.as_str()).collect();
            let statuses = statuses.join("|");
            json!({"pattern": format!("^[0-9]{{1,9}}\\.(?:{statuses})\\.[0-9]{{1,18}}$")})
        }
        "cursor" => json!({"pattern": "^[A-Za-z0-9_-]{32}$"}),
        "status" => json!({"pattern": format!("^(?:{0})(?:,(?:{0}))*$", STATUSES.join("|"))}),
        "attempt" => number(u32::MAX.into()),
        "offset" | "after" | "work_millis" => number(i64::MAX),
        "wait" => number(LONGEST_WAIT.as_secs().cast_signed()),
        "key" => line(MAX_CACHE_KEY),
        "sha256" => sha256(),
        "name" | "suite" | "repository" if of_tests => text(MAX_VALUE),
        "repository" | "ref" | "commit" if path == "/api/v1/runs" => text(MAX_SOURCE),
        _ => json!({}),
    }
}

fn in_header(path: &str, name: &str) -> Value {
    match name {
        "Idempotency-Key" => json!({
            "minLength": 1, "maxLength": MAX_KEY_BYTES, "pattern": "^[!-~](?:[ -~]*[!-~])?$",
        }),
        "Delta-Lease" => {
            let mut token = printable(delta_wire::runner::MAX_TOKEN);
            token["pattern"] = "^[!-~]+$".into();
            token
        }
        "Upload-Offset" => json!({"minimum": 0, "maximum": i64::MAX}),
        "Last-Event-ID" if path.ends_with("/log") => {
            json!({"pattern": "^[0-9]{1,9}\\.[0-9]{1,18}\\.[0-9]{1,18}$"})
        }
        "Last-Event-ID" => json!({"minimum": 0, "maximum": i64::MAX}),
        _ => json!({}),
    }
}

/// What a parameter is that means the same everywhere.
fn about(path: &str, name: &str) -> Option<&'static str> {
    Some(match name {
        "limit" => "How many of them.",
        "cursor" => "`next_cursor` of the page before.",
        "attempt" => "Of which attempt; of the latest that has one when absent.",
        "offset" => "From which byte on.",
        "after" => "`next_after` of the page before, or the number of any event.",
        "Delta-Lease" => "The lease's secret token.",
        "Last-Event-ID" => "The id of the last event of a stream that broke off.",
        "Range" => "`bytes=a-b`, `bytes=a-` or `bytes=-n`; anything else asks for all of it.",
        "If-Range" => "An ETag: the range is meant only of that.",
        "If-None-Match" => "An ETag: nothing is sent if it is still that.",
        "Upload-Offset" => "From which byte of the log on; of an artifact there is none.",
        "id" if path.contains("/runs/{id}") => "The id of a run.",
        "id" if path.contains("/jobs/{id}") => "The id of a job.",
        "id" if path.contains("/functions/{id}") => "The id of a call, which is that of its run.",
        _ => return None,
    })
}
