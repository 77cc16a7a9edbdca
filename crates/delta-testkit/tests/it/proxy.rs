//! The byte proxy before an echo: each fault does what it says, and is written down.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use delta_testkit::proxy::{Direction, Proxy, Then, Trap, When};
use delta_testkit::wait::eventually;

use crate::servers::Echo;

const LONG: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_millis(150);

fn set_up() -> (Echo, Proxy, TcpStream) {
    let echo = Echo::start();
    let proxy = Proxy::start(echo.addr, 1).unwrap();
    let client = connect(&proxy);
    (echo, proxy, client)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let client = TcpStream::connect(proxy.addr()).unwrap();
    client.set_read_timeout(Some(LONG)).unwrap();
    client
}

fn echoed(client: &mut TcpStream, text: &str) -> String {
    client.write_all(text.as_bytes()).unwrap();
    read(client, text.len())
}

fn read(client: &mut TcpStream, size: usize) -> String {
    let mut answer = vec![0; size];
    client.read_exact(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

fn is_reset(client: &mut TcpStream) -> bool {
    matches!(client.read(&mut [0; 64]), Err(error) if error.kind() == ErrorKind::ConnectionReset)
}

fn is_silent(client: &mut TcpStream) -> bool {
    client.set_read_timeout(Some(MOMENT)).unwrap();
    let silent = matches!(client.read(&mut [0; 64]),
        Err(error) if error.kind() == ErrorKind::WouldBlock);
    client.set_read_timeout(Some(LONG)).unwrap();
    silent
}

fn until_received(echo: &Echo, text: &str) {
    eventually(LONG, "the server has it", || {
        let received = String::from_utf8(echo.received()).unwrap();
        if received == text {
            Ok(())
        } else {
            Err(received)
        }
    });
}

#[test]
fn without_faults_bytes_and_ends_pass() {
    let (_echo, proxy, mut client) = set_up();
    assert_eq!(echoed(&mut client, "hello"), "hello");
    assert_eq!(proxy.passed(Direction::ToServer), 5);
    assert_eq!(proxy.passed(Direction::ToClient), 5);
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(
        client.read(&mut [0; 1]).unwrap(),
        0,
        "the end comes back as an end"
    );
    eventually(LONG, "the connection is gone", || {
        match proxy.connections() {
            0 => Ok(()),
            some => Err(some),
        }
    });
    assert!(proxy.journal().lines().is_empty());
}

#[test]
fn large_transfers_are_unchanged() {
    let (_echo, _proxy, mut client) = set_up();
    let sent: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    let (mut writer, bytes) = (client.try_clone().unwrap(), sent.clone());
    let writing = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    let mut back = vec![0; sent.len()];
    client.read_exact(&mut back).unwrap();
    writing.join().unwrap();
    assert!(back == sent);
}

#[test]
fn a_delay_delays_and_an_empty_one_is_none() {
    let (_echo, proxy, mut client) = set_up();
    proxy.delay(Direction::ToServer, MOMENT..MOMENT * 2);
    let asked = Instant::now();
    assert_eq!(echoed(&mut client, "a"), "a");
    assert!(asked.elapsed() >= MOMENT);
    assert_eq!(proxy.journal().count("delay"), 1);
    proxy.delay(Direction::ToServer, Duration::ZERO..Duration::ZERO);
    assert_eq!(echoed(&mut client, "b"), "b");
    assert_eq!(proxy.journal().count("delay"), 1);
}

#[test]
fn a_throttle_bounds_the_speed() {
    let (_echo, proxy, mut client) = set_up();
    proxy.throttle(Direction::ToClient, Some(2_000));
    let asked = Instant::now();
    assert_eq!(echoed(&mut client, &"x".repeat(1_000)), "x".repeat(1_000));
    assert!(
        asked.elapsed() >= Duration::from_millis(450),
        "{:?}",
        asked.elapsed()
    );
}

#[test]
fn held_bytes_wait_and_none_is_lost() {
    let (echo, proxy, mut client) = set_up();
    proxy.hold(Direction::ToClient);
    client.write_all(b"held").unwrap();
    until_received(&echo, "held");
    assert!(is_silent(&mut client));
    proxy.release(Direction::ToClient);
    assert_eq!(read(&mut client, 4), "held");
    assert_eq!(proxy.journal().count("hold"), 1);
}

// F31
#[test]
fn a_one_way_black_hole_takes_answers_only_and_healing_resets() {
    let (echo, proxy, mut client) = set_up();
    assert_eq!(echoed(&mut client, "1"), "1");
    proxy.blackhole(Direction::ToClient);
    client.write_all(b"2").unwrap();
    until_received(&echo, "12");
    assert!(is_silent(&mut client));
    assert_eq!(proxy.journal().count("blackhole"), 1);
    let mut unhurt = connect(&proxy);
    proxy.heal();
    assert!(is_reset(&mut client), "a stream with a hole never goes on");
    assert_eq!(echoed(&mut unhurt, "3"), "3");
}

// F32
#[test]
fn a_one_way_black_hole_takes_requests_only() {
    let (echo, proxy, mut client) = set_up();
    proxy.blackhole(Direction::ToServer);
    client.write_all(b"lost").unwrap();
    assert!(is_silent(&mut client));
    assert!(echo.received().is_empty());
}

#[test]
fn the_next_bytes_are_dropped_with_their_connection_once() {
    let (echo, proxy, mut client) = set_up();
    proxy.drop_and_reset_once(Direction::ToServer);
    client.write_all(b"lost").unwrap();
    assert!(is_reset(&mut client));
    assert!(echo.received().is_empty());
    assert_eq!(proxy.armed(), 0);
    assert_eq!(echoed(&mut connect(&proxy), "kept"), "kept");
}

#[test]
fn a_reset_comes_after_exactly_so_many_bytes() {
    let (echo, proxy, mut client) = set_up();
    proxy.reset_after(Direction::ToServer, 6);
    assert_eq!(echoed(&mut client, "1234"), "1234");
    client.write_all(b"5678").unwrap();
    assert!(is_reset(&mut client));
    until_received(&echo, "123456");
}

#[test]
fn an_answer_is_swallowed_after_a_pattern_passed() {
    let (echo, proxy, mut client) = set_up();
    let then = Then::SwallowAnswer {
        until: b"END".to_vec(),
    };
    proxy.trap(Trap::once(
        Direction::ToServer,
        When::Pattern(b"DO".to_vec()),
        then,
    ));
    assert_eq!(echoed(&mut client, "before D"), "before D");
    // The pattern spans two pieces, and its answer is swallowed over two pieces.
    client.write_all(b"O it").unwrap();
    until_received(&echo, "before DO it");
    client.write_all(b" END").unwrap();
    assert!(is_reset(&mut client));
    until_received(&echo, "before DO it END");
    assert_eq!(proxy.journal().count("answer swallowed"), 1);
}

#[test]
fn refused_connections_are_refused_by_the_kernel_and_old_ones_stay() {
    let (_echo, proxy, mut client) = set_up();
    assert_eq!(echoed(&mut client, "a"), "a");
    proxy.refuse_connections();
    let refused = TcpStream::connect(proxy.addr()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(echoed(&mut client, "b"), "b");
    proxy.accept_connections();
    assert_eq!(echoed(&mut connect(&proxy), "c"), "c");
}

#[test]
fn cutting_all_resets_every_connection_and_new_ones_work() {
    let (_echo, proxy, mut client) = set_up();
    let mut other = connect(&proxy);
    assert_eq!(echoed(&mut client, "a"), "a");
    assert_eq!(echoed(&mut other, "b"), "b");
    assert_eq!(proxy.cut_all(), 2);
    assert_eq!(proxy.connections(), 0);
    assert!(is_reset(&mut client) && is_reset(&mut other));
    assert_eq!(echoed(&mut connect(&proxy), "c"), "c");
}

#[test]
fn a_missing_server_is_a_reset() {
    let nobody = ([127, 0, 0, 1], delta_testkit::port::free_port().unwrap()).into();
    let proxy = Proxy::start(nobody, 1).unwrap();
    let mut client = connect(&proxy);
    assert!(is_reset(&mut client));
    assert_eq!(proxy.journal().count("no target"), 1);
}

#[test]
fn the_same_seed_hurts_the_same_connections() {
    let echo = Echo::start();
    let outcome = |seed| {
        let proxy = Proxy::start(echo.addr, seed).unwrap();
        proxy.reset_chance(Direction::ToServer, 0.5);
        let survives = |_| {
            let mut client = connect(&proxy);
            client.write_all(b"x").unwrap();
            client.read(&mut [0; 1]).is_ok()
        };
        let survivors: Vec<bool> = (0..24).map(survives).collect();
        let resets = survivors.iter().filter(|survived| !**survived).count();
        assert_eq!(proxy.journal().count("reset by chance"), resets as u64);
        survivors
    };
    let first = outcome(11);
    assert_eq!(first, outcome(11));
    assert_ne!(first, outcome(12));
    assert!(first.contains(&true) && first.contains(&false));
}

#[test]
fn a_dropped_proxy_leaves_nothing_listening() {
    let (_echo, proxy, mut client) = set_up();
    let addr = proxy.addr();
    assert_eq!(echoed(&mut client, "a"), "a");
    drop(proxy);
    assert!(is_reset(&mut client));
    assert!(TcpStream::connect(addr).is_err());
}

#[test]
fn a_half_closed_direction_ends_in_order_and_the_other_goes_on() {
    let (echo, proxy, mut client) = set_up();
    assert_eq!(echoed(&mut client, "hello"), "hello");
    proxy.half_close_chance(Direction::ToClient, 1.0);
    client.write_all(b"lost").unwrap();
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "an orderly end");
    client.write_all(b" and on").unwrap();
    until_received(&echo, "hellolost and on");
    assert_eq!(proxy.journal().count("half-close"), 1);
}
