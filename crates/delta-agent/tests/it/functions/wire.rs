//! What goes over the wire, and what becomes of answers that should not.

use delta_agent::functions::{CallEnd, RESULT_TOO_LARGE};
use delta_core::Cause;
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::bench::{Neighbour, Pools, join_all, of_job, one_pool, order, result};
use crate::bench::{PATIENCE, until};

const FAILED: Outcome = Outcome::Failed { exit_code: Some(1) };
const BROKEN: Outcome = Outcome::Failed { exit_code: None };

fn assert_broken(end: &CallEnd, words: &str) {
    assert_eq!(end.ended.outcome, BROKEN, "{end:?}");
    assert_eq!(end.ended.cause, Some(Cause::AgentError), "{end:?}");
    assert!(end.ended.summary.contains(words), "{end:?}");
    assert!(end.answer.is_none());
}

// RQ-18 … RQ-28, RQ-45, A47, A72
#[tokio::test]
async fn a_request_says_everything_about_its_call() {
    let pools = Pools::start("");
    let request = pools.result("h#echo", json!({"k": [1, null]})).await;
    assert_eq!(request["protocol_version"], "2");
    assert_eq!(request["function_name"], "echo");
    assert_eq!(request["params"], json!({"k": [1, null]}));
    assert_eq!(request["job_id"], "job_7_1");
    let context = &request["context"];
    assert_eq!(context["job_id"], "job_7_1");
    assert_eq!(context["attempt"], 2);
    assert_eq!(context["lease_epoch"], (3_u64 << 32) + 5);
    assert_eq!(context["queue_name"], "mail");
    assert_eq!(context["worker_id"], "box/1");
    assert_eq!(context["enqueue_time"], "2026-01-04T08:00:00.123456789Z");
    let trace = context["trace_context"]["traceparent"].as_str().unwrap();
    assert!(trace.starts_with("00-4bf92f"), "{trace}");
    // RQ-5, RQ-26: in UTC, and as far away as the job's time.
    let deadline: jiff::Timestamp = context["deadline"].as_str().unwrap().parse().unwrap();
    let left = deadline.duration_since(jiff::Timestamp::now());
    assert!((1..=60).contains(&left.as_secs()), "{left:?}");
    assert!(context["deadline"].as_str().unwrap().ends_with('Z'));
    // RQ-20
    let other = pools.result("h#echo", json!({})).await;
    assert_ne!(other["request_id"], request["request_id"]);
    let split = pools
        .result("h#say", json!({"status": "success", "result": 1}))
        .await;
    assert_eq!(split, 1);
}

// RQ-26: what a call waited for room is gone from its time.
#[tokio::test]
async fn the_deadline_counts_the_wait_for_room() {
    let pools = Pools::start("in_flight: 1");
    pools.ready().await;
    let began = jiff::Timestamp::now();
    let first = pools.result("h#wait", json!({"seconds": 1}));
    let (_, second) = tokio::join!(first, pools.result("h#echo", json!({})));
    let deadline = second["context"]["deadline"].as_str().unwrap();
    let left = deadline.parse::<jiff::Timestamp>().unwrap();
    let left = left.duration_since(began);
    assert!(left.as_millis() < 60_500, "{left:?}");
}

// RQ-30: byte for byte, and not larger than what is stored.
#[tokio::test]
async fn a_result_comes_back_as_it_was_written_within_its_bound() {
    let pools = Pools::start("");
    for text in [
        r#"{ "b" : 1.50, "a":"\u00e9\ud83d\ude00", "n":12345678901234567890123 }"#,
        "[]",
        "\"é\"",
        "-0.0",
    ] {
        let end = pools.call("h#raw", json!({ "text": text })).await;
        assert_eq!(end.ended.outcome, Outcome::Succeeded, "{end:?}");
        assert_eq!(end.answer.unwrap().result.unwrap().as_str(), text);
    }
    let nothing = pools.call("h#say", json!({"status": "success"})).await;
    assert_eq!(result(&nothing), Value::Null);
    let large = format!("\"{}\"", "x".repeat(300 << 10));
    let end = pools.call("h#raw", json!({ "text": large })).await;
    assert_eq!(
        (end.ended.outcome, end.ended.cause),
        (FAILED, Some(Cause::UserExit))
    );
    let error = end.answer.unwrap().error.unwrap();
    assert_eq!(error.kind.as_deref(), Some(RESULT_TOO_LARGE));
}

