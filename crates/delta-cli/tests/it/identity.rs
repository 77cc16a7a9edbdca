//! Who may come in, by hand: a private authority, certificates, one-time enrolment.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use delta_testkit::process::{Process, Spawn};

use crate::support::{PATIENCE, Place, binary};

fn mode(place: &Place, name: &str) -> u32 {
    let found = place.path().join(name).metadata().expect(name);
    found.permissions().mode() & 0o777
}

fn openssl(place: &Place, line: &str) -> String {
    let mut command = Command::new("openssl");
    let output = command
        .args(line.split_whitespace())
        .current_dir(place.path());
    let output = output.output().expect("openssl runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {line}: {said}{wrong}");
    said
}

#[test]
fn a_private_authority_signs_what_openssl_accepts() {
    // EP-31
    let place = Place::new();
    let made = place.say("ca init ca").expect(0);
    assert_eq!(made.stdout, "ca/ca.pem\nca/ca.key\n");
    assert!(
        made.stderr.contains("delta-ci ca server ca --name"),
        "{}",
        made.stderr
    );
    let made = place
        .say("ca server ca --name ci.example --name 127.0.0.1")
        .expect(0);
    assert!(
        made.stderr.contains("--client-ca ca/ca.pem"),
        "{}",
        made.stderr
    );
    place
        .say("ca agent ca --name spiffe://ci/a --days 7")
        .expect(0);
    for (purpose, file) in [
        ("sslserver", "ca/ci.example.pem"),
        ("sslclient", "ca/spiffe___ci_a.pem"),
    ] {
        let line = format!("verify -x509_strict -CAfile ca/ca.pem -purpose {purpose} {file}");
        openssl(&place, &line);
        let line = format!("x509 -in {file} -noout -checkend 518400");
        openssl(&place, &line);
    }
    let names = openssl(
        &place,
        "x509 -in ca/spiffe___ci_a.pem -noout -ext subjectAltName",
    );
    assert!(names.contains("URI:spiffe://ci/a"), "{names}");
    for key in ["ca/ca.key", "ca/ci.example.key", "ca/spiffe___ci_a.key"] {
        assert_eq!(mode(&place, key), 0o600, "{key}");
    }
}

#[test]
fn nothing_that_was_made_is_overwritten_by_accident() {
    let place = Place::new();
    place.say("ca server ca --name x").expect(5);
    place.say("ca init ca").expect(0);
    let again = place.say("ca init ca").expect(8);
    assert!(
        again.stderr.contains("ca/ca.pem is there"),
        "{}",
        again.stderr
    );
    place.say("ca agent ca --name a").expect(0);
    let before = std::fs::read(place.path().join("ca/a.pem")).unwrap();
    let again = place.say("ca agent ca --name a").expect(8);
    assert!(again.stderr.contains("--renew"), "{}", again.stderr);
    place.say("ca agent ca --name a --renew").expect(0);
    assert_ne!(
        std::fs::read(place.path().join("ca/a.pem")).unwrap(),
        before
    );
    for bad in ["ca agent ca --name a --name b", "ca agent ca --name é"] {
        place.say(bad).expect(2);
    }
}

#[test]
fn a_server_with_certificates_of_a_private_authority_is_reached_by_who_pins_it() {
    // EP-2, EP-34
    let place = Place::new();
    place.say("ca init ca").expect(0);
    place.say("ca init other").expect(0);
    place.say("ca server ca --name 127.0.0.1").expect(0);
    let tls = [
        "--tls-cert",
        "ca/127.0.0.1.pem",
        "--tls-key",
        "ca/127.0.0.1.key",
        "--client-ca",
        "ca/ca.pem",
    ];
    let server = place.server(&tls);
    let made = place.say("token create --role user --data data").expect(0);
    place.write("token", &made.stdout);
    let listing = [
        "runs",
        "--server",
        &server.url,
        "--token-file",
        "token",
        "--ca-cert",
    ];
    place.delta(listing.iter().chain(&["ca/ca.pem"])).expect(0);
    place
        .delta(listing.iter().chain(&["other/ca.pem"]))
        .expect(6);
    let missing = place
        .say(
            "server --data d --listen 127.0.0.1:0 --tls-cert ca/127.0.0.1.pem --tls-key \
             ca/127.0.0.1.key --client-ca token",
        )
        .expect(2);
    assert!(
        missing.stderr.contains("--client-ca token"),
        "{}",
        missing.stderr
    );
}

#[test]
fn what_a_certificate_grants_is_made_shown_and_revoked() {
    let place = Place::new();
    let made = place
        .say(
            "token create --role runner --certificate spiffe://ci/a --pool gpu --zone eu \
             --data data",
        )
        .expect(0);
    assert_eq!(made.stdout, "cert:spiffe://ci/a\n");
    let listed = place.say("token list --data data").expect(0).stdout;
    assert!(listed.contains("gpu zone=eu"), "{listed}");
    place
        .say("token revoke cert:spiffe://ci/a --data data")
        .expect(0);
    place
        .say("token revoke oidc:forge:repo:a/b --data data")
        .expect(0);
    let listed = place.say("token list --data data").expect(0).stdout;
    assert_eq!(listed.matches("revoked").count(), 2, "{listed}");
    let again = place
        .say("token create --role runner --certificate spiffe://ci/a --data data")
        .expect(8);
    assert!(again.stderr.contains("another name"), "{}", again.stderr);
}

fn agent(place: &Place, url: &str, state: &str, more: &[&str]) -> Process {
    let spawn = Spawn::new(binary())
        .args(["agent", "--server", url, "--name", "box", "--work-dir"])
        .arg(place.path().join(format!("{state}-work")))
        .args(["--enroll-token-file", "once", "--state-dir", state])
        .args(more)
        .current_dir(place.path());
    spawn.spawn().expect("the agent starts")
}

#[test]
fn an_agent_enrols_once_and_keeps_its_credential() {
    // T4, EP-35
    let place = Place::new();
    let server = place.server(&[]);
    let made = place
        .say("token create --role enrolment --label gpu --data data")
        .expect(0);
    place.write("once", &made.stdout);
    let first = agent(&place, &server.url, "state", &[]);
    let said = first.wait_for_line("enrolled as box-", PATIENCE);
    assert!(said.is_ok(), "{:?}", said.err());
    let (run, _) = server.submit(&["echo hello"]);
    assert_eq!(server.outcome(&run), "SUCCESS");
    drop(first);
    assert_eq!(mode(&place, "state"), 0o700);
    assert_eq!(mode(&place, "state/credential"), 0o600);
    // Once it has its own, the other is not needed any more.
    place.write("once", "");
    let second = agent(&place, &server.url, "state", &[]);
    let (run, _) = server.submit(&["echo again"]);
    assert_eq!(server.outcome(&run), "SUCCESS");
    drop(second);
    // A thief comes too late, and is seen.
    place.write("once", &made.stdout);
    let line = format!(
        "agent --server {} --enroll-token-file once --state-dir thief",
        server.url
    );
    let refused = place.say(&line).expect(7);
    assert!(refused.stderr.contains("used up"), "{}", refused.stderr);
    assert!(!refused.stderr.contains(made.stdout.trim()));
    let listed = place.say("token list --data data").expect(0).stdout;
    assert!(listed.contains("TRIED AGAIN"), "{listed}");
    assert!(listed.contains("only box-"), "{listed}");
}
