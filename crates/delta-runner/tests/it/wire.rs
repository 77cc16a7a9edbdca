//! What is said on the wire in every case.

use std::collections::BTreeSet;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{Marks, Process, cancel, request, until};

// RQ-22, RQ-29, RQ-30, RQ-31, RQ-33, RQ-36, RQ-37, A72
#[test]
fn every_end_of_a_function_has_its_answer() {
    let runner = Process::start(&[]);
    let mut worker = runner.connect();
    let mut asked = request("1", "echo", json!({"k": "v"}));
    asked["payload"]["context"]["lease_epoch"] = json!(4_294_967_297_u64);
    asked["payload"]["context"]["trace_context"] = json!({"traceparent": "00-a-b-01"});
    worker.send(&asked);
    let heard = worker.hear().unwrap();
    assert_eq!(heard["status"], "success");
    assert_eq!(
        heard["result"],
        json!({ "params": {"k": "v"}, "attempt": 1,
        "epoch": 4_294_967_297_u64, "queue": "rrq:queue:default",
        "trace": {"traceparent": "00-a-b-01"} })
    );
    let cases = [
        (
            "fail",
            json!({}),
            "error",
            json!({"message": "boom", "type": "t", "code": "c",
            "details": {"tries": [1, 2]}}),
        ),
        (
            "panics",
            json!({}),
            "error",
            json!({"message": "the function panicked"}),
        ),
        (
            "nosuch",
            json!({}),
            "error",
            json!({"message":
            "No handler registered for function 'nosuch'", "type": "handler_not_found"}),
        ),
        (
            "retry",
            json!({"seconds": 2.5}),
            "retry",
            json!({"message": "later"}),
        ),
    ];
    for (function, params, status, error) in cases {
        let heard = worker.ask("2", function, params);
        assert_eq!(
            (&heard["status"], &heard["error"]),
            (&json!(status), &error)
        );
        let after = (function == "retry").then_some(2.5);
        assert_eq!(heard["retry_after_seconds"], json!(after));
    }
    let broken = worker.ask("3", "broken", json!({}));
    let words = broken["error"]["message"].as_str().unwrap();
    assert!(words.contains("No such file"), "{words}");
    let unfit = worker.ask("4", "wait", json!({"seconds": "soon"}));
    assert_eq!(unfit["error"]["type"], "bad_params");
    let large = worker.ask("5", "large", json!({"seconds": 17_000_000}));
    assert!(
        large["error"]["message"]
            .as_str()
            .unwrap()
            .contains("larger than a frame")
    );
    let fits = worker.ask("6", "large", json!({"seconds": 1_000_000}));
    assert_eq!(fits["result"].as_str().unwrap().len(), 1_000_000);
}

// RQ-26, RQ-32
#[test]
fn a_deadline_ends_a_function_and_one_that_is_past_begins_none() {
    let runner = Process::start(&[]);
    let mut worker = runner.connect();
    let wait = request("1", "wait", json!({"seconds": 300}));
    let mut past = wait.clone();
    past["payload"]["context"]["deadline"] = json!("2026-01-04T08:00:00Z");
    worker.send(&past);
    let heard = worker.hear().unwrap();
    assert_eq!(
        (&heard["status"], &heard["error"]["type"]),
        (&json!("timeout"), &json!("timeout"))
    );
    let began = Instant::now();
    worker.send(&until(wait, Duration::from_millis(300)));
    assert_eq!(worker.hear().unwrap()["status"], "timeout");
    assert!(
        began.elapsed() >= Duration::from_millis(290),
        "not before its time"
    );
}

