//! Jobs that print while their server is killed or the network to it is gone: for less than a
//! lease they do not notice, for longer somebody else does them.

use std::path::PathBuf;
use std::time::Duration;

use delta_testkit::proxy::{Direction, Proxy, Then, Trap, When};
use delta_testkit::rng::fresh_seed;
use serde_json::json;

use crate::faults_agent::{agent_at, is_alive, only_job, pid_in, run_of};
use crate::handover::log_of;
use crate::harness::{Options, Person, Server, storm_count, until, walk};

/// A job that prints without a pause until it is told to end, and notes how far it came.
struct Printer {
    step: String,
    mark: PathBuf,
    go: PathBuf,
}

impl Printer {
    fn new(server: &Server) -> Printer {
        let (mark, go) = (server.folder().join("mark"), server.folder().join("go"));
        let step = format!(
            "echo $$ > {mark}.new; mv {mark}.new {mark}\n\
             i=0; until [ -e {go} ]; do echo \"line $i of a job that prints\"; i=$((i+1)); \
             sleep 0.01; done; echo $i > {mark}.count",
            mark = mark.display(),
            go = go.display()
        );
        Printer { step, mark, go }
    }

    /// Tells it to end; returns what it has printed by then.
    fn ends(&self) -> String {
        std::fs::write(&self.go, "").unwrap();
        let lines = pid_in(&self.mark.with_extension("count"));
        let first = self.step.lines().next().unwrap();
        let mut printed = format!("--- step 1: {first} …\n");
        for line in 0..lines {
            printed.push_str(&format!("line {line} of a job that prints\n"));
        }
        printed
    }
}

/// Waits for more of the log than there is: the job prints, and somebody brings it here.
fn more_is_stored(person: &Person, job: &str) {
    let before = log_of(person, job).len();
    until(
        "more of the log is stored",
        || log_of(person, job).len(),
        |now| *now > before,
    );
}

/// The run ended well, under one lease, with this log and no other.
fn check_one_lease(person: &Person, run: &str, printed: &str) {
    let over = person.until_over(run);
    assert_eq!(over["outcome"], "SUCCESS", "{over}");
    let job = only_job(person, run);
    let attempt = person.attempt(&job);
    let seen = (&attempt["attempt"], &attempt["losses"]);
    assert_eq!(seen, (&json!(1), &json!(0)), "{attempt}");
    assert_eq!(attempt["leases"].as_array().unwrap().len(), 1, "{attempt}");
    check_log(person, &job, printed);
}

/// Every byte that was printed, none else, and said to be so.
pub fn check_log(person: &Person, job: &str, printed: &str) {
    let log = person.http.get(&format!("/api/v1/jobs/{job}/log"));
    let log = log.unwrap().expect(200);
    assert!(log.text == printed, "not what was printed:\n{}", log.text);
    assert_eq!(log.header("delta-log"), Some("complete"));
}

// F12, RP-60, EP-29, A27: the server is killed again and again; the job does not notice.
#[test]
fn a_server_killed_again_and_again_has_every_byte_of_the_job_it_left() {
    let mut server = Server::start(Options::patient());
    let person = server.person();
    let printer = Printer::new(&server);
    let _agent = agent_at(&server, server.addr(), "steady");
    let run = person.create(&run_of(&printer.step));
    let worker = pid_in(&printer.mark);
    let job = only_job(&person, &run);
    for kill in 1..=storm_count("DELTA_STORM_KILLS", 5) {
        more_is_stored(&person, &job);
        server.kill9();
        server.start_again();
        assert!(is_alive(worker), "the job goes on, kill {kill}");
    }
    more_is_stored(&person, &job);
    let printed = printer.ends();
    check_one_lease(&person, &run, &printed);
    assert_eq!(pid_in(&printer.mark), worker, "it was started once");
    server.check();
}

/// A lease, how often it is renewed, and for how long the network is gone under it.
struct Outage {
    ttl: &'static str,
    heartbeat: &'static str,
    length: Duration,
}

impl Outage {
    /// Ten heartbeats of a lease of thirty; in a storm a minute, with the timings of a real server.
    fn chosen() -> Outage {
        match storm_count("DELTA_STORM_OUTAGE_SECONDS", 0) {
            0 => Outage {
                ttl: "8s",
                heartbeat: "250ms",
                length: Duration::from_millis(2500),
            },
            seconds => Outage {
                ttl: "150s",
                heartbeat: "20s",
                length: Duration::from_secs(seconds.into()),
            },
        }
    }
}

// F29, LM-24: for many heartbeats and less than a lease; first nothing passes, then the
// connection is gone and no other can be made.
#[test]
fn a_network_that_is_gone_for_less_than_a_lease_costs_nothing() {
    let chosen = Outage::chosen();
    let options = Options::patient().flag("lease-ttl", chosen.ttl);
    let server = Server::start(options.flag("heartbeat-interval", chosen.heartbeat));
    let person = server.person();
    let printer = Printer::new(&server);
    let proxy = Proxy::start(server.addr(), fresh_seed()).unwrap();
    let _agent = agent_at(&server, proxy.addr(), "cut-off");
    let run = person.create(&run_of(&printer.step));
    let worker = pid_in(&printer.mark);
    let job = only_job(&person, &run);
    let outage = || std::thread::sleep(chosen.length);
    more_is_stored(&person, &job);
    Direction::BOTH.into_iter().for_each(|it| proxy.hold(it));
    outage();
    Direction::BOTH.into_iter().for_each(|it| proxy.release(it));
    more_is_stored(&person, &job);
    proxy.refuse_connections();
    assert!(proxy.cut_all() > 0);
    outage();
    proxy.accept_connections();
    more_is_stored(&person, &job);
    assert!(is_alive(worker));
    let printed = printer.ends();
    check_one_lease(&person, &run, &printed);
    assert_eq!(pid_in(&printer.mark), worker, "it was started once");
    server.check();
    println!(
        "twice {} s without a network, a lease of {}: one attempt, one lease, {} bytes of log, \
         every one as printed",
        chosen.length.as_secs_f64(),
        chosen.ttl,
        printed.len()
    );
}

