//! The document of the API: it is whole, it spells every word as the wire does, and the server
//! answers as it says, also to what no handler sees.

use std::collections::{BTreeMap, BTreeSet};

use delta_core::Cause;
use delta_core::policy::RetryOn;
use delta_wire::api::{
    AgentStatus, ForgeName, ForkPolicy, LogState, Role, SecretKind, TestStatus, TestVerdict, Trust,
};
use delta_wire::job_spec::{CountTests, ResultsFormat};
use delta_wire::runner::{CompleteStatus, Phase, UploadKind, UploadMethod};
use delta_wire::states::{AttemptState, JobState, LeaseState, RunOutcome, RunState};
use delta_wire::step::StepWhen;
use delta_wire::{ErrorCode, Shell};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::bench::{Answer, Bench};

pub async fn document(bench: &Bench) -> Value {
    bench.get("/api/v1/openapi.json").await.expect(200)
}

/// Every operation with its method and path.
pub fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().expect("paths");
    let all = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("operations").iter();
        methods.map(move |(method, it)| (method.as_str(), path.as_str(), it))
    });
    all.collect()
}

fn walk<'a>(value: &'a Value, place: &str, see: &mut dyn FnMut(&str, &'a Value)) {
    see(place, value);
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                walk(value, &format!("{place}/{}", key.replace('/', "~1")), see);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                walk(value, &format!("{place}/{index}"), see);
            }
        }
        _ => {}
    }
}

