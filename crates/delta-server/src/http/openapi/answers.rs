//! Which answers an operation has beside those its handler names, and what each of them carries.

use delta_wire::openapi::Schemas;
use serde_json::{Map, Value, json};

use super::Operation;

const JSON: &str = "application/json";

pub fn complete(operation: &mut Operation<'_>, schemas: &Schemas) {
    refusals(operation);
    let (path, method) = (operation.path.to_owned(), operation.method.to_owned());
    let answers = operation.fields.get_mut("responses");
    for (status, answer) in answers.and_then(Value::as_object_mut).into_iter().flatten() {
        for (kind, content) in answer["content"].as_object_mut().into_iter().flatten() {
            bytes(kind, content);
        }
        if answer["content"].is_null()
            && let Some(answer) = answer.as_object_mut()
        {
            answer.remove("content");
        }
        let said = answer["description"].as_str().unwrap_or_default();
        if said.is_empty() {
            answer["description"] = describe(status, answer, schemas).into();
        }
        let headers = headers(&path, &method, status);
        if !headers.is_empty() {
            answer["headers"] = Value::Object(headers);
        }
    }
}

/// What is answered before a handler is asked, or by whatever all handlers share.
fn refusals(operation: &mut Operation<'_>) {
    add(
        operation,
        500,
        "a fault of the server, which its log explains",
    );
    let reads_nothing =
        !operation.path.starts_with("/api/v1/") || operation.path == "/api/v1/openapi.json";
    if reads_nothing {
        return;
    }
    add(
        operation,
        503,
        "the store is away or the server is stopping",
    );
    let writes = operation.method != "get";
    let streams = ["/events", "/log", "/functions/{id}"];
    let streams = streams.iter().any(|it| operation.path.ends_with(it));
    if writes || streams {
        add(
            operation,
            429,
            "a queue is full, or too many streams are open",
        );
    }
    if operation.has_body() {
        add(operation, 413, "the body is too large");
    }
    // People's parameters are looked at, and a path without any refuses them all.
    let of_people = !operation.is_open() && !operation.path.starts_with("/api/v1/runner/");
    if operation.has_body()
        || of_people
        || operation.has_parameter("query")
        || operation.has_parameter("header")
    {
        add(operation, 422, "what is wrong, field by field");
    }
    if !operation.is_open() {
        add(operation, 401, "no valid bearer token");
        add(operation, 403, "the token's role does not reach this far");
    }
    if operation.path.contains('{') {
        add(operation, 404, "there is no such thing here");
    }
}

/// What the handler says itself stays.
fn add(operation: &mut Operation<'_>, status: u16, description: &str) {
    let answers = operation
        .fields
        .entry("responses")
        .or_insert_with(|| json!({}));
    if let Some(answers) = answers.as_object_mut() {
        let schema = json!({"$ref": "#/components/schemas/ErrorBody"});
        answers.entry(status.to_string()).or_insert_with(
            || json!({"description": description, "content": {JSON: {"schema": schema}}}),
        );
    }
}

/// Bytes of a file, in words that generators of clients know.
pub fn bytes(kind: &str, content: &mut Value) {
    if kind == "application/octet-stream" {
        content["schema"] = json!({"type": "string", "format": "binary"});
    }
}

/// What an answer is, where its handler has not said: what its schema is, or what its status means.
fn describe(status: &str, answer: &Value, schemas: &Schemas) -> String {
    let schema = &answer["content"][JSON]["schema"];
    let named = |schema: &Value| {
        let name = schema["$ref"].as_str()?.rsplit('/').next()?;
        let said = schemas.get(name)?["description"].as_str()?;
        Some(said.lines().next()?.trim_end_matches('.').to_owned())
    };
    let success = status.starts_with('2');
    if success && let Some(said) = named(schema) {
        return said;
    }
    if success && let Some(said) = named(&schema["items"]) {
        return format!("a list, each of it: {said}");
    }
    let words = match status {
        "204" => "done; there is nothing to say",
        "404" => "there is no such thing here",
        "409" => "not in the state that it is in",
        "413" => "there are too many bytes",
        "422" => "what is wrong, field by field",
        "503" => "not now; try again",
        "507" => "the server's disk is full",
        _ => "as asked for",
    };
    words.to_owned()
}

fn header(about: &str, schema: Value) -> Value {
    json!({"description": about, "schema": schema})
}

/// What is said beside the body.
fn headers(path: &str, method: &str, status: &str) -> Map<String, Value> {
    let text = || json!({"type": "string"});
    let mut headers = Map::new();
    let mut add = |name: &str, about: &str, schema: Value| {
        headers.insert(name.to_owned(), header(about, schema));
    };
    match status {
        "401" => add("WWW-Authenticate", "`Bearer`", text()),
        "429" | "503" => {
            let seconds = json!({"type": "integer", "minimum": 0});
            add("Retry-After", "Seconds after which to come again.", seconds);
        }
        _ => {}
    }
    let is_log = path.ends_with("/log");
    let is_file = is_log || path.ends_with("/artifacts/{name}");
    if is_file && matches!(status, "200" | "206" | "304") {
        add("ETag", "What it is; of an artifact its SHA-256.", text());
    }
    if is_file && matches!(status, "206" | "416") {
        add("Content-Range", "Which part of how many bytes.", text());
    }
    if is_log && matches!(status, "200" | "206" | "304") {
        let said = "`open`, `complete` or `incomplete: n bytes missing`; not of a stream.";
        add("Delta-Log", said, text());
        let whose = "Whose log it is; not of a stream.";
        add(
            "Delta-Attempt",
            whose,
            json!({"type": "integer", "minimum": 1}),
        );
    }
    let makes = ["/runs", "/rerun", "/functions"];
    let makes = method == "post" && makes.iter().any(|it| path.ends_with(it));
    if makes && status == "201" {
        add(
            "Location",
            "Where it is shown; not of several calls.",
            text(),
        );
    }
    if path.ends_with("/uploads/{id}") && status == "409" {
        let number = json!({"type": "integer", "minimum": 0});
        add(
            "Upload-Offset",
            "Where the log goes on, of an OFFSET_MISMATCH.",
            number,
        );
    }
    headers
}
