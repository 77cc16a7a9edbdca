//! What jobs reach of their agent and of each other beside files: what whoever started the agent
//! had open, sockets, shared memory, and a life after the job.

use std::collections::BTreeSet;
use std::path::Path;

use delta_testkit::process::{Process, Spawn, binary};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::faults_agent::{is_alive, only_job, pid_in, run_of};
use crate::handover::log_of;
use crate::harness::{Options, Server, until};
use crate::sandbox::{Place, enforced, printed, says};

/// Starts a program of ours from a shell that has files open which are none of its business.
fn from_a_careless_shell(server: &Server) -> Spawn {
    let secret = server.folder().join("of-the-house");
    std::fs::write(&secret, "of the house\n").unwrap();
    Spawn::new("/bin/bash")
        .clean_env()
        .env("PATH", std::env::var("PATH").unwrap_or_default())
        .args(["-c", "exec 3<\"$0\" 9<>\"$0\" 77<\"$0\"; exec \"$@\""])
        .arg(secret)
        .arg(binary("delta-ci").unwrap())
}

fn careless_agent(server: &Server, more: &[&str]) -> Process {
    let token = server.folder().join("box.token");
    std::fs::write(&token, server.token("runner")).unwrap();
    from_a_careless_shell(server)
        .args(["agent", "--name", "box", "--server"])
        .arg(format!("http://{}", server.addr()))
        .arg("--token-file")
        .arg(&token)
        .arg("--work-dir")
        .arg(server.folder().join("box"))
        .args(more)
        .spawn()
        .unwrap()
}

// T2, T28: no descriptor of the agent's surroundings reaches a job, whatever confines it.
#[test]
fn a_job_is_born_with_three_descriptors() {
    // A descriptor is used by number: its file is not opened again. The others are looked for one
    // by one, in the step's own shell: a list of them, or a program that has just been started,
    // would have some more of its own.
    let step = "for n in 3 9 77; do bash -c \"cat <&$n\" && echo READ; done; n=0\n\
                while [ $n -lt 256 ]; do [ ! -e /proc/$$/fd/$n ] || echo \"has $n\"; n=$((n+1)); done";
    for sandbox in ["strict", "host", "open"] {
        let server = Server::start(Options::patient());
        let person = server.person();
        let _agent = careless_agent(&server, &["--sandbox", sandbox]);
        for trust in ["trusted", "untrusted"] {
            let mut body = run_of(step);
            body["trust"] = json!(trust);
            let lines = printed(&person, &body);
            assert!(!says(&lines, "of the house"), "{sandbox} {lines:?}");
            assert!(!says(&lines, "READ"), "{sandbox} {lines:?}");
            let has = lines.iter().filter_map(|line| line.strip_prefix("has "));
            let has: BTreeSet<&str> = has.collect();
            assert_eq!(has, ["0", "1", "2"].into(), "{sandbox} {trust}");
        }
        server.check();
    }
}

/// What a process had open of its starter's when it wrote this. A shell opens some more itself.
fn handed_on(file: &Path) -> Vec<String> {
    let text = until(
        "it is written",
        || std::fs::read_to_string(file).unwrap_or_default(),
        |text| !text.is_empty(),
    );
    assert!(text.lines().any(|line| line == "1"), "{text}");
    let theirs = |line: &&str| ["3", "9", "77"].contains(line);
    text.lines().filter(theirs).map(str::to_owned).collect()
}

/// A line that writes what its own shell has open.
fn tells_what_is_open(file: &Path) -> String {
    let file = file.display();
    format!("ls /proc/$$/fd > {file}.new && mv {file}.new {file}")
}

#[test]
fn a_runner_of_a_pool_is_handed_nothing_of_whoever_started_the_agent() {
    let server = Server::start(Options::patient());
    let file = server.folder().join("open");
    let tells = tells_what_is_open(&file);
    let pools = format!("pools:\n  sh:\n    command: [sh, -c, '{tells}; sleep 600']\n");
    let runners = server.folder().join("runners.yaml");
    std::fs::write(&runners, pools).unwrap();
    let _agent = careless_agent(&server, &["--runners", runners.to_str().unwrap()]);
    assert_eq!(handed_on(&file), [""; 0]);
    server.check();
}

