//! The HTTP proxy before a server that counts: what reaches it, and what comes back.

use std::time::{Duration, Instant};

use delta_testkit::proxy::{HttpChances, HttpProxy};
use delta_testkit::wait::eventually;

use crate::servers::{Client, Counter};

const LONG: Duration = Duration::from_secs(30);

fn set_up() -> (Counter, HttpProxy) {
    let server = Counter::start();
    let proxy = HttpProxy::start(server.addr, 1).unwrap();
    (server, proxy)
}

#[test]
fn without_faults_requests_share_a_connection_and_bodies_are_whole() {
    let (server, proxy) = set_up();
    let mut client = Client::connect(proxy.addr());
    assert_eq!(client.post("/a", "x").unwrap(), "1");
    assert_eq!(client.post("/chunked", "").unwrap(), "2");
    let large = "y".repeat(10_000_000);
    assert_eq!(client.post("/b?q=1", &large).unwrap(), "3");
    assert_eq!(proxy.connections(), 1);
    assert_eq!(
        server.requests(),
        ["/a x", "/chunked ", &format!("/b?q=1 {large}")]
    );
    assert!(proxy.journal().lines().is_empty());
}

// F5
#[test]
fn a_dropped_response_was_answered_by_the_server() {
    let (server, proxy) = set_up();
    proxy.drop_response_once("/complete");
    let mut client = Client::connect(proxy.addr());
    assert_eq!(client.post("/other", "").unwrap(), "1");
    assert!(client.post("/complete", "x").is_err());
    assert_eq!(server.requests().last().unwrap(), "/complete x");
    assert!(proxy.waiting().is_empty());
    let mut again = Client::connect(proxy.addr());
    assert_eq!(again.post("/complete", "x").unwrap(), "3");
    assert_eq!(proxy.journal().count("drop response"), 1);
}

#[test]
fn a_dropped_request_never_arrives() {
    let (server, proxy) = set_up();
    proxy.drop_request_once("/api/*");
    assert!(
        Client::connect(proxy.addr())
            .post("/api/lease", "")
            .is_err()
    );
    assert!(server.requests().is_empty());
    assert_eq!(
        Client::connect(proxy.addr())
            .post("/api/lease", "")
            .unwrap(),
        "1"
    );
}

#[test]
fn a_duplicated_request_arrives_twice_and_is_answered_once() {
    let (server, proxy) = set_up();
    proxy.duplicate_request("/complete");
    let mut client = Client::connect(proxy.addr());
    client.post("/complete", "x").unwrap();
    assert_eq!(server.requests(), ["/complete x", "/complete x"]);
    assert_eq!(
        client.post("/complete", "y").unwrap(),
        "3",
        "one answer, and only once"
    );
}

// F35
#[test]
fn a_request_can_be_repeated_a_hundred_times() {
    let (server, proxy) = set_up();
    proxy.repeat_request("/heartbeat", 99);
    Client::connect(proxy.addr())
        .post("/heartbeat", "")
        .unwrap();
    assert_eq!(server.requests().len(), 100);
}

// F4
#[test]
fn a_held_response_waits_for_its_release() {
    let (server, proxy) = set_up();
    let held = proxy.hold_response("/complete");
    assert!(!held.has_arrived());
    let addr = proxy.addr();
    let asking = std::thread::spawn(move || Client::connect(addr).post("/complete", "x"));
    held.wait_arrived(LONG);
    assert_eq!(server.requests(), ["/complete x"]);
    assert!(!asking.is_finished());
    held.release();
    assert_eq!(asking.join().unwrap().unwrap(), "1");
}

// F33
#[test]
fn a_held_request_is_overtaken() {
    let (server, proxy) = set_up();
    let held = proxy.hold_request("/ack");
    let addr = proxy.addr();
    let asking = std::thread::spawn(move || Client::connect(addr).post("/ack", ""));
    held.wait_arrived(LONG);
    Client::connect(addr).post("/complete", "").unwrap();
    held.release();
    assert_eq!(asking.join().unwrap().unwrap(), "2");
    assert_eq!(server.requests(), ["/complete ", "/ack "]);
}

// F34
#[test]
fn a_held_request_arrives_late_though_its_client_has_gone() {
    let (server, proxy) = set_up();
    let held = proxy.hold_request("/heartbeat");
    let mut client = Client::connect(proxy.addr());
    client.send("/heartbeat", "old").unwrap();
    held.wait_arrived(LONG);
    drop(client);
    Client::connect(proxy.addr())
        .post("/heartbeat", "new")
        .unwrap();
    held.release();
    eventually(LONG, "the old one arrives", || {
        let requests = server.requests();
        if requests == ["/heartbeat new", "/heartbeat old"] {
            Ok(())
        } else {
            Err(requests)
        }
    });
}

// F36
#[tokio::test]
async fn two_held_requests_are_released_together() {
    let (server, proxy) = set_up();
    let holds = [
        proxy.hold_request("/cancel"),
        proxy.hold_request("/complete"),
    ];
    let addr = proxy.addr();
    let asking = ["/cancel", "/complete"]
        .map(|path| tokio::task::spawn_blocking(move || Client::connect(addr).post(path, "")));
    for held in &holds {
        held.arrived(LONG).await;
    }
    assert!(server.requests().is_empty());
    drop(holds);
    for answer in asking {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn refusing_and_cutting_work_as_on_bytes() {
    let (_server, proxy) = set_up();
    let mut client = Client::connect(proxy.addr());
    client.post("/a", "").unwrap();
    assert_eq!(proxy.cut_all(), 1);
    assert!(client.post("/a", "").is_err());
    proxy.refuse_connections();
    assert!(std::net::TcpStream::connect(proxy.addr()).is_err());
    proxy.accept_connections();
    Client::connect(proxy.addr()).post("/a", "").unwrap();
}

#[test]
fn chances_are_drawn_from_the_seed_and_counted() {
    let outcome = |seed| {
        let server = Counter::start();
        let proxy = HttpProxy::start(server.addr, seed).unwrap();
        let pause = Duration::from_millis(1);
        proxy.chances(HttpChances {
            path: "/api/*".into(),
            drop_request: 0.2,
            drop_response: 0.2,
            duplicate: 0.2,
            delay: 0.2,
            delay_range: pause..2 * pause,
        });
        Client::connect(proxy.addr()).post("/else", "").unwrap();
        let asked = (0..40).map(|_| Client::connect(proxy.addr()).post("/api/x", "").is_ok());
        let outcome: Vec<bool> = asked.collect();
        let journal = proxy.journal();
        let kinds = ["drop request", "drop response", "repeat request", "delay"];
        assert!(
            kinds.iter().all(|kind| journal.count(kind) > 0),
            "{:?}",
            journal.counts()
        );
        let lost = journal.count("drop request") + journal.count("drop response");
        assert_eq!(outcome.iter().filter(|ok| !**ok).count() as u64, lost);
        let arrived = 41 - journal.count("drop request") + journal.count("repeat request");
        assert_eq!(server.requests().len() as u64, arrived);
        proxy.heal();
        let started = Instant::now();
        (0..40).for_each(|_| drop(Client::connect(proxy.addr()).post("/api/x", "").unwrap()));
        assert!(started.elapsed() < LONG);
        (outcome, journal.lines())
    };
    assert_eq!(outcome(5), outcome(5));
    assert_ne!(outcome(5).0, outcome(6).0);
}
