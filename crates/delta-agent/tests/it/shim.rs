//! The shim without its agent: what goes on, what ends, what nobody gets at.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use delta_agent::attempt::adopt_all;
use delta_core::Cause;
use delta_core::time::Span;
use delta_shim::order::Abandoned;
use delta_shim::sandbox::{Confinement, Sandbox};
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use delta_wire::Secret;

use crate::bench::{Bench, PATIENCE, is_running, until};
use crate::lease::sha256;

/// Processes that carry the job's id in their environment, by number.
pub fn processes(bench: &Bench) -> Vec<String> {
    let mark = format!("DELTA_JOB_ID={}", bench.work.identity.job_id);
    with("environ", |part| part == mark.as_bytes())
}

/// The shims of a bench, by number.
pub fn shims(bench: &Bench) -> Vec<String> {
    let place = bench.folder.path().as_os_str().as_encoded_bytes().to_vec();
    let mut found = with("cmdline", |part| part.starts_with(&place));
    found.retain(|pid| is_running(pid));
    found
}

fn with(file: &str, matches: impl Fn(&[u8]) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("processes").flatten() {
        let bytes = std::fs::read(entry.path().join(file)).unwrap_or_default();
        if bytes.split(|byte| *byte == 0).any(&matches) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

// F8, D7: the same process, the same log, byte for byte.
#[tokio::test]
async fn an_attempt_is_found_again_and_gone_on_with() {
    let step = "i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); \
                until [ $i -lt 30 ] || [ -e go ]; do sleep 0.02; done; done; echo $$";
    let bench = Bench::new(&[step]);
    let first = bench.start();
    bench.seen.wait_for("out line 3").await;
    let pids = processes(&bench);
    drop(first);
    let mut adopted = adopt_all(&bench.state).await;
    assert_eq!(adopted.len(), 1);
    let adopted = adopted.remove(0);
    assert_eq!(adopted.note, b"a note");
    assert_eq!(adopted.standing.step, Some(0));
    let mut second = adopted.resume(&bench.state, bench.watcher());
    std::fs::write(bench.work.workspace.join("go"), "").expect("told");
    let ended = bench.ended(&mut second).await;
    assert_eq!(ended.outcome, Outcome::Succeeded);
    let log = std::fs::read_to_string(second.spool()).expect("a log");
    let printed: String = (0..60).map(|n| format!("line {n}\n")).collect();
    let (mark, rest) = log.split_once('\n').expect("a mark");
    let shell = rest
        .strip_prefix(&printed)
        .expect("every line, once")
        .trim();
    assert!(mark.starts_with("--- step 1: "), "{mark}");
    assert!(pids.contains(&shell.to_owned()), "{shell} of {pids:?}");
    assert_eq!(ended.log.sha256, Some(sha256(log.as_bytes())));
    second.remains().remove();
    assert!(adopt_all(&bench.state).await.is_empty(), "forgotten");
}

#[tokio::test]
async fn an_attempt_that_ended_meanwhile_is_found_with_its_record() {
    let bench = Bench::new(&["echo one; exit 4"]);
    drop(bench.start());
    until("the shim is gone", || shims(&bench).is_empty()).await;
    let adopted = adopt_all(&bench.state).await.remove(0);
    let mut attempt = adopted.resume(&bench.state, bench.watcher());
    let finished = attempt.ended().await;
    assert_eq!(
        finished.ended.outcome,
        Outcome::Failed { exit_code: Some(4) }
    );
    assert_eq!(finished.steps.len(), 1);
    assert_eq!(*attempt.sizes().borrow(), finished.ended.log.bytes);
}

// F8, F30: at the lease's local end nothing is left, though nobody is there.
#[tokio::test]
async fn the_tree_ends_at_the_leases_local_end_with_no_agent() {
    let mut bench =
        Bench::new(&["trap '' TERM; setsid sleep 600 & (sleep 600 &); sleep 600; sleep 600"]);
    // Time enough on a busy machine to see it run.
    bench.ttl = Span::secs(5);
    let attempt = bench.start();
    until("it runs", || processes(&bench).len() >= 4).await;
    drop(attempt);
    until("nothing is left", || processes(&bench).is_empty()).await;
    until("the shim is gone", || shims(&bench).is_empty()).await;
    let adopted = adopt_all(&bench.state).await.remove(0);
    let stop = adopted.standing.stop.expect("it was stopped");
    assert_eq!(stop.reason, StopReason::LeaseLost);
}

#[tokio::test]
async fn a_renewed_lease_moves_the_local_end() {
    let mut bench = Bench::new(&["until [ -e go ]; do sleep 0.02; done; echo done"]);
    // Time enough on a busy machine to be heard before it is over.
    bench.ttl = Span::secs(5);
    let first_end = crate::bench::now() + bench.ttl;
    let mut attempt = bench.start();
    attempt.extend(crate::bench::now() + Span::secs(60));
    until("the first end is past", || {
        crate::bench::now() > first_end + Span::secs(1)
    })
    .await;
    std::fs::write(bench.work.workspace.join("go"), "").expect("told");
    let ended = bench.ended(&mut attempt).await;
    assert_eq!(ended.outcome, Outcome::Succeeded);
}

#[tokio::test]
async fn a_job_has_its_time_also_when_no_agent_counts_it() {
    // EP-41, RP-50
    let mut bench = Bench::new(&["sleep 600"]);
    bench.max_runtime = Span(300);
    let mut attempt = bench.start();
    let ended = bench.ended(&mut attempt).await;
    assert_eq!(
        (ended.outcome, ended.cause),
        (Outcome::TimedOut, Some(Cause::JobTimeout))
    );
    assert!(processes(&bench).is_empty());
}

#[tokio::test]
async fn an_agent_without_a_successor_takes_its_work_along() {
    let bench = Bench::new(&["trap '' TERM; echo up; sleep 600; sleep 600"]);
    let attempt = bench.start_that(Abandoned::Ends);
    bench.seen.wait_for("out up").await;
    drop(attempt);
    until("nothing is left", || processes(&bench).is_empty()).await;
}

/// Starts it, cancels it when it is up, and looks at what is left.
async fn cancel(script: &str, control_group: bool) {
    const GRACE: Duration = Duration::from_millis(200);
    let mut bench = Bench::new(&[script]);
    bench.work.control_group = control_group;
    let mut attempt = bench.start();
    bench.seen.wait_for("out up").await;
    bench.order(StopReason::Canceled, GRACE);
    let ended = bench.ended(&mut attempt).await;
    let left = processes(&bench);
    assert!(left.is_empty(), "{left:?} of {script:?}");
    assert_eq!(ended.outcome, Outcome::Canceled);
    assert!(ended.confirmed, "{script:?}");
}

// D9: TERM, grace, KILL, and a proof, whatever the job does about it.
#[tokio::test]
async fn nothing_escapes_a_cancel() {
    let forker = "trap '' TERM; f() { (setsid sh -c 'trap \"\" TERM; sleep 600' &); }; \
                  (while :; do f; sleep 0.02; done) & echo up; while :; do sleep 0.01; done";
    let chain = "cat > chain <<'END'\ntrap '' TERM; sleep 0.01; setsid sh ./chain & exit\nEND\n\
                 sh ./chain; echo up; sleep 600";
    let storm = std::env::var("DELTA_STORM").is_ok_and(|it| it == "1");
    for round in 0..if storm { 100 } else { 10 } {
        for script in [
            "trap '' TERM; echo up; while :; do sleep 0.05; done",
            "trap '' TERM; (setsid sh -c 'trap \"\" TERM; (sleep 600 &); sleep 600' &); \
             sleep 0.05; echo up; sleep 600",
            forker,
            chain,
        ] {
            cancel(script, round % 2 == 0).await;
        }
    }
}

#[tokio::test]
async fn a_lost_shim_leaves_nothing_running_and_is_reported_as_unknown() {
    let bench = Bench::new(&["true", "echo up; (sleep 600 &); sleep 600"]);
    let mut attempt = bench.start();
    bench.seen.wait_for("out up").await;
    let shim = shims(&bench).remove(0);
    let pid = rustix::process::Pid::from_raw(shim.parse().expect("a number")).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    let ended = bench.ended(&mut attempt).await;
    assert_eq!(ended.cause, Some(Cause::AgentError));
    let lost = "the agent's process that watched over the job was lost during step 2";
    assert_eq!(ended.summary, lost);
    assert_eq!(
        ended.log.sha256, None,
        "nobody knows whether the log is whole"
    );
    until("nothing is left", || processes(&bench).is_empty()).await;
}

#[tokio::test]
async fn a_shim_that_does_not_answer_goes_on_with_nothing() {
    // F8, D9: it is reported as lost, so it must not do the next step when it wakes.
    let bench = Bench::new(&["echo up; sleep 600", "echo never"]);
    let attempt = bench.start();
    bench.seen.wait_for("out up").await;
    let shim = shims(&bench).remove(0);
    let pid = rustix::process::Pid::from_raw(shim.parse().expect("a number")).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    drop(attempt);
    let adopted = adopt_all(&bench.state).await.remove(0);
    let mut second = adopted.resume(&bench.state, bench.watcher());
    let ended = bench.ended(&mut second).await;
    assert_eq!(ended.cause, Some(Cause::AgentError));
    until("nothing is left", || {
        shims(&bench).is_empty() && processes(&bench).is_empty()
    })
    .await;
}

/// Whether a confined job becomes another user, where it may.
#[derive(Clone, Copy, PartialEq)]
enum User {
    Own,
    Agents,
}

/// Confined as well as this machine allows it to whoever runs the test.
fn confined(steps: &[&str], user: User) -> Bench {
    let mut bench = Bench::new(steps);
    let root = bench.folder.path().to_owned();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o711)).expect("open");
    let (state, work) = (bench.state.path().to_owned(), root.join("work"));
    bench.work.confinement = Confinement::of_slot(Sandbox::Strict, &state, &work, 1);
    bench.work.hidden = vec![state];
    if user == User::Agents {
        bench.work.confinement.user = None;
    }
    if let Some(user) = bench.work.confinement.user {
        for path in [&bench.work.workspace, &bench.work.tmp, &root.join("home")] {
            std::os::unix::fs::chown(path, Some(user), Some(user)).expect("given away");
        }
    }
    bench
}

