//! Which server is meant, and the way to it.
//!
//! `--server URL` speaks HTTP with a token. `--data DIR` goes through the admin socket of the
//! server that runs there; when none runs, one is started inside this process for the length of
//! the command: no listener, no duties, only the socket, and for a command that only reads, nothing
//! is made or changed by its start.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use delta_server::Purpose;

use super::Client;
use crate::embedded_server;
use crate::exit::Exit;
use crate::failure::{Done, Failure, internal};
use crate::{gitignored_folders, secret_input};

/// Where data is when nobody says, as `delta-ci up` makes it.
pub const DEFAULT_DATA: &str = ".delta-ci";

/// How long to look again for the socket of a server that holds the folder: it is starting or
/// stopping, which takes a moment.
const SOCKET_PATIENCE: Duration = Duration::from_secs(10);

/// How long a server that starts may take from its lock to its store.
const START_PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks.
const SOCKET_PAUSE: Duration = Duration::from_millis(50);

/// Which server to talk to.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Which server")]
pub struct Target {
    /// A server by its address, such as https://ci.example:7878 [env: DELTA_SERVER]
    #[arg(long, value_name = "URL", conflicts_with = "data")]
    pub server: Option<String>,
    /// A server by its data folder, on its own machine [env: DELTA_DATA] [default: ./.delta-ci]
    #[arg(long, value_name = "DIR")]
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

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Address(String),
    Folder {
        path: PathBuf,
        /// Somebody named it; otherwise it is the usual one.
        named: bool,
    },
}

/// What to do about a folder without a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoStore {
    Refuse,
    /// Make one, but only where nothing else is.
    Make,
}

impl Target {
    /// What was typed wins over what the environment says.
    pub fn place(&self) -> Result<Place, Failure> {
        let named = |path: &Path| Place::Folder {
            path: path.to_owned(),
            named: true,
        };
        match (&self.server, &self.data) {
            (Some(url), _) => return Ok(Place::Address(url.clone())),
            (None, Some(path)) => return Ok(named(path)),
            (None, None) => {}
        }
        let server = std::env::var_os("DELTA_SERVER").filter(|url| !url.is_empty());
        match (server, secret_input::path_of("DELTA_DATA")) {
            (Some(_), Some(_)) => Err(Failure::new(
                Exit::Usage,
                "both DELTA_SERVER and DELTA_DATA are set",
            )
            .next("say which one is meant: --server URL or --data DIR")),
            (Some(url), None) => Ok(Place::Address(url.to_string_lossy().into_owned())),
            (None, Some(path)) => Ok(named(&path)),
            (None, None) => Ok(Place::Folder {
                path: secret_input::whole_path(DEFAULT_DATA.into()),
                named: false,
            }),
        }
    }
}

/// Does something with a client, and closes what was opened for it.
pub async fn with(target: &Target, act: impl AsyncFnOnce(&Client) -> Done) -> Done {
    reach(target, NoStore::Refuse, act).await
}

/// Does something with a client that only asks: a folder without a server is looked at, and not
/// changed.
pub async fn reading(target: &Target, act: impl AsyncFnOnce(&Client) -> Done) -> Done {
    reach_for(target, NoStore::Refuse, Purpose::Look, act).await
}

/// Does something with a client; `missing` says what becomes of a folder without a store.
pub async fn reach(
    target: &Target,
    missing: NoStore,
    act: impl AsyncFnOnce(&Client) -> Done,
) -> Done {
    reach_for(target, missing, Purpose::Serve, act).await
}

async fn reach_for(
    target: &Target,
    missing: NoStore,
    purpose: Purpose,
    act: impl AsyncFnOnce(&Client) -> Done,
) -> Done {
    let (path, named) = match target.place()? {
        Place::Address(url) => return act(&remote(target, &url)?).await,
        Place::Folder { path, named } => (path, named),
    };
    match &target.store {
        // Everything is in the database: the folder is only a place for the socket.
        Some(_) if !path.is_dir() && (!named || purpose == Purpose::Look) => {
            let temporary = tempfile::Builder::new()
                .prefix("delta-ci-")
                .tempdir()
                .map_err(internal("there is no temporary folder"))?;
            in_folder(&temporary.path().join("data"), target, purpose, act).await
        }
        Some(_) => in_folder(&path, target, purpose, act).await,
        None => {
            if !has_store(&path).await {
                match missing {
                    NoStore::Make if is_empty(&path) => {}
                    NoStore::Make => return Err(not_ours(&path)),
                    NoStore::Refuse => return Err(no_store(&path, named)),
                }
            }
            in_folder(&path, target, purpose, act).await
        }
    }
}

