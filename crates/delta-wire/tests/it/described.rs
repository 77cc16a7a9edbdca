//! What the schemas of requests say is what their readers do. Whole examples are changed at every
//! place, to everything that a reader might trip over, and both are asked.

use delta_wire::Problems;
use delta_wire::api::{
    CancelRequest, ChooseDeadLetters, CreateFunction, CreateFunctions, CreateRun, CreateToken,
    EnrolAgent, FetchSecrets, PutRepository, RerunRequest, RouteQueue, SetSecret, TriggerRun,
};
use delta_wire::openapi::{REQUESTS, Schemas, complete};
use serde_json::{Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

fn schemas() -> Schemas {
    let mut list: Vec<(String, RefOr<Schema>)> = Vec::new();
    fn add<T: ToSchema + PartialSchema>(list: &mut Vec<(String, RefOr<Schema>)>) {
        T::schemas(list);
        list.push((T::name().into_owned(), T::schema()));
    }
    add::<CancelRequest>(&mut list);
    add::<ChooseDeadLetters>(&mut list);
    add::<CreateFunction>(&mut list);
    add::<CreateRun>(&mut list);
    add::<CreateToken>(&mut list);
    add::<EnrolAgent>(&mut list);
    add::<FetchSecrets>(&mut list);
    add::<PutRepository>(&mut list);
    add::<RerunRequest>(&mut list);
    add::<RouteQueue>(&mut list);
    add::<SetSecret>(&mut list);
    add::<TriggerRun>(&mut list);
    let named = list.into_iter();
    let named = named.map(|(name, it)| (name, serde_json::to_value(it).expect("a schema")));
    let mut schemas: Schemas = named.collect();
    complete(&mut schemas);
    schemas
}

fn validator(name: &str) -> jsonschema::Validator {
    let root = json!({
        "$ref": format!("#/components/schemas/{name}"), "components": {"schemas": schemas()},
    });
    let options = jsonschema::draft202012::options().should_validate_formats(true);
    options
        .build(&root)
        .unwrap_or_else(|why| panic!("{name}: {why}"))
}

/// A request as it is read, and whole examples of it.
struct Request {
    schema: &'static str,
    /// Nothing, or the words of the refusal.
    read: fn(&[u8]) -> Option<String>,
    examples: Vec<Value>,
}

fn refusal<T>(read: Result<T, Problems>) -> Option<String> {
    read.err().map(|it| it.to_string())
}

fn requests() -> Vec<Request> {
    let request = |schema, read, examples| Request {
        schema,
        read,
        examples,
    };
    vec![
        request("CreateRun", |it| refusal(CreateRun::parse(it)), runs()),
        request("Calls", |it| refusal(CreateFunctions::parse(it)), calls()),
        request(
            "ChooseDeadLetters",
            |it| refusal(ChooseDeadLetters::parse(it)),
            vec![
                json!({"ids": ["run_1"], "dry_run": true}),
                json!({"queue": "mail", "function": "f", "cause": "user_exit", "before": "run_1"}),
                json!({"all": true}),
            ],
        ),
        request(
            "RouteQueue",
            |it| refusal(RouteQueue::parse(it)),
            vec![json!({"runner": "python"})],
        ),
        request(
            "CancelRequest",
            |it| refusal(CancelRequest::parse(it)),
            vec![json!({"reason": "enough"})],
        ),
        request(
            "RerunRequest",
            |it| refusal(RerunRequest::parse(it)),
            vec![json!({"failed_only": false, "job": "unit"}), json!({})],
        ),
        request(
            "PutRepository",
            |it| refusal(PutRepository::parse(it)),
            repositories(),
        ),
        request(
            "TriggerRun",
            |it| refusal(TriggerRun::parse(it)),
            vec![json!({"ref": "main", "inputs": {"target": "production"}})],
        ),
        request("SetSecret", |it| refusal(SetSecret::parse(it)), secrets()),
        request(
            "FetchSecrets",
            |it| refusal(FetchSecrets::parse(it)),
            vec![json!({"names": ["TOKEN"]})],
        ),
        request(
            "CreateToken",
            |it| refusal(CreateToken::parse(it)),
            tokens(),
        ),
        request(
            "EnrolAgent",
            |it| refusal(EnrolAgent::parse(it)),
            vec![json!({"agent_name": "build-1"})],
        ),
    ]
}

fn runs() -> Vec<Value> {
    let spec = json!({
        "name": "unit", "workdir": "app", "image": "rust:1.95",
        "container": {
            "entrypoint": ["sh"], "network": "none", "memory_mb": 512, "cpus": 1.5, "pids": 100,
            "user": "1000:1000",
            "mounts": [{"source": "target", "target": "/cache", "read_only": true}],
            "services": [{
                "name": "db", "image": "postgres:16", "env": {"A": "b"}, "command": ["postgres"],
            }],
        },
        "checkout": {"depth": 1, "submodules": true, "lfs": false, "credential": "CLONE"},
        "steps": [
            "make",
            {"run": "make test", "name": "test", "timeout_seconds": 60, "if": "always",
                "env": {"A": "1"}, "continue_on_error": true},
        ],
        "env": {"A": "1"},
        "artifacts": ["dist/**", {"type": "coverage", "path_glob": "cov/**"}],
        "caches": [{"type": "files", "key": "k", "paths": ["~/.cargo"], "restore_keys": ["k-"]}],
        "results": {"format": "junit", "path": "junit.xml"},
        "secrets": ["TOKEN", {"name": "OTHER", "env": "OTHER_NAME"}],
        "environment": "production", "no_output_timeout_seconds": 60,
    });
    let tests = json!({
        "checkout": false,
        "results": [{"format": "tap", "path": "a.tap"}],
        "tests": [{
            "test_id": "t1", "name": "one", "suite": "s",
            "execution": {
                "type": "CONTAINER", "command": "cargo", "args": ["test"], "working_dir": "app",
                "image": "rust:1.95", "entrypoint": ["sh"],
                "mounts": [{"source": "a", "target": "/a"}], "network_mode": "host",
                "resource_limits": {"cpu_millis": 500, "memory_mb": 64, "pids": 10},
            },
            "result_config": {
                "result_file": "r.xml", "result_format": "JUNIT", "artifact_paths": ["out/*"],
            },
        }],
    });
    let call = json!({"function": {
        "name": "python#send", "params": {"to": "x"}, "queue": "mail",
        "enqueued_at": "2026-01-31T12:00:00Z", "trace_context": {"traceparent": "00-1-2-01"},
    }});
    let job = |spec: Value| json!({"name": "unit tests (a=1)", "job_spec": spec});
    let mut whole = job(spec);
    for (key, value) in json!({
        "needs": [], "required": false, "max_attempts": 2, "timeout_seconds": 60,
        "requires": ["linux", "zone=eu", "python>=3.11", "memory>=2GiB"], "priority": 5,
        "once": true, "fail_fast_group": "m", "concurrency": {"group": "g", "cancel_older": true},
        "retry_on": ["infra", "user_exit"],
    })
    .as_object()
    .expect("an object")
    {
        whole[key] = value.clone();
    }
    vec![
        json!({
            "jobs": [whole], "repository": "https://x.example/a", "ref": "refs/heads/main",
            "commit": "abc", "trust": "untrusted", "fail_fast": true,
            "concurrency": {"group": "production", "cancel_older": false},
            "timeout_seconds": 60.5, "wait_timeout_seconds": 60, "priority": -1,
        }),
        json!({"jobs": [job(tests)]}),
        json!({"jobs": [job(call)]}),
        json!({"jobs": [job(json!({"steps": ["true"]}))]}),
    ]
}

fn calls() -> Vec<Value> {
    let whole = json!({
        "function": "python#send_email", "params": {"to": "x"}, "queue": "mail", "priority": 1,
        "delay_seconds": 1.5, "unique_key": "k", "unique_seconds": 60, "max_attempts": 2,
        "backoff_seconds": 1, "backoff_cap_seconds": 5, "timeout_seconds": 10,
        "result_ttl_seconds": 60, "trace_context": {"traceparent": "00-1-2-01"},
    });
    vec![
        whole.clone(),
        json!({"function": "f", "not_before": "2026-01-31T12:00:00Z"}),
        json!({"functions": [whole, {"function": "f"}]}),
    ]
}

fn repositories() -> Vec<Value> {
    let plain = json!({
        "name": "app", "clone_url": "https://x.example/a/b.git", "forge": "gitea",
    });
    let mut whole = plain.clone();
    for (key, value) in json!({
        "api": "https://x.example/api/v1", "project": "a/b", "token": "STATUS", "credential": "C",
        "webhook_secret": "0123456789abcdef", "forks": "approve", "supersede": true,
        "notify_url": "https://y.example/", "notify_secret": "N",
    })
    .as_object()
    .expect("an object")
    {
        whole[key] = value.clone();
    }
    vec![plain, whole]
}

fn secrets() -> Vec<Value> {
    vec![
        json!({
            "name": "TOKEN", "value": "some value", "repository": "https://x.example/a",
            "branch": "main", "environment": "production", "kind": "plain",
        }),
        json!({"name": "TOKEN", "value": "some-token", "kind": "token", "username": "bot"}),
        json!({
            "name": "KEY", "value": "-----BEGIN PRIVATE KEY-----\nx\n", "kind": "ssh-key",
            "known_hosts": "x.example ssh-ed25519 AAAA\n",
        }),
    ]
}

fn tokens() -> Vec<Value> {
    vec![
        json!({
            "role": "runner", "name": "build", "expires_in_seconds": 60, "pool": "gpu",
            "zones": ["eu"], "labels": ["*", "team=blue"], "agent_id": "a-1",
            "certificate": "spiffe://x.example/1",
        }),
        json!({"role": "enrolment", "name": "n", "expires_in_seconds": 3600, "pool": "gpu"}),
        json!({"role": "user", "name": "n"}),
    ]
}

/// Everything that might stand where something else should.
fn probes() -> Vec<Value> {
    let mut texts: Vec<String> = Vec::new();
    // Of letters, digits and control characters some stand for all.
    let marks = (0x20_u8..0x7f).filter(|it| !it.is_ascii_alphanumeric() || b"aZ09".contains(it));
    let odd =
        "\0\t\n\r\u{1f}\u{7f}\u{80}\u{85}\u{a0}\u{e9}\u{1680}\u{2028}\u{3000}\u{feff}\u{1f600}";
    for c in marks.map(char::from).chain(odd.chars()) {
        texts.extend([
            format!("{c}"),
            format!("a{c}"),
            format!("{c}a"),
            format!("a{c}b"),
        ]);
    }
    let words = [
        "",
        "  ",
        "..",
        "../a",
        "a/..",
        "a/../b",
        "/a",
        "/a/../b",
        "a/b",
        "refs/heads/x",
        "DELTA_A",
        "BASHED",
        "UID",
        "UIDS",
        "1A",
        "a=b=c",
        "a>=1",
        "a>=1.2.3",
        "a>=x",
        "a>=2GiB",
        "a>=2gib",
        "a#b#c",
        "a b#c",
        "#b",
        "a#",
        "a# ",
        "https://u:p@x.example/a/b",
        "https://u@x.example/a",
        "ssh://x.example:22/a",
        "u:p@x.example:a",
        "*",
        "2026-01-31T12:00:00Z",
        "2026-01-31",
        "-----BEGIN PRIVATE KEY-----",
        "      ",
        "a    b",
        "user_exit",
        "infra",
        "SUBPROCESS",
        "trusted",
        "none",
        "always",
        "JUNIT",
        "junit",
        "runner",
        "enrolment",
        "admin",
        "token",
        "ssh-key",
        "github",
        "success",
    ];
    texts.extend(words.map(str::to_owned));
    for edge in [
        5_usize, 6, 15, 16, 63, 64, 100, 120, 128, 200, 255, 256, 301, 512, 1024, 4096,
    ] {
        texts.extend([edge, edge + 1].map(|length| "a".repeat(length)));
    }
    let numbers = [
        -1001.0,
        -1000.0,
        -1.0,
        0.0,
        0.001,
        0.009,
        0.01,
        0.05,
        0.1,
        1.0,
        1.5,
        3.0,
        4.0,
        10.0,
        20.0,
        21.0,
        1000.0,
        1001.0,
        1024.0,
        1025.0,
        86_400.0,
        86_401.0,
        604_800.0,
        604_801.0,
        31_536_000.0,
        31_536_001.0,
        316_224_000.0,
        316_224_001.0,
        1e12,
        1e300,
    ];
    let mut all: Vec<Value> = texts.into_iter().map(Value::from).collect();
    for number in numbers {
        if number == f64::trunc(number) && number < 1e15 {
            all.push(json!(number as i64))
        } else {
            all.push(json!(number))
        }
    }
    all.extend([
        json!(5.0),
        json!(true),
        json!(false),
        json!([]),
        json!({}),
        json!([[]]),
        json!(["a"]),
        json!(["a", "b", "a"]),
        json!([1]),
        json!({"a": 1}),
        json!({"a": "b"}),
        json!({"": "b"}),
        json!({"a=": "b"}),
        json!({"type": "a"}),
    ]);
    all
}

/// Every place of an example.
fn places(value: &Value, here: &str, into: &mut Vec<String>) {
    into.push(here.to_owned());
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                places(value, &format!("{here}/{key}"), into);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                places(value, &format!("{here}/{index}"), into);
            }
        }
        _ => {}
    }
}

