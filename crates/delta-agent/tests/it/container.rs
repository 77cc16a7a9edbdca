//! Steps in containers of a real dockerd.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use delta_agent::attempt::{Attempt, adopt_all};
use delta_agent::container::{ContainerSettings, detect};
use delta_agent::work::Ended;
use delta_core::Cause;
use delta_core::time::Span;
use delta_shim::container::{ContainerOrder, Mount, Network, Pull, Service};
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use delta_testkit::docker::{self, Docker, IMAGE};

use crate::bench::{Bench, PATIENCE, until};
use crate::lease::sha256;
use crate::shim::shims;

const GRACE: Duration = Duration::from_millis(1500);

/// A bench whose steps run in a container.
pub struct Case {
    pub bench: Bench,
    pub docker: Docker,
}

impl Case {
    pub async fn new(steps: &[&str]) -> Case {
        Case::on(Docker::start().expect("a daemon"), steps).await
    }

    pub async fn on(docker: Docker, steps: &[&str]) -> Case {
        let mut bench = Bench::new(steps);
        let settings = ContainerSettings {
            host: Some(docker.host()),
            program: Some("docker".into()),
            ..ContainerSettings::default()
        };
        bench.work.container = Some(container(&bench, &settings).await);
        Case { bench, docker }
    }

    pub fn order(&mut self) -> &mut ContainerOrder {
        self.bench.work.container.as_mut().expect("a container")
    }

    /// Runs it to its end; nothing may be left of it.
    pub async fn run(&self) -> Ended {
        let ended = self.bench.run().await;
        assert!(ended.confirmed, "{}", self.bench.log());
        assert_eq!(self.left(), [""; 0]);
        ended
    }

    pub fn left(&self) -> Vec<String> {
        self.docker.labelled().expect("a list")
    }

    /// What the job printed, without our own lines.
    fn printed(&self) -> String {
        let log = self.bench.log();
        let lines = log.lines().filter(|line| !line.starts_with("--- "));
        lines.map(|line| format!("{line}\n")).collect()
    }
}

/// A container as an agent would order it, with nothing asked for.
pub async fn container(bench: &Bench, settings: &ContainerSettings) -> ContainerOrder {
    let runtime = detect(settings).await.expect("a runtime answers");
    let mount = |name: &str| Mount {
        source: bench.folder.path().join(name).into(),
        target: format!("/delta/{name}"),
        read_only: false,
    };
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    ContainerOrder {
        runtime,
        owner: bench.state.owner().expect("an owner"),
        image: IMAGE.to_owned(),
        pull: Pull::IfMissing,
        entrypoint: Vec::new(),
        network: Network::None,
        memory_mb: None,
        cpus: None,
        pids: 500,
        user: format!("{}:{}", user.as_raw(), group.as_raw()),
        capabilities: Vec::new(),
        mounts: ["workspace", "home", "tmp"].map(mount).to_vec(),
        services: Vec::new(),
    }
}

#[tokio::test]
async fn a_step_in_a_container_has_variables_of_its_own() {
    let show = "echo \"$A $B\"";
    let mut case = Case::new(&[show, show]).await;
    case.bench.work.env = vec![("A".into(), "job".into())];
    case.bench.work.steps[0].env = vec![
        ("A".into(), "it's $HOME; id".into()),
        ("B".into(), "own".into()),
    ];
    case.run().await;
    assert_eq!(case.printed(), "it's $HOME; id own\njob \n");
}

#[tokio::test]
async fn steps_share_a_container_and_files_belong_to_the_agent() {
    let mut case = Case::new(&[
        "echo one > /tmp/kept; echo made > made; pwd; echo $HOME $TMPDIR $DELTA_WORKSPACE",
        "cat /tmp/kept; cd \"$HOME\"; touch here; id -u; cat /proc/1/comm; ls /delta",
    ])
    .await;
    let user = rustix::process::geteuid().as_raw();
    std::fs::create_dir(case.bench.work.workspace.join("sub")).expect("a folder");
    case.bench.work.workdir = "sub".into();
    let ended = case.run().await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{}", case.bench.log());
    let wanted = format!(
        "/delta/workspace/sub\n/delta/home /delta/tmp /delta/workspace\none\n{user}\n\
         docker-init\nhome\nlog\ntmp\nworkspace\n"
    );
    assert_eq!(case.printed(), wanted);
    let made = case.bench.work.workspace.join("sub/made");
    let owner = std::fs::metadata(made).expect("a file").uid();
    assert_eq!(owner, user);
    assert!(case.bench.folder.path().join("home/here").exists());
}

