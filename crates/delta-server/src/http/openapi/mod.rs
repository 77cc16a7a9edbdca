//! The description of the API, as it is served: what the handlers say of themselves, what readers
//! insist on, and the answers that come before any handler is asked.
//!
//! A missing credential, a role that does not reach, a body too large, a full queue and a store
//! that is away are answered alike everywhere. They are added here by rule, so that no handler can
//! forget one; so are the bounds of parameters, which are the same wherever one is named.

mod answers;
mod parameters;

use std::sync::OnceLock;

use delta_wire::openapi::Schemas;
use serde_json::{Map, Value, json};
use utoipa::openapi::OpenApi;

/// The name of the bearer token among the ways to authenticate.
const BEARER: &str = "bearer";

/// The document as it is served. It is the same for every server of this build.
pub fn document() -> &'static str {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    DOCUMENT.get_or_init(|| {
        let (_, openapi) = super::routes().split_for_parts();
        complete(&openapi).to_string()
    })
}

fn complete(openapi: &OpenApi) -> Value {
    let mut document = serde_json::to_value(openapi).unwrap_or_default();
    document["components"]["securitySchemes"][BEARER] = json!({
        "type": "http",
        "scheme": "bearer",
        "description": "A token of `delta-ci token create`. Its role says how far it reaches.",
    });
    let mut schemas = match document["components"]["schemas"].take() {
        Value::Object(schemas) => schemas,
        _ => Schemas::new(),
    };
    delta_wire::openapi::complete(&mut schemas);
    let paths = document["paths"].as_object_mut();
    for (path, item) in paths.into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            if let Some(operation) = operation.as_object_mut() {
                complete_one(
                    &mut Operation {
                        path,
                        method,
                        fields: operation,
                    },
                    &schemas,
                );
            }
        }
    }
    document["components"]["schemas"] = Value::Object(schemas);
    document
}

/// One operation of the document.
struct Operation<'a> {
    path: &'a str,
    method: &'a str,
    fields: &'a mut Map<String, Value>,
}

fn complete_one(operation: &mut Operation<'_>, schemas: &Schemas) {
    parameters::complete(operation);
    body(operation, schemas);
    if !operation.is_open() {
        let bearer = json!([{ BEARER: [] }]);
        operation.fields.insert("security".to_owned(), bearer);
    }
    answers::complete(operation, schemas);
}

impl Operation<'_> {
    /// Health and metrics are for whoever reaches the port, and so is this document. A delivery
    /// proves itself.
    fn is_open(&self) -> bool {
        !self.path.starts_with("/api/v1/")
            || self.path == "/api/v1/openapi.json"
            || self.path.starts_with("/api/v1/webhooks/")
    }

    fn has_parameter(&self, place: &str) -> bool {
        let parameters = self.fields.get("parameters").and_then(Value::as_array);
        parameters.is_some_and(|all| all.iter().any(|it| it["in"] == place))
    }

    fn has_body(&self) -> bool {
        self.fields.contains_key("requestBody")
    }
}

/// Bytes are bytes. A body that need not say anything need not be there.
fn body(operation: &mut Operation<'_>, schemas: &Schemas) {
    let Some(body) = operation.fields.get_mut("requestBody") else {
        return;
    };
    for (kind, content) in body["content"].as_object_mut().into_iter().flatten() {
        answers::bytes(kind, content);
    }
    let name = body["content"]["application/json"]["schema"]["$ref"].as_str();
    let name = name.and_then(|it| it.rsplit('/').next());
    let schema = name.and_then(|name| schemas.get(name));
    let may_be_empty = schema.is_some_and(|it| {
        let nothing = |key: &str| {
            it.get(key)
                .is_none_or(|it| it.as_array().is_some_and(Vec::is_empty))
        };
        let choice = ["else", "anyOf"].iter().any(|key| it.get(*key).is_some());
        nothing("required") && !choice
    });
    body["required"] = json!(!may_be_empty);
}
