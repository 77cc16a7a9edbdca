//! Peers that mean harm, with HTTP/2 written by hand, while an honest agent is served.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use delta_core::{Settings, Span};
use delta_wire::agent::proto::RunStatus;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::{MAX_FRAME_BYTES, SESSION_PATH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::Code;

use crate::agent::{Agent, request};
use crate::bench::{Bench, PATIENCE, patient_settings};

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const DATA: u8 = 0;
const END_HEADERS: u8 = 4;
const REFUSED_STREAM: u8 = 7;
const ENHANCE_YOUR_CALM: u8 = 11;

/// A connection that speaks as it likes.
struct Raw {
    stream: TcpStream,
    /// Headers of a call that opens a session.
    call: Vec<u8>,
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header without compression.
fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        assert!(text.len() < 127, "one byte of length");
        bytes.push(u8::try_from(text.len()).unwrap());
        bytes.extend(text.as_bytes());
    }
    bytes
}

impl Raw {
    async fn open(bench: &Bench) -> Raw {
        let authority = bench.base.trim_start_matches("http://");
        let mut stream = TcpStream::connect(authority).await.unwrap();
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            .await
            .unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, b"")).await.unwrap();
        let call = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", SESSION_PATH),
            (":authority", authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("authorization", &format!("Bearer {}", bench.runner)),
        ];
        let call = call.iter().flat_map(|(name, value)| header(name, value));
        let call = call.collect();
        Raw { stream, call }
    }

    /// Writes; false when the other end has closed.
    async fn write(&mut self, bytes: &[u8]) -> bool {
        let wrote = tokio::time::timeout(PATIENCE, self.stream.write_all(bytes));
        wrote.await.expect("the server reads").is_ok()
    }

    /// The next frame: kind, stream, payload; nothing when the connection is closed.
    async fn read(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        let read = async {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let mut payload = vec![0; length as usize];
            self.stream.read_exact(&mut payload).await.ok()?;
            Some((head[3], stream, payload))
        };
        tokio::time::timeout(PATIENCE, read)
            .await
            .expect("the server says something")
    }

    /// Reads until a frame of this kind; its last byte is the error it names.
    async fn reads(&mut self, kind: u8) -> Option<Vec<u8>> {
        loop {
            let (found, _, payload) = self.read().await?;
            if found == kind {
                return Some(payload);
            }
        }
    }
}

