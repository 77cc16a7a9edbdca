//! What stands around a job's work: image, checkout, inputs, results, artifacts, caches, secrets.
//!
//! Their rules are those of the job spec and are kept there; here each value is brought into its
//! shape, and what is wrong with it is pointed at in the file. Which keys there are `shape` knows:
//! a misspelt one is pointed at itself.

use std::time::Duration;

use delta_wire::api::create_run::MIN_TIMEOUT;
use delta_wire::job_spec::{MAX_READY_TIMEOUT, READY_PAUSES, check_around};
use serde_json::{Map, Value as Json};

use crate::diagnostic::{Collector, sentence};
use crate::fields::{self, Fields};
use crate::job::TIMEOUTS;
use crate::shape::{Known, MISSING};
use crate::yaml::{Node, Place, Value};

/// The keys that are read here.
pub(crate) const KEYS: [&str; 10] = [
    "artifacts",
    "caches",
    "checkout",
    "container",
    "count_tests",
    "environment",
    "image",
    "inputs",
    "results",
    "secrets",
];

/// A service that is ready sooner needs no patience.
const MIN_READY: Duration = MIN_TIMEOUT.as_duration();

/// The fields of the job spec that these keys mean.
pub(crate) fn read(map: &Fields<'_>, out: &mut Collector<'_>) -> Map<String, Json> {
    let mut asked = Map::new();
    let mut known = Known::default();
    for key in KEYS {
        if let Some(node) = map.get(key).filter(|node| !node.is_absent()) {
            let node = known.keys(key, node, out);
            let value = node.map(|node| match key {
                "container" => in_seconds(as_json(&node), &node, out),
                _ => as_json(&node),
            });
            asked.extend(value.map(|value| (key.to_owned(), value)));
        }
    }
    if let Some(node) = map.get("no_output_timeout") {
        let time = fields::duration(node, "`no_output_timeout`", TIMEOUTS, out);
        let seconds = time.map(|time| Json::from(time.as_secs_f64()));
        asked.extend(seconds.map(|it| ("no_output_timeout_seconds".to_owned(), it)));
    }
    if asked.is_empty() {
        return asked;
    }
    match check_around(&Json::Object(asked)) {
        Ok(Json::Object(written)) => return written,
        Ok(_) => {}
        Err(problems) => {
            for (path, words) in problems.iter().map(|it| (it.place(), &it.message)) {
                if known.is_said(path, words) {
                    continue;
                }
                if let Some(place) = place(map, path) {
                    let key = path.starts_with("caches[") && path.ends_with("].key");
                    let hint = "write `key: \"deps-{lock_hash}\"`: by it the files are found again";
                    let hint = (key && words == MISSING).then(|| hint.to_owned());
                    out.push(place, sentence(&format!("{path}: {words}")), hint);
                }
            }
        }
    }
    Map::new()
}

/// How long the services of a container may take to be ready, as the job spec counts it.
fn in_seconds(mut container: Json, node: &Node, out: &mut Collector<'_>) -> Json {
    let ranges = [
        ("timeout", MIN_READY..=MAX_READY_TIMEOUT.as_duration()),
        (
            "every",
            READY_PAUSES.start().as_duration()..=READY_PAUSES.end().as_duration(),
        ),
    ];
    let written = get(node, "services").map(|it| &it.value);
    let Some(Value::List(written)) = written else {
        return container;
    };
    for (at, service) in written.iter().enumerate() {
        let Some(ready) = get(service, "ready") else {
            continue;
        };
        let Some(said) = container["services"][at]["ready"].as_object_mut() else {
            continue;
        };
        for (key, range) in &ranges {
            let Some(node) = get(ready, key) else {
                continue;
            };
            said.remove(*key);
            let what = format!("`{key}` of `ready`");
            let time = fields::duration(node, &what, range.clone(), out);
            let seconds = time.map(|it| Json::from(it.as_secs_f64()));
            said.extend(seconds.map(|it| (format!("{key}_seconds"), it)));
        }
    }
    container
}

fn get<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Value::Map(pairs) = &node.value else {
        return None;
    };
    let same = |it: &Node| matches!(&it.value, Value::Scalar { text, .. } if text == key);
    pairs.iter().find(|(it, _)| same(it)).map(|(_, it)| it)
}

/// A value as JSON: what is not quoted and looks like a number or a truth is one.
fn as_json(node: &Node) -> Json {
    match &node.value {
        Value::Scalar {
            text,
            quoted: false,
        } => match text.as_str() {
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            "" | "~" | "null" => Json::Null,
            // A leading zero, a sign or a version like 1.10 is text, as it is written.
            _ => number(text).unwrap_or_else(|| Json::from(text.as_str())),
        },
        Value::Scalar { text, .. } => Json::from(text.as_str()),
        Value::List(items) => items.iter().map(as_json).collect(),
        Value::Map(pairs) => {
            let text = |key: &Node| match &key.value {
                Value::Scalar { text, .. } => text.clone(),
                _ => String::new(),
            };
            let value = |(key, it): &(Node, Node)| match text(key) {
                // Variables have the text that is written: a port is no number there.
                key if key == "env" => (key, words(it)),
                key => (key, as_json(it)),
            };
            pairs.iter().map(value).collect()
        }
    }
}

/// Every scalar as its text.
fn words(node: &Node) -> Json {
    match &node.value {
        Value::Map(pairs) => {
            let text = |node: &Node| match &node.value {
                Value::Scalar { text, .. } => text.clone(),
                _ => String::new(),
            };
            let one = |(key, it): &(Node, Node)| match &it.value {
                Value::Scalar { text: value, .. } => (text(key), Json::from(value.as_str())),
                _ => (text(key), as_json(it)),
            };
            pairs.iter().map(one).collect()
        }
        _ => as_json(node),
    }
}

fn number(text: &str) -> Option<Json> {
    let number: serde_json::Number = serde_json::from_str(text).ok()?;
    (number.to_string() == text).then_some(Json::Number(number))
}

/// Where the value stands that a path such as `caches[0].key` names; the nearest there is.
fn place(map: &Fields<'_>, path: &str) -> Option<Place> {
    let mut parts = path.split(['.', '[', ']']).filter(|part| !part.is_empty());
    let first = parts.next()?;
    let first = match first {
        "no_output_timeout_seconds" => "no_output_timeout",
        other => other,
    };
    let Some(mut node) = map.get(first) else {
        return KEYS.iter().find_map(|key| map.get(key)).map(|it| it.place);
    };
    for part in parts {
        let inner = match &node.value {
            Value::List(items) => part.parse().ok().and_then(|n: usize| items.get(n)),
            Value::Map(pairs) => pairs.iter().find_map(|(key, value)| match &key.value {
                Value::Scalar { text, .. } if text == part => Some(value),
                _ => None,
            }),
            Value::Scalar { .. } => None,
        };
        match inner {
            Some(inner) => node = inner,
            None => break,
        }
    }
    Some(node.place)
}
