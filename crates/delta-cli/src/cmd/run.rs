//! `delta-ci run`: the jobs of a pipeline file, executed here, shown live. A whole server and a
//! whole agent start inside this process for it, so that what works here works there.

mod artifacts;
mod chosen_jobs;
mod copies;
mod outbox;
mod secrets;
mod unfinished_runs;
mod unfit_jobs;

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delta_agent::checkout::CheckoutSettings;
use delta_agent::tls::TlsFiles;
use delta_agent::work::BaseEnvironment;
use delta_agent::workspace::Source;
use delta_agent::{Sought, TokenSource};
use delta_core::{Settings, Span};
use delta_planner::{Pipeline, Remark};
use delta_server::{Purpose, Role, Server};
use delta_shim::order::Abandoned;
use delta_shim::sandbox::Sandbox;
use delta_wire::Secret;
use delta_wire::api::{CancelRequest, RunView, SetSecret};

use self::artifacts::{Artifacts, Place};
use self::copies::Copies;
use self::outbox::Outbox;
use super::server;
use crate::client::{self, Client, connect};
use crate::embedded_server::{self, Duties};
use crate::exit::Exit;
use crate::failure::{Done, Failure, internal};
use crate::live::screen::Screen;
use crate::live::{summary, watch};
use crate::planning::{self, Asked};
use crate::signals::Stop;
use crate::terminal::{Terminal, Tone};
use crate::worker::{self, Worker};
use crate::{sanitize, secret_input, sizes, state_words};

const EXAMPLES: &str = "\
Examples:
  delta-ci run                         the jobs of ./.delta-ci.yaml, or those that are found
  delta-ci run --all                   whatever changed
  delta-ci run examples/first          those of another folder
  delta-ci run --job unit              one job, and what it needs
  delta-ci run --from unit             that job and what waits for it; what it needs is not run
  delta-ci run --event push --branch main    as if main had been pushed
  delta-ci run --fresh                 with nothing that earlier runs built
  delta-ci run --skip-unfit            without the jobs that this machine cannot execute
  delta-ci run --in-place              on the tree itself, not on a copy
  delta-ci run --data ./.delta-ci      keep the history: delta-ci show latest

Steps see the variables of your shell, and secrets are variables of it, too, unless --data names a
folder that has them. Each job works on a copy of the tree as it is now, committed or not, with a
repository of its own and without what git ignores. The copy is kept and brought up to date the
next time, so that only what changed is built: of what a job left, what git ignores stays.
Conditions and triggers mean what they mean on a server; a job
that is named runs whatever changed. The exit code is the outcome of what ran. Ctrl-C cancels, a
second one forces. docs/run.md has the rest.";

/// How long a canceled job may take to stop, here where somebody waits for it.
const CANCEL_DEADLINE: Span = Span::secs(10);

/// Heartbeats cost nothing inside one process, and a cancel travels with them.
const HEARTBEAT: Span = Span::secs(1);

/// Between TERM and KILL once it is forced.
const FORCED_GRACE: Duration = Duration::from_millis(500);

/// Things that there are remarks on, and that are named: one line. `plan` has all remarks.
const MAX_REMARKS: usize = 6;

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
    /// New copies of the tree, in place of those that earlier runs left
    #[arg(long, conflicts_with = "in_place")]
    fresh: bool,
    /// Leave out jobs that this machine cannot execute, and what needs them
    #[arg(long)]
    skip_unfit: bool,
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
    #[arg(long, value_name = "LABEL", value_parser = worker::label)]
    label: Vec<String>,
    /// Put what jobs keep as artifacts here [default: the cache folder, until the next run]
    #[arg(long, value_name = "DIR")]
    artifacts: Option<PathBuf>,
    /// Keep everything in this folder [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    let mut stop = Stop::listen()?;
    let (tree, _) = planning::locate(&args.path);
    let (pipeline, left_out) = plan(&args, terminal)?;
    if pipeline.jobs.is_empty() {
        return Ok(Exit::Ok);
    }
    if !args.in_place {
        copies::check(&tree)?;
    }
    let named = args.artifacts.as_deref().map(Outbox::named).transpose()?;
    let fitting = unfit_jobs::check(pipeline, &args.label, args.skip_unfit, terminal).await?;
    let pipeline = fitting.pipeline;
    // A store that stays has secrets of its own, and must not come by others in passing.
    let secrets = match &args.data {
        Some(_) => Vec::new(),
        None => secrets::from_shell(&pipeline, |name| std::env::var(name).ok())?,
    };
    let temporary = tempfile::Builder::new()
        .prefix("delta-ci-")
        .tempdir()
        .map_err(internal("there is no temporary folder"))?;
    let wanted = Wanted {
        args: &args,
        tree,
        temporary: temporary.path(),
        pipeline: &pipeline,
        secrets: &secrets,
        named,
    };
    let ended = serve(wanted, &mut stop, terminal).await;
    let done = ended.map(|(view, screen, kept)| {
        if terminal.json {
            let mut value = as_json(&view, &fitting.not_run, &kept);
            value["left_out"] = planning::left_out(&left_out);
            terminal.value(&value);
        } else {
            summary::show(&view, args.data.is_some(), &screen, terminal)
        }
        say_last(&fitting.not_run, kept.said, terminal);
        view.summary.outcome.map_or(Exit::Canceled, Exit::of)
    });
    copies::remove(temporary, terminal);
    done
}