/// Whether the folder has a store, or a server that knows where its store is. A server that starts
/// makes its lock first and the store a moment later.
pub async fn has_store(data: &Path) -> bool {
    let started = Instant::now();
    loop {
        // One that was there and is lost is for its server to speak of.
        let files = [embedded_server::STORE_FILE, embedded_server::NOTE_FILE];
        if files.iter().any(|file| data.join(file).exists()) || knock(data).await {
            return true;
        }
        if !data.join(embedded_server::LOCK_FILE).exists() || started.elapsed() > START_PATIENCE {
            return false;
        }
        tokio::time::sleep(SOCKET_PAUSE).await;
    }
}

/// Nothing is there yet, but perhaps what a server that failed to start makes first.
fn is_empty(data: &Path) -> bool {
    match std::fs::read_dir(data) {
        Ok(entries) => entries
            .flatten()
            .map(|entry| entry.file_name())
            .all(|name| name == embedded_server::LOCK_FILE || name == gitignored_folders::FILE),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

async fn in_folder(
    data: &Path,
    target: &Target,
    purpose: Purpose,
    act: impl AsyncFnOnce(&Client) -> Done,
) -> Done {
    let store = target.store.as_deref();
    let started = Instant::now();
    loop {
        if let Some(client) = beside(data).await? {
            return act(&client).await;
        }
        match embedded_server::for_a_command(data, store, purpose).await {
            Ok(server) => {
                let done = match over_socket(data, &server.admin_socket()) {
                    Ok(mut client) => {
                        client.alone = Some(secret_input::shown(data));
                        act(&client).await
                    }
                    Err(failure) => Err(failure),
                };
                server.shutdown().await;
                return done;
            }
            // Somebody holds the folder: its socket is about to appear, or its lock to go.
            Err(embedded_server::Refused::InUse(_)) if started.elapsed() < SOCKET_PATIENCE => {
                tokio::time::sleep(SOCKET_PAUSE).await;
            }
            Err(refused) => return Err(refused.into_failure_of_command(data)),
        }
    }
}

/// A client of the server that runs on this folder, if one does.
pub async fn beside(data: &Path) -> Result<Option<Client>, Failure> {
    if knock(data).await {
        over_socket(data, &embedded_server::admin_socket(data)).map(Some)
    } else {
        Ok(None)
    }
}

async fn knock(data: &Path) -> bool {
    let socket = embedded_server::admin_socket(data);
    tokio::net::UnixStream::connect(&socket).await.is_ok()
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
        place: format!("the server of {}", secret_input::shown(data)),
        alone: None,
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
        alone: None,
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
            format!("cannot use --ca-cert {}", secret_input::shown(file)),
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
    let what = format!("cannot read the token file {}", secret_input::shown(file));
    let text = secret_input::text_of(file).map_err(|failure| {
        let why = failure.why.unwrap_or(failure.what);
        Failure::new(Exit::Usage, what.clone())
            .because(why)
            .next("name another file, or make one: delta-ci token create --role ROLE --out FILE")
    })?;
    let token = text.trim();
    if token.is_empty() || token.contains(char::is_whitespace) {
        return Err(Failure::new(Exit::Usage, what)
            .because("it must hold one token on one line")
            .next("delta-ci token create --role ROLE --data DIR --out FILE"));
    }
    Ok(token.to_owned())
}

fn no_store(data: &Path, named: bool) -> Failure {
    let place = secret_input::shown(data);
    let failure = if data.is_dir() {
        Failure::new(Exit::NotFound, format!("{place} holds no store"))
    } else {
        Failure::new(Exit::NotFound, format!("there is no data folder {place}"))
    };
    if named {
        failure.next(
            "give the folder that `delta-ci server --data DIR` uses; for one on PostgreSQL that \
             is not running, --store URL too",
        )
    } else {
        failure.next("say which server: --data DIR on its machine, or --server URL")
    }
}

fn not_ours(data: &Path) -> Failure {
    let what = format!(
        "{} holds other things and no store",
        secret_input::shown(data)
    );
    Failure::new(Exit::Refused, what)
        .because("a new store is made in a folder that is empty or does not exist yet")
        .next(
            "give the folder of the server; for one on PostgreSQL that is not running, \
             --store URL too",
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_store_is_made_only_where_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_empty(folder.path()));
        assert!(is_empty(&folder.path().join("new")));
        std::fs::write(folder.path().join(embedded_server::LOCK_FILE), "7").unwrap();
        gitignored_folders::whole(&[folder.path()]);
        assert!(is_empty(folder.path()));
        std::fs::write(folder.path().join("notes"), "mine").unwrap();
        assert!(!is_empty(folder.path()));
        assert!(!is_empty(&folder.path().join("notes")));
    }
}
