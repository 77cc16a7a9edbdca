//! Bad input: a clear answer each, no state change, no panic, no secret told.

use serde_json::{Value, json};

use crate::harness::http::{Answer, raw};
use crate::harness::{Grant, Http, Options, Person, Runner, Server, job, jobs, secret_in};

/// A server with a held lease that nobody but its holder may touch.
struct Stage {
    server: Server,
    person: Person,
    one: Runner,
    two: Runner,
    grant: Grant,
}

impl Stage {
    fn set() -> Stage {
        let options = Options::patient()
            .flag("lease-ttl", "2m")
            .flag("ack-timeout", "2m");
        let server = Server::start(options);
        let person = server.person();
        let (one, two) = (server.runner("one"), server.runner("two"));
        person.create(&jobs(1));
        let grant = one.take();
        Stage {
            server,
            person,
            one,
            two,
            grant,
        }
    }

    /// Everything that anybody can see of the run and of how many there are.
    fn picture(&self) -> (Value, Value, Vec<Value>, usize) {
        (
            self.person.run(&self.grant.run),
            self.person.job(&self.grant.job),
            self.person.events(&self.grant.run),
            self.person.run_ids().len(),
        )
    }

    /// Does something that must change nothing.
    #[track_caller]
    fn nothing_changes<T>(&self, what: &str, act: impl FnOnce() -> T) -> T {
        let before = self.picture();
        let done = act();
        assert_eq!(before, self.picture(), "{what} changed something");
        done
    }

    #[track_caller]
    fn end(self) {
        self.one.succeed(&self.grant);
        assert_eq!(
            self.person.until_over(&self.grant.run)["outcome"],
            "SUCCESS"
        );
        self.server.check();
    }
}

/// A refusal in the one error shape, naming the field where it should.
#[track_caller]
fn refused(answer: &Answer, status: u16, field: Option<&str>) {
    assert_eq!(answer.status, status, "{}", answer.text);
    let code = answer.body["code"].as_str();
    assert!(
        code.is_some_and(|code| !code.is_empty()),
        "no code: {}",
        answer.text
    );
    assert!(
        answer.body["message"].is_string(),
        "no message: {}",
        answer.text
    );
    assert!(
        answer.body["retryable"].is_boolean(),
        "no retryable: {}",
        answer.text
    );
    if let Some(field) = field {
        assert_eq!(answer.word("field"), field, "{}", answer.text);
    }
    assert_eq!(secret_in(&answer.text), None, "a secret in a refusal");
}

fn without(mut message: Value, field: &str) -> Value {
    message.as_object_mut().unwrap().remove(field);
    message
}

fn with(mut message: Value, field: &str, value: Value) -> Value {
    message[field] = value;
    message
}