// EP-20, RP-18, D8: codes and bytes are what they are for processes.
#[tokio::test]
async fn exit_codes_and_log_bytes_are_exact() {
    let script = "i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done
printf '\\000\\001\\377\\r\\n'
(until [ -e second ]; do sleep 0.02; done; echo from the background; : > said) &
exit 0";
    let second = ": > second; until [ -e said ]; do sleep 0.02; done; exit 42";
    let case = Case::new(&[script, second, "echo never"]).await;
    let ended = case.run().await;
    let (failed, cause) = (
        Outcome::Failed {
            exit_code: Some(42),
        },
        Some(Cause::UserExit),
    );
    assert_eq!(
        (ended.outcome, ended.cause, ended.step),
        (failed, cause, Some(1))
    );
    let log = std::fs::read(case.bench.log_path()).expect("a log");
    let both: String = (0..500).map(|n| format!("out {n}\nerr {n}\n")).collect();
    let first = "--- step 1: i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; \
                 i=$((i+1)); done …\n";
    let mut wanted = [first.as_bytes(), both.as_bytes(), b"\x00\x01\xff\r\n"].concat();
    let rest =
        format!("--- step 2: {second}\nfrom the background\n--- step 2 ended with exit code 42\n");
    wanted.extend_from_slice(rest.as_bytes());
    assert_eq!(
        String::from_utf8_lossy(&log),
        String::from_utf8_lossy(&wanted)
    );
    assert_eq!(ended.log.sha256, Some(sha256(&log)));
}

#[tokio::test]
async fn a_step_has_a_shell_of_its_own_or_says_that_it_is_not_there() {
    let words = |text: &str| Some(text.split(' ').map(str::to_owned).collect::<Vec<_>>());
    let mut case = Case::new(&["echo begun", "echo \"it's\"; echo $NOBODY_SET_THIS"]).await;
    case.bench.work.steps[0].shell = words("sh -e -c");
    case.bench.work.steps[1].shell = words("sh -u -c");
    let ended = case.run().await;
    assert_eq!((ended.cause, ended.step), (Some(Cause::UserExit), Some(1)));
    let printed = case.printed();
    assert!(printed.starts_with("begun\nit's\n"), "{printed}");

    let mut case = Case::on(case.docker, &["echo never"]).await;
    case.bench.work.steps[0].shell = words("no-such-shell -c");
    let ended = case.run().await;
    assert_eq!(ended.cause, Some(Cause::SpecError), "{}", ended.summary);
    assert!(ended.summary.contains("the image has no `no-such-shell`"));
    assert_eq!(case.printed(), "");
}