/// An honest agent renews its lease again and again, and is answered every time.
async fn honest(bench: &Bench, times: u64) {
    let mut agent = Agent::new(bench).await;
    bench.run_with(1).await;
    let work = agent.work().await;
    agent.accepts(&work).await;
    for seq in 1..=times {
        agent.say([agent.heartbeat(&[&work], Some(seq))]).await;
        let renewed = agent.hears(|say| match say {
            Say::HeartbeatAck(ack) => Some((ack.leases[0].extended, ack.leases[0].seq)),
            _ => None,
        });
        assert_eq!(renewed.await, (true, Some(seq)));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn resets_rapidly(bench: &Bench) {
    let mut raw = Raw::open(bench).await;
    let mut burst = Vec::new();
    for n in 0..200 {
        let stream = 2 * n + 1;
        burst.extend(frame(HEADERS, END_HEADERS, stream, &raw.call));
        burst.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    raw.write(&burst).await;
    // Told why, unless the connection was closed before it could read that.
    if let Some(said) = raw.reads(GOAWAY).await {
        assert_eq!(said[7], ENHANCE_YOUR_CALM);
    }
    while raw.read().await.is_some() {}
}

async fn never_ends_its_headers(bench: &Bench) {
    let mut raw = Raw::open(bench).await;
    let call = raw.call.clone();
    raw.write(&frame(HEADERS, 0, 1, &call)).await;
    let more = header("x", &"y".repeat(100)).repeat(100);
    let mut open = true;
    for _ in 0..200 {
        open = open && raw.write(&frame(CONTINUATION, 0, 1, &more)).await;
    }
    // Told or not, it is closed.
    while raw.read().await.is_some() {}
}

async fn opens_too_many_streams(bench: &Bench) {
    let mut raw = Raw::open(bench).await;
    let call = raw.call.clone();
    for n in 0..300 {
        raw.write(&frame(HEADERS, END_HEADERS, 2 * n + 1, &call))
            .await;
    }
    let said = raw.reads(RST_STREAM).await.expect("the connection stays");
    assert_eq!(said[3], REFUSED_STREAM);
}

/// A message that is announced and never comes, byte by byte, until its call is ended.
async fn never_ends_its_message(bench: &Bench) {
    let mut raw = Raw::open(bench).await;
    let call = raw.call.clone();
    raw.write(&frame(HEADERS, END_HEADERS, 1, &call)).await;
    raw.write(&frame(DATA, 0, 1, &[0, 0, 0x10, 0, 0])).await;
    while raw.write(&frame(DATA, 0, 1, b"\n")).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn sends_a_frame_that_is_too_large(bench: &Bench) {
    let mut agent = Agent::new(bench).await;
    let work = Default::default();
    let large = agent.log(&work, Some(0), &vec![7; MAX_FRAME_BYTES + 1]);
    agent.say([large]).await;
    let ended = agent.ends().await.expect("a status");
    assert_eq!(ended.code(), Code::OutOfRange, "{ended}");
}

#[tokio::test]
async fn an_honest_agent_is_answered_whatever_others_do() {
    // F52, T22, T23
    let bench = Bench::patient().await;
    let harm = async {
        tokio::join!(
            resets_rapidly(&bench),
            never_ends_its_headers(&bench),
            opens_too_many_streams(&bench),
            sends_a_frame_that_is_too_large(&bench),
        );
    };
    let endless = async {
        never_ends_its_message(&bench).await;
        std::future::pending::<()>().await
    };
    tokio::select! {
        ((), ()) = async { tokio::join!(honest(&bench, 50), harm) } => {}
        () = endless => {}
    }
    honest(&bench, 3).await;
}

/// Connections that say nothing, or only how they would begin.
async fn says_nothing(bench: &Bench) -> Vec<TcpStream> {
    let authority = bench.base.trim_start_matches("http://");
    let mut silent = Vec::new();
    for n in 0..100 {
        let mut stream = TcpStream::connect(authority).await.unwrap();
        let begin: &[u8] = match n % 3 {
            0 => b"",
            1 => b"PRI * HTTP/2.0\r\n",
            _ => b"POST /api/v1/runs HTTP/1.1\r\nContent-Le",
        };
        stream.write_all(begin).await.unwrap();
        silent.push(stream);
    }
    silent
}

/// Heartbeats of each honest agent: a few lease times of them.
const BEATS: u64 = 40;

/// How many honest agents there are: what the storm says, otherwise enough for a test.
fn honest_agents() -> usize {
    let storm = std::env::var("DELTA_STORM").is_ok_and(|it| it == "1");
    let wanted = std::env::var("DELTA_STORM_AGENTS").ok().filter(|_| storm);
    wanted.map_or(20, |text| {
        text.parse().expect("DELTA_STORM_AGENTS is a number")
    })
}

/// Holds one of the jobs through all its heartbeats, none of which may be refused, and ends it.
async fn holds_its_lease(bench: Arc<Bench>, number: usize) {
    let mut register = request();
    register.agent_name = format!("honest-{number}");
    register.instance = register.agent_name.clone();
    let mut agent = Agent::register(&bench, register).await.unwrap();
    let work = agent.work().await;
    agent.accepts(&work).await;
    for seq in 1..=BEATS {
        agent.say([agent.heartbeat(&[&work], Some(seq))]).await;
        let renewed = agent.hears(|say| match say {
            Say::HeartbeatAck(ack) => Some((ack.leases[0].extended, ack.leases[0].seq)),
            _ => None,
        });
        assert_eq!(renewed.await, (true, Some(seq)), "agent {number}");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    agent
        .say([agent.completed(&work, RunStatus::Success)])
        .await;
    let taken = agent.hears(|say| match say {
        Say::CompleteAck(ack) => Some(ack.accepted),
        _ => None,
    });
    assert!(taken.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_agents_lose_nothing_to_peers_that_mean_harm() {
    // F52, T22, T23
    let settings = Settings {
        // Held over by heartbeats, and longer than a busy machine keeps one waiting.
        lease_ttl: Span(8_000),
        ack_timeout: Span::secs(60),
        heartbeat_interval: Span(250),
        ..patient_settings()
    };
    let bench = Arc::new(Bench::memory(settings).await);
    let count = honest_agents();
    let (_, jobs) = bench.run_with(count).await;
    let rounds = Cell::new(0);
    let harm = async {
        loop {
            rounds.set(rounds.get() + 1);
            let _silent = says_nothing(&bench).await;
            tokio::join!(
                resets_rapidly(&bench),
                never_ends_its_headers(&bench),
                opens_too_many_streams(&bench),
                sends_a_frame_that_is_too_large(&bench),
            );
        }
    };
    let endless = async {
        loop {
            never_ends_its_message(&bench).await;
        }
    };
    let mut honest = JoinSet::new();
    for number in 0..count {
        honest.spawn(holds_its_lease(Arc::clone(&bench), number));
    }
    tokio::select! {
        _ = honest.join_all() => {}
        () = harm => {}
        () = endless => {}
    }
    assert!(rounds.get() > 1, "harm was done again and again");
    for job in jobs {
        let view = bench.show_job(&job).await;
        let leases = view["attempts"][0]["leases"].as_array().map(Vec::len);
        assert_eq!((leases, &view["state"]), (Some(1), &"SUCCEEDED".into()));
    }
}

#[tokio::test]
async fn a_large_frame_within_the_bound_is_read() {
    let bench = Bench::patient().await;
    let mut agent = Agent::new(&bench).await;
    let work = Default::default();
    let large = agent.log(&work, Some(0), &vec![7; MAX_FRAME_BYTES - 1024]);
    agent.say([large, Said::Register(request())]).await;
    let named = agent.hears(|say| match say {
        Say::ProtocolError(error) => Some(error.field.clone()),
        _ => None,
    });
    assert_eq!(named.await, "run_id");
}
