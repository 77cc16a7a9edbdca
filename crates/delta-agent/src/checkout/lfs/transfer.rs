//! Large files on their way here: the server is asked where they are, and each place it names is
//! checked before anybody goes there, as is each it is sent on to. A file is what its pointer
//! says, or nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;

use delta_git::{Address, Credential, Redirection, RefusedAddress, check_redirection};

use super::super::{Checkout, CheckoutError};
use super::Pointer;
use super::names::Names;
use super::ssh::Granted;
use crate::backoff::{Backoff, entropy};
use crate::tls::TlsFiles;

/// Files that one question is about: what servers take.
const ASKED_AT_ONCE: usize = 100;
/// Bytes of an answer: a hundred signed addresses are a tenth of it.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
/// Characters of a server's own words in a summary.
const MAX_QUOTE: usize = 200;
/// How often a file is sent for that did not come: networks fail for seconds.
const TRIES: u32 = 4;
const RETRY_BASE: Duration = Duration::from_millis(500);
const RETRY_CAP: Duration = Duration::from_secs(10);
/// How long a connection may take to be made, and may be silent, as with git itself.
const CONNECT_TIME: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(60);
/// How often one is sent on: to a store, and once within it.
const MAX_HOPS: usize = 4;
/// What is ours to say: of such a header a server's own is not taken.
const OWN_HEADERS: [&str; 7] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "upgrade",
    "accept-encoding",
    "user-agent",
];
/// What servers of files and of objects want to see, by name and by the beginning of it. Any other
/// opens doors that are not theirs: `Metadata-Flavor`, `X-aws-ec2-metadata-token`, `Cookie`.
const HEADERS: [&str; 3] = ["authorization", "accept", "content-type"];
const HEADERS_OF_STORES: [&str; 8] = [
    "x-amz-", "x-goog-", "x-ms-", "x-oss-", "x-cos-", "x-obs-", "x-bz-", "x-lfs-",
];
const NO_ADDRESS: &str = "their server has no address";
const KIND: &str = "application/vnd.git-lfs+json";

#[derive(Serialize)]
struct Question<'a> {
    operation: &'a str,
    transfers: [&'a str; 1],
    objects: Vec<Wanted<'a>>,
}

#[derive(Serialize)]
struct Wanted<'a> {
    oid: &'a str,
    size: u64,
}

#[derive(Deserialize)]
struct Answer {
    objects: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    oid: String,
    actions: Option<Actions>,
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Actions {
    download: Option<Download>,
}

#[derive(Deserialize)]
struct Download {
    href: String,
    #[serde(default)]
    header: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(default)]
    message: String,
}

/// One file, and where it is.
struct Task {
    pointer: Pointer,
    url: Url,
    header: BTreeMap<String, String>,
}

/// Whether it may be better in a while.
enum Miss {
    Again(CheckoutError),
    Never(CheckoutError),
}

impl From<reqwest::Error> for Miss {
    fn from(error: reqwest::Error) -> Miss {
        let mut refused = error.is_redirect();
        // The innermost says it best, and has no URL in it, which may be signed.
        let error = error.without_url();
        let (mut words, mut source) = (error.to_string(), std::error::Error::source(&error));
        while let Some(inner) = source {
            // Also where a name leads does not change in a second.
            refused |= inner.is::<RefusedAddress>();
            (words, source) = (inner.to_string(), inner.source());
        }
        let trouble = CheckoutError::Lfs(quoted(&words));
        if refused {
            Miss::Never(trouble)
        } else {
            Miss::Again(trouble)
        }
    }
}

