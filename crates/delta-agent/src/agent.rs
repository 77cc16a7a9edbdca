//! The agent as a whole: its settings, its slots, and how it is shut down.
//!
//! Work comes over the link and each piece gets a slot; slots share folders and know nothing of
//! each other. What an earlier agent on the same state folder left running is taken over before a
//! word is said to the server (A63). The agent ends when it is told to, or when the server refuses
//! its credential; an unreachable server is only waited for. Dropped midway, it leaves its jobs to
//! the next one: that is a handover.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delta_shim::container::{Runtime, attempt_label, clear_others};
use delta_shim::evidence::free_bytes;
use delta_shim::order::Abandoned;
use delta_shim::program::ShimProgram;
use delta_shim::sandbox::{Confinement, Sandbox, namespaces};
use delta_trace::Tracer;
use delta_wire::ErrorCode;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::attempt::spec::Kinds;
use crate::attempt::{self, Adopted, StateFolder};
use crate::checkout::{CheckoutSettings, Repositories};
use crate::connection::{
    self, Address, Assigned, Connection, ConnectionSettings, IdentityFile, Machine, Process, Sought,
};
use crate::container::{ContainerSettings, Here};
use crate::functions::{Functions, RunnerSettings, Surroundings};
use crate::http::ServerHttp;
use crate::job_io::{Origin, test_results};
use crate::lease::handover::HandoverNote;
use crate::lease::{self, LeaseEnd};
use crate::log::progress::Observer;
use crate::private_folder::FolderError;
use crate::tls::TlsFiles;
use crate::token_source::TokenSource;
use crate::work::BaseEnvironment;
use crate::workspace::{Source, WorkFolder, WorkspaceError};

/// The server an agent works for, and as whom.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    pub address: Address,
    /// Absent where a certificate says who this is.
    pub token: Option<TokenSource>,
    pub tls: TlsFiles,
}

/// How an agent works.
#[derive(Debug, Clone)]
pub struct AgentSettings {
    /// For people; the server gives it an id.
    pub name: String,
    /// Jobs at a time, one lease each.
    pub slots: u32,
    /// What it is or has beside what it detects; what was not granted is left out.
    pub labels: Vec<String>,
    /// Zones it is in, of those that were granted; all of them when none is named.
    pub zones: Vec<String>,
    /// Programs that are asked for their version at the start.
    pub programs: Sought,
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
    /// How the run's repository comes into an empty one.
    pub checkout: CheckoutSettings,
    pub base_environment: BaseEnvironment,
    /// Bytes of log kept per lease.
    pub log_quota: u64,
    /// Work is turned away while the disk of the work folder has less than this many bytes free.
    pub min_free: u64,
    /// What jobs with an image get.
    pub containers: ContainerSettings,
    /// Between TERM and KILL, when the agent itself ends a job.
    pub stop_grace: Duration,
    /// Between TERM and KILL for what a finished job left running.
    pub leftover_grace: Duration,
    /// How long a server that is there may take no result of a test once the work is over.
    pub results_patience: Duration,
    /// Runner pools: with them it calls functions.
    pub runners: Option<RunnerSettings>,
    /// Whether it takes steps and tests beside them (A46).
    pub mixed: bool,
    /// Where spans go.
    pub tracer: Tracer,
}

/// What a server takes of a log beyond its quota: marks of ours, after the end of the job's bytes.
const ROOM_FOR_MARKS: u64 = 1024 * 1024;

/// The most that a log may have: servers take 256 MiB, our marks included.
pub const MAX_LOG_QUOTA: u64 = 256 * 1024 * 1024 - ROOM_FOR_MARKS;

