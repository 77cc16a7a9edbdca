//! `delta-ci server` and `up`: starting, refusing to start, stopping.

use crate::support::{PATIENCE, Place};

#[test]
fn timings_that_cannot_work_are_refused_with_the_flag() {
    let ran = Place::new()
        .say("server --data d --listen 127.0.0.1:0 --lease-ttl 5s")
        .expect(2);
    assert!(
        ran.stderr.contains("--lease-ttl: 5s is less than twice"),
        "{}",
        ran.stderr
    );
    let ran = Place::new()
        .say("server --data d --listen 127.0.0.1:0 --sweep 5")
        .expect(2);
    assert!(
        ran.stderr.contains("write 5s for seconds"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_listener_beyond_loopback_needs_tls() {
    // D14
    let ran = Place::new()
        .say("server --data d --listen 0.0.0.0:0")
        .expect(2);
    assert!(ran.stdout.is_empty());
    assert!(ran.stderr.contains("--tls-cert"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--behind-tls-proxy"), "{}", ran.stderr);
    let ran = Place::new().say("up --listen 0.0.0.0:0").expect(2);
    assert!(ran.stderr.contains("loopback only"), "{}", ran.stderr);
}

#[test]
fn a_flag_that_cannot_be_used_is_named() {
    let place = Place::new();
    let ran = place
        .say("server --data d --listen 127.0.0.1:0 --tls-cert no.pem --tls-key no.key")
        .expect(2);
    assert!(ran.stderr.contains("--tls-cert no.pem"), "{}", ran.stderr);
    for store in ["mysql://u:secret@h/d", "sqlite"] {
        let ran = place.delta(["server", "--data", "d", "--store", store]);
        let ran = ran.expect(2);
        assert!(ran.stderr.contains("--store"), "{}", ran.stderr);
        assert!(ran.stderr.contains("postgres://"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("secret"), "{}", ran.stderr);
        place.delta(["doctor", "--store", store]).expect(2);
    }
}

#[test]
fn a_second_server_on_the_same_folder_is_refused() {
    let place = Place::new();
    let server = place.server(&[]);
    let ran = place
        .say("server --data data --listen 127.0.0.1:0")
        .expect(8);
    assert!(ran.stderr.contains("is in use"), "{}", ran.stderr);
    assert!(server.process.is_running());
}

#[test]
fn a_server_stops_when_it_is_told_to() {
    let place = Place::new();
    let server = place.server(&[]);
    server.process.terminate().unwrap();
    let status = server.process.wait(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(0));
    // The folder is free again, and nothing of it is lost.
    place.say("runs --data data").expect(0);
}
