//! An agent inside this process: what `run`, `up` and `agent` share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delta_agent::checkout::CheckoutSettings;
use delta_agent::container::ContainerSettings;
use delta_agent::functions::RunnerSettings;
use delta_agent::log::progress::Observer;
use delta_agent::tls::TlsFiles;
use delta_agent::work::BaseEnvironment;
use delta_agent::workspace::Source;
use delta_agent::{Address, AgentError, AgentSettings, ServerSettings, Sought, TokenSource};
use delta_core::requirement::{NEVER_LABELS, Requirement};
use delta_shim::order::Abandoned;
use delta_shim::sandbox::Sandbox;
use delta_trace::Tracer;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::secret_input;

/// How the agent is to work.
pub struct Wanted {
    pub server: String,
    /// Absent where a certificate says who this is.
    pub token: Option<TokenSource>,
    pub tls: TlsFiles,
    pub name: String,
    pub slots: u32,
    pub labels: Vec<String>,
    pub zones: Vec<String>,
    /// Whether programs are asked for their version at the start.
    pub programs: Sought,
    pub work_folder: PathBuf,
    /// Inside the work folder unless it is named.
    pub state_folder: Option<PathBuf>,
    pub sandbox: Sandbox,
    pub abandoned: Abandoned,
    /// One job, then the end.
    pub once: bool,
    pub source: Source,
    pub checkout: CheckoutSettings,
    pub base_environment: BaseEnvironment,
    /// Bytes of the disk below which work is turned away.
    pub min_free: Option<u64>,
    /// Bytes that a log may have.
    pub log_limit: Option<u64>,
    pub containers: ContainerSettings,
    /// Between TERM and KILL of a job that the agent itself must end.
    pub stop_grace: Duration,
    /// Runner pools, and whether there is other work beside them.
    pub runners: Option<RunnerSettings>,
    pub mixed: bool,
    pub tracer: Tracer,
}

/// An agent at work.
pub struct Worker {
    stop: watch::Sender<Option<Instant>>,
    /// Nothing once its end has been seen.
    task: Option<JoinHandle<Result<(), AgentError>>>,
}

impl Worker {
    pub fn start(wanted: Wanted, observer: Arc<dyn Observer>) -> Result<Worker, Failure> {
        let address = Address::parse(&wanted.server).and_then(Address::checked);
        let address = address.map_err(|error| {
            Failure::new(Exit::Usage, "the agent has no server")
                .caused_by(&error)
                .next("--server https://HOST[:PORT], as delta-ci server says when it starts")
        })?;
        let server = ServerSettings {
            address,
            token: wanted.token,
            tls: wanted.tls,
        };
        let mut settings = AgentSettings::recommended(wanted.name, wanted.work_folder);
        if let Some(folder) = wanted.state_folder {
            settings.state_folder = folder;
        }
        settings.sandbox = wanted.sandbox;
        settings.abandoned = wanted.abandoned;
        settings.once = wanted.once;
        settings.slots = wanted.slots;
        settings.labels = wanted.labels;
        settings.zones = wanted.zones;
        settings.programs = wanted.programs;
        settings.source = wanted.source;
        settings.checkout = wanted.checkout;
        settings.base_environment = wanted.base_environment;
        settings.containers = wanted.containers;
        settings.stop_grace = wanted.stop_grace;
        settings.runners = wanted.runners;
        settings.mixed = wanted.mixed;
        settings.tracer = wanted.tracer;
        settings.min_free = wanted.min_free.unwrap_or(settings.min_free);
        settings.log_quota = wanted.log_limit.unwrap_or(settings.log_quota);
        delta_agent::keep_private();
        let (stop, stopped) = watch::channel(None);
        let task = tokio::spawn(delta_agent::run(server, settings, observer, stopped));
        Ok(Worker {
            stop,
            task: Some(task),
        })
    }

    /// Takes no new job from now on; running ones are stopped after `grace`.
    pub fn stop(&self, grace: Duration) {
        self.stop.send_replace(Some(Instant::now() + grace));
    }

