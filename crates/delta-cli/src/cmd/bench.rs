//! `delta-ci bench`: measures a real server on this machine and prints what it reached.

mod long_logs;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Subcommand;
use delta_core::Span;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::bench::child::ServerUnderTest;
use crate::bench::lifecycle::{self, Load, Reached};
use crate::bench::meter::{Counters, Machine, Usage};
use crate::bench::numbers::{Samples, ratio};
use crate::bench::{agents, builds, functions, idle, local, plan, preload};
use crate::exit::Exit;
use crate::failure::{Done, Failure};
use crate::terminal::{self, Terminal};
use crate::timings;

const LIFECYCLE_EXAMPLES: &str = "\
Examples:
  delta-ci bench lifecycle
  delta-ci bench lifecycle --slots 256 --jobs 200000 --jobs-per-run 100
  delta-ci bench lifecycle --store postgres://user@127.0.0.1/bench --slots 64
  delta-ci bench lifecycle --protocol grpc --slots 256
  delta-ci bench lifecycle --preload-finished 1000000 --preload-queued 100000 --json

Server, store and load run on this machine and share its processors. Compare numbers of one
session only: they move with whatever else the machine does. CPU steal says when it did.";

const IDLE_EXAMPLES: &str = "\
Examples:
  delta-ci bench idle
  delta-ci bench idle --count 2000 --json";

const AGENTS_EXAMPLES: &str = "\
Examples:
  delta-ci bench agents
  delta-ci bench agents --count 10000 --rounds 10 --json";

const BUILDS_EXAMPLES: &str = "\
Examples:
  delta-ci bench builds
  delta-ci bench builds --slots 8 --together 2000 --json";

const FUNCTIONS_EXAMPLES: &str = "\
Examples:
  delta-ci bench functions --function echo -- ./target/release/examples/table
  delta-ci bench functions --pipeline --in-flight 64 --together 50000 -- ./jobs
  delta-ci bench functions --function send --params '{\"to\":\"x\"}' -- ./jobs

The command is a runner: it gets --tcp-socket, and must know the function. Where that returns the
moment it was called at, in seconds since 1970, the time from enqueue to handler is told, too.";

const PLAN_EXAMPLES: &str = "\
Examples:
  delta-ci bench plan
  delta-ci bench plan --packages 10000 --files 200000 --json";

const RUN_EXAMPLES: &str = "\
Examples:
  delta-ci bench run
  delta-ci bench run --crates 100 --json";

/// Jobs of the idle phase that goes with a lifecycle measurement.
const IDLE_COUNT: usize = 300;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Drive many slots through enqueue, lease, acknowledge, complete
    #[command(after_help = LIFECYCLE_EXAMPLES)]
    Lifecycle(Lifecycle),
    /// Measure enqueue to grant, one job at a time
    #[command(after_help = IDLE_EXAMPLES)]
    Idle(Idle),
    /// Connect many agents: memory of each, renewals, and all of them coming back at once
    #[command(after_help = AGENTS_EXAMPLES)]
    Agents(ManyAgents),
    /// Send one long log, and read it back
    #[command(after_help = long_logs::EXAMPLES)]
    Logs(long_logs::Args),
    /// Build `true` on a real agent: submit to finished, and builds per second
    #[command(after_help = BUILDS_EXAMPLES)]
    Builds(ManyBuilds),
    /// Call a function of a runner: enqueue to result, and calls per second
    #[command(after_help = FUNCTIONS_EXAMPLES)]
    Functions(ManyCalls),
    /// Plan a monorepo: from a folder and from a commit, time and memory
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(Monorepo),
    /// Run a small Rust workspace here, again, and after one changed line: what is built
    #[command(after_help = RUN_EXAMPLES)]
    Run(Local),
}

#[derive(Debug, clap::Args)]
struct Local {
    /// Crates of the workspace
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(2..=500))]
    crates: u16,
}

#[derive(Debug, clap::Args)]
struct Monorepo {
    /// Packages of four ecosystems, each built with one before it
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(4..=20_000))]
    packages: u32,
    /// Files in all
    #[arg(long, default_value_t = 50_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(4..=900_000))]
    files: u32,
}

