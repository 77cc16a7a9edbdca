//! Limits and priorities: what a job of the agent's own user does to the agent, to shims and to its
//! neighbours by calls that no rule of files governs, and to the mark by which it is found.

use std::path::Path;

use delta_testkit::process::Process;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::faults_agent::{is_alive, only_job, pid_in, run_of};
use crate::handover::log_of;
use crate::harness::{Options, Person, Server, until};
use crate::sandbox::{Place, enforced, printed, says};

/// Makes a call by the number that programs for 32 bits have for it: `setpriority` of a process.
const OLD_DOOR: &str = r#"
import ctypes, mmap, struct, sys
code = b"\x53\xb8" + struct.pack("<I", 97) + b"\xbb\x00\x00\x00\x00"
code += b"\xb9" + struct.pack("<I", int(sys.argv[1])) + b"\xba\x13\x00\x00\x00\xcd\x80\x5b\xc3"
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
print("BY-THE-OLD-DOOR" if call() == 0 else "refused")
"#;

/// Tries each call on each process in `$THEM`, then what everybody may.
const ATTACKS: &str = r#"
for pid in $THEM; do
  for limit in as=1048576 nofile=3 cpu=1 nproc=1 fsize=1 locks=1; do
    prlimit --pid $pid --$limit && echo LIMITED
  done
  renice -n 19 -p $pid && echo RENICED
  ionice -c 3 -p $pid && echo IDLE-ON-DISK
  chrt --idle --pid 0 $pid && echo IDLE
  case $(uname -m) in x86_64) /usr/bin/python3 -c "$OLD_DOOR" $pid;; esac
  prlimit --pid $pid --nofile > /dev/null && echo read
done
renice -n 19 -u ${WHOM:-$(id -u)} && echo RENICED-ALL
/usr/bin/python3 -c 'import os
os.setpgid(0, os.getpgid(int(os.environ["PPID_OF_JOB"])))
os.setpriority(os.PRIO_PGRP, 0, 19)' && echo RENICED-GROUP
prlimit --locks=1 true && echo UNMARKED
bash -c 'ulimit -x 1' && echo UNMARKED
bash -c 'ulimit -n 200; ulimit -n' | grep 200 && echo own-limit
prlimit --nofile=100 true && nice -n 5 true && ionice -c 3 true && chrt --idle 0 true \
  && echo own-priority
/usr/bin/python3 -c 'import os; os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))' \
  && echo own-place
true
"#;

/// Leaves a key in the keyring of the job's user, where the next job of that user would find it,
/// and takes it back: this machine has other tests. By number: 248 and 250 are `add_key` and
/// `keyctl` of x86_64, 217 and 219 of the others; 9 unlinks, and -4 is the keyring of a user.
const LEAVES_A_KEY: &str = "import ctypes, platform
add, keyctl = (248, 250) if platform.machine() == 'x86_64' else (217, 219)
call = ctypes.CDLL(None, use_errno=True).syscall
serial = call(add, b'user', b'left-behind', b'for-the-next', 12, -4)
print('KEY-LEFT' if serial > 0 else 'no-keyring')
if serial > 0: call(keyctl, 9, serial, -4)";

// T28: the keyring of a slot's user outlives the job.
#[test]
fn a_confined_job_leaves_no_key_for_the_next() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let place = Place::new();
    let _agent = two_slots(&place, &server, "box", "host");
    let mut body = run_of("/usr/bin/python3 -c \"$LEAVES_A_KEY\"");
    body["jobs"][0]["job_spec"]["env"] = json!({"LEAVES_A_KEY": LEAVES_A_KEY});
    let seen = printed(&person, &body);
    assert!(
        says(&seen, "KEY-LEFT"),
        "one that is not confined can, on this machine: {seen:?}"
    );
    body["trust"] = json!("untrusted");
    let seen = printed(&person, &body);
    assert!(says(&seen, "no-keyring"), "{seen:?}");
    server.check();
}

