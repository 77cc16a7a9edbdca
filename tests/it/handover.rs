//! Agents that go while their jobs run, and agents that come back to them.

use std::path::Path;
use std::time::Duration;

use delta_testkit::process::{Process, Spawn};
use serde_json::json;

use crate::faults_agent::{is_alive, only_job, pid_in, run_of};
use crate::harness::{Options, Person, Server, secret_in, storm_count, until};

/// How often the agent is killed.
fn kills() -> u32 {
    storm_count("DELTA_STORM_KILLS", 5)
}

/// The agent `box`, each time on the same folders.
pub fn agent(server: &Server) -> Spawn {
    server.agent("box")
}

pub fn log_of(person: &Person, job: &str) -> String {
    let log = person.http.get(&format!("/api/v1/jobs/{job}/log"));
    log.unwrap().text
}

/// A step that prints for a while, and everything it prints.
fn chatter(mark: &Path, lines: u32) -> (String, String) {
    let step = format!(
        "echo $$ > {mark}.new; mv {mark}.new {mark}\n\
         i=0; while [ $i -lt {lines} ]; do echo \"line $i of a job that prints\"; i=$((i+1)); \
         sleep 0.02; done",
        mark = mark.display()
    );
    let first = step.lines().next().unwrap();
    let mut wanted = format!("--- step 1: {first} …\n");
    for line in 0..lines {
        wanted.push_str(&format!("line {line} of a job that prints\n"));
    }
    (step, wanted)
}

fn check_one_lease(person: &Person, run: &str, wanted: &str) {
    let over = person.until_over(run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    let job = only_job(person, run);
    let attempt = person.attempt(&job);
    assert_eq!(
        (&attempt["attempt"], &attempt["losses"]),
        (&json!(1), &json!(0)),
        "{attempt}"
    );
    assert_eq!(attempt["leases"].as_array().unwrap().len(), 1, "{attempt}");
    assert_eq!(log_of(person, &job), wanted, "byte for byte");
}

// F8, D7: the same process finishes, one attempt, the log is what was printed.
#[test]
fn an_agent_killed_again_and_again_comes_back_to_the_same_process() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let mark = server.folder().join("mark");
    let (step, wanted) = chatter(&mark, kills() * 50);
    let mut running = agent(&server).spawn().unwrap();
    let run = person.create(&run_of(&step));
    let worker = pid_in(&mark);
    for kill in 0..kills() {
        let job = only_job(&person, &run);
        let line = format!("line {} of", kill * 40);
        until(
            "it prints on",
            || log_of(&person, &job),
            |log| log.contains(&line),
        );
        running.kill9().unwrap();
        assert!(is_alive(worker), "the job goes on without its agent");
        running = agent(&server).spawn().unwrap();
    }
    check_one_lease(&person, &run, &wanted);
    assert_eq!(pid_in(&mark), worker, "it was started once");
    until("it is gone", || is_alive(worker), |alive| !alive);
    let attempts = server.folder().join("box/state/attempts");
    until(
        "nothing is remembered of it",
        || std::fs::read_dir(&attempts).unwrap().count(),
        |left| *left == 0,
    );
    server.check();
}

// A job that ends while no agent is there is reported by the next one.
#[test]
fn a_result_that_nobody_was_there_for_is_reported_by_the_next_agent() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let (mark, go) = (server.folder().join("mark"), server.folder().join("go"));
    let step = format!(
        "echo $$ > {}; until [ -e {} ]; do sleep 0.02; done; echo done; exit 3",
        mark.display(),
        go.display()
    );
    let first = agent(&server).spawn().unwrap();
    let run = person.create(&run_of(&step));
    let worker = pid_in(&mark);
    first.kill9().unwrap();
    std::fs::write(&go, "").unwrap();
    until("it has ended", || is_alive(worker), |alive| !alive);
    let _second = agent(&server).spawn().unwrap();
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "FAILED", "{over}");
    let attempt = person.attempt(&only_job(&person, &run));
    assert_eq!(attempt["exit_code"], 3, "{attempt}");
    assert_eq!(attempt["leases"].as_array().unwrap().len(), 1, "{attempt}");
    server.check();
}

