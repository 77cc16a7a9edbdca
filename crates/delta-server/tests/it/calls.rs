//! Functions at the edges: what is kept, traces that are full, settings that come at once, runners
//! that nobody has and pools that do not come up.

use delta_testkit::wait::eventually_async;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::{
    Capabilities, Heartbeat, RegisterRequest, RunnerPool, Runtime, SlotGroup,
};
use serde_json::json;

use crate::agent::{Agent, request};
use crate::bench::{Answer, Bench, Lease, PATIENCE, text};
use crate::functions::{enqueue, finish, not_found, shown, take, taken};

#[tokio::test]
async fn a_time_to_keep_results_deletes_no_dead_letter_and_leaves_waiters_a_moment() {
    let bench = Bench::patient().await;
    let none = json!({"function": "python#f", "result_ttl_seconds": 0, "max_attempts": 1});
    let carried_out = enqueue(&bench, none.clone()).await;
    finish(
        &bench,
        &taken(&bench).await,
        "SUCCEEDED",
        0,
        json!({"result": 7}),
    )
    .await;
    // It has ended, and whoever asks only now has its result.
    assert_eq!(shown(&bench, &carried_out["id"], 10).await["result"], 7);
    let failed = enqueue(&bench, none).await;
    not_found(&bench, &taken(&bench).await).await;
    assert_eq!(shown(&bench, &failed["id"], 10).await["dead_letter"], true);
}

#[tokio::test]
async fn a_trace_that_is_full_or_too_long_refuses_no_call() {
    // RQ-28
    let bench = Bench::patient().await;
    let mut carrier = serde_json::Map::new();
    carrier.extend((0..15).map(|n| (format!("k{n}"), json!("v"))));
    carrier.insert("baggage".into(), json!("x".repeat(5000)));
    let call = json!({"function": "python#f", "trace_context": carrier});
    let url = format!("{}/api/v1/functions", bench.base);
    let request = bench.client.post(url).bearer_auth(&bench.user);
    let request = request
        .header(
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        )
        .header("tracestate", "a=1")
        .body(call.to_string());
    let made = Answer::of(request.send().await.unwrap()).await.expect(201);
    let full = json!({"function": "python#f", "trace_context":
        (0..16).map(|n| (format!("k{n}"), json!("v"))).collect::<serde_json::Map<_, _>>()});
    for made in [made, enqueue(&bench, full).await] {
        let detail = shown(&bench, &made["id"], 0).await;
        assert_eq!(detail["trace_context"]["k0"], "v", "{detail}");
        assert_eq!(detail["trace_context"].get("baggage"), None);
        let lease = taken(&bench).await;
        let spec = lease.granted["job_spec"].to_string();
        delta_wire::JobSpec::parse(spec.as_bytes()).expect("an agent reads it");
        finish(&bench, &lease, "SUCCEEDED", 0, json!({"result": null})).await;
    }
}

#[tokio::test]
async fn a_pause_and_a_route_at_once_are_both_kept() {
    let bench = Bench::patient().await;
    for n in 0..10 {
        let pause = format!("/queues/q{n}/pause");
        let pause = bench.ask(&pause, json!({}));
        let url = format!("{}/api/v1/queues/q{n}", bench.base);
        let route = bench.client.put(url).bearer_auth(&bench.user);
        let route = route.body(json!({"runner": "python"}).to_string()).send();
        let (paused, routed) = tokio::join!(pause, route);
        paused.expect(200);
        assert_eq!(routed.unwrap().status(), 200);
        let queue = bench.get(&format!("/api/v1/queues/q{n}")).await.expect(200);
        assert_eq!(queue["runner"], "python", "{queue}");
        assert!(queue["paused"].is_object(), "{queue}");
        // What counts is what is stored.
        let call = json!({"function": "f", "queue": format!("q{n}")});
        assert_eq!(enqueue(&bench, call).await["function"], "python#f");
    }
    assert!(take(&bench, "r1", 0.2).await.is_none(), "all are paused");
}

