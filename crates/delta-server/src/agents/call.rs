//! One gRPC call comes in: who calls, is there room, is its first message a registration.
//!
//! The call is served by the same router as HTTP, on the same port; the path and the content type
//! tell them apart.

use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use delta_wire::agent::frame::{FrameCodec, Received};
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::{AgentMessage, RegisterRequest, ServerFrame};
use delta_wire::agent::{MAX_FRAME_BYTES, SESSION_PATH};
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::server::Grpc;
use tonic::{Status, Streaming};

use super::outgoing::{FRAMES_AHEAD, Frames};
use super::register::register;
use crate::http::{self, App};
use crate::identity::Principal;

/// How long the first message may take (EP-5).
const FIRST_MESSAGE: Duration = Duration::from_secs(10);

pub fn routes() -> Router<App> {
    Router::new().route(SESSION_PATH, post(session))
}

async fn session(State(app): State<App>, request: Request) -> Response {
    if !is_grpc(request.headers()) {
        let words = "this path speaks gRPC: content-type must be application/grpc";
        return (axum::http::StatusCode::UNSUPPORTED_MEDIA_TYPE, words).into_response();
    }
    let (parts, body) = request.into_parts();
    let principal = match http::runner(&parts, &app).await {
        Ok(principal) => principal,
        Err(error) => {
            return status(&error)
                .into_http::<tonic::body::Body>()
                .into_response();
        }
    };
    let serve = tower::service_fn(move |call: tonic::Request<Streaming<Received>>| {
        open(app.clone(), principal.clone(), call.into_inner())
    });
    let mut grpc = Grpc::new(FrameCodec::<ServerFrame>::default())
        .apply_max_message_size_config(Some(MAX_FRAME_BYTES), None);
    let request = Request::from_parts(parts, body);
    let response = grpc.streaming(serve, request).await;
    response.map(axum::body::Body::new)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// A refusal in gRPC's words: what agents end on, and what they wait for (EP-35).
fn status(error: &http::ApiError) -> Status {
    let message = error.body.message.clone();
    match error.code.status() {
        401 => Status::unauthenticated(message),
        403 => Status::permission_denied(message),
        _ => Status::unavailable(message),
    }
}

async fn open(
    app: App,
    principal: Principal,
    mut stream: Streaming<Received>,
) -> Result<tonic::Response<Frames>, Status> {
    let first = tokio::time::timeout(FIRST_MESSAGE, stream.message());
    let first = first
        .await
        .map_err(|_| Status::deadline_exceeded("no RegisterRequest within 10 s"))??;
    let (request, rest) = registration(first)?;
    let (mut session, orders) = register(&app, principal, request).await?;
    session.hear(rest);
    let (frames, taken) = mpsc::channel(FRAMES_AHEAD);
    tokio::spawn(session.run(stream, orders, frames));
    Ok(tonic::Response::new(Frames(taken)))
}

/// EP-5: any other first message ends the call.
fn registration(first: Option<Received>) -> Result<(RegisterRequest, Received), Status> {
    let mut first = first.ok_or_else(first_must_register)?;
    if first.garbled || first.messages.is_empty() {
        return Err(first_must_register());
    }
    let message = AgentMessage::decode(first.messages.remove(0));
    match message.ok().and_then(|it| it.message) {
        Some(Said::Register(request)) => Ok((request, first)),
        _ => Err(first_must_register()),
    }
}

fn first_must_register() -> Status {
    Status::failed_precondition("the first message must be a RegisterRequest")
}
