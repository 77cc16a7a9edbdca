//! Answers as the runners write them that are in use: `rrq` in Python, `rrq-runner` in Rust, and
//! the one in TypeScript, row by row; and what they do that no specification has.

use std::time::Duration;

use delta_agent::functions::{CallEnd, RESULT_TOO_LARGE};
use delta_core::Cause;
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::bench::{Pools, join_all, order, result};
use crate::bench::PATIENCE;

const MIB: usize = 1024 * 1024;

const TABLE: &str = include_str!("../../../../../protocol/runner/v2/answers.json");

/// Answers as they are written, and what each comes to.
fn rows() -> Vec<Value> {
    let table: Value = serde_json::from_str(TABLE).expect("JSON");
    let rows = table["rows"].as_array().expect("rows").clone();
    assert!(rows.len() > 20);
    rows
}

fn assert_comes(row: &Value, more: &str, end: &CallEnd) {
    let failed = (
        Outcome::Failed { exit_code: Some(1) },
        Some(Cause::UserExit),
    );
    let ended = (end.ended.outcome, end.ended.cause);
    let answer = end.answer.clone().unwrap_or_default();
    let (message, kind) = match answer.error.clone() {
        Some(error) => (json!(error.message), json!(error.kind)),
        None => (Value::Null, Value::Null),
    };
    let (comes, wanted) = row["comes"].as_object().unwrap().iter().next().unwrap();
    let told = format!("{} ({more}): {end:?}", row["row"]);
    match comes.as_str() {
        "result" => assert_eq!(&result(end), wanted, "{told}"),
        "error" => {
            assert_eq!(ended, failed, "{told}");
            assert_eq!(
                (&message, &kind),
                (&wanted["message"], &wanted["type"]),
                "{told}"
            );
        }
        "no_handler" => assert_eq!(ended.1, Some(Cause::HandlerNotFound), "{told}"),
        "retry_ms" => {
            assert_eq!(ended, failed, "{told}");
            assert_eq!(json!(answer.retry_after_ms), *wanted, "{told}");
        }
        "timeout" => {
            let wanted_end = (Outcome::TimedOut, Some(Cause::JobTimeout));
            assert_eq!((ended, &message), (wanted_end, wanted), "{told}");
        }
        "broken" => {
            assert_eq!(ended.1, Some(Cause::AgentError), "{told}");
            assert!(
                end.ended.summary.contains(wanted.as_str().unwrap()),
                "{told}"
            );
        }
        other => panic!("what is {other}?"),
    }
}

// RQ-4, RQ-29 … RQ-38, A48
#[tokio::test]
async fn every_dialect_is_understood_with_and_without_pipelining() {
    for more in ["", "pipeline: true"] {
        let pools = Pools::start(more);
        for row in rows() {
            let frames = json!({ "frames": [row["json"]] });
            assert_comes(&row, more, &pools.call("h#text", frames).await);
        }
        assert_eq!(pools.pool("h").processes[0].starts, 1, "the same process");
        let stats = pools.result("h#stats", json!({})).await;
        assert_eq!(stats["left"], 0, "nobody half-closes while it waits");
    }
}

// A runner answers before it has counted that: whoever sends the next at that moment is told that
// it is busy. That costs no attempt, and is told to nobody.
#[tokio::test]
async fn a_runner_that_is_busy_is_asked_again() {
    for more in ["", "pipeline: true"] {
        let pools = Pools::start(more);
        let end = pools.call("h#busy", json!({"times": 5})).await;
        assert_eq!(result(&end), 6, "{more}");
        assert!(!format!("{end:?}").contains("busy"), "{end:?}");
        let stop = watch::Sender::new(None);
        let call = pools.call_until("h#busy", json!({"times": 1_000_000}), stop.subscribe());
        let ordering = async {
            let under_way =
                |pool: &delta_agent::functions::PoolHealth| pool.processes[0].in_flight == 1;
            pools.until("one is under way", under_way).await;
            stop.send_replace(order(StopReason::Canceled, PATIENCE));
        };
        let (end, ()) = tokio::join!(call, ordering);
        assert_eq!(end.ended.outcome, Outcome::Canceled, "{end:?}");
        assert!(end.ended.confirmed, "{end:?}");
    }
    let pools = Pools::start("response_timeout: 500ms");
    let end = pools.call("h#busy", json!({"times": 1_000_000})).await;
    assert_eq!(
        end.ended.outcome,
        Outcome::TimedOut,
        "it has its time: {end:?}"
    );
    // These words of a handler that says more than a runner does are the handler's.
    let pools = Pools::start("");
    let said = json!({"status": "error", "error": {
        "message": "Runner busy: too many in-flight requests", "type": "mine"}});
    let end = pools.call("h#say", said).await;
    assert_eq!(end.ended.cause, Some(Cause::UserExit), "{end:?}");
}

// A52: 16 MiB are a frame, and a byte more is none; either way the next call is answered.
#[tokio::test]
async fn an_answer_of_exactly_16_mib_is_read_and_a_byte_more_is_not() {
    for more in ["", "pipeline: true"] {
        let pools = Pools::start(more);
        let end = pools.call("h#exactly", json!({"bytes": 16 * MIB})).await;
        let error = end.answer.clone().and_then(|it| it.error);
        let kind = error.and_then(|it| it.kind);
        assert_eq!(
            kind.as_deref(),
            Some(RESULT_TOO_LARGE),
            "it was read: {end:?}"
        );
        let end = pools
            .call("h#exactly", json!({"bytes": 16 * MIB + 1}))
            .await;
        assert_eq!(end.ended.cause, Some(Cause::AgentError), "{end:?}");
        assert!(end.ended.summary.contains("larger than"), "{end:?}");
        let next = pools.result("h#say", json!({"status": "success", "result": 7}));
        assert_eq!(next.await, 7);
    }
}

// The same request_id twice has two answers of py and rs, and one of ts: to us it is one call.
#[tokio::test]
async fn a_second_answer_is_nobodys_in_every_dialect() {
    let frames = [&rows()[0]["json"], &rows()[1]["json"]];
    let frames = json!({ "frames": frames });
    for more in ["", "pipeline: true"] {
        let pools = Pools::start(more);
        let calls = (0..20).map(|_| pools.result("h#text", frames.clone()));
        assert!(
            join_all(calls)
                .await
                .iter()
                .all(|it| it == &json!({"é": "😀"}))
        );
        tokio::time::timeout(Duration::from_secs(30), pools.result("h#echo", json!({})))
            .await
            .expect("an answer of its own");
    }
}
