//! Ships a log while it grows: bytes from the file on disk to the server, by offset.
//!
//! The file is the buffer, so nothing is lost when the server is away, and the server's word on the
//! offset is taken: it may ask for bytes again. A log that cannot be shipped never fails the job.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use delta_wire::runner::{CreateUpload, LeaseToken, UploadCreated, UploadKind};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::backoff::{Backoff, entropy};
use crate::client::{CallError, Client, Fenced, PutAnswer};

/// Bytes of one request: what a server buffers for a segment (A27).
const MAX_CHUNK_BYTES: u64 = 1024 * 1024;

/// Pause after a small chunk, so that a job that prints line by line does not cost a request per
/// line; a person watching does not notice it.
const PAUSE: Duration = Duration::from_millis(200);

/// A chunk of this size is sent on without a pause.
const LARGE_CHUNK_BYTES: u64 = 128 * 1024;

/// Waits while the server is away: short, because a lease may be short.
const RETRY_BASE: Duration = Duration::from_millis(200);
const RETRY_CAP: Duration = Duration::from_secs(5);

/// Answers in a row that move the offset back before the log is given up: each is a round trip, and
/// a sound server needs one.
const MAX_SETBACKS: u32 = 16;

/// Everything needed to ship one log.
pub(crate) struct Shipment {
    pub client: Client,
    pub lease: LeaseToken,
    pub runner_id: String,
    pub path: PathBuf,
    /// The size of the file as it grows; it ends when the log does.
    pub grows: watch::Receiver<u64>,
    /// Bytes the server has, for the heartbeat's cursor.
    pub shipped: Arc<AtomicU64>,
}

/// Why shipping ended before the log did.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShipError {
    #[error("the lease is over")]
    Stale,
    #[error("the server does not take the log: {0}")]
    Refused(String),
    #[error("the log cannot be read: {0}")]
    Disk(#[from] io::Error),
}

/// Ships until the log has ended and the server has all of it. Returns the reference under which
/// the server keeps it.
pub(crate) async fn ship(mut shipment: Shipment) -> Result<String, ShipError> {
    let file = File::open(&shipment.path)?;
    let upload = create(&shipment).await?;
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
    let mut setbacks = 0;
    let mut offset = 0;
    loop {
        // Asked for before the size is read, so that the last bytes are never missed.
        let ended = shipment.grows.has_changed().is_err();
        let size = *shipment.grows.borrow_and_update();
        let end = size.min(upload.max_bytes);
        if offset >= end {
            if ended {
                return if end == size {
                    Ok(upload.uri)
                } else {
                    Err(too_large(&upload))
                };
            }
            // An error means that the log ended; the next round sees it.
            let _ = shipment.grows.changed().await;
            continue;
        }
        let length = (end - offset).min(MAX_CHUNK_BYTES);
        let chunk = read_chunk(&file, offset, length)?;
        let put = shipment
            .client
            .put_log(&upload.url, &shipment.lease, offset, chunk)
            .await;
        match put {
            Ok(Fenced::Answer(PutAnswer::Received(at) | PutAnswer::Expected(at))) => {
                setbacks = if at > offset { 0 } else { setbacks + 1 };
                if at > size || setbacks > MAX_SETBACKS {
                    return Err(ShipError::Refused("its offsets make no sense".into()));
                }
                offset = at;
                shipment.shipped.store(offset, Ordering::Relaxed);
                backoff.reset();
                if setbacks > 0 {
                    sleep(PAUSE).await;
                } else if length < LARGE_CHUNK_BYTES {
                    pause(&mut shipment.grows).await;
                }
            }
            Ok(Fenced::Stale(_)) => return Err(ShipError::Stale),
            Err(problem) => wait_or_give_up(problem, &mut backoff).await?,
        }
    }
}

/// Lets more bytes gather; the end of the log cuts it short, so that no job waits for it.
async fn pause(grows: &mut watch::Receiver<u64>) {
    tokio::select! {
        () = sleep(PAUSE) => {}
        Err(_) = grows.wait_for(|_| false) => {}
    }
}

async fn create(shipment: &Shipment) -> Result<UploadCreated, ShipError> {
    let message = CreateUpload {
        lease_id: shipment.lease.clone(),
        runner_id: shipment.runner_id.clone(),
        name: "log".to_owned(),
        kind: UploadKind::Log,
        size: None,
        sha256: None,
    };
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
    loop {
        match shipment.client.create_upload(&message).await {
            Ok(Fenced::Answer(upload)) => return Ok(upload),
            Ok(Fenced::Stale(_)) => return Err(ShipError::Stale),
            Err(problem) => wait_or_give_up(problem, &mut backoff).await?,
        }
    }
}

async fn wait_or_give_up(problem: CallError, backoff: &mut Backoff) -> Result<(), ShipError> {
    let retry_after = match problem {
        CallError::Busy { retry_after, .. } => retry_after,
        CallError::Unreachable(_) | CallError::Garbled(_) | CallError::Credential(_) => None,
        CallError::Unauthorized { .. } | CallError::Refused { .. } => {
            return Err(ShipError::Refused(problem.to_string()));
        }
    };
    sleep(backoff.next(retry_after, entropy())).await;
    Ok(())
}

fn too_large(upload: &UploadCreated) -> ShipError {
    ShipError::Refused(format!("it takes {} bytes of a log", upload.max_bytes))
}

/// The file only grows and was this long already, so the bytes are there.
fn read_chunk(file: &File, offset: u64, length: u64) -> io::Result<Bytes> {
    let length = usize::try_from(length).map_err(io::Error::other)?;
    let mut chunk = vec![0; length];
    file.read_exact_at(&mut chunk, offset)?;
    Ok(chunk.into())
}