// F30, F7, LM-13: for longer than a lease; another agent wins, and what the first one still has
// on its way arrives when the second one works already.
#[test]
fn a_network_that_is_gone_for_longer_than_a_lease_leaves_one_winner() {
    let server = Server::start(Options::quick().flag("lease-ttl", "3s"));
    let person = server.person();
    let proxy = Proxy::start(server.addr(), fresh_seed()).unwrap();
    let _cut_off = agent_at(&server, proxy.addr(), "cut-off");
    let (mark, go) = (server.folder().join("mark"), server.folder().join("go"));
    // The first execution prints for good and leaves a child; the second one waits for a word.
    let step = format!(
        ": two executions\n\
         mkdir {mark}.first 2>/dev/null || exec sh -c 'echo begun; echo 1 > {mark}.second; \
         until [ -e {go} ]; do sleep 0.02; done; echo won'\n\
         trap '' TERM; sleep 600 & echo $! > {mark}.child; echo $$ > {mark}\n\
         while :; do echo loser; sleep 0.01; done",
        mark = mark.display(),
        go = go.display()
    );
    let run = person.create(&run_of(&step));
    let tree = [pid_in(&mark.with_extension("child")), pid_in(&mark)];
    let job = only_job(&person, &run);
    more_is_stored(&person, &job);
    Direction::BOTH.into_iter().for_each(|it| proxy.hold(it));
    let winner = agent_at(&server, server.addr(), "winner");
    pid_in(&mark.with_extension("second"));
    for pid in tree {
        until("the loser's tree is gone", || is_alive(pid), |it| !*it);
    }
    let passed = proxy.passed(Direction::ToServer);
    Direction::BOTH.into_iter().for_each(|it| proxy.release(it));
    until(
        "what was on its way has come",
        || proxy.passed(Direction::ToServer),
        |now| *now > passed,
    );
    std::fs::write(&go, "").unwrap();
    assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
    assert_eq!(walk(&person, &run).finals.len(), 1, "one winner");
    let attempt = person.attempt(&job);
    assert_eq!(attempt["losses"], 1, "{attempt}");
    assert_eq!(attempt["leases"][0]["state"], "EXPIRED", "{attempt}");
    check_log(
        &person,
        &job,
        "--- step 1: : two executions …\nbegun\nwon\n",
    );
    // The loser is of use again.
    drop(winner);
    let next = person.create(&run_of("true"));
    assert_eq!(person.until_over(&next)["outcome"], "SUCCESS");
    server.check();
}

/// The answer to the result of a job's only lease, as it passes: CompleteAck in ServerMessage.
fn answer_to_result(person: &Person, job: &str) -> Vec<u8> {
    let epoch = &person.attempt(job)["leases"][0]["epoch"];
    let (run, n) = job["job_".len()..].split_once('_').unwrap();
    let run_id = format!("exec_{run}_{n}_1_{epoch}");
    let length = u8::try_from(run_id.len()).unwrap();
    let mut bytes = vec![13 << 3 | 2, length + 4, 1 << 3 | 2, length];
    bytes.extend_from_slice(run_id.as_bytes());
    bytes.extend([2 << 3, 1]);
    bytes
}

// A18, F5: the connection breaks between the result and its answer, and the server may be killed
// then; the same result is answered the same, and the agent has nothing to keep.
#[test]
fn a_result_whose_answer_was_lost_is_answered_again() {
    for killed in [false, true] {
        let mut server = Server::start(Options::patient());
        let person = server.person();
        let proxy = Proxy::start(server.addr(), fresh_seed()).unwrap();
        let agent = agent_at(&server, proxy.addr(), "cut-off");
        let (mark, go) = (server.folder().join("mark"), server.folder().join("go"));
        let (mark_at, go_at) = (mark.display(), go.display());
        let step = format!("echo $$ > {mark_at}; until [ -e {go_at} ]; do sleep 0.02; done");
        let run = person.create(&run_of(&step));
        pid_in(&mark);
        let answer = When::Pattern(answer_to_result(&person, &only_job(&person, &run)));
        proxy.trap(Trap::once(Direction::ToClient, answer, Then::DropAndReset));
        proxy.refuse_connections();
        std::fs::write(&go, "").unwrap();
        assert_eq!(person.until_over(&run)["outcome"], "SUCCESS");
        until("the answer was lost", || proxy.armed(), |traps| *traps == 0);
        let events = person.events(&run).len();
        if killed {
            server.kill9();
            server.start_again();
        }
        proxy.accept_connections();
        agent
            .wait_for_line("end=Settled", Duration::from_secs(30))
            .unwrap();
        let attempts = server.folder().join("cut-off/state/attempts");
        let left = || std::fs::read_dir(&attempts).unwrap().count();
        until("the agent has forgotten it", left, |left| *left == 0);
        assert_eq!(person.events(&run).len(), events, "nothing more happened");
        server.check();
    }
}