// RP-1, RP-4, A36: wrong types and missing fields of every message.
#[test]
fn malformed_messages_are_refused_by_field() {
    let stage = Stage::set();
    let (one, grant) = (&stage.one, &stage.grant);
    let beat = || one.beat(grant);
    let done = || one.done(grant, "SUCCEEDED", 0);
    let ack = || {
        json!({"type": "AckLease", "job_id": grant.job, "lease_id": grant.lease,
            "runner_id": one.id})
    };
    let huge = "x".repeat(100_000);
    let cases = [
        ("heartbeat", without(beat(), "lease_id"), "lease_id"),
        ("heartbeat", with(beat(), "lease_id", json!(7)), "lease_id"),
        (
            "heartbeat",
            with(beat(), "runner_id", Value::Null),
            "runner_id",
        ),
        (
            "heartbeat",
            with(beat(), "runner_id", json!("")),
            "runner_id",
        ),
        (
            "heartbeat",
            with(beat(), "runner_id", json!(huge)),
            "runner_id",
        ),
        ("heartbeat", with(beat(), "seq", json!(-1)), "seq"),
        ("heartbeat", with(beat(), "seq", json!(1.5)), "seq"),
        ("heartbeat", with(beat(), "progress", json!([])), "progress"),
        (
            "heartbeat",
            with(beat(), "progress", json!({"percent": "10"})),
            "progress.percent",
        ),
        (
            "heartbeat",
            with(beat(), "phase", json!("dancing")),
            "phase",
        ),
        ("heartbeat", with(beat(), "type", json!("Complete")), "type"),
        ("complete", without(done(), "status"), "status"),
        ("complete", with(done(), "status", json!("OK")), "status"),
        (
            "complete",
            with(done(), "status", json!("CANCELED")),
            "status",
        ),
        (
            "complete",
            with(done(), "exit_code", json!("0")),
            "exit_code",
        ),
        (
            "complete",
            with(done(), "exit_code", Value::Null),
            "exit_code",
        ),
        (
            "complete",
            with(done(), "exit_code", json!(1e300)),
            "exit_code",
        ),
        (
            "complete",
            with(done(), "artifacts", json!({})),
            "artifacts",
        ),
        ("complete", with(done(), "type", json!("Heartbeat")), "type"),
        ("ack-lease", without(ack(), "job_id"), "job_id"),
        (
            "ack-lease",
            with(ack(), "job_id", json!("../../etc/passwd")),
            "job_id",
        ),
        ("cancel-ack", without(beat(), "runner_id"), "type"),
        (
            "lease",
            json!({"type": "Lease", "capabilities": []}),
            "runner_id",
        ),
        (
            "lease",
            json!({"type": "Lease", "runner_id": "z"}),
            "capabilities",
        ),
        (
            "lease",
            with(stage.two.ask(0.0), "capabilities", json!("linux")),
            "capabilities",
        ),
        (
            "lease",
            with(stage.two.ask(0.0), "wait_seconds", json!(-1)),
            "wait_seconds",
        ),
        (
            "lease",
            with(stage.two.ask(0.0), "wait_seconds", json!("soon")),
            "wait_seconds",
        ),
    ];
    for (action, message, field) in cases {
        let what = format!("{action} with a wrong {field}");
        let answer = stage.nothing_changes(&what, || one.say(action, &message).unwrap());
        refused(&answer, 422, Some(field));
    }
    stage.end();
}

// RP-1, D15: what is no message at all.
#[test]
fn garbage_is_refused() {
    let stage = Stage::set();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_field = format!(
        r#"{{"type":"Heartbeat","progress":{}"#,
        r#"{"a":"#.repeat(50_000)
    );
    let bodies: [&[u8]; 9] = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\"Heartbeat\"",
        b"\xff\xfe\x00\x01",
        b"{\"type\":\"Heartbeat\"}trailing",
        deep.as_bytes(),
        deep_field.as_bytes(),
    ];
    for path in [
        "runner/heartbeat",
        "runner/complete",
        "runner/lease",
        "runs",
    ] {
        let http = match path {
            "runs" => &stage.person.http,
            _ => &stage.one.http,
        };
        for body in bodies {
            let path = format!("/api/v1/{path}");
            let answer =
                stage.nothing_changes(&path, || http.send("POST", &path, &[], body).unwrap());
            refused(&answer, 422, None);
        }
    }
    stage.end();
}

// D15: ten megabytes.
#[test]
fn a_body_of_ten_megabytes_is_too_large() {
    let stage = Stage::set();
    let large = vec![b' '; 10 * 1024 * 1024];
    for (path, http) in [
        ("/api/v1/runner/lease", &stage.one.http),
        ("/api/v1/runner/ack-lease", &stage.one.http),
        ("/api/v1/runner/heartbeat", &stage.one.http),
        ("/api/v1/runner/complete", &stage.one.http),
        ("/api/v1/runner/cancel-ack", &stage.one.http),
        ("/api/v1/runs", &stage.person.http),
        (
            &format!("/api/v1/runs/{}/cancel", stage.grant.run),
            &stage.person.http,
        ),
    ] {
        let answer = stage.nothing_changes(path, || http.send("POST", path, &[], &large).unwrap());
        refused(&answer, 413, None);
    }
    stage.end();
}

