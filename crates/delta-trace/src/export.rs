//! The way to the collector: a bounded queue, batches, and a count of what was lost.
//!
//! Nobody ever waits here. A full queue and a collector that does not take a batch both cost spans;
//! the first loss is said in the log, and so is the end of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig};
use opentelemetry_otlp::{SpanExporter as Otlp, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::settings::{BadSetting, Settings};

/// Spans that wait: a request of a thousand calls and what becomes of them, a few times over; some
/// megabytes at most.
const QUEUE: usize = 8192;
/// Spans of one message: well below the four megabytes that collectors take by default.
const BATCH: usize = 512;
/// How long a span waits for others to go with.
const GATHER: Duration = Duration::from_secs(1);
/// How long the end of the program waits for the last of them.
const LAST_MOMENT: Duration = Duration::from_secs(3);

/// What became of spans so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub sent: u64,
    pub lost: u64,
}

#[derive(Default)]
struct Fate {
    sent: AtomicU64,
    lost: AtomicU64,
    /// Something was lost, and the log says so.
    told: AtomicBool,
}

pub(crate) struct Exporter {
    queue: mpsc::Sender<SpanData>,
    fate: Arc<Fate>,
    scope: InstrumentationScope,
    closing: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

pub(crate) fn start(settings: &Settings) -> Result<Exporter, BadSetting> {
    let otlp = client(settings)?;
    let (queue, waiting) = mpsc::channel(QUEUE);
    let (fate, closing) = (Arc::<Fate>::default(), CancellationToken::new());
    let work = send_all(otlp, waiting, Arc::clone(&fate), closing.clone());
    let version = env!("CARGO_PKG_VERSION");
    Ok(Exporter {
        queue,
        fate,
        scope: InstrumentationScope::builder("delta-ci")
            .with_version(version)
            .build(),
        closing,
        task: Mutex::new(Some(tokio::spawn(work))),
    })
}

fn client(settings: &Settings) -> Result<Otlp, BadSetting> {
    let mut builder = Otlp::builder()
        .with_tonic()
        .with_endpoint(settings.endpoint.clone())
        .with_timeout(settings.timeout);
    if settings.endpoint.starts_with("https") {
        let mut tls = ClientTlsConfig::new().with_native_roots();
        if let Some(pem) = &settings.authority {
            tls = tls.ca_certificate(Certificate::from_pem(pem));
        }
        builder = builder.with_tls_config(tls);
    }
    let mut otlp = builder.build().map_err(|error| BadSetting {
        field: "the export of traces".to_owned(),
        problem: format!("cannot begin: {error}"),
        fix: "docs/tracing.md says which variables there are".to_owned(),
    })?;
    let all = settings
        .resource
        .iter()
        .map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    otlp.set_resource(&Resource::builder_empty().with_attributes(all).build());
    Ok(otlp)
}

impl Exporter {
    pub fn scope(&self) -> InstrumentationScope {
        self.scope.clone()
    }

    /// Takes it if there is room.
    pub fn take(&self, span: SpanData) {
        if self.queue.try_send(span).is_err() && !self.closing.is_cancelled() {
            self.fate.lose(1, &"more spans were made than sent");
        }
    }

    pub fn counts(&self) -> Counts {
        Counts {
            sent: self.fate.sent.load(Ordering::Relaxed),
            lost: self.fate.lost.load(Ordering::Relaxed),
        }
    }

    pub async fn close(&self) {
        self.closing.cancel();
        let task = self
            .task
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(task) = task
            && timeout(LAST_MOMENT, task).await.is_err()
        {
            tracing::warn!("the last spans were not sent in time");
        }
    }
}

impl Fate {
    fn lose(&self, count: usize, why: &dyn std::fmt::Display) {
        self.lost.fetch_add(count as u64, Ordering::Relaxed);
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(%why, "spans are lost; nothing else is, and this is said once");
        }
    }

    fn send(&self, count: usize) {
        self.sent.fetch_add(count as u64, Ordering::Relaxed);
        if self.told.swap(false, Ordering::Relaxed) {
            let lost = self.lost.load(Ordering::Relaxed);
            tracing::warn!(lost, "spans are sent again");
        }
    }
}

async fn send_all(
    otlp: Otlp,
    mut waiting: mpsc::Receiver<SpanData>,
    fate: Arc<Fate>,
    closing: CancellationToken,
) {
    loop {
        let batch = gather(&mut waiting, &closing).await;
        if batch.is_empty() {
            return;
        }
        let count = batch.len();
        match otlp.export(batch).await {
            Ok(()) => fate.send(count),
            Err(error) => fate.lose(count, &error),
        }
    }
}

/// The next batch; an empty one at the end.
async fn gather(
    waiting: &mut mpsc::Receiver<SpanData>,
    closing: &CancellationToken,
) -> Vec<SpanData> {
    let mut batch = Vec::new();
    tokio::select! {
        _ = waiting.recv_many(&mut batch, BATCH) => {}
        () = closing.cancelled() => waiting.close(),
    }
    let until = Instant::now() + GATHER;
    while batch.len() < BATCH {
        let room = BATCH - batch.len();
        let more = tokio::select! {
            more = timeout_at(until, waiting.recv_many(&mut batch, room)) => more,
            () = closing.cancelled(), if !waiting.is_closed() => {
                waiting.close();
                continue;
            }
        };
        if !matches!(more, Ok(1..)) {
            break;
        }
    }
    batch
}
