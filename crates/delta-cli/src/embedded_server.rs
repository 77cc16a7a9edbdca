//! A server inside this process: for `run` and `up`, and for the length of a command on a data
//! folder where none runs. The only file that knows how the server crate is started.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use delta_core::{Settings, Span};
use delta_server::{
    CacheLimits, Config, KeyError, KeySource, KeyText, LOCAL_ADMIN, Limits, OidcTimes,
    PoolSandboxes, Purpose, Server, StartError, StoreChoice, Tls,
};
use delta_store::StoreError;
use delta_trace::Tracer;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::{gitignored_folders, secret_input};

/// How a server is to be started.
#[derive(Debug)]
pub struct Wanted {
    pub data: PathBuf,
    /// Logs and artifacts; in the data folder when absent.
    pub objects: Option<PathBuf>,
    pub listen: Option<SocketAddr>,
    /// An address of PostgreSQL; SQLite in the data folder when absent.
    pub store: Option<String>,
    pub settings: Settings,
    pub tls: Option<Tls>,
    /// The file of OIDC issuers.
    pub oidc: Option<PathBuf>,
    pub secret_keys: KeySource,
    pub behind_tls_proxy: bool,
    pub startup_grace: Span,
    pub retention: Option<Span>,
    pub caches: CacheLimits,
    /// Requests of people that may wait; the recommended number when absent.
    pub waiting_requests: Option<usize>,
    pub pool_sandboxes: PoolSandboxes,
    pub tracer: Tracer,
    /// This server's address as people reach it.
    pub public_url: Option<String>,
    /// What whoever comes through its admin socket is called in records.
    pub local_name: &'static str,
    pub duties: Duties,
    pub purpose: Purpose,
    /// Go on with a database that is empty where there was another.
    pub accept_empty: bool,
}

/// Whether it expires, times out and finalises what is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duties {
    On,
    Off,
}

/// The SQLite store inside a data folder.
pub const STORE_FILE: &str = delta_store::sqlite::FILE;

/// Made by a server once there is a store.
pub const NOTE_FILE: &str = delta_server::DATABASE_NOTE;

/// Made by a server before anything else.
pub const LOCK_FILE: &str = "lock";

/// Why there is no server.
pub enum Refused {
    /// Another process holds the folder.
    InUse(StartError),
    /// A flag cannot be used, and which one is known.
    Flag(Failure),
    Other(StartError),
}

impl Refused {
    /// What went wrong, for a command that only reads or asks: it starts no server.
    pub fn into_failure_of_command(self, data: &Path) -> Failure {
        let mut failure = self.into_failure(data);
        if failure.what == cannot_start(data) {
            failure.what = format!("the data in {} cannot be opened", secret_input::shown(data));
        }
        failure
    }

    pub fn into_failure(self, data: &Path) -> Failure {
        let place = secret_input::shown(data);
        match self {
            Refused::InUse(error) => {
                let what = format!("the data folder {place} is in use");
                Failure::new(Exit::Refused, what)
                    .caused_by(&error)
                    .next("stop the server that uses it, or name another folder with --data")
            }
            Refused::Flag(failure) => failure,
            Refused::Other(error) => explain(error, data),
        }
    }
}

/// The admin socket of a data folder.
pub fn admin_socket(data: &Path) -> PathBuf {
    data.join("admin.sock")
}

pub async fn start(wanted: Wanted) -> Result<Server, Refused> {
    if let Some(url) = &wanted.store {
        check_store(url).map_err(Refused::Flag)?;
    }
    if wanted.purpose == Purpose::Serve {
        gitignored_folders::whole(&[
            &wanted.data,
            wanted.objects.as_ref().unwrap_or(&wanted.data),
        ]);
    }
    let tls = wanted.tls.clone();
    let mut limits = Limits::recommended();
    limits.waiting_requests = wanted.waiting_requests.unwrap_or(limits.waiting_requests);
    let config = Config {
        data: wanted.data,
        objects: wanted.objects,
        listen: wanted.listen,
        store: wanted
            .store
            .map_or(StoreChoice::Sqlite, StoreChoice::Postgres),
        settings: wanted.settings,
        tls: wanted.tls,
        oidc: wanted.oidc,
        oidc_times: OidcTimes::USUAL,
        secret_keys: wanted.secret_keys,
        behind_tls_proxy: wanted.behind_tls_proxy,
        startup_grace: wanted.startup_grace,
        retention: wanted.retention,
        caches: wanted.caches,
        purpose: wanted.purpose,
        duties: wanted.duties == Duties::On,
        recheck: delta_server::RECHECK,
        pool_sandboxes: wanted.pool_sandboxes,
        tracer: wanted.tracer,
        // This very file, also after it was replaced by a newer one.
        planner: Some(PathBuf::from("/proc/self/exe")),
        public_url: wanted.public_url,
        accept_empty: wanted.accept_empty,
        local_name: wanted.local_name,
        limits,
    };
    delta_server::start(config)
        .await
        .map_err(|error| match error {
            StartError::Locked { .. } => Refused::InUse(error),
            StartError::Tls { path, why } => Refused::Flag(bad_tls(tls, &path, why)),
            StartError::SecretKey { path, why } => Refused::Flag(bad_secret_key(&path, &why)),
            StartError::Oidc { path, why } => Refused::Flag(bad_oidc(&path, why)),
            other => Refused::Other(other),
        })
}

