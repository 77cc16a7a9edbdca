//! Messages of runners that are wrong, foreign, repeated or no messages at all.

use serde_json::{Value, json};

use super::{Stage, refused, with};
use crate::harness::jobs;

/// A message, the field that is wrong in it, and its value.
const WRONG: [(&str, &str, &str); 29] = [
    ("heartbeat", "lease_id", "absent"),
    ("heartbeat", "lease_id", "7"),
    ("heartbeat", "runner_id", "null"),
    ("heartbeat", "runner_id", r#""""#),
    ("heartbeat", "runner_id", r#""two words""#),
    ("heartbeat", "seq", "-1"),
    ("heartbeat", "seq", "1.5"),
    ("heartbeat", "progress", "[]"),
    ("heartbeat", "progress", r#"{"percent":"10"}"#),
    ("heartbeat", "log_cursor", r#"{"bytes_sent":-1}"#),
    ("heartbeat", "phase", r#""dancing""#),
    ("heartbeat", "type", r#""Complete""#),
    ("heartbeat", "type", "absent"),
    ("complete", "lease_id", "absent"),
    ("complete", "status", "absent"),
    ("complete", "status", r#""OK""#),
    ("complete", "status", r#""CANCELED""#),
    ("complete", "exit_code", r#""0""#),
    ("complete", "exit_code", "null"),
    ("complete", "exit_code", "1e300"),
    ("complete", "artifacts", "{}"),
    ("complete", "type", r#""Heartbeat""#),
    ("ack-lease", "job_id", "absent"),
    ("ack-lease", "job_id", r#""../../etc/passwd""#),
    ("cancel-ack", "runner_id", "absent"),
    ("lease", "runner_id", "absent"),
    ("lease", "capabilities", r#""linux""#),
    ("lease", "wait_seconds", "-1"),
    ("lease", "wait_seconds", r#""soon""#),
];

/// The message as it should be.
fn right(stage: &Stage, action: &str) -> Value {
    let (one, grant) = (&stage.one, &stage.grant);
    match action {
        "heartbeat" => one.beat(grant),
        "complete" => one.done(grant, "SUCCEEDED", 0),
        "ack-lease" => json!({"type": "AckLease", "job_id": grant.job, "lease_id": grant.lease,
            "runner_id": one.id}),
        "cancel-ack" => json!({"type": "CancelAck", "lease_id": grant.lease,
            "runner_id": one.id, "final_status": "CANCELED"}),
        _ => stage.two.ask(0.0),
    }
}

// RP-1, RP-4, A36: wrong types and missing fields of every message.
#[test]
fn malformed_messages_are_refused_by_field() {
    let stage = Stage::set();
    for (action, field, value) in WRONG {
        let message = with(right(&stage, action), field, value);
        let what = format!("{action} with {field} = {value}");
        let answer = stage.nothing_changes(&what, || stage.one.say(action, &message).unwrap());
        refused(&answer, 422, None);
        assert!(
            answer.word("field").starts_with(field),
            "{what}: {}",
            answer.text
        );
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
