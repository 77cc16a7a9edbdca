//! `delta-ci up`: a server and an agent on this machine, on loopback, with a token of their own.

use std::fs::DirBuilder;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delta_agent::checkout::CheckoutSettings;
use delta_agent::container::ContainerSettings;
use delta_agent::tls::TlsFiles;
use delta_agent::work::BaseEnvironment;
use delta_agent::workspace::Source;
use delta_agent::{Sought, TokenSource};
use delta_core::{Settings, Span};
use delta_server::{Purpose, Role, Server};
use delta_shim::order::Abandoned;
use delta_shim::sandbox::Sandbox;
use delta_trace::Tracer;
use delta_wire::api::TokenView;

use super::server;
use crate::client::connect;
use crate::embedded_server::{self, Duties};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::live::screen::Brief;
use crate::signals::Stop;
use crate::terminal::{Terminal, Tone};
use crate::timings::Timings;
use crate::traces::Traces;
use crate::worker::{self, Pools, Runners, Worker};
use crate::{secret_input, sizes, state_words};

const EXAMPLES: &str = "\
Examples:
  delta-ci up                          http://127.0.0.1:7878, data in ./.delta-ci
  delta-ci up --data ~/ci --slots 8 --listen 127.0.0.1:0
  delta-ci up --runners runners.yaml   functions in these pools; --mixed for builds, too

In another terminal, in the same folder:
  delta-ci runs
  delta-ci token create --role user --out user.token";

/// The name of the agent's token. There is one per data folder: the agent's id and the leases of
/// its jobs are bound to it, and both must outlive this process.
const TOKEN_NAME: &str = "delta-ci up";

/// Where it is kept, in the agent's private folder.
const TOKEN_FILE: &str = "token";

/// How long running jobs may go on once it is told to stop.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(30);

/// Between TERM and KILL of a job.
const STOP_GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder with everything it keeps; made when it does not exist
    #[arg(long, value_name = "DIR", env = "DELTA_DATA", default_value = connect::DEFAULT_DATA)]
    data: PathBuf,
    /// The folder of logs and artifacts [default: objects in the data folder]
    #[arg(long, value_name = "DIR", env = "DELTA_OBJECTS")]
    objects: Option<PathBuf>,
    /// Where to listen, on loopback; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7878")]
    listen: SocketAddr,
    /// A PostgreSQL database instead of the SQLite file in the data folder
    #[arg(long, value_name = "URL", env = "DELTA_STORE", hide_env_values = true)]
    store: Option<String>,
    /// Jobs at a time [default: as many as there are processors; with --runners, as many calls as
    /// its pools have room for, and with --mixed the sum]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    slots: Option<u32>,
    /// Something the agent is or has, beside what it detects; repeatable
    #[arg(long, value_name = "LABEL", value_parser = worker::label)]
    label: Vec<String>,
    /// Bytes kept of what a job prints, such as 10MiB: its beginning and end [default: 255MiB]
    #[arg(long, value_name = "SIZE", value_parser = sizes::log_limit)]
    log_limit: Option<u64>,
    /// The address people reach it by, for links in the statuses of commits
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// Go on with an empty database where there was another one
    ///
    /// Without it a server that finds its database gone, or another and empty one in its place,
    /// does not start: a copy of it may have to be put back first.
    #[arg(long)]
    accept_empty: bool,
    #[command(flatten)]
    timings: Timings,
    #[command(flatten)]
    runners: Runners,
    #[command(flatten)]
    traces: Traces,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    if !args.listen.ip().is_loopback() {
        let what = format!("`up` listens on loopback only, not on {}", args.listen.ip());
        return Err(Failure::new(Exit::Usage, what)
            .because("its traffic is not encrypted")
            .next("delta-ci server --tls-cert FILE --tls-key FILE, and delta-ci agent"));
    }
    let tracer = args.traces.start("delta-ci")?;
    let done = serve(args, tracer.clone(), terminal).await;
    tracer.close().await;
    done
}

async fn serve(args: Args, tracer: Tracer, terminal: &Terminal) -> Done {
    let pools = args.runners.read(args.slots, worker::cores())?;
    let mut stop = Stop::listen()?;
    let wanted = embedded_server::Wanted {
        data: args.data.clone(),
        objects: args.objects,
        listen: Some(args.listen),
        store: args.store,
        settings: args.timings.over(Settings::recommended())?,
        tls: None,
        oidc: None,
        secret_keys: embedded_server::secret_keys(None)?,
        behind_tls_proxy: false,
        startup_grace: args.timings.startup_grace.unwrap_or(Span::ZERO),
        retention: args.timings.retention,
        caches: args.timings.caches(),
        waiting_requests: None,
        pool_sandboxes: Default::default(),
        tracer: tracer.clone(),
        public_url: args.public_url,
        local_name: delta_server::LOCAL_ADMIN,
        duties: Duties::On,
        purpose: Purpose::Serve,
        accept_empty: args.accept_empty,
    };
    let server = embedded_server::start(wanted)
        .await
        .map_err(|refused| refused.into_failure(&args.data))?;
    let url = server::url(&server, "http")?;
    let slots = pools.slots;
    let agent = OwnAgent {
        pools,
        labels: args.label,
        log_limit: args.log_limit,
        tracer,
    };
    let worker = agent.start(&server, &url, &args.data, terminal).await;
    let done = match worker {
        Ok(mut worker) => {
            announce(&url, &args.data, slots, terminal);
            tokio::select! {
                done = until_told(&mut worker, &mut stop, terminal) => done,
                () = server.broken() => {
                    worker.stop(Duration::ZERO);
                    let _ = tokio::time::timeout(SHUTDOWN_GRACE, worker.ended()).await;
                    Err(server::broken())
                }
            }
        }
        Err(failure) => Err(failure),
    };
    server.shutdown().await;
    done
}

