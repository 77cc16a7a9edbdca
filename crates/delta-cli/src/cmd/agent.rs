//! `delta-ci agent`: takes jobs from a server over the Execution Protocol and executes them here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use delta_agent::Sought;
use delta_agent::checkout::CheckoutSettings;
use delta_agent::container::ContainerSettings;
use delta_agent::tls::{ClientFiles, TlsFiles};
use delta_agent::work::BaseEnvironment;
use delta_agent::workspace::Source;
use delta_core::Span;
use delta_shim::container::{Network, Pull};
use delta_shim::order::Abandoned;
use delta_shim::sandbox::Sandbox;
use delta_trace::Tracer;

use crate::enrolment::{self, Given, Place};
use crate::exit::Exit;
use crate::failure::Done;
use crate::live::screen::Brief;
use crate::signals::{HandOver, Stop};
use crate::terminal::Terminal;
use crate::traces::Traces;
use crate::worker::{self, Runners, Wanted, Worker};
use crate::{gitignored_folders, sizes, state_words, timings};

const EXAMPLES: &str = "\
Examples:
  delta-ci agent --server http://127.0.0.1:7878 --token-file runner.token
  delta-ci agent --server https://ci.example --token-file runner.token --slots 4 --label gpu
  delta-ci agent --server URL --token-file F --sandbox strict --pass-env HTTPS_PROXY
  delta-ci agent --server URL --token-file F --container-runtime podman --container-network none
  delta-ci agent --server URL --token-file F --handover   an upgrade does not disturb jobs
  delta-ci agent --server https://ci.example --enroll-token-file once.token --state-dir ./state
  delta-ci agent --server URL --token-file F --runners runners.yaml   functions, and nothing else

It dials out and is never dialled. SIGTERM or Ctrl-C: no new job, running ones may finish within
--shutdown-grace, then they are ended; a second one ends them at once. SIGUSR2, or SIGTERM with
--handover: it goes at once, jobs run on, and the next agent on the same state folder takes them
over. So does one that comes after a crash, as long as their leases live.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The server's address
    #[arg(long, value_name = "URL", env = "DELTA_SERVER")]
    server: String,
    /// A file with a token of the role `runner`, or of an OIDC issuer; read again before it is used
    #[arg(long, value_name = "FILE", env = "DELTA_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// A file with a one-time enrolment token: exchanged at the first start for a credential of
    /// this agent's own, kept in the state folder, and not looked at again
    #[arg(long, value_name = "FILE", conflicts_with = "token_file")]
    enroll_token_file: Option<PathBuf>,
    /// The agent's certificate, in PEM, where the server knows it by that; read at each connect
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// The certificate authority of the server, in PEM, where the system does not know it
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// Jobs at a time [default: 1; with --runners, as many calls as its pools have room for]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    slots: Option<u32>,
    /// Something this agent is or has, beside what it detects; repeatable
    #[arg(long, value_name = "LABEL", value_parser = worker::label)]
    label: Vec<String>,
    /// A network zone it is in, of those granted to its credential [default: all of them]
    #[arg(long, value_name = "ZONE")]
    zone: Vec<String>,
    /// Its name, unique among agents [default: the machine's]
    #[arg(long)]
    name: Option<String>,
    /// The folder it works in, its own alone
    #[arg(long, value_name = "DIR", default_value = ".delta-agent")]
    work_dir: PathBuf,
    /// Where it remembers running jobs, out of their reach [default: state in the work folder]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// What jobs may do: `host`, what this user may, but for reading, tracing or ending the agent's
    /// own; `strict`, read the system and write their own folders; `open`, anything, `sudo` too
    #[arg(long, value_name = "HOW", default_value = "host", value_parser = sandbox)]
    sandbox: Sandbox,
    /// A variable of this agent's environment that jobs see, beside PATH; repeatable
    #[arg(long, value_name = "NAME")]
    pass_env: Vec<String>,
    /// Take no job while the disk of the work folder has less than this many MiB free
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    min_free_mb: u64,
    /// Bytes kept of what a job prints, such as 10MiB: its beginning and end [default: 255MiB]
    #[arg(long, value_name = "SIZE", value_parser = sizes::log_limit)]
    log_limit: Option<u64>,
    /// How long running jobs may go on once it is told to stop
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = timings::span)]
    shutdown_grace: Span,
    /// When told to stop, leave running jobs to the next agent instead of ending them
    #[arg(long)]
    handover: bool,
    /// One job, then the end
    #[arg(long, conflicts_with = "slots")]
    once: bool,
    // Last, with headings of their own.
    #[command(flatten)]
    checkout: Checkout,
    #[command(flatten)]
    containers: Containers,
    #[command(flatten)]
    runners: Runners,
    #[command(flatten)]
    traces: Traces,
}

/// How repositories come into workspaces.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Checkout")]
struct Checkout {
    /// Clone over this, too, beside https and ssh: `http` (in clear, from anywhere; from this
    /// machine it always may) or `file` (a path of this machine); repeatable
    #[arg(long, value_name = "PROTOCOL", value_parser = ["http", "file"])]
    git_allow: Vec<String>,
    /// How long a checkout may take
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = timings::span)]
    checkout_timeout: Span,
    /// Megabytes of repositories kept for the next checkout; 0 keeps none
    #[arg(long, value_name = "MB", default_value_t = 10_240)]
    checkout_cache_mb: u32,
}

