//! Runner processes: how they are started, whom they are taken for, and that they end.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use delta_agent::functions::{PoolHealth, ProcessHealth, ProcessState};
use delta_core::Cause;
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use delta_testkit::port::{free_port, free_ports};
use serde_json::json;

use super::bench::{Neighbour, Pools, hostile, join_all, order, sdk_runners};
use crate::bench::{PATIENCE, is_running, until};

// RQ-7, A46, RP-54: both ways to be told the address, and nothing of the agent's.
#[tokio::test]
async fn a_runner_is_told_its_address_twice_and_sees_nothing_of_the_agent() {
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().canonicalize().expect("a path");
    let more = format!("env: {{OWN: mine}}\n    working_folder: {}", path.display());
    let pools = Pools::start(&more);
    let me = pools.result("h#process", json!({})).await;
    let env = me["env"].as_object().unwrap();
    let address = env["RRQ_RUNNER_TCP_SOCKET"].as_str().unwrap();
    let known = pools.pool("h").processes[0].address.unwrap();
    assert_eq!(address, known.to_string());
    assert!(known.ip().is_loopback());
    let argv: Vec<&str> = me["argv"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|it| it.as_str())
        .collect();
    assert_eq!(argv[1..], ["--tcp-socket", address]);
    assert_eq!(env["OWN"], "mine");
    assert_eq!(me["cwd"], path.to_str().unwrap());
    // What it is started with; `python3` itself may be a script that adds to it.
    let guard = pools.pool("h").processes[0].pid.unwrap();
    let given = std::fs::read(format!("/proc/{guard}/environ")).expect("an environment");
    let given = String::from_utf8(given).expect("text");
    let names = given.split('\0').filter_map(|it| it.split('=').next());
    for name in names.filter(|name| !name.is_empty()) {
        let allowed = ["PATH", "LANG", "HOME", "OWN", "RRQ_RUNNER_TCP_SOCKET"];
        assert!(allowed.contains(&name), "{name} is none of its business");
    }
    // Its parent is no init, which some runners do not live under.
    assert_eq!(me["parent"], guard);
}

// RQ-9
#[tokio::test]
async fn every_process_of_a_pool_has_a_port_of_its_own() {
    let pools = Pools::start("size: 6\n    in_flight: 1");
    pools.ready().await;
    let processes = pools.pool("h").processes;
    let ports: BTreeSet<_> = processes
        .iter()
        .map(|it| it.address.unwrap().port())
        .collect();
    assert_eq!(ports.len(), 6);
    let busy = Neighbour::new();
    let begun = async {
        let each = |pool: &PoolHealth| pool.processes.iter().all(|it| it.in_flight == 1);
        pools.until("each has one", each).await;
        busy.go();
    };
    let calls = join_all((0..6).map(|_| busy.call(&pools)));
    tokio::join!(calls, begun);
}

// As a firewall or another program may want it.
#[tokio::test]
async fn the_processes_of_a_pool_listen_where_its_file_says() {
    let first = free_ports(2).expect("two ports");
    let pools = Pools::start(&format!("size: 2\n    port: {first}"));
    pools.ready().await;
    let pool = pools.pool("h");
    let ports = pool.processes.iter().filter_map(|it| it.address);
    let ports: Vec<u16> = ports.map(|it| it.port()).collect();
    assert_eq!(ports, [first, first + 1]);
}

// A46: a stranger on its port is not spoken to, and it gets another port.
#[tokio::test]
async fn a_listener_that_is_not_the_child_is_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let here = place.path().join("port");
    let more = format!("env: {{MODE: elsewhere, HERE: {}}}", here.display());
    let pools = Pools::start(&more);
    let port = || std::fs::read_to_string(&here).ok()?.parse::<u16>().ok();
    until("it says its port", || port().is_some()).await;
    let taken = port().unwrap();
    let stranger = TcpListener::bind(("127.0.0.1", taken)).expect("the port");
    stranger.set_nonblocking(true).expect("a socket");
    pools.never_ready("somebody else listens").await;
    pools.ready().await;
    assert_ne!(pools.pool("h").processes[0].address.unwrap().port(), taken);
    assert!(pools.result("h#echo", json!({})).await.is_object());
    let error = stranger.accept().expect_err("nobody came");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

/// Somebody who takes a port, answers whatever is asked there as if it were a runner, and keeps
/// what it heard.
struct Stranger {
    heard: Arc<Mutex<Vec<u8>>>,
    came: Arc<AtomicUsize>,
}