/// The agent beside the server, as far as it is not always the same.
struct OwnAgent {
    pools: Pools,
    labels: Vec<String>,
    log_limit: Option<u64>,
    tracer: Tracer,
}

impl OwnAgent {
    async fn start(
        self,
        server: &Server,
        url: &str,
        data: &Path,
        terminal: &Terminal,
    ) -> Result<Worker, Failure> {
        let work_folder = data.join("agent");
        let state_folder = work_folder.join("state");
        let token = own_token(server, data, &state_folder).await?;
        let wanted = worker::Wanted {
            server: url.to_owned(),
            token: Some(token),
            tls: TlsFiles::default(),
            name: worker::machine_name(),
            slots: self.pools.slots,
            labels: self.labels,
            zones: Vec::new(),
            programs: Sought::Everything,
            work_folder,
            state_folder: Some(state_folder),
            sandbox: Sandbox::Host,
            abandoned: Abandoned::GoesOn,
            once: false,
            source: Source::Empty,
            checkout: CheckoutSettings::recommended(),
            base_environment: BaseEnvironment::Clean { pass: Vec::new() },
            min_free: None,
            log_limit: self.log_limit,
            containers: ContainerSettings::default(),
            stop_grace: STOP_GRACE,
            runners: self.pools.settings,
            mixed: self.pools.mixed,
            tracer: self.tracer,
        };
        Worker::start(wanted, Arc::new(Brief::new(terminal)))
    }
}

/// The credential of every start in this folder; a new one only when it is gone or not taken.
async fn own_token(server: &Server, data: &Path, state: &Path) -> Result<TokenSource, Failure> {
    let source = TokenSource::File(state.join(TOKEN_FILE));
    let no_token = |error: &(dyn std::error::Error + 'static)| {
        Failure::new(Exit::Internal, "no token could be made for the agent").caused_by(error)
    };
    if let Ok(kept) = source.read() {
        let taken = server.takes_token(kept.expose(), Role::Runner).await;
        if taken.map_err(|error| no_token(&error))? {
            return Ok(source);
        }
    }
    // Nobody has those of former starts any more. The agent keeps its id: it has a secret of its
    // own to prove it with.
    revoke_own_tokens(data).await?;
    let token = server.create_token(Role::Runner, TOKEN_NAME).await;
    let token = token.map_err(|error| no_token(&error))?;
    keep_token(state, &token).map_err(|error| no_token(&error))?;
    Ok(source)
}

/// Writes it for its owner alone, whole or not at all.
fn keep_token(state: &Path, token: &str) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state)?;
    let mut file = tempfile::Builder::new().tempfile_in(state)?;
    writeln!(file, "{token}")?;
    file.as_file().sync_all()?;
    file.persist(state.join(TOKEN_FILE))?;
    Ok(())
}

fn announce(url: &str, data: &Path, slots: u32, terminal: &Terminal) {
    if terminal.json {
        return terminal.value_line(&serde_json::json!({
            "listening": url,
            "data": data,
            "slots": slots,
            "pid": std::process::id(),
        }));
    }
    terminal.data(&format!("listening on {url}"));
    let data = if data == secret_input::whole_path(connect::DEFAULT_DATA.into()) {
        String::new()
    } else {
        format!(" --data {}", secret_input::shown(data))
    };
    let slots = state_words::count(slots, "slot");
    terminal.say(&format!(
        "an agent with {slots} waits for jobs. In another terminal:"
    ));
    for (command, what) in [
        ("token create --role user", "a token for programs"),
        ("runs", "what ran lately"),
        ("show latest", "the newest run"),
    ] {
        let command = format!("  delta-ci {command}{data}");
        let what = terminal.paint_err(Tone::Quiet, &format!("  # {what}"));
        terminal.say(&format!("{command}{what}"));
    }
    terminal.say("Ctrl-C stops both.");
}

async fn until_told(worker: &mut Worker, stop: &mut Stop, terminal: &Terminal) -> Done {
    tokio::select! {
        ended = worker.ended() => return ended.map(|()| Exit::Ok),
        () = stop.asked() => worker.stop(SHUTDOWN_GRACE),
    }
    terminal.say("stopping; running jobs may finish; once more to cancel them");
    tokio::select! {
        ended = worker.ended() => return ended.map(|()| Exit::Ok),
        () = stop.asked() => worker.stop(Duration::ZERO),
    }
    worker.ended().await.map(|()| Exit::Ok)
}

async fn revoke_own_tokens(data: &Path) -> Result<(), Failure> {
    let Some(client) = connect::beside(data).await? else {
        return Ok(());
    };
    let tokens: Vec<TokenView> = client.get("/api/v1/tokens").await?;
    let own = |token: &&TokenView| token.name == TOKEN_NAME && token.revoked_at.is_none();
    for token in tokens.iter().filter(own) {
        client
            .delete(&format!("/api/v1/tokens/{}", token.token_id))
            .await?;
    }
    Ok(())
}
