//! One client's connection through the HTTP proxy, paired with one connection to the server.
//!
//! The pairing is strict: when the server's side breaks, the client's is reset. The proxy never
//! sends a request again on its own, since that would be the very fault tests look for.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::door::{End, close_on_drop, reset_on_drop};
use super::http_message::{Body, Request, ResponseHead, Wire};
use super::http_rules::{Plan, Rules};
use super::journal::Journal;
use crate::rng::Rng;

/// What all connections of a proxy share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) target: SocketAddr,
    pub(super) seed: u64,
    pub(super) rules: Rules,
    pub(super) journal: Journal,
}

pub(super) async fn serve(shared: Arc<Shared>, number: u64, client: TcpStream) -> (End, TcpStream) {
    reset_on_drop(&client);
    let Ok(server) = connect(shared.target).await else {
        shared
            .journal
            .note("no target", format!("connection {number}"));
        return (End::Reset, client);
    };
    let rng = Rng::part(shared.seed, number);
    let (client, server) = (Wire::new(client), Wire::new(server));
    let mut pair = Pair {
        shared: &shared,
        number,
        rng,
        client,
        server,
    };
    let end = pair.run().await.unwrap_or(End::Reset);
    // The server always sees an orderly end: what it was sent stays sent.
    close_on_drop(&pair.server.stream);
    (end, pair.client.stream)
}

struct Pair<'a> {
    shared: &'a Shared,
    number: u64,
    rng: Rng,
    client: Wire,
    server: Wire,
}

impl Pair<'_> {
    async fn run(&mut self) -> io::Result<End> {
        loop {
            let request = tokio::select! {
                request = self.client.request() => match request? {
                    Some(request) => request,
                    None => return Ok(End::Closed),
                },
                () = self.server.disturbed() => return Ok(End::Closed),
            };
            let plan = self.shared.rules.plan(&request.path, &mut self.rng);
            if let Some(end) = self.exchange(&request, plan).await? {
                return Ok(end);
            }
        }
    }

    /// One request and its answer; says how the connection ends, when it does.
    async fn exchange(&mut self, request: &Request, plan: Plan) -> io::Result<Option<End>> {
        if let Some(pause) = plan.delay {
            self.note("delay", request, &format!("by {pause:?}"));
            tokio::time::sleep(pause).await;
        }
        if let Some(gate) = &plan.hold_request {
            self.note("hold request", request, "");
            gate.pass().await;
        }
        if plan.drop_request {
            self.note("drop request", request, "");
            return Ok(Some(End::Reset));
        }
        let copies = self.send_copies(request, plan.repeat);
        self.server.stream.write_all(&request.bytes).await?;
        let head = tokio::select! {
            head = self.server.response_head(&request.method) => head?,
            () = self.client.hung_up(), if plan.follows_client() => return Ok(Some(End::Closed)),
        };
        copies.join_all().await;
        if let Some(gate) = &plan.hold_response {
            self.note("hold response", request, &format!("status {}", head.status));
            gate.pass().await;
        }
        if plan.drop_response {
            self.note("drop response", request, &format!("status {}", head.status));
            return Ok(Some(End::Reset));
        }
        self.relay(head).await
    }

    fn send_copies(&self, request: &Request, more: u32) -> JoinSet<io::Result<()>> {
        let mut copies = JoinSet::new();
        if more > 0 {
            self.note("repeat request", request, &format!("{more} more"));
        }
        for _ in 0..more {
            let (target, bytes) = (self.shared.target, request.bytes.clone());
            copies.spawn(send_and_forget(target, request.method.clone(), bytes));
        }
        copies
    }

    async fn relay(&mut self, head: ResponseHead) -> io::Result<Option<End>> {
        self.client.stream.write_all(&head.bytes).await?;
        let mut body = Body::new(head.framing);
        loop {
            let piece = tokio::select! {
                piece = body.next(&mut self.server) => piece?,
                () = self.client.hung_up() => return Ok(Some(End::Closed)),
            };
            match piece {
                Some(piece) => self.client.stream.write_all(&piece).await?,
                None => return Ok(head.closes.then_some(End::Closed)),
            }
        }
    }

    fn note(&self, kind: &'static str, request: &Request, detail: &str) {
        let Request { method, path, .. } = request;
        let line = format!("connection {} {method} {path} {detail}", self.number);
        self.shared.journal.note(kind, line.trim_end().to_owned());
    }
}

async fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let server = TcpStream::connect(target).await?;
    let _ = server.set_nodelay(true);
    reset_on_drop(&server);
    Ok(server)
}

/// A copy of a request: its answer is waited for, so that it has surely been taken, and unread.
async fn send_and_forget(target: SocketAddr, method: String, bytes: Vec<u8>) -> io::Result<()> {
    let mut server = Wire::new(connect(target).await?);
    server.stream.write_all(&bytes).await?;
    let head = server.response_head(&method).await?;
    let mut body = Body::new(head.framing);
    while body.next(&mut server).await?.is_some() {}
    Ok(())
}