impl Stranger {
    fn at(port: u16) -> Stranger {
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
        let stranger = Stranger {
            heard: Arc::default(),
            came: Arc::default(),
        };
        let (heard, came) = (Arc::clone(&stranger.heard), Arc::clone(&stranger.came));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                came.fetch_add(1, Ordering::Relaxed);
                let heard = Arc::clone(&heard);
                std::thread::spawn(move || Stranger::forge(stream.expect("a connection"), &heard));
            }
        });
        stranger
    }

    fn forge(mut stream: TcpStream, heard: &Mutex<Vec<u8>>) -> Option<()> {
        let mut length = [0; 4];
        stream.read_exact(&mut length).ok()?;
        let mut json = vec![0; u32::from_be_bytes(length) as usize];
        stream.read_exact(&mut json).ok()?;
        heard.lock().expect("what was heard").extend(&json);
        let asked: serde_json::Value = serde_json::from_slice(&json).ok()?;
        let answer = json!({"type": "response", "payload": {
            "request_id": asked["payload"]["request_id"], "job_id": asked["payload"]["job_id"],
            "status": "success", "result": "forged",
        }});
        let answer = answer.to_string();
        let length = u32::try_from(answer.len()).expect("a frame");
        stream.write_all(&length.to_be_bytes()).ok()?;
        stream.write_all(answer.as_bytes()).ok()
    }

    /// It was called at least so often, and was told nothing.
    async fn heard_nothing(&self, times: usize) {
        until("it was called", || {
            self.came.load(Ordering::Relaxed) >= times
        })
        .await;
        let heard = self.heard.lock().expect("what was heard");
        assert!(heard.is_empty(), "{}", String::from_utf8_lossy(&heard));
    }
}

// A46: a listener ends before its process does, and then its port is anybody's. Whoever takes it is
// told nothing, neither a call nor a cancel, and what it answers is nobody's.
#[tokio::test]
async fn whoever_takes_the_port_of_a_runner_that_lives_on_is_told_nothing() {
    for more in ["grace: 300ms", "grace: 300ms\n    pipeline: true"] {
        let pools = Pools::start(more);
        let before = pools.result("h#process", json!({})).await;
        let port = pools.pool("h").processes[0].address.unwrap().port();
        let stop = tokio::sync::watch::Sender::new(None);
        let under_way = pools.call_until("h#wait", json!({}), stop.subscribe());
        let meanwhile = async {
            pools.until_running(1).await;
            pools.call("h#deafen", json!({})).await;
            let stranger = Stranger::at(port);
            // Only where it has a connection of its own it is still there to be canceled.
            stop.send_replace(order(StopReason::Canceled, PATIENCE));
            stranger
        };
        let (_, stranger) = tokio::join!(under_way, meanwhile);
        let after = pools.result("h#process", json!({})).await;
        assert_ne!(after["pid"], before["pid"], "{after}");
        stranger.heard_nothing(1).await;
    }
}

// The same where a call is what comes next.
#[tokio::test]
async fn a_call_does_not_go_to_whoever_took_the_port_of_its_runner() {
    for more in ["", "pipeline: true"] {
        let pools = Pools::start(more);
        let before = pools.result("h#process", json!({})).await;
        let port = pools.pool("h").processes[0].address.unwrap().port();
        pools.call("h#deafen", json!({})).await;
        assert!(is_running(&before["pid"].to_string()), "it lives on");
        let stranger = Stranger::at(port);
        let calls = (0..4).map(|_| pools.result("h#process", json!({"secret": 1})));
        for answer in join_all(calls).await {
            assert_ne!(answer["pid"], before["pid"], "{answer}");
            assert!(answer["pid"].is_u64(), "{answer}");
        }
        stranger.heard_nothing(1).await;
    }
}

// RQ-8
#[tokio::test]
async fn a_runner_that_listens_for_everybody_is_refused() {
    let pools = Pools::start("env: {MODE: open}");
    pools.never_ready("listens for everybody").await;
}

#[tokio::test]
async fn a_runner_that_does_not_come_up_says_why_and_its_calls_are_tried_elsewhere() {
    for (more, words) in [
        (
            "start_timeout: 2s\n    env: {MODE: exits}",
            "exit code 3: no such module",
        ),
        (
            "start_timeout: 300ms\n    env: {MODE: silent}",
            "did not listen within",
        ),
    ] {
        let pools = Pools::start(more);
        let end = pools.call("h#echo", json!({})).await;
        assert_eq!(end.ended.cause, Some(Cause::AgentError), "{end:?}");
        assert!(end.ended.summary.contains("`h` is not there"), "{end:?}");
        pools.never_ready(words).await;
        let process = pools.pool("h").processes[0].clone();
        assert!(
            process.starts > 1 || process.state != ProcessState::Ready,
            "{process:?}"
        );
    }
    let pools = Pools::of("pools: {h: {command: [/no/such/program]}}");
    pools.never_ready("cannot start /no/such/program").await;
}

