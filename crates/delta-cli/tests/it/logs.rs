//! `delta-ci logs` beside a running server: exact, resumed, and clear about what is missing.

use delta_testkit::process::{Process, Spawn};
use serde_json::Value;

use crate::support::{PATIENCE, Place, binary};

/// An address nobody listens on: a server that comes back must be found where it was.
fn free_address() -> String {
    format!("127.0.0.1:{}", delta_testkit::port::free_port().unwrap())
}

fn agent(place: &Place, url: &str) -> Process {
    let made = place
        .say("token create --role runner --data data")
        .expect(0);
    place.write("token", &made.stdout);
    Spawn::new(binary())
        .args([
            "agent",
            "--server",
            url,
            "--token-file",
            "token",
            "--name",
            "one",
        ])
        .current_dir(place.path())
        .spawn()
        .unwrap()
}

fn follow(place: &Place, args: &[&str]) -> Process {
    Spawn::new(binary())
        .args(["logs", "-f", "--data", "data"])
        .args(args)
        .current_dir(place.path())
        .spawn()
        .unwrap()
}

/// A step that waits until there is a file of this name.
fn wait_for(place: &Place, name: &str) -> String {
    let file = place.path().join(name);
    format!("while ! test -e '{}'; do sleep 0.05; done", file.display())
}

#[test]
fn following_goes_on_after_the_server_was_killed_without_gap_or_repeat() {
    // D8, promise 2
    let place = Place::new();
    let address = free_address();
    let server = place.server_at(&address, &["--heartbeat-interval", "500ms"]);
    let _agent = agent(&place, &server.url);
    let print = |from: u32, to: u32| format!("seq {from} {to}");
    let steps = [
        print(1, 2000),
        wait_for(&place, "a"),
        print(2001, 4000),
        wait_for(&place, "b"),
        print(4001, 6000),
    ];
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let (run, job) = server.submit(&steps);
    let follower = follow(&place, &[&job]);
    follower.wait_for_line("2000", PATIENCE).unwrap();
    server.process.kill9().unwrap();
    server.process.wait(PATIENCE).unwrap();
    let server = place.server_at(&address, &["--heartbeat-interval", "500ms"]);
    place.write("a", "");
    follower.wait_for_line("4000", PATIENCE).unwrap();
    place.write("b", "");
    assert_eq!(server.outcome(&run), "SUCCESS");
    let ended = follower.wait(PATIENCE).unwrap();
    assert_eq!(ended.code(), Some(0), "{}", follower.stderr());
    let told = follower.stderr();
    assert!(told.contains("attempt 1, lease 1"), "{told}");
    assert!(told.contains("attempt 1: log complete"), "{told}");
    let stored = place.delta(["logs", &job, "--data", "data"]).expect(0);
    assert!(follower.stdout() == stored.stdout, "{}", follower.stdout());
    for n in 1..=6000 {
        let line = n.to_string();
        assert_eq!(
            stored.stdout.lines().filter(|it| *it == line).count(),
            1,
            "{n}"
        );
    }
}

#[test]
fn the_end_says_which_attempt_and_whether_that_was_all() {
    let place = Place::new();
    let server = place.server(&["--heartbeat-interval", "500ms"]);
    let _agent = agent(&place, &server.url);
    let (run, job) = server.submit(&["printf 'a\\nb\\n\\033[2Jred\\n'"]);
    assert_eq!(server.outcome(&run), "SUCCESS");
    let logs = |more: &[&str]| {
        let args = ["logs", &job, "--data", "data"];
        place.delta(args.iter().chain(more)).expect(0)
    };
    let all = logs(&[]);
    assert!(
        all.stdout.ends_with("b\n\u{1b}[2Jred\n"),
        "as it is: {:?}",
        all.stdout
    );
    assert_eq!(all.stderr, "attempt 1: log complete\n");
    assert_eq!(logs(&["--attempt", "1"]).stdout, all.stdout);
    assert_eq!(logs(&["--raw"]).stdout, all.stdout);
    assert_eq!(logs(&["--tail", "1"]).stdout, "\u{1b}[2Jred\n");
    assert_eq!(logs(&["--tail", "1", "-f"]).stdout, "\u{1b}[2Jred\n");
    assert_eq!(logs(&["--tail", "99"]).stdout, all.stdout);
    let lines = logs(&["--json", "-f"]);
    let lines: Vec<Value> = lines
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [.., b, _, end] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(*b, serde_json::json!({ "attempt": 1, "line": "b" }));
    assert_eq!(*end, serde_json::json!({ "attempt": 1, "end": "complete" }));
    let none = place.delta(["logs", &job, "--attempt", "7", "--data", "data"]);
    none.expect(5);
}

#[test]
fn following_a_job_nobody_ran_ends_when_it_is_canceled() {
    let place = Place::new();
    let server = place.server(&[]);
    let (run, job) = server.submit(&["true"]);
    let follower = follow(&place, &[&job]);
    place.delta(["cancel", &run, "--data", "data"]).expect(0);
    assert_eq!(follower.wait(PATIENCE).unwrap().code(), Some(0));
    assert!(
        follower.stderr().contains("there is no log"),
        "{}",
        follower.stderr()
    );
}
