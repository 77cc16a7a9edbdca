//! Small real servers to stand behind a proxy, on threads of their own.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Sends back what it gets, and keeps it.
pub struct Echo {
    pub addr: SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Echo {
    pub fn start() -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let keep = received.clone();
        let addr = listen(move |mut stream| {
            let mut buffer = [0; 4096];
            loop {
                let size = stream.read(&mut buffer)?;
                if size == 0 {
                    return Ok(());
                }
                keep.lock().unwrap().extend_from_slice(&buffer[..size]);
                stream.write_all(&buffer[..size])?;
            }
        });
        Self { addr, received }
    }

    pub fn received(&self) -> Vec<u8> {
        self.received.lock().unwrap().clone()
    }
}

/// Answers every request with its number, from 1; `/chunked` in chunks. Keeps connections open.
pub struct Counter {
    pub addr: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Counter {
    pub fn start() -> Self {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let keep = requests.clone();
        let addr = listen(move |stream| {
            let mut reader = BufReader::new(stream.try_clone()?);
            while let Some((target, body)) = read_request(&mut reader)? {
                let number = {
                    let mut requests = keep.lock().unwrap();
                    requests.push(format!("{target} {body}"));
                    requests.len()
                };
                answer(&stream, &target, &number.to_string())?;
            }
            Ok(())
        });
        Self { addr, requests }
    }

    /// `path body` of each request, in the order of arrival.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn answer(mut stream: &TcpStream, target: &str, text: &str) -> io::Result<()> {
    if target.starts_with("/chunked") {
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        )?;
        write!(stream, "{:x}\r\n{text}\r\n0\r\n\r\n", text.len())
    } else {
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )
    }
}

fn read_request(reader: &mut impl BufRead) -> io::Result<Option<(String, String)>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let length = read_headers(reader)?.0;
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some((target, String::from_utf8_lossy(&body).into_owned())))
}

/// The content length, and whether the body comes in chunks.
fn read_headers(reader: &mut impl BufRead) -> io::Result<(usize, bool)> {
    let (mut length, mut chunked) = (0, false);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            return Ok((length, chunked));
        }
        if let Some(text) = line.strip_prefix("content-length: ") {
            length = text.parse().unwrap_or(0);
        }
        chunked |= line == "transfer-encoding: chunked";
    }
}

/// A client with one connection that it keeps.
pub struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Self {
        Self {
            reader: BufReader::new(TcpStream::connect(addr).unwrap()),
        }
    }

    pub fn post(&mut self, target: &str, body: &str) -> io::Result<String> {
        self.send(target, body)?;
        self.receive()
    }

    pub fn send(&mut self, target: &str, body: &str) -> io::Result<()> {
        let length = body.len();
        let head = format!("POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
        self.reader.get_mut().write_all((head + body).as_bytes())
    }

    pub fn receive(&mut self) -> io::Result<String> {
        let mut status = String::new();
        if self.reader.read_line(&mut status)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        assert!(status.starts_with("HTTP/1.1 200"), "{status}");
        let (mut length, chunked) = read_headers(&mut self.reader)?;
        if chunked {
            let mut size = String::new();
            self.reader.read_line(&mut size)?;
            length = usize::from_str_radix(size.trim(), 16).unwrap();
        }
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body)?;
        if chunked {
            let mut end = [0; 7];
            self.reader.read_exact(&mut end)?;
            assert_eq!(&end, b"\r\n0\r\n\r\n");
        }
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

fn listen(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            // A broken connection is the very thing under test: nothing to report here.
            std::thread::spawn(move || drop(serve(stream)));
        }
    });
    addr
}
