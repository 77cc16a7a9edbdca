//! Files to and from the server: streamed, in sight, and begun again when the way there breaks
//! (F45). The lease bounds how long: when it is over, whatever waits here is dropped.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use delta_wire::ErrorBody;
use reqwest::header::CONTENT_LENGTH;
use reqwest::{Body, Method, Response, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;
use tokio_util::io::{InspectReader, ReaderStream};

use super::Around;
use super::positional_reader::PositionalReader;
use crate::backoff::{Backoff, entropy};
use crate::connection::CallError;

/// Bytes of one piece on its way.
const PIECE_BYTES: usize = 256 * 1024;
/// How often a long transfer says how far it is.
const TOLD_EVERY: Duration = Duration::from_secs(5);
/// How long a transfer may stand still, its answer included: the server may have to write
/// gigabytes to its disk before it answers.
const SILENCE: Duration = Duration::from_secs(180);
/// How long it is tried again and again: longer than a lease lives when nobody is reached.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often it is tried on a full disk: somebody may be making room.
const FULL_TRIES: u32 = 3;
/// Between two tries.
const RETRY_BASE: Duration = Duration::from_millis(500);
const RETRY_CAP: Duration = Duration::from_secs(15);
const STANDS_STILL: &str = "it stands still";
/// Bytes of an answer that says what is wrong.
const MAX_ANSWER: usize = 16 * 1024;

/// Why a transfer was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TransferError {
    /// It may be better in a while.
    #[error("{0}")]
    Again(String),
    #[error("the server's disk is full")]
    ServerFull,
    #[error("this machine's disk is full")]
    DiskFull,
    #[error("it is not there")]
    NotFound,
    #[error("{0}")]
    Refused(String),
    /// The job asks for what cannot be: it will be the same next time.
    #[error("{0}")]
    Mistake(String),
}

impl From<CallError> for TransferError {
    fn from(error: CallError) -> TransferError {
        match error {
            CallError::Unreachable(_) | CallError::Busy { .. } => {
                TransferError::Again(error.to_string())
            }
            CallError::StorageFull => TransferError::ServerFull,
            CallError::Refused { message, .. } => TransferError::Refused(message),
        }
    }
}

impl From<io::Error> for TransferError {
    fn from(error: io::Error) -> TransferError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => TransferError::DiskFull,
            _ => TransferError::Refused(error.to_string()),
        }
    }
}

impl From<reqwest::Error> for TransferError {
    fn from(error: reqwest::Error) -> TransferError {
        // An answer had begun; what the program says of its rest says nothing to people.
        if error.is_body() || error.is_decode() {
            let words = if error.is_timeout() {
                STANDS_STILL
            } else {
                "the connection ended early"
            };
            return TransferError::Again(words.to_owned());
        }
        let mut words = error.without_url().to_string();
        words.truncate(500);
        TransferError::Again(words)
    }
}

impl From<crate::http::ServerHttpError> for TransferError {
    fn from(error: crate::http::ServerHttpError) -> TransferError {
        TransferError::Refused(error.to_string())
    }
}

/// How often, and for how long, something is tried again.
pub(super) struct Patience {
    give_up: Instant,
    backoff: Backoff,
    full: u32,
}

impl Patience {
    pub fn new() -> Patience {
        Patience {
            give_up: Instant::now() + PATIENCE,
            backoff: Backoff::new(RETRY_BASE, RETRY_CAP),
            full: 0,
        }
    }

    /// Waits before the next try, or gives the trouble back where there is none to be made.
    pub async fn after(&mut self, trouble: TransferError) -> Result<(), TransferError> {
        if !self.allows(&trouble, Instant::now()) {
            return Err(trouble);
        }
        tracing::info!(%trouble, "a transfer is tried again");
        tokio::time::sleep(self.backoff.next(None, entropy())).await;
        Ok(())
    }

    fn allows(&mut self, trouble: &TransferError, now: Instant) -> bool {
        self.full += u32::from(*trouble == TransferError::ServerFull);
        match trouble {
            TransferError::Again(_) => now < self.give_up,
            TransferError::ServerFull => self.full < FULL_TRIES,
            TransferError::DiskFull | TransferError::NotFound => false,
            TransferError::Refused(_) | TransferError::Mistake(_) => false,
        }
    }
}

/// What an answer means, where it is not a success.
pub(super) async fn judged(response: Response) -> Result<Response, TransferError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let (words, retryable) = words(response).await;
    Err(match status {
        StatusCode::INSUFFICIENT_STORAGE => TransferError::ServerFull,
        StatusCode::NOT_FOUND => TransferError::NotFound,
        StatusCode::TOO_MANY_REQUESTS => TransferError::Again(words),
        status if status.is_server_error() => TransferError::Again(words),
        // After a handover this process may ask before it has registered.
        StatusCode::FORBIDDEN if retryable => TransferError::Again(words),
        _ => TransferError::Refused(words),
    })
}

/// What the server says, and whether it may say something else later.
async fn words(mut response: Response) -> (String, bool) {
    let (status, mut body) = (response.status(), Vec::new());
    while let Ok(Some(piece)) = response.chunk().await {
        body.extend_from_slice(&piece);
        if body.len() > MAX_ANSWER {
            break;
        }
    }
    match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(error) => (error.message, error.retryable),
        Err(_) => (format!("the server answered {status}"), false),
    }
}

/// A file on its way to the server.
pub(super) struct Sending<'a> {
    pub around: &'a Around<'a>,
    /// Where to.
    pub url: &'a str,
    pub headers: &'a [(&'static str, String)],
    pub file: &'a File,
    pub size: u64,
    /// What it is called in the log.
    pub what: &'a str,
}