/// Everything of a process that the attacks would change.
fn condition(pid: u32) -> String {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let words: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    // Priority, niceness and policy, as proc(5) counts them from the state on.
    format!(
        "{limits}\npriority {} {} {}",
        words[15], words[16], words[38]
    )
}

/// The attacks on these, as the job's own shell writes them.
fn attack(them: &str) -> Value {
    let mut body = run_of(&format!("{them}; export PPID_OF_JOB=$PPID{ATTACKS}"));
    body["jobs"][0]["job_spec"]["env"] = json!({"OLD_DOOR": OLD_DOOR});
    body
}

const WHAT_IS_DONE: [&str; 6] = [
    "LIMITED",
    "RENICED",
    "IDLE-ON-DISK",
    "IDLE",
    "RENICED-ALL",
    "UNMARKED",
];

/// The parent of a process.
fn above(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.unwrap().trim().parse().unwrap()
}

struct Neighbour {
    run: String,
    go: std::path::PathBuf,
    pid: u32,
}

impl Neighbour {
    fn begin(person: &Person, place: &Place, name: &str) -> Neighbour {
        let folder = place.shared(name);
        let (mark, go) = (folder.join("mark"), folder.join("go"));
        let run = person.create(&run_of(&format!(
            "echo $$ > {mark}.new; mv {mark}.new {mark}; until [ -e {go} ]; do sleep 0.05; done",
            mark = mark.display(),
            go = go.display(),
        )));
        let pid = pid_in(&mark);
        Neighbour { run, go, pid }
    }

    fn end(&self, person: &Person) {
        std::fs::write(&self.go, "").unwrap();
        let over = person.until_over(&self.run);
        assert_eq!(over["outcome"], "SUCCESS", "{over}");
        let attempt = person.attempt(&only_job(person, &self.run));
        assert_eq!(attempt["attempt"], 1, "{attempt}");
    }
}

fn two_slots(place: &Place, server: &Server, name: &str, sandbox: &str) -> Process {
    place.agent_with(server, name, sandbox, &["--slots", "2"])
}

// T28: an untrusted job and the agent, its shims and a neighbour's process are of one user.
#[test]
fn a_confined_job_changes_no_limit_and_no_priority_but_its_own() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let place = Place::new();
    let agent = two_slots(&place, &server, "box", "host");
    let words = enforced(&person, "box");
    println!("enforced: {}", words.join(" "));
    for word in ["untrusted:own-limits", "untrusted:own-priorities"] {
        assert!(says(&words, word), "{word}: {words:?}");
    }
    let neighbour = Neighbour::begin(&person, &place, "shared");
    let them = [agent.pid(), above(neighbour.pid), neighbour.pid];
    let before = them.map(condition);
    let numbers = them.map(|pid| pid.to_string()).join(" ");
    let mut body = attack(&format!("THEM=\"{numbers} $PPID\""));
    body["trust"] = json!("untrusted");
    let seen = printed(&person, &body);
    for line in WHAT_IS_DONE
        .iter()
        .chain(&["RENICED-GROUP", "BY-THE-OLD-DOOR"])
    {
        assert!(!says(&seen, line), "{line}: {seen:?}");
    }
    for line in ["read", "own-limit", "own-priority", "own-place"] {
        assert!(says(&seen, line), "{line}: {seen:?}");
    }
    assert_eq!(them.map(condition), before);
    assert!(agent.is_running());
    neighbour.end(&person);
    server.check();
}