impl AgentSettings {
    /// Settings for most machines: one slot, empty workspaces, a clean environment.
    pub fn recommended(name: String, work_folder: PathBuf) -> AgentSettings {
        AgentSettings {
            name,
            slots: 1,
            labels: Vec::new(),
            zones: Vec::new(),
            programs: Sought::Everything,
            state_folder: work_folder.join("state"),
            work_folder,
            shim: ShimProgram::this(),
            abandoned: Abandoned::GoesOn,
            sandbox: Sandbox::Host,
            once: false,
            source: Source::Empty,
            checkout: CheckoutSettings::recommended(),
            base_environment: BaseEnvironment::Clean { pass: Vec::new() },
            // A chatty build prints a few megabytes; a gigabyte is a loop that went wrong.
            log_quota: MAX_LOG_QUOTA,
            // Room for the log and the record of a job that does nothing.
            min_free: 64 * 1024 * 1024,
            containers: ContainerSettings::default(),
            stop_grace: Duration::from_secs(10),
            leftover_grace: Duration::from_secs(2),
            results_patience: test_results::PATIENCE,
            runners: None,
            mixed: false,
            tracer: Tracer::off(),
        }
    }
}

/// Why an agent ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the server refuses this agent: {0}")]
    Unauthorized(String),
    /// For good, whatever credential it shows: it is known by what is in this file.
    #[error("the server refuses this agent: {why}")]
    Revoked { why: String, identity: PathBuf },
    #[error("there is no folder to work in")]
    WorkFolder(#[from] WorkspaceError),
    #[error("there is no folder to remember in")]
    StateFolder(#[from] FolderError),
}

/// How long past the grace a revoked agent waits until its work is gone: with the grace it is less
/// than the minute within which a revocation ends everything.
const END_OF_REVOKED_WORK: Duration = Duration::from_secs(20);

/// Who the agent is to the server, in its state folder.
const IDENTITY_FILE: &str = "agent.json";

/// When to end. Empty while the agent works; then the moment at which running jobs are stopped.
/// No new job is taken from the first order on, and a later order may only be stricter.
pub type Shutdown = watch::Receiver<Option<Instant>>;

/// What every slot has in hand.
#[derive(Clone)]
pub(crate) struct SlotContext {
    pub link: Connection,
    pub courier: ServerHttp,
    pub settings: Arc<AgentSettings>,
    pub work_folder: Arc<WorkFolder>,
    pub state: Arc<StateFolder>,
    pub repositories: Arc<Repositories>,
    pub observer: Arc<dyn Observer>,
    /// What makes containers here.
    pub containers: Arc<Here>,
    /// What no job may read: the state folder, and the files that say who the agent is.
    pub secrets: Arc<[PathBuf]>,
    /// What the protocol calls this one execution.
    pub execution: String,
    /// Counted from 1.
    pub slot: u32,
    /// The strict sandbox, whatever the settings say.
    pub untrusted: bool,
    /// Where its source is.
    pub origin: Origin,
    /// Where functions are called.
    pub functions: Option<Arc<Functions>>,
}

impl SlotContext {
    /// Bytes that a log may have: what the settings say, and what the server takes, our marks
    /// included.
    pub fn log_quota(&self) -> u64 {
        let taken = self.link.max_log_bytes();
        let taken = taken.map_or(u64::MAX, |most| most.saturating_sub(ROOM_FOR_MARKS));
        self.settings.log_quota.min(taken)
    }

    pub fn kinds(&self) -> Kinds {
        Kinds {
            functions: self.functions.is_some(),
            steps: self.functions.is_none() || self.settings.mixed,
        }
    }
}

/// Lets nobody of the same user look into this process or attach to it: it holds credentials and
/// lease tokens, and its jobs may be that user. It leaves no core file either.
pub fn keep_private() {
    if let Err(problem) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(error = %problem, "jobs of this user can look into the agent");
    }
}