#[tokio::test]
async fn the_document_is_whole() {
    let bench = Bench::patient().await;
    let document = document(&bench).await;
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations(&document) {
        let id = operation["operationId"].as_str().expect("an id");
        assert!(ids.insert(id), "{id} stands twice");
        let verb_and_noun = id.split('_').count() > 1;
        assert!(verb_and_noun, "{id} says what is done to what");
        let said = operation["summary"].as_str().unwrap_or_default();
        assert!(!said.is_empty(), "{method} {path} says what it does");
        let answers = operation["responses"].as_object().expect("answers");
        assert!(
            answers.keys().any(|it| it.starts_with('2')),
            "{method} {path}"
        );
        for (status, answer) in answers {
            let said = answer["description"].as_str().unwrap_or_default();
            assert!(
                !said.is_empty(),
                "{method} {path} {status} has no description"
            );
            let body = &answer["content"]["application/json"]["schema"];
            let bare = ["204", "304", "416"].contains(&status.as_str());
            assert!(
                bare || answer["content"].is_object(),
                "{method} {path} {status}"
            );
            assert!(
                bare || status.starts_with('2') || body["$ref"].is_string(),
                "{method} {path} {status}: {body}"
            );
        }
        let named = operation["parameters"].as_array();
        let named = named.into_iter().flatten().filter(|it| it["in"] == "path");
        assert_eq!(named.count(), path.matches('{').count(), "{method} {path}");
    }
    let mut wrong = Vec::new();
    walk(&document, "", &mut |place, value| {
        let Some(to) = value.get("$ref").and_then(Value::as_str) else {
            return;
        };
        let found = to.strip_prefix('#').and_then(|it| document.pointer(it));
        if found.is_none() {
            wrong.push(format!("{place} refers to {to}, which is not there"));
        }
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (name, schema) in document["components"]["schemas"]
        .as_object()
        .expect("schemas")
    {
        let checked = jsonschema::draft202012::meta::validate(schema);
        checked.unwrap_or_else(|why| panic!("{name} is no schema: {why}"));
    }
}

/// Texts of requests that have no bound of their own: their body has.
const UNBOUNDED: [&str; 2] = [
    "trace_context/additionalProperties",
    "CancelRequest/properties/reason",
];

/// The places of texts in a request of people that may be as long as anybody likes.
fn unbounded<'a>(
    document: &'a Value,
    schema: &'a Value,
    seen: &mut BTreeSet<&'a str>,
) -> Vec<String> {
    let (mut found, mut next) = (Vec::new(), vec![(String::new(), schema)]);
    while let Some((from, schema)) = next.pop() {
        walk(schema, &from, &mut |place, value| {
            if let Some(to) = value.get("$ref").and_then(Value::as_str) {
                let target = to.strip_prefix('#').and_then(|it| document.pointer(it));
                if seen.insert(to) {
                    next.extend(target.map(|it| (to.to_owned(), it)));
                }
            }
            let bounds = ["enum", "const", "pattern", "maxLength", "format"];
            let bounded = bounds.iter().any(|it| value.get(it).is_some());
            let excused = UNBOUNDED.iter().any(|it| place.ends_with(it));
            if value.get("type") == Some(&json!("string")) && !bounded && !excused {
                found.push(place.to_owned());
            }
        });
    }
    found
}

#[tokio::test]
async fn what_people_send_has_its_bounds_in_the_document() {
    let bench = Bench::patient().await;
    let document = document(&bench).await;
    let (mut seen, mut looked_at) = (BTreeSet::new(), 0);
    for (method, path, operation) in operations(&document) {
        let runners = operation["tags"].as_array();
        let runners = runners.is_some_and(|it| it.contains(&json!("runner")));
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        if runners || !body.is_object() {
            continue;
        }
        looked_at += 1;
        let wrong = unbounded(&document, body, &mut seen);
        assert!(wrong.is_empty(), "{method} {path}: {wrong:#?}");
    }
    assert!(looked_at > 5, "{looked_at} requests");
}

#[tokio::test]
async fn how_many_are_listed_is_bounded_and_need_not_be_said() {
    let bench = Bench::patient().await;
    let document = document(&bench).await;
    let mut asked = 0;
    for (method, path, operation) in operations(&document) {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        for limit in parameters.filter(|it| it["name"] == "limit") {
            assert_ne!(limit["required"], true, "{method} {path}");
            let bound = |name: &str| limit["schema"][name].as_i64().expect(path);
            let (least, most) = (bound("minimum"), bound("maximum"));
            if path.contains('{') {
                continue;
            }
            let others = operation["parameters"].as_array().into_iter().flatten();
            let needed = others.filter(|it| it["in"] == "query" && it["required"] == true);
            let needed = needed.filter_map(|it| it["name"].as_str());
            let path = needed.fold(format!("{path}?"), |path, it| format!("{path}{it}=x&"));
            bench.get(&path).await.expect(200);
            for (count, status) in [(least, 200), (most, 200), (least - 1, 422), (most + 1, 422)] {
                let answer = bench.get(&format!("{path}limit={count}")).await;
                assert_eq!(answer.status.as_u16(), status, "{path} {count}");
            }
            asked += 1;
        }
    }
    assert!(asked > 3, "{asked} lists");
}

/// Whether a word is one of the type's, and written back as it was read.
fn wire<T: Serialize + DeserializeOwned>(word: &str) -> bool {
    let text = json!(word);
    let read = serde_json::from_value::<T>(text.clone());
    read.is_ok_and(|it| serde_json::to_value(it).is_ok_and(|it| it == text))
}

type IsWord = fn(&str) -> bool;

/// Where the document lists words, by the end of the place, and whose words they are.
const SPELLED: &[(&str, IsWord)] = &[
    ("schemas/AgentStatus", wire::<AgentStatus>),
    ("schemas/AttemptState", wire::<AttemptState>),
    ("schemas/ForgeName", wire::<ForgeName>),
    ("schemas/ForkPolicy", wire::<ForkPolicy>),
    ("schemas/JobState", wire::<JobState>),
    ("schemas/LeaseState", wire::<LeaseState>),
    ("schemas/LogState", wire::<LogState>),
    ("schemas/ResultsFormat", wire::<ResultsFormat>),
    ("schemas/Role", wire::<Role>),
    ("schemas/RunOutcome", wire::<RunOutcome>),
    ("schemas/RunState", wire::<RunState>),
    ("schemas/SecretKind", wire::<SecretKind>),
    ("schemas/StepWhen", wire::<StepWhen>),
    ("schemas/TestStatus", wire::<TestStatus>),
    ("schemas/TestVerdict", wire::<TestVerdict>),
    ("schemas/Trust", wire::<Trust>),
    ("CreateJob/properties/retry_on/items", |it| {
        RetryOn::from_name(it).is_some()
    }),
    ("Complete/properties/status", wire::<CompleteStatus>),
    ("Heartbeat/properties/phase", wire::<Phase>),
    ("CreateUpload/properties/kind", wire::<UploadKind>),
    ("UploadCreated/properties/method", wire::<UploadMethod>),
    ("AckAck/properties/final_status", wire::<AttemptState>),
    ("CompleteAck/properties/final_status", wire::<AttemptState>),
    ("JobSpec/properties/count_tests", |it| {
        CountTests::from_text(it).is_some()
    }),
    ("StepObject/properties/shell/anyOf/0", |it| {
        Shell::parse(it).is_ok()
    }),
    // Read in any case; as the Execution Protocol writes them.
    (
        "TestResults/properties/results/items/properties/status",
        |it| TestStatus::from_text(&it.to_lowercase()).is_some(),
    ),
    ("result_config/properties/result_format", |it| {
        ResultsFormat::from_text(&it.to_lowercase()).is_some()
    }),
    ("execution/properties/type", |it| {
        ["SUBPROCESS", "CONTAINER"].contains(&it)
    }),
    ("properties/network", |it| {
        ["none", "bridge", "host"].contains(&it)
    }),
    ("properties/network_mode", |it| {
        ["none", "bridge", "host"].contains(&it)
    }),
];

#[tokio::test]
async fn every_word_of_the_document_is_spelled_as_on_the_wire() {
    let bench = Bench::patient().await;
    let document = document(&bench).await;
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    walk(&document, "", &mut |place, value| {
        if let Some(words) = value.get("enum").and_then(Value::as_array)
            && !place.ends_with("/properties")
        {
            let words = words.iter().filter_map(Value::as_str).map(str::to_owned);
            found.insert(place.to_owned(), words.collect());
        }
    });
    assert!(found.len() >= 16, "{found:#?}");
    for (place, words) in &found {
        let is_word = SPELLED.iter().find(|(end, _)| place.ends_with(end));
        let (_, is_word) = is_word.unwrap_or_else(|| panic!("whose words are at {place}?"));
        assert!(!words.is_empty(), "{place}");
        for word in words {
            assert!(is_word(word), "`{word}` at {place} is no word of the wire");
        }
    }
    let all = |name: &str| &found[&format!("/components/schemas/{name}")];
    assert_eq!(all("RunState").len(), RunState::ALL.len());
    assert_eq!(all("Role")[..], ["runner", "user", "admin", "enrolment"]);
    let causes = &found["/components/schemas/CreateJob/properties/retry_on/items"];
    assert_eq!(causes.len(), Cause::ALL.len() + 2);
}

#[tokio::test]
async fn a_body_is_required_where_something_must_be_said() {
    let bench = Bench::patient().await;
    let document = document(&bench).await;
    let required = |path: &str, method: &str| {
        document["paths"][path][method]["requestBody"]["required"].clone()
    };
    assert_eq!(required("/api/v1/functions", "post"), true);
    assert_eq!(required("/api/v1/runs", "post"), true);
    assert_eq!(required("/api/v1/queues/{name}/pause", "post"), false);
}

/// Fills every parameter of a path with the same word.
fn filled(path: &str, word: &str) -> String {
    let mut url = String::new();
    for piece in path.split_inclusive('}') {
        match piece.split_once('{') {
            Some((before, _)) => url.push_str(&format!("{before}{word}")),
            None => url.push_str(piece),
        }
    }
    url
}

/// Where a credential of its own kind is exchanged, which no person has.
const ENROL: &str = "/api/v1/agents/enroll";

struct Asked<'a> {
    bench: &'a Bench,
    error: jsonschema::Validator,
    wrong: std::cell::RefCell<Vec<String>>,
}