fn registers(groups: &[(&str, i32)]) -> RegisterRequest {
    let mut register = request();
    register.capabilities = Some(Capabilities {
        max_parallel: groups.iter().map(|it| it.1).sum(),
        work: vec!["function".into()],
        runtimes: groups
            .iter()
            .map(|(name, _)| Runtime {
                name: format!("runner:{name}"),
                ..Default::default()
            })
            .collect(),
        slot_groups: groups
            .iter()
            .map(|(name, slots)| SlotGroup {
                runner: (*name).to_owned(),
                slots: *slots,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    });
    register
}

#[tokio::test]
async fn a_runner_that_nobody_has_fails_at_once_also_later_and_again() {
    // RQ-45
    let bench = Bench::patient().await;
    let early = enqueue(&bench, json!({"function": "ruby#f", "max_attempts": 1})).await;
    let lease = json!({"type": "Lease", "runner_id": "r", "wait_seconds": 10,
        "capabilities": ["work:function", "runner:ruby"]});
    let lease = Lease::from(&bench.say("/lease", lease).await.expect(200), "r");
    bench.say("/ack-lease", lease.ack()).await.expect(200);
    not_found(&bench, &lease).await;
    let _agent = Agent::register(&bench, registers(&[("python", 1)]))
        .await
        .unwrap();
    let later = json!({"function": "perl#f", "delay_seconds": 3600});
    let later = enqueue(&bench, later).await;
    assert_eq!(later["state"], "FAILED", "{later}");
    assert_eq!(later["cause"], "handler_not_found");
    let again = json!({"ids": [later["id"]]});
    let again = bench.ask("/dead-letters/requeue", again).await.expect(200);
    let again = shown(&bench, &again["requeued"][0], 0).await;
    assert_eq!(
        (&again["state"], &again["dead_letter"]),
        (&json!("FAILED"), &json!(true))
    );
    // It goes on behind those that were called again.
    let all = json!({"all": true, "before": early["id"]});
    let none = bench.ask("/dead-letters/requeue", all).await.expect(200);
    assert_eq!(
        (&none["chosen"], &none["more"]),
        (&json!([]), &json!(false))
    );
}

#[tokio::test]
async fn a_pool_that_does_not_come_up_is_given_no_calls() {
    let bench = Bench::patient().await;
    let register = registers(&[("python", 2), ("rust", 1)]);
    let mut agent = Agent::register(&bench, register).await.unwrap();
    let pool = |name: &str, up: u32, last_error: &str| RunnerPool {
        name: name.into(),
        up,
        wanted: 1,
        last_error: last_error.into(),
        ..Default::default()
    };
    let beat = |agent: &Agent, python: RunnerPool| {
        let Said::Heartbeat(beat) = agent.heartbeat(&[], None) else {
            panic!("a heartbeat");
        };
        let runners = vec![python, pool("rust", 1, "")];
        Said::Heartbeat(Heartbeat { runners, ..beat })
    };
    agent
        .say([beat(&agent, pool("python", 0, "exit code 3"))])
        .await;
    let seen = async || {
        let agents = bench.get("/api/v1/agents").await.expect(200);
        let id = text(&agents["agents"][0]["agent_id"]);
        let agent = bench.get(&format!("/api/v1/agents/{id}")).await.expect(200);
        let known = agent["runners"].to_string().contains("exit code 3");
        known.then_some(()).ok_or(agent)
    };
    eventually_async(PATIENCE, "the server has heard it", seen).await;
    let call = enqueue(&bench, json!({"function": "python#f"})).await;
    let other = enqueue(&bench, json!({"function": "rust#f"})).await;
    let work = agent.work().await;
    assert_eq!(json!(work.job_run_id), other["id"], "the other pool works");
    assert!(
        agent
            .hears_no_work(std::time::Duration::from_millis(300))
            .await
    );
    assert_eq!(shown(&bench, &call["id"], 0).await["attempts"], 1);
    let job = text(&call["id"]).replacen("run_", "job_", 1);
    let job = bench.get(&format!("/api/v1/jobs/{job}_1")).await;
    let why = job.expect(200)["why"].clone();
    assert_eq!(why["code"], "runner_down", "{why}");
    assert!(text(&why["message"]).ends_with("exit code 3"), "{why}");
    // It is there again.
    agent
        .say([beat(&agent, pool("python", 1, "exit code 3"))])
        .await;
    assert_eq!(json!(agent.work().await.job_run_id), call["id"]);
}

#[tokio::test]
async fn what_an_agent_says_of_a_failure_is_shown_where_no_handler_said_anything() {
    let bench = Bench::patient().await;
    let view = enqueue(&bench, json!({"function": "python#f", "max_attempts": 1})).await;
    let mut complete = taken(&bench).await.complete("FAILED", 1);
    complete["cause"] = json!("agent_error");
    complete["summary"] = json!("the runner `python` is not there");
    bench.say("/complete", complete).await.expect(200);
    let done = shown(&bench, &view["id"], 10).await;
    assert_eq!(
        done["summary"], "the runner `python` is not there",
        "{done}"
    );
    let dead = bench.get("/api/v1/dead-letters").await.expect(200);
    assert_eq!(dead["functions"][0]["summary"], done["summary"]);
}
