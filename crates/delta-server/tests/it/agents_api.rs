//! The agents API: what is shown of agents, and the orders of administrators.

use std::time::Duration;

use delta_testkit::wait::eventually_async;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    Capabilities, DrainComplete, RegisterRequest, Resources, RunStatus, Runtime,
};
use serde_json::{Value, json};
use tonic::Code;

use crate::agent::{Agent, request};
use crate::bench::{Answer, Bench, PATIENCE, config, patient_settings, text};

const A_WHILE: Duration = Duration::from_millis(300);

impl Bench {
    pub async fn agent(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/agents/{id}")).await.expect(200)
    }

    pub async fn order(&self, id: &str, order: &str) -> Answer {
        let path = format!("/api/v1/agents/{id}/{order}");
        self.post(&self.admin, &path, "").await
    }

    pub async fn revoke(&self, token: &str, id: &str) -> Answer {
        let path = format!("{}/api/v1/agents/{id}", self.base);
        let request = self.client.delete(path).bearer_auth(token);
        Answer::of(request.send().await.unwrap()).await
    }

    /// Waits until an agent is shown like this.
    pub async fn agent_until(&self, id: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        eventually_async(PATIENCE, what, async || {
            let view = self.agent(id).await;
            if is(&view) { Ok(view) } else { Err(view) }
        })
        .await
    }
}

#[tokio::test]
async fn an_agent_is_shown_with_what_it_is_and_what_it_does() {
    // EP-3, EP-4, EP-6
    let bench = Bench::patient().await;
    let registration = RegisterRequest {
        agent_name: "builder".into(),
        version: "9.1".into(),
        capabilities: Some(Capabilities {
            max_parallel: 2,
            arch: "x86_64".into(),
            labels: vec!["gpu".into()],
            docker_available: true,
            enforced: vec!["landlock".into()],
            runtimes: vec![Runtime {
                name: "python".into(),
                version: "3.12".into(),
            }],
            resources: Some(Resources {
                cpu_cores: 8,
                memory_mb: 1024,
                disk_mb: 2048,
            }),
            ..request().capabilities.unwrap()
        }),
        ..request()
    };
    let mut agent = Agent::register(&bench, registration).await.unwrap();
    agent.say([agent.heartbeat(&[], None)]).await;
    let shown = bench.agent(&agent.id).await;
    assert_eq!(shown["status"], "IDLE", "{shown}");
    let wanted = json!({
        "agent_id": agent.id, "name": "builder", "version": "9.1", "pool": "default",
        "os": "linux", "arch": "x86_64", "labels": ["gpu"], "zones": [], "docker": true,
        "runtimes": ["python=3.12"], "work": ["steps"], "enforced": ["landlock"], "slots": 2,
        "resources": { "cpu_cores": 8, "memory_mb": 1024, "disk_mb": 2048 },
        "live_leases": 0, "leases": [], "session_epoch": agent.registered.session_epoch,
    });
    for (field, value) in wanted.as_object().unwrap() {
        assert_eq!(shown[field], *value, "{field}");
    }
    assert!(shown["session_since"].is_string() && shown["seen_at"].is_string());
    assert!(!shown.to_string().contains(&agent.registered.resume_secret));
    let (_, jobs) = bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    let busy = bench.agent(&agent.id).await;
    assert_eq!(
        (&busy["status"], &busy["live_leases"]),
        (&json!("BUSY"), &json!(1))
    );
    let lease = &busy["leases"][0];
    assert_eq!(
        (&lease["job_id"], &lease["attempt"]),
        (&json!(jobs[0]), &json!(1))
    );
    assert_eq!(lease["accepted"], true);
    assert!(!busy.to_string().contains(&work.lease), "A24");
}

