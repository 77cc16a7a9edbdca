//! A real PostgreSQL cluster of a test's own: on a free loopback port, in a temporary folder,
//! durable as in production, killed and restarted at will.
//!
//! PostgreSQL refuses to run as root, so root runs it as the user `postgres`. Every call blocks
//! the calling thread only and works inside and outside of an async runtime. The cluster ends
//! with the test, also when the test is killed: see `guard.rs`.

mod binaries;
mod database;
mod guard;
mod members;
mod url;

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use self::binaries::Binaries;
pub use self::database::{ADMIN_URL_VARIABLE, PgDatabase, fresh_database};
use self::guard::Guard;
use crate::mortal_children;
use crate::port::free_port;
use crate::wait::Pace;

/// A start takes about a second; recovery after a crash on a busy machine may take many.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// What a shutdown may take before it is reported as stuck: it writes a checkpoint on a slow disk.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// Orphans of a killed postmaster leave when they next look up; one in a long query does not.
const ORPHANS_DEADLINE: Duration = Duration::from_secs(5);

/// How a restart ends the old postmaster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Sessions are cut and a checkpoint is written: a clean restart.
    Fast,
    /// Everything is dropped where it stands, and recovery runs at the start, as after a crash.
    Immediate,
}

/// Whether a commit waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    On,
    Off,
}

/// What differs between test clusters.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    pub fsync: Fsync,
    pub max_connections: u32,
    /// Further lines of `postgresql.conf`, as (`work_mem`, `'1MB'`).
    pub settings: Vec<(String, String)>,
    /// Environment of the server, as for a clock that is off.
    pub environment: Vec<(String, String)>,
    /// Where the cluster's folder is made, as on a small file system; the temp folder if unset.
    pub parent: Option<PathBuf>,
}

impl PostgresOptions {
    /// As in production: what was committed is on disk.
    pub fn durable() -> Self {
        Self {
            fsync: Fsync::On,
            max_connections: 100,
            settings: Vec::new(),
            environment: Vec::new(),
            parent: None,
        }
    }
}

/// A running cluster. Dropping it stops it and removes its folder.
#[derive(Debug)]
pub struct Postgres {
    binaries: Binaries,
    environment: Vec<(String, String)>,
    folder: PathBuf,
    data: PathBuf,
    port: u16,
    postmaster: Mutex<Option<Child>>,
    guard: Guard,
}

impl Postgres {
    pub fn start() -> Result<Self> {
        Self::start_with(PostgresOptions::durable())
    }

    pub fn start_with(options: PostgresOptions) -> Result<Self> {
        let binaries = Binaries::find()?;
        let parent = options.parent.clone().unwrap_or_else(std::env::temp_dir);
        let made = tempfile::Builder::new()
            .prefix("delta-postgres-")
            .tempdir_in(parent)?;
        // The real path, since the members of the cluster are known by their working folder.
        let folder = made.path().canonicalize()?;
        let data = folder.join("data");
        // From here on the guard owns the removal of the folder.
        let guard = Guard::start(&data, &folder)?;
        let _ = made.keep();
        binaries.give_to_server_user(&folder)?;
        let port = free_port()?;
        let cluster = Self {
            binaries,
            environment: options.environment.clone(),
            folder,
            data,
            port,
            postmaster: Mutex::new(None),
            guard,
        };
        cluster.initialise(&options)?;
        cluster.start_again()?;
        Ok(cluster)
    }