// RQ-16, RQ-39 … RQ-41, RQ-43, RQ-44
#[test]
fn a_cancel_on_another_connection_ends_the_call_it_names() {
    let runner = Process::start(&[]);
    let mut worker = runner.connect();
    for id in ["1", "2", "3", "4"] {
        let function = ["wait", "spin", "heed", "wait"][id.parse::<usize>().unwrap() - 1];
        worker.send(&request(id, function, json!({"seconds": 300})));
    }
    // Requests are read in order: once this is answered, those before it are under way.
    assert_eq!(worker.ask("0", "echo", json!({}))["status"], "success");
    let mut cancels = |message: &Value| {
        let mut other = runner.connect();
        other.send(message);
        other.0.shutdown(Shutdown::Write).unwrap();
        assert_eq!(other.hear(), None, "a cancel has no answer");
        worker.hear().unwrap()
    };
    for (message, id) in [
        (cancel("job-1", Some("1")), "1"),
        (cancel("job-2", None), "2"),
    ] {
        // Nobody is meant by these.
        let mut nobody = runner.connect();
        for mut wrong in [cancel("job-9", None), cancel("job-9", Some("9"))] {
            nobody.send(&wrong);
            wrong["payload"]["protocol_version"] = json!("1");
            wrong["payload"]["job_id"] = json!("job-4");
            nobody.send(&wrong);
        }
        let heard = cancels(&message);
        assert_eq!(heard["request_id"], id);
        assert_eq!(
            heard["error"],
            json!({"message": "Job cancelled", "type": "cancelled"})
        );
    }
    let heeded = cancels(&cancel("job-3", Some("3")));
    assert_eq!(
        heeded["result"], "put in order",
        "it had done its work all the same"
    );
    let last = cancels(&cancel("job-4", None));
    assert_eq!(
        (&last["request_id"], &last["error"]["type"]),
        (&json!("4"), &json!("cancelled"))
    );
}

// RQ-13, RQ-14, RQ-15
#[test]
fn more_at_once_than_may_run_wait_and_none_is_told_to_go_away() {
    let runner = Process::start(&[("CONCURRENCY", "8")]);
    let mut worker = runner.connect();
    for id in 0..70 {
        let params = json!({"seconds": 0.01});
        worker.send(&request(&id.to_string(), "wait", params));
    }
    let mut answered = BTreeSet::new();
    for _ in 0..70 {
        let heard = worker.hear().unwrap();
        assert_eq!(heard["status"], "success", "{heard}");
        answered.insert(heard["request_id"].as_str().unwrap().to_owned());
    }
    assert_eq!(answered.len(), 70, "each once");
    let mut many: Vec<_> = (0..100).map(|_| runner.connect()).collect();
    for (id, one) in many.iter_mut().enumerate() {
        one.send(&request(&id.to_string(), "echo", json!({})));
    }
    for (id, one) in many.iter_mut().enumerate() {
        assert_eq!(one.hear().unwrap()["request_id"], id.to_string());
    }
    // Answers overtake each other.
    worker.send(&request("slow", "wait", json!({"seconds": 300})));
    assert_eq!(worker.ask("quick", "echo", json!({}))["status"], "success");
}

// RQ-1, RQ-4, RQ-12, RQ-19, RQ-20, RQ-23, A52
#[test]
fn nonsense_hurts_its_own_request_or_its_own_connection() {
    let runner = Process::start(&[]);
    let mut good = runner.connect();
    good.send(&request("stays", "heed", json!({})));
    for (change, value) in [
        ("protocol_version", json!("1")),
        ("params", json!([])),
        ("context", json!(null)),
    ] {
        let mut wrong = request("1", "echo", json!({}));
        wrong["payload"][change] = value;
        good.send(&wrong);
        let heard = good.hear().unwrap();
        assert_eq!(
            (&heard["request_id"], &heard["status"]),
            (&json!("1"), &json!("error"))
        );
    }
    for ignored in [
        json!({"type": "hello", "payload": {}}),
        json!({"type": "response", "payload": {}}),
    ] {
        good.send(&ignored);
        assert_eq!(good.ask("2", "echo", json!({}))["status"], "success");
    }
    let again = good.ask("stays", "echo", json!({}));
    assert_eq!(again["error"]["type"], "duplicate_request");
    for bytes in [
        &b"\0\0\0\0"[..],
        b"\x01\0\0\x01",
        b"\0\0\0\x03{]}",
        b"\0\0\0\x02[]",
    ] {
        let mut bad = runner.connect();
        bad.bytes(bytes);
        assert_eq!(bad.hear(), None, "{bytes:?}");
    }
    good.send(&cancel("job-stays", None));
    assert_eq!(good.hear().unwrap()["result"], "put in order");
}