#[tokio::test]
async fn agents_are_listed_page_by_page() {
    let bench = Bench::patient().await;
    let mut ids = Vec::new();
    let mut agents = Vec::new();
    for n in 0..3 {
        let named = RegisterRequest {
            agent_name: format!("a{n}"),
            ..request()
        };
        let agent = Agent::register(&bench, named).await.unwrap();
        ids.push(agent.id.clone());
        agents.push(agent);
    }
    ids.sort();
    let (mut seen, mut path) = (Vec::new(), "/api/v1/agents?limit=2".to_owned());
    loop {
        let page = bench.get(&path).await.expect(200);
        let some = page["agents"].as_array().unwrap().iter();
        seen.extend(some.map(|agent| text(&agent["agent_id"])));
        match page["next_cursor"].as_str() {
            Some(cursor) => path = format!("/api/v1/agents?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ids);
    bench.get("/api/v1/agents?pool=x").await.expect(422);
    bench.get("/api/v1/agents/agt_none").await.expect(404);
    for (token, path) in [(&bench.runner, "/api/v1/agents"), (&bench.user, "")] {
        let answer = match path {
            "" => bench.revoke(token, &ids[0]).await,
            path => bench.get_as(token, path).await,
        };
        answer.expect(403);
    }
}

#[tokio::test]
async fn a_drained_agent_finishes_its_work_and_gets_no_more_until_it_is_undrained() {
    // EP-24, EP-25, EP-28, A50
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let (_, jobs) = bench.run_with(2).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    let path = format!("/api/v1/agents/{}/drain", agent.id);
    bench.post(&bench.user, &path, "").await.expect(403);
    let view = bench.order(&agent.id, "drain").await.expect(200);
    let drain_id = text(&view["drain"]["drain_id"]);
    assert_eq!(
        (&view["status"], &view["drain"]["leases_left"]),
        (&json!("DRAINING"), &json!(1))
    );
    // Asking again asks the same.
    let again = bench.order(&agent.id, "drain").await.expect(200);
    assert_eq!(again["drain"]["drain_id"], drain_id.as_str());
    let told = agent.hears(|say| match say {
        Say::Drain(drain) => Some(drain.drain_id.clone()),
        _ => None,
    });
    assert_eq!(told.await, drain_id);
    assert_eq!(
        bench.job_state(&jobs[0]).await,
        "STARTING",
        "no lease is ended"
    );
    let done = agent.completed(&work, RunStatus::Success);
    agent.say([done]).await;
    agent
        .hears(|say| matches!(say, Say::CompleteAck(ack) if ack.accepted).then_some(()))
        .await;
    assert!(agent.hears_no_work(A_WHILE).await);
    let left = bench.agent(&agent.id).await;
    assert_eq!(left["drain"]["leases_left"], 0);
    assert_eq!(
        left["drain"]["drained_at"],
        Value::Null,
        "it has not said so"
    );
    let other = DrainComplete {
        drain_id: "another".into(),
    };
    let complete = DrainComplete { drain_id };
    let said = [other, complete].map(Said::DrainComplete);
    agent.say(said).await;
    let drained = |view: &Value| view["drain"]["drained_at"].is_string();
    let shown = bench.agent_until(&agent.id, "drained", drained).await;
    // It stays said in the next session, and the drain is told at once.
    let back = RegisterRequest {
        agent_id: agent.id.clone(),
        resume_secret: agent.registered.resume_secret.clone(),
        ..request()
    };
    let mut agent = Agent::register(&bench, back).await.unwrap();
    assert_eq!(
        agent.registered.drain_id,
        shown["drain"]["drain_id"].as_str().unwrap()
    );
    let view = bench.agent(&agent.id).await;
    assert_eq!(view["drain"], shown["drain"]);
    assert!(agent.hears_no_work(A_WHILE).await);
    let view = bench.order(&agent.id, "undrain").await.expect(200);
    assert_eq!(view["drain"], Value::Null);
    let next = agent.work().await;
    assert_eq!(next.job_id, jobs[1]);
}

#[tokio::test]
async fn a_revoked_agent_is_shut_out_at_once_and_for_good() {
    // A26, D14
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let back = RegisterRequest {
        agent_id: agent.id.clone(),
        resume_secret: agent.registered.resume_secret.clone(),
        ..request()
    };
    bench.revoke(&bench.admin, &agent.id).await.expect(204);
    bench.revoke(&bench.admin, "agt_none").await.expect(404);
    assert_eq!(agent.ends().await.unwrap().code(), Code::PermissionDenied);
    let refused = Agent::register(&bench, back).await.err().unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let view = bench.agent(&agent.id).await;
    assert_eq!(view["status"], "REVOKED");
    assert!(view["revoked_at"].is_string());
    bench.order(&agent.id, "drain").await.expect(409);
}

#[tokio::test]
async fn an_agents_id_opens_nothing_on_the_other_protocol() {
    // A26, T3: whoever shares the token may not speak as a registered agent. I21: and one that was
    // sent home gets no work by the back door.
    let bench = Bench::patient().await;
    let (_, job) = bench.create_one().await;
    let mut agent = Agent::new(&bench).await;
    let held = agent.work().await;
    assert_eq!(held.job_id, job);
    let slot = format!("{}/1", agent.id);
    let refused = bench.lease_as(&slot, 0.0).await.expect(403);
    assert_eq!(refused["field"], "runner_id", "{refused}");
    let body = json!({ "role": "runner", "name": "bound", "agent_id": "b1" });
    let made = bench.post(&bench.admin, "/api/v1/tokens", body).await;
    let secret = made.expect(201)["token"].as_str().unwrap().to_owned();
    let bound = Agent::register_as(&bench, &secret, request())
        .await
        .unwrap();
    let ask = json!({ "type": "Lease", "runner_id": "b1/1", "capabilities": [] });
    let lease = async || {
        bench
            .post(&secret, "/api/v1/runner/lease", ask.clone())
            .await
    };
    lease().await.expect(204);
    bench.order(&bound.id, "drain").await.expect(200);
    lease().await.expect(403);
    bench.order(&bound.id, "undrain").await.expect(200);
    bench.revoke(&bench.admin, &bound.id).await.expect(204);
    bench.create_one().await;
    lease().await.expect(403);
}

#[tokio::test]
async fn a_pool_takes_only_agents_with_its_sandbox() {
    let data = tempfile::tempdir().unwrap();
    let pools = [("default".into(), delta_server::Sandbox::Strict)];
    let config = delta_server::Config {
        pool_sandboxes: pools.into(),
        ..config(&data, patient_settings())
    };
    let bench = Bench::start(data, config).await;
    let saying = |word: &str| {
        let mut request = request();
        let said = request.capabilities.get_or_insert_default();
        said.enforced = vec![word.to_owned()];
        request
    };
    let refused = Agent::register(&bench, saying("host")).await.err().unwrap();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("--sandbox strict"), "{refused}");
    Agent::register(&bench, saying("strict")).await.unwrap();
    bench.lease_as("somebody", 0.0).await.expect(403);
}

#[tokio::test]
async fn orders_outlive_the_server_and_so_does_what_was_known() {
    // EP-28, D3
    let data = tempfile::tempdir().unwrap();
    let config = delta_server::Config {
        store: delta_server::StoreChoice::Sqlite,
        ..config(&data, patient_settings())
    };
    let mut bench = Bench::start(data, config.clone()).await;
    let agent = Agent::new(&bench).await;
    bench.order(&agent.id, "drain").await.expect(200);
    let epoch = agent.registered.session_epoch;
    bench.stop().await;
    let Bench { data, .. } = bench;
    let bench = Bench::start(data, config).await;
    let view = bench.agent(&agent.id).await;
    assert_eq!(
        (&view["name"], &view["session_epoch"]),
        (&json!("test"), &json!(epoch))
    );
    assert!(view["drain"]["drain_id"].is_string(), "{view}");
}

#[tokio::test]
async fn why_a_job_waits_knows_of_agents_with_a_session() {
    // D12
    let bench = Bench::patient().await;
    let _agent = Agent::new(&bench).await;
    let mut gpu = crate::bench::job("j");
    gpu["requires"] = json!(["gpu"]);
    let view = bench.create(json!([gpu])).await;
    let job = bench.show_job(&text(&view["jobs"][0]["job_id"])).await;
    assert_eq!(job["why"]["code"], "no_fit_agent", "{job}");
    let alone = Bench::patient().await;
    let view = alone.create(json!([crate::bench::job("j")])).await;
    let job = alone.show_job(&text(&view["jobs"][0]["job_id"])).await;
    assert_eq!(job["why"]["code"], "no_agents", "{job}");
}