// The same program plans, serves and works: what it starts is handed nothing, in whichever role.
#[test]
fn git_is_handed_nothing_of_whoever_typed_the_command() {
    use std::os::unix::fs::PermissionsExt;
    let server = Server::start(Options::patient());
    let (tools, repository) = (server.folder().join("tools"), server.folder().join("repo"));
    let file = server.folder().join("open");
    for folder in [&tools, &repository] {
        std::fs::create_dir(folder).unwrap();
    }
    let git = tools.join("git");
    let tells = tells_what_is_open(&file);
    std::fs::write(&git, format!("#!/bin/sh\n{tells}\nexit 1\n")).unwrap();
    std::fs::set_permissions(&git, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let planned = from_a_careless_shell(&server)
        .env("PATH", format!("{}:{path}", tools.display()))
        .arg("plan")
        .current_dir(repository)
        .spawn()
        .unwrap();
    assert_eq!(handed_on(&file), [""; 0]);
    planned.wait(std::time::Duration::from_secs(60)).unwrap();
}

/// Keeps connections open, silently, to the sockets of all shims of this agent, as many as it gets;
/// those that are closed it opens anew.
const CROWDS: &str = r#"
import os, socket, sys, time
attempts = os.path.join(sys.argv[1], "attempts")
held = {number: [] for number in range(1, 12)}
reached = False

def is_open(one):
    try:
        return one.recv(1, socket.MSG_DONTWAIT) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False

print("up", flush=True)
while True:
    for number in held:
        held[number] = [one for one in held[number] if is_open(one)]
        for _ in range(20):
            one = socket.socket(socket.AF_UNIX)
            one.settimeout(0.2)
            try:
                one.connect(os.path.join(attempts, str(number), "control"))
                one.setblocking(False)
                held[number].append(one)
            except OSError:
                break
        del held[number][80:]
    if not reached and sum(map(len, held.values())) > 80:
        reached = True
        print("crowding", flush=True)
    time.sleep(0.01)
"#;

// D7, T28: of two jobs of an agent that is not root, one crowds at the other's shim while the agent
// is killed, and while it is handed over.
#[test]
fn a_job_cannot_spoil_the_adoption_of_its_neighbour() {
    for (trust, handover) in [
        ("untrusted", false),
        ("untrusted", true),
        ("trusted", false),
    ] {
        let server = Server::start(Options::patient());
        let person = server.person();
        let place = Place::new();
        let slots = ["--slots", "2"];
        let agent = place.agent_with(&server, "box", "host", &slots);
        let folder = place.shared("shared");
        std::fs::write(folder.join("crowds.py"), CROWDS).unwrap();
        let [mark, say, go] = ["mark", "say", "go"].map(|name| folder.join(name));
        let neighbour = person.create(&run_of(&format!(
            "echo $$ > {mark}; until [ -e {say} ]; do sleep 0.05; done; echo said; \
             until [ -e {go} ]; do sleep 0.05; done; echo done",
            say = say.display(),
            mark = mark.display(),
            go = go.display(),
        )));
        let worker = pid_in(&mark);
        // An untrusted one reads nothing there: it is told through its own variables.
        let script = std::fs::read_to_string(folder.join("crowds.py")).unwrap();
        let mut body =
            run_of("printf %s \"$CROWDS\" > crowds.py; /usr/bin/python3 crowds.py $STATE");
        body["trust"] = json!(trust);
        body["jobs"][0]["job_spec"]["env"] = json!({
            "CROWDS": script,
            "STATE": place.path("box").join("state"),
        });
        let crowd = person.create(&body);
        let crowding = only_job(&person, &crowd);
        // Where an untrusted one finds no socket, there is nothing to crowd at.
        let sign = match trust {
            "trusted" => "\ncrowding\n",
            _ => "\nup\n",
        };
        let is_up = |log: &String| log.contains(sign);
        until("it crowds", || log_of(&person, &crowding), is_up);
        if handover {
            crate::handover::hand_over(&agent)
        } else {
            agent.kill9().unwrap()
        }
        drop(agent);
        let _next = place.agent_again(&server, "box", "host", &slots);
        // Followed by the new one, and not only found with its end.
        std::fs::write(&say, "").unwrap();
        let job = only_job(&person, &neighbour);
        let has_said = |log: &String| log.contains("\nsaid\n");
        until("it is followed", || log_of(&person, &job), has_said);
        std::fs::write(&go, "").unwrap();
        let over = person.until_over(&neighbour);
        assert_eq!(over["outcome"], "SUCCESS", "{trust} {handover}: {over}");
        let attempt = person.attempt(&only_job(&person, &neighbour));
        // A lease that was lost would have been followed by another one of the same attempt.
        let leases = attempt["leases"].as_array().map(Vec::len);
        assert_eq!(
            (&attempt["attempt"], leases),
            (&json!(1), Some(1)),
            "{attempt}"
        );
        until("it is gone", || is_alive(worker), |alive| !alive);
        person.cancel(&crowd).unwrap().expect(200);
        person.until_over(&crowd);
        server.check();
    }
}

/// The shim of an agent's only attempt.
fn shim_of(state: &Path) -> i32 {
    let wanted = state.join("attempts");
    let wanted = wanted.to_str().unwrap();
    let shims = || {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            let shim = line.split('\0').any(|word| word == "shim");
            if shim && line.contains(wanted) {
                found.extend(
                    entry
                        .file_name()
                        .to_str()
                        .and_then(|it| it.parse::<i32>().ok()),
                );
            }
        }
        found
    };
    until("there is a shim", shims, |found| found.len() == 1)[0]
}