impl Asked<'_> {
    async fn send(&self, method: &str, url: &str, token: &str, body: &'static [u8]) -> Answer {
        let method = method.to_uppercase().parse().expect("a method");
        let url = format!("{}{url}", self.bench.base);
        let mut request = self.bench.client.request(method, url);
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        Answer::of(request.body(body).send().await.expect("an answer")).await
    }

    /// Of a role that reaches this far.
    fn token(&self, path: &str) -> &str {
        if path.starts_with("/api/v1/runner/") {
            &self.bench.runner
        } else {
            &self.bench.admin
        }
    }

    /// A name that is no text, one that is nobody's, one that is nothing, and two in one.
    async fn names(&self, method: &str, path: &str, operation: &Value) {
        for word in ["%FF", "nobodys", "%00", "a%2Fb"] {
            let url = filled(path, word);
            let answer = self.send(method, &url, self.token(path), b"").await;
            self.judge(&answer, operation, &format!("{method} {url}"));
        }
    }

    /// Bodies that nobody can read, but for a forge's, which nobody reads who does not sign.
    async fn bodies(&self, method: &str, path: &str, operation: &Value) {
        if !operation["requestBody"].is_object() {
            return;
        }
        let url = filled(path, "x");
        for spoiled in [&b"{"[..], b"\xff", b"[]", b"{\"a\":1,\"a\":2}", b"null"] {
            let answer = self.send(method, &url, self.token(path), spoiled).await;
            let what = format!("{method} {url} with a spoiled body");
            self.judge(&answer, operation, &what);
            self.check(answer.status.is_client_error(), &what, &answer);
        }
    }

    /// Of people's requests: a parameter that nobody knows, one nearly known, and one twice.
    async fn parameters(&self, method: &str, path: &str, operation: &Value) {
        let enrols = path == ENROL;
        if enrols || path.starts_with("/api/v1/runner/") || !operation["security"].is_array() {
            return;
        }
        let all = operation["parameters"].as_array().into_iter().flatten();
        let names = all.filter(|it| it["in"] == "query").map(|it| &it["name"]);
        let names: Vec<&str> = names.filter_map(Value::as_str).collect();
        let mut spoiled = vec![("stranger=1".to_owned(), "stranger", "is not known; ".into())];
        for name in &names {
            let twice = format!("{name}=1&{name}=1");
            spoiled.push((twice, *name, "is given twice".into()));
        }
        let nearly: Vec<String> = names.iter().map(|name| format!("{name}s")).collect();
        for (nearly, name) in nearly.iter().zip(&names) {
            let words = format!("is not known; did you mean `{name}`?");
            spoiled.push((format!("{nearly}=1"), nearly, words));
        }
        for (query, field, words) in spoiled {
            let url = format!("{}?{query}", filled(path, "x"));
            let answer = self.send(method, &url, self.token(path), b"").await;
            let what = format!("{method} {url}");
            self.judge(&answer, operation, &what);
            let said: Value = serde_json::from_str(&answer.text).unwrap_or_default();
            let message = said["message"].as_str().unwrap_or_default();
            let good = answer.status == 422 && said["field"] == field && message.contains(&words);
            self.check(good, &what, &answer);
        }
    }

    /// Nobody, and somebody of another role.
    async fn strangers(&self, method: &str, path: &str, operation: &Value) {
        if !operation["security"].is_array() {
            return;
        }
        let url = filled(path, "x");
        let answer = self.send(method, &url, "", b"").await;
        let what = format!("{method} {url} as nobody");
        self.judge(&answer, operation, &what);
        let asked_for = answer.headers.contains_key("www-authenticate");
        self.check(answer.status == 401 && asked_for, &what, &answer);
        let stranger = if self.token(path) == self.bench.runner {
            &self.bench.user
        } else {
            &self.bench.runner
        };
        let answer = self.send(method, &url, stranger, b"").await;
        let what = format!("{method} {url} as another role");
        self.judge(&answer, operation, &what);
        self.check(answer.status == 403, &what, &answer);
    }

    /// Notes what is not as it should be; all of it is said at the end.
    fn check(&self, good: bool, what: &str, answer: &Answer) {
        if !good {
            let said = format!("{what}: {} {}", answer.status.as_u16(), answer.text);
            self.wrong.borrow_mut().push(said);
        }
    }

    /// The answer has a status that the document knows, and is in the one shape if it is a refusal.
    fn judge(&self, answer: &Answer, operation: &Value, what: &str) {
        let status = answer.status.as_u16();
        let known = operation["responses"][status.to_string()].is_object();
        self.check(known, &format!("{what} is not described"), answer);
        if status >= 400 {
            self.check(
                self.is_error(answer),
                &format!("{what} is no error"),
                answer,
            );
        }
    }

    /// In the one shape, with a code that belongs to the status.
    fn is_error(&self, answer: &Answer) -> bool {
        let kind = answer.headers.get("content-type");
        let Ok(body) = serde_json::from_str::<Value>(&answer.text) else {
            return false;
        };
        let code = body["code"].as_str().and_then(ErrorCode::from_text);
        kind.is_some_and(|it| it == "application/json")
            && self.error.is_valid(&body)
            && code.is_some_and(|it| it.status() == answer.status.as_u16())
    }
}

