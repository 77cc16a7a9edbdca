//! One HTTP/1.1 connection that is kept open, with as little between the measurement and the socket
//! as possible: one write per request, one task per slot. The load shares the processors with the
//! server, so what it saves is not counted against the server.

use std::io::Write;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Headers of an answer that are looked at; the server sends fewer.
const HEADERS: usize = 32;

/// A connection of one slot or one submitter.
pub struct Connection {
    stream: TcpStream,
    /// The headers that every request has.
    head: String,
    out: Vec<u8>,
    read: BytesMut,
}

/// A status and what came with it.
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

/// The first lines of an answer: its status, and where its body lies in what was read.
struct Head {
    status: u16,
    length: usize,
    body: usize,
}

impl Connection {
    pub async fn open(server: SocketAddr, token: &str) -> Result<Connection> {
        let stream = TcpStream::connect(server)
            .await
            .context("connecting to the server")?;
        stream.set_nodelay(true)?;
        let head = format!(
            "host: {server}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n"
        );
        Ok(Connection {
            stream,
            head,
            out: Vec::new(),
            read: BytesMut::new(),
        })
    }

    pub async fn post(&mut self, path: &str, body: &str) -> Result<Answer> {
        self.send("POST", path, body).await
    }

    pub async fn get(&mut self, path: &str) -> Result<Answer> {
        self.send("GET", path, "").await
    }

    async fn send(&mut self, method: &str, path: &str, body: &str) -> Result<Answer> {
        self.out.clear();
        let (head, length) = (&self.head, body.len());
        write!(
            self.out,
            "{method} {path} HTTP/1.1\r\n{head}content-length: {length}\r\n\r\n{body}"
        )?;
        self.stream.write_all(&self.out).await?;
        loop {
            if let Some(head) = parse(&self.read)? {
                let whole = head.body + head.length;
                while self.read.len() < whole {
                    self.fill().await?;
                }
                self.read.advance(head.body);
                return Ok(Answer {
                    status: head.status,
                    body: self.read.split_to(head.length).freeze(),
                });
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> Result<()> {
        match self.stream.read_buf(&mut self.read).await? {
            0 => bail!("the server closed the connection"),
            _ => Ok(()),
        }
    }
}

/// Nothing while the head is not whole.
fn parse(bytes: &[u8]) -> Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(body) = response.parse(bytes)? else {
        return Ok(None);
    };
    let status = response.code.unwrap_or_default();
    let named = |name: &str| {
        let mut headers = response.headers.iter();
        headers.find(|header| header.name.eq_ignore_ascii_case(name))
    };
    if named("transfer-encoding").is_some() {
        bail!("an answer of unknown length, which the bench does not read");
    }
    let length = match named("content-length") {
        Some(header) => std::str::from_utf8(header.value)?.parse()?,
        None => 0,
    };
    Ok(Some(Head {
        status,
        length,
        body,
    }))
}

impl Answer {
    /// Fails with what the server said, unless the status is the expected one.
    pub fn expect(self, status: u16, doing: &str) -> Result<Bytes> {
        if self.status != status {
            let said = crate::sanitize::text(&String::from_utf8_lossy(&self.body));
            bail!(
                "{doing}: status {} instead of {status}: {said}",
                self.status
            );
        }
        Ok(self.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_from_what_was_read() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 204";
        assert!(parse(&whole[..20]).unwrap().is_none());
        let head = parse(whole).unwrap().unwrap();
        assert_eq!((head.status, head.length), (200, 2));
        assert_eq!(&whole[head.body..head.body + head.length], b"{}");
        let empty = parse(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap().unwrap();
        assert_eq!((empty.status, empty.length), (204, 0));
        assert!(parse(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    }
}