    /// One cluster for all tests of this process. It ends with the process.
    ///
    /// Panics when there is none to be had: every test that asks for it fails, none is skipped.
    pub fn shared() -> &'static Postgres {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Postgres::start().unwrap_or_else(|error| panic!("{error:#}")))
    }

    /// The address of this database, for a client on this machine.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.addr())
    }

    /// The address of this database through the Unix socket in the cluster's folder.
    pub fn socket_url(&self, database: &str) -> String {
        let folder = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{folder}:{}/{database}", self.port)
    }

    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The postmaster's pid, while there is one.
    pub fn pid(&self) -> Option<u32> {
        self.lock().as_ref().map(Child::id)
    }

    /// The folder of this cluster: `data`, the server's log, the socket.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub fn create_database(&self, name: &str) -> Result<PgDatabase> {
        database::create(&self.url("postgres"), name, database::After::Keep)
    }

    /// A new, empty database under a name nobody else has.
    pub fn fresh_database(&self) -> Result<PgDatabase> {
        self.create_database(&database::fresh_name())
    }

    /// Ends the server and starts it again on the same port and data.
    pub fn restart(&self, how: Restart) -> Result<()> {
        self.stop(how)?;
        self.start_again()
    }

    /// Ends the server; [`Postgres::start_again`] brings it back.
    pub fn stop(&self, how: Restart) -> Result<()> {
        let signal = match how {
            Restart::Fast => Signal::INT,
            Restart::Immediate => Signal::QUIT,
        };
        self.resume_backends()?;
        let mut slot = self.lock();
        let Some(postmaster) = slot.as_mut() else {
            return Ok(());
        };
        members::send(postmaster.id(), signal)?;
        let mut pace = Pace::new(STOP_DEADLINE);
        while postmaster.try_wait()?.is_none() {
            match pace.next_pause() {
                Some(pause) => std::thread::sleep(pause),
                None => bail!("PostgreSQL does not stop; its log:\n{}", self.log()),
            }
        }
        *slot = None;
        Ok(())
    }

    /// kill -9 of the postmaster alone: its backends find out by themselves, as in real life.
    pub fn kill9_postmaster(&self) -> Result<()> {
        let mut slot = self.lock();
        let Some(postmaster) = slot.as_mut() else {
            return Ok(());
        };
        postmaster.kill()?;
        postmaster.wait()?;
        *slot = None;
        Ok(())
    }

    /// Starts the server on its data and port, once what an earlier one left has gone; recovery
    /// has run and connections are accepted when this returns. Does nothing while it runs.
    pub fn start_again(&self) -> Result<()> {
        let mut slot = self.lock();
        if slot.is_some() {
            return Ok(());
        }
        members::outlast(&self.data, ORPHANS_DEADLINE)?;
        let mut command = self.binaries.command("postgres", "QUIT")?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())?;
        command.arg("-D").arg(&self.data).current_dir(&self.folder);
        command
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        let postmaster =
            slot.insert(mortal_children::spawn(command).context("starting PostgreSQL")?);
        let ready = self.until_ready(postmaster);
        if ready.is_err() {
            let _ = postmaster.kill();
            let _ = postmaster.wait();
            *slot = None;
        }
        ready
    }

    /// SIGSTOP of every process of the cluster: it hangs, with its connections open.
    pub fn pause_backends(&self) -> Result<()> {
        members::pause(&self.data, self.pid())
    }

    /// Lets a paused cluster go on.
    pub fn resume_backends(&self) -> Result<()> {
        members::signal_all(&self.data, Signal::CONT)
    }

    fn initialise(&self, options: &PostgresOptions) -> Result<()> {
        let mut command = self.binaries.command("initdb", "KILL")?;
        let log_file = self.folder.join("initdb.log");
        let log = File::create(&log_file)?;
        command.arg("-D").arg(&self.data).current_dir(&self.folder);
        // Only the making of the cluster goes without sync: nothing acknowledged is in it yet.
        command.args([
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
        ]);
        command.args(["--no-sync", "--no-instructions"]);
        command
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let status = mortal_children::spawn(command)
            .context("starting initdb")?
            .wait()?;
        if !status.success() {
            bail!(
                "initdb failed ({status}):\n{}",
                fs::read_to_string(&log_file)?
            );
        }
        let file = self.data.join("postgresql.conf");
        let mut text = fs::read_to_string(&file)?;
        text.push_str(&self.settings(options));
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
    }

    fn settings(&self, options: &PostgresOptions) -> String {
        let fsync = match options.fsync {
            Fsync::On => "on",
            Fsync::Off => "off",
        };
        let mut text = format!(
            "\nlisten_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = '{}'\n\
             fsync = {fsync}\nshared_buffers = 16MB\nmax_connections = {}\njit = off\n\
             log_line_prefix = '%m [%p] %d '\n",
            self.port,
            self.folder.display(),
            options.max_connections,
        );
        // In the data folder instead of /dev/shm, where kill -9 would leave it behind for good.
        text.push_str("dynamic_shared_memory_type = mmap\n");
        for (name, value) in &options.settings {
            text.push_str(&format!("{name} = {value}\n"));
        }
        text
    }

    /// The postmaster writes its state into its pid file; a stale file names another pid.
    fn until_ready(&self, postmaster: &mut Child) -> Result<()> {
        let own_pid = postmaster.id().to_string();
        let mut pace = Pace::new(READY_DEADLINE);
        loop {
            let text = fs::read_to_string(self.data.join("postmaster.pid")).unwrap_or_default();
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            if lines.first() == Some(&own_pid.as_str()) && lines.get(7) == Some(&"ready") {
                return Ok(());
            }
            if let Some(status) = postmaster.try_wait()? {
                bail!(
                    "PostgreSQL ended at its start ({status}); its log:\n{}",
                    self.log()
                );
            }
            match pace.next_pause() {
                Some(pause) => std::thread::sleep(pause),
                None => bail!(
                    "PostgreSQL not ready in {READY_DEADLINE:?}:\n{}",
                    self.log()
                ),
            }
        }
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.postmaster
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.guard.clean_up();
        if let Some(postmaster) = self.lock().as_mut() {
            let _ = postmaster.wait();
        }
    }
}