/// Fetches them into the repository's own store of them, over HTTP or as was granted over ssh.
pub(super) async fn fetch(
    checkout: &Checkout<'_>,
    address: &Address,
    granted: Option<Granted>,
    pointers: &[Pointer],
) -> Result<(), CheckoutError> {
    let away = Redirection {
        protocols: checkout.settings.protocols,
        from_here: address.is_here(),
    };
    let (batch, right) = match granted {
        Some(granted) => {
            let mut url = place(&granted.href, away)?;
            let path = format!("{}/objects/batch", url.path().trim_end_matches('/'));
            url.set_path(&path);
            (url, Right::Header(taken(granted.header)?))
        }
        None => {
            let mut url = Url::parse(&address.url).map_err(|_| wrong(NO_ADDRESS))?;
            // A user's name goes with its token, or not at all.
            let _ = url.set_username("");
            let path = url.path().trim_end_matches('/');
            let path = path.strip_suffix(".git").unwrap_or(path);
            let path = format!("{path}.git/info/lfs/objects/batch");
            url.set_path(&path);
            (url, Right::Credential(checkout.credential))
        }
    };
    let transfer = Transfer {
        away,
        batch,
        right,
        store: checkout.workspace.join(".git/lfs/objects"),
    };
    let sizes = pointers.iter().map(|it| it.size);
    let bytes = sizes.fold(0_u64, u64::saturating_add);
    let text = format!("{} large files, {bytes} bytes", pointers.len());
    checkout.log.mark(&text);
    for some in pointers.chunks(ASKED_AT_ONCE) {
        transfer.fetch(some).await?;
    }
    Ok(())
}

/// A place that a server names, if one may go there.
fn place(href: &str, away: Redirection) -> Result<Url, CheckoutError> {
    let url = Url::parse(href).map_err(|_| wrong(NO_ADDRESS))?;
    check_redirection(&url, away).map_err(|problem| CheckoutError::LfsAway {
        host: quoted(url.host_str().unwrap_or_default()),
        problem,
    })?;
    Ok(url)
}

/// What the server that is asked sees of us, and no other.
enum Right<'a> {
    Credential(Option<&'a Credential>),
    Header(BTreeMap<String, String>),
}

impl Right<'_> {
    fn show(&self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Right::Header(header) => with(request, header),
            Right::Credential(credential) => match credential.and_then(Credential::basic) {
                Some((user, token)) => request.basic_auth(user, Some(token.expose())),
                None => request,
            },
        }
    }
}

fn with(mut request: RequestBuilder, header: &BTreeMap<String, String>) -> RequestBuilder {
    for (name, value) in header {
        request = request.header(name, value);
    }
    request
}

/// What a server wants to see, but for what is ours to say, if it may.
fn taken(header: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, CheckoutError> {
    let mut taken = BTreeMap::new();
    for (name, value) in header {
        let lower = name.to_ascii_lowercase();
        if OWN_HEADERS.contains(&lower.as_str()) {
            continue;
        }
        let of_store = HEADERS_OF_STORES.iter().any(|it| lower.starts_with(it));
        if !of_store && !HEADERS.contains(&lower.as_str()) {
            let text =
                format!("their server wants the header `{name}`, which no such server needs");
            return Err(CheckoutError::Lfs(quoted(&text)));
        }
        taken.insert(lower, value);
    }
    Ok(taken)
}

struct Transfer<'a> {
    /// Where the server is asked.
    batch: Url,
    away: Redirection,
    right: Right<'a>,
    store: PathBuf,
}

