//! git over HTTP: git's own `git-http-backend` as a CGI program, with Basic authentication.
//!
//! One request per connection. What was asked is written down, with whoever asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail, ensure};

use super::lfs;

/// A push of a test is smaller.
const MAX_BODY: usize = 64 * 1024 * 1024;

/// A server of the repositories below a folder, until dropped.
#[derive(Debug)]
pub struct GitHttp {
    addr: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    /// Without a user and a password, everybody may.
    login: Mutex<Option<String>>,
    redirect: Mutex<Option<String>>,
    /// Where it says that large files are.
    large_files: Mutex<Option<String>>,
    /// Speaks the first protocol, which gives away by hash only what a ref points at.
    old: AtomicBool,
    requests: Mutex<Vec<String>>,
    logins: Mutex<Vec<String>>,
    over: AtomicBool,
}

impl GitHttp {
    pub fn start(root: impl Into<PathBuf>) -> Result<GitHttp> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            root: root.into(),
            login: Mutex::default(),
            redirect: Mutex::default(),
            large_files: Mutex::default(),
            old: AtomicBool::new(false),
            requests: Mutex::default(),
            logins: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("git-http".into())
            .spawn(move || accept(&listener, &of_thread))?;
        Ok(GitHttp {
            addr,
            shared,
            thread: Some(thread),
        })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The address of the repository at this path below the root.
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.addr)
    }

    /// From now on nobody else gets anything.
    pub fn require(&self, user: &str, password: &str) {
        let login = base64(format!("{user}:{password}").as_bytes());
        *lock(&self.shared.login) = Some(format!("Basic {login}"));
    }

    /// From now on everything is said to be there.
    pub fn redirect_to(&self, base: &str) {
        *lock(&self.shared.redirect) = Some(base.to_owned());
    }

    /// From now on large files are said to be there.
    pub fn keep_large_files_at(&self, base: &str) {
        *lock(&self.shared.large_files) = Some(base.to_owned());
    }

    /// From now on it speaks the first version of git's protocol.
    pub fn speak_old(&self) {
        self.shared.old.store(true, Ordering::SeqCst);
    }

    /// What was asked, as `METHOD path`, and the status it was answered with.
    pub fn requests(&self) -> Vec<String> {
        lock(&self.shared.requests).clone()
    }

    /// What each of them showed as its right; empty for nothing.
    pub fn logins(&self) -> Vec<String> {
        lock(&self.shared.logins).clone()
    }

    /// Begins a new list of requests.
    pub fn forget_requests(&self) {
        lock(&self.shared.requests).clear();
        lock(&self.shared.logins).clear();
    }
}

impl Drop for GitHttp {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes the thread up.
        drop(TcpStream::connect(self.addr));
        if let Some(thread) = self.thread.take() {
            // A panic on that thread has been printed there.
            let _ = thread.join();
        }
    }
}

pub(crate) struct Request {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.over.load(Ordering::SeqCst) {
            return;
        }
        let (Ok(stream), shared) = (stream, Arc::clone(shared)) else {
            continue;
        };
        std::thread::spawn(move || {
            // A client that goes away is none of the server's trouble.
            let _ = serve(&stream, &shared);
        });
    }
}

fn serve(stream: &TcpStream, shared: &Shared) -> Result<()> {
    let Some(request) = read(stream)? else {
        return Ok(());
    };
    let (status, headers, body) = answer(&request, shared, stream.local_addr()?)?;
    let line = format!("{} {} {status}", request.method, request.path);
    lock(&shared.requests).push(line);
    lock(&shared.logins).push(request.header("authorization").to_owned());
    let mut stream = stream;
    let length = body.len();
    write!(stream, "HTTP/1.1 {status} x\r\nConnection: close\r\n")?;
    write!(stream, "Content-Length: {length}\r\n{headers}\r\n")?;
    stream.write_all(&body)?;
    Ok(())
}