#[derive(Debug, clap::Args)]
struct Lifecycle {
    /// Runner slots, each with a connection of its own
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..=4096))]
    slots: u16,
    /// What slots speak
    #[arg(long, default_value = "http")]
    protocol: Protocol,
    /// Agents that share the slots, over gRPC
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    agents: u16,
    /// Jobs in all
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    jobs: u64,
    /// Jobs of one run
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    jobs_per_run: u16,
    /// Connections that submit runs [default: 4, or 32 for runs of one job]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: Option<u16>,
    /// Finished jobs in the store before the measurement
    #[arg(long, value_name = "N", default_value_t = 0)]
    preload_finished: u64,
    /// Queued jobs that nobody can take, in the store before the measurement
    #[arg(long, value_name = "N", default_value_t = 0)]
    preload_queued: u64,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Idle {
    /// Jobs, one after another
    #[arg(long, default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    #[command(flatten)]
    common: Common,
}

/// What a slot of the load speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Protocol {
    /// The Runner Protocol, a connection per slot
    Http,
    /// The Execution Protocol, a session per agent
    Grpc,
}

#[derive(Debug, clap::Args)]
struct ManyAgents {
    /// Agents, each with one slot
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    count: u32,
    /// How often each renews its lease
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct ManyBuilds {
    /// Slots of the agent
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    slots: u16,
    /// Builds one after another
    #[arg(long, default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    alone: u32,
    /// Builds with all slots at work
    #[arg(long, default_value_t = 1000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    together: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct ManyCalls {
    /// The handler to call
    #[arg(long, default_value = "echo")]
    function: String,
    /// What it is called with
    #[arg(long, value_name = "JSON", default_value = "{}")]
    params: String,
    /// Processes of the runner
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    size: u16,
    /// Calls at a time in each of them
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    in_flight: u16,
    /// All calls of a process on one connection
    #[arg(long)]
    pipeline: bool,
    /// Calls one after another
    #[arg(long, default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    alone: u32,
    /// Calls with all room taken
    #[arg(long, default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    together: u32,
    /// The runner's program and arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// `sqlite`, or a PostgreSQL database that may be written to
    #[arg(long, value_name = "sqlite|URL", default_value = "sqlite")]
    store: String,
    /// End each phase after this time, however far it is
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = timings::span)]
    time_limit: Span,
}

impl Common {
    fn limit(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.time_limit.0).unwrap_or(0))
    }
}

pub async fn run(args: Args, terminal: &Terminal) -> Done {
    let measured = match args.what {
        What::Lifecycle(args) => measure_lifecycle(args, terminal).await,
        What::Idle(args) => measure_idle(args, terminal).await,
        What::Agents(args) => measure_agents(args, terminal).await,
        What::Logs(args) => long_logs::measure(args, terminal).await,
        What::Builds(args) => measure_builds(args, terminal).await,
        What::Functions(args) => measure_functions(args, terminal).await,
        What::Plan(args) => plan::measure(args.packages, args.files, terminal),
        What::Run(args) => local::measure(args.crates, terminal),
    };
    measured.map(|()| Exit::Ok).map_err(|error| {
        Failure::new(Exit::Failed, "the measurement did not come to its end")
            .because(format!("{error:#}"))
    })
}

async fn measure_idle(args: Idle, terminal: &Terminal) -> anyhow::Result<()> {
    let server = ServerUnderTest::start(&args.common.store, &[]).await?;
    let before = Machine::now();
    let waits = idle::measure(&server, args.count as usize, args.common.limit()).await?;
    let steal = Machine::now().steal_since(before);
    if terminal.json {
        terminal.value(&serde_json::json!({
            "enqueue_to_grant": waits.json(),
            "server_resident_bytes": server.usage().resident_bytes,
            "cpu_steal_percent": steal,
        }));
    } else {
        terminal.data(&format!("idle enqueue to grant: {}", waits.text()));
        terminal.data(&format!("CPU steal: {steal:.1} %"));
    }
    Ok(())
}

async fn measure_agents(args: ManyAgents, terminal: &Terminal) -> anyhow::Result<()> {
    delta_server::raise_file_limit();
    let server = Arc::new(ServerUnderTest::start(&args.common.store, &[]).await?);
    let bar = bar(terminal, args.count.into(), "agents");
    let measured = agents::measure(&server, args.count as usize, args.rounds, &bar);
    let found = tokio::time::timeout(args.common.limit(), measured).await??;
    bar.finish_and_clear();
    let usage = server.usage();
    if terminal.json {
        terminal.value(&serde_json::json!({
            "agents": found.agents,
            "server_bytes_per_idle_agent": found.bytes_per_agent,
            "renewal": found.renewals.json(),
            "storm_seconds": found.storm.as_secs_f64(),
            "storm_registration": found.registrations.json(),
            "storm_lost_leases": found.lost,
            "server_peak_resident_bytes": usage.peak_resident_bytes,
        }));
        return Ok(());
    }
    for line in [
        format!(
            "{} agents: {:.1} kB of the server each, {:.1} MB at most",
            found.agents,
            found.bytes_per_agent / 1000.0,
            usage.peak_resident_bytes as f64 / 1e6
        ),
        format!("renewal: {}", found.renewals.text()),
        format!(
            "all back at once: {:.2} s, registration {}; {} leases lost",
            found.storm.as_secs_f64(),
            found.registrations.text(),
            found.lost
        ),
    ] {
        terminal.data(&line);
    }
    Ok(())
}

