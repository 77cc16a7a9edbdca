//! What every gRPC tool asks a server: is it well, what does it speak.
//!
//! Health is for whoever reaches the port and says what `/readyz` says. Reflection tells the
//! schema, to callers with a credential of any role (RP-55). Neither tells anything of agents.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use delta_wire::agent::{DESCRIPTORS, SERVICE};
use tokio::sync::{Semaphore, mpsc};
use tonic::Status;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::call::{refusal, status};
use crate::app::App;
use crate::readiness;

/// How often readiness is looked at for those who watch it.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Watchers at a time: balancers and probes of one server. They need no credential, so there is
/// no room for more.
const MAX_WATCHERS: usize = 64;
/// Bytes of a question: the name of a service.
const MAX_QUESTION: usize = 4 * 1024;

pub fn routes(app: &App) -> Router<App> {
    let asked = GrpcHealth {
        app: app.clone(),
        room: Arc::new(Semaphore::new(MAX_WATCHERS)),
    };
    let health = HealthServer::new(asked).max_decoding_message_size(MAX_QUESTION);
    let router = Router::new().route_service("/grpc.health.v1.Health/{*method}", health);
    let schema = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .build_v1();
    match schema {
        Ok(schema) => {
            let schema = schema.max_decoding_message_size(MAX_QUESTION);
            let path = "/grpc.reflection.v1.ServerReflection/{*method}";
            let told = Router::new().route_service(path, schema);
            router.merge(told.layer(from_fn_with_state(app.clone(), with_credential)))
        }
        Err(error) => {
            tracing::error!(%error, "the schema cannot be told");
            router
        }
    }
}

async fn with_credential(State(app): State<App>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match app.caller(&parts).await {
        Ok(_) => next.run(Request::from_parts(parts, body)).await,
        Err(error) => refusal(status(&error)),
    }
}

struct GrpcHealth {
    app: App,
    room: Arc<Semaphore>,
}

#[tonic::async_trait]
impl Health for GrpcHealth {
    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, Status> {
        if !is_ours(&request.get_ref().service) {
            return Err(Status::not_found("there is no such service here"));
        }
        Ok(tonic::Response::new(response(standing(&self.app).await)))
    }

    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        let room = self.room.clone().try_acquire_owned();
        let room = room.map_err(|_| Status::resource_exhausted("too many watch already"))?;
        let ours = is_ours(&request.get_ref().service);
        let (says, said) = mpsc::channel(1);
        let app = self.app.clone();
        tokio::spawn(async move {
            watch(&app, ours, &says).await;
            drop(room);
        });
        Ok(tonic::Response::new(ReceiverStream::new(said)))
    }
}

type StatusSender = mpsc::Sender<Result<HealthCheckResponse, Status>>;

/// StatusSender how the server stands, and again whenever that changes.
async fn watch(app: &App, ours: bool, says: &StatusSender) {
    let mut last = None;
    loop {
        let now = if ours {
            standing(app).await
        } else {
            ServingStatus::ServiceUnknown
        };
        if last != Some(now) && says.send(Ok(response(now))).await.is_err() {
            return;
        }
        last = Some(now);
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = says.closed() => return,
            () = app.stop.cancelled() => {
                let _ = says.try_send(Ok(response(ServingStatus::NotServing)));
                return;
            }
        }
    }
}

fn is_ours(service: &str) -> bool {
    service.is_empty() || service == SERVICE
}

async fn standing(app: &App) -> ServingStatus {
    match readiness::ready(app).await {
        Ok(()) => ServingStatus::Serving,
        Err(_) => ServingStatus::NotServing,
    }
}

fn response(standing: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: standing.into(),
    }
}
