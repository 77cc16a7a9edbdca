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
use delta_grpc::codec::FrameCodec;
use delta_store::read::Role;
use delta_wire::agent::frame::Received;
use delta_wire::agent::proto::agent_message::Message as FromAgent;
use delta_wire::agent::proto::{AgentMessage, RegisterRequest, ServerFrame};
use delta_wire::agent::{MAX_FRAME_BYTES, SESSION_PATH};
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::server::Grpc;
use tonic::{Status, Streaming};

use super::outgoing::{FRAMES_AHEAD, Frames};
use super::register::register;
use super::registry::SessionPlace;
use crate::app::App;
use crate::identity::Principal;
use crate::identity::admission::NotAdmitted;

/// How long the first message may take (EP-5).
const FIRST_MESSAGE: Duration = Duration::from_secs(10);

pub fn routes(app: &App) -> Router<App> {
    Router::new()
        .route(SESSION_PATH, post(session))
        .merge(super::grpc_health::routes(app))
}

async fn session(State(app): State<App>, request: Request) -> Response {
    if !is_grpc(request.headers()) {
        let words = "this path speaks gRPC: content-type must be application/grpc";
        return (axum::http::StatusCode::UNSUPPORTED_MEDIA_TYPE, words).into_response();
    }
    let (parts, body) = request.into_parts();
    let principal = match app.caller_with(Role::Runner, &parts).await {
        Ok(principal) => principal,
        Err(error) => return refusal(status(&error)),
    };
    let Some(place) = app.agents.place(&principal.id) else {
        let status = Status::resource_exhausted("this credential has too many sessions");
        return refusal(status);
    };
    let mut place = Some(place);
    let serve = tower::service_fn(move |call: tonic::Request<Streaming<Received>>| {
        open(
            app.clone(),
            principal.clone(),
            place.take(),
            call.into_inner(),
        )
    });
    let mut grpc = Grpc::new(FrameCodec::<ServerFrame>::default())
        .apply_max_message_size_config(Some(MAX_FRAME_BYTES), None);
    let request = Request::from_parts(parts, body);
    let response = grpc.streaming(serve, request).await;
    response.map(axum::body::Body::new)
}

/// A refusal as a call is answered.
pub fn refusal(status: Status) -> Response {
    status.into_http::<tonic::body::Body>().into_response()
}

/// What a call is told that nobody here knows; nothing for what is no call.
pub fn not_spoken(headers: &HeaderMap) -> Option<Response> {
    let status = || Status::unimplemented("there is no such service or method here");
    is_grpc(headers).then(|| refusal(status()))
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// A refusal in gRPC's words: what agents end on, and what they wait for (EP-35).
pub fn status(error: &NotAdmitted) -> Status {
    let message = error.to_string();
    match error {
        NotAdmitted::Unauthenticated => Status::unauthenticated(message),
        NotAdmitted::Forbidden { .. } => Status::permission_denied(message),
        NotAdmitted::NotNow(_) => Status::unavailable(message),
    }
}

async fn open(
    app: App,
    principal: Principal,
    place: Option<SessionPlace>,
    mut stream: Streaming<Received>,
) -> Result<tonic::Response<Frames>, Status> {
    let first = first(stream.message(), FIRST_MESSAGE).await?;
    let (request, rest) = registration(first)?;
    let (mut session, orders) = register(&app, principal, request).await?;
    session.receive(rest);
    let (frames, taken) = mpsc::channel(FRAMES_AHEAD);
    tokio::spawn(session.run(stream, orders, frames, place));
    Ok(tonic::Response::new(Frames(taken)))
}

/// Waits for the first message, and not for ever.
async fn first<T>(
    next: impl Future<Output = Result<T, Status>>,
    patience: Duration,
) -> Result<T, Status> {
    let late = || {
        let words = format!("no RegisterRequest within {} s", patience.as_secs());
        Status::deadline_exceeded(words)
    };
    let first = tokio::time::timeout(patience, next).await;
    first.unwrap_or_else(|_| Err(late()))
}

/// EP-5: any other first message ends the call.
fn registration(first: Option<Received>) -> Result<(RegisterRequest, Received), Status> {
    let mut first = first.ok_or_else(first_must_register)?;
    if first.garbled || first.messages.is_empty() {
        return Err(first_must_register());
    }
    let message = AgentMessage::decode(first.messages.remove(0));
    match message.ok().and_then(|it| it.message) {
        Some(FromAgent::Register(request)) => Ok((request, first)),
        _ => Err(first_must_register()),
    }
}

fn first_must_register() -> Status {
    Status::failed_precondition("the first message must be a RegisterRequest")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_that_never_registers_is_ended() {
        // EP-5, T23
        let never = std::future::pending::<Result<(), Status>>();
        let ended = first(never, Duration::from_millis(20)).await;
        assert_eq!(ended.unwrap_err().code(), tonic::Code::DeadlineExceeded);
    }
}
