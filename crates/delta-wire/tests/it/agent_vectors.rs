//! Recorded frames of the Execution Protocol: what was once sent is read for good, and means what
//! it meant (EP-54). A vector is never changed and never deleted.
//!
//! `DELTA_BLESS=1` records frames for messages that have none, with every field and with none.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use delta_wire::agent::proto::{AgentFrame, ServerFrame};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};
use serde_json::{Value, json};

use crate::agent_schema::{file, kind};

fn folder() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../protocol/vectors/agent"
    ))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// What was read, without what says nothing: so that a field that came later changes no vector.
fn meaning(read: &impl Debug) -> Vec<String> {
    let says_nothing = |line: &str| {
        let defaults = [
            ": 0,", ": 0.0,", ": false,", ": \"\",", ": b\"\",", ": [],", ": {},", ": None,",
        ];
        defaults.iter().any(|it| line.ends_with(it)) || line.ends_with("Unspecified,")
    };
    let text = format!("{read:#?}");
    let lines = text.lines().filter(|line| !says_nothing(line));
    lines.map(str::to_owned).collect()
}

/// Reads a frame and writes it again.
fn read(direction: &str, bytes: &[u8]) -> (Vec<String>, Vec<u8>) {
    match direction {
        "agent" => {
            let frame = AgentFrame::decode(bytes).unwrap();
            (meaning(&frame), frame.encode_to_vec())
        }
        "server" => {
            let frame = ServerFrame::decode(bytes).unwrap();
            (meaning(&frame), frame.encode_to_vec())
        }
        other => panic!("nobody is called {other}"),
    }
}

fn vectors(path: &Path) -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn every_recorded_frame_is_read_as_it_was_meant() {
    // EP-54, EP-55, EP-56
    record_what_is_missing();
    let files = std::fs::read_dir(folder()).unwrap();
    let mut count = 0;
    for file in files {
        let path = file.unwrap().path();
        for vector in vectors(&path) {
            let name = format!("{} {}", path.display(), vector["name"]);
            let bytes = unhex(vector["hex"].as_str().unwrap());
            let (means, written) = read(vector["from"].as_str().unwrap(), &bytes);
            assert_eq!(json!(means), vector["means"], "{name}");
            assert_eq!(hex(&written), hex(&bytes), "{name}: written again");
            count += 1;
        }
    }
    assert!(count >= 2 * kinds(&file()).len());
}

#[test]
fn every_message_has_a_recorded_frame() {
    let missing: Vec<PathBuf> = kinds(&file())
        .iter()
        .map(|kind| kind.path())
        .filter(|path| !path.exists())
        .collect();
    let how = "DELTA_BLESS=1 cargo test -p delta-wire agent records them";
    assert!(missing.is_empty(), "{how}: {missing:#?}");
}

/// One kind of message in one direction; each payload of a ResultStream is one of its own.
struct Kind {
    from: &'static str,
    field: FieldDescriptorProto,
    payload: Option<String>,
}

impl Kind {
    fn path(&self) -> PathBuf {
        let name = match &self.payload {
            Some(payload) => format!("{}.{payload}.json", kind(&self.field)),
            None => format!("{}.json", kind(&self.field)),
        };
        folder().join(name)
    }
}

fn message<'a>(file: &'a FileDescriptorProto, name: &str) -> &'a DescriptorProto {
    let found = file.message_type.iter().find(|it| it.name() == name);
    found.unwrap_or_else(|| panic!("{name}"))
}

/// Fields of real alternatives; an optional field is one of one in the descriptor.
fn alternatives(of: &DescriptorProto) -> impl Iterator<Item = &FieldDescriptorProto> {
    let all = of.field.iter();
    all.filter(|field| field.oneof_index.is_some() && !field.proto3_optional())
}

fn kinds(file: &FileDescriptorProto) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (from, envelope) in [("agent", "AgentMessage"), ("server", "ServerMessage")] {
        for field in alternatives(message(file, envelope)) {
            let payloads: Vec<String> = alternatives(message(file, &kind(field)))
                .map(|payload| payload.name().to_owned())
                .collect();
            let field = field.clone();
            if payloads.is_empty() {
                kinds.push(Kind {
                    from,
                    field,
                    payload: None,
                })
            } else {
                kinds.extend(payloads.into_iter().map(|payload| Kind {
                    from,
                    field: field.clone(),
                    payload: Some(payload),
                }))
            }
        }
    }
    kinds
}

