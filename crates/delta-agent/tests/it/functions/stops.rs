//! Calls that are told to end: canceled, out of time, without a lease, or by the agent's own end.

use std::time::Duration;

use delta_agent::executor::{Outcome, StopReason};
use delta_agent::functions::CallEnd;
use delta_core::Cause;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::bench::{Pools, join_all, order, result};
use crate::bench::{PATIENCE, is_running, until};

/// Calls a function, and gives this order once the runner has it.
async fn stopped(pools: &Pools, name: &str, reason: StopReason, grace: Duration) -> CallEnd {
    let stop = watch::Sender::new(None);
    let call = pools.call_until(name, json!({}), stop.subscribe());
    let ordering = async {
        until_running(pools, 1).await;
        stop.send_replace(order(reason, grace));
    };
    let (end, ()) = tokio::join!(call, ordering);
    end
}

/// The runner says itself how many it is at, beside the one that asks.
async fn until_running(pools: &Pools, count: u64) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while pools.result("h#stats", json!({})).await["now"] != count + 1 {
        assert!(tokio::time::Instant::now() < deadline, "never called");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn starts(pools: &Pools) -> u64 {
    pools.pool("h").processes[0].starts
}

// RQ-16, RQ-39, RQ-41, RQ-43
#[tokio::test]
async fn a_cancel_goes_on_its_own_connection_and_ends_one_call() {
    for more in ["grace: 60s", "grace: 60s\n    pipeline: true"] {
        let pools = Pools::start(more);
        let neighbour = pools.call("h#wait", json!({"seconds": 4}));
        let canceled = async {
            until_running(&pools, 1).await;
            let stop = watch::Sender::new(None);
            let call = pools.call_until("h#wait", json!({}), stop.subscribe());
            let ordering = async {
                until_running(&pools, 2).await;
                stop.send_replace(order(StopReason::Canceled, PATIENCE));
            };
            tokio::join!(call, ordering).0
        };
        let (neighbour, end) = tokio::join!(neighbour, canceled);
        assert_eq!(end.ended.outcome, Outcome::Canceled, "{end:?}");
        assert!(end.ended.confirmed);
        assert_eq!(end.ended.stopped, Some(StopReason::Canceled));
        assert_eq!(result(&neighbour), "waited");
        assert_eq!(starts(&pools), 1);
        let stats = pools.result("h#stats", json!({})).await;
        let [cancel] = &stats["cancels"].as_array().unwrap()[..] else {
            panic!("one cancel: {stats}");
        };
        assert_eq!(cancel["protocol_version"], "2");
        assert_eq!(cancel["job_id"], "job_7_1");
        assert_eq!(cancel["hard_kill"], false);
        assert_eq!(cancel["request_id"].as_str().unwrap().len(), 32);
    }
}

// RQ-42: a runner that does not heed it is ended; its other calls are the agent's failures.
#[tokio::test]
async fn a_cancel_that_is_ignored_ends_the_process() {
    for more in ["grace: 300ms", "grace: 300ms\n    pipeline: true"] {
        let pools = Pools::start(more);
        let process = pools.result("h#process", json!({})).await;
        let neighbour = pools.call("h#wait", json!({}));
        let canceled = async {
            until_running(&pools, 1).await;
            let stop = watch::Sender::new(None);
            let call = pools.call_until("h#never", json!({}), stop.subscribe());
            let ordering = async {
                until_running(&pools, 2).await;
                stop.send_replace(order(StopReason::Canceled, PATIENCE));
            };
            tokio::join!(call, ordering).0
        };
        let (neighbour, end) = tokio::join!(neighbour, canceled);
        assert_eq!(end.ended.outcome, Outcome::Canceled, "{end:?}");
        assert!(end.ended.confirmed, "{end:?}");
        assert!(!is_running(&process["pid"].to_string()), "{process}");
        assert_eq!(
            neighbour.ended.cause,
            Some(Cause::AgentError),
            "{neighbour:?}"
        );
        let next = pools.result("h#process", json!({})).await;
        assert_ne!(next["pid"], process["pid"]);
        assert_eq!(starts(&pools), 2);
    }
}

/// Runners of both SDKs, with a plain function that heeds nothing but a file: `h#deaf`.
fn deaf_runners() -> [String; 2] {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = root.canonicalize().expect("the tree");
    let this = std::env::current_exe().expect("this program");
    let built = this.parent().and_then(|deps| deps.parent());
    let table = built.expect("a folder").join("examples/table");
    let python = format!(
        "[python3, -m, delta_runner, 'tests.handlers:app', --limit, '2']\n    \
         working_folder: {}",
        root.join("sdk/python").display()
    );
    let rust = format!("[{}]\n    env: {{CONCURRENCY: '2'}}", table.display());
    [python, rust].map(|command| {
        format!("pools:\n  h:\n    command: {command}\n    grace: 500ms\n    in_flight: 2\n")
    })
}

// A thread that never ends is no end of its call: the process is, and the next calls have room.
#[tokio::test]
async fn a_thread_that_heeds_nothing_ends_with_its_process_and_keeps_no_room() {
    for file in deaf_runners() {
        let pools = Pools::of(&file);
        pools.ready().await;
        let place = tempfile::tempdir().expect("a folder");
        for (n, reason) in [StopReason::Canceled, StopReason::TimedOut]
            .iter()
            .enumerate()
        {
            let begun = place.path().join(format!("begun{n}"));
            let go = place.path().join("never");
            let params = json!({"mark": begun, "path": begun, "go": go});
            let params = match file.contains("delta_runner") {
                true => json!({"mark": params["mark"], "go": params["go"]}),
                false => params,
            };
            let before = starts(&pools);
            let stop = watch::Sender::new(None);
            let call = pools.call_until("h#deaf", params, stop.subscribe());
            let ordering = async {
                until("it has begun", || begun.exists()).await;
                stop.send_replace(order(*reason, PATIENCE));
            };
            let (end, ()) = tokio::join!(call, ordering);
            assert_eq!(end.ended.stopped, Some(*reason), "{end:?}");
            assert!(end.ended.confirmed, "nothing of it goes on: {end:?}");
            // Both places of the runner are free again, at once.
            let calls = (0..4).map(|_| pools.call("h#echo", json!({"k": 1})));
            for end in join_all(calls).await {
                assert_eq!(end.ended.outcome, Outcome::Succeeded, "{end:?}");
            }
            assert_eq!(starts(&pools), before + 1, "the process was ended");
        }
    }
}

// RQ-32: the job's own limit stands, whatever the runner makes of its deadline.
#[tokio::test]
async fn a_call_past_its_time_is_ended_with_the_jobs_timeout() {
    let pools = Pools::start("grace: 300ms");
    for function in ["h#wait", "h#never"] {
        let end = stopped(&pools, function, StopReason::TimedOut, PATIENCE).await;
        assert_eq!(end.ended.outcome, Outcome::TimedOut, "{end:?}");
        assert_eq!(end.ended.cause, Some(Cause::JobTimeout));
        assert!(end.ended.confirmed);
    }
    pools
        .until("the second had to be ended", |pool| {
            pool.processes[0].starts == 2
        })
        .await;
}

#[tokio::test]
async fn what_is_done_all_the_same_has_its_result() {
    let pools = Pools::start("");
    let end = stopped(&pools, "h#late", StopReason::TimedOut, PATIENCE).await;
    assert_eq!(end.ended.outcome, Outcome::Succeeded, "{end:?}");
    assert_eq!(result(&end), "done");
}

#[tokio::test]
async fn a_runner_that_never_answers_has_the_time_of_its_pool() {
    let pools = Pools::start("response_timeout: 3s\n    grace: 200ms");
    let end = pools.call("h#never", json!({})).await;
    assert_eq!(end.ended.outcome, Outcome::TimedOut, "{end:?}");
    assert!(end.ended.summary.contains("response_timeout"), "{end:?}");
    let context = pools.result("h#echo", json!({})).await["context"].clone();
    let deadline: jiff::Timestamp = context["deadline"].as_str().unwrap().parse().unwrap();
    assert!(deadline.duration_since(jiff::Timestamp::now()).as_secs() < 3);
}

// RP-45: nobody waits for it, but its neighbours are none the worse.
#[tokio::test]
async fn a_call_whose_lease_is_lost_is_canceled_and_its_neighbours_live() {
    let pools = Pools::start("");
    let end = stopped(&pools, "h#wait", StopReason::LeaseLost, Duration::ZERO).await;
    assert_eq!(end.ended.cause, Some(Cause::AgentError), "{end:?}");
    assert_eq!(starts(&pools), 1);
    let end = stopped(&pools, "h#never", StopReason::LeaseLost, Duration::ZERO).await;
    assert!(end.ended.confirmed, "{end:?}");
    pools
        .until("it is started again", |pool| pool.processes[0].starts == 2)
        .await;
}

#[tokio::test]
async fn an_agent_that_goes_away_says_so() {
    let pools = Pools::start("");
    let end = stopped(&pools, "h#wait", StopReason::Shutdown, PATIENCE).await;
    assert_eq!(end.ended.cause, Some(Cause::AgentShutdown), "{end:?}");
}

#[tokio::test]
async fn a_call_that_waits_for_room_ends_without_having_been_sent() {
    let pools = Pools::start("in_flight: 1");
    let busy = pools.call("h#wait", json!({"seconds": 3}));
    let waiting = async {
        pools
            .until("one is under way", |pool| pool.processes[0].in_flight == 1)
            .await;
        let stop = watch::Sender::new(None);
        let call = pools.call_until("h#echo", json!({}), stop.subscribe());
        let ordering = async {
            pools.until("one waits", |pool| pool.waiting == 1).await;
            stop.send_replace(order(StopReason::Canceled, PATIENCE));
        };
        tokio::join!(call, ordering).0
    };
    let (busy, waiting) = tokio::join!(busy, waiting);
    assert_eq!(waiting.ended.outcome, Outcome::Canceled);
    assert!(waiting.ended.confirmed);
    assert_eq!(result(&busy), "waited");
    let stats = pools.result("h#stats", json!({})).await;
    assert_eq!(stats["cancels"], Value::Array(Vec::new()));
    let before = watch::Sender::new(order(StopReason::Canceled, PATIENCE));
    let end = pools
        .call_until("h#never", json!({}), before.subscribe())
        .await;
    assert_eq!(
        end.ended.outcome,
        Outcome::Canceled,
        "ordered before it began"
    );
}

#[tokio::test]
async fn a_call_that_is_given_up_leaves_its_room_to_others() {
    for more in ["in_flight: 1", "in_flight: 1\n    pipeline: true"] {
        let pools = Pools::start(more);
        pools.ready().await;
        let given_up =
            tokio::time::timeout(Duration::from_millis(300), pools.call("h#never", json!({})));
        assert!(given_up.await.is_err());
        assert!(pools.result("h#echo", json!({})).await.is_object());
    }
}