pub fn hand_over(old: &Process) {
    old.signal(rustix::process::Signal::USR2).unwrap();
    let status = old.wait(Duration::from_secs(30)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", old.stderr());
}

// D7: an upgrade does not disturb jobs.
#[test]
fn an_agent_hands_its_jobs_over_to_the_next() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let mark = server.folder().join("mark");
    let (step, wanted) = chatter(&mark, 100);
    let first = agent(&server).spawn().unwrap();
    let run = person.create(&run_of(&step));
    let worker = pid_in(&mark);
    hand_over(&first);
    assert!(is_alive(worker));
    let second = agent(&server).arg("--handover").spawn().unwrap();
    second
        .wait_for_line("1 slot", Duration::from_secs(30))
        .unwrap();
    second.terminate().unwrap();
    let status = second.wait(Duration::from_secs(30)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", second.stderr());
    assert!(is_alive(worker), "SIGTERM with --handover leaves it too");
    let _third = agent(&server).spawn().unwrap();
    check_one_lease(&person, &run, &wanted);
    server.check();
}

// F8, F30: nobody comes back; the lease's end is the end of the tree, and somebody else wins.
#[test]
fn a_job_whose_agent_stays_away_ends_with_its_lease() {
    let server = Server::start(Options::quick().flag("lease-ttl", "2s"));
    let person = server.person();
    let gone = agent(&server).spawn().unwrap();
    let mark = server.folder().join("mark");
    let step = format!(
        "trap '' TERM; echo $$ > {}; sleep 600; sleep 600",
        mark.display()
    );
    let run = person.create(&run_of(&step));
    let worker = pid_in(&mark);
    gone.kill9().unwrap();
    let other = server.runner("other");
    let grant = other.take();
    assert_eq!((&grant.run, grant.attempt), (&run, 1));
    // The holder counts from the sending, the server from the receipt: it ends first.
    until("the tree is gone", || is_alive(worker), |alive| !alive);
    other.succeed(&grant);
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    // The one that comes back late changes nothing, and is free for other work.
    let _late = agent(&server).spawn().unwrap();
    let next = person.create(&run_of("true"));
    assert_eq!(person.until_over(&next)["outcome"], "SUCCESS");
    server.check();
}

// T2, I24: no lease token and no credential in the sight of shim or job.
#[test]
fn no_secret_is_in_the_sight_of_shim_or_job() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server).spawn().unwrap();
    let (mark, go) = (server.folder().join("mark"), server.folder().join("go"));
    let step = format!(
        "echo $$ > {}; env; until [ -e {} ]; do sleep 0.02; done",
        mark.display(),
        go.display()
    );
    let run = person.create(&run_of(&step));
    let worker = pid_in(&mark);
    let stat = std::fs::read_to_string(format!("/proc/{worker}/stat")).unwrap();
    let shim = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .nth(1)
        .unwrap();
    let token = std::fs::read_to_string(server.folder().join("box.token")).unwrap();
    for pid in [&worker.to_string(), shim] {
        for file in ["environ", "cmdline"] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            assert_eq!(secret_in(&text), None);
            assert!(!text.contains(token.trim()), "{file} of {pid}");
        }
    }
    let words = std::fs::read(format!("/proc/{shim}/cmdline")).unwrap();
    assert!(
        String::from_utf8_lossy(&words).contains("shim"),
        "it is the shim"
    );
    std::fs::write(&go, "").unwrap();
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    assert_eq!(secret_in(&log_of(&person, &only_job(&person, &run))), None);
    server.check();
}

// EP-51, A34: told to stop, it waits, then ends its work and says why.
#[test]
fn an_agent_that_is_told_to_stop_ends_its_work_after_its_grace() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let agent = agent(&server)
        .args(["--shutdown-grace", "300ms"])
        .spawn()
        .unwrap();
    let mark = server.folder().join("mark");
    let step = format!("echo $$ > {}; sleep 600", mark.display());
    let run = person.create(&run_of(&step));
    let worker = pid_in(&mark);
    agent.terminate().unwrap();
    let status = agent.wait(Duration::from_secs(30)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", agent.stderr());
    assert!(!is_alive(worker));
    let job = only_job(&person, &run);
    let attempt = person.job(&job)["attempts"][0].clone();
    assert_eq!(attempt["cause"], "agent_shutdown", "{attempt}");
    server.check();
}

#[test]
fn an_agent_for_one_job_ends_after_it() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let run = person.create(&run_of("true"));
    let agent = agent(&server).arg("--once").spawn().unwrap();
    let status = agent.wait(Duration::from_secs(60)).unwrap();
    assert_eq!(status.code(), Some(0), "{}", agent.stderr());
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
}

// The environment is clean but for what is named.
#[test]
fn jobs_see_what_is_passed_and_a_confined_one_has_a_home_of_its_own() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let _agent = agent(&server)
        .args(["--sandbox", "strict", "--pass-env", "GREETING"])
        .env("GREETING", "hello")
        .env("HIDDEN", "secret")
        .spawn()
        .unwrap();
    let step = "echo \"$GREETING/$HIDDEN\"; touch \"$HOME/x\" \"$TMPDIR/y\" z; pwd; echo $HOME";
    let run = person.create(&run_of(step));
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    let log = log_of(&person, &only_job(&person, &run));
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines[1], "hello/", "{log}");
    assert!(
        lines[3].ends_with("/home") && lines[3].contains("box/attempts"),
        "{log}"
    );
    server.check();
}