fn record_what_is_missing() {
    if std::env::var_os("DELTA_BLESS").is_none() {
        return;
    }
    std::fs::create_dir_all(folder()).unwrap();
    let file = file();
    for kind in kinds(&file).iter().filter(|kind| !kind.path().exists()) {
        let vectors = ["every field", "no field"].map(|name| {
            let all = name == "every field";
            let bytes = framed(&file, kind, all);
            let (means, _) = read(kind.from, &bytes);
            json!({ "name": name, "from": kind.from, "hex": hex(&bytes), "means": means })
        });
        let text = serde_json::to_string_pretty(&vectors).unwrap();
        std::fs::write(kind.path(), format!("{text}\n")).unwrap();
    }
}

/// A frame of one message.
fn framed(file: &FileDescriptorProto, of: &Kind, all: bool) -> Vec<u8> {
    let inner = message(file, &kind(&of.field));
    let mut body = Vec::new();
    for field in in_order(inner) {
        let other = field.oneof_index.is_some()
            && !field.proto3_optional()
            && of.payload.as_deref() != Some(field.name());
        if all && !other {
            sample(file, field, &mut body);
        }
    }
    let mut said = Vec::new();
    bytes(of.field.number(), &body, &mut said);
    let mut frame = Vec::new();
    bytes(1, &said, &mut frame);
    frame
}

fn key(number: i32, wire: WireType, to: &mut Vec<u8>) {
    encode_key(u32::try_from(number).unwrap(), wire, to);
}

fn bytes(number: i32, value: &[u8], to: &mut Vec<u8>) {
    key(number, WireType::LengthDelimited, to);
    encode_varint(value.len() as u64, to);
    to.extend(value);
}

/// A value that tells from which field it came.
fn sample(file: &FileDescriptorProto, field: &FieldDescriptorProto, to: &mut Vec<u8>) {
    let number = field.number();
    match field.r#type() {
        Type::String => {
            bytes(number, field.name().as_bytes(), to);
            if field.label() == Label::Repeated {
                bytes(number, b"another", to);
            }
        }
        Type::Bytes => bytes(number, b"\x00\xffbytes", to),
        Type::Float => {
            key(number, WireType::ThirtyTwoBit, to);
            to.extend((number as f32 + 0.5).to_le_bytes());
        }
        Type::Double => {
            key(number, WireType::SixtyFourBit, to);
            to.extend((f64::from(number) + 0.25).to_le_bytes());
        }
        Type::Bool | Type::Enum => {
            key(number, WireType::Varint, to);
            encode_varint(1, to);
        }
        Type::Int32 | Type::Uint32 => {
            key(number, WireType::Varint, to);
            encode_varint(1000 + number as u64, to);
        }
        Type::Int64 | Type::Uint64 => {
            key(number, WireType::Varint, to);
            encode_varint((1 << 40) + number as u64, to);
        }
        Type::Message => bytes(number, &nested(file, field), to),
        other => panic!("{other:?} is not used yet"),
    }
}

/// Fields as they are written: by number.
fn in_order(of: &DescriptorProto) -> Vec<&FieldDescriptorProto> {
    let mut fields: Vec<_> = of.field.iter().collect();
    fields.sort_by_key(|field| field.number());
    fields
}

fn nested(file: &FileDescriptorProto, field: &FieldDescriptorProto) -> Vec<u8> {
    let mut body = Vec::new();
    let name = kind(field);
    if name == "google.protobuf.Timestamp" {
        key(1, WireType::Varint, &mut body);
        encode_varint(1_767_225_600, &mut body);
    } else if name.ends_with("Entry") {
        // A map of texts.
        bytes(1, b"key", &mut body);
        bytes(2, b"value", &mut body);
    } else {
        for inner in in_order(message(file, &name)) {
            sample(file, inner, &mut body);
        }
    }
    body
}
