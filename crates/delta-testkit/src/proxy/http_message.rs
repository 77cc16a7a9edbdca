//! As much of HTTP/1.1 as it takes to know where a message ends.
//!
//! Bytes are kept as they came; nothing is added, removed or rewritten. Bodies are framed by
//! `Content-Length`, by chunks, or by the end of the connection.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Real heads are under a kilobyte or two; servers refuse more than some tens of kilobytes.
const LONGEST_HEAD: usize = 256 * 1024;

/// A request is kept in memory, so that it can be sent again. Tests send bodies of 10 MB.
const LONGEST_REQUEST: usize = 64 * 1024 * 1024;

/// What is read from a socket at once.
const PIECE: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    /// Without the query: it is not for the journal.
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct ResponseHead {
    pub(super) status: u16,
    pub(super) bytes: Vec<u8>,
    pub(super) framing: Framing,
    /// The server says that this connection ends after it.
    pub(super) closes: bool,
}

/// A stream, and what has been read from it but not used yet.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: TcpStream,
    buffer: Vec<u8>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
        }
    }

    /// The next request, whole; `None` when the client is done.
    pub(super) async fn request(&mut self) -> io::Result<Option<Request>> {
        let Some(head) = self.head().await? else {
            return Ok(None);
        };
        let text = Text::of(&head);
        let mut words = text.first_line().split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default();
        let path = target.split('?').next().unwrap_or_default().to_owned();
        let framing = text.framing().unwrap_or(Framing::Length(0));
        if text.header("expect").is_some() {
            // The client waits for this before it sends the body.
            self.stream
                .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
                .await?;
        }
        let mut bytes = head;
        let mut body = Body::new(framing);
        while let Some(piece) = body.next(self).await? {
            bytes.extend_from_slice(&piece);
            if bytes.len() > LONGEST_REQUEST {
                return Err(refused("a request longer than the proxy keeps"));
            }
        }
        Ok(Some(Request {
            method,
            path,
            bytes,
        }))
    }

    /// The head of the answer to a request with this method; interim answers are left out.
    pub(super) async fn response_head(&mut self, method: &str) -> io::Result<ResponseHead> {
        loop {
            let Some(bytes) = self.head().await? else {
                return Err(ErrorKind::UnexpectedEof.into());
            };
            let text = Text::of(&bytes);
            let status = text
                .first_line()
                .split(' ')
                .nth(1)
                .and_then(|word| word.parse().ok())
                .ok_or_else(|| refused("an answer without a status"))?;
            if (100..200).contains(&status) {
                continue;
            }
            let no_body = method == "HEAD" || status == 204 || status == 304;
            let framing = if no_body {
                Some(Framing::Length(0))
            } else {
                text.framing()
            };
            let framing = framing.unwrap_or(Framing::UntilClose);
            let said = text
                .header("connection")
                .is_some_and(|value| value.contains("close"));
            let closes = said || framing == Framing::UntilClose;
            return Ok(ResponseHead {
                status,
                bytes,
                framing,
                closes,
            });
        }
    }

    /// Returns when the other side has closed, or says something where it should be silent.
    pub(super) async fn disturbed(&self) {
        if self.buffer.is_empty() {
            let _ = self.stream.peek(&mut [0]).await;
        }
    }

    /// Returns when the other side has closed. Bytes ahead of time are no reason to stop.
    pub(super) async fn hung_up(&self) {
        let has_more =
            !self.buffer.is_empty() || matches!(self.stream.peek(&mut [0]).await, Ok(1..));
        if has_more {
            std::future::pending::<()>().await;
        }
    }

    /// Up to and including the empty line.
    async fn head(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(at) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                return Ok(Some(self.buffer.drain(..at + 4).collect()));
            }
            if self.buffer.len() > LONGEST_HEAD {
                return Err(refused("a head without an end"));
            }
            if self.fill().await? == 0 {
                let clean = self.buffer.is_empty();
                return if clean {
                    Ok(None)
                } else {
                    Err(ErrorKind::UnexpectedEof.into())
                };
            }
        }
    }

    async fn line(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return Ok(self.buffer.drain(..=at).collect());
            }
            if self.buffer.len() > LONGEST_HEAD || self.fill().await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// What there is, up to a limit; empty at the end of the stream.
    async fn some(&mut self, limit: u64) -> io::Result<Vec<u8>> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        let size = self
            .buffer
            .len()
            .min(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(self.buffer.drain(..size).collect())
    }

    async fn fill(&mut self) -> io::Result<usize> {
        let before = self.buffer.len();
        self.buffer.reserve(PIECE);
        let read = self.stream.read_buf(&mut self.buffer).await?;
        debug_assert_eq!(self.buffer.len(), before + read);
        Ok(read)
    }
}