#[tokio::test]
async fn what_no_handler_sees_is_answered_as_described() {
    let bench = Bench::patient().await;
    let document = document(&bench).await;
    let error = json!({
        "$ref": "#/components/schemas/ErrorBody", "components": document["components"],
    });
    let error = jsonschema::draft202012::new(&error).expect("a schema");
    let asked = Asked {
        bench: &bench,
        error,
        wrong: Default::default(),
    };
    for (method, path, operation) in operations(&document) {
        asked.names(method, path, operation).await;
        asked.bodies(method, path, operation).await;
        asked.strangers(method, path, operation).await;
        asked.parameters(method, path, operation).await;
        let url = filled(path, "x");
        let answer = asked.send("patch", &url, asked.token(path), b"").await;
        let good = answer.status == 405 && answer.headers.contains_key("allow");
        asked.check(
            good && asked.is_error(&answer),
            &format!("patch {url}"),
            &answer,
        );
    }
    let answer = asked.send("get", "/api/v1/nowhere", &bench.user, b"").await;
    asked.check(
        answer.status == 404 && asked.is_error(&answer),
        "no path",
        &answer,
    );
    let large: &'static [u8] = vec![b' '; 5 * 1024 * 1024].leak();
    let answer = asked.send("post", "/api/v1/runs", &bench.user, large).await;
    let described = &document["paths"]["/api/v1/runs"]["post"];
    asked.judge(&answer, described, "a body of 5 MiB");
    assert_eq!(answer.status, 413);
    let metrics = asked.send("get", "/metrics", "", b"").await;
    let kind = metrics.headers["content-type"].to_str().expect("text");
    let kinds = &document["paths"]["/metrics"]["get"]["responses"]["200"]["content"];
    let kind = kind.split(';').next().unwrap_or_default();
    assert!(kinds[kind].is_object(), "{kind}: {kinds}");
    let wrong = asked.wrong.into_inner();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A word alone would let too much through: `key` is in many refusals.
#[test]
fn what_the_page_says_no_schema_can_say_is_a_phrase() {
    let page = include_str!("../../../../docs/api.md");
    let (_, tables) = page.split_once("## What a schema cannot say").unwrap();
    let rows: Vec<&str> = tables.lines().filter(|it| it.starts_with("| 4")).collect();
    assert!(rows.len() > 30, "{rows:?}");
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        assert_eq!(cells.len(), 3, "{row}");
        assert!(cells[1].contains(' '), "{row}");
        assert!(row.chars().count() <= 120, "{row}");
    }
}

/// The page says of every code what it is.
#[test]
fn the_page_about_the_api_names_every_code() {
    let page = include_str!("../../../../docs/api.md");
    for code in ErrorCode::ALL {
        let row = format!("| {} | `{}` |", code.status(), code.as_str());
        assert!(page.contains(&row), "{row}");
    }
}
