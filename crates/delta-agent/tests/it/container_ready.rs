//! The first step waits until services say that they are ready, on a real dockerd.

use std::time::Duration;

use delta_core::Cause;
use delta_shim::container::{Network, Ready, Service, Sign};
use delta_shim::stop::StopReason;
use delta_shim::verdict::Outcome;
use delta_testkit::docker::Docker;

use crate::bench::until;
use crate::container::{Case, service};

fn ready(mut service: Service, sign: Sign, timeout: Duration) -> Service {
    let every = Duration::from_millis(100);
    service.ready = Some(Ready {
        sign,
        timeout,
        every,
    });
    service
}

/// Nothing of it hangs by who is quicker: the service listens only when its file is there, and that
/// is made by its own script after a while.
#[tokio::test]
async fn the_first_step_waits_until_a_service_is_ready() {
    let serve = "mkdir /www; echo late > /www/index.html; sleep 1; touch /up; \
                 exec httpd -f -p 5432 -h /www";
    let mut docker = Docker::start().expect("a daemon");
    let signs = [
        (Network::None, Sign::Port(5432)),
        (Network::Bridge, Sign::Port(5432)),
        (
            Network::Bridge,
            Sign::Run("wget -q -O /dev/null http://127.0.0.1:5432/".into()),
        ),
    ];
    for (network, sign) in signs {
        // One try, no waiting in the step.
        let mut case = Case::on(docker, &["wget -q -O - http://db:5432/"]).await;
        case.order().network = network;
        let db = service("db", &["sh", "-c", serve]);
        let quick = service("quick", &["sleep", "600"]);
        case.order().services = vec![
            ready(db, sign.clone(), Duration::from_secs(120)),
            ready(quick, Sign::Run("true".into()), Duration::from_secs(120)),
        ];
        let ended = case.run().await;
        let log = case.bench.log();
        assert_eq!(
            ended.outcome,
            Outcome::Succeeded,
            "{network:?} {sign:?}\n{log}"
        );
        assert!(log.contains("late\n"), "{log}");
        assert!(log.contains("--- the service db is ready after "), "{log}");
        assert!(
            log.contains("--- the service quick is ready after "),
            "{log}"
        );
        docker = case.docker;
    }
}

#[tokio::test]
async fn a_service_that_is_not_ready_in_time_ends_the_attempt_with_its_words() {
    let mut docker = Docker::start().expect("a daemon");
    let says = "echo the disk is slow; exec sleep 600";
    let signs = [
        (Sign::Port(5432), "nothing listens on port 5432"),
        (
            Sign::Run("echo no answer >&2; exit 2".into()),
            "ended with exit code 2: no answer",
        ),
        (Sign::Run("sleep 600".into()), "`sleep 600` did not end"),
    ];
    for (sign, words) in signs {
        let mut case = Case::on(docker, &["echo never"]).await;
        let db = service("db", &["sh", "-c", says]);
        case.order().services = vec![ready(db, sign, Duration::from_millis(1500))];
        let ended = case.run().await;
        let log = case.bench.log();
        assert_eq!(ended.cause, Some(Cause::StartUp), "{log}");
        assert!(
            ended
                .summary
                .contains("the service db was not ready within 1s500ms"),
            "{ended:?}"
        );
        assert!(ended.summary.contains(words), "{ended:?}");
        assert!(log.contains("the disk is slow\n"), "{log}");
        assert!(!log.contains("never\n"), "{log}");
        docker = case.docker;
    }
    // One that ends is not waited for.
    let mut case = Case::on(docker, &["echo never"]).await;
    let dies = service("db", &["sh", "-c", "echo the reason; exit 3"]);
    case.order().services = vec![ready(dies, Sign::Port(1), Duration::from_secs(3600))];
    let ended = case.run().await;
    assert_eq!(ended.cause, Some(Cause::SpecError), "{ended:?}");
    assert!(
        ended
            .summary
            .contains("the service db ended with exit code 3"),
        "{ended:?}"
    );
    assert!(
        case.bench.log().contains("the reason\n"),
        "{}",
        case.bench.log()
    );
}

// D9: a cancel is heard while services are waited for.
#[tokio::test]
async fn a_cancel_ends_the_wait_for_a_service() {
    for sign in [Sign::Port(1), Sign::Run("sleep 600".into())] {
        let mut case = Case::new(&["echo never"]).await;
        let db = service("db", &["sleep", "600"]);
        let quick = service("quick", &["sleep", "600"]);
        case.order().services = vec![
            ready(
                quick,
                Sign::Run("touch /looked".into()),
                Duration::from_secs(600),
            ),
            ready(db, sign, Duration::from_secs(600)),
        ];
        let mut attempt = case.bench.start();
        until("the other one was looked at", || {
            let names = case.left();
            let quick = names.iter().find(|name| name.ends_with("-quick"));
            quick.is_some_and(|name| case.docker.run(&["exec", name, "ls", "/looked"]).is_ok())
        })
        .await;
        case.bench.order(StopReason::Canceled, Duration::ZERO);
        let ended = case.bench.ended(&mut attempt).await;
        assert_eq!((ended.outcome, ended.confirmed), (Outcome::Canceled, true));
        assert_eq!(case.left(), [""; 0]);
    }
}
