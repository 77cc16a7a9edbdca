//! The agent as a whole: its settings, its slots, and how it is shut down.
//!
//! Slots share a client and a work folder and know nothing of each other. The agent ends when it is
//! told to, or when the server refuses its credential; an unreachable server is only waited for.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::Client;
use crate::executor::BaseEnvironment;
use crate::progress::Observer;
use crate::slot;
use crate::workspace::{Source, WorkFolder, WorkspaceError};

/// How an agent works.
#[derive(Debug, Clone)]
pub struct AgentSettings {
    /// Stable and unique; a slot's `runner_id` is this, a slash and the slot's number.
    pub name: String,
    /// Jobs at a time, one lease each.
    pub slots: u32,
    /// What this machine is and has, matched against what jobs require.
    pub capabilities: Vec<String>,
    pub work_folder: PathBuf,
    /// What each workspace begins with.
    pub source: Source,
    pub base_environment: BaseEnvironment,
    /// Bytes of log kept per lease.
    pub log_quota: u64,
    /// Between TERM and KILL, when the agent itself ends a job.
    pub stop_grace: Duration,
    /// Between TERM and KILL for what a finished job left running.
    pub leftover_grace: Duration,
    /// How long the server may hold a request for work.
    pub lease_wait: Duration,
}

impl AgentSettings {
    /// Settings for most machines: one slot, empty workspaces, a clean environment.
    pub fn recommended(name: String, work_folder: PathBuf) -> AgentSettings {
        AgentSettings {
            name,
            slots: 1,
            capabilities: detected_capabilities(),
            work_folder,
            source: Source::Empty,
            base_environment: BaseEnvironment::Clean,
            // A chatty build prints a few megabytes; a gigabyte is a loop that went wrong. One
            // less than a server takes, so that our marks fit too.
            log_quota: 255 * 1024 * 1024,
            stop_grace: Duration::from_secs(10),
            leftover_grace: Duration::from_secs(2),
            // The longest the protocol allows (A67).
            lease_wait: Duration::from_secs(30),
        }
    }
}

/// Facts about this machine that jobs may ask for; free to claim, unlike pools and labels.
pub fn detected_capabilities() -> Vec<String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    let facts = [
        os.to_owned(),
        arch.to_owned(),
        format!("os={os}"),
        format!("arch={arch}"),
    ];
    facts
        .into_iter()
        .chain([format!("cpu={cpus}"), "work:steps".to_owned()])
        .collect()
}

/// Why an agent ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the server refuses this agent: {0}")]
    Unauthorized(String),
    #[error("there is no folder to work in")]
    WorkFolder(#[from] WorkspaceError),
}

/// When to end. Empty while the agent works; then the moment at which running jobs are stopped.
/// No new job is taken from the first order on, and a later order may only be stricter.
pub type Shutdown = watch::Receiver<Option<Instant>>;

/// What every slot has in hand.
pub(crate) struct SlotContext {
    pub client: Client,
    pub settings: AgentSettings,
    pub work_folder: Arc<WorkFolder>,
    pub observer: Arc<dyn Observer>,
    pub runner_id: String,
}

/// Works until `shutdown` says otherwise.
pub async fn run(
    client: Client,
    settings: AgentSettings,
    observer: Arc<dyn Observer>,
    shutdown: Shutdown,
) -> Result<(), AgentError> {
    let work_folder = Arc::new(WorkFolder::open(&settings.work_folder)?);
    // One order for all slots: the caller's, or our own when the server refuses one of them.
    let (stop, stopped) = watch::channel(*shutdown.borrow());
    let mut slots = JoinSet::new();
    for number in 1..=settings.slots {
        let context = SlotContext {
            client: client.clone(),
            runner_id: format!("{}/{number}", settings.name),
            settings: settings.clone(),
            work_folder: Arc::clone(&work_folder),
            observer: Arc::clone(&observer),
        };
        slots.spawn(slot::work(Arc::new(context), stopped.clone()));
    }
    drop(stopped);
    supervise(slots, stop, shutdown).await
}

async fn supervise(
    mut slots: JoinSet<Result<(), slot::Refused>>,
    stop: watch::Sender<Option<Instant>>,
    mut shutdown: Shutdown,
) -> Result<(), AgentError> {
    let mut refused = None;
    loop {
        tokio::select! {
            Ok(()) = shutdown.changed() => {
                let order = *shutdown.borrow_and_update();
                stop.send_modify(|current| *current = stricter(*current, order));
            }
            ended = slots.join_next() => match ended {
                None => break,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(slot::Refused(why)))) => {
                    stop.send_replace(Some(Instant::now()));
                    refused = Some(why);
                }
                Some(Err(problem)) => tracing::error!(error = %problem, "a slot failed"),
            },
        }
    }
    match refused {
        Some(why) => Err(AgentError::Unauthorized(why)),
        None => Ok(()),
    }
}

fn stricter(old: Option<Instant>, new: Option<Instant>) -> Option<Instant> {
    match (old, new) {
        (Some(old), Some(new)) => Some(old.min(new)),
        (old, new) => new.or(old),
    }
}
