//! `delta-ci run`: the jobs of a pipeline file, executed here, shown live. A whole server and a
//! whole agent start inside this process for it, so that what works here works there.

mod choose;
mod left;
mod secrets;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delta_agent::attempt::Abandoned;
use delta_agent::checkout::CheckoutSettings;
use delta_agent::container::{self, ContainerSettings, Network};
use delta_agent::executor::BaseEnvironment;
use delta_agent::shim::Sandbox;
use delta_agent::tls::TlsFiles;
use delta_agent::workspace::Source;
use delta_agent::{Machine, Secret, TokenSource};
use delta_core::requirement::{Capabilities, Requirement};
use delta_core::{Settings, Span};
use delta_planner::{Pipeline, PlannedJob};
use delta_server::{Role, Server};
use delta_wire::api::{CancelRequest, RunView, SetSecret};
use delta_wire::job_spec::IMAGE_REQUIREMENT;

use super::server;
use crate::clean;
use crate::client::{self, Client, connect};
use crate::embed::{self, Duties};
use crate::exit::Exit;
use crate::failure::{Done, Failure, internal};
use crate::live::screen::Screen;
use crate::live::{summary, watch};
use crate::planning::{self, Asked};
use crate::signals::Stop;
use crate::sizes;
use crate::terminal::Terminal;
use crate::words;
use crate::worker::{self, Worker};

const EXAMPLES: &str = "\
Examples:
  delta-ci run                         the jobs of ./.delta-ci.yaml, or those that are found
  delta-ci run --all                   whatever changed
  delta-ci run examples/first          those of another folder
  delta-ci run --job unit              one job, and what it needs
  delta-ci run --from unit             that job and what waits for it; what it needs is not run
  delta-ci run --event push --branch main    as if main had been pushed
  delta-ci run --in-place              on the tree itself, not on a copy
  delta-ci run --data ./.delta-ci      keep the history: delta-ci show latest

Steps see the variables of your shell, and secrets are variables of it, too, unless --data names a
folder that has them. Each job works on a copy of the tree as it is now, committed
or not, without what git ignores. Conditions and triggers mean what they mean on a server; a job
that is named runs whatever changed. The exit code is the run's outcome. Ctrl-C cancels, a second
one forces.";

/// How long a canceled job may take to stop, here where somebody waits for it.
const CANCEL_DEADLINE: Span = Span::secs(10);

/// Heartbeats cost nothing inside one process, and a cancel travels with them.
const HEARTBEAT: Span = Span::secs(1);

/// Between TERM and KILL once it is forced.
const FORCED_GRACE: Duration = Duration::from_millis(500);