/// Only the admin socket, nothing that changes by itself; of a command that only reads, nothing at
/// all.
pub async fn for_a_command(
    data: &Path,
    store: Option<&str>,
    purpose: Purpose,
) -> Result<Server, Refused> {
    start(Wanted {
        secret_keys: secret_keys(None).map_err(Refused::Flag)?,
        data: data.to_owned(),
        // For a moment in a folder whose server does not run: the same variable says it.
        objects: secret_input::path_of("DELTA_OBJECTS"),
        listen: None,
        store: store.map(str::to_owned),
        settings: Settings::recommended(),
        tls: None,
        oidc: None,
        behind_tls_proxy: false,
        startup_grace: Span::ZERO,
        retention: None,
        caches: CacheLimits::USUAL,
        waiting_requests: None,
        pool_sandboxes: PoolSandboxes::new(),
        tracer: Tracer::off(),
        public_url: None,
        local_name: LOCAL_ADMIN,
        duties: Duties::Off,
        purpose,
        accept_empty: false,
    })
    .await
}

/// Where the keys of secrets are: a file, the environment, or the server's own.
pub fn secret_keys(file: Option<PathBuf>) -> Result<KeySource, Failure> {
    let file = file.or_else(|| secret_input::path_of("DELTA_SECRET_KEY_FILE"));
    let text = std::env::var("DELTA_SECRET_KEY").ok();
    match (file, text) {
        (Some(_), Some(_)) => {
            let what = "both a key file and DELTA_SECRET_KEY are given";
            Err(Failure::new(Exit::Usage, what).next("put all keys into the file"))
        }
        (Some(path), None) => Ok(KeySource::File(path)),
        (None, Some(text)) => Ok(KeySource::Text(KeyText::new(text))),
        (None, None) => Ok(KeySource::Own),
    }
}

/// Nothing that is suggested writes over a file: one with keys in it may be the only one.
fn bad_secret_key(path: &Path, why: &KeyError) -> Failure {
    let file = secret_input::shown(path);
    let missing = matches!(why, KeyError::Io(error) if error.kind() == io::ErrorKind::NotFound);
    let next = match why {
        KeyError::Open => format!("chmod 600 {file}"),
        KeyError::Io(_) if missing => format!(
            "check its name; (umask 077; set -C; head -c 32 /dev/urandom | base64 > {file}) makes \
             a first one"
        ),
        KeyError::Io(_) => "check that this user may read it".to_owned(),
        KeyError::NoKey(_) | KeyError::Empty => {
            "head -c 32 /dev/urandom | base64 prints a new one; keep the keys that are in use"
                .to_owned()
        }
        KeyError::TooMany => "take out keys that secret rotate has replaced".to_owned(),
    };
    Failure::new(Exit::Usage, format!("cannot use the keys of {file}"))
        .caused_by(why)
        .next(next)
}

/// Whether this can be the address of a store. It may hold a password, so it is not repeated.
pub fn check_store(url: &str) -> Result<(), Failure> {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    // Beside addresses, PostgreSQL's own `host=… dbname=…` is understood.
    let pairs = scheme.is_none() && url.contains('=');
    if pairs || matches!(scheme, Some("postgres" | "postgresql")) {
        return Ok(());
    }
    let what = match scheme {
        Some(scheme) => format!("--store (or DELTA_STORE) cannot be a {scheme}:// address"),
        None => "--store (or DELTA_STORE) is not the address of a database".into(),
    };
    Err(Failure::new(Exit::Usage, what).next(
        "postgres://USER@HOST/DATABASE; without --store everything is in SQLite, in the data folder",
    ))
}