/// Works until `shutdown` says otherwise.
pub async fn run(
    server: ServerSettings,
    settings: AgentSettings,
    observer: Arc<dyn Observer>,
    shutdown: Shutdown,
) -> Result<(), AgentError> {
    let work_folder = Arc::new(WorkFolder::open(&settings.work_folder)?);
    let state = Arc::new(StateFolder::open(&settings.state_folder)?);
    let inherited = take_over(&state, &work_folder).await;
    let (link, assigned) = Connection::new(settings.slots);
    let stop = CancellationToken::new();
    let secrets = secrets(&server, &state);
    warn_of_readable(&secrets);
    let process = Process::new(IdentityFile::open(state.path().join(IDENTITY_FILE)));
    let courier = ServerHttp::new(&server, process.clone());
    namespaces::find_out(&settings.shim);
    let enforced = what_is_enforced(&settings, &state, &work_folder, &secrets);
    let (machine, containers) = look_around(&settings).await;
    let _clearing = clear_containers(containers.runtime(), &state, &inherited);
    let functions = start_runners(&settings, &secrets);
    let found = (machine, Arc::clone(&containers));
    let line = link_settings(server, &settings, process, enforced, found);
    let mut agent = Agent {
        context: SlotContext {
            link: link.clone(),
            courier,
            settings: Arc::new(settings),
            work_folder,
            repositories: Repositories::of_state(state.path()),
            state,
            observer,
            containers,
            secrets,
            execution: String::new(),
            slot: 0,
            untrusted: false,
            origin: Origin::default(),
            functions: functions.clone(),
        },
        sessions: JoinSet::new(),
        taken: BTreeSet::new(),
        // One order for all slots.
        stop: watch::Sender::new(*shutdown.borrow()),
    };
    for (note, adopted) in inherited {
        agent.resume(note, adopted);
    }
    let _health = functions.clone().map(|functions| {
        AbortOnDropHandle::new(tokio::spawn(tell_health(functions, link.clone())))
    });
    let line = tokio::spawn(connection::run(link, line, stop.clone()));
    let ended = agent
        .work(assigned, AbortOnDropHandle::new(line), shutdown)
        .await;
    stop.cancel();
    if let Some(functions) = functions {
        functions.shut_down().await;
    }
    ended
}

fn start_runners(settings: &AgentSettings, secrets: &[PathBuf]) -> Option<Arc<Functions>> {
    let around = Surroundings {
        program: settings.shim.program.clone(),
        base_environment: settings.base_environment.clone(),
        sandbox: settings.sandbox,
        secrets: secrets.to_vec(),
        work_folder: settings.work_folder.clone(),
    };
    let runners = settings.runners.clone()?;
    Some(Arc::new(Functions::start(runners, &around)))
}

/// Between two looks at how the runners are: soon enough for whoever watches.
const HEALTH_EVERY: Duration = Duration::from_secs(1);

/// Tells the server how the runner pools are, whenever that has changed.
async fn tell_health(functions: Arc<Functions>, link: Connection) {
    let mut ticks = tokio::time::interval(HEALTH_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let health = functions.health();
        link.tell_runners(health.iter().map(|pool| pool.said()).collect());
    }
}

/// What this machine is and has, and what makes containers on it.
async fn look_around(settings: &AgentSettings) -> (Machine, Arc<Here>) {
    let with_runners = |machine: Machine| match &settings.runners {
        Some(runners) => machine.with_runners(runners, settings.slots, settings.mixed),
        None => machine,
    };
    if settings.programs == Sought::Nothing {
        let machine = Machine::hardware(&settings.work_folder);
        return (with_runners(machine), Arc::new(Here::unknown(None)));
    }
    let containers = Here::unknown(Some(settings.containers.clone()));
    let machine = Machine::with_programs(&settings.work_folder, &settings.programs);
    let (machine, ()) = tokio::join!(machine, containers.look(Duration::MAX));
    (with_runners(machine), Arc::new(containers))
}

fn link_settings(
    server: ServerSettings,
    settings: &AgentSettings,
    process: Process,
    enforced: Vec<String>,
    (machine, containers): (Machine, Arc<Here>),
) -> ConnectionSettings {
    ConnectionSettings {
        address: server.address,
        token: server.token,
        tls: server.tls,
        process,
        name: settings.name.clone(),
        machine,
        containers,
        labels: settings.labels.clone(),
        zones: settings.zones.clone(),
        enforced,
    }
}

/// The state folder, and the files that say who this agent is.
fn secrets(server: &ServerSettings, state: &StateFolder) -> Arc<[PathBuf]> {
    let token = match &server.token {
        Some(TokenSource::File(path)) => Some(path),
        _ => None,
    };
    let key = server.tls.client.as_ref().map(|client| &client.key);
    let files = token.into_iter().chain(key);
    // A file that is not there now is read anew later, or never.
    let files = files.filter_map(|path| path.canonicalize().ok());
    std::iter::once(state.path().to_owned())
        .chain(files)
        .collect()
}

