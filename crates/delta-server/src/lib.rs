//! Delta CI's server: endpoints, identity, the writer and the duties of the control plane.
//!
//! [`start`] opens the store, takes the data folder's lock, starts the writer and serves the API on
//! TCP (bearer tokens) and on the admin socket `DATA/admin.sock` (this user alone). Nothing here
//! changes state: `delta-core` decides, the writer commits.

#![forbid(unsafe_code)]

mod app;
mod audit;
mod caches;
mod clock;
mod data_folder;
mod database_note;
mod doctor;
mod duties;
mod forges;
mod full_disk;
mod functions;
mod http;
mod identity;
mod keyed_limit;
mod lease_rights;
mod listen;
mod metrics;
mod new_run;
mod not_done;
pub mod objects;
mod presence;
mod public_url;
mod readiness;
mod results;
mod runner_commands;
mod secrets;
mod sessions;
mod store_sides;
mod test_history;
#[cfg(test)]
mod tests;
mod trace;
mod watch;
mod writer;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use delta_core::settings::BadSetting;
use delta_core::{Millis, Settings, Span};
use delta_store::migrate::Schema;
use delta_store::read::Reader;
use delta_store::side_tables::SideTables;
use delta_store::{Store, StoreError};
use delta_trace::Tracer;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use caches::CacheLimits;
pub use database_note::{DatabaseLost, FILE as DATABASE_NOTE};
pub use delta_store::read::Role;
pub use forges::plan_worker;
pub use identity::LOCAL_ADMIN;
pub use identity::oidc::Times as OidcTimes;
pub use listen::raise_file_limit;
pub use secrets::{KeyError, KeySource, KeyText};
pub use sessions::{PoolSandboxes, RECHECK, Sandbox};

use app::{App, Equipment};
use clock::Clock;
use database_note::Witness;
use identity::oidc::Oidc;
use identity::peer::ClientTrust;
use identity::{Identity, new_token};
use secrets::Keyring;
use store_sides::StoreSides;
use writer::{Thread, Writer};

/// How a server is run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Folder of the lock, the admin socket and (with SQLite) the database: one server's own.
    pub data: PathBuf,
    /// Folder of logs and artifacts, which all servers on one PostgreSQL must share, on a mount
    /// with file locks; `DATA/objects` when absent.
    pub objects: Option<PathBuf>,
    /// Where to serve beside the admin socket; port 0 takes a free one.
    pub listen: Option<SocketAddr>,
    pub store: StoreChoice,
    pub settings: Settings,
    pub tls: Option<Tls>,
    /// The file of OIDC issuers whose tokens are believed.
    pub oidc: Option<PathBuf>,
    pub oidc_times: OidcTimes,
    /// A proxy before this server speaks TLS; without it, only loopback is served in the clear.
    pub behind_tls_proxy: bool,
    /// No lease counts as expired within this time after the start (A40).
    pub startup_grace: Span,
    /// How long ended runs are kept; for good when absent.
    pub retention: Option<Span>,
    /// Whether the folder and the store may be changed by starting on them.
    pub purpose: Purpose,
    /// Whether this server sweeps: a short-lived one beside another need not.
    pub duties: bool,
    /// How often a session looks whether another server was told something about its agent.
    pub recheck: Duration,
    /// Pools that only agents with at least this sandbox may be in.
    pub pool_sandboxes: PoolSandboxes,
    /// The keys that secrets are kept with. Several servers on one database must have the same.
    pub secret_keys: KeySource,
    pub caches: CacheLimits,
    /// Where spans go.
    pub tracer: Tracer,
    /// This binary, which is started again to fetch and to plan; nothing is planned when absent.
    pub planner: Option<PathBuf>,
    /// This server's address as people reach it, for links in statuses.
    pub public_url: Option<String>,
    /// Go on with a database that is empty where there was another.
    pub accept_empty: bool,
    /// What whoever comes through the admin socket is called in records: a server that is there
    /// for one run only has another name, by which its runs are known afterwards.
    pub local_name: &'static str,
    pub limits: Limits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// `DATA/delta.db`: one server.
    Sqlite,
    /// A connection URL: any number of servers.
    Postgres(String),
    /// Gone when the server ends.
    Memory,
}