// A trusted job on the host's sandbox keeps to its own limits, where signals stay inside as well;
// its tools may set priorities by process number, as by hand.
#[test]
fn a_job_of_the_host_changes_no_limit_but_its_own() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let place = Place::new();
    let agent = two_slots(&place, &server, "box", "host");
    let words = enforced(&person, "box");
    assert_eq!(
        says(&words, "own-limits"),
        says(&words, "no-signals"),
        "{words:?}"
    );
    assert!(!says(&words, "own-priorities"), "{words:?}");
    let limits = "prlimit --pid $THEM --nofile=3 && echo LIMITED; prlimit --locks=1 true && \
                  echo UNMARKED; sleep 60 & renice -n 15 -p $$ $! && ionice -c 3 -p $$ && \
                  echo own-priority; bash -c 'ulimit -n 200' && echo own-limit; kill $!";
    let mut body = run_of(limits);
    body["jobs"][0]["job_spec"]["env"] = json!({"THEM": agent.pid().to_string()});
    let before = condition(agent.pid());
    let seen = printed(&person, &body);
    if says(&words, "own-limits") {
        assert!(
            !says(&seen, "LIMITED") && !says(&seen, "UNMARKED"),
            "{seen:?}"
        );
        assert_eq!(condition(agent.pid()), before);
    }
    for line in ["own-priority", "own-limit"] {
        assert!(says(&seen, line), "{line}: {seen:?}");
    }
    drop(agent);
    // Where nothing is asked for, nothing is enforced: the attacks are real.
    let _agent = two_slots(&place, &server, "open", "open");
    let words = enforced(&person, "open");
    assert!(!says(&words, "own-limits"), "{words:?}");
    // One that loads nothing any more once it is up, and one of a user whom nobody else is: what
    // works on all of a user must reach no other test.
    let of_its_own = "if [ $(id -u) = 0 ]; then export WHOM=64321; \
                      setpriv --reuid $WHOM --clear-groups sleep 60 & \
                      until renice -n 1 -u $WHOM; do sleep 0.05; done; fi; \
                      /usr/bin/python3 -c 'import signal; open(\"up\", \"w\"); signal.pause()' & \
                      THEM=$!; until [ -e up ]; do sleep 0.05; done";
    let seen = printed(&person, &attack(of_its_own));
    for line in WHAT_IS_DONE {
        assert!(says(&seen, line), "{line}: {seen:?}");
    }
    if cfg!(target_arch = "x86_64") {
        assert!(says(&seen, "BY-THE-OLD-DOOR"), "{seen:?}");
    }
    server.check();
}

/// The number that the job printed behind this word.
fn number_in(log: &str, word: &str) -> Option<u32> {
    let line = log.lines().find_map(|line| line.strip_prefix(word));
    line?.trim().parse().ok()
}

// T28, D9: a job that does all it can to be found by nobody, and ends its shim, without root and
// without a control group. Should it fail at the latter, the test does it.
#[test]
fn a_job_cannot_take_its_mark_away_and_outlive_its_shim() {
    let server = Server::start(Options::patient());
    let person = server.person();
    let place = Place::new();
    let _agent = place.agent_with(&server, "box", "host", &[]);
    let mut body = run_of(
        "(env -i /usr/bin/setsid /bin/bash -c 'ulimit -x 1; prlimit --pid $$ --locks=1:1; \
          echo stray $$; touch hidden; exec sleep 600' &)\n\
         until [ -e hidden ]; do sleep 0.05; done\n\
         echo shim $PPID; kill -9 $PPID && echo KILLED; sleep 600",
    );
    body["trust"] = json!("untrusted");
    body["jobs"][0]["max_attempts"] = json!(1);
    let run = person.create(&body);
    let job = only_job(&person, &run);
    let log = until(
        "it hides",
        || log_of(&person, &job),
        |log| number_in(log, "shim ").is_some(),
    );
    let stray = number_in(&log, "stray ").unwrap();
    let shim = number_in(&log, "shim ").unwrap();
    if Path::new(&format!("/proc/{shim}")).exists() {
        // It may have succeeded just now.
        let _ = kill_process(Pid::from_raw(shim as i32).unwrap(), Signal::KILL);
    }
    let over = person.until_over(&run);
    assert_eq!(over["outcome"], "FAILED", "{over}");
    until("nothing is left", || is_alive(stray), |alive| !alive);
    server.check();
}