/// What is to be executed, and where there is room for it.
struct Wanted<'a> {
    args: &'a Args,
    tree: PathBuf,
    temporary: &'a Path,
    pipeline: &'a Pipeline,
    secrets: &'a [SetSecret],
    /// Where artifacts go, if somebody said.
    named: Option<Outbox>,
}

/// A server and an agent for as long as the run takes. Returns the run, what was seen of it, and
/// what is to be said of its artifacts.
async fn serve(
    wanted: Wanted<'_>,
    stop: &mut Stop,
    terminal: &Terminal,
) -> Result<(RunView, Arc<Screen>, Artifacts), Failure> {
    let (args, temporary, jobs) = (wanted.args, wanted.temporary, &wanted.pipeline.jobs);
    let data = args.data.clone().unwrap_or_else(|| temporary.join("data"));
    let server = start_server(&data).await?;
    let prepare = || Copies::prepare(&wanted.tree, temporary, jobs, args.fresh, terminal);
    let mut copies = (!args.in_place).then(prepare);
    let names = jobs.iter().map(|job| job.name.as_str());
    let screen = Arc::new(Screen::new(terminal, names, args.logs));
    let source = match &copies {
        Some(copies) => copies.source(),
        None => Source::InPlace(wanted.tree.clone()),
    };
    let folders = Folders {
        source,
        work: temporary.join("work"),
        programs: unfit_jobs::programs(jobs),
    };
    let ready = match &args.data {
        Some(data) => unfinished_runs::end(data, terminal).await,
        None => Ok(()),
    };
    let started = match ready {
        Ok(()) => start_agent(args, &server, folders, Arc::clone(&screen)).await,
        Err(failure) => Err(failure),
    };
    let ended = match started {
        Ok(mut worker) => {
            let work = Work {
                data: &data,
                pipeline: wanted.pipeline,
                secrets: wanted.secrets,
                artifacts: place_of_artifacts(wanted.named, args, copies.as_ref(), terminal),
            };
            let ended = execute(work, &mut worker, &screen, stop, terminal).await;
            if is_over(&mut worker).await && ended.is_ok() {
                copies.iter_mut().for_each(|it| it.give_back(terminal));
            }
            ended
        }
        Err(failure) => {
            copies.iter_mut().for_each(|it| it.give_back(terminal));
            Err(failure)
        }
    };
    screen.finish();
    server.shutdown().await;
    ended.map(|(view, kept)| (view, screen, kept))
}

/// Ends the agent before its server: it must not look for one that is gone. Whether nothing of a
/// job is left.
async fn is_over(worker: &mut Worker) -> bool {
    worker.stop(Duration::ZERO);
    let over = tokio::time::timeout(FORCED_PATIENCE, worker.ended()).await;
    if over.is_err() {
        worker.hand_over().await;
    }
    matches!(over, Ok(Ok(())))
}

/// The run, and beside it what is no part of it.
fn as_json(view: &RunView, not_run: &[(String, String)], kept: &Artifacts) -> serde_json::Value {
    let mut value = serde_json::to_value(view).unwrap_or_default();
    if !not_run.is_empty() {
        let jobs = not_run.iter();
        value["not_run"] = jobs
            .map(|(name, why)| serde_json::json!({"name": name, "reason": why}))
            .collect();
    }
    value["artifacts"] = serde_json::json!(kept.list);
    if let Some(folder) = &kept.folder {
        value["artifacts_folder"] = serde_json::json!(secret_input::shown(folder));
    }
    value
}