/// What an agent would report of it.
fn enforced(bench: &Bench) -> Vec<String> {
    let secret = bench.state.path().join("lock");
    bench.work.confinement.enforced(&bench.work.hidden, &secret)
}

// T2, T28, D7: what a confined job tries, and what it may do.
#[tokio::test]
async fn a_confined_job_gets_at_nothing_but_its_own() {
    for user in [User::Own, User::Agents] {
        try_everything(user).await;
    }
}

async fn try_everything(user: User) {
    let steps = [
        "echo mine > file; cat file; echo tmp > \"$TMPDIR/t\"; echo home > \"$HOME/h\"",
        "cat \"$STATE\"/attempts/*/note && echo READ-NOTE; ls \"$STATE\" && echo LISTED; true",
        "touch \"$STATE/x\" && echo WROTE-STATE; touch \"$OUTSIDE\" && echo WROTE-OUTSIDE; true",
        "kill -9 $PPID && echo KILLED; true",
        "cat /proc/$PPID/environ > /dev/null && echo READ-ENVIRON; true",
        "grep -q 'NoNewPrivs:.*1' /proc/self/status && echo no-new-privs; ulimit -c; nice",
    ];
    let mut bench = confined(&steps, user);
    let outside = bench.folder.path().join("outside");
    bench.work.env = vec![
        ("STATE".into(), bench.state.path().display().to_string()),
        ("OUTSIDE".into(), outside.display().to_string()),
    ];
    let mut attempt = bench.start();
    let ended = bench.ended(&mut attempt).await;
    let log = std::fs::read_to_string(attempt.spool()).expect("a log");
    let enforced = enforced(&bench);
    assert_eq!(ended.outcome, Outcome::Succeeded, "{enforced:?}\n{log}");
    let said = |word: &str| log.lines().any(|line| line == word);
    assert!(
        said("mine") && said("no-new-privs") && said("0") && said("10"),
        "{log}"
    );
    let files = enforced.iter().any(|word| word.starts_with("landlock:"));
    let user = enforced.iter().any(|word| word == "uid");
    if files || user {
        for word in [
            "READ-NOTE",
            "LISTED",
            "WROTE-STATE",
            "WROTE-OUTSIDE",
            "READ-ENVIRON",
        ] {
            assert!(!said(word), "{word} {enforced:?}\n{log}");
        }
    }
    // By another user, or by the rules of a newer kernel; without either, a job that ends its own
    // shim would not have come this far.
    assert!(!said("KILLED"), "{enforced:?}\n{log}");
}