/// What a reader takes and no schema offers: other spellings of the same. The places, by their end.
const TAKEN: &[&str] = &[
    // Six bytes that are fewer characters.
    "/value",
    // A kind of test in small letters, and a format in any.
    "/execution/type",
    "/result_config/result_format",
];

/// The words with `N` in the place of each number, as the page writes them.
fn numbered(words: &str) -> String {
    let mut text = String::new();
    for letter in words.chars() {
        match letter.is_ascii_digit() {
            true if text.ends_with('N') => {}
            true => text.push('N'),
            false => text.push(letter),
        }
    }
    text
}

/// What a reader refuses and no schema can say, by the words of the refusal. Each of them is in
/// the table of docs/api.md.
fn unsaid(refusal: &str) -> bool {
    let page = include_str!("../../../../docs/api.md");
    let refusal = numbered(refusal);
    let table = page.lines().filter(|line| line.starts_with("| 4"));
    let mut said = table.filter_map(|line| line.split('`').nth(1));
    said.any(|words| refusal.contains(words))
}

#[test]
fn what_a_schema_says_of_a_request_is_what_its_reader_does() {
    let probes = probes();
    let mut differences = Vec::new();
    for request in requests() {
        let schema = validator(request.schema);
        let mut ask = |changed: &Value, place: &str| {
            let text = serde_json::to_vec(changed).expect("JSON");
            let (said, refused) = (schema.is_valid(changed), (request.read)(&text));
            let agree = match (said, &refused) {
                (true, None) | (false, Some(_)) => true,
                (true, Some(words)) => words.lines().all(unsaid),
                (false, None) => TAKEN.iter().any(|end| place.ends_with(end)),
            };
            if !agree && differences.len() < 40 {
                let at = changed.pointer(place).map(|it| it.to_string());
                let at: String = at.unwrap_or("(gone)".into()).chars().take(60).collect();
                let refused: String = refused.unwrap_or_default().chars().take(100).collect();
                let name = request.schema;
                differences.push(format!(
                    "{name}{place} = {at}: {said}, and then {refused:?}"
                ));
            }
        };
        for example in &request.examples {
            ask(example, "");
            let mut all = Vec::new();
            places(example, "", &mut all);
            for place in &all {
                // Where no text stands, one text is as wrong as the next.
                let text = example.pointer(place).is_some_and(Value::is_string);
                let probes = probes.iter();
                let probes = probes.filter(|it| text || it.as_str().is_none_or(|it| it.len() == 2));
                for probe in probes {
                    let mut changed = example.clone();
                    let at = changed.pointer_mut(place).expect("a place");
                    *at = probe.clone();
                    ask(&changed, place);
                }
                let mut changed = example.clone();
                if let Some(Value::Object(fields)) = changed.pointer_mut(place) {
                    fields.insert("stranger".into(), json!("a"));
                    ask(&changed, place);
                }
                if let Some((outer, key)) = place.rsplit_once('/') {
                    let mut changed = example.clone();
                    if let Some(Value::Object(fields)) = changed.pointer_mut(outer) {
                        fields.remove(key);
                        ask(&changed, place);
                    }
                }
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Fields of requests whose texts and lists may be of any length: what is too much is cut off, or
/// only bounded together with everything else.
const BOUNDLESS: &[&str] = &["CancelRequest.reason"];

#[test]
fn every_text_and_list_of_a_request_has_its_bounds() {
    let schemas = schemas();
    let mut bare = Vec::new();
    for name in REQUESTS {
        let schema = &schemas[*name];
        assert_eq!(schema["additionalProperties"], false, "{name}");
        for (field, property) in schema["properties"].as_object().expect("fields") {
            let has = |keys: &[&str]| keys.iter().any(|key| property.get(key).is_some());
            let of = |kind: &str| {
                let types = &property["type"];
                types == kind
                    || types
                        .as_array()
                        .is_some_and(|all| all.contains(&kind.into()))
            };
            let bounded = match () {
                () if of("string") => has(&["maxLength", "enum", "format"]),
                () if of("array") => has(&["maxItems"]),
                () if of("integer") || of("number") => has(&["maximum"]),
                () => true,
            };
            let place = format!("{name}.{field}");
            if !bounded && !BOUNDLESS.contains(&place.as_str()) {
                bare.push(place);
            }
        }
    }
    assert!(
        bare.is_empty(),
        "no bounds in described/requests.rs: {bare:?}"
    );
}
