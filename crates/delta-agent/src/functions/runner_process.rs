//! One process of a pool: started on a port of its own, there once the listener is its own,
//! watched, and ended with everything that it began.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use delta_runner_protocol::{SOCKET_FLAG, SOCKET_VARIABLE};
use delta_shim::guard::{self, KILL, TERMINATE};
use delta_shim::processes::mark::Mark;
use delta_shim::processes::strays::Traits;
use delta_shim::sandbox::Confinement;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

use super::endpoint::RunnerEndpoint;
use super::port_owner::{self, Listener, Owner};
use super::runner_output::{LastLine, Printed, Stream};
use super::settings::{PoolSettings, RunnerSource};

/// Between two looks whether it listens: short at first, an interpreter takes longer.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LAST_LOOK: Duration = Duration::from_millis(200);
/// Tries to find a port that no other process of ours was given.
const PORT_TRIES: u32 = 64;
/// How long a guard may take to end everything once it must.
const KILL_TIME: Duration = Duration::from_secs(15);

/// What all processes of an agent have in common.
pub(super) struct Launch {
    /// This program, whose guard is started.
    pub program: PathBuf,
    pub env: HashMap<OsString, OsString>,
    pub confinement: Confinement,
    pub hidden: Vec<PathBuf>,
    /// Ports that are given out: one that is free now may be given to two (RQ-9).
    pub ports: Mutex<BTreeSet<u16>>,
}

/// Why a process is not there.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("no port is free: {0}")]
    NoPort(io::Error),
    #[error("another runner has its port {0}")]
    Taken(u16),
    #[error("it cannot be started: {0}")]
    Spawn(io::Error),
    #[error("it ended before it listened, {0}")]
    Ended(String),
    #[error("it did not listen within {0:?}")]
    Silent(Duration),
    #[error("somebody else listens on its port {0}")]
    Foreign(u16),
    #[error("it listens for everybody and not on 127.0.0.1 alone, where it was told to")]
    Open,
    #[error("nobody can say who listens on its port: {0}")]
    Unknown(io::Error),
}

/// A process that listens where it was told to.
pub(super) struct Process {
    pub door: RunnerEndpoint,
    /// Its guard, whose descendant it is.
    owner: Owner,
    guard: Child,
    mark: Option<Mark>,
    orders: ChildStdin,
    last_line: LastLine,
    _port: Port,
}

/// A port that is given out, until it is dropped.
struct Port {
    launch: Arc<Launch>,
    number: u16,
}

impl Drop for Port {
    fn drop(&mut self) {
        given(&self.launch).remove(&self.number);
    }
}