// T28: shared memory of a job is its own, and ends with it.
#[tokio::test]
async fn what_a_confined_job_shares_it_shares_with_nobody() {
    let name = format!("delta-ci-test-{}", std::process::id());
    let leaves = format!(
        "echo left > /dev/shm/{name}; cat /dev/shm/{name}; ipcmk -M 4096 > /dev/null; \
         ls -ld /dev/shm; [ $(wc -l < /proc/sysvipc/shm) = 2 ] && echo made"
    );
    let mut bench = confined(&[&leaves], User::Own);
    assert!(enforced(&bench).contains(&"private-ipc".to_owned()));
    let mut attempt = bench.start();
    let ended = bench.ended(&mut attempt).await;
    let log = std::fs::read_to_string(attempt.spool()).expect("a log");
    assert_eq!(ended.outcome, Outcome::Succeeded, "{log}");
    assert!(
        log.contains("\nleft\n") && log.contains("\nmade\n"),
        "{log}"
    );
    assert!(!Path::new("/dev/shm").join(&name).exists());
    // The next one of the same slot, as the same user.
    bench.work.steps[0].script =
        format!("test ! -e /dev/shm/{name}; [ $(wc -l < /proc/sysvipc/shm) = 1 ]");
    let mut attempt = bench.start();
    let ended = bench.ended(&mut attempt).await;
    let log = std::fs::read_to_string(attempt.spool()).expect("a log");
    assert_eq!(ended.outcome, Outcome::Succeeded, "{log}");
    // Where a machine has no namespaces for it, it is out of reach instead.
    if enforced(&bench)
        .iter()
        .any(|it| it.starts_with("landlock:"))
    {
        bench.work.confinement.apart = false;
        bench.work.steps[0].script = format!("echo left > /dev/shm/{name} && echo LEFT; true");
        let mut attempt = bench.start();
        bench.ended(&mut attempt).await;
        let log = std::fs::read_to_string(attempt.spool()).expect("a log");
        assert!(!log.contains("\nLEFT"), "{log}");
    }
}

