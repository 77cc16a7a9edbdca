//! `delta-ci agent`: asks a server for jobs over the Runner Protocol and executes them here.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use delta_agent::executor::BaseEnvironment;
use delta_agent::workspace::Source;
use delta_core::Span;

use crate::exit::Exit;
use crate::failure::Done;
use crate::live::screen::Brief;
use crate::signals::Stop;
use crate::terminal::Terminal;
use crate::worker::{self, Wanted, Worker};
use crate::{enrolment, timings, words};

const EXAMPLES: &str = "\
Examples:
  delta-ci agent --server http://127.0.0.1:7878 --token-file runner.token
  delta-ci agent --server https://ci.example --token-file runner.token --slots 4 --label gpu
  delta-ci agent --server https://ci.example --enroll-token-file once.token --state-dir ./state

It dials out and is never dialled. SIGTERM or Ctrl-C: no new job, running ones may finish within
--shutdown-grace, then they are canceled; a second one cancels them at once.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The server's address
    #[arg(long, value_name = "URL", env = "DELTA_SERVER")]
    server: String,
    /// A file with a token of the role `runner`; read again before it is used
    #[arg(
        long,
        value_name = "FILE",
        env = "DELTA_TOKEN_FILE",
        required_unless_present = "enroll_token_file"
    )]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    enrolment: enrolment::Flags,
    /// The certificate authority of the server, in PEM, where the system does not know it
    #[arg(long, value_name = "FILE")]
    ca_cert: Option<PathBuf>,
    /// Jobs at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    slots: u32,
    /// Something this agent is or has, beside what it detects; repeatable
    #[arg(long, value_name = "LABEL")]
    label: Vec<String>,
    /// Its name, unique among agents [default: the machine's]
    #[arg(long)]
    name: Option<String>,
    /// The folder it works in, its own alone
    #[arg(long, value_name = "DIR", default_value = ".delta-agent")]
    work_dir: PathBuf,
    /// How long running jobs may go on once it is told to stop
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = timings::span)]
    shutdown_grace: Span,
}

/// Between TERM and KILL of a job.
const STOP_GRACE: Duration = Duration::from_secs(10);

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    let mut stop = Stop::listen()?;
    let name = args.name.unwrap_or_else(worker::machine_name);
    let ca_cert = args.ca_cert.clone();
    let enrolment = args.enrolment;
    let (name, token) = enrolment
        .token(args.token_file, &args.server, ca_cert, name, terminal)
        .await?;
    let wanted = Wanted {
        server: args.server.clone(),
        token,
        ca_file: args.ca_cert,
        name: name.clone(),
        slots: args.slots,
        labels: args.label,
        work_folder: args.work_dir,
        source: Source::Empty,
        base_environment: BaseEnvironment::Clean,
        stop_grace: STOP_GRACE,
    };
    let mut worker = Worker::start(wanted, Arc::new(Brief::new(terminal)))?;
    let slots = words::count(args.slots, "slot");
    terminal.say(&format!("{name}: {slots} at {}", args.server));
    tokio::select! {
        ended = worker.ended() => return ended.map(|()| Exit::Ok),
        () = stop.asked() => {}
    }
    let grace = Duration::from_millis(u64::try_from(args.shutdown_grace.0).unwrap_or(0));
    worker.stop(grace);
    terminal.say("no new jobs; running ones may finish; once more to cancel them");
    tokio::select! {
        ended = worker.ended() => return ended.map(|()| Exit::Ok),
        () = stop.asked() => worker.stop(Duration::ZERO),
    }
    worker.ended().await.map(|()| Exit::Ok)
}
