//! Requests of people that are wrong: refused strictly, by field, with the nearest known name.

use serde_json::{Value, json};

use super::{Stage, refused, with};
use crate::harness::{job, jobs};

/// A field of a job, a value that cannot be, and the field that is named.
const WRONG: [(&str, &str, &str); 12] = [
    ("neds", "[]", "jobs[0].neds"),
    ("name", "absent", "jobs[0].name"),
    ("name", r#""\u001b[31mred""#, "jobs[0].name"),
    ("needs", r#"["ghost"]"#, "jobs[0].needs[0]"),
    ("needs", r#"["a"]"#, "jobs[0].needs[0]"),
    ("max_attempts", "0", "jobs[0].max_attempts"),
    ("timeout_seconds", "-1", "jobs[0].timeout_seconds"),
    ("timeout_seconds", "1e300", "jobs[0].timeout_seconds"),
    ("required", r#""yes""#, "jobs[0].required"),
    ("job_spec", "absent", "jobs[0].job_spec"),
    ("job_spec", r#"{"steps":[]}"#, "jobs[0].job_spec.steps"),
    ("job_spec", r#""true""#, "jobs[0].job_spec"),
];

/// Bodies that are wrong as a whole, and the field that is named.
fn wrong_runs() -> [(Value, &'static str); 7] {
    let many: Vec<Value> = (0..1001).map(|n| job(&format!("j{n}"))).collect();
    let circle = [
        with(job("a"), "needs", r#"["b"]"#),
        with(job("b"), "needs", r#"["a"]"#),
    ];
    [
        (json!({}), "jobs"),
        (json!({"jobs": []}), "jobs"),
        (json!({"jobs": 5}), "jobs"),
        (json!({ "jobs": many }), "jobs"),
        (json!({"jobs": [job("a")], "prioritty": 1}), "prioritty"),
        (json!({"jobs": [job("a"), job("a")]}), "jobs[1].name"),
        (json!({ "jobs": circle }), "jobs[0].needs"),
    ]
}

// A71: the people's API refuses what it does not know, by its nearest name.
#[test]
fn requests_of_people_are_read_strictly() {
    let stage = Stage::set();
    let jobs = WRONG.map(|(field, value, named)| {
        let body = json!({"jobs": [with(job("a"), field, value)]});
        (body, named)
    });
    for (body, field) in jobs.into_iter().chain(wrong_runs()) {
        let post = || stage.person.http.post("/api/v1/runs", &body).unwrap();
        let answer = stage.nothing_changes(field, post);
        refused(&answer, 422, Some(field));
    }
    let near = json!({"jobs": [with(job("a"), "neds", "[]")]});
    let near = stage.person.http.post("/api/v1/runs", &near).unwrap();
    assert!(near.word("message").contains("`needs`"), "{}", near.text);
    stage.end();
}

// T26, T31: names of things that are not there, and questions that make no sense.
#[test]
fn what_is_not_there_is_not_found() {
    let stage = Stage::set();
    for path in [
        "/api/v1/runs?limit=0",
        "/api/v1/runs?stat=RUNNING",
        "/api/v1/runs?cursor=%FF",
        &format!("/api/v1/runs/{}/events?after=-1", stage.grant.run),
    ] {
        refused(&stage.person.http.get(path).unwrap(), 422, None);
    }
    for path in [
        "/api/v1/runs/run_0".to_owned(),
        format!("/api/v1/runs/run_{}", "f".repeat(32)),
        format!("/api/v1/runs/run_{}", "%C3%A9".repeat(16)),
        "/api/v1/runs/..%2f..%2fetc%2fpasswd".to_owned(),
        format!("/api/v1/jobs/job_{}_1", "f".repeat(32)),
        "/api/v1/jobs/job_1_99999999999999999999".to_owned(),
        "/nowhere".to_owned(),
    ] {
        refused(&stage.person.http.get(&path).unwrap(), 404, None);
    }
    let deleted = stage.person.http.send("DELETE", "/api/v1/runs", &[], b"");
    refused(&deleted.unwrap(), 405, None);
    stage.end();
}

// An idempotency key is for one body.
#[test]
fn an_idempotency_key_with_another_body_is_a_conflict() {
    let stage = Stage::set();
    let person = &stage.person;
    let first = person.create_keyed("k", &jobs(1)).unwrap().expect(201);
    stage.nothing_changes("the key again", || {
        let same = person.create_keyed("k", &jobs(1)).unwrap().expect(201);
        assert_eq!(same.word("run_id"), first.word("run_id"));
        let other = person.create_keyed("k", &jobs(2)).unwrap();
        refused(&other, 409, None);
        assert_eq!(other.word("code"), "IDEMPOTENCY_CONFLICT");
        refused(
            &person.create_keyed(&"k".repeat(300), &jobs(1)).unwrap(),
            422,
            None,
        );
    });
    // Somebody else's key of the same name is another key.
    let other = stage
        .server
        .person()
        .create_keyed("k", &jobs(1))
        .unwrap()
        .expect(201);
    assert_ne!(other.word("run_id"), first.word("run_id"));
    stage.end();
}
