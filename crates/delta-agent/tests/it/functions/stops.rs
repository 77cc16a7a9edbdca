//! Calls that are told to end: canceled, out of time, without a lease, or by the agent's own end.

use std::time::Duration;

use delta_agent::functions::CallEnd;
use delta_core::Cause;
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use delta_testkit::port::free_port;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::bench::{Neighbour, Pools, join_all, order, result, sdk_runners};
use crate::bench::{PATIENCE, is_running, until};

/// Calls a function, and gives this order once the runner has it.
async fn stopped(pools: &Pools, name: &str, reason: StopReason, grace: Duration) -> CallEnd {
    let stop = watch::Sender::new(None);
    let call = pools.call_until(name, json!({}), stop.subscribe());
    let ordering = async {
        pools.until_running(1).await;
        stop.send_replace(order(reason, grace));
    };
    let (end, ()) = tokio::join!(call, ordering);
    end
}

fn starts(pools: &Pools) -> u64 {
    pools.pool("h").processes[0].starts
}

// RQ-16, RQ-39, RQ-41, RQ-43
#[tokio::test]
async fn a_cancel_goes_on_its_own_connection_and_ends_one_call() {
    for more in ["grace: 60s", "grace: 60s\n    pipeline: true"] {
        let pools = Pools::start(more);
        let neighbour = Neighbour::new();
        let canceled = async {
            pools.until_running(1).await;
            let stop = watch::Sender::new(None);
            let call = pools.call_until("h#wait", json!({}), stop.subscribe());
            let ordering = async {
                pools.until_running(2).await;
                stop.send_replace(order(StopReason::Canceled, PATIENCE));
            };
            let end = tokio::join!(call, ordering).0;
            neighbour.go();
            end
        };
        let (spared, end) = tokio::join!(neighbour.call_of("job_7_1", &pools), canceled);
        assert_eq!(end.ended.outcome, Outcome::Canceled, "{end:?}");
        assert!(end.ended.confirmed);
        assert_eq!(end.ended.stopped, Some(StopReason::Canceled));
        assert_eq!(result(&spared), "there");
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

// RQ-42: a runner that does not heed it is ended. Its other calls have done nothing wrong: they
// have their time first, and another process takes what comes.
#[tokio::test]
async fn a_cancel_that_is_ignored_ends_the_process() {
    for more in ["grace: 1s", "grace: 1s\n    pipeline: true"] {
        let pools = Pools::start(more);
        let process = pools.result("h#process", json!({})).await;
        let (neighbour, stop) = (Neighbour::new(), watch::Sender::new(None));
        let canceled = async {
            pools.until_running(1).await;
            let call = pools.call_until("h#never", json!({}), stop.subscribe());
            let ordering = async {
                pools.until_running(2).await;
                stop.send_replace(order(StopReason::Canceled, PATIENCE));
                pools.replaced(&process).await;
                neighbour.go();
            };
            tokio::join!(call, ordering).0
        };
        let (spared, end) = tokio::join!(neighbour.call(&pools), canceled);
        assert_eq!(result(&spared), "there");
        assert_eq!(end.ended.outcome, Outcome::Canceled, "{end:?}");
        assert!(end.ended.confirmed, "{end:?}");
        assert!(!is_running(&process["pid"].to_string()), "{process}");
        assert_eq!(starts(&pools), 2);
    }
}

// Where nothing can take its place before it is gone, what comes is worth more: the others have
// another grace, and are the agent's failures then.
#[tokio::test]
async fn a_process_on_a_port_of_its_own_is_ended_after_another_grace() {
    let port = free_port().expect("a port");
    let pools = Pools::start(&format!("grace: 300ms\n    port: {port}"));
    let (neighbour, stop) = (Neighbour::new(), watch::Sender::new(None));
    let canceled = async {
        pools.until_running(1).await;
        let call = pools.call_until("h#never", json!({}), stop.subscribe());
        let ordering = async {
            pools.until_running(2).await;
            stop.send_replace(order(StopReason::Canceled, PATIENCE));
        };
        tokio::join!(call, ordering).0
    };
    let (hurt, end) = tokio::join!(neighbour.call(&pools), canceled);
    assert!(end.ended.confirmed, "{end:?}");
    assert_eq!(hurt.ended.cause, Some(Cause::AgentError), "{hurt:?}");
    assert!(pools.result("h#process", json!({})).await.is_object());
}

// However many processes are broken one after the other, one is on its way out and one is there.
#[tokio::test]
async fn one_process_leaves_at_a_time() {
    let pools = Pools::start("grace: 2s");
    let neighbours = [Neighbour::new(), Neighbour::new()];
    let (stop, before) = (watch::Sender::new(None), watch::Sender::new(0));
    let stuck = async |number: u64| {
        before.subscribe().wait_for(|it| *it >= number).await.ok();
        let stop = stop.subscribe();
        pools.call_until("h#never", json!({}), stop).await
    };
    let spared = neighbours[0].call(&pools);
    let hurt = async {
        before.subscribe().wait_for(|it| *it >= 2).await.ok();
        neighbours[1].call(&pools).await
    };
    let meanwhile = async {
        let mut processes = Vec::new();
        for number in 1..=2 {
            before.send_replace(number);
            pools.until_running(2).await;
            processes.push(pools.result("h#process", json!({})).await);
            stop.send_replace(order(StopReason::Canceled, PATIENCE));
            if number == 1 {
                pools.replaced(&processes[0]).await;
                stop.send_replace(None);
            }
        }
        let second = processes[1]["pid"].to_string();
        until("the second is ended", || !is_running(&second)).await;
        assert!(pools.result("h#process", json!({})).await.is_object());
        // The first goes on with its call.
        assert!(is_running(&processes[0]["pid"].to_string()));
        neighbours[0].go();
    };
    let (spared, hurt, ..) = tokio::join!(spared, hurt, stuck(1), stuck(2), meanwhile);
    assert_eq!(result(&spared), "there");
    assert_eq!(hurt.ended.cause, Some(Cause::AgentError), "{hurt:?}");
}

// RQ-42: where one call holds up all others, none of them can be hoped for. They are the agent's
// failures, and do not run into their own time.
#[tokio::test]
async fn a_process_that_answers_nobody_any_more_is_ended_with_what_is_in_it() {
    let pools = Pools::start("grace: 300ms\n    in_flight: 8\n    env: {MODE: sequential}");
    let place = tempfile::tempdir().expect("a folder");
    let (mark, stop) = (place.path().join("begun"), watch::Sender::new(None));
    let stuck = pools.call_until("h#never", json!({"mark": mark}), stop.subscribe());
    let behind = async {
        until("it has begun", || mark.exists()).await;
        let calls = (0..3).map(|_| pools.call("h#echo", json!({})));
        let ordering = async {
            pools
                .until("all have room", |pool| pool.processes[0].in_flight == 4)
                .await;
            stop.send_replace(order(StopReason::Canceled, PATIENCE));
        };
        tokio::join!(join_all(calls), ordering).0
    };
    let (end, behind) = tokio::join!(stuck, behind);
    assert_eq!(end.ended.outcome, Outcome::Canceled, "{end:?}");
    assert!(end.ended.confirmed, "{end:?}");
    for end in behind {
        assert_eq!(end.ended.cause, Some(Cause::AgentError), "{end:?}");
    }
    assert_eq!(starts(&pools), 2);
}

// What a process that leaves has not begun goes to the one in its place.
#[tokio::test]
async fn a_call_that_finds_a_leaving_runner_busy_goes_to_the_next() {
    let pools = Pools::start("grace: 300ms");
    let process = pools.result("h#process", json!({})).await;
    let stop = watch::Sender::new(None);
    let stuck = pools.call_until("h#never", json!({}), stop.subscribe());
    let params = json!({"pid": process["pid"], "times": 0});
    let busy = pools.call_job("job_2_1", "h#busy", params);
    let ordering = async {
        pools
            .until("both have room", |pool| pool.processes[0].in_flight == 2)
            .await;
        stop.send_replace(order(StopReason::Canceled, PATIENCE));
    };
    let (end, busy, ()) = tokio::join!(stuck, busy, ordering);
    assert_eq!(end.ended.outcome, Outcome::Canceled, "{end:?}");
    assert_eq!(result(&busy), 1);
    assert_eq!(starts(&pools), 2);
}

/// Runners of both SDKs, with a plain function that heeds nothing but a file: `h#deaf`.
fn deaf_runners() -> [String; 2] {
    sdk_runners("--limit, '2'", "CONCURRENCY: '2'")
        .map(|file| format!("{file}    grace: 500ms\n    in_flight: 2\n"))
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
    let busy = Neighbour::new();
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
        let end = tokio::join!(call, ordering).0;
        busy.go();
        end
    };
    let (done, waiting) = tokio::join!(busy.call(&pools), waiting);
    assert_eq!(waiting.ended.outcome, Outcome::Canceled);
    assert!(waiting.ended.confirmed);
    assert_eq!(result(&done), "there");
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
