//! HTTP/1.1 as anybody would write it from the RFC: one request per connection, blocking.
//!
//! Shares no code with the server, so that a mistake in its HTTP library shows here. Repeats
//! nothing by itself: what to do about a broken connection is for the test to decide.

use std::io::{BufRead, BufReader, Error, ErrorKind, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than any long-poll of these tests, short enough that a hung server fails one test soon.
const ANSWER_DEADLINE: Duration = Duration::from_secs(40);

/// What the server said.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub text: String,
    /// The body as JSON; null when it is none.
    pub body: Value,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(it, _)| it == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// A field of the body as text; empty when it is not there.
    pub fn word(&self, field: &str) -> &str {
        self.body[field].as_str().unwrap_or_default()
    }

    /// Panics unless the status is this one.
    #[track_caller]
    pub fn expect(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }
}

/// One server address with one credential.
#[derive(Clone, Debug)]
pub struct Http {
    pub addr: SocketAddr,
    pub token: String,
}

impl Http {
    pub fn get(&self, path: &str) -> Result<Answer> {
        self.send("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.send("POST", path, &[], body.to_string().as_bytes())
    }

    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer> {
        self.open(method, path, headers, body)?.answer()
    }

    /// Sends a request and leaves its answer for later.
    pub fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Pending> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.addr);
        if !self.token.is_empty() {
            head.push_str(&format!("Authorization: Bearer {}\r\n", self.token));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("Content-Type: application/json\r\nConnection: close\r\n");
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        raw(self.addr, &bytes)
    }
}

/// Sends any bytes at all.
pub fn raw(addr: SocketAddr, bytes: &[u8]) -> Result<Pending> {
    let mut stream = TcpStream::connect_timeout(&addr, ANSWER_DEADLINE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
    stream.set_write_timeout(Some(ANSWER_DEADLINE))?;
    // A server may answer and close before it has read everything; its answer still counts.
    let _ = stream.write_all(bytes);
    Ok(Pending { stream })
}

/// A request whose answer has not been read. Dropping it closes the connection.
pub struct Pending {
    stream: TcpStream,
}

impl Pending {
    pub fn answer(self) -> Result<Answer> {
        let mut reader = BufReader::new(self.stream);
        let first = line(&mut reader)?;
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| broken("no status line"))?;
        let mut headers = Vec::new();
        loop {
            let line = line(&mut reader)?;
            match line.split_once(':') {
                Some((name, value)) => {
                    headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
                }
                None => break,
            }
        }
        let bytes = body(&mut reader, &headers)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Answer {
            status,
            headers,
            body: serde_json::from_str(&text).unwrap_or(Value::Null),
            text,
        })
    }
}

fn body(reader: &mut impl BufRead, headers: &[(String, String)]) -> Result<Vec<u8>> {
    let find = |wanted: &str| headers.iter().find(|(name, _)| name == wanted);
    let mut bytes = Vec::new();
    if let Some((_, length)) = find("content-length") {
        let length = length.parse().map_err(|_| broken("no length"))?;
        bytes.resize(length, 0);
        reader.read_exact(&mut bytes)?;
    } else if find("transfer-encoding").is_some() {
        loop {
            let size = usize::from_str_radix(&line(reader)?, 16).map_err(|_| broken("chunk"))?;
            let mut chunk = vec![0; size];
            reader.read_exact(&mut chunk)?;
            line(reader)?;
            if size == 0 {
                break;
            }
            bytes.extend(chunk);
        }
    }
    Ok(bytes)
}

fn line(reader: &mut impl BufRead) -> Result<String> {
    let mut text = String::new();
    if reader.read_line(&mut text)? == 0 {
        return Err(broken("the connection was closed"));
    }
    Ok(text.trim_end().to_owned())
}

fn broken(why: &str) -> Error {
    Error::new(ErrorKind::UnexpectedEof, why)
}