/// Reads a body piece by piece, as it comes, framing included.
#[derive(Debug)]
pub(super) struct Body {
    framing: Framing,
    /// Bytes of the current chunk that are still to come, with its closing line end.
    chunk_left: u64,
    done: bool,
}

impl Body {
    pub(super) fn new(framing: Framing) -> Self {
        Self {
            framing,
            chunk_left: 0,
            done: false,
        }
    }

    /// `None` after the last piece.
    pub(super) async fn next(&mut self, wire: &mut Wire) -> io::Result<Option<Vec<u8>>> {
        if self.done {
            return Ok(None);
        }
        match self.framing {
            Framing::Length(0) => {
                self.done = true;
                Ok(None)
            }
            Framing::Length(left) => {
                let piece = sound(wire.some(left).await?)?;
                self.framing = Framing::Length(left - piece.len() as u64);
                Ok(Some(piece))
            }
            Framing::UntilClose => {
                let piece = wire.some(u64::MAX).await?;
                self.done = piece.is_empty();
                Ok((!self.done).then_some(piece))
            }
            Framing::Chunked => self.next_of_chunks(wire).await.map(Some),
        }
    }

    async fn next_of_chunks(&mut self, wire: &mut Wire) -> io::Result<Vec<u8>> {
        if self.chunk_left > 0 {
            let piece = sound(wire.some(self.chunk_left).await?)?;
            self.chunk_left -= piece.len() as u64;
            return Ok(piece);
        }
        let mut bytes = wire.line().await?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let digits = text.split(';').next().unwrap_or_default().trim();
        let size =
            u64::from_str_radix(digits, 16).map_err(|_| refused("a chunk without a size"))?;
        if size > 0 {
            self.chunk_left = size + 2;
            return Ok(bytes);
        }
        // Trailers, up to an empty line.
        loop {
            let line = wire.line().await?;
            let last = line == b"\r\n";
            bytes.extend_from_slice(&line);
            if last {
                self.done = true;
                return Ok(bytes);
            }
        }
    }
}

/// A head as text, for looking things up in it.
struct Text(String);

impl Text {
    fn of(head: &[u8]) -> Self {
        Self(String::from_utf8_lossy(head).into_owned())
    }

    fn first_line(&self) -> &str {
        self.0.lines().next().unwrap_or_default()
    }

    fn header(&self, name: &str) -> Option<String> {
        self.0.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found
                .trim()
                .eq_ignore_ascii_case(name)
                .then(|| value.trim().to_ascii_lowercase())
        })
    }

    fn framing(&self) -> Option<Framing> {
        if self
            .header("transfer-encoding")
            .is_some_and(|value| value.contains("chunked"))
        {
            return Some(Framing::Chunked);
        }
        self.header("content-length")?
            .parse()
            .ok()
            .map(Framing::Length)
    }
}

fn sound(piece: Vec<u8>) -> io::Result<Vec<u8>> {
    if piece.is_empty() {
        Err(ErrorKind::UnexpectedEof.into())
    } else {
        Ok(piece)
    }
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}