// RQ-31 … RQ-38, A48, A57: the runners' table, one line each.
#[tokio::test]
async fn every_status_has_its_outcome_and_cause() {
    let pools = Pools::start("");
    let error = json!({"message": "boom", "type": "t", "code": "c", "details": {"a": [1]}});
    let end = pools
        .call("h#say", json!({"status": "error", "error": error}))
        .await;
    assert_eq!(
        (end.ended.outcome, end.ended.cause),
        (FAILED, Some(Cause::UserExit))
    );
    assert_eq!(end.ended.summary, "boom");
    let told = end.answer.unwrap().error.unwrap();
    assert_eq!(
        (told.kind.as_deref(), told.code.as_deref()),
        (Some("t"), Some("c"))
    );
    assert_eq!(told.details.unwrap().as_str(), r#"{"a": [1]}"#);
    let bare = pools.call("h#say", json!({"status": "error"})).await;
    assert_eq!(bare.ended.summary, "the function failed");

    let end = pools.call("h#nosuch", json!({})).await;
    assert_eq!(end.ended.cause, Some(Cause::HandlerNotFound));
    assert!(end.ended.summary.contains("nosuch"), "{end:?}");

    let timeout = json!({"status": "timeout", "error": {"message": "Job execution timed out."}});
    let end = pools.call("h#say", timeout).await;
    assert_eq!(
        (end.ended.outcome, end.ended.cause),
        (Outcome::TimedOut, Some(Cause::JobTimeout))
    );

    for (said, wanted, shown) in [
        (json!(2.5), 2_500, false),
        (json!(-3), 0, true),
        (json!(1e12), 86_400_000, true),
    ] {
        let retry = json!({
            "status": "retry", "error": {"message": "later"}, "retry_after_seconds": said,
        });
        let end = pools.call("h#say", retry).await;
        assert_eq!(
            (end.ended.outcome, end.ended.cause),
            (FAILED, Some(Cause::UserExit))
        );
        assert_eq!(
            end.ended.summary.contains("asked to wait"),
            shown,
            "{end:?}"
        );
        assert_eq!(end.answer.unwrap().retry_after_ms, Some(wanted), "{said}");
    }
    let retry = json!({"status": "retry", "error": {"message": "later"}});
    let end = pools.call("h#say", retry).await;
    assert_eq!(end.answer.unwrap().retry_after_ms, None);
    // RQ-38: only with a retry.
    let odd = json!({"status": "error", "error": {"message": "e"}, "retry_after_seconds": 5});
    let end = pools.call("h#say", odd).await;
    assert_eq!(end.answer.unwrap().retry_after_ms, None);
}

// RQ-36: what a handler says of its failure is bounded.
#[tokio::test]
async fn a_long_error_is_cut() {
    let pools = Pools::start("");
    let error = json!({
        "message": "é".repeat(10_000), "type": "t".repeat(1000), "details": "d".repeat(100_000),
    });
    let end = pools
        .call("h#say", json!({"status": "error", "error": error}))
        .await;
    let error = end.answer.unwrap().error.unwrap();
    assert_eq!(error.message.len(), 4096);
    assert_eq!(error.kind.unwrap().len(), 200);
    assert_eq!(error.details, None);
}

async fn wrong_answers_hurt_their_own_request(more: &str) {
    let pools = Pools::start(more);
    // A neighbour in the same process, all the while.
    let neighbour = pools.call("h#wait", json!({"seconds": 3}));
    let others = async {
        pools.ready().await;
        for (function, params, words) in [
            ("garbage", json!({}), "cannot be read"),
            (
                "say",
                json!({"status": "success", "request_id": "other"}),
                "another request",
            ),
            (
                "say",
                json!({"status": "success", "request_id": "absent"}),
                "no request_id",
            ),
            (
                "say",
                json!({"status": "success", "job_id": "other"}),
                "another job",
            ),
            (
                "say",
                json!({"status": "cancelled"}),
                "none of the protocol's",
            ),
            ("say", json!({"status": "absent"}), "status is missing"),
            ("empty", json!({}), "no bytes"),
            ("oversize", json!({}), "larger than"),
            ("close", json!({}), "closed the connection"),
            ("half", json!({}), "closed the connection"),
        ] {
            let end = pools.call(&format!("h#{function}"), params).await;
            assert_broken(&end, words);
        }
        let twice = pools.result("h#twice", json!({})).await;
        assert_eq!(twice, "first");
        for number in 0..5 {
            let next = pools
                .result("h#say", json!({"status": "success", "result": number}))
                .await;
            assert_eq!(next, number, "the second answer is nobody's");
        }
        let after = pools.result("h#unknown_type", json!({})).await;
        assert_eq!(pools.pool("h").unknown, 1, "counted");
        assert_eq!(after, "after it", "RQ-12");
        assert_eq!(pools.result("h#noise", json!({})).await, "heard", "RQ-17");
    };
    let (neighbour, ()) = tokio::join!(neighbour, others);
    assert_eq!(result(&neighbour), "waited");
    assert_eq!(
        pools.pool("h").processes[0].starts,
        1,
        "the same process all the while"
    );
}

// RQ-4, RQ-14, RQ-34, RQ-35, A52
#[tokio::test]
async fn a_wrong_answer_hurts_only_its_own_request() {
    wrong_answers_hurt_their_own_request("in_flight: 8").await;
}

// RQ-14, RQ-34: on a connection that they share, an answer with a foreign request or none fails the
// one that its job tells it is for.
#[tokio::test]
async fn with_pipelining_a_wrong_answer_fails_the_request_of_its_job_and_no_other() {
    let pools = Pools::start("pipeline: true");
    let neighbour = Neighbour::new();
    let others = async {
        pools
            .until("one is under way", |pool| pool.processes[0].in_flight == 1)
            .await;
        for (said, words) in [
            (json!({"request_id": "other"}), "another request"),
            (json!({"request_id": "absent"}), "no request_id"),
            (json!({"job_id": "other"}), "another job"),
            (json!({"status": "odd"}), "none of the protocol's"),
        ] {
            let mut params = json!({"status": "success"});
            let more = said.as_object().expect("an object").clone();
            params.as_object_mut().expect("an object").extend(more);
            let end = pools.call_job("job_2_1", "h#say", params).await;
            assert_broken(&end, words);
        }
        // A second answer is nobody's, also where its job is at its next attempt.
        for _ in 0..5 {
            let first = pools.call_job("job_3_1", "h#twice", json!({})).await;
            assert_eq!(result(&first), "first");
            let next = pools.call_job("job_3_1", "h#wait", json!({"seconds": 0.05}));
            assert_eq!(result(&next.await), "waited");
        }
        neighbour.go();
    };
    let (spared, ()) = tokio::join!(neighbour.call(&pools), others);
    assert_eq!(result(&spared), "there");
    assert_eq!(pools.pool("h").processes[0].starts, 1);
}

// RQ-14, RQ-34: where nobody can tell whose answer it is, whoever waits for it runs into its time.
// Its process is ended for that, once its neighbours are over.
#[tokio::test]
async fn with_pipelining_an_answer_to_nobody_hurts_its_own_request_alone() {
    let pools = Pools::start("pipeline: true\n    grace: 1s");
    for wrong in ["h#steal", "h#garbage", "h#never"] {
        let before = pools.result("h#process", json!({})).await;
        let (neighbour, stop) = (Neighbour::new(), watch::Sender::new(None));
        let call = of_job("job_2_1", wrong, json!({}));
        let hurt = async {
            pools.until_running(1).await;
            let meanwhile = async {
                pools
                    .until("both are under way", |pool| {
                        pool.processes[0].in_flight == 2
                    })
                    .await;
                stop.send_replace(order(StopReason::TimedOut, PATIENCE));
                let other = pools.replaced(&before).await;
                neighbour.go();
                other
            };
            tokio::join!(pools.calls(&call, stop.subscribe()), meanwhile)
        };
        let (spared, (end, other)) = tokio::join!(neighbour.call(&pools), hurt);
        assert_eq!(result(&spared), "there", "{wrong}");
        assert_eq!(end.ended.outcome, Outcome::TimedOut, "{end:?}");
        assert!(end.ended.confirmed, "{end:?}");
        assert_eq!(
            pools.result("h#process", json!({})).await["pid"],
            other["pid"]
        );
    }
}

// RQ-34: an answer to a call that is over, and that does not name it, is nobody's.
#[tokio::test]
async fn with_pipelining_a_late_answer_without_its_request_hurts_nobody() {
    let pools = Pools::start("pipeline: true\n    grace: 1s");
    let before = pools.result("h#process", json!({})).await;
    let place = tempfile::tempdir().expect("a folder");
    let (go, mark) = (place.path().join("go"), place.path().join("answered"));
    let (neighbour, stop) = (Neighbour::new(), watch::Sender::new(None));
    let late = of_job("job_2_1", "h#nameless", json!({"go": go, "mark": mark}));
    let others = async {
        pools.until_running(1).await;
        let meanwhile = async {
            pools.until_running(2).await;
            stop.send_replace(order(StopReason::Canceled, PATIENCE));
            pools.replaced(&before).await;
            std::fs::write(&go, "").expect("a file");
            until("it has answered", || mark.exists()).await;
            neighbour.go();
        };
        tokio::join!(pools.calls(&late, stop.subscribe()), meanwhile).0
    };
    let (spared, end) = tokio::join!(neighbour.call(&pools), others);
    assert_eq!(result(&spared), "there");
    assert_eq!(end.ended.outcome, Outcome::Canceled, "{end:?}");
}

// A52: where the next frame begins is not known any more; the neighbours are not the user's
// failures, and the next call finds a connection.
#[tokio::test]
async fn with_pipelining_a_broken_frame_ends_the_connection_and_nothing_else() {
    let pools = Pools::start("pipeline: true");
    pools.ready().await;
    for wrong in ["h#oversize", "h#empty", "h#close"] {
        let neighbour = pools.call("h#wait", json!({"seconds": 30}));
        let (neighbour, end) = tokio::join!(neighbour, pools.call(wrong, json!({})));
        assert_eq!(end.ended.cause, Some(Cause::AgentError), "{end:?}");
        assert_eq!(
            neighbour.ended.cause,
            Some(Cause::AgentError),
            "{neighbour:?}"
        );
        assert_eq!(
            pools
                .result("h#say", json!({"status": "success", "result": 7}))
                .await,
            7
        );
    }
    assert_eq!(pools.pool("h").processes[0].starts, 1);
}

// RQ-14: matched by request_id, in any order.
#[tokio::test]
async fn with_pipelining_answers_come_in_any_order_on_one_connection() {
    let pools = Pools::start("pipeline: true\n    in_flight: 64");
    let count = 64;
    let calls = (0..count).map(|number| {
        let params = json!({"count": count, "number": number});
        pools.result("h#reversed", params)
    });
    for (number, answer) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(answer, number);
    }
    let stats = pools.result("h#stats", json!({})).await;
    assert_eq!(stats["connections"], 1);
}

