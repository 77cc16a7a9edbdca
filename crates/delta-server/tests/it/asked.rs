//! What gRPC tools ask: health without a credential, the schema with one, and services that are
//! not here.

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::net::TcpStream;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::bench::Bench;

/// One call by hand: its status, and its first answer if there is one.
async fn call(bench: &Bench, path: &str, token: Option<&str>, message: &[u8]) -> (Code, Bytes) {
    let stream = TcpStream::connect(bench.base.trim_start_matches("http://"));
    let io = TokioIo::new(stream.await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    let mut request = hyper::Request::post(format!("{}{path}", bench.base))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::from(framed))).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let head = response.headers().get("grpc-status").cloned();
    let body = tokio::time::timeout(crate::bench::PATIENCE, response.into_body().collect());
    let body = body.await.unwrap().unwrap();
    let tail = body
        .trailers()
        .and_then(|all| all.get("grpc-status"))
        .cloned();
    let status = head.or(tail).expect("a status");
    connection.abort();
    let bytes = body.to_bytes();
    (
        Code::from_bytes(status.as_bytes()),
        bytes.slice(bytes.len().min(5)..),
    )
}

fn health(service: &str) -> Vec<u8> {
    let service = service.to_owned();
    HealthCheckRequest { service }.encode_to_vec()
}

#[tokio::test]
async fn health_is_told_to_everybody_and_nothing_else() {
    // RP-55
    let bench = Bench::patient().await;
    let path = "/grpc.health.v1.Health/Check";
    for service in ["", "delta.agent.v1.AgentService"] {
        let (code, answer) = call(&bench, path, None, &health(service)).await;
        assert_eq!(code, Code::Ok);
        let answer = HealthCheckResponse::decode(answer).unwrap();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
    let (code, _) = call(&bench, path, None, &health("other")).await;
    assert_eq!(code, Code::NotFound);
}

/// `ServerReflectionRequest { list_services: "" }`
const LIST_SERVICES: &[u8] = b"\x3a\x00";

#[tokio::test]
async fn the_schema_is_told_to_callers_with_a_credential() {
    // RP-55
    let bench = Bench::patient().await;
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    for token in [None, Some("delta_user_nonsense")] {
        let (code, answer) = call(&bench, path, token, LIST_SERVICES).await;
        assert_eq!((code, answer.len()), (Code::Unauthenticated, 0));
    }
    for token in [&bench.runner, &bench.user] {
        let (code, answer) = call(&bench, path, Some(token), LIST_SERVICES).await;
        assert_eq!(code, Code::Ok);
        let names = String::from_utf8_lossy(&answer).into_owned();
        assert!(names.contains("delta.agent.v1.AgentService"), "{names}");
    }
}

#[tokio::test]
async fn a_service_that_is_not_here_is_unimplemented() {
    let bench = Bench::patient().await;
    for path in [
        "/delta.agent.v1.AgentService/Other",
        "/grpc.health.v1.Health/Other",
        "/x.Y/Z",
    ] {
        let (code, _) = call(&bench, path, None, b"").await;
        assert_eq!(code, Code::Unimplemented, "{path}");
    }
    // HTTP keeps its own words.
    bench.get("/x.Y/Z").await.expect(404);
}