#[tokio::test]
async fn what_is_enforced_is_said() {
    let bench = confined(&["true"], User::Own);
    let words = enforced(&bench);
    assert!(words.contains(&"no-new-privs".to_owned()), "{words:?}");
    if rustix::process::geteuid().is_root() && Path::new("/proc/self/uid_map").exists() {
        assert!(words.contains(&"no-capabilities".to_owned()), "{words:?}");
    }
    assert!(words.contains(&"private-state".to_owned()), "{words:?}");
    assert_eq!(Confinement::OPEN.enforced(&[], Path::new("/"))[0], "open");
}

// RP-54, T2: nothing of the agent's environment or note is in sight.
#[tokio::test]
async fn a_shim_carries_nothing_of_its_agent() {
    let bench = Bench::new(&["echo up; sleep 600"]);
    let mut attempt = bench.start();
    bench.seen.wait_for("out up").await;
    let shim = shims(&bench).remove(0);
    let environ = std::fs::read(format!("/proc/{shim}/environ")).unwrap_or_default();
    assert_eq!(String::from_utf8_lossy(&environ), "");
    for pid in processes(&bench).iter().chain([&shim]) {
        for file in ["environ", "cmdline"] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            assert!(
                !text.contains("a note") && !text.contains("CARGO"),
                "{text}"
            );
        }
    }
    bench.order(StopReason::Canceled, Duration::ZERO);
    bench.ended(&mut attempt).await;
}

