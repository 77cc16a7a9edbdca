//! Room: each pool has its own, and everybody can see how the pools are.

use std::path::Path;

use serde_json::{Value, json};

use super::{agent, call, ended, enqueue};
use crate::harness::{Options, Person, Server, until};

/// Calls that the pool `py` takes at a time: two processes of eight.
const ROOM: usize = 16;

/// What the server says of an agent's pool.
fn pool(person: &Person, agent: &str, name: &str) -> Value {
    let pools = shown(person, agent)["runners"].clone();
    let pools = pools.as_array().cloned().unwrap_or_default();
    let found = pools.into_iter().find(|it| it["name"] == name);
    found.unwrap_or(Value::Null)
}

fn shown(person: &Person, agent: &str) -> Value {
    let agents = person.get("/api/v1/agents");
    let agents = agents["agents"].as_array().expect("agents").clone();
    let found = agents.iter().find(|it| it["name"] == agent);
    let Some(id) = found.and_then(|it| it["agent_id"].as_str()) else {
        return Value::Null;
    };
    person.get(&format!("/api/v1/agents/{id}"))
}

fn begun(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().count()
}

#[test]
fn a_burst_for_one_pool_does_not_hold_the_slots_of_another() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, "functions");
    let (path, go) = (server.folder().join("pids"), server.folder().join("go"));
    let slow = json!({"function": "py#slow", "params": {"path": path, "go": go}});
    // More than the agent has slots in all, each until it is told to end.
    let burst = enqueue(&person, &json!({ "functions": vec![slow; 100] }));
    let burst = burst["functions"].as_array().expect("calls").clone();
    until("its pool is full", || begun(&path), |count| *count == ROOM);
    let echo = json!({"function": "rs#echo", "params": {"n": 1}});
    for _ in 0..10 {
        let done = ended(&person, &enqueue(&person, &echo)["id"]);
        assert_eq!(done["state"], "SUCCEEDED", "{done}");
    }
    // The rest waits at the server, where it can be seen and given to others.
    let queue = person.get("/api/v1/queues/default");
    assert_eq!(queue["depth"], 100 - ROOM, "{queue}");
    let last = burst.last().expect("a call")["id"].clone();
    let job = format!(
        "{}_1",
        last.as_str().expect("an id").replacen("run_", "job_", 1)
    );
    let why = person.job(&job)["why"].clone();
    assert_eq!(why["code"], "all_busy", "{why}");
    let full = |it: &Value| it["in_flight"] == ROOM && it["waiting"] == 0;
    let py = until("it is seen", || pool(&person, "functions", "py"), full);
    assert_eq!((&py["up"], &py["room"]), (&json!(2), &json!(ROOM)), "{py}");
    assert_eq!(begun(&path), ROOM, "no more of them were begun");
    std::fs::write(&go, "").expect("a file");
    for made in &burst {
        ended(&person, &made["id"]);
    }
    assert_eq!(call(&person, &last)["result"], "done");
    server.check();
}

#[test]
fn everybody_can_see_how_the_runners_are() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server, "functions");
    let up = |it: &Value| it["up"] == 2;
    let py = until("they are up", || pool(&person, "functions", "py"), up);
    assert_eq!(
        (&py["wanted"], &py["restarts"]),
        (&json!(2), &json!(0)),
        "{py}"
    );
    assert!(py.get("last_error").is_none(), "{py}");
    let die = json!({"function": "py#die", "max_attempts": 1});
    let died = ended(&person, &enqueue(&person, &die)["id"]);
    assert_eq!(died["state"], "FAILED", "{died}");
    let back = |it: &Value| it["restarts"] == 1 && it["up"] == 2;
    let py = until("it is up again", || pool(&person, "functions", "py"), back);
    let why = py["last_error"].as_str().expect("a reason");
    assert!(why.contains("it ended"), "{why}");
    let done = server.cli(&["agents", "show", "functions"]);
    assert!(
        done.stdout
            .contains("runner py: 2 of 2 up, 0 of 16 calls in flight, started again 1 time"),
        "{done:?}"
    );
    assert!(done.stdout.contains("last not there: it ended"), "{done:?}");
    let done = server.cli(&["agents", "show", "functions", "--json"]);
    let json: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(json["runners"][0]["restarts"], 1, "{done:?}");
    // A list is short.
    let agents = person.get("/api/v1/agents");
    assert!(agents["agents"][0].get("runners").is_none(), "{agents}");
    server.check();
}
