//! The schema of the Execution Protocol, one line per field, compared with what it was: a field
//! that is removed, renumbered or retyped would leave old agents behind (EP-54, EP-55, EP-56).

use std::collections::BTreeSet;

use delta_wire::agent::DESCRIPTORS;
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

const PATH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../protocol/agent/v1/agent.schema.txt"
);

/// The file that describes our messages.
pub fn file() -> FileDescriptorProto {
    let all = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let ours = |file: &FileDescriptorProto| file.package() == "delta.agent.v1";
    all.file.into_iter().find(ours).unwrap()
}

/// A type as the schema spells it.
pub fn kind(field: &FieldDescriptorProto) -> String {
    match field.r#type() {
        Type::Message | Type::Enum => {
            let name = field.type_name().trim_start_matches('.');
            name.trim_start_matches("delta.agent.v1.").to_owned()
        }
        scalar => scalar
            .as_str_name()
            .trim_start_matches("TYPE_")
            .to_lowercase(),
    }
}

fn line(message: &str, of: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let label = match field.label() {
        Label::Repeated => "repeated".to_owned(),
        _ if field.proto3_optional() => "optional".to_owned(),
        _ => match field.oneof_index {
            Some(n) => format!("oneof {}", of.oneof_decl[n as usize].name()),
            None => "singular".to_owned(),
        },
    };
    format!(
        "{message}.{} = {} {} {label}",
        field.name(),
        field.number(),
        kind(field)
    )
}

fn messages(path: &str, all: &[DescriptorProto], lines: &mut BTreeSet<String>) {
    for message in all {
        let name = format!("{path}{}", message.name());
        lines.extend(
            message
                .field
                .iter()
                .map(|field| line(&name, message, field)),
        );
        messages(&format!("{name}."), &message.nested_type, lines);
    }
}

fn schema() -> BTreeSet<String> {
    let (file, mut lines) = (file(), BTreeSet::new());
    messages("", &file.message_type, &mut lines);
    for it in &file.enum_type {
        let value = |name: &str, number| format!("enum {}.{name} = {number}", it.name());
        lines.extend(it.value.iter().map(|it| value(it.name(), it.number())));
    }
    for service in &file.service {
        for call in &service.method {
            let (name, takes, gives) = (call.name(), call.input_type(), call.output_type());
            lines.insert(format!("service {}.{name} {takes} {gives}", service.name()));
        }
    }
    lines
}

#[test]
fn a_field_is_added_and_never_changed() {
    // EP-54, EP-55, EP-56
    let now = schema();
    let text = std::fs::read_to_string(PATH).unwrap_or_default();
    let before: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let gone: Vec<&String> = before.difference(&now).collect();
    assert!(
        gone.is_empty(),
        "removed, renumbered or retyped: agents in the field still send and expect these. Keep \
         them, or make another major version of the protocol: {gone:#?}"
    );
    let new: Vec<&String> = now.difference(&before).collect();
    if std::env::var_os("DELTA_BLESS").is_some() {
        let lines: Vec<&str> = now.iter().map(String::as_str).collect();
        return std::fs::write(PATH, format!("{}\n", lines.join("\n"))).unwrap();
    }
    assert!(
        new.is_empty(),
        "new, and no agent may have to know them: if so, DELTA_BLESS=1 cargo test -p delta-wire \
         agent writes them down: {new:#?}"
    );
}

#[test]
fn no_number_is_given_twice_in_one_message() {
    // EP-56: what was once given out stays given out, so the list of all that ever were holds
    // every number of a message once.
    let text = std::fs::read_to_string(PATH).unwrap();
    let mut seen = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with("service")) {
        let (name, rest) = line.split_once(" = ").unwrap();
        let (message, _) = name.rsplit_once('.').unwrap();
        let number = rest.split(' ').next().unwrap();
        assert!(seen.insert((message, number)), "{line}");
    }
}