// D7, D15: the disk is the buffer, and the quota bounds it.
#[tokio::test]
async fn memory_stays_bounded_whatever_a_job_prints() {
    const QUOTA: u64 = 64 << 20;
    let mut bench = Bench::new(&[
        "head -c 1000000000 /dev/zero",
        "touch up; read -r line < fifo",
    ]);
    bench.work.log_quota = QUOTA;
    let fifo = bench.work.workspace.join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.expect("mkfifo").success());
    let mut attempt = bench.start();
    let mut grows = attempt.sizes().subscribe();
    let full = grows.wait_for(|bytes| *bytes >= QUOTA / 2);
    tokio::time::timeout(PATIENCE, full)
        .await
        .expect("in time")
        .expect("it grows");
    let up = bench.work.workspace.join("up");
    until("the first step ended", || up.exists()).await;
    let shim = shims(&bench).remove(0);
    let status = std::fs::read_to_string(format!("/proc/{shim}/status")).expect("a status");
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .expect("a peak");
    let kib: u64 = peak
        .split_whitespace()
        .nth(1)
        .expect("a number")
        .parse()
        .expect("a number");
    assert!(kib < 32 * 1024, "{peak}");
    std::fs::write(&fifo, "go\n").expect("told to go on");
    let ended = bench.ended(&mut attempt).await;
    assert_eq!(ended.outcome, Outcome::Succeeded);
    assert!(ended.log.bytes < QUOTA + 1024, "{:?}", ended.log);
    assert!(
        ended.log.dropped >= 1_000_000_000 - QUOTA,
        "{:?}",
        ended.log
    );
}

#[tokio::test]
async fn whoever_does_not_know_the_key_is_not_heard() {
    let bench = Bench::new(&["echo up; sleep 1; echo done"]);
    let mut attempt = bench.start();
    bench.seen.wait_for("out up").await;
    let socket = bench.state.path().join("attempts/1/control");
    for said in [
        "{\"stop\":{\"reason\":\"canceled\",\"kill_at\":0}}\n",
        "{\"hello\":{\"key\":\"guess\"}}\n{\"stop\":{\"reason\":\"canceled\",\"kill_at\":0}}\n",
    ] {
        use std::io::{Read, Write};
        let mut stranger = std::os::unix::net::UnixStream::connect(&socket).expect("a socket");
        stranger.write_all(said.as_bytes()).expect("said");
        let mut answer = String::new();
        let _ = stranger.read_to_string(&mut answer);
        assert_eq!(answer, "");
    }
    assert_eq!(bench.ended(&mut attempt).await.outcome, Outcome::Succeeded);
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut open = vec![folder.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

fn holds(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|it| it == part.as_bytes())
}

// D8, D14, T6: in the steps' environment, in the shim's memory, and nowhere else.
#[tokio::test]
async fn secrets_reach_the_steps_and_neither_the_log_nor_a_file() {
    let canary = "canary-7b1fe0c2";
    let steps = [
        "test ${#CANARY} = 15; echo got $CANARY; printf %s $CANARY | base64",
        "printf ${CANARY%????????}; sleep 0.2; echo ${CANARY#???????} split; \
         printf %s ${CANARY%???}",
        "echo; echo go; while ! test -e go; do sleep 0.01; done; cat /proc/$PPID/fd/1 || true",
    ];
    let mut bench = Bench::new(&steps);
    bench.work.env = vec![("CANARY".to_owned(), "the secret wins".to_owned())];
    bench.secrets.env = vec![("CANARY".to_owned(), Secret::new(canary))];
    bench.secrets.masked = vec![Secret::new(canary)];
    let mut attempt = bench.start();
    bench.seen.wait_for("out go").await;
    for file in files(bench.folder.path()) {
        let bytes = std::fs::read(&file).unwrap_or_default();
        assert!(!holds(&bytes, canary), "{}", file.display());
    }
    let told = with("cmdline", |part| holds(part, canary));
    assert!(told.is_empty(), "{told:?}");
    std::fs::write(bench.work.workspace.join("go"), "").expect("written");
    let ended = bench.ended(&mut attempt).await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{}", ended.summary);
    let log = std::fs::read_to_string(attempt.spool()).expect("a log");
    assert!(log.contains("got ***\n***\n"), "{log}");
    assert!(log.contains("*** split\n***\n--- step 3"), "{log}");
    assert!(!log.contains("canary-7b1fe"), "{log}");
    assert_eq!(ended.log.sha256, Some(sha256(log.as_bytes())));
    let seen = bench.seen.lines.lock().expect("lines").join("\n");
    assert!(
        seen.contains("out got ***") && !seen.contains(canary),
        "{seen}"
    );
}
