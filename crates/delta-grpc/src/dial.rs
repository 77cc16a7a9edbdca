//! The agent's end of a session, over any connection that is already made.
//!
//! Owns how HTTP/2 is set up and how the call is opened. Who connects, with which certificate, and
//! what to do when it breaks is the caller's business.

use std::time::Duration;

use delta_wire::agent::frame::Received;
use delta_wire::agent::{MAX_FRAME_BYTES, SESSION_PATH};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tonic::codegen::http::uri::{PathAndQuery, Uri};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status, Streaming};

use crate::codec::FrameCodec;

/// A connection that says nothing is asked whether it is there this often, and given up when it
/// does not answer in time: a broken network is noticed within a minute.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_ANSWER: Duration = Duration::from_secs(20);
/// Largest frame that is read: an assignment with its spec, with room for what is to come (D15).
const MAX_READ_BYTES: usize = 4 * MAX_FRAME_BYTES;
/// Bytes the server may have on its way to us: its frames are small, or specs.
const WINDOW: u32 = 1024 * 1024;

/// An open session.
pub struct Dialed {
    pub received: Streaming<Received>,
    /// Ends when the connection does; dropping it closes the connection.
    pub connection: tokio::task::JoinHandle<()>,
}

/// Opens a session on `io`. `frames` must hold the registration already: the server answers
/// nothing before it has it.
pub async fn open<I, F>(
    io: I,
    origin: Uri,
    token: Option<&str>,
    frames: mpsc::Receiver<F>,
) -> Result<Dialed, Status>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    F: prost::Message + 'static,
{
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    let handshake = builder.handshake(TokioIo::new(io)).await;
    let (sender, connection) = handshake.map_err(|error| Status::unavailable(error.to_string()))?;
    let connection = tokio::spawn(async move {
        // Whoever reads the stream sees that it ended, and why.
        let _ = connection.await;
    });
    let service = tower::service_fn(move |request| {
        let mut sender = sender.clone();
        async move { sender.send_request(request).await }
    });
    let mut request = Request::new(ReceiverStream::new(frames));
    if let Some(token) = token {
        let value: MetadataValue<_> = format!("Bearer {token}")
            .parse()
            .map_err(|_| Status::unauthenticated("the token holds a character no header may"))?;
        request.metadata_mut().insert("authorization", value);
    }
    let mut grpc =
        tonic::client::Grpc::with_origin(service, origin).max_decoding_message_size(MAX_READ_BYTES);
    let path = PathAndQuery::from_static(SESSION_PATH);
    let opened = grpc
        .streaming(request, path, FrameCodec::<F>::default())
        .await;
    match opened {
        Ok(response) => Ok(Dialed {
            received: response.into_inner(),
            connection,
        }),
        Err(status) => {
            connection.abort();
            Err(status)
        }
    }
}