#[test]
fn whoever_is_gone_is_not_answered_and_its_calls_end() {
    let runner = Process::start(&[("CONCURRENCY", "1")]);
    let mut gone = runner.connect();
    gone.send(&request("1", "wait", json!({"seconds": 300})));
    gone.0.shutdown(Shutdown::Write).unwrap();
    assert_eq!(gone.hear(), None);
    // The one place is free again.
    assert_eq!(
        runner.connect().ask("1", "echo", json!({}))["status"],
        "success"
    );
}

#[test]
fn a_thread_that_heeds_nothing_is_not_answered_while_it_goes_on_and_keeps_its_place() {
    let runner = Process::start(&[("CONCURRENCY", "1")]);
    for by_deadline in [false, true] {
        let marks = Marks::new();
        let mut worker = runner.connect();
        let deaf = request("deaf", "deaf", marks.params());
        if by_deadline {
            worker.send(&until(deaf, Duration::from_millis(800)))
        } else {
            worker.send(&deaf)
        }
        marks.begun();
        if !by_deadline {
            worker.send(&cancel("job-deaf", None));
        }
        assert!(
            worker.is_silent(Duration::from_millis(2000)),
            "an answer, and it goes on"
        );
        // Nobody else has its place.
        let late = request("late", "echo", json!({}));
        worker.send(&until(late, Duration::from_millis(200)));
        let late = worker.hear().unwrap();
        assert_eq!(
            (&late["request_id"], &late["status"]),
            (&json!("late"), &json!("timeout"))
        );
        marks.let_go();
        let answer = worker.hear().unwrap();
        let kind = if by_deadline { "timeout" } else { "cancelled" };
        assert_eq!(
            (&answer["request_id"], &answer["error"]["type"]),
            (&json!("deaf"), &json!(kind))
        );
        assert_eq!(worker.ask("1", "echo", json!({}))["status"], "success");
    }
}

#[test]
fn the_id_of_whoever_is_gone_is_free_though_its_thread_goes_on() {
    let (runner, marks) = (Process::start(&[]), Marks::new());
    let mut gone = runner.connect();
    gone.send(&request("1", "deaf", marks.params()));
    marks.begun();
    gone.0.shutdown(Shutdown::Both).unwrap();
    let mut worker = runner.connect();
    let began = Instant::now();
    while worker.ask("1", "echo", json!({}))["status"] != "success" {
        assert!(began.elapsed() < crate::process::PATIENCE, "never free");
    }
    marks.let_go();
}

#[test]
fn what_is_held_of_a_connection_is_bounded_in_bytes() {
    let runner = Process::start(&[]);
    let (mut worker, mut other) = (runner.connect(), runner.connect());
    // Four of these are below 64 MiB, five are not.
    let fill = "x".repeat(15 * 1024 * 1024);
    for id in ["1", "2", "3", "4", "5"] {
        worker.send(&request(id, "wait", json!({"seconds": 600, "fill": fill})));
    }
    // Refused as soon as it is read, which it is not before one of the others is over.
    let mut refused = request("behind", "echo", json!({}));
    refused["payload"]["protocol_version"] = json!("1");
    worker.send(&refused);
    assert!(worker.is_silent(Duration::from_secs(3)), "it is read");
    other.send(&cancel("job-1", None));
    let heard = [worker.hear().unwrap(), worker.hear().unwrap()];
    let ids: BTreeSet<_> = heard
        .iter()
        .filter_map(|it| it["request_id"].as_str())
        .collect();
    assert_eq!(ids, BTreeSet::from(["1", "behind"]));
}