/// What a server is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To serve: what is missing is made, an older schema is brought up to date.
    Serve,
    /// To answer questions about what is there: a start changes nothing, and a store whose schema
    /// is another one is refused.
    Look,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Authorities whose clients are known by their certificates; nobody is when absent.
    pub client_ca: Option<PathBuf>,
}

/// Bounds an operator may move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests of people that may wait for the writer before 429 is answered.
    pub waiting_requests: usize,
    /// The shortest that the result of a function is kept, whatever its call says: whoever waits
    /// for it must be able to ask once more.
    pub shortest_keep: Span,
}

impl Limits {
    pub fn recommended() -> Limits {
        Limits {
            waiting_requests: writer::lanes::PEOPLE_LIMIT,
            shortest_keep: functions::SHORTEST_KEEP,
        }
    }
}

impl Config {
    /// SQLite in `data`, served on the admin socket only, with every default.
    pub fn recommended(data: PathBuf) -> Config {
        Config {
            data,
            objects: None,
            listen: None,
            store: StoreChoice::Sqlite,
            settings: Settings::recommended(),
            tls: None,
            oidc: None,
            oidc_times: OidcTimes::USUAL,
            behind_tls_proxy: false,
            startup_grace: Span::ZERO,
            retention: None,
            purpose: Purpose::Serve,
            duties: true,
            recheck: sessions::RECHECK,
            pool_sandboxes: PoolSandboxes::new(),
            secret_keys: KeySource::Own,
            caches: CacheLimits::USUAL,
            tracer: Tracer::off(),
            planner: None,
            public_url: None,
            accept_empty: false,
            local_name: LOCAL_ADMIN,
            limits: Limits::recommended(),
        }
    }
}

/// Why a server did not start. Each says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Setting(#[from] BadSetting),
    #[error("cannot use {}", .path.display())]
    Data {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the disk of {} is full ({why})", .folder.display())]
    Full { folder: PathBuf, why: String },
    #[error("another server (process {pid}) uses {}: stop it first", .data.display())]
    Locked { data: PathBuf, pid: String },
    #[error("{why}")]
    Lost { data: PathBuf, why: DatabaseLost },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot listen on {addr}")]
    Bind {
        addr: SocketAddr,
        source: std::io::Error,
    },
    #[error(
        "{0} is reachable from other machines and would carry tokens in the clear: give --tls-cert \
         and --tls-key, or --behind-tls-proxy if a proxy before it speaks TLS, or listen on \
         127.0.0.1"
    )]
    InTheClear(SocketAddr),
    #[error("{}: {why}", .path.display())]
    Tls { path: PathBuf, why: String },
    #[error("{}: {why}", .path.display())]
    Oidc { path: PathBuf, why: String },
    #[error("{}: {why}", .path.display())]
    SecretKey {
        path: PathBuf,
        why: secrets::KeyError,
    },
    #[error("the writer's thread could not be started")]
    Thread(#[source] std::io::Error),
    #[error("the store did not take the first commands: {0}")]
    First(String),
}

/// A running server. Dropping it without [`Server::shutdown`] leaves its thread to end by itself.
pub struct Server {
    app: App,
    writer: Writer,
    addr: Option<SocketAddr>,
    admin_socket: PathBuf,
    stop: CancellationToken,
    serving: JoinHandle<()>,
    duties: Vec<JoinHandle<()>>,
    thread: std::thread::JoinHandle<()>,
    _lock: data_folder::DataLock,
}

/// Why a token could not be made.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TokenError(String);

/// Starts a server; when this returns it answers.
pub async fn start(config: Config) -> Result<Server, StartError> {
    start_on(config, Box::new(open)).await
}

