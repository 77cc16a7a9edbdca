//! A recording forge: the statuses API of GitHub, Gitea or Forgejo over real HTTP, with its status
//! codes, pages, limits and bad days.
//!
//! It writes down every request and keeps what was posted. What a real forge refuses it refuses:
//! a wrong token, a state it does not know, a description that is too long.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use aws_lc_rs::hmac;
use serde_json::{Value, json};

use crate::git::read;

/// Whose API it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    GitHub,
    Gitea,
    Forgejo,
}

impl Speaks {
    /// What its headers are called by, and what people type.
    pub fn name(self) -> &'static str {
        match self {
            Speaks::GitHub => "github",
            Speaks::Gitea => "gitea",
            Speaks::Forgejo => "forgejo",
        }
    }
}

/// What happens to the next request instead of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This status, and nothing done.
    Answer(u16),
    /// This status with `Retry-After`.
    RetryAfter(u16, u64),
    /// 403, no requests left, and the moment (seconds since 1970) when there are some again.
    Limited(i64),
    /// It is done, and was the last request that is taken before this moment.
    DoneAndLimited(i64),
    /// Nothing is answered for this long, and nothing done.
    Silence(Duration),
    /// It is done, and the connection breaks before the answer.
    DoneUnanswered,
}

/// A status that was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posted {
    pub commit: String,
    pub context: String,
    pub state: String,
    pub description: String,
    pub target_url: String,
}

/// The forge, until dropped.
#[derive(Debug)]
pub struct RecordingForge {
    addr: SocketAddr,
    speaks: Speaks,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    gitea: AtomicBool,
    over: AtomicBool,
    down: AtomicBool,
    held: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    token: Option<String>,
    page_size: Option<usize>,
    faults: VecDeque<Fault>,
    posted: Vec<Posted>,
    /// Numbers of `posted` by commit, the oldest first.
    by_commit: BTreeMap<String, Vec<usize>>,
    hooks: Vec<Hook>,
    requests: Vec<String>,
    seen: String,
}

/// What an outgoing webhook brought here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    pub delivery: String,
    pub signature: String,
    pub body: Vec<u8>,
}

impl RecordingForge {
    pub fn start(speaks: Speaks) -> Result<RecordingForge> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        shared
            .gitea
            .store(speaks != Speaks::GitHub, Ordering::SeqCst);
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("forge".into())
            .spawn(move || accept(&listener, &of_thread))?;
        Ok(RecordingForge {
            addr,
            speaks,
            shared,
            thread: Some(thread),
        })
    }

    /// The address of its API.
    pub fn api(&self) -> String {
        match self.speaks {
            Speaks::GitHub => format!("http://{}", self.addr),
            Speaks::Gitea | Speaks::Forgejo => format!("http://{}/api/v1", self.addr),
        }
    }

    /// Where it takes outgoing webhooks.
    pub fn hook_address(&self) -> String {
        format!("http://{}/hook", self.addr)
    }

    /// From now on nobody else may do anything.
    pub fn require_token(&self, token: &str) {
        self.state().token = Some(token.to_owned());
    }

    /// At most so many statuses on a page, whatever is asked for.
    pub fn set_page_size(&self, size: usize) {
        self.state().page_size = Some(size);
    }

    /// What happens to the next requests, one each.
    pub fn next(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.extend(faults);
    }

    /// While it is down, every connection breaks.
    pub fn set_down(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
    }

    /// While it holds, what comes waits.
    pub fn set_held(&self, held: bool) {
        self.shared.held.store(held, Ordering::SeqCst);
    }

    /// Everything that was posted, the oldest first.
    pub fn posted(&self) -> Vec<Posted> {
        self.state().posted.clone()
    }

    /// The states that a commit had under a name, the oldest first.
    pub fn states(&self, commit: &str, context: &str) -> Vec<String> {
        let posted = self.posted().into_iter();
        let of = posted.filter(|answer| answer.commit == commit && answer.context == context);
        of.map(|of| of.state).collect()
    }

    /// Outgoing webhooks that arrived.
    pub fn hooks(&self) -> Vec<Hook> {
        self.state().hooks.clone()
    }

    /// What was asked, as `METHOD path status`.
    pub fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    /// Every request line that ever came, to look for what must not be in one.
    pub fn seen(&self) -> String {
        self.state().seen.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared)
    }
}

impl Drop for RecordingForge {
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

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.over.load(Ordering::SeqCst) {
            return;
        }
        let (Ok(stream), shared) = (stream, Arc::clone(shared)) else {
            continue;
        };
        if shared.down.load(Ordering::SeqCst) {
            continue;
        }
        std::thread::spawn(move || {
            // A client that goes away is none of the forge's trouble.
            let _ = serve(&stream, &shared);
        });
    }
}

