//! The messages of the Runner Protocol: the canonical schemas of `protocol/`, as parts of a larger
//! document, and those of our extensions that have none there.

use serde_json::{Value, json};

use super::Schemas;
use super::texts::printable;
use crate::api::TestStatus;
use crate::runner::results::{MAX_METADATA, MAX_RESULTS};
use crate::runner::{MAX_ID, MAX_TOKEN};

macro_rules! canonical {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(
            concat!("../../../../protocol/runner/v1/", $name, ".schema.json")
        ))),+]
    };
}

const CANONICAL: [(&str, &str); 13] = canonical![
    "AckLease",
    "AckLeaseAck",
    "CancelAck",
    "CancelAckAck",
    "Complete",
    "CompleteAck",
    "CreateUpload",
    "Heartbeat",
    "HeartbeatAck",
    "Lease",
    "LeaseGranted",
    "StaleLease",
    "UploadCreated",
];

pub fn schemas() -> Schemas {
    let mut schemas = Schemas::new();
    for (name, text) in CANONICAL {
        let mut schema: Value = serde_json::from_str(text).unwrap_or_default();
        if let Some(fields) = schema.as_object_mut() {
            // The document has a dialect and an address of its own.
            for key in ["$schema", "$id", "title"] {
                fields.remove(key);
            }
            // That one of two fields is there is said by no type of a generated client.
            if name == "LeaseGranted" {
                fields.remove("oneOf");
            }
            if let Some(Value::Object(inner)) = fields.remove("$defs") {
                let inner = inner.into_iter();
                schemas.extend(inner.map(|(inner, it)| (component(name, &inner), it)));
            }
        }
        readdress(&mut schema, name);
        schemas.insert(name.to_owned(), schema);
    }
    schemas.extend(extensions());
    schemas.extend(refusals());
    schemas
}

/// The name of a part of a message.
fn component(message: &str, part: &str) -> String {
    format!("{message}.{part}")
}

fn readdress(schema: &mut Value, message: &str) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str().and_then(|it| it.strip_prefix("#/$defs/")) {
                    Some(part) if key == "$ref" => {
                        let name = component(message, part);
                        *value = format!("#/components/schemas/{name}").into();
                    }
                    _ => readdress(value, message),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|it| readdress(it, message)),
        _ => {}
    }
}

/// What a 409 may be; told apart by its `type`, which an error has not.
fn refusals() -> Schemas {
    let any = |names: &[&str]| {
        let all = names.iter().chain(&["StaleLease", "ErrorBody"]);
        let all = all.map(|it| json!({"$ref": format!("#/components/schemas/{it}")}));
        json!({"anyOf": all.collect::<Vec<_>>()})
    };
    let all = [
        ("NotHeld", any(&[])),
        ("NotCompleted", any(&["CompleteAck"])),
        ("NotCanceled", any(&["CancelAckAck"])),
        ("NotStored", any(&["OffsetMismatch"])),
    ];
    Schemas::from_iter(all.map(|(name, schema)| (name.to_owned(), schema)))
}

fn test_results() -> Value {
    let printed = |most: usize, about: &str| {
        let mut schema = printable(most);
        schema["type"] = "string".into();
        schema["description"] = about.into();
        schema
    };
    let statuses = TestStatus::ALL.iter().map(|it| it.as_str().to_uppercase());
    let statuses: Vec<String> = statuses.collect();
    let count = json!({"type": "integer", "minimum": 0, "maximum": i32::MAX});
    let result = json!({
        "type": "object",
        "required": ["name", "status"],
        "properties": {
            "test_id": {"type": "string"},
            "name": {"type": "string"},
            "suite": {"type": "string"},
            "status": {"type": "string", "enum": statuses},
            "duration_ms": {"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX},
            "error_message": {"type": "string"},
            "stack_trace": {"type": "string"},
            "metadata": {
                "type": "object", "maxProperties": MAX_METADATA,
                "additionalProperties": {"type": "string"},
            },
            "n": {"type": "integer", "minimum": 0, "maximum": u32::MAX},
        },
    });
    json!({
        "description": "Runner to server, POST /api/v1/runner/results. Tests have ended; what is \
            repeated does no harm.",
        "type": "object",
        "required": ["type", "lease_id", "runner_id", "results"],
        "properties": {
            "type": {"const": "TestResults"},
            "lease_id": printed(MAX_TOKEN, "The lease's secret token."),
            "runner_id": printed(MAX_ID, "The runner the lease was granted to."),
            "results": {"type": "array", "maxItems": MAX_RESULTS, "items": result},
            "summary": {
                "description": "What all results of the lease come to, once that is known.",
                "type": "object",
                "properties": {
                    "total_tests": count, "passed": count, "failed": count, "skipped": count,
                    "errors": count,
                },
            },
        },
    })
}

fn extensions() -> Schemas {
    let ack = json!({
        "description": "They are on disk.",
        "type": "object",
        "required": ["type", "received", "full"],
        "properties": {
            "type": {"const": "TestResultsAck"},
            "received": {"type": "integer", "minimum": 0},
            "full": {
                "description": "The lease has as many as it may have; the rest was dropped.",
                "type": "boolean",
            },
        },
    });
    let received = json!({
        "description": "How many bytes of the upload are stored.",
        "type": "object",
        "required": ["received"],
        "properties": {"received": {"type": "integer", "minimum": 0}},
    });
    let mismatch = json!({
        "description": "An error, and where to go on.",
        "type": "object",
        "required": ["code", "message", "retryable", "expected"],
        "properties": {
            "code": {"const": "OFFSET_MISMATCH"},
            "message": {"type": "string"},
            "field": {"type": "string"},
            "retryable": {"type": "boolean"},
            "expected": {"type": "integer", "minimum": 0},
        },
    });
    let all = [
        ("TestResults", test_results()),
        ("TestResultsAck", ack),
        ("UploadReceived", received),
        ("OffsetMismatch", mismatch),
    ];
    Schemas::from_iter(all.map(|(name, schema)| (name.to_owned(), schema)))
}
