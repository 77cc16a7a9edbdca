//! Descriptors run out: of a server, by a crowd that says nothing; of an agent, by a limit that is
//! too low for its work. Neither dies of it, and both go on once there are some again.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use delta_testkit::process::{Process, Spawn, binary};

use crate::faults_agent::{only_job, run_of};
use crate::harness::person::SOON;
use crate::harness::server::finish;
use crate::harness::{Options, Person, Server, delta_ci, until};

/// As few as a server can do with, and many more than that of whoever comes.
const FEW: u32 = 96;
const CROWD: usize = 300;

/// The server's program with so many descriptors at the most, of which it cannot have more.
fn limited(most: u32) -> Spawn {
    let script = format!("ulimit -n {most}; exec \"$0\" \"$@\"");
    let program = binary("delta-ci").expect("the binary");
    Spawn::new("/bin/sh").args(["-c", &script]).arg(program)
}

/// The descriptors that a process has.
fn open(process: &Process) -> usize {
    let folder = format!("/proc/{}/fd", process.pid());
    std::fs::read_dir(Path::new(&folder)).map_or(0, Iterator::count)
}

fn come(address: SocketAddr) -> Option<TcpStream> {
    TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()
}

// F58: whoever holds connections and says nothing keeps nobody out for good.
#[test]
fn a_server_out_of_descriptors_lives_and_serves_again() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let words = ["server", "--listen", "127.0.0.1:0", "--data"];
    let process = limited(FEW).args(words).arg(&data).spawn().unwrap();
    let line = process.wait_for_line("listening on", SOON).unwrap();
    let address: SocketAddr = line.split("://").nth(1).unwrap().parse().unwrap();
    let token = ["token", "create", "--role", "user", "--data"];
    let token = finish(delta_ci().args(token).arg(&data));
    let person = Person::new(address, token.stdout.trim());
    let first = person.create(&run_of("true"));
    let before = open(&process);
    let crowd: Vec<TcpStream> = (0..CROWD).filter_map(|_| come(address)).collect();
    assert!(crowd.len() > FEW as usize, "{} came", crowd.len());
    let served = || {
        let answer = person.http.post("/api/v1/runs", &run_of("true"));
        answer.map_or(0, |it| it.status)
    };
    // Those who say nothing have their time, and then make room.
    until("it serves beside them", served, |it| *it == 201);
    drop(crowd);
    until("it serves without them", served, |it| *it == 201);
    until("all are closed", || open(&process), |it| *it <= before + 8);
    assert!(process.is_running(), "{}", process.stderr());
    let shown = person.run(&first);
    assert_eq!(shown["state"], "QUEUED", "{shown}");
    let done = finish(delta_ci().args(["doctor", "--data"]).arg(&data));
    assert_eq!(done.code, Some(0), "{done:?}");
}

// D10: work that an agent cannot begin for want of descriptors is not the job's failure.
#[test]
fn an_agent_short_of_descriptors_blames_no_job() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let file = server.folder().join("short.token");
    std::fs::write(&file, server.token("runner")).unwrap();
    let short = |most: u32| {
        limited(most)
            .args(["agent", "--name", "short", "--server"])
            .arg(format!("http://{}", server.addr()))
            .arg("--token-file")
            .arg(&file)
            .arg("--work-dir")
            .arg(server.folder().join("short"))
            .spawn()
            .unwrap()
    };
    // Enough to live, hardly enough to work: it does the job, or says why it could not.
    let agent = short(16);
    let run = person.create(&run_of("echo done"));
    let seen = until(
        "something becomes of it",
        || (person.run(&run), agent.stderr()),
        |(view, said)| !view["outcome"].is_null() || said.contains("Too many open files"),
    );
    let view = person.job(&only_job(&person, &run));
    let by_job = ["user_exit", "user_signal", "spec_error"].map(serde_json::Value::from);
    assert!(!by_job.contains(&view["cause"]), "{view} {seen:?}");
    assert!(agent.is_running(), "{}", agent.stderr());
    agent.kill9().unwrap();
    agent.wait(SOON).unwrap();
    // One that has some does it.
    let _next = short(1024);
    let next = person.create(&run_of("echo done"));
    assert_eq!(person.until_over(&next)["outcome"], "SUCCESS");
    server.check();
}