type Answer = (u16, String, Vec<u8>);

fn answer(request: &Request, shared: &Shared, addr: SocketAddr) -> Result<Answer> {
    if let Some(base) = &*lock(&shared.redirect) {
        let to = format!("Location: {base}{}?{}\r\n", request.path, request.query);
        return Ok((302, to, Vec::new()));
    }
    if let Some(login) = &*lock(&shared.login)
        && request.header("authorization") != login
    {
        let ask = "WWW-Authenticate: Basic realm=\"git\"\r\n".to_owned();
        return Ok((401, ask, Vec::new()));
    }
    let elsewhere = lock(&shared.large_files).clone();
    let files = lfs::Files {
        root: &shared.root,
        addr,
        elsewhere: elsewhere.as_deref(),
    };
    if let Some(answer) = files.answer(&request.method, &request.path, &request.body) {
        return Ok(answer);
    }
    backend(request, shared)
}

/// One call of the CGI program.
fn backend(request: &Request, shared: &Shared) -> Result<Answer> {
    let mut command = Command::new("git");
    command
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", &shared.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("REQUEST_METHOD", &request.method)
        .env("PATH_INFO", &request.path)
        .env("QUERY_STRING", &request.query)
        .env("CONTENT_TYPE", request.header("content-type"))
        .env("CONTENT_LENGTH", request.body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", request.header("content-encoding"));
    if !shared.old.load(Ordering::SeqCst) {
        command.env("GIT_PROTOCOL", request.header("git-protocol"));
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut input = child.stdin.take().context("a pipe")?;
    let body = request.body.clone();
    let feeding = std::thread::spawn(move || {
        // A program that has heard enough closes its end.
        let _ = input.write_all(&body);
    });
    let mut output = Vec::new();
    child
        .stdout
        .take()
        .context("a pipe")?
        .read_to_end(&mut output)?;
    child.wait()?;
    ensure!(feeding.join().is_ok(), "the body could not be handed over");
    cgi(&output)
}

/// Headers, an empty line, the body.
fn cgi(output: &[u8]) -> Result<Answer> {
    let end = output
        .windows(4)
        .position(|pair| pair == b"\r\n\r\n")
        .context("the CGI program said nothing")?;
    let text = std::str::from_utf8(&output[..end])?;
    let (mut status, mut headers) = (200, String::new());
    for line in text.split("\r\n") {
        match line.strip_prefix("Status: ") {
            Some(code) => status = code.split(' ').next().unwrap_or("500").parse()?,
            None => headers.push_str(&format!("{line}\r\n")),
        }
    }
    Ok((status, headers, output[end + 4..].to_vec()))
}

/// One request, read from its connection; none where the other side says nothing.
pub(crate) fn read(stream: &TcpStream) -> Result<Option<Request>> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        bail!("no request: {line:?}");
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers: Vec::new(),
        body: Vec::new(),
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        request
            .headers
            .push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let length: usize = request.header("content-length").parse().unwrap_or(0);
    ensure!(length <= MAX_BODY, "a body of {length} bytes");
    let chunked = request.header("transfer-encoding") == "chunked";
    ensure!(!chunked, "no test sends that much");
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body)?;
    Ok(Some(request))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For one header of a test no library is needed.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let group = part
            .iter()
            .fold(0_u32, |group, byte| group << 8 | u32::from(*byte));
        let group = group << (8 * (3 - part.len()));
        for index in 0..4 {
            let letter = LETTERS[(group >> (18 - 6 * index)) as usize & 63];
            text.push(if index <= part.len() {
                letter.into()
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_is_what_everybody_else_says() {
        for (plain, coded) in [
            ("", ""),
            ("a", "YQ=="),
            ("ab", "YWI="),
            ("a:bc", "YTpiYw=="),
        ] {
            assert_eq!(super::base64(plain.as_bytes()), coded);
        }
    }
}