impl Checkout {
    fn settings(&self) -> CheckoutSettings {
        let mut settings = CheckoutSettings::recommended();
        let allowed = |name: &str| self.git_allow.iter().any(|it| it == name);
        settings.protocols.http = allowed("http");
        settings.protocols.file = allowed("file");
        settings.time_limit = duration(self.checkout_timeout);
        settings.cache.max_bytes = u64::from(self.checkout_cache_mb) << 20;
        settings
    }
}

fn duration(span: Span) -> Duration {
    Duration::from_millis(u64::try_from(span.0).unwrap_or(0))
}

/// Jobs that name an image.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Containers")]
struct Containers {
    /// What makes containers: `docker`, `podman` or a path [default: the first that answers]
    #[arg(long, value_name = "PROGRAM")]
    container_runtime: Option<OsString>,
    /// Where the docker daemon listens [default: as for `docker` itself]
    #[arg(long, value_name = "HOST")]
    docker_host: Option<String>,
    /// The most network a job may ask for: `none`, `bridge`, `host` (never for untrusted runs)
    #[arg(long, value_name = "HOW", default_value = "bridge", value_parser = network)]
    container_network: Network,
    /// When an image is fetched: `if-missing` or `always`
    #[arg(long, value_name = "WHEN", default_value = "if-missing", value_parser = pull)]
    container_pull: Pull,
}

impl From<Containers> for ContainerSettings {
    fn from(asked: Containers) -> ContainerSettings {
        ContainerSettings {
            // A bare name is looked for in PATH: it is no path of this folder.
            program: asked.container_runtime.map(PathBuf::from),
            host: asked.docker_host,
            network: asked.container_network,
            pull: asked.container_pull,
        }
    }
}

fn network(text: &str) -> Result<Network, &'static str> {
    Network::from_text(text).ok_or("it is `none`, `bridge` or `host`")
}

fn pull(text: &str) -> Result<Pull, &'static str> {
    match text {
        "if-missing" => Ok(Pull::IfMissing),
        "always" => Ok(Pull::Always),
        _ => Err("it is `if-missing` or `always`"),
    }
}

fn sandbox(text: &str) -> Result<Sandbox, &'static str> {
    match text {
        "strict" => Ok(Sandbox::Strict),
        "host" => Ok(Sandbox::Host),
        "open" => Ok(Sandbox::Open),
        _ => Err("it is `strict`, `host` or `open`"),
    }
}

/// Between TERM and KILL of a job.
const STOP_GRACE: Duration = Duration::from_secs(10);

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    let tracer = args.traces.start("delta-ci-agent")?;
    let done = work(args, tracer.clone(), terminal).await;
    tracer.close().await;
    done
}

async fn work(args: Args, tracer: Tracer, terminal: &Terminal) -> Done {
    let mut stop = Stop::listen()?;
    let mut hand_over = HandOver::listen()?;
    let pools = args.runners.read(args.slots, 1)?;
    let slots = state_words::count(pools.slots, "slot");
    let name = args.name.unwrap_or_else(worker::machine_name);
    let state = args.state_dir.unwrap_or(args.work_dir.join("state"));
    gitignored_folders::whole(&[&args.work_dir, &state]);
    let client = args.cert.zip(args.key);
    let client = client.map(|(cert, key)| ClientFiles { cert, key });
    let given = Given {
        token_file: args.token_file,
        enroll_token_file: args.enroll_token_file,
        certificate: client.is_some(),
    };
    let place = Place {
        server: &args.server,
        ca_file: args.ca_cert.as_deref(),
        name: &name,
        state: &state,
    };
    let token = enrolment::token(given, place, terminal).await?;
    let wanted = Wanted {
        server: args.server.clone(),
        token,
        tls: TlsFiles {
            ca: args.ca_cert,
            client,
        },
        name: name.clone(),
        slots: pools.slots,
        labels: args.label,
        zones: args.zone,
        programs: Sought::Everything,
        work_folder: args.work_dir,
        state_folder: Some(state),
        sandbox: args.sandbox,
        abandoned: Abandoned::GoesOn,
        once: args.once,
        source: Source::Empty,
        checkout: args.checkout.settings(),
        base_environment: BaseEnvironment::Clean {
            pass: args.pass_env,
        },
        min_free: Some(args.min_free_mb.saturating_mul(1024 * 1024)),
        log_limit: args.log_limit,
        containers: args.containers.into(),
        stop_grace: STOP_GRACE,
        runners: pools.settings,
        mixed: pools.mixed,
        tracer,
    };
    let mut worker = Worker::start(wanted, Arc::new(Brief::new(terminal)))?;
    terminal.say(&format!("{name} dials {} for {slots}", args.server));
    tokio::select! {
        ended = worker.ended() => return ended.map(|()| Exit::Ok),
        () = stop.asked() => if args.handover {
            return leave(worker, terminal).await;
        },
        () = hand_over.asked() => return leave(worker, terminal).await,
    }
    worker.stop(duration(args.shutdown_grace));
    terminal.say("no new jobs; running ones may finish; once more to cancel them");
    tokio::select! {
        ended = worker.ended() => return ended.map(|()| Exit::Ok),
        () = stop.asked() => worker.stop(Duration::ZERO),
        () = hand_over.asked() => return leave(worker, terminal).await,
    }
    worker.ended().await.map(|()| Exit::Ok)
}

async fn leave(mut worker: Worker, terminal: &Terminal) -> Done {
    worker.hand_over().await;
    terminal.say("running jobs are left to the next agent");
    Ok(Exit::Ok)
}