#[tokio::test]
async fn variables_arrive_as_they_are_and_are_in_no_argument() {
    let names = [
        "A_QUOTES",
        "A_LINES",
        "A_SIGNS",
        "PATH",
        "DOCKER_HOST",
        "IFS",
    ];
    let values = [
        "it's \"so\" '' '",
        "a\n b \n\nc\n",
        "$HOME `x` \\ \\n * ; & | # ! ~ \t\r é",
        "/bin:/elsewhere",
        "tcp://192.0.2.1:1",
        " \t",
    ];
    // Slow, so that it can be seen from outside.
    let show = "for n in A_QUOTES A_LINES A_SIGNS PATH DOCKER_HOST; do eval \"printf '%s|' \
                \\\"\\$$n\\\"\"; done; touch ready; while [ ! -e go ]; do sleep 0.05; done";
    let mut case = Case::new(&[show]).await;
    let env = names.iter().zip(values);
    case.bench.work.env = env
        .map(|(name, value)| ((*name).to_owned(), value.to_owned()))
        .collect();
    let mut attempt = case.bench.start();
    let workspace = case.bench.work.workspace.clone();
    until("the step runs", || workspace.join("ready").exists()).await;
    for process in std::fs::read_dir("/proc").expect("processes").flatten() {
        let arguments = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&arguments).into_owned();
        assert!(!text.contains("192.0.2.1"), "{text}");
    }
    let inspected = case
        .docker
        .run(&["inspect", &case.left()[0]])
        .expect("a description");
    assert!(!inspected.contains("192.0.2.1"), "{inspected}");
    std::fs::write(workspace.join("go"), "").expect("a file");
    let ended = case.bench.ended(&mut attempt).await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{}", ended.summary);
    let log = std::fs::read_to_string(attempt.spool()).expect("a log");
    let wanted: String = values[..5]
        .iter()
        .map(|value| format!("{value}|"))
        .collect();
    assert!(log.contains(&wanted), "{log}");
    assert_eq!(case.left(), [""; 0]);
}

// D10: never a bare "exit 137", and no signal taken for a want of memory.
#[tokio::test]
async fn a_signal_and_a_want_of_memory_are_told_apart() {
    let docker = Docker::start().expect("a daemon");
    let case = Case::on(docker, &["kill -9 $$"]).await;
    let ended = case.run().await;
    assert_eq!(ended.outcome, Outcome::Signaled { signal: 9 });
    assert_eq!(ended.cause, Some(Cause::UserSignal));
    // Its shell's own watcher, which cannot answer any more.
    let case = Case::on(case.docker, &["kill -9 $PPID; sleep 600"]).await;
    let ended = case.run().await;
    assert_eq!(ended.outcome, Outcome::Signaled { signal: 9 });
    assert_eq!(ended.cause, Some(Cause::UserSignal));
    let eats = "dd if=/dev/zero of=/dev/null bs=300M count=1; echo survived";
    let mut case = Case::on(case.docker, &["true", eats]).await;
    case.order().memory_mb = Some(48);
    let ended = case.run().await;
    assert_eq!(
        ended.cause,
        Some(Cause::OutOfMemory),
        "{}",
        case.bench.log()
    );
    assert!(ended.summary.contains("48 MiB"), "{}", ended.summary);
    assert!(
        ended.summary.contains("a process of it"),
        "{}",
        ended.summary
    );
    assert_eq!(ended.step, Some(1));
}

// EP-43
#[tokio::test]
async fn what_keeps_a_container_from_being_has_a_cause_of_its_own() {
    let docker = Docker::start().expect("a daemon");
    let mut case = Case::on(docker, &["true"]).await;
    case.order().image = "127.0.0.1:1/nosuch:1".to_owned();
    let ended = case.run().await;
    assert_eq!(ended.cause, Some(Cause::Image), "{}", ended.summary);
    assert!(ended.summary.contains("nosuch:1"), "{}", ended.summary);
    assert!(
        case.bench
            .log()
            .contains("--- pulling the image 127.0.0.1:1/nosuch:1")
    );

    let bare = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(bare.path().join("root")).expect("a folder");
    std::fs::write(bare.path().join("root/file"), "").expect("a file");
    let archive = bare.path().join("root.tar");
    docker::pack(&bare.path().join("root"), &archive).expect("an archive");
    case.docker.import(&archive, "bare:1").expect("an image");
    case.order().image = "bare:1".to_owned();
    let ended = case.run().await;
    assert_eq!(ended.cause, Some(Cause::SpecError), "{}", ended.summary);
    assert!(ended.summary.contains("has no `sh`"), "{}", ended.summary);

    case.order().image = IMAGE.to_owned();
    case.order().entrypoint = vec!["echo".into(), "not".into()];
    let ended = case.run().await;
    assert_eq!(ended.cause, Some(Cause::SpecError), "{}", ended.summary);
    assert!(ended.summary.contains("entrypoint"), "{}", ended.summary);

    case.docker.stop();
    case.order().entrypoint = Vec::new();
    let ended = case.bench.run().await;
    assert_eq!(ended.cause, Some(Cause::StartUp), "{}", ended.summary);
    assert!(ended.summary.contains("daemon"), "{}", ended.summary);
    case.docker.start_daemon().expect("a daemon");
    assert_eq!(case.left(), [""; 0]);
}