/// How long a forced end may take before the program ends anyhow.
const FORCED_PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A folder, with .delta-ci.yaml or without, or such a file itself: its folder is the tree
    #[arg(value_name = "PATH", default_value = ".")]
    path: PathBuf,
    /// Work on the tree itself, not on a copy of it
    #[arg(long)]
    in_place: bool,
    /// Only this job, and what it needs; repeatable
    #[arg(long, value_name = "NAME")]
    job: Vec<String>,
    /// This job and what waits for it; what comes before is taken as done
    #[arg(long, value_name = "NAME", conflicts_with = "job")]
    from: Option<String>,
    #[command(flatten)]
    asked: Asked,
    /// Print all that jobs print, on a terminal too; anywhere else that is always done
    #[arg(long)]
    logs: bool,
    /// Bytes kept of what a job prints, such as 10MiB: its beginning and end [default: 255MiB]
    #[arg(long, value_name = "SIZE", value_parser = sizes::log_limit)]
    log_limit: Option<u64>,
    /// Jobs at a time [default: as many as there are processors]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    slots: Option<u32>,
    /// Something this machine is or has, beside what is detected, for `requires`; repeatable
    #[arg(long, value_name = "LABEL")]
    label: Vec<String>,
    /// Keep everything in this folder [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    let mut stop = Stop::listen()?;
    let (tree, _) = planning::locate(&args.path);
    let pipeline = plan(&args, terminal)?;
    if pipeline.jobs.is_empty() {
        return Ok(Exit::Ok);
    }
    check_fit(&pipeline, &args.label).await?;
    // A store that stays has secrets of its own, and must not come by others in passing.
    let secrets = match &args.data {
        Some(_) => Vec::new(),
        None => secrets::from_shell(&pipeline, |name| std::env::var(name).ok())?,
    };
    let temporary = tempfile::Builder::new()
        .prefix("delta-ci-")
        .tempdir()
        .map_err(internal("there is no temporary folder"))?;
    let data = args
        .data
        .clone()
        .unwrap_or_else(|| temporary.path().join("data"));
    let server = start_server(&data).await?;
    let names = pipeline.jobs.iter().map(|job| job.name.as_str());
    let screen = Arc::new(Screen::new(terminal, names, args.logs));
    let folders = Folders {
        tree,
        work: temporary.path().join("work"),
        detect_runtimes: pipeline.jobs.iter().any(asks),
    };
    let ready = match &args.data {
        Some(data) => left::end(data, terminal).await,
        None => Ok(()),
    };
    let started = match ready {
        Ok(()) => start_agent(&args, &server, folders, Arc::clone(&screen)).await,
        Err(failure) => Err(failure),
    };
    let ended = match started {
        Ok(mut worker) => {
            let work = Work {
                data: &data,
                pipeline: &pipeline,
                secrets: &secrets,
            };
            let ended = execute(work, &mut worker, &screen, &mut stop, terminal).await;
            worker.stop(Duration::ZERO);
            let _ = tokio::time::timeout(FORCED_PATIENCE, worker.ended()).await;
            ended
        }
        Err(failure) => Err(failure),
    };
    screen.finish();
    server.shutdown().await;
    let view = ended?;
    summary::show(&view, args.data.is_some(), &screen, terminal);
    Ok(view.summary.outcome.map_or(Exit::Canceled, Exit::of))
}

/// The jobs that are to run. What was assumed or found for it is said.
fn plan(args: &Args, terminal: &Terminal) -> Result<Pipeline, Failure> {
    let mut asked = args.asked.clone();
    // Whoever names a job wants it, whatever changed.
    let named = !args.job.is_empty() || args.from.is_some();
    asked.all |= named && asked.base.is_none();
    let planned = planning::plan(&args.path, &asked)?;
    planning::say_warnings(&planned, terminal);
    if planned.file.is_none() {
        let count = words::count(planned.plan.jobs.len() as u64, "job");
        let changed = clean::text(&planned.changed);
        terminal.say(&format!("found {count}; {changed}; delta-ci plan says why"));
        let other = planned.remarks.iter();
        for remark in other.filter(|it| it.what == delta_planner::OTHER_NAME) {
            terminal.say(&format!("{} {}", remark.what, remark.reason));
        }
    }
    let chosen = match &args.from {
        Some(name) => choose::from(&planned.plan, name)?,
        None => choose::jobs(&planned.plan, &args.job)?,
    };
    if chosen.pipeline.jobs.is_empty() {
        say_nothing(&planned, terminal);
    } else if !named && !planned.plan.omitted.is_empty() {
        let count = words::count(planned.plan.omitted.len() as u64, "job");
        terminal.say(&format!("{count} left out; delta-ci plan says why"));
    }
    if !chosen.taken_as_passed.is_empty() {
        let names = clean::text(&chosen.taken_as_passed.join(", "));
        terminal.say(&format!("taken as passed, not executed: {names}"));
    }
    for (job, of) in &chosen.without {
        let (job, of) = (clean::text(job), clean::text(of));
        let next = "with --in-place it finds what an earlier run left";
        terminal.say(&format!("{job} goes without the artifacts of {of}; {next}"));
    }
    let mut pipeline = chosen.pipeline;
    pipeline.tell(&planned.words);
    Ok(pipeline)
}

