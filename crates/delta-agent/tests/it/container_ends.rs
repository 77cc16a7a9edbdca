//! Containers of a real dockerd that somebody or something else ends: told for what it was (D10).

use std::process::Command;
use std::time::Duration;

use delta_agent::container::ContainerSettings;
use delta_core::Cause;
use delta_shim::container::{ContainerOrder, Ready, Sign};
use delta_shim::verdict::Outcome;
use delta_testkit::disk::Mounted;
use delta_testkit::docker::{self, Docker, IMAGE};
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::Bench;
use crate::container::{Case, container, podman, service};

/// More than a few MiB in many small processes.
const HOGS: &str = "i=0; while [ $i -lt 40 ]; do \
                    (x=$(head -c 3000000 /dev/zero | tr '\\0' x); sleep 5) & i=$((i+1)); done; \
                    wait; echo done; exit 1";

const UP: &str = "echo up; while :; do sleep 1; done";

/// Ends the container of a step from outside, and says what became of the step.
async fn ended_from_outside(docker: Docker, end: impl FnOnce(&Docker, &str)) -> Docker {
    let case = Case::on(docker, &[UP]).await;
    let mut attempt = case.bench.start();
    case.bench.seen.wait_for("out up").await;
    end(&case.docker, &case.left().remove(0));
    let ended = case.bench.ended(&mut attempt).await;
    assert_eq!(ended.cause, Some(Cause::AgentError), "{}", ended.summary);
    assert_eq!(ended.outcome, Outcome::Failed { exit_code: None });
    assert!(
        ended.summary.contains("was ended from outside"),
        "{}",
        ended.summary
    );
    assert_eq!(ended.step, Some(0));
    assert!(ended.confirmed, "{}", ended.summary);
    case.docker
}

#[tokio::test]
async fn a_container_that_somebody_ended_is_not_the_users_failure() {
    let docker = Docker::start().expect("a daemon");
    let says = |words: &'static [&'static str]| {
        move |docker: &Docker, name: &str| {
            let words = [words, &[name]].concat();
            docker.run(&words).expect("done");
        }
    };
    let docker = ended_from_outside(docker, says(&["kill"])).await;
    let docker = ended_from_outside(docker, says(&["stop", "-t", "1"])).await;
    let docker = ended_from_outside(docker, says(&["rm", "--force"])).await;
    let by_its_init = |docker: &Docker, name: &str| {
        let format = ["inspect", "--format", "{{.State.Pid}}", name];
        let pid = docker.run(&format).expect("a pid");
        let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a pid");
        kill_process(pid, Signal::KILL).expect("a signal");
    };
    let docker = ended_from_outside(docker, by_its_init).await;
    assert_eq!(docker.labelled().expect("a list"), [""; 0]);
    let docker = ended_from_outside(docker, |docker, _| docker.stop()).await;
    docker.start_daemon().expect("a daemon");
}

// The kernel ends the processes that stand for the container along with the job's.
#[tokio::test]
async fn a_want_of_memory_that_ends_the_whole_container_is_told_as_that() {
    let grows = "x=a; while :; do x=$x$x; done";
    let mut docker = Docker::start().expect("a daemon");
    for (step, limit) in [(HOGS, 24), (HOGS, 16), (grows, 32)] {
        let mut case = Case::on(docker, &[step]).await;
        case.order().memory_mb = Some(limit);
        let ended = case.run().await;
        let log = case.bench.log();
        assert_eq!(ended.cause, Some(Cause::OutOfMemory), "{limit}: {log}");
        assert!(ended.evidence.oom_kills >= Some(1), "{:?}", ended.evidence);
        assert!(ended.summary.contains(&format!("{limit} MiB")), "{log}");
        docker = case.docker;
    }
}

// Not the machine's: it would be tried again, and end so each time.
#[tokio::test]
async fn a_want_of_memory_before_the_first_step_is_told_as_that() {
    let grows = "x=a; while :; do x=$x$x; done";
    let docker = Docker::start().expect("a daemon");
    let mut case = Case::on(docker, &["echo never"]).await;
    case.order().memory_mb = Some(24);
    let mut hungry = service("db", &["sh", "-c", grows]);
    hungry.ready = Some(Ready {
        sign: Sign::Port(5432),
        timeout: Duration::from_secs(3600),
        every: Duration::from_millis(100),
    });
    case.order().services = vec![hungry];
    let ended = case.run().await;
    assert_eq!(ended.cause, Some(Cause::OutOfMemory), "{}", ended.summary);
    let wanted = "the service db ran out of memory before the first step: the kernel ended a \
                  process of it; it may use 24 MiB";
    assert_eq!(ended.summary, wanted);
    let mut case = Case::on(case.docker, &["echo never"]).await;
    case.order().memory_mb = Some(24);
    case.order().entrypoint = ["sh", "-c", grows].map(Into::into).to_vec();
    let ended = case.run().await;
    assert_eq!(ended.cause, Some(Cause::OutOfMemory), "{}", ended.summary);
    let begins = "the container ran out of memory before the first step";
    assert!(ended.summary.starts_with(begins), "{}", ended.summary);
}

#[tokio::test]
async fn a_want_of_memory_under_podman_is_told_as_that() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = podman(folder.path());
    let archive = folder.path().join("image.tar");
    docker::pack_image(folder.path(), &archive).expect("an image");
    let mut import = Command::new(&program);
    let imported = import.arg("import").arg(&archive).arg(IMAGE).output();
    assert!(imported.expect("podman starts").status.success());
    let settings = ContainerSettings {
        program: Some(program),
        ..ContainerSettings::default()
    };
    let mut bench = Bench::new(&[HOGS]);
    let order = ContainerOrder {
        memory_mb: Some(24),
        ..container(&bench, &settings).await
    };
    bench.work.container = Some(order);
    let ended = bench.run().await;
    assert_eq!(ended.cause, Some(Cause::OutOfMemory), "{}", bench.log());
    assert!(ended.confirmed, "{}", bench.log());
}

// F43: what fills the disk goes with the container, so it is looked at before.
#[tokio::test]
async fn a_disk_that_the_container_filled_is_seen_before_it_is_removed() {
    let place = tempfile::tempdir().expect("a folder");
    let disk = Mounted::of(place.path(), "64m").expect("a small disk");
    let docker = Docker::start_in(place.path()).expect("a daemon");
    // Nothing but the disk itself says so.
    let fills = "dd if=/dev/zero of=/big bs=1M count=1000 2>/dev/null; exit 1";
    let mut case = Case::on(docker, &[fills]).await;
    let workspace = place.path().join("workspace");
    std::fs::create_dir(&workspace).expect("a folder");
    case.order().mounts[0].source = workspace.clone().into();
    case.bench.work.workspace = workspace;
    let ended = case.run().await;
    assert_eq!(ended.cause, Some(Cause::DiskFull), "{}", case.bench.log());
    drop(case);
    drop(disk);
}