// T28, D9: kill -9 of the shim, a process that did all it could to be nobody's, no control group,
// and an agent that is not root; there, and not there.
#[test]
fn nothing_of_a_job_outlives_its_lost_shim() {
    for agent_lives in [true, false] {
        let server = Server::start(Options::patient());
        let person = server.person();
        let place = Place::new();
        let agent = place.agent_with(&server, "box", "host", &[]);
        let folder = place.shared("shared");
        let stray = folder.join("stray");
        let mut body = run_of(&format!(
            "(env -i /usr/bin/setsid /bin/sh -c 'echo $$ > {stray}; exec sleep 600' \
             > /dev/null 2>&1 &); sleep 600",
            stray = stray.display()
        ));
        body["jobs"][0]["max_attempts"] = json!(1);
        let run = person.create(&body);
        let stray = pid_in(&stray);
        let shim = Pid::from_raw(shim_of(&place.path("box").join("state"))).unwrap();
        let _next = if agent_lives {
            kill_process(shim, Signal::KILL).unwrap();
            agent
        } else {
            agent.kill9().unwrap();
            drop(agent);
            kill_process(shim, Signal::KILL).unwrap();
            assert!(is_alive(stray));
            place.agent_again(&server, "box", "host", &[])
        };
        until("nothing is left", || is_alive(stray), |alive| !alive);
        let over = person.until_over(&run);
        assert_eq!(over["outcome"], "FAILED", "{over}");
        let attempt = person.attempt(&only_job(&person, &run));
        assert_eq!(attempt["cause"], "agent_error", "{attempt}");
        let told = server.cli(&["why", &only_job(&person, &run)]).stdout;
        let lost = "the agent's process that watched over the job was lost during step 1";
        assert!(told.contains(lost), "{told}");
        server.check();
    }
}

/// What a job leaves where others would find it, and what it finds of another's.
fn leaves(name: &str) -> String {
    format!(
        "if echo left > /dev/shm/{name}; then echo LEFT; fi; ipcmk -M 4096 -p 0666; \
         ipcmk -S 1 -p 0666; ipcmk -Q -p 0666; \
         /usr/bin/python3 -c 'import multiprocessing as it; it.Lock(); print(\"LOCKED\")' || true"
    )
}

fn finds(name: &str) -> String {
    format!(
        "test -e /dev/shm/{name} && echo FOUND; \
         for kind in shm sem msg; do\n\
         [ $(wc -l < /proc/sysvipc/$kind) = 1 ] || echo FOUND-$kind; done; true"
    )
}

/// The first of the users that jobs of an agent become which is root.
const FIRST_USER: u32 = 1_879_048_192;