/// Opens a store.
type Open = Box<dyn FnOnce(&Config) -> Result<Opened, StoreError> + Send>;

async fn start_on(config: Config, open: Open) -> Result<Server, StartError> {
    let started = begin(&config, open).await;
    started.map_err(|error| full_disk::told(error, &config))
}

async fn begin(config: &Config, open: Open) -> Result<Server, StartError> {
    config.settings.check()?;
    let lock = data_folder::lock(config)?;
    let objects = Arc::new(data_folder::objects(config)?);
    let witness = Witness::read(config, &objects)?;
    // Ask for the port before anything is changed: a wrong address should cost nothing.
    let trust = Arc::<ClientTrust>::default();
    let tcp = match config.listen {
        Some(addr) => Some(listen::tcp(addr, config, &trust).await?),
        None => None,
    };
    let oidc = oidc(config)?;
    let keys = secret_keys(config)?;
    let (writer, sides, thread) = start_writer(config, witness, open).await?;
    let stop = CancellationToken::new();
    if config.purpose == Purpose::Serve {
        let clamped = duties::clamp_leases(&writer).await;
        let clamped = clamped.map_err(|error| StartError::First(error.to_string()))?;
        if clamped > 0 {
            tracing::warn!(clamped, "the clock went back while the server was away");
        }
    }
    let identity = Identity::new(sides.reader.clone(), trust, oidc);
    let equipment = Equipment {
        objects,
        secret_keys: Arc::new(keys),
        recheck: config.recheck,
        pool_sandboxes: config.pool_sandboxes.clone(),
        cache_limits: config.caches,
        tracer: config.tracer.clone(),
        shortest_keep: config.limits.shortest_keep,
        public_url: config.public_url.clone(),
    };
    let app = App::new(writer.clone(), sides, identity, equipment, stop.clone());
    let queues = app.clone();
    let read = app.read(move |reader| queues.queues.read(reader, &queues.writer));
    let read = read.await;
    read.map_err(|error| StartError::First(error.to_string()))?;
    let admin = listen::admin(&config.data, config.local_name)?;
    let (addr, admin_socket) = (tcp.as_ref().map(|tcp| tcp.addr), admin.path.clone());
    let router = http::router(app.clone());
    let serving = tokio::spawn(listen::serve(router, tcp, admin, stop.clone()));
    Ok(Server {
        duties: duties::start(config, &app),
        app,
        writer,
        addr,
        admin_socket,
        stop,
        serving,
        thread,
        _lock: lock,
    })
}

fn oidc(config: &Config) -> Result<Oidc, StartError> {
    let Some(path) = &config.oidc else {
        return Ok(Oidc::none());
    };
    Oidc::read(path, config.oidc_times).map_err(|why| StartError::Oidc {
        path: path.clone(),
        why,
    })
}

/// Servers on one database must have the same key, so none of them makes one of its own.
fn secret_keys(config: &Config) -> Result<Keyring, StartError> {
    let source = match (&config.secret_keys, &config.store) {
        (KeySource::Own, StoreChoice::Postgres(_)) => &KeySource::None,
        (KeySource::Own, _) if config.purpose == Purpose::Look => &KeySource::OwnIfThere,
        (source, _) => source,
    };
    let keys = Keyring::open(source, &config.data);
    keys.map_err(|(path, why)| StartError::SecretKey { path, why })
}

type Started = (Writer, StoreSides, std::thread::JoinHandle<()>);

