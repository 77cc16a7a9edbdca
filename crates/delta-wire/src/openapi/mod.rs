//! What a schema can say of the API's messages: spellings, bounds, patterns, and which fields go
//! together.
//!
//! The types say which fields there are. What their readers insist on beyond that is said here,
//! out of the same constants, and put into the schemas that the types make. A test reads both and
//! compares them. Whatever no schema can say is a refusal that the reader explains.

mod job_spec;
mod messages;
mod requests;
pub mod texts;

use serde_json::{Map, Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

pub use requests::REQUESTS;

/// Schemas by name, as in the components of a document.
pub type Schemas = Map<String, Value>;

/// An enum that travels as words.
pub(crate) fn words(about: &str, all: impl Iterator<Item = &'static str>) -> RefOr<Schema> {
    let about: Vec<&str> = about.lines().map(str::trim).collect();
    let words = ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(about.join(" ").trim().to_owned()))
        .enum_values(Some(all));
    words.build().into()
}

/// Adds to the schemas of types what their readers insist on, and the messages that have schemas of
/// their own.
pub fn complete(schemas: &mut Schemas) {
    schemas.extend(job_spec::schemas());
    schemas.extend(messages::schemas());
    schemas.extend(requests::schemas());
    for name in REQUESTS {
        if let Some(schema) = schemas.get_mut(*name) {
            request(schema);
        }
    }
    for (place, bounds) in requests::bounds() {
        let (name, field) = place.split_once('.').unwrap_or((place, ""));
        let schema = schemas.get_mut(name);
        let schema = schema.and_then(|schema| match field {
            "" => Some(schema),
            field => schema.get_mut("properties")?.get_mut(field),
        });
        match schema {
            // A reference stands alone, but for what it is here.
            Some(schema) if bounds.get("$ref").is_some() => {
                let about = schema["description"].take();
                *schema = bounds;
                schema["description"] = about;
            }
            Some(schema) => merge(schema, bounds),
            None => {}
        }
    }
}

/// A request has the fields it has and no other; to leave one out is the way to say nothing. (A
/// `null` is read as if it was left out; nobody is told to send one.)
fn request(schema: &mut Value) {
    schema["additionalProperties"] = json!(false);
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for property in properties.into_iter().flat_map(Map::values_mut) {
        without_null(property);
        told_default(property);
    }
}

/// What a field is when it is absent is said in words: generators take a field that has a default
/// for one that is always there.
fn told_default(property: &mut Value) {
    let default = property.as_object_mut().and_then(|it| it.remove("default"));
    if let Some(default) = default {
        let about = property["description"].as_str().unwrap_or_default();
        let about = format!("{about} When absent: `{default}`.");
        property["description"] = about.trim().into();
    }
}

fn without_null(property: &mut Value) {
    if let Some(types) = property.get_mut("type").and_then(Value::as_array_mut) {
        types.retain(|it| it != "null");
        if let [only] = types.as_slice() {
            property["type"] = only.clone();
        }
    }
    let alternatives = property.get_mut("oneOf").and_then(Value::as_array_mut);
    let Some(alternatives) = alternatives else {
        return;
    };
    alternatives.retain(|it| it["type"] != "null");
    if let [Value::Object(only)] = alternatives.as_slice() {
        let only = only.clone();
        if let Some(property) = property.as_object_mut() {
            property.remove("oneOf");
            property.extend(only);
        }
    }
}

/// Puts the keys of one object into another, and so on inside.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                match into.get_mut(&key) {
                    Some(there) => merge(there, value),
                    None => drop(into.insert(key, value)),
                }
            }
        }
        (into, from) => *into = from,
    }
}