async fn measure_builds(args: ManyBuilds, terminal: &Terminal) -> anyhow::Result<()> {
    let server = ServerUnderTest::start(&args.common.store, &[]).await?;
    let before = Machine::now();
    let bar = bar(terminal, (args.alone + args.together).into(), "builds");
    let (alone, together) = (args.alone as usize, args.together as usize);
    let measured = builds::measure(&server, args.slots, alone, together, |done| bar.inc(done));
    let found = tokio::time::timeout(args.common.limit(), measured).await??;
    bar.finish_and_clear();
    let steal = Machine::now().steal_since(before);
    let rate = ratio(found.together as f64, found.took.as_secs_f64());
    if terminal.json {
        terminal.value(&serde_json::json!({
            "slots": args.slots,
            "submit_to_finished": found.alone.json(),
            "builds": found.together,
            "builds_per_second": rate,
            "cpu_steal_percent": steal,
        }));
        return Ok(());
    }
    terminal.data(&format!("submit to finished: {}", found.alone.text()));
    terminal.data(&format!(
        "{} builds, {} slots: {rate:.0} builds/s ({:.2} s)",
        found.together,
        args.slots,
        found.took.as_secs_f64()
    ));
    terminal.data(&format!("CPU steal: {steal:.1} %"));
    Ok(())
}

async fn measure_functions(args: ManyCalls, terminal: &Terminal) -> anyhow::Result<()> {
    let call = functions::Call {
        function: args.function,
        params: serde_json::from_str(&args.params).context("--params is no JSON")?,
    };
    let pool = functions::Pool {
        command: args.command,
        size: args.size,
        in_flight: args.in_flight,
        pipeline: args.pipeline,
    };
    let server = ServerUnderTest::start(&args.common.store, &[]).await?;
    let (machine, usage) = (Machine::now(), server.usage());
    let bar = bar(terminal, (args.alone + args.together).into(), "calls");
    let counts = (args.alone as usize, args.together as usize);
    let measured = functions::measure(&server, &pool, &call, counts, |done| bar.inc(done));
    let found = tokio::time::timeout(args.common.limit(), measured).await??;
    bar.finish_and_clear();
    let steal = Machine::now().steal_since(machine);
    let cpu = server.usage().cpu.saturating_sub(usage.cpu);
    let rate = ratio(f64::from(args.together), found.took.as_secs_f64());
    let enqueue = ratio(f64::from(args.together), found.enqueued.as_secs_f64());
    let each = cpu / (args.alone + args.together);
    if terminal.json {
        terminal.value(&serde_json::json!({
            "enqueue_to_result": found.alone.json(),
            "enqueue_to_handler": found.to_handler.json(),
            "calls": args.together,
            "calls_per_second": rate,
            "enqueued_per_second": enqueue,
            "server_cpu_micros_per_call": each.as_micros() as u64,
            "cpu_steal_percent": steal,
        }));
        return Ok(());
    }
    terminal.data(&format!("enqueue to result: {}", found.alone.text()));
    if found.to_handler.len() > 0 {
        terminal.data(&format!("enqueue to handler: {}", found.to_handler.text()));
    }
    terminal.data(&format!(
        "{} calls, {} x {} at a time: {rate:.0} calls/s ({:.2} s), enqueued at {enqueue:.0}/s",
        args.together,
        args.size,
        args.in_flight,
        found.took.as_secs_f64()
    ));
    terminal.data(&format!("server CPU per call: {} µs", each.as_micros()));
    terminal.data(&format!("CPU steal: {steal:.1} %"));
    Ok(())
}

/// Everything one lifecycle measurement found.
struct Report {
    load: Load,
    idle: Samples,
    reached: Reached,
    counters: Counters,
    cpu: Duration,
    usage: Usage,
    steal: f64,
}

