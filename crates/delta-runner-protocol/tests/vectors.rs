//! The vectors that every language shares, and what is written is read back.

use delta_runner_protocol::{
    CancelRequest, Context, ErrorInfo, ExecutionRequest, FrameError, Frames, Message, Outcome,
    Response, Status, Unreadable, frame,
};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};

const VECTORS: &str = include_str!("../../../protocol/runner/v2/vectors.json");
const ANSWERS: &str = include_str!("../../../protocol/runner/v2/answers.json");

fn vectors(of: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(VECTORS).unwrap();
    all[of].as_array().unwrap().clone()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    pairs.map(byte).collect()
}

// RQ-10, A52
#[test]
fn frames_are_cut_as_the_vectors_say() {
    for vector in vectors("frames") {
        let mut frames = Frames::new();
        frames.push(&bytes(vector["hex"].as_str().unwrap()));
        let mut found = Vec::new();
        let error = loop {
            match frames.next_frame() {
                Ok(Some(frame)) => found.push(String::from_utf8(frame.to_vec()).unwrap()),
                Ok(None) => break Value::Null,
                Err(FrameError::Empty) => break json!("empty"),
                Err(FrameError::TooLarge(_)) => break json!("too_large"),
            }
        };
        let wanted = vector["frames"].as_array().cloned().unwrap_or_default();
        assert_eq!(json!(found), json!(wanted), "{vector}");
        assert_eq!(error, vector["error"], "{vector}");
    }
}

/// An object of what is not null.
fn given(value: Value) -> Value {
    let Value::Object(members) = value else {
        return value;
    };
    let given = members.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(given.collect::<Map<_, _>>())
}

fn request(read: &ExecutionRequest) -> Value {
    let context = &read.context;
    given(json!({
        "request_id": read.request_id,
        "job_id": read.job_id,
        "function_name": read.function_name,
        "params": read.params,
        "attempt": context.attempt,
        "enqueue_time": context.enqueue_time,
        "queue_name": context.queue_name,
        "deadline": context.deadline,
        "trace_context": context.trace_context,
        "worker_id": context.worker_id,
        "lease_epoch": context.lease_epoch,
    }))
}

fn response(outcome: &Outcome) -> Value {
    let after = outcome.retry_after().map(|after| {
        let seconds = after.delay.as_secs_f64();
        let seconds = if seconds.fract() == 0.0 {
            json!(after.delay.as_secs())
        } else {
            json!(seconds)
        };
        json!({ "seconds": seconds, "clamped": after.clamped })
    });
    given(json!({
        "request_id": outcome.request_id,
        "job_id": outcome.job_id,
        "status": outcome.status,
        "result": outcome.result,
        "error": outcome.error,
        "retry_after": after,
        "handler_not_found": outcome.is_handler_not_found().then_some(true),
    }))
}

/// What a message means, with the whole of its `why`.
fn meaning(json: &str) -> Value {
    match Message::read(json.as_bytes()) {
        Ok(Message::Request(Ok(read))) => json!({ "request": request(&read) }),
        Ok(Message::Request(Err(refused))) => json!({ "refused": {
            "request_id": refused.request_id, "job_id": refused.job_id, "why": refused.why } }),
        Ok(Message::Response(Response {
            outcome: Ok(outcome),
            ..
        })) => json!({ "response": response(&outcome) }),
        Ok(Message::Response(Response {
            request_id,
            outcome: Err(why),
            ..
        })) => json!({ "wrong": { "request_id": request_id, "why": why } }),
        Ok(Message::Cancel(cancel)) => json!({ "cancel": cancel }),
        Ok(Message::Unknown(kind)) => json!({ "unknown": kind }),
        Err(Unreadable::NoObject) => json!({ "unreadable": "no_object" }),
        Err(Unreadable::NoType) => json!({ "unreadable": "no_type" }),
        Err(Unreadable::NoPayload) => json!({ "unreadable": "no_payload" }),
    }
}

// RQ-1, RQ-4, RQ-5, RQ-6, RQ-11, RQ-12, RQ-18 … RQ-29, RQ-31, RQ-34 … RQ-39, A47, A48
#[test]
fn messages_mean_what_the_vectors_say() {
    for vector in vectors("messages") {
        let mut means = meaning(vector["json"].as_str().unwrap());
        let wanted = &vector["means"];
        for kind in ["refused", "wrong"] {
            let Some(why) = wanted[kind]["why"].as_str() else {
                continue;
            };
            let said = means[kind]["why"].as_str().unwrap_or_default().to_owned();
            assert!(said.starts_with(why), "{vector}: {said}");
            means[kind]["why"] = json!(why);
        }
        assert_eq!(&means, wanted, "{vector}");
    }
}