/// What did not run, and where the artifacts are.
fn say_last(not_run: &[(String, String)], artifacts: Option<String>, terminal: &Terminal) {
    for (job, why) in not_run {
        let line = format!(
            "not run: {}, for {}",
            sanitize::text(job),
            sanitize::text(why)
        );
        terminal.say(&terminal.paint_err(Tone::Warn, &line));
    }
    if let Some(artifacts) = artifacts {
        terminal.say(&artifacts);
    }
}

fn place_of_artifacts(
    named: Option<Outbox>,
    args: &Args,
    copies: Option<&Copies>,
    terminal: &Terminal,
) -> Place {
    match (named, &args.data) {
        (Some(outbox), _) => Place::Named(outbox),
        (None, Some(data)) => Place::History(data.clone()),
        (None, None) => match copies.and_then(|it| it.artifacts(terminal)) {
            Some(outbox) => Place::Usual(outbox),
            None => Place::Nowhere,
        },
    }
}

/// The jobs that are to run, and what was seen and gives none. What was assumed or found for it is
/// said.
fn plan(args: &Args, terminal: &Terminal) -> Result<(Pipeline, Vec<Remark>), Failure> {
    let named = !args.job.is_empty() || args.from.is_some();
    let planned = planning::plan(&args.path, &args.asked.naming(named))?;
    planning::say_warnings(&planned, terminal);
    if planned.file.is_none() {
        let count = state_words::count(planned.plan.jobs.len() as u64, "job");
        let chosen = match (&args.from, args.job.as_slice()) {
            (Some(name), _) => sanitize::text(&format!("{name} on was asked for")),
            (None, []) => sanitize::text(&planned.changed),
            (None, names) => sanitize::text(&format!("asked for: {}", names.join(", "))),
        };
        terminal.say(&format!("found {count}; {chosen}; delta-ci plan says why"));
        say_remarks(&planned.remarks, terminal);
    }
    let chosen = match &args.from {
        Some(name) => chosen_jobs::from(&planned.plan, name)?,
        None => chosen_jobs::jobs(&planned.plan, &args.job)?,
    };
    if chosen.pipeline.jobs.is_empty() {
        say_nothing(&planned, terminal);
    } else if !named && !planned.plan.omitted.is_empty() {
        let count = state_words::count(planned.plan.omitted.len() as u64, "job");
        terminal.say(&format!("{count} left out; delta-ci plan says why"));
    }
    if !chosen.taken_as_passed.is_empty() {
        let names = sanitize::text(&chosen.taken_as_passed.join(", "));
        terminal.say(&format!("taken as passed, not executed: {names}"));
    }
    for (job, of) in &chosen.without {
        let (job, of) = (sanitize::text(job), sanitize::text(of));
        let next = "with --in-place it finds what an earlier run left";
        terminal.say(&format!("{job} goes without the artifacts of {of}; {next}"));
    }
    let mut pipeline = chosen.pipeline;
    pipeline.tell(&planned.words);
    Ok((pipeline, planned.remarks))
}

/// What there are remarks on, most of it seen and without a job: whoever reads that all is well
/// must know what was perhaps not tried.
fn say_remarks(remarks: &[Remark], terminal: &Terminal) {
    let is_file = |it: &&Remark| it.what == delta_planner::OTHER_NAME;
    for remark in remarks.iter().filter(is_file) {
        terminal.say(&format!("{} {}", remark.what, remark.reason));
    }
    let mut seen = HashSet::new();
    let others = remarks.iter().filter(|it| !is_file(it));
    let others = others.filter(|it| seen.insert(it.what.as_str()));
    let mut names: Vec<String> = others.map(|it| sanitize::text(&it.what)).collect();
    if names.is_empty() {
        return;
    }
    let more = names.len().saturating_sub(MAX_REMARKS);
    names.truncate(MAX_REMARKS);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    let line = format!("remarks on {}; delta-ci plan says them", names.join(", "));
    terminal.say(&terminal.paint_err(Tone::Warn, &line));
}

