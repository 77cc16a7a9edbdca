//! The proxy that knows gRPC calls and their messages: between a client and a server that stream to
//! each other, it loses, doubles and reorders whole messages in both directions.
//!
//! No network does that to a stream; a peer, a balancer or a bug in either end may. It knows where
//! a message begins and ends, and nothing of what is in it. Plain HTTP/2 only.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Result;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};

use super::grpc_lane::{GrpcChances, GrpcLane};
use super::journal::Journal;
use super::lane::Direction;
use crate::rng::Rng;

/// Before each message: one byte for compression, four for its length.
const PREFIX: usize = 5;
/// Messages between the two ends: few, so that a reader who is slow is felt by the sender.
const AHEAD: usize = 4;

/// A gRPC proxy with faults.
#[derive(Debug)]
pub struct GrpcProxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    seed: u64,
    chances: Mutex<GrpcChances>,
    journal: Arc<Journal>,
    calls: AtomicU64,
}

impl GrpcProxy {
    /// Listens on a loopback port and forwards to `target`.
    pub fn start(target: SocketAddr, seed: u64) -> Result<GrpcProxy> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target,
            seed,
            chances: Mutex::new(GrpcChances::none()),
            journal: Arc::new(Journal::new(seed)),
            calls: AtomicU64::new(0),
        });
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let of_calls = shared.clone();
        let thread = std::thread::Builder::new()
            .name("grpc-proxy".into())
            .spawn(move || {
                runtime.block_on(async {
                    let listener = TcpListener::from_std(listener).expect("called on the runtime");
                    tokio::select! {
                        () = accept(listener, of_calls) => {}
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(GrpcProxy {
            addr,
            shared,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Faults by chance, for calls that begin from now on.
    pub fn chances(&self, chances: GrpcChances) {
        let mut current = self.shared.chances.lock();
        **current.as_mut().unwrap_or_else(|broken| broken.get_mut()) = chances;
    }

    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }
}

impl Drop for GrpcProxy {
    fn drop(&mut self) {
        self.shared.journal.print_if_panicking("gRPC fault proxy");
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic on that thread has been printed there; a drop adds no second one.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        // An error is about one connection that went away before it was taken.
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let _ = client.set_nodelay(true);
        let shared = shared.clone();
        let service = hyper::service::service_fn(move |request| call(request, shared.clone()));
        tokio::spawn(async move {
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // A connection that breaks is what a proxy is for.
            let _ = builder
                .serve_connection(TokioIo::new(client), service)
                .await;
        });
    }
}

/// One call, to the end of its answer's head; both bodies are carried on by tasks of their own.
async fn call(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Piped>> {
    let number = shared.calls.fetch_add(1, Ordering::Relaxed);
    let server = TcpStream::connect(shared.target).await?;
    server.set_nodelay(true)?;
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = builder.handshake(TokioIo::new(server)).await?;
    tokio::spawn(connection);
    let request = request.map(|body| pipe(body, shared.lane(number, Direction::ToServer)));
    let response = sender.send_request(request).await?;
    Ok(response.map(|body| pipe(body, shared.lane(number, Direction::ToClient))))
}

impl Shared {
    fn lane(&self, call: u64, direction: Direction) -> GrpcLane {
        let chances = *self
            .chances
            .lock()
            .unwrap_or_else(|error| error.into_inner());
        let rng = Rng::part(self.seed, 2 * call + direction.index() as u64);
        GrpcLane::new(call, direction, rng, chances, self.journal.clone())
    }
}

/// The other end of what is carried.
struct Piped(mpsc::Receiver<Result<Frame<Bytes>, hyper::Error>>);

impl Body for Piped {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.0.poll_recv(context)
    }
}

fn pipe(from: Incoming, lane: GrpcLane) -> Piped {
    let (to, piped) = mpsc::channel(AHEAD);
    tokio::spawn(carry(from, to, lane));
    Piped(piped)
}

/// Carries a body to its end, message by message. Nothing is left to do when its reader is gone.
async fn carry(
    mut from: Incoming,
    to: mpsc::Sender<Result<Frame<Bytes>, hyper::Error>>,
    mut lane: GrpcLane,
) {
    let mut to = Some(to);
    let mut bytes = Vec::new();
    loop {
        let due = lane.next_due().map(tokio::time::Instant::from_std);
        let (passing, end) = tokio::select! {
            frame = from.frame() => match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => {
                    bytes.extend_from_slice(&data);
                    let now = Instant::now();
                    let messages = std::iter::from_fn(|| next_message(&mut bytes));
                    (messages.flat_map(|message| lane.take(message, now)).collect(), None)
                }
                // Trailers: the last word of an answer.
                Some(Ok(Err(trailers))) => (lane.rest(), Some(Some(Ok(trailers)))),
                Some(Err(error)) => (lane.rest(), Some(Some(Err(error)))),
                None => (lane.rest(), Some(None)),
            },
            () = tokio::time::sleep_until(due.unwrap_or_else(tokio::time::Instant::now)),
                if due.is_some() => (lane.due(Instant::now()), None),
        };
        let passing: Vec<Bytes> = passing;
        let ended = end.is_some();
        let passing = passing.into_iter().map(|it| Ok(Frame::data(it)));
        for frame in passing.chain(end.flatten()) {
            let Some(to) = &to else { break };
            if to.send(frame).await.is_err() {
                return;
            }
        }
        if lane.is_closed() {
            // What comes is still read, so that the other direction lives.
            drop(to.take());
        }
        if ended {
            return;
        }
    }
}

/// Takes a whole message, with its prefix, from the front.
fn next_message(bytes: &mut Vec<u8>) -> Option<Bytes> {
    let length = bytes.get(1..PREFIX)?;
    let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
    if bytes.len() < PREFIX + length {
        return None;
    }
    let rest = bytes.split_off(PREFIX + length);
    Some(std::mem::replace(bytes, rest).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_wherever_the_pieces_are_cut() {
        let mut bytes = Vec::new();
        let mut found = Vec::new();
        for byte in [0, 0, 0, 0, 2, 7, 8, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 9, 0] {
            bytes.push(byte);
            found.extend(next_message(&mut bytes));
        }
        let whole: [&[u8]; 3] = [&[0, 0, 0, 0, 2, 7, 8], &[0; 5], &[1, 0, 0, 0, 1, 9]];
        assert_eq!(found, whole);
        assert_eq!(bytes, [0]);
    }
}