    /// Ends at once and leaves running jobs to the next agent on the same state folder.
    pub async fn hand_over(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // Nothing to hear of a task that was told not to finish.
            let _ = task.await;
        }
    }

    /// Returns when the agent has ended. May be dropped midway and asked again.
    pub async fn ended(&mut self) -> Result<(), Failure> {
        let Some(task) = &mut self.task else {
            return Ok(());
        };
        let ended = task.await;
        self.task = None;
        match ended {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error @ AgentError::Unauthorized(_))) => {
                Err(Failure::new(Exit::NotAllowed, "the agent ended")
                    .caused_by(&error)
                    .next(
                        "delta-ci token create --role runner --data DIR, on the server's machine",
                    ))
            }
            Ok(Err(error @ AgentError::Revoked { .. })) => Err(shut_out(&error)),
            Ok(Err(error)) => {
                Err(Failure::new(Exit::Internal, "the agent ended").caused_by(&error))
            }
            Err(error) => Err(Failure::new(Exit::Internal, "the agent ended").caused_by(&error)),
        }
    }
}

/// Another token changes nothing: what was shut out is the agent.
fn shut_out(error: &AgentError) -> Failure {
    let failure = Failure::new(Exit::NotAllowed, "the agent ended").caused_by(error);
    let AgentError::Revoked { identity, .. } = error else {
        return failure;
    };
    let identity = secret_input::shown(identity);
    failure.next(format!(
        "if this machine is to work again, let it come as a new agent: remove {identity}, or name \
         another --state-dir; a credential that is this agent's alone (an enrolment, `token create \
         --agent ID`) is refused with it, so make a new one, too, for another id"
    ))
}

/// Functions in processes that stay.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Functions")]
pub struct Runners {
    /// A YAML file of runner pools: with it the agent calls functions (docs/guide/functions.md)
    #[arg(long, value_name = "FILE")]
    runners: Option<PathBuf>,
    /// Take steps and tests beside functions: whoever writes those can reach the runners' sockets
    #[arg(long, requires = "runners")]
    mixed: bool,
}

impl Runners {
    /// Reads the file, and says how many jobs the agent takes at a time: all that its pools have
    /// room for, and `beside` further ones where there is other work.
    pub fn read(self, slots: Option<u32>, beside: u32) -> Result<Pools, Failure> {
        let Some(path) = self.runners else {
            return Ok(Pools {
                settings: None,
                mixed: false,
                slots: slots.unwrap_or(beside),
            });
        };
        let failed = |why: String| {
            let what = format!(
                "the runner pools of {} cannot be used",
                secret_input::shown(&path)
            );
            Failure::new(Exit::Usage, what)
                .because(why)
                .next("docs/guide/functions.md shows a whole file")
        };
        let text = std::fs::read_to_string(&path).map_err(|error| Failure {
            exit: match error.kind() {
                std::io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::Usage,
            },
            next: Some("name a file that can be read: --runners FILE".to_owned()),
            ..failed(error.to_string())
        })?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let settings = RunnerSettings::parse(&secret_input::shown(&path), &text, folder);
        let settings = settings.map_err(|problem| failed(problem.to_string()))?;
        let room = settings.room() + if self.mixed { beside } else { 0 };
        Ok(Pools {
            slots: slots.unwrap_or(room.min(MAX_SLOTS)),
            settings: Some(settings),
            mixed: self.mixed,
        })
    }
}

/// What an agent calls functions in.
pub struct Pools {
    pub settings: Option<RunnerSettings>,
    pub mixed: bool,
    pub slots: u32,
}

/// A label as it is typed. It says what there is: `go=1.22`, or `gpu`. What asks for something, as
/// `go>=1.12` does, would never be met.
pub fn label(text: &str) -> Result<String, String> {
    match Requirement::parse(text) {
        Ok(Requirement::AtLeast(name, value)) => Err(format!(
            "a label says what is here, such as {name}={value}; `>=` is for what a job requires"
        )),
        Ok(Requirement::Has(name) | Requirement::Is(name, _))
            if NEVER_LABELS.contains(&name.as_str()) =>
        {
            Err(format!(
                "`{name}` is no label: an agent measures it, or its server grants it"
            ))
        }
        Ok(_) => Ok(text.to_owned()),
        Err(bad) => Err(format!("{}; such as gpu, or go=1.22", bad.why)),
    }
}

/// Jobs of one agent at a time: what a server takes.
const MAX_SLOTS: u32 = 1024;

/// As many jobs at a time as this machine has processors.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1))
}

/// The name of this machine, as far as a runner's id can carry it.
pub fn machine_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    let plain: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        .take(60)
        .collect();
    if plain.is_empty() {
        "agent".into()
    } else {
        plain
    }
}