// No runner is ever given more than it takes, and nobody hears that it is busy.
#[tokio::test]
async fn seventy_at_once_wait_for_one_another() {
    for more in ["pipeline: true\n    in_flight: 64", "in_flight: 64"] {
        let pools = Pools::start(more);
        let calls = (0..70).map(|_| pools.result("h#wait", json!({"seconds": 0.5})));
        assert!(join_all(calls).await.iter().all(|it| it == "waited"));
        let stats = pools.result("h#stats", json!({})).await;
        let most = stats["most"].as_u64().unwrap();
        assert!((2..=64).contains(&most), "{more}: {most}");
        assert_eq!(pools.pool("h").waiting, 0);
    }
}

// RQ-13, RQ-15: one request at a time on a connection, and several connections.
#[tokio::test]
async fn without_pipelining_a_connection_carries_one_request_at_a_time() {
    let pools = Pools::start("in_flight: 8");
    for _ in 0..8 {
        let calls = (0..16).map(|_| pools.result("h#wait", json!({"seconds": 0.02})));
        assert!(join_all(calls).await.iter().all(|it| it == "waited"));
    }
    let stats = pools.result("h#stats", json!({})).await;
    assert_eq!(stats["most_on_one"], 1);
    let most = stats["most"].as_u64().unwrap();
    assert!((2..=8).contains(&most), "{stats}");
    let connections = stats["connections"].as_u64().unwrap();
    assert!(connections < 100, "they are used again: {connections}");
}