/// All jobs are left out: that is a success, with its reasons (A14).
fn say_nothing(planned: &planning::Planned, terminal: &Terminal) {
    if terminal.json {
        let omitted = planned.plan.omitted.iter();
        let omitted: Vec<_> = omitted
            .map(|it| serde_json::json!({"name": it.name, "reason": it.reason}))
            .collect();
        return terminal.value(&serde_json::json!({
            "outcome": "SUCCESS", "cause": "NOTHING_TO_RUN", "omitted": omitted,
        }));
    }
    for omitted in &planned.plan.omitted {
        let (name, reason) = (clean::text(&omitted.name), clean::text(&omitted.reason));
        terminal.say(&format!("- {name}  {reason}"));
    }
    terminal.data("nothing to run; --all runs everything");
}

/// Your own machine: what you may, your containers may.
fn own_containers() -> ContainerSettings {
    ContainerSettings {
        network: Network::Host,
        ..ContainerSettings::default()
    }
}

/// What a job asks for beside its work.
fn requires(job: &PlannedJob) -> Vec<String> {
    let image = job
        .around
        .get("image")
        .map(|_| IMAGE_REQUIREMENT.to_owned());
    job.requires.iter().cloned().chain(image).collect()
}

fn asks(job: &PlannedJob) -> bool {
    !requires(job).is_empty()
}

/// Nobody but this machine executes here: a job that asks for more would wait for ever.
async fn check_fit(pipeline: &Pipeline, labels: &[String]) -> Result<(), Failure> {
    if !pipeline.jobs.iter().any(asks) {
        return Ok(());
    }
    let runtime = container::detect(&own_containers()).await;
    let machine = Machine::whole(Path::new(".")).await;
    let mut offered = machine.with_containers(runtime.as_ref()).tags();
    offered.extend(labels.iter().cloned());
    let capabilities = Capabilities::parse(offered.iter().map(String::as_str));
    let lacks = |text: &String| {
        Requirement::parse(text).is_ok_and(|requirement| !capabilities.meets(&requirement))
    };
    for job in &pipeline.jobs {
        let missing: Vec<String> = requires(job).into_iter().filter(lacks).collect();
        if let Some(first) = missing.first() {
            let what = format!("this machine cannot execute job `{}`", job.name);
            let next = match delta_core::tool::advice(first) {
                Some(install) => install.to_owned(),
                None if first == IMAGE_REQUIREMENT => "start docker or podman here".to_owned(),
                None => format!("--label {first} if this machine has it"),
            };
            return Err(Failure::new(Exit::Refused, what)
                .because(format!(
                    "the job requires {}; here are {}",
                    missing.join(", "),
                    offered.join(", ")
                ))
                .next(format!(
                    "{next}, --job NAME for other jobs, or a server with an agent that has it"
                )));
        }
    }
    Ok(())
}

async fn start_server(data: &Path) -> Result<Server, Failure> {
    let mut settings = Settings::recommended();
    settings.heartbeat_interval = HEARTBEAT;
    settings.cancel_deadline = CANCEL_DEADLINE;
    let wanted = embed::Wanted {
        objects: None,
        data: data.to_owned(),
        listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        store: None,
        settings,
        tls: None,
        oidc: None,
        secret_keys: embed::secret_keys(None)?,
        behind_tls_proxy: false,
        startup_grace: Span::ZERO,
        retention: None,
        caches: delta_server::CacheLimits::USUAL,
        waiting_requests: None,
        pool_sandboxes: Default::default(),
        tracer: Default::default(),
        public_url: None,
        local_name: left::NAME,
        duties: Duties::On,
        accept_empty: false,
    };
    embed::start(wanted)
        .await
        .map_err(|refused| refused.into_failure(data))
}

/// Where the agent finds its tree, and where it works.
struct Folders {
    tree: PathBuf,
    work: PathBuf,
    /// Some job asks for more than any machine has.
    detect_runtimes: bool,
}