impl Sending<'_> {
    /// One try, from the first byte on.
    pub async fn send(&self) -> Result<Response, TransferError> {
        let file = PositionalReader::new(self.file.try_clone()?, PIECE_BYTES);
        let sent = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&sent);
        let reader = InspectReader::new(file.take(self.size), move |bytes: &[u8]| {
            counted.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        });
        let body = Body::wrap_stream(ReaderStream::with_capacity(reader, PIECE_BYTES));
        let client = self.around.context.courier.sender()?;
        let mut request = client.make(Method::PUT, self.url, self.around.lease)?;
        for (name, value) in self.headers {
            request = request.header(*name, value);
        }
        let request = request.header(CONTENT_LENGTH, self.size).body(body);
        let answer = request.send();
        tokio::pin!(answer);
        let mut seen = Observed::new(self.around, self.what, self.size);
        loop {
            tokio::select! {
                answer = &mut answer => return judged(answer?).await,
                () = tokio::time::sleep(TOLD_EVERY) => {
                    seen.look(sent.load(Ordering::Relaxed))?;
                }
            }
        }
    }
}

/// A file on its way here.
pub(super) struct Receiving<'a> {
    pub around: &'a Around<'a>,
    pub size: u64,
    pub sha256: &'a str,
    pub what: &'a str,
}

impl Receiving<'_> {
    /// Writes an answer's bytes to a file, and sees that they are the ones that were promised.
    pub async fn receive(&self, mut from: Response, file: File) -> Result<(), TransferError> {
        let mut file = tokio::fs::File::from_std(file);
        let (mut hash, mut size) = (Context::new(&SHA256), 0_u64);
        let mut seen = Observed::new(self.around, self.what, self.size);
        while let Some(piece) = from.chunk().await? {
            size += piece.len() as u64;
            if size > self.size {
                return Err(TransferError::Refused(
                    "there are more bytes than promised".to_owned(),
                ));
            }
            hash.update(&piece);
            file.write_all(&piece).await?;
            seen.at(size);
        }
        file.flush().await?;
        if size < self.size {
            return Err(TransferError::Again(
                "the connection ended early".to_owned(),
            ));
        }
        if hex(hash.finish().as_ref()) == self.sha256 {
            Ok(())
        } else {
            Err(TransferError::Refused(
                "the bytes are not those that were stored".to_owned(),
            ))
        }
    }
}

/// How far a transfer is, told now and then.
struct Observed<'a> {
    around: &'a Around<'a>,
    what: &'a str,
    size: u64,
    told: Instant,
    moved: (u64, Instant),
}

impl<'a> Observed<'a> {
    fn new(around: &'a Around<'a>, what: &'a str, size: u64) -> Observed<'a> {
        let now = Instant::now();
        Observed {
            around,
            what,
            size,
            told: now,
            moved: (0, now),
        }
    }

    fn at(&mut self, bytes: u64) {
        if self.told.elapsed() >= TOLD_EVERY {
            self.told = Instant::now();
            let (what, done, all) = (self.what, size(bytes), size(self.size));
            self.around.log.mark(&format!("{what}: {done} of {all}"));
        }
    }

    fn look(&mut self, bytes: u64) -> Result<(), TransferError> {
        if bytes != self.moved.0 {
            self.moved = (bytes, Instant::now());
            self.at(bytes);
        }
        if self.moved.1.elapsed() > SILENCE {
            Err(TransferError::Again(STANDS_STILL.to_owned()))
        } else {
            Ok(())
        }
    }
}

/// A number of bytes, for people.
pub(super) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut unit = "kB";
    value /= 1000.0;
    for next in ["MB", "GB", "TB"] {
        if value < 999.95 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (34_100_000, "34.1 MB"),
            (999_999_999, "1.0 GB"),
            (5_368_709_120, "5.4 GB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    // F45
    #[tokio::test]
    async fn an_answer_that_stands_still_is_told_from_one_that_ended_early() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let client = reqwest::Client::builder()
            .no_proxy()
            .read_timeout(Duration::from_secs(1))
            .build()
            .expect("a client");
        for (ends, words) in [
            (true, "the connection ended early"),
            (false, "it stands still"),
        ] {
            let half = async {
                let (mut peer, _) = listener.accept().await.expect("somebody");
                let mut request = [0; 1024];
                let read = peer.read(&mut request).await.expect("a request");
                assert!(read > 0);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf";
                peer.write_all(answer).await.expect("sent");
                (!ends).then_some(peer)
            };
            let (answer, _open) = tokio::join!(client.get(&url).send(), half);
            let mut answer = answer.expect("the head of an answer");
            let trouble = loop {
                match answer.chunk().await {
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("half of it is not all"),
                    Err(error) => break TransferError::from(error),
                }
            };
            assert_eq!(trouble, TransferError::Again(words.to_owned()));
        }
    }

    // F44, F45
    #[test]
    fn what_may_get_better_is_tried_again_and_a_full_disk_not_for_long() {
        let again = TransferError::Again("reset".to_owned());
        let (mut patience, now) = (Patience::new(), Instant::now());
        assert!((0..100).all(|_| patience.allows(&again, now)));
        assert!(!patience.allows(&again, now + PATIENCE + Duration::from_secs(1)));
        let tries = (1..).find(|_| !patience.allows(&TransferError::ServerFull, now));
        assert_eq!(tries, Some(FULL_TRIES));
        assert!(!patience.allows(&TransferError::Refused("no".to_owned()), now));
    }
}
