//! The fake server's sockets: connections, TLS, and the one call on each.

use std::convert::Infallible;
use std::sync::Arc;

use delta_grpc::codec::FrameCodec;
use delta_wire::agent::SESSION_PATH;
use delta_wire::agent::frame::{RawFrame, Received};
use delta_wire::agent::proto::AgentMessage;
use delta_wire::agent::proto::agent_message::Message as Said;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::server::Grpc;
use tonic::{Status, Streaming};

use super::{Shared, State};

type Frames = UnboundedReceiverStream<Result<RawFrame, Status>>;

pub async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    while let Ok((socket, _)) = listener.accept().await {
        let serving = tokio::spawn(connection(socket, tls.clone(), Arc::clone(&shared)));
        shared.with(|state| state.connections.push(serving.abort_handle()));
    }
}

async fn connection(socket: TcpStream, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut first = [0];
    if matches!(socket.peek(&mut first).await, Ok(1)) {
        shared.with(|state| state.first_bytes.push(first[0]));
    }
    let Some(tls) = tls else {
        return serve(socket, shared).await;
    };
    let Ok(stream) = tls.accept(socket).await else {
        return;
    };
    let shown = stream.get_ref().1.peer_certificates();
    let shown = shown.and_then(|chain| chain.first()).map(|it| it.to_vec());
    shared.with(|state| state.certificate = shown);
    serve(stream, shared).await;
}

async fn serve<S>(socket: S, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(call(request, shared).await) }
    });
    // A connection that breaks is part of the test.
    let _ = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(socket), service)
        .await;
}

async fn call(request: Request<Incoming>, shared: Arc<Shared>) -> Response<tonic::body::Body> {
    if let Err(status) = shared.with(|state| look_at(&request, state)) {
        return status.into_http();
    }
    let serve = tower::service_fn(move |call: tonic::Request<Streaming<Received>>| {
        open(Arc::clone(&shared), call.into_inner())
    });
    let mut grpc = Grpc::new(FrameCodec::<RawFrame>::default());
    grpc.streaming(serve, request).await
}

/// What every call must have, and must not have.
fn look_at(request: &Request<Incoming>, state: &mut State) -> Result<(), Status> {
    if request.uri().path() != SESSION_PATH || request.uri().query().is_some() {
        state.violation(format!("an odd path: {}", request.uri()));
    }
    let told = |value: &[u8]| String::from_utf8_lossy(value).contains("lease_canary");
    for (name, value) in request.headers() {
        if told(value.as_bytes()) {
            state.violation(format!("a lease in the header {name}"));
        }
    }
    let shown = request.headers().get("authorization");
    let shown = shown.and_then(|it| it.to_str().ok()).unwrap_or_default();
    state.token_shown(shown.strip_prefix("Bearer ").unwrap_or_default())
}

async fn open(
    shared: Arc<Shared>,
    mut stream: Streaming<Received>,
) -> Result<tonic::Response<Frames>, Status> {
    let first = stream.message().await?;
    let mut said = first
        .map(|it| read(it, &shared))
        .unwrap_or_default()
        .into_iter();
    let Some(Said::Register(request)) = said.next() else {
        shared.with(|state| state.violation("the first message is no registration".to_owned()));
        return Err(Status::failed_precondition("register first"));
    };
    let (frames, taken) = mpsc::unbounded_channel();
    shared.with(|state| state.register(request, frames))?;
    tokio::spawn(async move {
        loop {
            for said in said {
                shared.with(|state| state.hear(said));
            }
            shared.may_read().await;
            match stream.message().await {
                Ok(Some(received)) => said = read(received, &shared).into_iter(),
                Ok(None) | Err(_) => return,
            }
        }
    });
    Ok(tonic::Response::new(Frames::new(taken)))
}

fn read(received: Received, shared: &Shared) -> Vec<Said> {
    let read = received.messages.into_iter().map(|bytes| {
        let message = AgentMessage::decode(bytes).ok();
        message.and_then(|message| message.message)
    });
    let read: Option<Vec<Said>> = read.collect();
    match read.filter(|_| !received.garbled) {
        Some(read) => read,
        None => {
            shared.with(|state| state.violation("a message cannot be read".to_owned()));
            Vec::new()
        }
    }
}