async fn start_agent(
    args: &Args,
    server: &Server,
    folders: Folders,
    screen: Arc<Screen>,
) -> Result<Worker, Failure> {
    let token = server.create_token(Role::Runner, "delta-ci run").await;
    let token = token.map_err(|error| {
        Failure::new(Exit::Internal, "no token could be made for the agent").caused_by(&error)
    })?;
    let source = match args.in_place {
        true => Source::InPlace(folders.tree),
        false => Source::Copy(folders.tree),
    };
    let wanted = worker::Wanted {
        server: server::url(server, "http")?,
        token: Some(TokenSource::Memory(Secret::new(token))),
        tls: TlsFiles::default(),
        name: worker::machine_name(),
        slots: args.slots.unwrap_or_else(worker::cores),
        labels: args.label.clone(),
        zones: Vec::new(),
        detect_runtimes: folders.detect_runtimes,
        work_folder: folders.work,
        state_folder: None,
        // Your own machine and your own file: as if typed by hand.
        sandbox: Sandbox::Open,
        abandoned: Abandoned::Ends,
        once: false,
        source,
        checkout: CheckoutSettings::recommended(),
        base_environment: BaseEnvironment::Inherited,
        min_free: None,
        log_limit: args.log_limit,
        containers: own_containers(),
        stop_grace: FORCED_GRACE,
        runners: None,
        mixed: false,
        tracer: Default::default(),
    };
    Worker::start(wanted, screen)
}

/// What is to be executed, and where its server is.
struct Work<'a> {
    data: &'a Path,
    pipeline: &'a Pipeline,
    secrets: &'a [SetSecret],
}

/// Submits the run and stays with it to its end, or until it is told twice to stop.
async fn execute(
    work: Work<'_>,
    worker: &mut Worker,
    screen: &Screen,
    stop: &mut Stop,
    terminal: &Terminal,
) -> Result<RunView, Failure> {
    let client = connect::beside(work.data).await?.ok_or_else(no_answer)?;
    for secret in work.secrets {
        client.post_text("/api/v1/secrets", secret).await?;
    }
    let text = client
        .post_text("/api/v1/runs", &work.pipeline.to_request())
        .await?;
    let created: RunView = client::read(&text)?;
    let run = created.summary.run_id;
    let over = watch::until_over(&client, &run, screen);
    tokio::pin!(over);
    tokio::select! {
        view = &mut over => return view,
        ended = worker.ended() => return Err(agent_gone(ended)),
        () = stop.asked() => {}
    }
    terminal.say("canceling; once more to force it");
    cancel(&client, &run, "interrupted at the terminal").await?;
    tokio::select! {
        view = &mut over => return view,
        ended = worker.ended() => return Err(agent_gone(ended)),
        () = stop.asked() => {}
    }
    terminal.say("forcing");
    worker.stop(Duration::ZERO);
    let _ = tokio::time::timeout(FORCED_PATIENCE, worker.ended()).await;
    client.get(&format!("/api/v1/runs/{run}")).await
}

fn no_answer() -> Failure {
    Failure::new(Exit::Internal, "our own server does not answer")
}

async fn cancel(client: &Client, run: &str, reason: &str) -> Result<(), Failure> {
    let reason = Some(reason.to_owned());
    let path = format!("/api/v1/runs/{run}/cancel");
    match client.post_text(&path, &CancelRequest { reason }).await {
        // It ended by itself in the same moment.
        Err(failure) if failure.exit == Exit::Refused => Ok(()),
        answered => answered.map(drop),
    }
}

fn agent_gone(ended: Result<(), Failure>) -> Failure {
    ended
        .err()
        .unwrap_or_else(|| Failure::new(Exit::Internal, "the agent ended before the run"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_job_that_asks_for_more_than_this_machine_has_is_refused() {
        let text = b"jobs:\n  a: {steps: [x], requires: [linux, gpu, 'cpu>=1']}\n";
        let pipeline = delta_planner::parse("f", text).unwrap();
        let text = check_fit(&pipeline, &[]).await.unwrap_err().text();
        assert!(text.contains("job `a`"), "{text}");
        assert!(text.contains("the job requires gpu; here are"), "{text}");
        assert!(check_fit(&pipeline, &["gpu".into()]).await.is_ok());
    }
}