/// All jobs are left out: that is a success, with its reasons.
fn say_nothing(planned: &planning::Planned, terminal: &Terminal) {
    if terminal.json {
        let omitted = planned.plan.omitted.iter();
        let omitted: Vec<_> = omitted
            .map(|it| serde_json::json!({"name": it.name, "reason": it.reason}))
            .collect();
        return terminal.value(&serde_json::json!({
            "outcome": "SUCCESS", "cause": "NOTHING_TO_RUN", "omitted": omitted,
            "left_out": planning::left_out(&planned.remarks),
        }));
    }
    for omitted in &planned.plan.omitted {
        let (name, reason) = (
            sanitize::text(&omitted.name),
            sanitize::text(&omitted.reason),
        );
        terminal.say(&format!("- {name}  {reason}"));
    }
    terminal.sentence("nothing to run; --all runs everything");
}

async fn start_server(data: &Path) -> Result<Server, Failure> {
    let mut settings = Settings::recommended();
    settings.heartbeat_interval = HEARTBEAT;
    settings.cancel_deadline = CANCEL_DEADLINE;
    let wanted = embedded_server::Wanted {
        objects: None,
        data: data.to_owned(),
        listen: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        store: None,
        settings,
        tls: None,
        oidc: None,
        secret_keys: embedded_server::secret_keys(None)?,
        behind_tls_proxy: false,
        startup_grace: Span::ZERO,
        retention: None,
        caches: delta_server::CacheLimits::USUAL,
        waiting_requests: None,
        pool_sandboxes: Default::default(),
        tracer: Default::default(),
        public_url: None,
        local_name: unfinished_runs::NAME,
        duties: Duties::On,
        purpose: Purpose::Serve,
        accept_empty: false,
    };
    embedded_server::start(wanted)
        .await
        .map_err(|refused| refused.into_failure(data))
}

/// What the agent works on, and where.
struct Folders {
    source: Source,
    work: PathBuf,
    /// Those that jobs ask for.
    programs: Sought,
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
    let wanted = worker::Wanted {
        server: server::url(server, "http")?,
        token: Some(TokenSource::Memory(Secret::new(token))),
        tls: TlsFiles::default(),
        name: worker::machine_name(),
        slots: args.slots.unwrap_or_else(worker::cores),
        labels: args.label.clone(),
        zones: Vec::new(),
        programs: folders.programs,
        work_folder: folders.work,
        state_folder: None,
        // Your own machine and your own file: as if typed by hand.
        sandbox: Sandbox::Open,
        abandoned: Abandoned::Ends,
        once: false,
        source: folders.source,
        checkout: CheckoutSettings::recommended(),
        base_environment: BaseEnvironment::Inherited,
        min_free: None,
        log_limit: args.log_limit,
        containers: unfit_jobs::own_containers(),
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
    artifacts: Place,
}

/// Submits the run, stays with it to its end, and keeps what it left. Says of that where it is.
async fn execute(
    work: Work<'_>,
    worker: &mut Worker,
    screen: &Screen,
    stop: &mut Stop,
    terminal: &Terminal,
) -> Result<(RunView, Artifacts), Failure> {
    let client = connect::beside(work.data).await?.ok_or_else(no_answer)?;
    for secret in work.secrets {
        client.post_text("/api/v1/secrets", secret).await?;
    }
    let text = client
        .post_text("/api/v1/runs", &work.pipeline.to_request())
        .await?;
    let created: RunView = client::read(&text)?;
    let run = created.summary.run_id;
    let view = follow(&client, &run, worker, screen, stop, terminal).await?;
    screen.finish();
    let kept = artifacts::keep(&client, &run, &work.artifacts, terminal).await;
    // The jobs are what they are; what became of their artifacts is said beside it.
    let kept = kept.unwrap_or_else(|failure| Artifacts::not_kept(&failure));
    Ok((view, kept))
}

/// Stays with the run until it is over, or until it is told twice to stop.
async fn follow(
    client: &Client,
    run: &str,
    worker: &mut Worker,
    screen: &Screen,
    stop: &mut Stop,
    terminal: &Terminal,
) -> Result<RunView, Failure> {
    let over = watch::until_over(client, run, screen);
    tokio::pin!(over);
    tokio::select! {
        view = &mut over => return view,
        ended = worker.ended() => return Err(agent_gone(ended)),
        () = stop.asked() => {}
    }
    terminal.say("canceling; once more to force it");
    cancel(client, run, "interrupted at the terminal").await?;
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
