//! A call of a function, as a job's work: which, with what, and out of which queue (RQ-18, RQ-45).

use serde::Serialize;

use super::{Strangers, as_map};
use crate::answer::JsonText;
use crate::fields::{Fields, Node};
use crate::invalid::{Invalid, Problems};
use crate::time::Millis;

/// Characters of a function's name as its producer says it, its runner included.
pub const MAX_FUNCTION: usize = 200;
/// Characters of a function's name as it is stored: the route of its queue may have named the
/// runner.
pub(crate) const MAX_ROUTED: usize = MAX_QUEUE + 1 + MAX_FUNCTION;
/// Characters of a queue's name, and of a runner's: they become requirements.
pub const MAX_QUEUE: usize = 100;
/// Bytes of the parameters: a message, not a file.
pub const MAX_PARAMS_BYTES: usize = 1 << 20;
/// What producers of traces put beside a call: two entries by W3C, a few more by others.
pub(crate) const MAX_CARRIED: usize = 16;
/// Those that the server may have added to them.
const ADDED: usize = 2;
/// Characters of an entry; a longer one is left out.
const MAX_CARRIED_TEXT: usize = 2048;
/// Where a function waits when nobody says.
pub const DEFAULT_QUEUE: &str = "default";

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FunctionSpec {
    /// `runner#handler`, or a handler alone.
    pub name: String,
    /// An object, as the producer wrote it.
    pub params: JsonText,
    pub queue: String,
    /// When the producer's request was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enqueued_at: Option<String>,
    /// Carrier of the producer's trace (RQ-28).
    #[serde(serialize_with = "as_map", skip_serializing_if = "Vec::is_empty")]
    pub trace_context: Vec<(String, String)>,
}

impl FunctionSpec {
    /// Which runner is asked for, if any, and the handler's name: split at the first `#` (RQ-45).
    pub fn parts(&self) -> (Option<&str>, &str) {
        match self.name.split_once('#') {
            Some((runner, handler)) => (Some(runner), handler),
            None => (None, &self.name),
        }
    }

    pub(crate) fn read(node: Node<'_>, strangers: Strangers) -> Result<FunctionSpec, Invalid> {
        let mut f = node.object()?;
        if f.is_empty() {
            return Err(Invalid::here("is empty"));
        }
        let spec = FunctionSpec {
            name: f.must("name", |it| named(it, MAX_ROUTED))?,
            params: f.may("params", params)?.unwrap_or_else(no_params),
            queue: f.may("queue", queue_name)?.unwrap_or_else(default_queue),
            enqueued_at: f.may("enqueued_at", moment)?,
            trace_context: f.may("trace_context", carried)?.unwrap_or_default(),
        };
        finish(f, strangers)?;
        Ok(spec)
    }
}

fn finish(f: Fields<'_>, strangers: Strangers) -> Result<(), Invalid> {
    let mut problems = Problems::new();
    match strangers {
        Strangers::Ignored => f.close(),
        Strangers::Refused => f.refuse_unknown(&mut problems),
    }
    match problems.iter().next() {
        Some(problem) => Err(problem.clone()),
        None => Ok(()),
    }
}

pub(crate) fn default_queue() -> String {
    DEFAULT_QUEUE.to_owned()
}

pub(crate) fn no_params() -> JsonText {
    JsonText::new("{}".to_owned()).expect("an empty object is JSON")
}

/// `handler` or `runner#handler`; the runner is a word that agents offer.
pub(crate) fn function_name(node: Node<'_>) -> Result<String, Invalid> {
    named(node, MAX_FUNCTION)
}

fn named(node: Node<'_>, most: usize) -> Result<String, Invalid> {
    let name = node.text(most)?;
    let (runner, handler) = match name.split_once('#') {
        Some((runner, handler)) => (Some(runner), handler),
        None => (None, name.as_str()),
    };
    if handler.trim().is_empty() || handler.chars().any(char::is_control) {
        let words = "must name a handler, such as `send_email` or `python#send_email`";
        return Err(Invalid::here(words));
    }
    if runner.is_some_and(|runner| !is_name(runner)) {
        let words = "the runner before `#` must be letters, digits and . _ -";
        return Err(Invalid::here(words));
    }
    Ok(name)
}

/// A queue's name, or a runner's.
pub fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=MAX_QUEUE).contains(&name.len()) && name.bytes().all(plain)
}

pub(crate) fn queue_name(node: Node<'_>) -> Result<String, Invalid> {
    let name = node.text(MAX_QUEUE)?;
    if is_name(&name) {
        Ok(name)
    } else {
        Err(Invalid::here("must be letters, digits and . _ -"))
    }
}

/// RQ-23: an object, and nothing else.
pub(crate) fn params(node: Node<'_>) -> Result<JsonText, Invalid> {
    node.object()?.close();
    let text = node.raw().get();
    if text.len() > MAX_PARAMS_BYTES {
        let words = format!("has more than {MAX_PARAMS_BYTES} bytes");
        return Err(Invalid::here(words));
    }
    // The reader of the outer text did not look inside, and bounds the depth.
    let _: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| Invalid::here(format!("cannot be read: {error}")))?;
    JsonText::new(text.to_owned()).ok_or_else(|| Invalid::here("cannot be read"))
}

