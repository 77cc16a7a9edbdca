//! The agent as a whole: its settings, its slots, and how it is shut down.
//!
//! Slots share a client and their folders and know nothing of each other. What an earlier agent on
//! the same state folder left running is taken over before any work is asked for. The agent ends
//! when it is told to, or when the server refuses its credential; an unreachable server is only
//! waited for. Dropped midway, it leaves its jobs to the next one: that is a handover.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::attempt::{self, Abandoned, Adopted, ShimProgram, StateError, StateFolder};
use crate::client::Client;
use crate::executor::BaseEnvironment;
use crate::note::Note;
use crate::progress::Observer;
use crate::shim::{Confinement, Sandbox};
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
    /// Where it remembers its attempts, out of every job's reach.
    pub state_folder: PathBuf,
    /// How the process that watches over an attempt is started.
    pub shim: ShimProgram,
    /// What becomes of running jobs when this process is gone.
    pub abandoned: Abandoned,
    pub sandbox: Sandbox,
    /// One job, then the end.
    pub once: bool,
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
            state_folder: work_folder.join("state"),
            work_folder,
            shim: ShimProgram::this(),
            abandoned: Abandoned::GoesOn,
            sandbox: Sandbox::Host,
            once: false,
            source: Source::Empty,
            base_environment: BaseEnvironment::Clean { pass: Vec::new() },
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
    #[error("there is no folder to remember in")]
    StateFolder(#[from] StateError),
}

/// When to end. Empty while the agent works; then the moment at which running jobs are stopped.
/// No new job is taken from the first order on, and a later order may only be stricter.
pub type Shutdown = watch::Receiver<Option<Instant>>;

/// What every slot has in hand.
#[derive(Clone)]
pub(crate) struct SlotContext {
    pub client: Client,
    pub settings: AgentSettings,
    pub work_folder: Arc<WorkFolder>,
    pub state: Arc<StateFolder>,
    pub observer: Arc<dyn Observer>,
    pub runner_id: String,
    /// Counted from 1.
    pub slot: u32,
}

/// Works until `shutdown` says otherwise.
pub async fn run(
    client: Client,
    settings: AgentSettings,
    observer: Arc<dyn Observer>,
    shutdown: Shutdown,
) -> Result<(), AgentError> {
    let work_folder = Arc::new(WorkFolder::open(&settings.work_folder)?);
    let state = Arc::new(StateFolder::open(&settings.state_folder)?);
    say_what_is_enforced(&settings, &state, &work_folder);
    let mut inherited = take_over(&state, &work_folder).await?;
    // One order for all slots: the caller's, or our own when the server refuses one of them.
    let (stop, stopped) = watch::channel(*shutdown.borrow());
    let mut slots = JoinSet::new();
    // A former agent may have had more slots: those only finish what they have.
    let last = inherited.keys().next_back().copied().unwrap_or(0);
    for slot in 1..=settings.slots.max(last) {
        let context = SlotContext {
            client: client.clone(),
            runner_id: format!("{}/{slot}", settings.name),
            settings: settings.clone(),
            work_folder: Arc::clone(&work_folder),
            state: Arc::clone(&state),
            observer: Arc::clone(&observer),
            slot,
        };
        let own = inherited.remove(&slot).unwrap_or_default();
        slots.spawn(occupy(Arc::new(context), own, stopped.clone()));
    }
    drop(stopped);
    supervise(slots, stop, shutdown).await
}

/// Whoever asked for a sandbox is told what this machine makes of it.
fn say_what_is_enforced(settings: &AgentSettings, state: &StateFolder, work: &WorkFolder) {
    let confinement = Confinement::of_slot(settings.sandbox, state.path(), work.path(), 1);
    let enforced = confinement.enforced().join(" ");
    tracing::info!(enforced, "jobs are confined");
    let root = rustix::process::geteuid().is_root();
    if settings.sandbox == Sandbox::Strict && root && confinement.user.is_none() {
        let work = work.path().display();
        tracing::warn!(%work, "jobs get no user of their own: others cannot reach the work folder");
    }
}

/// One slot: first what it inherited, then what it is given.
async fn occupy(
    context: Arc<SlotContext>,
    inherited: Vec<(Note, Adopted)>,
    shutdown: Shutdown,
) -> Result<(), slot::Refused> {
    let had_one = slot::resume(&context, inherited, &shutdown).await?;
    let retired = context.slot > context.settings.slots;
    if retired || (context.settings.once && had_one) {
        return Ok(());
    }
    slot::work(context, shutdown).await
}

/// Finds what an earlier agent left running, by slot, and clears away the rest.
async fn take_over(
    state: &StateFolder,
    work_folder: &Arc<WorkFolder>,
) -> Result<BTreeMap<u32, Vec<(Note, Adopted)>>, AgentError> {
    let mut inherited: BTreeMap<u32, Vec<(Note, Adopted)>> = BTreeMap::new();
    let mut numbers = Vec::new();
    for adopted in attempt::adopt_all(state).await {
        match Note::from_bytes(&adopted.note) {
            Some(note) => {
                numbers.push(adopted.number);
                inherited
                    .entry(note.slot.max(1))
                    .or_default()
                    .push((note, adopted));
            }
            // What still runs ends by itself at its lease's local end.
            None => {
                tracing::warn!(number = adopted.number, "a note that cannot be read");
                adopted.forget_if_over(state);
            }
        }
    }
    let work_folder = Arc::clone(work_folder);
    let cleared = tokio::task::spawn_blocking(move || work_folder.keep_only(&numbers)).await;
    match cleared {
        Ok(cleared) => cleared?,
        Err(problem) => tracing::error!(error = %problem, "the work folder was not cleared"),
    }
    Ok(inherited)
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