/// Whoever reads a credential is this agent for the server.
fn warn_of_readable(secrets: &[PathBuf]) {
    for path in secrets.iter().filter(|path| is_readable_by_all(path)) {
        let path = path.display();
        tracing::warn!("everybody on this machine can read {path}; type: chmod 600 {path}");
    }
}

fn is_readable_by_all(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    const BY_ALL: u32 = 0o004;
    let found = std::fs::metadata(path);
    found.is_ok_and(|it| it.is_file() && it.permissions().mode() & BY_ALL != 0)
}

/// What this machine makes of the sandbox, for trusted runs and for those that are not.
fn what_is_enforced(
    settings: &AgentSettings,
    state: &StateFolder,
    work: &WorkFolder,
    secrets: &[PathBuf],
) -> Vec<String> {
    let of = |sandbox| {
        let confinement = Confinement::of_slot(sandbox, state.path(), work.path(), 1);
        let hidden = confinement.to_hide(secrets, work.path());
        (
            confinement,
            confinement.enforced(&hidden, &state.lock_file()),
        )
    };
    let (confinement, mut enforced) = of(settings.sandbox);
    tracing::info!(enforced = enforced.join(" "), "jobs are confined");
    let root = rustix::process::geteuid().is_root();
    if settings.sandbox == Sandbox::Strict && root && confinement.user.is_none() {
        let work = work.path().display();
        tracing::warn!(%work, "jobs get no user of their own: others cannot reach the work folder");
    }
    if settings.sandbox != Sandbox::Strict {
        let untrusted = of(Sandbox::Strict).1;
        enforced.extend(untrusted.iter().map(|word| format!("untrusted:{word}")));
    }
    enforced
}

/// An agent at work.
struct Agent {
    context: SlotContext,
    sessions: JoinSet<(u32, LeaseEnd)>,
    /// Slots with something in them.
    taken: BTreeSet<u32>,
    stop: watch::Sender<Option<Instant>>,
}

