//! Every golden vector is read, refused and written as it says, and its schema agrees.
//!
//! The vectors and schemas are for runners in any language; here they hold this crate to them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use delta_wire::runner::{self, Message, parse};
use delta_wire::{ErrorBody, Invalid};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    name: String,
    #[serde(rename = "type")]
    message: String,
    /// The message, or `text` where it cannot be said as a JSON value.
    json: Option<Value>,
    text: Option<String>,
    valid: bool,
    /// The field a refusal names.
    field: Option<String>,
    /// What is written back, where it is not what was read.
    canonical: Option<Value>,
    #[serde(default)]
    unknown_fields: u32,
}

impl Vector {
    fn body(&self) -> String {
        match (&self.json, &self.text) {
            (Some(json), None) => json.to_string(),
            (None, Some(text)) => text.clone(),
            _ => panic!("{}: json or text, one of them", self.name),
        }
    }
}

/// What a message is written back as, and how many fields nobody knew.
fn read_back(message: &str, body: &[u8]) -> Result<(Value, u32), Invalid> {
    fn typed<M: Message + Serialize>(body: &[u8]) -> Result<(Value, u32), Invalid> {
        let parsed = parse::<M>(body)?;
        Ok((
            serde_json::to_value(&parsed.message).unwrap(),
            parsed.unknown_fields,
        ))
    }
    match message {
        "Lease" => typed::<runner::Lease>(body),
        "LeaseGranted" => typed::<runner::LeaseGranted>(body),
        "AckLease" => typed::<runner::AckLease>(body),
        "AckLeaseAck" => typed::<runner::AckLeaseAck>(body),
        "Heartbeat" => typed::<runner::Heartbeat>(body),
        "HeartbeatAck" => typed::<runner::HeartbeatAck>(body),
        "Complete" => typed::<runner::Complete>(body),
        "CompleteAck" => typed::<runner::CompleteAck>(body),
        "CancelRequested" => typed::<runner::CancelRequested>(body),
        "CancelAck" => typed::<runner::CancelAck>(body),
        "CancelAckAck" => typed::<runner::CancelAckAck>(body),
        "StaleLease" => typed::<runner::StaleLease>(body),
        "CreateUpload" => typed::<runner::CreateUpload>(body),
        "UploadCreated" => typed::<runner::UploadCreated>(body),
        "Error" => serde_json::from_slice::<ErrorBody>(body)
            .map(|error| (serde_json::to_value(error).unwrap(), 0))
            .map_err(|error| Invalid::here(error.to_string())),
        other => panic!("no message is named {other}"),
    }
}

fn protocol() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocol")
}

fn stems(folder: &Path, ending: &str) -> BTreeSet<String> {
    let names = std::fs::read_dir(folder)
        .unwrap()
        .map(|it| it.unwrap().file_name());
    names
        .filter_map(|it| Some(it.to_str()?.strip_suffix(ending)?.to_owned()))
        .collect()
}

fn vectors() -> Vec<Vector> {
    let folder = protocol().join("vectors/runner");
    let mut all = Vec::new();
    for stem in stems(&folder, ".json") {
        let text = std::fs::read_to_string(folder.join(format!("{stem}.json"))).unwrap();
        let list: Vec<Vector> = serde_json::from_str(&text).unwrap();
        assert!(list.iter().all(|vector| vector.message == stem), "{stem}");
        all.extend(list);
    }
    all
}

fn schema_of(message: &str) -> jsonschema::Validator {
    let path = protocol().join(format!("runner/v1/{message}.schema.json"));
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    jsonschema::draft202012::meta::validate(&schema).unwrap();
    jsonschema::draft202012::new(&schema).unwrap()
}

// RP-21: exactly the protocol's messages, their replies, our uploads and the error shape.
#[test]
fn every_schema_has_vectors_and_every_vector_a_schema() {
    let schemas = stems(&protocol().join("runner/v1"), ".schema.json");
    assert_eq!(schemas, stems(&protocol().join("vectors/runner"), ".json"));
    assert_eq!(schemas.len(), 15, "{schemas:?}");
}