fn given(launch: &Launch) -> std::sync::MutexGuard<'_, BTreeSet<u16>> {
    let ports = launch.ports.lock();
    ports.unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Starts one and waits until it listens. Dropped midway, it ends what it began.
    pub async fn start(
        launch: &Arc<Launch>,
        pool: &PoolSettings,
        lane: usize,
    ) -> Result<Process, StartError> {
        let port = match pool.port(lane) {
            Some(number) => taken(launch, number).ok_or(StartError::Taken(number))?,
            None => free_port(launch).map_err(StartError::NoPort)?,
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number));
        let mark = Mark::fresh();
        let begun = begin(launch, pool, address, mark).await;
        let (mut guard, orders) = begun.map_err(StartError::Spawn)?;
        let printed = Printed::of(pool);
        let last_line = Arc::clone(&printed.last);
        printed.clone().pass_on(Stream::Out, guard.stdout.take());
        printed.pass_on(Stream::Err, guard.stderr.take());
        let owner = Owner::of(guard.id().unwrap_or(0)).map_err(StartError::Spawn)?;
        let door = RunnerEndpoint {
            address,
            owner: Some(owner.clone()),
        };
        let mut process = Process {
            door,
            owner,
            guard,
            mark,
            orders,
            last_line,
            _port: port,
        };
        match process.listens(pool.start_timeout).await {
            Ok(()) => Ok(process),
            Err(problem) => {
                process.kill().await;
                Err(problem)
            }
        }
    }

    async fn listens(&mut self, patience: Duration) -> Result<(), StartError> {
        let port = self.door.address.port();
        let deadline = Instant::now() + patience;
        let mut pause = FIRST_LOOK;
        loop {
            if let Ok(Some(status)) = self.guard.try_wait() {
                return Err(StartError::Ended(self.last_words(status).await));
            }
            let owner = self.owner.clone();
            let look = tokio::task::spawn_blocking(move || port_owner::who(port, &owner)).await;
            match look.unwrap_or_else(|problem| Err(io::Error::other(problem))) {
                Ok(Listener::Ours) => return Ok(()),
                Ok(Listener::Foreign) => return Err(StartError::Foreign(port)),
                Ok(Listener::Open) => return Err(StartError::Open),
                Ok(Listener::Nobody) if Instant::now() >= deadline => {
                    return Err(StartError::Silent(patience));
                }
                Ok(Listener::Nobody) => {}
                Err(problem) => return Err(StartError::Unknown(problem)),
            }
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(LAST_LOOK),
                _ = self.guard.wait() => {}
            }
        }
    }

    /// Waits for its end, and says how it came.
    pub async fn ended(&mut self) -> String {
        match self.guard.wait().await {
            Ok(status) => {
                self.sweep(status).await;
                self.last_words(status).await
            }
            Err(problem) => format!("it cannot be waited for: {problem}"),
        }
    }

    /// Asks it to end, and ends it after the grace.
    pub async fn end(mut self, grace: Duration) {
        let _ = self.orders.write_all(&[TERMINATE]).await;
        if timeout(grace, self.guard.wait()).await.is_err() {
            self.kill().await;
        }
    }

    /// Ends everything of it. True when nothing is left.
    pub async fn kill(&mut self) -> bool {
        let _ = self.orders.write_all(&[KILL]).await;
        match timeout(KILL_TIME, self.guard.wait()).await {
            Ok(Ok(status)) => {
                self.sweep(status).await;
                true
            }
            _ => false,
        }
    }

    /// A guard that was itself killed has left the runner, and whatever that began.
    async fn sweep(&self, status: ExitStatus) {
        use std::os::unix::process::ExitStatusExt;
        let group = i32::try_from(self.owner.pid).ok().and_then(Pid::from_raw);
        if let (Some(group), Some(_)) = (group, status.signal()) {
            let _ = kill_process_group(group, Signal::KILL);
            let traits = Traits {
                folder: None,
                mark: self.mark,
                entries: Vec::new(),
            };
            let ending = tokio::task::spawn_blocking(move || traits.end_all());
            let _ = ending.await;
        }
    }

    async fn last_words(&self, status: ExitStatus) -> String {
        // What it printed last may still be on its way.
        sleep(FIRST_LOOK).await;
        let line = self.last_line.lock();
        let line = line.unwrap_or_else(PoisonError::into_inner);
        let how = match status.code() {
            Some(code) => format!("with exit code {code}"),
            None => "by a signal".to_owned(),
        };
        if line.is_empty() {
            how
        } else {
            format!("{how}: {line}")
        }
    }
}

async fn begin(
    launch: &Launch,
    pool: &PoolSettings,
    address: SocketAddr,
    mark: Option<Mark>,
) -> io::Result<(Child, ChildStdin)> {
    let RunnerSource::Command {
        words, env, folder, ..
    } = &pool.source
    else {
        return Err(io::Error::other("a runner of somebody else's"));
    };
    let address = address.to_string();
    let mut guard = Command::new(&launch.program)
        .arg(guard::SUBCOMMAND)
        .env_clear()
        .envs(&launch.env)
        .envs(env.iter().map(|(name, value)| (name, value)))
        // Older runners read the one, newer ones the other.
        .env(SOCKET_VARIABLE, &address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut orders = guard.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let words = words.iter().map(OsString::from);
    let order = guard::GuardOrder {
        words: words.chain([SOCKET_FLAG.into(), address.into()]).collect(),
        folder: folder.clone(),
        confinement: launch.confinement,
        hidden: launch.hidden.clone(),
        mark,
    };
    let mut line = serde_json::to_vec(&order)?;
    line.push(b'\n');
    orders.write_all(&line).await?;
    Ok((guard, orders))
}

/// A port that is free and was given to nobody. Somebody may still be quicker to take it: then the
/// runner cannot listen, and gets another.
fn free_port(launch: &Arc<Launch>) -> io::Result<Port> {
    for _ in 0..PORT_TRIES {
        let number = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        if let Some(port) = taken(launch, number) {
            return Ok(port);
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// That port, unless it is given to somebody.
fn taken(launch: &Arc<Launch>, number: u16) -> Option<Port> {
    let launch = Arc::clone(launch);
    let free = given(&launch).insert(number);
    free.then(|| Port { launch, number })
}