// RP-20, A25, T1: somebody else's lease, a made-up one, and the holder under another name.
#[test]
fn foreign_and_made_up_leases_are_unknown() {
    let stage = Stage::set();
    let (one, two, grant) = (&stage.one, &stage.two, &stage.grant);
    let mut forged = grant.clone();
    let last = forged.lease.pop().unwrap();
    forged.lease.push(if last == 'A' { 'B' } else { 'A' });
    let mut short = grant.clone();
    short.lease = "lease_x".into();
    for (what, runner, lease) in [
        ("a foreign lease", two, grant),
        ("a forged lease", one, &forged),
        ("a short lease", one, &short),
    ] {
        stage.nothing_changes(what, || {
            let beat = runner.heartbeat(lease).unwrap().expect(200);
            assert_eq!(beat.body["extend_lease"], false, "{}", beat.text);
            assert_eq!(beat.body["stale"], true, "{}", beat.text);
            assert_eq!(beat.word("reason"), "UNKNOWN_LEASE");
            for answer in [
                runner.ack(lease).unwrap(),
                runner.complete(lease, "SUCCEEDED", 0).unwrap(),
                runner.cancel_ack(lease).unwrap(),
            ] {
                let answer = answer.expect(409);
                assert_eq!(answer.word("type"), "StaleLease", "{}", answer.text);
                assert_eq!(answer.word("reason"), "UNKNOWN_LEASE", "{}", answer.text);
            }
        });
    }
    // RP-10: the right credential under another runner's name.
    let mut renamed = one.clone();
    renamed.id = "somebody".into();
    let answer = stage.nothing_changes("another name", || {
        renamed.complete(grant, "FAILED", 1).unwrap()
    });
    assert!([409, 422].contains(&answer.status), "{}", answer.text);
    // RP-25: an acknowledgement for another job.
    let other = stage.person.create(&jobs(1));
    let mut elsewhere = grant.clone();
    elsewhere.job = format!("job_{}_1", other.trim_start_matches("run_"));
    let answer = stage.nothing_changes("another job", || one.ack(&elsewhere).unwrap());
    refused(&answer, 422, Some("job_id"));
    stage.end();
}

// A18, RP-5, RP-41, SM-35, SM-46: replays, and a second Complete with another body.
#[test]
fn replays_and_second_thoughts_change_nothing() {
    let stage = Stage::set();
    let (one, grant) = (&stage.one, &stage.grant);
    one.succeed(grant);
    stage.person.until_over(&grant.run);
    stage.nothing_changes("replays", || {
        for _ in 0..3 {
            one.succeed(grant);
        }
        for (status, code) in [("FAILED", 1), ("TIMED_OUT", 1), ("SUCCEEDED", 2)] {
            let second = one.complete(grant, status, code).unwrap().expect(409);
            assert_eq!(second.word("type"), "StaleLease", "{}", second.text);
            assert_eq!(second.word("reason"), "ALREADY_FINAL", "{}", second.text);
        }
        let ack = one.cancel_ack(grant).unwrap().expect(409);
        assert_eq!(ack.word("reason"), "ALREADY_FINAL", "{}", ack.text);
        let beat = one.heartbeat(grant).unwrap().expect(200);
        assert_eq!(beat.body["stale"], true, "{}", beat.text);
        one.ack(grant).unwrap().expect(409);
        stage.person.cancel(&grant.run).unwrap();
    });
    stage.server.check();
}

