//! Containers that a machine does not start, though what was asked for is right: never the file's
//! fault. And machines that could make none: they are not offered.

use std::os::unix::fs::PermissionsExt;

use delta_agent::Sought;
use delta_agent::container::{ContainerSettings, detect};
use delta_core::Cause;
use delta_shim::container::{Kind, Network};
use delta_testkit::docker::{self, Docker, IMAGE};

use crate::agent::Agent;
use crate::bench::Bench;
use crate::container::{Case, container, podman, service};
use crate::fake_server::{FakeServer, State};

// EP-43: docker ends with 127 here, which is to say that the image lacks a program.
#[tokio::test]
async fn a_docker_that_lacks_its_runtime_is_not_the_images_fault() {
    let docker = Docker::start_without_runtime().expect("a daemon");
    let mut case = Case::on(docker, &["true"]).await;
    let ended = case.run().await;
    assert_eq!(ended.cause, Some(Cause::StartUp), "{}", ended.summary);
    assert!(
        ended.summary.contains("container could not be made"),
        "{}",
        ended.summary
    );
    // A service is started before the job's own container is.
    case.order().network = Network::Bridge;
    case.order().services = vec![service("db", &["sleep", "600"])];
    let ended = case.run().await;
    assert_eq!(ended.cause, Some(Cause::StartUp), "{}", ended.summary);
    assert!(ended.summary.contains("service db"), "{}", ended.summary);
}

// EP-43: podman ends with 126 here, and with the words "OCI permission denied".
#[tokio::test]
async fn a_limit_that_the_kernel_refuses_is_not_the_images_fault() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = podman(folder.path());
    let archive = folder.path().join("image.tar");
    docker::pack_image(folder.path(), &archive).expect("an image");
    let imported = std::process::Command::new(&program)
        .arg("import")
        .args([&archive, std::path::Path::new(IMAGE)])
        .output();
    assert!(imported.expect("podman starts").status.success());
    // No kernel has as many open files.
    let limits = "[containers]\ndefault_ulimits = [\"nofile=4000000000:4000000000\"]\n\
                  [engine]\nruntime = \"runc\"\n";
    std::fs::write(folder.path().join("containers.conf"), limits).expect("settings");
    let settings = ContainerSettings {
        program: Some(program),
        ..ContainerSettings::default()
    };
    let mut bench = Bench::new(&["true"]);
    let mut order = container(&bench, &settings).await;
    order.network = Network::Host;
    bench.work.container = Some(order.clone());
    let ended = bench.run().await;
    assert_eq!(ended.cause, Some(Cause::StartUp), "{}", ended.summary);
    order.services = vec![service("db", &["sleep", "600"])];
    let mut bench = Bench::new(&["true"]);
    let mounts = container(&bench, &settings).await.mounts;
    order.mounts = mounts;
    bench.work.container = Some(order);
    let ended = bench.run().await;
    assert_eq!(ended.cause, Some(Cause::StartUp), "{}", ended.summary);
    assert!(ended.summary.contains("service db"), "{}", ended.summary);
}

// The client alone is not docker, and what is offered is what answered before the registration.
#[tokio::test]
async fn docker_is_offered_while_its_daemon_answers() {
    let docker = Docker::start().expect("a daemon");
    docker.stop();
    let server = FakeServer::start(&[]).await;
    let agent = Agent::start_with(&server, |settings| {
        settings.programs = Sought::Named([].into());
        settings.containers.program = Some("docker".into());
        settings.containers.host = Some(docker.host());
    });
    server.wait_for("Register", 1).await;
    docker.start_daemon().expect("a daemon");
    server.change(State::break_line);
    server.wait_for("Register", 2).await;
    docker.stop();
    server.change(State::break_line);
    server.wait_for("Register", 3).await;
    let offered: Vec<(bool, bool)> = server
        .registrations()
        .into_iter()
        .map(|it| it.capabilities.expect("capabilities"))
        .map(|it| {
            (
                it.docker_available,
                it.runtimes.iter().any(|it| it.name == "docker"),
            )
        })
        .collect();
    assert_eq!(offered, [(false, false), (true, true), (false, false)]);
    agent.shut_down().await;
}

// A podman without storage or runtime says its version, and makes no container.
#[tokio::test]
async fn a_podman_that_cannot_work_is_not_offered() {
    let folder = tempfile::tempdir().expect("a folder");
    let works = ContainerSettings {
        program: Some(podman(folder.path())),
        ..ContainerSettings::default()
    };
    let found = detect(&works).await.expect("podman answers");
    assert_eq!(found.kind, Kind::Podman);
    let version = found.version.split('.').count();
    assert!(version >= 3, "{}", found.version);
    let broken = "[engine]\nruntime = \"no-such-runtime\"\n";
    std::fs::write(folder.path().join("containers.conf"), broken).expect("settings");
    assert_eq!(detect(&works).await, None);
    // One that never answers is not waited for.
    let hangs = folder.path().join("hangs");
    let script = "#!/bin/sh\n[ $1 = --version ] && echo podman version 5.0.0 || exec sleep 600\n";
    std::fs::write(&hangs, script).expect("a program");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&hangs, mode).expect("a mode");
    let hangs = ContainerSettings {
        program: Some(hangs),
        ..ContainerSettings::default()
    };
    assert_eq!(detect(&hangs).await, None);
}