async fn measure_lifecycle(args: Lifecycle, terminal: &Terminal) -> anyhow::Result<()> {
    let limit = args.common.limit();
    let server = ServerUnderTest::start(&args.common.store, &[]).await?;
    if args.preload_finished > 0 {
        let bar = bar(terminal, args.preload_finished, "preloading finished jobs");
        preload::finished(
            &server,
            args.preload_finished,
            limit.saturating_mul(10),
            bar,
        )
        .await?;
    }
    if args.preload_queued > 0 {
        let bar = bar(terminal, args.preload_queued, "preloading queued jobs");
        preload::queued(&server, args.preload_queued, bar).await?;
    }
    terminal.say("idle: one job at a time");
    let idle = idle::measure(&server, IDLE_COUNT, limit).await?;
    let submitters = match (args.connections, args.jobs_per_run) {
        (Some(given), _) => given,
        (None, 1) => 32,
        (None, _) => 4,
    };
    let load = Load {
        slots: args.slots.into(),
        agents: (args.protocol == Protocol::Grpc).then(|| args.agents.min(args.slots).into()),
        jobs: args.jobs,
        jobs_per_run: args.jobs_per_run.into(),
        submitters: submitters.into(),
        time_limit: limit,
    };
    terminal.say(&format!("{} slots, {} jobs", load.slots, load.jobs));
    let bar = bar(terminal, load.jobs, "jobs");
    let (counters, usage, machine) = (server.counters().await?, server.usage(), Machine::now());
    let reached = lifecycle::drive(&server, load, bar).await?;
    let report = Report {
        load,
        idle,
        reached,
        counters: server.counters().await?.since(counters),
        cpu: server.usage().cpu.saturating_sub(usage.cpu),
        usage: server.usage(),
        steal: Machine::now().steal_since(machine),
    };
    if terminal.json {
        terminal.value(&report.json());
    } else {
        report.lines().iter().for_each(|line| terminal.data(line));
    }
    Ok(())
}

impl Report {
    fn mean_batch(&self) -> f64 {
        ratio(self.counters.commands, self.counters.batches)
    }

    fn flushes_per_job(&self) -> f64 {
        ratio(self.counters.flushes, self.reached.completed as f64)
    }

    fn cpu_micros_per_job(&self) -> f64 {
        ratio(self.cpu.as_micros() as f64, self.reached.completed as f64)
    }

    fn lines(&self) -> Vec<String> {
        let megabytes = |bytes: u64| bytes as f64 / 1_000_000.0;
        vec![
            format!(
                "{} jobs in runs of {}, {} slots, {} submitters: {:.0} jobs/s ({:.2} s)",
                self.reached.completed,
                self.load.jobs_per_run,
                self.load.slots,
                self.load.submitters,
                self.reached.per_second(),
                self.reached.elapsed.as_secs_f64(),
            ),
            format!(
                "enqueue to grant, loaded: {}",
                self.reached.enqueue_to_grant.text()
            ),
            format!("enqueue to grant, idle:   {}", self.idle.text()),
            format!(
                "mean batch {:.1} commands, {:.4} fsyncs per job, {:.1} s in commits",
                self.mean_batch(),
                self.flushes_per_job(),
                self.counters.commit_seconds,
            ),
            format!(
                "server: {:.0} µs CPU per job, {:.1} MB resident, {:.1} MB at most",
                self.cpu_micros_per_job(),
                megabytes(self.usage.resident_bytes),
                megabytes(self.usage.peak_resident_bytes),
            ),
            format!("CPU steal: {:.1} %", self.steal),
        ]
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "jobs": self.reached.completed,
            "jobs_per_run": self.load.jobs_per_run,
            "slots": self.load.slots,
            "submitters": self.load.submitters,
            "seconds": self.reached.elapsed.as_secs_f64(),
            "jobs_per_second": self.reached.per_second(),
            "enqueue_to_grant_loaded": self.reached.enqueue_to_grant.json(),
            "enqueue_to_grant_idle": self.idle.json(),
            "mean_batch": self.mean_batch(),
            "fsyncs_per_job": self.flushes_per_job(),
            "commit_seconds": self.counters.commit_seconds,
            "server_cpu_micros_per_job": self.cpu_micros_per_job(),
            "server_resident_bytes": self.usage.resident_bytes,
            "server_peak_resident_bytes": self.usage.peak_resident_bytes,
            "cpu_steal_percent": self.steal,
        })
    }
}

fn bar(terminal: &Terminal, length: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if !terminal.live() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        return bar;
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {per_sec} {eta}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(what);
    terminal::bars().add(bar)
}