// D9: gone means gone, whatever it does about TERM.
#[tokio::test]
async fn a_canceled_job_that_ignores_term_is_gone() {
    let step = "trap '' TERM; (setsid sleep 600 &) ; echo up; while :; do sleep 1; done";
    let case = Case::new(&[step]).await;
    let mut attempt = case.bench.start();
    case.bench.seen.wait_for("out up").await;
    case.bench.order(StopReason::Canceled, GRACE);
    let ended = case.bench.ended(&mut attempt).await;
    assert_eq!(ended.outcome, Outcome::Canceled);
    assert!(ended.confirmed);
    assert_eq!(case.left(), [""; 0]);
}

#[tokio::test]
async fn a_canceled_job_may_clean_up_first() {
    let step = "trap 'echo cleaned; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let case = Case::new(&[step]).await;
    let mut attempt = case.bench.start();
    case.bench.seen.wait_for("out up").await;
    let start = Instant::now();
    case.bench.order(StopReason::Canceled, PATIENCE);
    let ended = case.bench.ended(&mut attempt).await;
    assert_eq!((ended.outcome, ended.confirmed), (Outcome::Canceled, true));
    assert!(start.elapsed() < PATIENCE / 2, "it was not waited for");
    let log = std::fs::read_to_string(attempt.spool()).expect("a log");
    assert!(log.contains("\ncleaned\n"), "{log}");
    assert_eq!(case.left(), [""; 0]);
}

#[tokio::test]
async fn a_step_and_a_job_run_as_long_as_they_may() {
    let docker = Docker::start().expect("a daemon");
    let mut case = Case::on(docker, &["echo up; sleep 600", "echo never"]).await;
    case.bench.work.steps[0].timeout = Some(Duration::from_millis(700));
    let ended = case.run().await;
    assert_eq!(
        (ended.outcome, ended.cause),
        (Outcome::TimedOut, Some(Cause::StepTimeout))
    );
    let mut case = Case::on(case.docker, &["sleep 600"]).await;
    case.bench.max_runtime = Span(3000);
    let ended = case.run().await;
    assert_eq!(
        (ended.outcome, ended.cause),
        (Outcome::TimedOut, Some(Cause::JobTimeout))
    );
}

// D7, F8: the same container, the same log, byte for byte.
#[tokio::test]
async fn the_next_agent_goes_on_with_the_same_container() {
    let step = "i=0; while [ $i -lt 60 ]; do echo line $i; i=$((i+1)); \
                until [ $i -lt 30 ] || [ -e go ]; do sleep 0.02; done; done; hostname";
    let case = Case::new(&[step]).await;
    let first = case.bench.start();
    case.bench.seen.wait_for("out line 3").await;
    let names = case.left();
    let id = case
        .docker
        .run(&["inspect", "--format", "{{.Id}}", &names[0]])
        .expect("an id");
    drop(first);
    let adopted = adopt_all(&case.bench.state).await.remove(0);
    let mut second = adopted.resume(&case.bench.state, case.bench.watcher());
    std::fs::write(case.bench.work.workspace.join("go"), "").expect("told");
    let ended = case.bench.ended(&mut second).await;
    assert_eq!(ended.outcome, Outcome::Succeeded);
    let log = std::fs::read_to_string(second.spool()).expect("a log");
    let printed: String = (0..60).map(|n| format!("line {n}\n")).collect();
    let (_, rest) = log.split_once('\n').expect("a mark");
    let host = rest
        .strip_prefix(&printed)
        .expect("every line, once")
        .trim();
    assert!(id.starts_with(host), "{host} of {id}");
    assert_eq!(ended.log.sha256, Some(sha256(log.as_bytes())));
    assert_eq!(case.left(), [""; 0]);
}