fn bad_tls(tls: Option<Tls>, path: &Path, why: String) -> Failure {
    let (flag, next) = match tls {
        Some(tls) if tls.client_ca.as_deref() == Some(path) => (
            "--client-ca",
            "it is a file in PEM: the certificates of the authorities",
        ),
        tls => (
            match tls {
                Some(tls) if tls.key == path => "--tls-key",
                _ => "--tls-cert",
            },
            "both are files in PEM: a certificate chain, and its private key",
        ),
    };
    Failure::new(
        Exit::Usage,
        format!("cannot use {flag} {}", secret_input::shown(path)),
    )
    .because(why)
    .next(next)
}

fn bad_oidc(path: &Path, why: String) -> Failure {
    Failure::new(
        Exit::Usage,
        format!("cannot use --oidc {}", secret_input::shown(path)),
    )
    .because(why)
    .next("docs/identity.md shows a whole file")
}

fn cannot_start(data: &Path) -> String {
    format!("the server on {} cannot start", secret_input::shown(data))
}

/// What to type depends on what is in the way.
fn explain(error: StartError, data: &Path) -> Failure {
    let what = match &error {
        StartError::Store(StoreError::Corrupt(_)) => {
            format!("the database of {} is damaged", secret_input::shown(data))
        }
        _ => cannot_start(data),
    };
    let (exit, next) = match &error {
        StartError::InTheClear(_) => (
            Exit::Usage,
            Some(
                "--listen 127.0.0.1:PORT for this machine alone; --tls-cert FILE --tls-key FILE; \
                 or --behind-tls-proxy",
            ),
        ),
        StartError::Setting(_) | StartError::Tls { .. } => (Exit::Usage, None),
        StartError::Store(StoreError::Corrupt(_)) => (
            Exit::Internal,
            Some("keep the folder as it is, and go on with a copy from before"),
        ),
        StartError::Store(StoreError::TooNew { .. }) => (
            Exit::Refused,
            Some("use the version of delta-ci that wrote it, or a newer one"),
        ),
        StartError::Store(StoreError::TooOld { .. }) => (
            Exit::Refused,
            Some(
                "start `delta-ci server` of this version on it once, or ask with the version that \
                 made it: commands that only read change nothing",
            ),
        ),
        StartError::Full { .. } => (
            Exit::Unreachable,
            Some(
                "make room on that disk, or move the folder to another one; nothing that was \
                 stored is lost",
            ),
        ),
        StartError::Store(StoreError::Full(_)) => (
            Exit::Unreachable,
            Some("make room on the disk of the database; nothing that was stored is lost"),
        ),
        StartError::Data { .. } if data.is_file() => (
            Exit::Usage,
            Some("--data names a folder, and this is a file"),
        ),
        StartError::Lost { .. } => (
            Exit::Refused,
            Some(
                "put the database back from a copy of it; to go on without what it held, start the \
                 server once with --accept-empty",
            ),
        ),
        StartError::Bind { .. } => (
            Exit::Internal,
            Some("name another address: --listen ADDR:PORT; port 0 takes a free one"),
        ),
        StartError::Store(_) => (
            Exit::Unreachable,
            Some("check --store (or DELTA_STORE), and that the database runs"),
        ),
        _ => (Exit::Internal, None),
    };
    let failure = Failure::new(exit, what).caused_by(&error);
    match next {
        Some(next) => failure.next(next),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_kind_of_database_is_refused_without_repeating_its_address() {
        for good in ["postgres://h/d", "postgresql://u:p@h/d", "host=h dbname=d"] {
            assert!(check_store(good).is_ok(), "{good}");
        }
        for bad in ["mysql://u:secret@h/d", "sqlite", "/var/lib/x.db"] {
            let text = check_store(bad).unwrap_err().text();
            assert!(text.contains("postgres://"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }

    #[test]
    fn nothing_that_is_suggested_for_keys_writes_over_a_file() {
        let said = |why: KeyError| bad_secret_key(Path::new("data/new.key"), &why).text();
        let open = said(KeyError::Open);
        assert!(open.contains("chmod 600 data/new.key"), "{open}");
        for text in [
            open,
            said(KeyError::NoKey(1)),
            said(KeyError::Empty),
            said(KeyError::TooMany),
            said(KeyError::Io(io::ErrorKind::PermissionDenied.into())),
        ] {
            assert!(!text.contains('>'), "{text}");
        }
        // There is none: and should there be one after all, `set -C` keeps it.
        let missing = said(KeyError::Io(io::ErrorKind::NotFound.into()));
        assert!(missing.contains("set -C; head"), "{missing}");
        assert!(missing.contains("> data/new.key"), "{missing}");
    }
}