impl Transfer<'_> {
    async fn fetch(&self, pointers: &[Pointer]) -> Result<(), CheckoutError> {
        let asking = client(Policy::none(), self.away)?;
        let mut tries = Tries::new();
        let answer = loop {
            match self.ask(&asking, pointers).await {
                Ok(answer) => break answer,
                Err(miss) => tries.after(miss).await?,
            }
        };
        let tasks = self.tasks(answer, pointers)?;
        let away = self.away;
        let follow = Policy::custom(move |attempt| {
            if attempt.previous().len() > MAX_HOPS {
                return attempt.error("it is sent on and on");
            }
            match check_redirection(attempt.url(), away) {
                Ok(()) => attempt.follow(),
                Err(problem) => attempt.error(problem),
            }
        });
        let (client, open) = (client(follow, away)?, Mutex::new(tasks));
        let lane = || self.lane(&client, &open);
        // Small files take as long as the way to them: four at once.
        tokio::try_join!(lane(), lane(), lane(), lane())?;
        Ok(())
    }

    async fn lane(&self, client: &Client, open: &Mutex<Vec<Task>>) -> Result<(), CheckoutError> {
        loop {
            let next = open.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(task) = next else {
                return Ok(());
            };
            let mut tries = Tries::new();
            while let Err(miss) = self.download(client, &task).await {
                tries.after(miss).await?;
            }
        }
    }

    async fn ask(&self, client: &Client, pointers: &[Pointer]) -> Result<Answer, Miss> {
        let wanted = pointers.iter().map(|it| Wanted {
            oid: &it.oid,
            size: it.size,
        });
        let question = Question {
            operation: "download",
            transfers: ["basic"],
            objects: wanted.collect(),
        };
        let body = serde_json::to_vec(&question);
        let body = body.map_err(|error| Miss::Never(wrong(&error.to_string())))?;
        let request = client.post(self.batch.clone()).body(body);
        let request = request.header("accept", KIND).header("content-type", KIND);
        let mut answer = judged(self.right.show(request).send().await?)?;
        let mut text = Vec::new();
        while let Some(piece) = answer.chunk().await? {
            text.extend_from_slice(&piece);
            if text.len() > MAX_ANSWER {
                return Err(Miss::Never(wrong("their server's answer is too long")));
            }
        }
        let read = serde_json::from_slice(&text);
        read.map_err(|_| Miss::Never(wrong("their server's answer cannot be read")))
    }

    /// Where each file is; every address is checked before the first is used.
    fn tasks(&self, answer: Answer, pointers: &[Pointer]) -> Result<Vec<Task>, CheckoutError> {
        let mut objects: BTreeMap<String, Object> = BTreeMap::new();
        for object in answer.objects {
            objects.insert(object.oid.clone(), object);
        }
        let mut tasks = Vec::new();
        for pointer in pointers {
            let object = objects.remove(&pointer.oid);
            let (actions, error) = object.map_or((None, None), |it| (it.actions, it.error));
            let Some(download) = actions.and_then(|it| it.download) else {
                let words = error.map_or_else(String::new, |it| it.message);
                let text = format!("their server has no {}: {words}", pointer.oid);
                return Err(CheckoutError::Lfs(quoted(&text)));
            };
            let url = place(&download.href, self.away)?;
            tasks.push(Task {
                pointer: pointer.clone(),
                url,
                header: taken(download.header)?,
            });
        }
        Ok(tasks)
    }

    async fn download(&self, client: &Client, task: &Task) -> Result<(), Miss> {
        let mut request = with(client.get(task.url.clone()), &task.header);
        // Ours is for the server that was asked and no other.
        if !task.header.contains_key("authorization") && task.url.origin() == self.batch.origin() {
            request = self.right.show(request);
        }
        let answer = judged(request.send().await?)?;
        let oid = &task.pointer.oid;
        let folder = self.store.join(&oid[..2]).join(&oid[2..4]);
        let part = folder.join(format!("{oid}.part"));
        let received = receive(answer, &task.pointer, &folder, &part).await;
        if received.is_err() {
            let _ = tokio::fs::remove_file(&part).await;
        }
        received
    }
}

async fn receive(
    mut answer: Response,
    pointer: &Pointer,
    folder: &Path,
    part: &Path,
) -> Result<(), Miss> {
    let io = |source| Miss::Never(CheckoutError::io("a large file cannot be written")(source));
    tokio::fs::create_dir_all(folder).await.map_err(io)?;
    let mut file = tokio::fs::File::create(part).await.map_err(io)?;
    let (mut hash, mut came) = (Context::new(&SHA256), 0);
    while let Some(piece) = answer.chunk().await? {
        came += piece.len() as u64;
        if came > pointer.size {
            break;
        }
        hash.update(&piece);
        file.write_all(&piece).await.map_err(io)?;
    }
    file.flush().await.map_err(io)?;
    let hash = hash.finish();
    let hash: String = hash.as_ref().iter().map(|it| format!("{it:02x}")).collect();
    if came != pointer.size || hash != pointer.oid {
        let text = format!("what came is not {}", pointer.oid);
        return Err(Miss::Again(CheckoutError::Lfs(text)));
    }
    let whole = folder.join(&pointer.oid);
    tokio::fs::rename(part, whole).await.map_err(io)
}