// RQ-4, RQ-29 … RQ-38: as the runners write them that are in use.
#[test]
fn answers_in_every_dialect_are_read() {
    let answers: Value = serde_json::from_str(ANSWERS).unwrap();
    for row in answers["rows"].as_array().unwrap() {
        let read = Message::read(row["json"].as_str().unwrap().as_bytes()).unwrap();
        let Message::Response(read) = read else {
            panic!("{row}");
        };
        let comes = &row["comes"];
        let Ok(outcome) = read.outcome.as_ref().map(response) else {
            assert!(comes["broken"].is_string(), "{row}");
            continue;
        };
        if let Some(result) = comes.get("result") {
            assert_eq!(&outcome["result"], result, "{row}");
        }
        for (name, status) in [
            ("result", "success"),
            ("error", "error"),
            ("timeout", "timeout"),
        ] {
            if comes.get(name).is_some() {
                assert_eq!(outcome["status"], status, "{row}");
            }
        }
        let not_found = comes.get("no_handler").is_some();
        assert_eq!(outcome["handler_not_found"] == true, not_found, "{row}");
        if let Some(millis) = comes["retry_ms"].as_f64() {
            let seconds = outcome["retry_after"]["seconds"].as_f64();
            assert_eq!(seconds, Some(millis / 1000.0), "{row}");
        }
    }
}

#[test]
fn a_runner_that_is_busy_says_so_in_its_own_words_alone() {
    let busy = |error: &str| {
        let json = format!(
            r#"{{"type":"response","payload":{{"job_id":"j","request_id":"r","status":"error",
            "error":{error}}}}}"#
        );
        let Message::Response(read) = Message::read(json.as_bytes()).unwrap() else {
            panic!("no response");
        };
        read.outcome.unwrap().is_busy()
    };
    let words = "Runner busy: too many in-flight requests";
    assert!(busy(&format!(r#"{{"message":"{words}"}}"#)));
    assert!(busy(&format!(
        r#"{{"message":"{words}","type":null,"details":null}}"#
    )));
    assert!(!busy(&format!(r#"{{"message":"{words}","type":"mine"}}"#)));
    assert!(!busy(r#"{"message":"busy"}"#));
}

fn again(frame: &[u8]) -> Message {
    let mut frames = Frames::new();
    frames.push(frame);
    let message = Message::read(frames.next_frame().unwrap().unwrap()).unwrap();
    assert!(frames.is_between_frames());
    message
}

// RQ-18, RQ-29, RQ-30, RQ-39
#[test]
fn what_is_written_is_read_back() {
    let at = "2026-01-04T08:00:00.5Z".parse().unwrap();
    let written = ExecutionRequest {
        request_id: "r".into(),
        job_id: "j".into(),
        function_name: "f".into(),
        params: serde_json::from_str(r#"{"a": 1.50, "é":"\u00e9"}"#).unwrap(),
        context: Context {
            job_id: "j".into(),
            attempt: 3,
            enqueue_time: at,
            queue_name: "q".into(),
            deadline: Some(at),
            trace_context: Some([("traceparent".to_owned(), "x".to_owned())].into()),
            worker_id: Some("w".into()),
            lease_epoch: Some(1 << 33),
        },
    };
    let Message::Request(Ok(read)) = again(&frame(&written).unwrap()) else {
        panic!("no request");
    };
    assert_eq!(read.context, written.context);
    assert_eq!(read.params.get(), written.params.get(), "byte for byte");
    let written = Outcome {
        request_id: "r".into(),
        job_id: "j".into(),
        status: Status::Retry,
        result: Some(to_raw_value(&json!([1])).unwrap()),
        error: Some(ErrorInfo::of_type("t", "m")),
        retry_after_seconds: Some(1.5),
    };
    let Message::Response(read) = again(&frame(&written).unwrap()) else {
        panic!("no response");
    };
    assert_eq!(response(&read.outcome.unwrap()), response(&written));
    let written = CancelRequest {
        job_id: "j".into(),
        request_id: None,
        hard_kill: true,
    };
    let frame = frame(&written).unwrap();
    let wanted =
        br#"{"type":"cancel","payload":{"protocol_version":"2","job_id":"j","hard_kill":true}}"#;
    assert_eq!(&frame[4..], wanted);
    assert!(matches!(again(&frame), Message::Cancel(Some(read)) if read == written));
}

// A52
#[test]
fn what_no_frame_can_hold_is_not_written() {
    let outcome = Outcome {
        request_id: "r".into(),
        job_id: "j".into(),
        status: Status::Success,
        result: Some(to_raw_value(&"x".repeat(16 * 1024 * 1024)).unwrap()),
        error: None,
        retry_after_seconds: None,
    };
    assert!(frame(&outcome).is_err());
}

#[test]
fn nonsense_is_refused_and_never_followed() {
    let deep = format!(
        r#"{{"type":"request","payload":{}{}}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let read = Message::read(deep.as_bytes()).unwrap();
    assert!(matches!(read, Message::Request(Err(_))), "{read:?}");
    assert_eq!(
        Message::read(b"\xff\xfe").unwrap_err(),
        Unreadable::NoObject
    );
    let twice = r#"{"type":"cancel","type":"hello","payload":{}}"#;
    let read = Message::read(twice.as_bytes()).unwrap();
    assert!(matches!(read, Message::Unknown(_)), "the last counts");
}
