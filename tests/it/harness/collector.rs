//! A collector of traces: a gRPC server that speaks OTLP with the official messages, on the
//! loopback, and keeps what it is sent.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tonic::{Request, Response, Status};

/// One span, as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub service: String,
    pub name: String,
    pub trace: String,
    pub id: String,
    /// Empty for the first of a trace.
    pub parent: String,
    pub attributes: BTreeMap<String, String>,
    /// Of its status, where it failed.
    pub failed: Option<String>,
    /// Nanoseconds of its beginning and its end.
    pub time: (u64, u64),
}

impl Seen {
    /// An attribute; empty when it has none of this name.
    pub fn word(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

/// Runs until it is dropped.
pub struct Collector {
    address: SocketAddr,
    kept: Arc<Kept>,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Default)]
struct Kept {
    spans: Mutex<Vec<Seen>>,
    /// Everything as it came, to look for what must not be there.
    raw: Mutex<String>,
}

impl Collector {
    pub fn start() -> Collector {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a thread");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("its port");
        let kept = Arc::<Kept>::default();
        let service = TraceServiceServer::from_arc(Arc::new(Service(Arc::clone(&kept))));
        let router = tonic::service::Routes::new(service).into_axum_router();
        runtime.spawn(async move { axum::serve(listener, router).await });
        Collector {
            address,
            kept,
            _runtime: runtime,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans of a trace, in the order they began.
    pub fn trace(&self, id: &str) -> Vec<Seen> {
        let all = self.kept.spans.lock();
        let all = all.unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<Seen> = all.iter().filter(|it| it.trace == id).cloned().collect();
        found.sort_by_key(|it| it.time);
        found
    }

    /// Everything it was sent and how, in the words of `Debug`.
    pub fn raw(&self) -> String {
        let raw = self.kept.raw.lock();
        raw.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Service(Arc<Kept>);

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let raw = format!("{:?} {:?}\n", request.metadata(), request.get_ref());
        let lock = self.0.raw.lock();
        lock.unwrap_or_else(PoisonError::into_inner).push_str(&raw);
        let mut spans = Vec::new();
        for sent in request.into_inner().resource_spans {
            let resource = sent.resource.unwrap_or_default();
            let service = words(&resource.attributes).remove("service.name");
            let service = service.unwrap_or_default();
            let sent = sent.scope_spans.into_iter().flat_map(|it| it.spans);
            spans.extend(sent.map(|span| seen(&service, span)));
        }
        let lock = self.0.spans.lock();
        lock.unwrap_or_else(PoisonError::into_inner).extend(spans);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn seen(service: &str, span: Span) -> Seen {
    let status = span.status.unwrap_or_default();
    Seen {
        service: service.to_owned(),
        name: span.name,
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        attributes: words(&span.attributes),
        failed: (status.code == 2).then_some(status.message),
        time: (span.start_time_unix_nano, span.end_time_unix_nano),
    }
}

fn words(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let one = |it: &KeyValue| {
        let value = match it.value.as_ref().and_then(|it| it.value.as_ref()) {
            Some(Value::StringValue(text)) => text.clone(),
            Some(Value::IntValue(number)) => number.to_string(),
            Some(Value::BoolValue(yes)) => yes.to_string(),
            other => format!("{other:?}"),
        };
        (it.key.clone(), value)
    };
    attributes.iter().map(one).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