// RP-55: who may do what.
#[test]
fn credentials_reach_as_far_as_their_role() {
    let stage = Stage::set();
    let addr = stage.server.addr();
    let http = |token: &str| Http {
        addr,
        token: token.to_owned(),
    };
    let stranger = format!("delta_runner_{}", "A".repeat(43));
    let beat = stage.one.beat(&stage.grant);
    let runs = "/api/v1/runs";
    let beats = "/api/v1/runner/heartbeat";
    let cancel = format!("{runs}/{}/cancel", stage.grant.run);
    let token = json!({"role": "admin", "name": "mine"});
    let (runner, user) = (&stage.one.http.token, &stage.person.http.token);
    stage.nothing_changes("the wrong role", || {
        for nobody in ["", "x", stranger.as_str(), "delta_user_", "' OR 1=1 --"] {
            let nobody = http(nobody);
            refused(&nobody.post(beats, &beat).unwrap(), 401, None);
            refused(&nobody.post(runs, &jobs(1)).unwrap(), 401, None);
            refused(&nobody.get(runs).unwrap(), 401, None);
            refused(
                &nobody.get(&format!("{runs}/{}", stage.grant.run)).unwrap(),
                401,
                None,
            );
        }
        refused(&http(user).post(beats, &beat).unwrap(), 403, None);
        refused(
            &http(user).post("/api/v1/tokens", &token).unwrap(),
            403,
            None,
        );
        refused(&http(user).get("/api/v1/tokens").unwrap(), 403, None);
        for path in [runs, cancel.as_str(), "/api/v1/tokens"] {
            refused(&http(runner).post(path, &jobs(1)).unwrap(), 403, None);
        }
        refused(&http(runner).get(runs).unwrap(), 403, None);
    });
    stage.end();
}

// A71: the people's API refuses what it does not know, by its nearest name.
#[test]
fn requests_of_people_are_read_strictly() {
    let stage = Stage::set();
    let one_job = |field: &str, value: Value| json!({"jobs": [with(job("a"), field, value)]});
    let many: Vec<Value> = (0..1001).map(|n| job(&format!("j{n}"))).collect();
    let cycle = json!({"jobs": [with(job("a"), "needs", json!(["b"])),
        with(job("b"), "needs", json!(["a"]))]});
    let cases = [
        (json!({}), "jobs"),
        (json!({"jobs": []}), "jobs"),
        (json!({"jobs": 5}), "jobs"),
        (json!({ "jobs": many }), "jobs"),
        (json!({"jobs": [job("a")], "prioritty": 1}), "prioritty"),
        (json!({"jobs": [job("a"), job("a")]}), "jobs[1].name"),
        (cycle, "jobs[0].needs"),
        (one_job("neds", json!([])), "jobs[0].neds"),
        (one_job("needs", json!(["ghost"])), "jobs[0].needs[0]"),
        (one_job("max_attempts", json!(0)), "jobs[0].max_attempts"),
        (
            one_job("timeout_seconds", json!(-1)),
            "jobs[0].timeout_seconds",
        ),
        (
            one_job("timeout_seconds", json!(1e300)),
            "jobs[0].timeout_seconds",
        ),
        (one_job("required", json!("yes")), "jobs[0].required"),
        (one_job("name", json!("\u{1b}[31mred")), "jobs[0].name"),
        (
            one_job("job_spec", json!({"steps": []})),
            "jobs[0].job_spec.steps",
        ),
        (one_job("job_spec", json!("true")), "jobs[0].job_spec"),
    ];
    for (body, field) in cases {
        let post = || stage.person.http.post("/api/v1/runs", &body).unwrap();
        let answer = stage.nothing_changes(field, post);
        refused(&answer, 422, Some(field));
    }
    let near = stage
        .person
        .http
        .post("/api/v1/runs", &one_job("neds", json!([])))
        .unwrap();
    assert!(near.word("message").contains("`needs`"), "{}", near.text);
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
        format!("/api/v1/runs/run_{}", "é".repeat(16)),
        "/api/v1/runs/..%2f..%2fetc%2fpasswd".to_owned(),
        format!("/api/v1/jobs/job_{}_1", "f".repeat(32)),
        "/api/v1/jobs/job_1_99999999999999999999".to_owned(),
        "/nowhere".to_owned(),
    ] {
        refused(&stage.person.http.get(&path).unwrap(), 404, None);
    }
    refused(
        &stage
            .person
            .http
            .send("DELETE", "/api/v1/runs", &[], b"")
            .unwrap(),
        405,
        None,
    );
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