fn judged(answer: Response) -> Result<Response, Miss> {
    let status = answer.status();
    let text = format!("their server answered {status}");
    match status {
        status if status.is_success() => Ok(answer),
        StatusCode::TOO_MANY_REQUESTS => Err(Miss::Again(CheckoutError::Lfs(text))),
        status if status.is_server_error() => Err(Miss::Again(CheckoutError::Lfs(text))),
        _ => Err(Miss::Never(CheckoutError::Lfs(text))),
    }
}

/// How often something is tried.
struct Tries {
    left: u32,
    backoff: Backoff,
}

impl Tries {
    fn new() -> Tries {
        Tries {
            left: TRIES,
            backoff: Backoff::new(RETRY_BASE, RETRY_CAP),
        }
    }

    /// Waits before the next try, or gives back why there is none.
    async fn after(&mut self, miss: Miss) -> Result<(), CheckoutError> {
        self.left -= 1;
        match miss {
            Miss::Again(_) if self.left > 0 => {
                tokio::time::sleep(self.backoff.next(None, entropy())).await;
                Ok(())
            }
            Miss::Again(trouble) | Miss::Never(trouble) => Err(trouble),
        }
    }
}

fn client(redirect: Policy, away: Redirection) -> Result<Client, CheckoutError> {
    let tls = TlsFiles::default().config(&[b"http/1.1"]);
    let tls = tls.map_err(|error| wrong(&error.to_string()))?;
    let client = Client::builder()
        .redirect(redirect)
        .dns_resolver(Names::new(away.from_here))
        .connect_timeout(CONNECT_TIME)
        .read_timeout(SILENCE)
        .tls_backend_preconfigured(tls)
        .build();
    client.map_err(|error| wrong(&error.without_url().to_string()))
}

fn wrong(why: &str) -> CheckoutError {
    CheckoutError::Lfs(why.to_owned())
}

/// A stranger's words, within bounds.
fn quoted(words: &str) -> String {
    words
        .chars()
        .take(MAX_QUOTE)
        .flat_map(char::escape_debug)
        .collect()
}

#[cfg(test)]
mod tests {
    use delta_git::Protocols;

    use super::*;

    // T17
    #[test]
    fn a_server_says_nothing_in_our_name_that_only_others_want_to_hear() {
        let taken = |names: &[&str]| {
            let header = names.iter().map(|it| (it.to_string(), "x".to_owned()));
            taken(header.collect()).map(|it| it.into_keys().collect::<Vec<_>>())
        };
        let usual = [
            "Accept",
            "Authorization",
            "Host",
            "X-Amz-Date",
            "x-ms-version",
        ];
        let kept = taken(&usual).expect("headers");
        assert_eq!(
            kept,
            ["accept", "authorization", "x-amz-date", "x-ms-version"]
        );
        for strange in [
            "Metadata-Flavor",
            "Metadata",
            "X-aws-ec2-metadata-token",
            "X-aws-ec2-metadata-token-ttl-seconds",
            "X-Google-Metadata-Request",
            "X-Vault-Request",
            "X-Forwarded-For",
            "Cookie",
            "",
        ] {
            let refused = taken(&["Authorization", strange]);
            assert!(matches!(refused, Err(CheckoutError::Lfs(_))), "{strange}");
        }
    }

    // T17
    #[tokio::test]
    async fn a_name_that_leads_to_this_machine_is_refused_when_it_is_looked_up() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let get = async |from_here| {
            let away = Redirection {
                protocols: Protocols::default(),
                from_here,
            };
            let client = client(Policy::none(), away).expect("a client");
            let url = format!("http://localhost:{port}/");
            client
                .get(url)
                .timeout(Duration::from_secs(10))
                .send()
                .await
        };
        match Miss::from(get(false).await.expect_err("refused")) {
            Miss::Never(trouble) => {
                let words = trouble.to_string();
                assert!(words.contains("files are not on this one"), "{words}");
            }
            Miss::Again(trouble) => panic!("{trouble}"),
        }
        // A repository of this machine may: somebody is there, and hears of it.
        let heard = tokio::select! {
            heard = listener.accept() => heard,
            answer = get(true) => panic!("{answer:?}"),
        };
        assert!(heard.is_ok());
    }
}