/// Opens the store off the async threads, sets the clock by it, and hands it to the writer.
async fn start_writer(
    config: &Config,
    witness: Option<Witness>,
    open: Open,
) -> Result<Started, StartError> {
    let config = config.clone();
    let opened = tokio::task::spawn_blocking(move || {
        let (mut store, sides) = open(&config)?;
        if let Some(witness) = witness {
            witness.meet(&config, store.as_mut())?;
        }
        let several_writers = matches!(config.store, StoreChoice::Postgres(_));
        let mut settings = config.settings;
        settings.incarnation = store.incarnation()?;
        let store_now = store.begin()?;
        store.rollback();
        let clock = Clock::start(store_now, store.newest_moment()?);
        let lease_floor = match config.startup_grace {
            Span::ZERO => Millis::ZERO,
            grace => clock.now() + grace,
        };
        let wakeups = store.wakeups();
        let thread = Thread {
            store,
            clock,
            settings,
            metrics: Arc::default(),
            watchers: watch::Watchers::default(),
            lease_floor,
            several_writers,
            people_limit: config.limits.waiting_requests,
            longest_wait: writer::LONGEST_WAIT,
        };
        let (writer, handle) = thread.spawn().map_err(StartError::Thread)?;
        if let Some(wakeups) = wakeups {
            let waker = writer.clone();
            wakeups(Box::new(move || {
                waker.wake();
                waker.shared().watchers.wake_all();
            }));
        }
        Ok((writer, sides, handle))
    });
    opened
        .await
        .unwrap_or_else(|error| Err(StartError::First(error.to_string())))
}

/// A store, and its sides that need no writer.
type Opened = (Box<dyn Store>, StoreSides);

fn open(config: &Config) -> Result<Opened, StoreError> {
    let schema = match config.purpose {
        Purpose::Serve => Schema::Migrate,
        Purpose::Look => Schema::AsItIs,
    };
    let (store, reader, tables): (Box<dyn Store>, Arc<dyn Reader>, Arc<dyn SideTables>) =
        match &config.store {
            StoreChoice::Memory => {
                let store = delta_store::memory::MemoryStore::new();
                let (reader, tables) = (store.reader(), store.side_tables());
                (Box::new(store), Arc::new(reader), Arc::new(tables))
            }
            StoreChoice::Sqlite => {
                let (store, reader, tables) = delta_store::sqlite::open_as(&config.data, schema)?;
                (Box::new(store), Arc::new(reader), Arc::new(tables))
            }
            StoreChoice::Postgres(url) => {
                let (store, reader, tables) = delta_store::postgres::open_as(url, schema)?;
                (Box::new(store), Arc::new(reader), Arc::new(tables))
            }
        };
    Ok((store, StoreSides { reader, tables }))
}

impl Server {
    /// Where it listens, with the port it got.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    pub fn admin_socket(&self) -> PathBuf {
        self.admin_socket.clone()
    }

    /// Makes a token and returns its secret.
    pub async fn create_token(&self, role: Role, name: &str) -> Result<String, TokenError> {
        let now = self.writer.now();
        let token = new_token(role, name.into(), now, None);
        let put = self.app.put_credential(token.credential).await;
        put.map_err(|error| TokenError(error.to_string()))?;
        Ok(token.secret)
    }

    /// Whether whoever shows this token comes in, with this role.
    pub async fn takes_token(&self, token: &str, role: Role) -> Result<bool, TokenError> {
        let found = self.app.identity.whose(token, self.writer.now()).await;
        let found = found.map_err(|error| TokenError(error.to_string()))?;
        Ok(found.is_some_and(|who| who.may(role)))
    }

    /// Waits until this server cannot go on, because its writer is gone; for ever while all is
    /// well. Requests are answered with 503 from then on: end the process, and let whoever
    /// supervises it start another.
    pub async fn broken(&self) {
        self.writer.ended().await;
    }

    /// Stops accepting, sends parked requests home, lets requests in flight finish, commits what
    /// waits, and ends.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.writer.stop_parking();
        let _ = self.serving.await;
        for duty in self.duties {
            let _ = duty.await;
        }
        self.writer.close();
        let thread = self.thread;
        let _ = tokio::task::spawn_blocking(move || thread.join()).await;
    }
}

/// How long [`Server::shutdown`] may take at most, for whoever waits for it.
pub const SHUTDOWN_TIME: Duration = Duration::from_secs(15);