// A71: runners may say more than we understand.
#[test]
fn unknown_fields_of_runners_are_ignored() {
    let stage = Stage::set();
    let mut beat = stage.one.beat(&stage.grant);
    beat["mood"] = json!({"deeply": [{"nested": null}]});
    let answer = stage.one.say("heartbeat", &beat).unwrap().expect(200);
    assert_eq!(answer.body["extend_lease"], true);
    stage.end();
}

// T22, T23: bytes that are no HTTP; the server goes on.
#[test]
fn bytes_that_are_no_http_hurt_nobody() {
    let stage = Stage::set();
    let addr = stage.server.addr();
    stage.nothing_changes("noise", || {
        for bytes in [
            &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /api/v1/runs HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n",
            &[0; 4096],
            &vec![b'A'; 200_000],
        ] {
            if let Ok(answer) = raw(addr, bytes).and_then(|sent| sent.answer()) {
                assert!((400..500).contains(&answer.status), "{answer:?}");
            }
        }
        // A request that stops in the middle, and one that says less than it announced.
        drop(raw(
            addr,
            b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Le",
        ));
        drop(raw(
            addr,
            b"POST /api/v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{",
        ));
    });
    stage.end();
}

// I24, RP-53, RP-54, A24: a token that was used is nowhere to be read.
#[test]
fn no_secret_is_shown_anywhere() {
    let stage = Stage::set();
    let (person, grant) = (&stage.person, &stage.grant);
    stage.one.heartbeat(grant).unwrap().expect(200);
    stage
        .two
        .complete(grant, "SUCCEEDED", 0)
        .unwrap()
        .expect(409);
    stage.one.succeed(grant);
    let run = format!("/api/v1/runs/{}", grant.run);
    let paths = [
        "/metrics".to_owned(),
        "/healthz".to_owned(),
        "/readyz".to_owned(),
        "/api/v1/openapi.json".to_owned(),
        "/api/v1/runs".to_owned(),
        run.clone(),
        format!("{run}/events"),
        format!("/api/v1/jobs/{}", grant.job),
    ];
    let random = &grant.lease[grant.lease.len() - 20..];
    for path in &paths {
        let answer = person.http.get(path).unwrap().expect(200);
        assert_eq!(secret_in(&answer.text), None, "{path}");
        assert!(!answer.text.contains(random), "{path} shows the lease");
        for (name, value) in &answer.headers {
            assert_eq!(secret_in(value), None, "{path}: {name}");
        }
    }
    let listed = stage.server.cli(&["token", "list", "--json"]);
    assert_eq!((listed.code, secret_in(&listed.stdout)), (Some(0), None));
    let log = stage.server.log();
    assert!(!log.contains(random), "the log shows the lease");
    stage.server.check();
}

// D14: a revoked token is worthless within seconds.
#[test]
fn a_revoked_token_is_nobodys() {
    let stage = Stage::set();
    let listed = stage.server.cli(&["token", "list", "--json"]);
    let tokens: Value = serde_json::from_str(&listed.stdout).unwrap();
    for token in tokens
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["role"] == "runner")
    {
        let done = stage
            .server
            .cli(&["token", "revoke", token["token_id"].as_str().unwrap()]);
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    crate::harness::until(
        "the revocation bites",
        || stage.one.heartbeat(&stage.grant).unwrap().status,
        |status| *status == 401,
    );
    assert_eq!(stage.person.http.get("/api/v1/runs").unwrap().status, 200);
    stage.server.check();
}