// RP-23, RP-24, RP-25, RP-28, RP-29, RP-32, RP-33, RP-36, RP-39, RP-44, A71
#[test]
fn every_vector_is_read_or_refused_as_it_says() {
    let mut examples = 0;
    for vector in vectors() {
        let label = format!("{}: {}", vector.message, vector.name);
        let outcome = read_back(&vector.message, vector.body().as_bytes());
        match (vector.valid, outcome) {
            (true, Ok((written, unknown))) => {
                let expected = vector.canonical.as_ref().or(vector.json.as_ref());
                assert_eq!(Some(&written), expected, "{label}");
                assert_eq!(unknown, vector.unknown_fields, "{label}");
            }
            (false, Err(_)) if vector.message == "Error" => {}
            (false, Err(invalid)) => {
                assert_eq!(
                    Some(invalid.place()),
                    vector.field.as_deref(),
                    "{label}: {invalid}"
                );
            }
            (valid, outcome) => panic!("{label}: valid is {valid}, but {outcome:?}"),
        }
        examples += usize::from(vector.name == "the specification's example");
    }
    assert_eq!(examples, 9, "the specification shows nine messages");
}

// RP-22
#[test]
fn every_vector_agrees_with_its_schema() {
    for message in stems(&protocol().join("runner/v1"), ".schema.json") {
        let schema = schema_of(&message);
        for vector in vectors().iter().filter(|vector| vector.message == message) {
            if let Some(json) = &vector.json {
                let label = format!("{message}: {}", vector.name);
                assert_eq!(schema.is_valid(json), vector.valid, "{label}");
            }
            if let Some(canonical) = &vector.canonical {
                assert!(
                    schema.is_valid(canonical),
                    "{message}: {} canonical",
                    vector.name
                );
            }
        }
    }
}

#[test]
fn what_is_written_is_read_again_and_written_alike() {
    for vector in vectors().iter().filter(|vector| vector.valid) {
        let (first, _) = read_back(&vector.message, vector.body().as_bytes()).unwrap();
        let (second, unknown) = read_back(&vector.message, first.to_string().as_bytes()).unwrap();
        assert_eq!(
            (first, 0),
            (second, unknown),
            "{}: {}",
            vector.message,
            vector.name
        );
    }
}

// RP-24: what the submitter wrote is what the agent gets, byte for byte.
#[test]
fn a_job_spec_passes_through_a_grant_byte_for_byte() {
    let spec = "{ \"steps\" : [\"printf '\\u00e9'\"],\n\t\"env\":{\"B\":\"2\",\"A\":\"1e3\"} }";
    let body = format!(
        r#"{{"type":"LeaseGranted","job_id":"j","run_id":"r","lease_id":"l","job_spec":{spec},
            "lease_ttl_seconds":120,"heartbeat_interval_seconds":20,"max_runtime_seconds":60}}"#
    );
    let granted = parse::<runner::LeaseGranted>(body.as_bytes())
        .unwrap()
        .message;
    let written = serde_json::to_string(&granted).unwrap();
    assert!(written.contains(spec), "{written}");
    let runner::GrantedSpec::Embedded(raw) = granted.spec else {
        panic!("embedded")
    };
    assert_eq!(raw.as_text(), spec);
    assert_eq!(raw.parse().unwrap().env[0].0, "B");
}

// RP-53, RP-54, A24
#[test]
fn no_message_shows_its_secrets_in_debug_output() {
    for vector in vectors().iter().filter(|vector| vector.valid) {
        let shown = match vector.message.as_str() {
            "LeaseGranted" => debug::<runner::LeaseGranted>(vector),
            "AckLease" => debug::<runner::AckLease>(vector),
            "Heartbeat" => debug::<runner::Heartbeat>(vector),
            "Complete" => debug::<runner::Complete>(vector),
            "CancelRequested" => debug::<runner::CancelRequested>(vector),
            "CancelAck" => debug::<runner::CancelAck>(vector),
            "CreateUpload" => debug::<runner::CreateUpload>(vector),
            "StaleLease" => debug::<runner::StaleLease>(vector),
            _ => continue,
        };
        assert!(!shown.contains("lease_abc"), "{}: {shown}", vector.message);
        assert!(
            !shown.contains("cancel_tok_optional"),
            "{}: {shown}",
            vector.message
        );
    }
}

fn debug<M: Message + std::fmt::Debug>(vector: &Vector) -> String {
    format!("{:?}", parse::<M>(vector.body().as_bytes()).unwrap())
}
