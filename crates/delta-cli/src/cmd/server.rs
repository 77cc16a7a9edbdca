//! `delta-ci server`: the control plane, until it is told to stop.

use std::net::SocketAddr;
use std::path::PathBuf;

use delta_core::{Settings, Span, Text};
use delta_server::{Purpose, Sandbox, Server};
use delta_trace::Tracer;

use crate::embedded_server::{self, Duties, Wanted};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::signals::Stop;
use crate::terminal::Terminal;
use crate::timings::Timings;
use crate::traces::Traces;

const EXAMPLES: &str = "\
Examples:
  delta-ci server --data ./data --listen 127.0.0.1:7878
  delta-ci server --data ./data --listen 0.0.0.0:7878 --tls-cert ci.pem --tls-key ci.key
  delta-ci ca init ./ca                          a private authority, where there is no certificate
  DELTA_STORE=postgres://ci@db/ci delta-ci server --data ./data --objects /mnt/ci-objects
  delta-ci server --data ./data --listen 127.0.0.1:0 --json   the address as JSON, port chosen
  delta-ci server --data ./data --otlp-endpoint http://127.0.0.1:4317   docs/tracing.md

Then, on the same machine:
  delta-ci token create --role runner --data ./data --out runner.token
  delta-ci agent --server http://127.0.0.1:7878 --token-file runner.token";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder with everything it keeps; made when it does not exist
    #[arg(long, value_name = "DIR", env = "DELTA_DATA")]
    data: PathBuf,
    /// The folder of logs and artifacts [default: objects in the data folder]
    ///
    /// Several servers on one PostgreSQL must share it, on a mount with file locks, and run as the
    /// same user: each message of a job may reach another of them.
    #[arg(long, value_name = "DIR", env = "DELTA_OBJECTS")]
    objects: Option<PathBuf>,
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7878")]
    listen: SocketAddr,
    /// A PostgreSQL database instead of the SQLite file in the data folder; see --objects
    #[arg(long, value_name = "URL", env = "DELTA_STORE", hide_env_values = true)]
    store: Option<String>,
    /// Certificate chain, in PEM; it and the other TLS files are read again when they change
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Authorities, in PEM, whose certificates agents may come with instead of a token
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,
    /// OIDC issuers whose tokens agents may come with, in JSON; see docs/identity.md
    #[arg(long, value_name = "FILE")]
    oidc: Option<PathBuf>,
    /// The keys that secrets are kept with, one in a line, the one in use first
    ///
    /// A key is 32 bytes in base64 or hexadecimal; DELTA_SECRET_KEY holds keys themselves. Without
    /// either, a server on SQLite makes one in its data folder, and one on PostgreSQL keeps no
    /// secrets: all servers on a database need the same keys. See docs/secrets.md.
    #[arg(long, value_name = "FILE", env = "DELTA_SECRET_KEY_FILE")]
    secret_key_file: Option<PathBuf>,
    /// A proxy in front ends TLS: listen beyond loopback without a certificate
    #[arg(long, conflicts_with = "tls_cert")]
    behind_tls_proxy: bool,
    /// Requests of people that may wait before others are sent away with 429 [default: 1024]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    waiting_requests: Option<u32>,
    /// A pool that takes only agents which confine their jobs at least so: POOL=strict or POOL=host
    ///
    /// May be given several times. Other agents of that pool are refused when they register, and
    /// runners of the Runner Protocol, which do not say it, get no work there.
    #[arg(long = "pool-sandbox", value_name = "POOL=SANDBOX", value_parser = pool_sandbox)]
    pool_sandboxes: Vec<(Text, Sandbox)>,
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
    traces: Traces,
}

fn pool_sandbox(text: &str) -> Result<(Text, Sandbox), String> {
    let wrong = || "must be like forks=strict; known are strict, host and open".to_owned();
    let (pool, sandbox) = text.split_once('=').ok_or_else(wrong)?;
    let sandbox = Sandbox::from_name(sandbox).ok_or_else(wrong)?;
    if pool.is_empty() {
        Err(wrong())
    } else {
        Ok((pool.into(), sandbox))
    }
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    let tracer = args.traces.start("delta-ci-server")?;
    let done = serve(args, tracer.clone(), terminal).await;
    tracer.close().await;
    done
}

async fn serve(args: Args, tracer: Tracer, terminal: &Terminal) -> Done {
    let settings = args.timings.over(Settings::recommended())?;
    // Each parked runner holds a connection. Only here: an agent's jobs would inherit the limit.
    delta_server::raise_file_limit();
    let mut stop = Stop::listen()?;
    let data = args.data.clone();
    let wanted = Wanted {
        data: args.data,
        objects: args.objects,
        listen: Some(args.listen),
        store: args.store,
        settings,
        tls: args
            .tls_cert
            .zip(args.tls_key)
            .map(|(cert, key)| delta_server::Tls {
                cert,
                key,
                client_ca: args.client_ca,
            }),
        oidc: args.oidc,
        secret_keys: embedded_server::secret_keys(args.secret_key_file)?,
        behind_tls_proxy: args.behind_tls_proxy,
        startup_grace: args.timings.startup_grace.unwrap_or(Span::ZERO),
        retention: args.timings.retention,
        caches: args.timings.caches(),
        waiting_requests: args.waiting_requests.map(|most| most as usize),
        pool_sandboxes: args.pool_sandboxes.into_iter().collect(),
        tracer,
        public_url: args.public_url,
        local_name: delta_server::LOCAL_ADMIN,
        duties: Duties::On,
        purpose: Purpose::Serve,
        accept_empty: args.accept_empty,
    };
    let scheme = if wanted.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let server = embedded_server::start(wanted)
        .await
        .map_err(|refused| refused.into_failure(&data))?;
    let url = url(&server, scheme)?;
    announce(&server, &url, terminal);
    tokio::select! {
        () = stop.asked() => {}
        () = server.broken() => {
            server.shutdown().await;
            return Err(broken());
        }
    }
    terminal.say("stopping; once more to stop at once");
    tokio::select! {
        () = server.shutdown() => Ok(Exit::Ok),
        () = stop.asked() => Ok(Exit::Canceled),
    }
}

/// What is said when the server gave up by itself.
pub fn broken() -> Failure {
    Failure::new(
        Exit::Internal,
        "the server cannot write any more and has ended",
    )
    .because("its writer panicked; the log above says where")
    .next("start it again: everything that was acknowledged is on disk")
}

/// Where it listens, now that a port has been chosen.
pub fn url(server: &Server, scheme: &str) -> Result<String, Failure> {
    let addr = server
        .addr()
        .ok_or_else(|| Failure::new(Exit::Internal, "the server does not listen"))?;
    Ok(format!("{scheme}://{addr}"))
}

fn announce(server: &Server, url: &str, terminal: &Terminal) {
    if terminal.json {
        terminal.value_line(&serde_json::json!({
            "listening": url,
            "admin_socket": server.admin_socket(),
            "pid": std::process::id(),
        }));
    } else {
        terminal.data(&format!("listening on {url}"));
    }
}
