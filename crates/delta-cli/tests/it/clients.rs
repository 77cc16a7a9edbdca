//! Commands beside a running server: cancel, follow, an agent of its own.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use delta_testkit::process::Spawn;
use delta_testkit::wait::eventually;
use serde_json::{Value, json};

use crate::support::{PATIENCE, Place, binary};

#[test]
fn an_agent_executes_what_the_server_has() {
    let place = Place::new();
    let server = place.server(&["--heartbeat-interval", "500ms"]);
    let made = place
        .say("token create --role runner --data data")
        .expect(0);
    place.write("token", &made.stdout);
    let agent = Spawn::new(binary())
        .args(["agent", "--server", &server.url, "--token-file", "token"])
        .args(["--name", "one", "--slots", "2", "--label", "gpu"])
        .current_dir(place.path())
        .spawn()
        .unwrap();
    let (run, job) = server.submit(&["echo from the agent"]);
    assert_eq!(server.outcome(&run), "SUCCESS");
    let logs = place.delta(["logs", &job, "--data", "data"]).expect(0);
    assert!(
        logs.stdout.lines().any(|line| line == "from the agent"),
        "{}",
        logs.stdout
    );
    let followed = place
        .delta(["events", &run, "-f", "--data", "data"])
        .expect(0);
    assert!(followed.stdout.lines().count() > 3, "{}", followed.stdout);
    agent.terminate().unwrap();
    assert_eq!(
        agent.wait(PATIENCE).unwrap().code(),
        Some(0),
        "{}",
        agent.stderr()
    );
}

#[test]
fn an_agent_says_of_each_outage_that_it_began_and_that_it_is_over() {
    // EP-33
    let place = Place::new();
    // It comes back where it was, and nobody else may be there meanwhile.
    let port = delta_testkit::port::free_port().unwrap();
    let address = format!("127.0.0.1:{port}");
    let mut server = place.server_at(&address, &[]);
    let made = place
        .say("token create --role runner --data data")
        .expect(0);
    place.write("token", &made.stdout);
    let agent = Spawn::new(binary())
        .args(["agent", "--server", &server.url, "--token-file", "token"])
        .current_dir(place.path())
        .spawn()
        .unwrap();
    let (run, _) = server.submit(&["true"]);
    assert_eq!(server.outcome(&run), "SUCCESS");
    let says = |what: &str, times: usize| {
        eventually(PATIENCE, what, || {
            let said = agent.stderr();
            if said.matches(what).count() >= times {
                Ok(())
            } else {
                Err(said)
            }
        });
    };
    for outage in 1..=2 {
        server.process.kill9().unwrap();
        server.process.wait(PATIENCE).unwrap();
        says("there is no line to the server", outage);
        server = place.server_at(&address, &[]);
        says("the line to the server is back", outage);
    }
}

#[test]
fn an_agent_with_a_bad_token_ends_and_says_why() {
    let place = Place::new();
    let server = place.server(&[]);
    place.write("token", "not-a-token");
    let ran = place
        .delta(["agent", "--server", &server.url, "--token-file", "token"])
        .expect(7);
    assert!(
        ran.stderr.contains("token create --role runner"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_job_that_nobody_can_take_says_why_and_can_be_canceled() {
    let place = Place::new();
    let server = place.server(&[]);
    let (run, job) = server.submit(&["true"]);
    let why = place
        .delta(["--json", "why", &job, "--data", "data"])
        .expect(0)
        .json();
    assert_eq!(why["state"], "QUEUED");
    assert!(why["why"]["message"].is_string(), "{why}");
    assert!(why["must_end_by"].is_string(), "{why}");
    place
        .delta(["cancel", &run, "--reason", "enough", "--data", "data"])
        .expect(0);
    assert_eq!(server.outcome(&run), "CANCELED");
    for (command, id) in [("show", &run), ("show", &job), ("why", &job)] {
        let ran = place.delta([command, id, "--data", "data"]).expect(0);
        assert!(ran.stdout.contains(": enough"), "{command}: {}", ran.stdout);
    }
    let again = place.delta(["cancel", &run, "--data", "data"]).expect(0);
    let said = "had already ended: CANCELED";
    assert!(again.stderr.contains(said), "{}", again.stderr);
    let again = place.delta(["cancel", &job, "--data", "data"]).expect(0);
    assert!(again.stderr.contains(said), "{}", again.stderr);
    // An outcome is not a state, and everybody types it as one.
    let listed = place.say("runs --state canceled --data data").expect(0);
    assert!(listed.stdout.contains(&run), "{}", listed.stdout);
}

/// A server that has this many dead letters, and shows one of them on a page.
fn with_dead_letters(count: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = move |mut stream: TcpStream| -> Option<()> {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).ok()?;
        let after = line
            .split("cursor=")
            .nth(1)
            .and_then(|it| it.split(' ').next());
        let number: usize = after.and_then(|it| it.parse().ok()).unwrap_or(0);
        let mut page = json!({"functions": [{
            "id": format!("run_{number}"), "function": "ruby#f", "queue": "mail",
            "state": "FAILED", "attempts": 1, "max_attempts": 1, "cause": "handler_not_found",
            "summary": "no agent has the runner `ruby`", "created_at": "2026-01-04T08:00:00Z",
        }]});
        if number + 1 < count {
            page["next_cursor"] = json!((number + 1).to_string());
        }
        let (body, head) = (page.to_string(), "HTTP/1.1 200 OK\r\nconnection: close");
        let head = format!("{head}\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).ok()
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = answer(stream.unwrap());
        }
    });
    format!("http://{address}")
}

#[test]
fn a_program_gets_every_dead_letter_however_many_pages_there_are() {
    let place = Place::new();
    let list = |count: usize| {
        let mut command = place.command();
        command.args(["dead-letters", "--json", "--server"]);
        command
            .arg(with_dead_letters(count))
            .env("DELTA_TOKEN", "t");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        list["functions"].as_array().unwrap().clone()
    };
    for count in [1, 120] {
        let all = list(count);
        assert_eq!(all.len(), count);
        assert_eq!(all[count - 1]["id"], format!("run_{}", count - 1));
    }
}
