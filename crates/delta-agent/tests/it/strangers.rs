//! What a job of the agent's own user does against a shim: it crowds at its socket, and leaves
//! processes behind that nothing tells any more whose they are.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use delta_agent::attempt::adopt_all;
use delta_core::Cause;
use delta_core::time::Span;
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, is_running, until};
use crate::shim::{processes, shims};

/// More than a shim lets in, and than any job has a use for.
const CROWD: usize = 300;

fn socket(bench: &Bench) -> PathBuf {
    bench.state.path().join("attempts/1/control")
}

/// Ends a process as a stranger would.
fn kill(pid: &str) {
    let pid = Pid::from_raw(pid.parse().expect("a number")).expect("a number");
    kill_process(pid, Signal::KILL).expect("killed");
}

// D7: the next agent gets in, whoever else is there.
#[tokio::test]
async fn silent_strangers_keep_no_agent_out() {
    let bench = Bench::new(&["echo up; until [ -e go ]; do sleep 0.02; done; echo done"]);
    let first = bench.start();
    bench.seen.wait_for("out up").await;
    let path = socket(&bench);
    let crowd = || -> Vec<UnixStream> {
        let come = |_| UnixStream::connect(&path).expect("a connection");
        (0..CROWD).map(come).collect()
    };
    let before = crowd();
    drop(first);
    // Whoever comes now takes the place that the agent had, too.
    let meanwhile = crowd();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let behind = crowd();
    let adopted = adopt_all(&bench.state).await.remove(0);
    assert_eq!(adopted.standing.step, Some(0), "it goes on");
    let mut second = adopted.resume(&bench.state, bench.watcher());
    // Those who come now push out none that has shown the key.
    let more = crowd();
    std::fs::write(bench.work.workspace.join("go"), "").expect("told");
    let ended = bench.ended(&mut second).await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{}", ended.summary);
    drop((before, meanwhile, behind, more));
}

#[tokio::test]
async fn whoever_says_nothing_is_dropped() {
    use std::io::Read;
    let bench = Bench::new(&["echo up; until [ -e go ]; do sleep 0.02; done"]);
    let mut attempt = bench.start();
    bench.seen.wait_for("out up").await;
    let mut stranger = UnixStream::connect(socket(&bench)).expect("a connection");
    let heard = tokio::task::spawn_blocking(move || {
        let patience = Some(crate::bench::PATIENCE);
        stranger.set_read_timeout(patience).expect("a patience");
        stranger.read(&mut [0; 16])
    });
    assert_eq!(heard.await.expect("a thread").expect("an end"), 0);
    std::fs::write(bench.work.workspace.join("go"), "").expect("told");
    assert_eq!(bench.ended(&mut attempt).await.outcome, Outcome::Succeeded);
}

/// Connections without end, from a few threads, until this is dropped.
struct Flood {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Flood {
    fn at(path: PathBuf) -> Flood {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..2).map(|_| {
            let (path, stop) = (path.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut held = std::collections::VecDeque::new();
                while !stop.load(Ordering::Relaxed) {
                    match UnixStream::connect(&path) {
                        Ok(stream) => held.push_back(stream),
                        // Its shim is gone.
                        Err(_) => break,
                    }
                    if held.len() > CROWD {
                        held.pop_front();
                    }
                }
            })
        });
        Flood {
            threads: threads.collect(),
            stop,
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a thread");
        }
    }
}

// F8, F30: a job that crowds its own shim does not gain a moment by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_strangers_stops_neither_the_clock_nor_the_agent() {
    let mut bench = Bench::new(&["echo up; i=0; while :; do echo $((i=i+1)); sleep 0.05; done"]);
    // Time enough to be adopted on a busy machine.
    bench.ttl = Span::secs(10);
    let first = bench.start();
    bench.seen.wait_for("out up").await;
    let flood = Flood::at(socket(&bench));
    drop(first);
    let adopted = adopt_all(&bench.state).await.remove(0);
    assert_eq!(adopted.standing.step, Some(0), "it goes on");
    let mut second = adopted.resume(&bench.state, bench.watcher());
    bench.seen.wait_for("out 5").await;
    // Nobody renews the lease.
    let ended = bench.ended(&mut second).await;
    assert_eq!(ended.cause, Some(Cause::AgentError), "{}", ended.summary);
    assert!(ended.summary.contains("lease"), "{}", ended.summary);
    drop(flood);
    assert!(processes(&bench).is_empty());
}

/// A step that leaves a process which has nothing of the job's: no variable, no parent that lives,
/// no session; and one below it that was started later. What they are is in these files.
const STRAY: &str = "(env -i /usr/bin/setsid /bin/sh -c \
    'echo $$ > stray.new; mv stray.new stray; /bin/sh -c \"echo \\$\\$ > child; exec sleep 600\"; \
     sleep 600' > /dev/null 2>&1 &)\n\
    until [ -s stray ] && [ -s child ]; do sleep 0.01; done; echo up; sleep 600";

fn strays(bench: &Bench) -> [String; 2] {
    [bench.file("stray"), bench.file("child")]
}

// T28, D9: with no control group to find them by.
#[tokio::test]
async fn what_a_lost_shim_left_is_ended_whatever_it_did_to_be_nobodys() {
    let (mut bench, mut other) = (Bench::new(&[STRAY]), Bench::new(&[STRAY]));
    bench.work.control_group = false;
    other.work.control_group = false;
    let id = |bench: &Bench| bench.work.identity.job_id.clone();
    assert_ne!(id(&bench), id(&other), "or one would end the other");
    let (mut attempt, mut neighbour) = (bench.start(), other.start());
    bench.seen.wait_for("out up").await;
    other.seen.wait_for("out up").await;
    for pid in strays(&bench) {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).expect("an environment");
        assert!(!String::from_utf8_lossy(&environ).contains("DELTA"));
    }
    kill(&shims(&bench).remove(0));
    let ended = bench.ended(&mut attempt).await;
    assert_eq!(ended.cause, Some(Cause::AgentError));
    until("nothing is left", || {
        let left = strays(&bench).iter().any(|pid| is_running(pid));
        !left && processes(&bench).is_empty()
    })
    .await;
    // Nobody else's is touched.
    assert!(strays(&other).iter().all(|pid| is_running(pid)));
    assert_eq!(shims(&other).len(), 1);
    other.order(StopReason::Canceled, Duration::ZERO);
    assert!(other.ended(&mut neighbour).await.confirmed);
}

#[tokio::test]
async fn the_next_agent_ends_what_was_left_while_none_was_there() {
    let mut bench = Bench::new(&[STRAY]);
    bench.work.control_group = false;
    let attempt = bench.start();
    bench.seen.wait_for("out up").await;
    drop(attempt);
    kill(&shims(&bench).remove(0));
    until("its shim is gone", || shims(&bench).is_empty()).await;
    assert!(strays(&bench).iter().all(|pid| is_running(pid)));
    let adopted = adopt_all(&bench.state).await.remove(0);
    let mut second = adopted.resume(&bench.state, bench.watcher());
    let ended = bench.ended(&mut second).await;
    assert_eq!(ended.cause, Some(Cause::AgentError));
    let lost = "the agent's process that watched over the job was lost during step 1";
    assert_eq!(ended.summary, lost);
    assert!(!strays(&bench).iter().any(|pid| is_running(pid)));
}
