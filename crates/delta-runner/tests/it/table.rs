//! How real workers and runners behave on the wire, row by row: the table that every SDK is put to,
//! so that all of them answer alike.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Shutdown;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::process::{Connection, Process, request};

const TABLE: &str = include_str!("../../../../protocol/runner/v2/runners.json");

// RQ-1, RQ-4, RQ-6, RQ-10 … RQ-16, RQ-18 … RQ-29, RQ-31 … RQ-44, A52
#[test]
fn every_row_of_the_table_holds() {
    let table: Value = serde_json::from_str(TABLE).unwrap();
    let rows = table["rows"].as_array().unwrap();
    assert!(rows.len() > 30);
    let mut runner = Process::start(&[]);
    for row in rows {
        converse(&mut runner, row);
    }
}

#[test]
fn every_end_of_a_runner_is_as_the_table_says() {
    let table: Value = serde_json::from_str(TABLE).unwrap();
    let rows = table["ends"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        let limit = row["limit"].as_u64().unwrap_or(64).to_string();
        let around = [("CONCURRENCY", limit.as_str()), ("GRACE_SECONDS", "600")];
        converse(&mut Process::start(&around), row);
    }
}

fn converse(runner: &mut Process, row: &Value) {
    let connections = [(String::new(), runner.connect())].into();
    let mut open = Open {
        runner,
        row: row["row"].as_str().unwrap(),
        connections,
    };
    for step in row["steps"].as_array().unwrap() {
        open.take(step);
    }
}

struct Open<'a> {
    runner: &'a mut Process,
    row: &'a str,
    connections: BTreeMap<String, Connection>,
}

impl Open<'_> {
    fn named(&mut self, name: &str) -> &mut Connection {
        self.connections.get_mut(name).expect("it is open")
    }

    fn take(&mut self, step: &Value) {
        let (kind, value) = action(step);
        let name = value.as_str().unwrap_or_default();
        let on = step["on"].as_str().unwrap_or_default();
        match kind {
            "open" => {
                let connection = self.runner.connect();
                self.connections.insert(name.to_owned(), connection);
            }
            "close" => drop(self.connections.remove(name)),
            "half_close" => self.named(name).0.shutdown(Shutdown::Write).unwrap(),
            "closed" => assert_eq!(self.named(name).hear(), None, "{}", self.row),
            "hex" => self.named(on).bytes(&bytes(name)),
            "text" => self.named(on).frame(name.as_bytes()),
            "say" => self.named(on).send(value),
            "ask" => self.ask(on, step),
            "hear" => self.hear(on, step),
            "end" => self.runner.signal(&format!("-{name}")),
            "refuses" => self.runner.refuses(self.row),
            "exits" => assert_eq!(self.runner.code().map(i64::from), value.as_i64()),
            _ => panic!("{}: no step {step}", self.row),
        }
    }

    fn ask(&mut self, on: &str, step: &Value) {
        for number in 0..step["times"].as_u64().unwrap_or(1) {
            let mut asked = asked(step);
            if step.get("times").is_some() {
                asked["payload"]["request_id"] = json!(format!("r-{number}"));
            }
            if let Some(fill) = step["fill"].as_u64() {
                asked["payload"]["params"]["x"] = json!("");
                let more = fill as usize - asked.to_string().len();
                asked["payload"]["params"]["x"] = json!("x".repeat(more));
                assert_eq!(asked.to_string().len() as u64, fill);
            }
            self.named(on).send(&asked);
        }
    }

    fn hear(&mut self, on: &str, step: &Value) {
        let times = step["times"].as_u64().unwrap_or(1);
        let mut heard = BTreeSet::new();
        for _ in 0..times {
            let said = self
                .named(on)
                .hear()
                .unwrap_or_else(|| panic!("{}: closed", self.row));
            heard.insert(said["request_id"].to_string());
            for (name, wanted) in step["hear"].as_object().unwrap() {
                self.assert_member(&said[name], wanted, &said);
            }
        }
        assert_eq!(heard.len() as u64, times, "{}", self.row);
    }

    fn assert_member(&self, said: &Value, wanted: &Value, answer: &Value) {
        let Some(begins) = wanted.get("begins").and_then(Value::as_str) else {
            // What was asked of an echo is only a part of what it says here.
            assert!(within(wanted, said), "{}: {answer}", self.row);
            return;
        };
        let message = said["message"].as_str().unwrap_or_default();
        assert!(message.starts_with(begins), "{}: {answer}", self.row);
        assert_eq!(said.get("type"), wanted.get("type"), "{}", self.row);
    }
}

/// The step's own word, and what it says.
fn action(step: &Value) -> (&str, &Value) {
    let words = step.as_object().unwrap().iter();
    let extra = ["on", "times", "fill", "without"];
    let mut own = words.filter(|(word, _)| !extra.contains(&word.as_str()));
    let (word, value) = own.next().unwrap();
    (word, value)
}

/// The request of a step: what it changes, and the rest as usual.
fn asked(step: &Value) -> Value {
    let mut asked = request("r", "echo", json!({}));
    let payload = asked["payload"].as_object_mut().unwrap();
    payload.insert("job_id".to_owned(), json!("j"));
    payload["context"]["job_id"] = json!("j");
    for (name, value) in step["ask"].as_object().unwrap() {
        if name == "context" {
            merge(payload["context"].as_object_mut().unwrap(), value);
        } else {
            payload.insert(name.clone(), value.clone());
        }
    }
    for name in step["without"].as_array().into_iter().flatten() {
        payload.remove(name.as_str().unwrap());
    }
    asked
}

fn merge(context: &mut Map<String, Value>, changes: &Value) {
    for (name, value) in changes.as_object().unwrap() {
        let moment = value.get("in").and_then(Value::as_f64).map(|seconds| {
            let at = jiff::Timestamp::now() + Duration::from_secs_f64(seconds);
            json!(at.to_string())
        });
        context.insert(name.clone(), moment.unwrap_or_else(|| value.clone()));
    }
}

/// Whether everything wanted is there; what a runner leaves out is null.
fn within(wanted: &Value, said: &Value) -> bool {
    match (wanted, said) {
        (Value::Object(wanted), Value::Object(said)) => wanted
            .iter()
            .all(|(name, value)| within(value, said.get(name).unwrap_or(&Value::Null))),
        _ => wanted == said,
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.map(byte).collect()
}