// A runner that serves one connection after the other, and one that closes each after its answer.
#[tokio::test]
async fn a_runner_that_does_one_thing_at_a_time_is_served_too() {
    for mode in ["sequential", "closes"] {
        let pools = Pools::start(&format!("in_flight: 8\n    env: {{MODE: {mode}}}"));
        for round in 0..3 {
            let calls = (0..24).map(|number| {
                pools.result("h#say", json!({"status": "success", "result": number}))
            });
            let answers = join_all(calls).await;
            let wanted: Vec<Value> = (0..24).map(Value::from).collect();
            assert_eq!(answers, wanted, "{mode} {round}");
        }
        let stats = pools.result("h#stats", json!({})).await;
        assert_eq!(stats["most"], 1, "{mode}");
    }
}

// RQ-45: named, by its queue, or by default; what nobody has goes to the dead letters at once.
#[tokio::test]
async fn a_call_finds_its_pool_by_name_by_queue_or_by_default() {
    let one = |env: &str, queues: &str| {
        let line = format!("env: {{WHO: {env}}}\n    queues: [{queues}]");
        one_pool(&line).replace("pools:\n  h:", &format!("  {env}:"))
    };
    let file = format!("default: b\npools:\n{}{}", one("a", "mail"), one("b", ""));
    let pools = Pools::of(&file);
    let who = |end: CallEnd| result(&end)["env"]["WHO"].as_str().unwrap().to_owned();
    assert_eq!(who(pools.call("a#process", json!({})).await), "a");
    assert_eq!(who(pools.call("b#process", json!({})).await), "b");
    assert_eq!(who(pools.call("process", json!({})).await), "a");
    let mut other = super::bench::call("process", json!({}));
    other.function.queue = "rest".to_owned();
    let stop = tokio::sync::watch::Sender::new(None);
    assert_eq!(
        who(pools.functions.call(&other, stop.subscribe()).await),
        "b"
    );
    let end = pools.call("nobody#x", json!({})).await;
    assert_eq!(end.ended.cause, Some(Cause::HandlerNotFound));
    assert!(end.ended.summary.contains("no runner `nobody`"), "{end:?}");
    let alone = Pools::start("");
    let end = alone.call("process", json!({})).await;
    assert_eq!(end.ended.cause, Some(Cause::HandlerNotFound));
    assert!(end.ended.summary.contains("`mail`"), "{end:?}");
}

// The SDK's own runner, found by the flag alone as newer ones are.
#[tokio::test]
async fn a_runner_of_the_python_sdk_is_called() {
    let sdk = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/python");
    let sdk = sdk.canonicalize().unwrap();
    let file = format!(
        "pools:\n  py:\n    command: [python3, -m, delta_runner, 'tests.handlers:app']\n    \
         working_folder: {sdk}\n    env: {{PYTHONPATH: {sdk}}}\n",
        sdk = sdk.display()
    );
    let pools = Pools::of(&file);
    let echoed = pools.result("py#echo", json!({"to": "x"})).await;
    assert_eq!(echoed, json!({"to": "x"}));
    let end = pools.call("py#boom", json!({})).await;
    assert_eq!(end.ended.cause, Some(Cause::UserExit), "{end:?}");
    let end = pools.call("py#nosuch", json!({})).await;
    assert_eq!(end.ended.cause, Some(Cause::HandlerNotFound), "{end:?}");
}