impl Agent {
    async fn work(
        mut self,
        mut assigned: mpsc::Receiver<Assigned>,
        mut line: AbortOnDropHandle<Result<(), connection::AgentRefused>>,
        mut shutdown: Shutdown,
    ) -> Result<(), AgentError> {
        let once = self.context.settings.once;
        let mut had_one = !self.taken.is_empty();
        loop {
            let ending = self.stop.borrow().is_some() || (once && had_one);
            if ending {
                self.context.link.stop_taking();
                if self.sessions.is_empty() {
                    break;
                }
            }
            // A result may be answered before its session has cleared its slot.
            let slot_free = self.taken.len() < self.context.settings.slots as usize;
            tokio::select! {
                Some(work) = assigned.recv(), if ending || slot_free => match self.unfit(ending) {
                    Some(reason) => self.context.link.turn_away(&work, &reason),
                    None => {
                        had_one = true;
                        self.begin(work);
                    }
                },
                Some(ended) = self.sessions.join_next() => match ended {
                    Ok((slot, _)) => drop(self.taken.remove(&slot)),
                    Err(problem) => tracing::error!(error = %problem, "a slot failed"),
                },
                Ok(()) = shutdown.changed() => {
                    let order = *shutdown.borrow_and_update();
                    self.stop.send_modify(|current| *current = stricter(*current, order));
                }
                ended = &mut line => {
                    let error = match ended {
                        Ok(Err(refused)) => self.refused(refused),
                        Ok(Ok(())) => AgentError::Unauthorized("the link ended".to_owned()),
                        Err(problem) => AgentError::Unauthorized(problem.to_string()),
                    };
                    self.leave_work(&error).await;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Nothing can be reported any more. The work of a revoked agent is ended: no agent will ever
    /// report it. Other work goes on until its lease's local end, as after a crash: an agent with a
    /// better credential may yet come.
    async fn leave_work(&mut self, error: &AgentError) {
        if let AgentError::Revoked { .. } = error {
            let now = Instant::now();
            self.stop
                .send_modify(|current| *current = stricter(*current, Some(now)));
            let grace = self.context.settings.stop_grace + END_OF_REVOKED_WORK;
            let ended = async { while self.sessions.join_next().await.is_some() {} };
            if timeout(grace, ended).await.is_err() {
                tracing::error!("work of this revoked agent did not end; its shims will end it");
            }
        }
        self.sessions.shutdown().await;
    }

    fn refused(&self, connection::AgentRefused(why): connection::AgentRefused) -> AgentError {
        if why.starts_with(ErrorCode::AgentRevoked.as_str()) {
            AgentError::Revoked {
                why,
                identity: self.context.state.path().join(IDENTITY_FILE),
            }
        } else {
            AgentError::Unauthorized(why)
        }
    }

    /// Why work is turned away before it is accepted, in the protocol's words (EP-42).
    fn unfit(&self, ending: bool) -> Option<String> {
        if ending {
            return Some("draining".to_owned());
        }
        let free = free_bytes(self.context.work_folder.path())?;
        let wanted = self.context.settings.min_free;
        (free < wanted).then(|| {
            tracing::warn!(free, "work is turned away: the disk is full");
            let [free, wanted] = [free, wanted].map(|bytes| bytes / (1024 * 1024));
            format!(
                "resource_exhausted: its disk is full, {free} MiB are free and {wanted} are wanted"
            )
        })
    }

    fn begin(&mut self, work: Assigned) {
        let slot = (1..).find(|slot| !self.taken.contains(slot)).unwrap_or(1);
        let context = Arc::new(SlotContext {
            execution: work.execution,
            slot,
            untrusted: work.untrusted,
            origin: work.origin,
            ..self.context.clone()
        });
        self.taken.insert(slot);
        let shutdown = self.stop.subscribe();
        self.sessions.spawn(async move {
            let end = lease::hold(context, work.granted, work.job_name, shutdown).await;
            (slot, end)
        });
    }

    /// Goes on with what an earlier agent began.
    fn resume(&mut self, note: HandoverNote, adopted: Adopted) {
        // Its processes run in this slot; a former agent may have had more of them.
        let slot = note.slot;
        let context = Arc::new(SlotContext {
            execution: note.execution.clone(),
            slot,
            untrusted: note.untrusted,
            ..self.context.clone()
        });
        self.taken.insert(slot);
        let shutdown = self.stop.subscribe();
        // Before the link says its first word.
        let session = lease::resume(context, note, adopted, shutdown);
        self.sessions.spawn(async move { (slot, session.await) });
    }
}

/// Removes, beside everything else, the containers that a former agent's lost shims left. Attempts
/// of this agent have labels of their own and are not looked at.
fn clear_containers(
    runtime: Option<Arc<Runtime>>,
    state: &StateFolder,
    inherited: &[(HandoverNote, Adopted)],
) -> Option<AbortOnDropHandle<()>> {
    let runtime = runtime?;
    // Without one there was never a container.
    let owner = state.known_owner()?;
    let label = |number: u64| attempt_label(&owner, &number.to_string());
    let going_on: Vec<String> = inherited.iter().map(|(_, it)| label(it.number)).collect();
    let clearing = async move { clear_others(&runtime, &owner, &going_on).await };
    Some(AbortOnDropHandle::new(tokio::spawn(clearing)))
}

/// Finds what an earlier agent left running, and clears away the rest.
async fn take_over(
    state: &StateFolder,
    work_folder: &Arc<WorkFolder>,
) -> Vec<(HandoverNote, Adopted)> {
    let mut inherited = Vec::new();
    let mut numbers = Vec::new();
    for adopted in attempt::adopt_all(state).await {
        match HandoverNote::from_bytes(&adopted.note) {
            Some(note) => {
                numbers.push(adopted.number);
                inherited.push((note, adopted));
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
        // What is still there has a number that no other attempt may have.
        Ok(highest) => state.skip_to(highest),
        Err(problem) => tracing::error!(error = %problem, "the work folder was not cleared"),
    }
    inherited
}

fn stricter(old: Option<Instant>, new: Option<Instant>) -> Option<Instant> {
    match (old, new) {
        (Some(old), Some(new)) => Some(old.min(new)),
        (old, new) => new.or(old),
    }
}
