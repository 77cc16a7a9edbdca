//! Their codec reads what ours writes, and ours reads what theirs writes: each frame goes there and
//! comes back.

use std::io::Write;
use std::process::{Command, Stdio};

use delta_runner_protocol::{
    CancelRequest, Context, ErrorInfo, ExecutionRequest, Frames, Message, Outcome, Status, frame,
};

use super::rust_peer;

fn request() -> ExecutionRequest {
    let at = "2026-01-04T08:00:00.123456789Z".parse().expect("a moment");
    ExecutionRequest {
        request_id: "req-1".to_owned(),
        job_id: "job-1".to_owned(),
        function_name: "echo".to_owned(),
        params: serde_json::from_str(r#"{"é":[1.5,null]}"#).expect("params"),
        context: Context {
            job_id: "job-1".to_owned(),
            attempt: 2,
            enqueue_time: at,
            queue_name: "mail".to_owned(),
            deadline: Some(at),
            trace_context: Some([("traceparent".to_owned(), "00-a-b-01".to_owned())].into()),
            worker_id: Some("w".to_owned()),
            // Which they do not know.
            lease_epoch: None,
        },
    }
}

fn cancel() -> CancelRequest {
    CancelRequest {
        job_id: "job-1".to_owned(),
        request_id: Some("req-1".to_owned()),
        hard_kill: false,
    }
}

fn outcomes() -> Vec<Outcome> {
    let of = |status, error: Option<ErrorInfo>, after| Outcome {
        request_id: "req-1".to_owned(),
        job_id: "job-1".to_owned(),
        status,
        result: None,
        error,
        retry_after_seconds: after,
    };
    let result = serde_json::from_str(r#"{"ok":true}"#).ok();
    vec![
        Outcome {
            result,
            ..of(Status::Success, None, None)
        },
        of(Status::Retry, Some(ErrorInfo::new("later")), Some(2.5)),
        of(
            Status::Timeout,
            Some(ErrorInfo::of_type("timeout", "late")),
            None,
        ),
        of(
            Status::Error,
            Some(ErrorInfo::of_type("handler_not_found", "nobody")),
            None,
        ),
    ]
}

/// What their codec makes of frames.
fn there_and_back(frames: &[Vec<u8>]) -> Vec<Message> {
    let mut peer = Command::new(rust_peer())
        .arg("frames")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the peer");
    let mut stdin = peer.stdin.take().expect("its stdin");
    stdin.write_all(&frames.concat()).expect("told");
    drop(stdin);
    let output = peer.wait_with_output().expect("its end");
    assert!(output.status.success());
    let mut back = Frames::new();
    back.push(&output.stdout);
    let mut messages = Vec::new();
    while let Some(json) = back.next_frame().expect("frames") {
        messages.push(Message::read(json).expect("a message"));
    }
    assert!(back.is_between_frames());
    messages
}

// RQ-10, RQ-18, RQ-29, RQ-31, RQ-36 … RQ-39
#[test]
fn every_message_survives_the_codec_that_others_wrote() {
    let mut frames = vec![
        frame(&request()).expect("a frame"),
        frame(&cancel()).expect("a frame"),
    ];
    frames.extend(outcomes().iter().map(|it| frame(it).expect("a frame")));
    let mut back = there_and_back(&frames).into_iter();
    let Some(Message::Request(Ok(asked))) = back.next() else {
        panic!("no request");
    };
    let sent = request();
    assert_eq!(
        (&asked.request_id, &asked.job_id),
        (&sent.request_id, &sent.job_id)
    );
    assert_eq!(
        (&asked.function_name, &asked.context),
        (&sent.function_name, &sent.context)
    );
    assert_eq!(asked.params.get(), sent.params.get());
    assert!(matches!(back.next(), Some(Message::Cancel(Some(it))) if it == cancel()));
    for sent in outcomes() {
        let Some(Message::Response(read)) = back.next() else {
            panic!("no response");
        };
        let read = read.outcome.expect("an outcome");
        let text = |it: &Outcome| serde_json::to_value(it).expect("JSON");
        assert_eq!(text(&read), text(&sent));
    }
}