/// Status, further headers, body.
type Answer = (u16, Vec<(&'static str, String)>, Value);

fn serve(mut stream: &TcpStream, shared: &Shared) -> Result<()> {
    let Some(request) = read(stream)? else {
        return Ok(());
    };
    let asked = format!("{} {}", request.method, request.path);
    let fault = {
        let mut state = lock(shared);
        let line = format!("{asked}?{}\n", request.query);
        state.seen.push_str(&line);
        state.faults.pop_front()
    };
    while shared.held.load(Ordering::SeqCst) && !shared.over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let message = json!({"message": "a bad day"});
    let (status, headers, body) = match fault {
        None => answer(&request, shared),
        Some(Fault::Answer(code)) => (code, vec![], message),
        Some(Fault::RetryAfter(code, seconds)) => {
            (code, vec![("retry-after", seconds.to_string())], message)
        }
        Some(Fault::Limited(reset)) => {
            let message = json!({"message": "API rate limit exceeded"});
            (403, no_more_until(reset), message)
        }
        Some(Fault::DoneAndLimited(reset)) => {
            let (status, mut headers, body) = answer(&request, shared);
            headers.extend(no_more_until(reset));
            (status, headers, body)
        }
        Some(Fault::Silence(time)) => {
            std::thread::sleep(time);
            return Ok(());
        }
        Some(Fault::DoneUnanswered) => {
            let (status, ..) = answer(&request, shared);
            lock(shared).requests.push(format!("{asked} {status}"));
            return Ok(());
        }
    };
    lock(shared).requests.push(format!("{asked} {status}"));
    let body = body.to_string();
    write!(stream, "HTTP/1.1 {status} x\r\nConnection: close\r\n")?;
    write!(stream, "Content-Type: application/json\r\n")?;
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    write!(stream, "Content-Length: {}\r\n\r\n{body}", body.len())?;
    Ok(())
}

fn no_more_until(reset: i64) -> Vec<(&'static str, String)> {
    vec![
        ("x-ratelimit-remaining", "0".to_owned()),
        ("x-ratelimit-reset", reset.to_string()),
    ]
}

fn answer(request: &crate::git::Request, shared: &Shared) -> Answer {
    let gitea = shared.gitea.load(Ordering::SeqCst);
    let mut state = lock(shared);
    if request.path == "/hook" {
        state.hooks.push(Hook {
            delivery: request.header("delta-delivery").to_owned(),
            signature: request.header("delta-signature").to_owned(),
            body: request.body.clone(),
        });
        return (200, vec![], json!({}));
    }
    let said = request.header("authorization");
    let scheme = if gitea { "token" } else { "Bearer" };
    let wanted = state
        .token
        .as_ref()
        .map(|token| format!("{scheme} {token}"));
    if wanted.is_some_and(|wanted| wanted != said) {
        return (401, vec![], json!({"message": "Bad credentials"}));
    }
    let path = request.path.as_str();
    let path = if gitea {
        path.strip_prefix("/api/v1")
    } else {
        Some(path)
    };
    let parts: Vec<&str> = path.unwrap_or_default().split('/').skip(1).collect();
    match (request.method.as_str(), &parts[..]) {
        ("POST", ["repos", _, _, "statuses", commit]) => {
            post(&mut state, gitea, commit, &request.body)
        }
        ("GET", ["repos", _, _, "commits", commit, "statuses"]) => {
            list(&state, gitea, commit, request)
        }
        _ => (404, vec![], json!({"message": "Not Found"})),
    }
}

fn post(state: &mut State, gitea: bool, commit: &str, body: &[u8]) -> Answer {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
    let posted = Posted {
        commit: commit.to_owned(),
        context: text("context"),
        state: text("state"),
        description: text("description"),
        target_url: text("target_url"),
    };
    let known = ["error", "failure", "pending", "success"].contains(&posted.state.as_str());
    let warning = gitea && posted.state == "warning";
    let long = !gitea && posted.description.chars().count() > 140;
    if !(known || warning) || long {
        return (422, vec![], json!({"message": "Validation Failed"}));
    }
    let shown = shown(&posted, gitea, state.posted.len());
    let number = state.posted.len();
    state
        .by_commit
        .entry(posted.commit.clone())
        .or_default()
        .push(number);
    state.posted.push(posted);
    (201, vec![], shown)
}

fn list(state: &State, gitea: bool, commit: &str, request: &crate::git::Request) -> Answer {
    let parameter = |wanted: &str| {
        let pairs = request
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        let mut found = pairs.filter(|(name, _)| *name == wanted);
        found
            .next()
            .and_then(|(_, value)| value.parse::<usize>().ok())
    };
    let (name, most) = if gitea {
        ("limit", 50)
    } else {
        ("per_page", 100)
    };
    let size = parameter(name).unwrap_or(30).min(most);
    let size = state.page_size.map_or(size, |most| size.min(most)).max(1);
    let page = parameter("page").unwrap_or(1).max(1);
    let all = state.by_commit.get(commit).map_or(&[][..], Vec::as_slice);
    let newest = all.iter().rev().skip((page - 1) * size);
    let shown: Vec<Value> = newest
        .take(size)
        .map(|n| shown(&state.posted[*n], gitea, *n))
        .collect();
    let mut headers = Vec::new();
    if all.len() > page * size {
        let link = format!(
            "<https://elsewhere.example/?page={}>; rel=\"next\"",
            page + 1
        );
        headers.push(("link", link));
    }
    (200, headers, Value::Array(shown))
}

/// As each of them lists it.
fn shown(posted: &Posted, gitea: bool, number: usize) -> Value {
    let state = if gitea { "status" } else { "state" };
    json!({
        "id": number + 1,
        state: posted.state,
        "context": posted.context,
        "description": posted.description,
        "target_url": posted.target_url,
        "creator": {"login": "delta"},
    })
}

/// A delivery as a forge sends it: its headers, and its body.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Delivery {
    /// Written and signed as the forge does it.
    pub fn new(speaks: Speaks, event: &str, id: &str, body: &Value, secret: &str) -> Delivery {
        let body = match speaks {
            Speaks::GitHub => body.to_string(),
            Speaks::Gitea | Speaks::Forgejo => as_gitea(body.clone()).to_string(),
        };
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let tag = hmac::sign(&key, body.as_bytes());
        let hex: String = tag
            .as_ref()
            .iter()
            .map(|tag| format!("{tag:02x}"))
            .collect();
        let name = speaks.name();
        let signature = match speaks {
            Speaks::GitHub => ("x-hub-signature-256".to_owned(), format!("sha256={hex}")),
            Speaks::Gitea | Speaks::Forgejo => (format!("x-{name}-signature"), hex),
        };
        let headers = vec![
            signature,
            (format!("x-{name}-event"), event.to_owned()),
            (format!("x-{name}-delivery"), id.to_owned()),
            ("content-type".to_owned(), "application/json".to_owned()),
        ];
        Delivery { headers, body }
    }
}

/// What GitHub says, in Gitea's words: people have their name twice, and a request whose head moved
/// is `synchronized`.
fn as_gitea(mut body: Value) -> Value {
    for who in ["sender", "pusher"] {
        let Some(person) = body.get(who) else {
            continue;
        };
        let name = person["login"]
            .as_str()
            .or(person["name"].as_str())
            .unwrap_or_default()
            .to_owned();
        body[who] = json!({
            "id": 5, "login": name, "login_name": "", "source_id": 0, "full_name": "",
            "email": format!("{name}@noreply.example"), "avatar_url": "", "html_url": "",
            "language": "", "is_admin": false, "last_login": "0001-01-01T00:00:00Z",
            "created": "2026-01-01T00:00:00Z", "restricted": false, "active": false,
            "prohibit_login": false, "location": "", "website": "", "description": "",
            "visibility": "public", "followers_count": 0, "following_count": 0,
            "starred_repos_count": 0, "username": name,
        });
    }
    if body["action"] == "synchronize" {
        body["action"] = "synchronized".into();
    }
    body
}

/// The body of a push, as GitHub writes it.
pub fn push_body(project: &str, git_ref: &str, before: &str, after: &str) -> Value {
    json!({
        "ref": git_ref, "before": before, "after": after, "forced": false,
        "repository": {"id": 1, "full_name": project, "private": false},
        "pusher": {"name": "octocat"}, "sender": {"login": "octocat", "id": 5},
        "commits": [],
    })
}

/// The body of a pull request that goes to `main`, from the repository `from`.
pub fn pull_body(project: &str, number: u64, action: &str, head: &str, from: &str) -> Value {
    let id = if from == project { 1 } else { 2 };
    json!({
        "action": action, "number": number,
        "pull_request": {
            "title": "\";id;#",
            "head": {"ref": "$(touch pwned)", "sha": head,
                "repo": {"id": id, "full_name": from}},
            "base": {"ref": "main", "sha": head, "repo": {"id": 1, "full_name": project}},
        },
        "repository": {"id": 1, "full_name": project},
        "sender": {"login": "stranger", "id": 6},
    })
}