/// What of the kernel's own shared things belongs to a job's user, on the whole machine.
fn left_outside() -> Vec<String> {
    let rows = ["shm", "sem", "msg"].map(|kind| {
        let text = std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
        let of_a_job = |line: &&str| {
            let mut words = line.split_whitespace().map(str::parse::<u32>);
            words.any(|word| word.is_ok_and(|it| (FIRST_USER..i32::MAX as u32).contains(&it)))
        };
        let lines = text.lines().filter(of_a_job).map(str::to_owned);
        lines.collect::<Vec<_>>()
    });
    rows.concat()
}

// T28: nothing of a job is there for the next one of its slot, on an agent that is root and on one
// that is not.
#[test]
fn what_a_job_leaves_in_shared_memory_is_not_there_for_the_next() {
    // A machine may have some from before that nobody removed.
    let before = left_outside();
    for root in [true, false] {
        let server = Server::start(Options::patient());
        let person = server.person();
        let place = if root { Place::of_root() } else { Place::new() };
        let _agent = place.agent_with(&server, "box", "strict", &[]);
        let words = enforced(&person, "box");
        let name = format!("delta-ci-test-{}-{root}", std::process::id());
        let mut body = run_of(&leaves(&name));
        body["trust"] = json!("untrusted");
        let left = printed(&person, &body);
        // Private, and as good as everybody's; or out of reach.
        let private = says(&words, "private-ipc");
        println!("enforced: {}", words.join(" "));
        assert_eq!(says(&left, "LEFT"), private, "{words:?} {left:?}");
        assert_eq!(says(&left, "LOCKED"), private, "{words:?} {left:?}");
        let outside = Path::new("/dev/shm").join(&name);
        assert!(!outside.exists(), "{}", outside.display());
        let found = printed(&person, &run_of(&finds(&name)));
        assert!(!says(&found, "FOUND"), "{found:?}");
        if private {
            let any = found.iter().any(|line| line.starts_with("FOUND"));
            assert!(!any, "{found:?}");
            assert_eq!(left_outside(), before);
        }
        if root {
            assert!(private, "root can have namespaces: {words:?}");
        }
        server.check();
    }
}

/// Connects to a socket by its path, and to one that has a name and no path.
fn connects(path: &Path, name: &str) -> String {
    let connect = |to: &str, word: &str| {
        format!(
            "/usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{to}\")' \
             && echo {word}; "
        )
    };
    let by_path = connect(&path.display().to_string(), "REACHED");
    by_path + &connect(&format!("\\0{name}"), "REACHED-BY-NAME") + "true"
}

// T28: a socket of a service is worth more than a file: that of a container daemon is the machine.
#[test]
fn a_confined_job_reaches_no_socket_outside() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    for root in [true, false] {
        let server = Server::start(Options::patient());
        let person = server.person();
        let place = if root { Place::of_root() } else { Place::new() };
        let _agent = place.agent_with(&server, "box", "host", &[]);
        let words = enforced(&person, "box");
        let path = place.shared("service").join("socket");
        let _service = UnixListener::bind(&path).unwrap();
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&path, all).unwrap();
        let name = format!("delta-ci-test-{}-{root}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _abstract = UnixListener::bind_addr(&address).unwrap();
        let mut body = run_of(&connects(&path, &name));
        let seen = printed(&person, &body);
        for attack in ["REACHED", "REACHED-BY-NAME"] {
            assert!(says(&seen, attack), "the attack is real: {seen:?}");
        }
        body["trust"] = json!("untrusted");
        let seen = printed(&person, &body);
        let reached = says(&seen, "REACHED");
        let private = says(&words, "untrusted:private-ipc");
        assert!(!(private && reached), "{words:?} {seen:?}");
        // No folder has it, so only the kernel's rules hold it.
        let version = words
            .iter()
            .find_map(|it| it.strip_prefix("untrusted:landlock:"));
        let scoped = version.is_some_and(|it| it.parse::<u32>().unwrap() >= 6);
        println!("enforced: {}", words.join(" "));
        assert!(
            !(scoped && says(&seen, "REACHED-BY-NAME")),
            "{words:?} {seen:?}"
        );
        assert!(private || !root, "root can have namespaces: {words:?}");
        server.check();
    }
}