// What a runner prints is read by more people than its pool's file is.
#[tokio::test]
async fn the_last_line_of_a_runner_shows_nothing_of_its_env() {
    let file = "pools:\n  h:\n    command: [sh, -c, 'echo no way to $DB >&2; exit 3']\n    \
                env: {DB: 'postgres://ann:hunter22@db'}\n";
    let pools = Pools::of(file);
    pools.never_ready("exit code 3: no way to ***").await;
}

// RQ-45: a name is matched in one way, by the server and here.
#[tokio::test]
async fn a_runner_is_called_by_its_name_in_any_letters() {
    let pools = Pools::start("");
    assert!(pools.result("H#echo", json!({})).await.is_object());
}

// kill -9 of the runner in mid call: the agent's failure, and the next call is answered.
#[tokio::test]
async fn a_runner_that_dies_is_started_again_and_its_calls_are_the_agents_failures() {
    for more in ["", "pipeline: true"] {
        let pools = Pools::start(more);
        let neighbour = pools.call("h#wait", json!({}));
        let dying = async {
            pools
                .until("one is under way", |pool| pool.processes[0].in_flight == 1)
                .await;
            pools.call("h#die", json!({})).await
        };
        let (neighbour, dying) = tokio::join!(neighbour, dying);
        for end in [&neighbour, &dying] {
            assert_eq!(end.ended.cause, Some(Cause::AgentError), "{end:?}");
            assert_eq!(end.ended.outcome, Outcome::Failed { exit_code: None });
        }
        let me = pools.result("h#process", json!({})).await;
        let killed = Command::new("kill")
            .args(["-9", &me["pid"].to_string()])
            .status();
        assert!(killed.expect("kill").success());
        let starts = |count| {
            move |pool: &PoolHealth| {
                pool.processes[0].starts >= count && pool.processes[0].state == ProcessState::Ready
            }
        };
        pools.until("it is back", starts(3)).await;
        let again = pools.result("h#process", json!({})).await;
        assert_ne!(again["pid"], me["pid"]);
    }
}

// A process that lives and lets nobody in has no calls, and would get every next one.
#[tokio::test]
async fn a_runner_that_lets_nobody_in_is_replaced() {
    for more in ["size: 2", "size: 2\n    pipeline: true"] {
        let pools = Pools::start(more);
        pools.ready().await;
        let unanswered = pools.call("h#deafen", json!({})).await;
        assert_eq!(unanswered.ended.cause, Some(Cause::AgentError));
        for _ in 0..8 {
            assert!(pools.result("h#process", json!({})).await.is_object());
        }
        let replaced = |pool: &PoolHealth| {
            let ready = |it: &ProcessHealth| it.state == ProcessState::Ready;
            let starts: u64 = pool.processes.iter().map(|it| it.starts).sum();
            starts == 3 && pool.processes.iter().all(ready)
        };
        pools.until("another is in its place", replaced).await;
    }
}

// Whoever is asked to end hands back what it has not begun, and finishes the rest.
#[tokio::test]
async fn a_runner_that_is_about_to_end_costs_no_call_anything() {
    for more in ["", "pipeline: true"] {
        let pools = Pools::start(more);
        let before = pools.result("h#process", json!({})).await;
        let under_way = pools.result("h#wait", json!({"seconds": 1}));
        let next = async {
            pools
                .until("one is under way", |pool| pool.processes[0].in_flight == 1)
                .await;
            pools.call("h#leave", json!({})).await;
            pools.result("h#process", json!({})).await
        };
        let (waited, after) = tokio::join!(under_way, next);
        assert_eq!(waited, "waited");
        assert_ne!(after["pid"], before["pid"]);
    }
}

/// The runner behind this guard.
fn child_of(guard: u32) -> String {
    let children = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut children = children.filter(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|it| it.split(' ').nth(2));
        parent == Some(guard.to_string().as_str())
    });
    let child = children.next().expect("a child");
    child.file_name().to_string_lossy().into_owned()
}

// Somebody restarts it by hand: the SDKs hand back what they have not begun, also on a connection
// that carries many calls.
#[tokio::test]
async fn a_runner_that_somebody_else_asks_to_end_loses_no_call() {
    let files = sdk_runners("--grace, '600'", "GRACE_SECONDS: '600'");
    for (file, more) in [
        (&files[0], ""),
        (&files[0], "    pipeline: true\n"),
        (&files[1], ""),
        (&files[1], "    pipeline: true\n"),
    ] {
        let pools = Pools::of(&format!("{file}{more}"));
        pools.ready().await;
        let place = tempfile::tempdir().expect("a folder");
        let (begun, go) = (place.path().join("begun"), place.path().join("go"));
        let params = json!({"path": begun, "go": go});
        let under_way = pools.call_job("job_1_1", "h#hold", params);
        let meanwhile = async {
            until("it has begun", || begun.exists()).await;
            let runner = child_of(pools.pool("h").processes[0].pid.expect("a guard"));
            let asked = Command::new("kill").args(["-TERM", &runner]).status();
            assert!(asked.expect("kill").success());
            let address = pools.pool("h").processes[0].address.expect("an address");
            until("it has heard", || TcpStream::connect(address).is_err()).await;
            let echoes = (0..3).map(|_| pools.call("h#echo", json!({"k": 1})));
            for end in join_all(echoes).await {
                assert_eq!(
                    end.ended.outcome,
                    Outcome::Succeeded,
                    "{file}{more}: {end:?}"
                );
            }
            assert!(is_running(&runner), "what runs has its time");
            std::fs::write(&go, "").expect("a file");
        };
        let (end, ()) = tokio::join!(under_way, meanwhile);
        assert_eq!(
            end.ended.outcome,
            Outcome::Succeeded,
            "{file}{more}: {end:?}"
        );
    }
}