fn kill_shim(case: &Case) {
    for shim in shims(&case.bench) {
        let pid = rustix::process::Pid::from_raw(shim.parse().expect("a number")).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("a signal");
    }
}

// T28, D9: its input ends with its shim, and so does the container, with nobody's help.
#[tokio::test]
async fn a_killed_shim_leaves_no_container() {
    let mut case = Case::new(&["trap '' TERM; echo up; while :; do sleep 1; done"]).await;
    case.order().network = Network::Bridge;
    case.order().services = vec![service("db", &["httpd", "-f", "-p", "5432"])];
    let first: Attempt = case.bench.start();
    case.bench.seen.wait_for("out up").await;
    assert_eq!(case.left().len(), 3, "the job, its service, its network");
    drop(first);
    kill_shim(&case);
    let own = |name: &String| !name.ends_with("-db");
    until("the job's container is gone", || {
        let running = case.docker.run(&["ps", "--format", "{{.Names}}"]);
        let running = running.expect("a list");
        !running.lines().map(str::to_owned).any(|name| own(&name))
    })
    .await;
    // The next agent finds the rest by its label.
    let adopted = adopt_all(&case.bench.state).await.remove(0);
    let mut attempt = adopted.resume(&case.bench.state, case.bench.watcher());
    let finished = attempt.ended().await;
    assert_eq!(finished.ended.cause, Some(Cause::AgentError));
    assert!(finished.ended.confirmed);
    assert_eq!(case.left(), [""; 0]);
}

// D9: a daemon that does not answer keeps nobody alive.
#[tokio::test]
async fn a_job_ends_though_the_daemon_hangs() {
    let case = Case::new(&["trap '' TERM; echo up; while :; do sleep 1; done"]).await;
    let mut attempt = case.bench.start();
    case.bench.seen.wait_for("out up").await;
    let format = ["inspect", "--format", "{{.State.Pid}}"];
    let name = case.left().remove(0);
    let pid = case
        .docker
        .run(&[&format[..], &[&name]].concat())
        .expect("a pid");
    case.docker.freeze();
    case.bench.order(StopReason::Canceled, Duration::ZERO);
    let ended = case.bench.ended(&mut attempt).await;
    assert_eq!((ended.outcome, ended.confirmed), (Outcome::Canceled, true));
    let alive = Path::new("/proc")
        .join(pid.trim())
        .join("root/bin")
        .exists();
    assert!(!alive, "its first process is gone");
    case.docker.wake();
}

pub fn service(name: &str, command: &[&str]) -> Service {
    Service {
        name: name.to_owned(),
        image: IMAGE.to_owned(),
        env: vec![("GREETING".into(), "it's \"me\" $HOME".into())],
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        ready: None,
    }
}

#[tokio::test]
async fn services_are_reached_by_their_names() {
    let serve = "mkdir /www; printf '%s' \"$GREETING\" > /www/index.html; \
                 exec httpd -f -p 5432 -h /www";
    let fetch = "i=0; until wget -q -O - http://db:5432/ || [ $i = 50 ]; do i=$((i+1)); \
                 sleep 0.1; done 2>/dev/null";
    let mut docker = Docker::start().expect("a daemon");
    for network in [Network::None, Network::Bridge] {
        let mut case = Case::on(docker, &[fetch]).await;
        case.order().network = network;
        case.order().services = vec![service("db", &["sh", "-c", serve])];
        let ended = case.run().await;
        let log = case.bench.log();
        assert_eq!(ended.outcome, Outcome::Succeeded, "{network:?}\n{log}");
        assert!(log.contains("it's \"me\" $HOME"), "{network:?}\n{log}");
        docker = case.docker;
    }
}

#[tokio::test]
async fn a_service_that_failed_shows_its_last_lines() {
    let dies = "echo first; echo the reason >&2; sleep 0.5; exit 3";
    let mut case = Case::new(&["sleep 2; exit 1"]).await;
    case.order().services = vec![service("db", &["sh", "-c", dies])];
    let ended = case.run().await;
    let log = case.bench.log();
    assert!(matches!(ended.outcome, Outcome::Failed { .. }), "{log}");
    assert!(
        log.contains("--- the service db ended with exit code 3"),
        "{log}"
    );
    assert!(log.contains("the reason\n"), "{log}");
}