/// As the producer says it.
pub(crate) fn carrier(node: Node<'_>) -> Result<Vec<(String, String)>, Invalid> {
    read_carrier(node, MAX_CARRIED)
}

/// As it was stored.
fn carried(node: Node<'_>) -> Result<Vec<(String, String)>, Invalid> {
    read_carrier(node, MAX_CARRIED + ADDED)
}

/// RQ-28: a trace never refuses a call. What is too long to be carried, as baggage may be, or empty
/// is left out.
fn read_carrier(node: Node<'_>, most: usize) -> Result<Vec<(String, String)>, Invalid> {
    let fields = node.object()?;
    if fields.len() > most {
        return Err(Invalid::here(format!("has more than {most} entries")));
    }
    let mut all = Vec::new();
    for (name, value) in fields.entries() {
        let value = value.string()?;
        if (1..=MAX_CARRIED_TEXT).contains(&value.chars().count()) {
            all.push((name.to_owned(), value));
        }
    }
    fields.close();
    Ok(all)
}

fn moment(node: Node<'_>) -> Result<String, Invalid> {
    let text = node.text(64)?;
    match Millis::from_rfc3339(&text) {
        Some(_) => Ok(text),
        None => Err(Invalid::here(
            "must be a moment such as 2026-01-31T12:00:00Z",
        )),
    }
}

#[cfg(test)]
mod tests {
    use crate::JobSpec;

    fn read(function: &str) -> Result<super::FunctionSpec, String> {
        let spec = JobSpec::parse(format!(r#"{{"function":{function}}}"#).as_bytes());
        let spec = spec.map_err(|problem| problem.to_string())?;
        Ok(spec.function.expect("a function"))
    }

    #[test]
    fn the_runner_stands_before_the_first_hash() {
        // RQ-45
        for (name, parts) in [
            ("a#b#c", (Some("a"), "b#c")),
            ("send_email", (None, "send_email")),
            ("py.3-x#send", (Some("py.3-x"), "send")),
        ] {
            let spec = read(&format!(r#"{{"name":"{name}"}}"#)).unwrap();
            assert_eq!(spec.parts(), parts);
        }
        for bad in ["#x", "a b#x", "a#", "", " ", "a#\\n"] {
            let problem = read(&format!(r#"{{"name":"{bad}"}}"#)).unwrap_err();
            assert!(problem.starts_with("function.name"), "{bad}: {problem}");
        }
    }

    #[test]
    fn parameters_are_an_object() {
        // RQ-23
        let spec = read(r#"{"name":"f"}"#).unwrap();
        assert_eq!(
            (spec.params.as_str(), spec.queue.as_str()),
            ("{}", "default")
        );
        let text = r#"{"b": 1.0, "a": 10000000000000000000000}"#;
        let spec = read(&format!(r#"{{"name":"f","params":{text}}}"#)).unwrap();
        assert_eq!(spec.params.as_str(), text);
        for bad in ["[1]", "3", "\"x\""] {
            let problem = read(&format!(r#"{{"name":"f","params":{bad}}}"#)).unwrap_err();
            assert!(problem.starts_with("function.params"), "{problem}");
        }
    }

    #[test]
    fn what_is_too_long_to_be_carried_is_left_out() {
        // RQ-28
        let long = "x".repeat(2049);
        let text = format!(
            r#"{{"name":"f","trace_context":{{"baggage":"{long}","tracestate":"",
                "traceparent":"00-1-2-01"}}}}"#
        );
        let carried = read(&text).unwrap().trace_context;
        assert_eq!(carried, [("traceparent".into(), "00-1-2-01".into())]);
    }

    #[test]
    fn what_the_server_adds_to_a_full_carrier_is_read_again() {
        let entries = |count: usize| {
            let all: Vec<String> = (0..count).map(|n| format!(r#""k{n}":"v""#)).collect();
            format!(r#"{{{}}}"#, all.join(","))
        };
        let call = |count| format!(r#"{{"function":"f","trace_context":{}}}"#, entries(count));
        let heard = |count| crate::api::CreateFunctions::parse(call(count).as_bytes());
        assert!(heard(16).is_ok());
        assert!(heard(17).is_err());
        let spec = |count| {
            read(&format!(
                r#"{{"name":"f","trace_context":{}}}"#,
                entries(count)
            ))
        };
        assert_eq!(spec(18).unwrap().trace_context.len(), 18);
        assert!(spec(19).is_err());
    }

    #[test]
    fn the_rest_of_a_call_is_checked_too() {
        // RQ-5, RQ-28
        let spec = read(
            r#"{"name":"f","queue":"mail","enqueued_at":"2026-01-31T12:00:00Z",
                "trace_context":{"traceparent":"00-1-2-01"}}"#,
        );
        assert_eq!(spec.unwrap().trace_context.len(), 1);
        for (bad, field) in [
            (r#""queue":"a b""#, "function.queue"),
            (
                r#""enqueued_at":"2026-01-31 12:00""#,
                "function.enqueued_at",
            ),
            (
                r#""trace_context":{"traceparent":1}"#,
                "function.trace_context",
            ),
        ] {
            let problem = read(&format!(r#"{{"name":"f",{bad}}}"#)).unwrap_err();
            assert!(problem.starts_with(field), "{problem}");
        }
    }
}