// D9: nothing of a runner outlives its agent, not even what it moved to a session of its own.
#[tokio::test]
async fn runners_and_what_they_started_end_with_their_agent() {
    for orderly in [true, false] {
        let place = tempfile::tempdir().expect("a folder");
        let script = place.path().join("run.sh");
        let child = place.path().join("child");
        let text = format!(
            "setsid sleep 600 & echo $! > {}\nexec python3 {} \"$@\"\n",
            child.display(),
            hostile().display()
        );
        std::fs::write(&script, text).expect("a script");
        let file = format!("pools: {{h: {{command: [sh, {}]}}}}", script.display());
        let pools = Pools::of(&file);
        let me = pools.result("h#process", json!({})).await;
        let pids = [
            me["pid"].to_string(),
            me["parent"].to_string(),
            std::fs::read_to_string(&child)
                .expect("a number")
                .trim()
                .to_owned(),
        ];
        assert!(pids.iter().all(|pid| is_running(pid)), "{pids:?}");
        match orderly {
            true => pools.functions.shut_down().await,
            // As when the agent is killed: the pipe to the guard closes.
            false => drop(pools),
        }
        until("all of it is gone", || {
            !pids.iter().any(|pid| is_running(pid))
        })
        .await;
    }
}

// The same when it is the guard that somebody ends, with nothing to be known by.
#[tokio::test]
async fn what_a_lost_guard_left_is_ended() {
    let place = tempfile::tempdir().expect("a folder");
    let (script, child) = (place.path().join("run.sh"), place.path().join("child"));
    let text = format!(
        "env -i /usr/bin/setsid /bin/sh -c 'echo $$ > {}; exec sleep 600' &\n\
         exec python3 {} \"$@\"\n",
        child.display(),
        hostile().display()
    );
    std::fs::write(&script, text).expect("a script");
    let file = format!("pools: {{h: {{command: [sh, {}]}}}}", script.display());
    let pools = Pools::of(&file);
    let me = pools.result("h#process", json!({})).await;
    let stray = std::fs::read_to_string(&child).expect("a number");
    let (stray, runner) = (stray.trim().to_owned(), me["pid"].to_string());
    assert!(is_running(&stray) && is_running(&runner));
    let guard = me["parent"].to_string();
    let killed = Command::new("kill").args(["-KILL", &guard]).status();
    assert!(killed.expect("kill").success());
    until("all of it is gone", || {
        !is_running(&stray) && !is_running(&runner)
    })
    .await;
    pools.functions.shut_down().await;
}

/// A runner that somebody else keeps alive.
struct Other(Child);

impl Other {
    fn start(port: u16) -> Other {
        let address = format!("127.0.0.1:{port}");
        let child = Command::new("python3")
            .arg(hostile())
            .env("RRQ_RUNNER_TCP_SOCKET", address)
            .spawn();
        Other(child.expect("python3"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_runner_of_somebody_elses_is_called_and_found_again() {
    let port = free_port().expect("a port");
    let file = format!("pools: {{h: {{address: '127.0.0.1:{port}', grace: 300ms}}}}");
    let pools = Pools::of(&file);
    pools.never_ready("refused").await;
    let other = Other::start(port);
    pools.ready().await;
    assert!(pools.result("h#echo", json!({})).await.is_object());
    // It cannot be ended from here, and nobody claims that it was.
    let stop = tokio::sync::watch::Sender::new(None);
    let ordering = async {
        pools
            .until("one is under way", |pool| pool.processes[0].in_flight == 1)
            .await;
        stop.send_replace(order(StopReason::Canceled, PATIENCE));
    };
    let call = pools.call_until("h#never", json!({}), stop.subscribe());
    let (end, ()) = tokio::join!(call, ordering);
    assert!(!end.ended.confirmed, "{end:?}");
    drop(other);
    let _other = Other::start(port);
    pools.ready().await;
    assert!(pools.result("h#echo", json!({})).await.is_object());
}