// T28
#[tokio::test]
async fn a_container_is_kept_from_the_machine() {
    let look = "grep -E '^(CapEff|CapBnd|NoNewPrivs):' /proc/self/status; ls /var/run 2>&1 || true; \
                ls /sys/class/net";
    let case = Case::new(&[look]).await;
    let ended = case.run().await;
    let log = case.bench.log();
    assert_eq!(ended.outcome, Outcome::Succeeded, "{log}");
    assert!(log.contains("NoNewPrivs:\t1"), "{log}");
    assert!(log.contains("CapBnd:\t0000000000000000"), "{log}");
    assert!(!log.contains("docker.sock"), "{log}");
    assert!(log.ends_with("\nlo\n"), "{log}");
}

#[tokio::test]
async fn a_log_pipe_cannot_be_taken_away() {
    let take = "rm -f /delta/log || true; chmod 777 /delta/log || true; echo still here";
    let case = Case::new(&[take, "echo and here"]).await;
    let ended = case.run().await;
    assert_eq!(ended.outcome, Outcome::Succeeded, "{}", case.bench.log());
    let printed = case.printed();
    assert!(printed.ends_with("still here\nand here\n"), "{printed}");
}

/// Podman's storage and settings of a test's own, behind a program that says so.
pub fn podman(folder: &Path) -> PathBuf {
    let conf = folder.join("containers.conf");
    let limits = "[containers]\ndefault_ulimits = [\"nofile=20000:20000\", \"nproc=4096:4096\"]\n\
                  [engine]\nruntime = \"runc\"\n";
    std::fs::write(&conf, limits).expect("settings");
    let place = |name: &str| folder.join(name).display().to_string();
    let script = format!(
        "#!/bin/sh\nexport CONTAINERS_CONF='{}'\nexec podman --root '{}' --runroot '{}' \
         --storage-driver vfs \"$@\"\n",
        conf.display(),
        place("root"),
        place("run")
    );
    let program = folder.join("podman");
    std::fs::write(&program, script).expect("a program");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program, mode).expect("a mode");
    program
}

#[tokio::test]
async fn podman_does_what_docker_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = podman(folder.path());
    let archive = folder.path().join("image.tar");
    docker::pack_image(folder.path(), &archive).expect("an image");
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(&program)
            .args(arguments)
            .output();
        let output = output.expect("podman starts");
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {complaint}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&["import", &archive.display().to_string(), IMAGE]);
    let settings = ContainerSettings {
        program: Some(program.clone()),
        ..ContainerSettings::default()
    };
    let mut bench = Bench::new(&["echo one >&2; (sleep 600 &); cat /proc/1/comm", "exit 3"]);
    bench.work.container = Some(container(&bench, &settings).await);
    bench.work.env = vec![("VALUE".into(), "it's\n$so".into())];
    bench.work.steps[0].script += "; printf '%s\\n' \"$VALUE\"";
    let ended = bench.run().await;
    let log = bench.log();
    assert_eq!(
        ended.outcome,
        Outcome::Failed { exit_code: Some(3) },
        "{log}"
    );
    assert!(ended.confirmed, "{log}");
    assert!(
        log.contains("\none\npodman-init\nit's\n$so\n--- step 2: exit 3\n"),
        "{log}"
    );

    let mut bench = Bench::new(&["trap '' TERM; echo up; while :; do sleep 1; done"]);
    bench.work.container = Some(container(&bench, &settings).await);
    let mut attempt = bench.start();
    bench.seen.wait_for("out up").await;
    bench.order(StopReason::Canceled, GRACE);
    let ended = bench.ended(&mut attempt).await;
    assert_eq!((ended.outcome, ended.confirmed), (Outcome::Canceled, true));
    assert_eq!(run(&["ps", "--all", "--quiet"]), "");
}
