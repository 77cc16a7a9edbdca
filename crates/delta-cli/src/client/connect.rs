//! Which server is meant, and the way to it.
//!
//! `--server URL` speaks HTTP with a token. `--data DIR` goes through the admin socket of the
//! server that runs there; when none runs, one is started inside this process for the length of
//! the command: no listener, no duties, only the socket.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::Client;
use crate::embed;
use crate::exit::Exit;
use crate::failure::{Done, Failure, internal};

/// Where data is when nobody says, as `delta-ci up` makes it.
pub const DEFAULT_DATA: &str = ".delta-ci";

/// How long to look again for the socket of a server that holds the folder: it is starting or
/// stopping, which takes a moment.
const SOCKET_PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks.
const SOCKET_PAUSE: Duration = Duration::from_millis(50);

/// Which server to talk to.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Which server")]
pub struct Target {
    /// A server by its address, such as https://ci.example:7878
    #[arg(
        long,
        value_name = "URL",
        env = "DELTA_SERVER",
        conflicts_with = "data"
    )]
    pub server: Option<String>,
    /// A server by its data folder, on its own machine [default: ./.delta-ci]
    #[arg(long, value_name = "DIR", env = "DELTA_DATA")]
    pub data: Option<PathBuf>,
    /// The store, where the folder's server uses PostgreSQL and is not running
    #[arg(long, value_name = "URL", env = "DELTA_STORE", hide_env_values = true)]
    pub store: Option<String>,
    /// A file with the token for --server; the variable DELTA_TOKEN holds one, too
    #[arg(long, value_name = "FILE", env = "DELTA_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// The certificate authority of --server, in PEM, where the system does not know it
    #[arg(long, value_name = "FILE")]
    pub ca_cert: Option<PathBuf>,
}

impl Target {
    /// The data folder that is meant, unless a server is named by address.
    pub fn folder(&self) -> Option<PathBuf> {
        match &self.server {
            Some(_) => None,
            None => Some(
                self.data
                    .clone()
                    .unwrap_or_else(|| PathBuf::from(DEFAULT_DATA)),
            ),
        }
    }
}

/// Does something with a client, and closes what was opened for it.
pub async fn with(target: &Target, act: impl AsyncFnOnce(&Client) -> Done) -> Done {
    match &target.server {
        Some(url) => act(&remote(target, url)?).await,
        None => {
            let data = target.folder().unwrap_or_default();
            if !data.is_dir() && target.store.is_none() {
                return Err(no_folder(target, &data));
            }
            local(target, act).await
        }
    }
}

/// The same for a folder that may not exist yet.
pub async fn local(target: &Target, act: impl AsyncFnOnce(&Client) -> Done) -> Done {
    let folder = target.folder().unwrap_or_default();
    match &target.store {
        // Everything is in the database: the folder is only a place for the socket.
        Some(_) if target.data.is_none() && !folder.is_dir() => {
            let temporary = tempfile::Builder::new()
                .prefix("delta-ci-")
                .tempdir()
                .map_err(internal("there is no temporary folder"))?;
            in_folder(&temporary.path().join("data"), target, act).await
        }
        _ => in_folder(&folder, target, act).await,
    }
}

async fn in_folder(data: &Path, target: &Target, act: impl AsyncFnOnce(&Client) -> Done) -> Done {
    let store = target.store.as_deref();
    let started = Instant::now();
    loop {
        if let Some(client) = beside(data).await? {
            return act(&client).await;
        }
        match embed::for_a_command(data, store).await {
            Ok(server) => {
                let done = match over_socket(data, &server.admin_socket()) {
                    Ok(client) => act(&client).await,
                    Err(failure) => Err(failure),
                };
                server.shutdown().await;
                return done;
            }
            // Somebody holds the folder: its socket is about to appear, or its lock to go.
            Err(embed::Refused::InUse(_)) if started.elapsed() < SOCKET_PATIENCE => {
                tokio::time::sleep(SOCKET_PAUSE).await;
            }
            Err(refused) => return Err(refused.into_failure(data)),
        }
    }
}

/// A client of the server that runs on this folder, if one does.
pub async fn beside(data: &Path) -> Result<Option<Client>, Failure> {
    let socket = embed::admin_socket(data);
    match tokio::net::UnixStream::connect(&socket).await {
        Ok(_) => over_socket(data, &socket).map(Some),
        Err(_) => Ok(None),
    }
}

fn over_socket(data: &Path, socket: &Path) -> Result<Client, Failure> {
    let builder = reqwest::Client::builder()
        .unix_socket(socket)
        .tls_certs_only([])
        .no_proxy();
    Ok(Client {
        http: build(builder)?,
        base: "http://localhost".into(),
        token: None,
        place: format!("the server of {}", data.display()),
    })
}

fn remote(target: &Target, url: &str) -> Result<Client, Failure> {
    let base = url.trim_end_matches('/');
    if !base.starts_with("http://") && !base.starts_with("https://") {
        let what = format!("`{base}` is no address of a server");
        return Err(Failure::new(Exit::Usage, what)
            .next("it begins with http:// or https://, such as http://127.0.0.1:7878"));
    }
    let mut builder = reqwest::Client::builder();
    if let Some(file) = &target.ca_cert {
        builder = builder.tls_certs_only(certificates(file)?);
    } else if base.starts_with("http://") {
        builder = builder.tls_certs_only([]);
    }
    Ok(Client {
        http: build(builder)?,
        base: base.to_owned(),
        token: token(target)?,
        place: base.to_owned(),
    })
}

fn build(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, Failure> {
    builder.build().map_err(|error| {
        Failure::new(Exit::Internal, "no HTTP client could be made").caused_by(&error)
    })
}

fn certificates(file: &Path) -> Result<Vec<reqwest::Certificate>, Failure> {
    let wrong = || {
        Failure::new(
            Exit::Usage,
            format!("cannot use --ca-cert {}", file.display()),
        )
    };
    let pem = std::fs::read(file).map_err(|error| wrong().caused_by(&error))?;
    let found =
        reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| wrong().caused_by(&error))?;
    if found.is_empty() {
        return Err(wrong().because("there is no certificate in it"));
    }
    Ok(found)
}

fn token(target: &Target) -> Result<Option<String>, Failure> {
    match &target.token_file {
        Some(file) => read_token(file).map(Some),
        None => Ok(std::env::var("DELTA_TOKEN").ok()),
    }
}

/// A token from a file: one line, blanks around it do not count.
pub fn read_token(file: &Path) -> Result<String, Failure> {
    let what = format!("cannot read the token file {}", file.display());
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::new(Exit::Usage, what.clone()).caused_by(&error))?;
    let token = text.trim();
    if token.is_empty() || token.contains(char::is_whitespace) {
        return Err(Failure::new(Exit::Usage, what)
            .because("it must hold one token on one line")
            .next("delta-ci token create --role ROLE --data DIR > FILE"));
    }
    Ok(token.to_owned())
}

fn no_folder(target: &Target, data: &Path) -> Failure {
    let what = format!("there is no data folder {}", data.display());
    let failure = Failure::new(Exit::NotFound, what);
    match target.data {
        Some(_) => failure.next("give the folder that `delta-ci server --data DIR` uses"),
        None => failure.next("say which server: --data DIR on its machine, or --server URL"),
    }
}
