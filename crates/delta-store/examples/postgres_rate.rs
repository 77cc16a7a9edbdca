//! How many jobs a second the PostgreSQL store takes through their whole life, each step of a
//! hundred of them one batch and one flush, loaded and locked as several servers need it.
//!
//! `cargo run --release -p delta-store --example postgres_rate -- SECONDS BATCH [URL]`
//! starts a durable PostgreSQL of its own unless an address is given, and prints the time of each
//! part of a batch and, for its own server, the processor time per job.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use delta_core::attempt::Report;
use delta_core::command::{LeaseProof, NewJob, NewRun, Status};
use delta_core::lease::epoch;
use delta_core::run::RunHeader;
use delta_core::{
    Command, Context, Millis, Policy, RunId, Settings, Stop, Text, Want, World, decide,
};
use delta_store::events::sha256;
use delta_store::postgres::{self, PgStore};
use delta_store::{Claim, Store, StoreError, Writes};
use delta_testkit::postgres::{Postgres, PostgresOptions};

const SPEC: &str = r#"{"steps":[{"run":"true"}],"policy":{"timeout":"30m","requires":["linux"]}}"#;
const STEPS: [&str; 4] = ["create", "grant", "acknowledge", "complete"];

/// Time spent in the parts of a batch.
#[derive(Clone, Copy, Default)]
struct Parts {
    begin: Duration,
    load: Duration,
    decide: Duration,
    commit: Duration,
}

struct Bench {
    store: PgStore,
    settings: Settings,
    runs: u64,
    parts: [Parts; 4],
}

fn main() -> Result<(), StoreError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (seconds, size) = (number(0).unwrap_or(10), number(1).unwrap_or(100));
    let own = match arguments.get(2) {
        Some(_) => None,
        None => Some(own_server().map_err(|e| StoreError::Unavailable(e.to_string()))?),
    };
    let own_url = own.as_ref().map(|cluster| cluster.url("postgres"));
    let url = arguments.get(2).cloned().or(own_url).unwrap_or_default();
    let (store, _, _) = postgres::open(&url)?;
    let mut bench = Bench {
        store,
        settings: Settings::recommended(),
        runs: 0,
        parts: Default::default(),
    };
    for _ in 0..20 {
        bench.lives(size)?;
    }
    bench.parts = Default::default();
    let data = own.as_ref().map(|cluster| cluster.folder().join("data"));
    let ticks = || (data.as_deref().map_or(0, ticks_below), ticks("self"));
    let (before, flushes, start) = (ticks(), bench.store.flushes(), Instant::now());
    let mut rounds = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        bench.lives(size)?;
        rounds += 1;
    }
    let (took, after) = (start.elapsed().as_secs_f64(), ticks());
    let jobs = (rounds * size) as f64;
    println!(
        "{jobs} jobs in {took:.1} s = {:.0} jobs/s, {:.3} flushes per job; processor µs per job: \
         PostgreSQL {:.0}, this process {:.0}",
        jobs / took,
        (bench.store.flushes() - flushes) as f64 / jobs,
        (after.0 - before.0) as f64 * 10_000.0 / jobs,
        (after.1 - before.1) as f64 * 10_000.0 / jobs,
    );
    for (name, parts) in STEPS.iter().zip(bench.parts) {
        let millis = |time: Duration| time.as_secs_f64() * 1e3 / rounds as f64;
        println!(
            "{name:12} ms per batch: begin {:.2}, load {:.2}, decide {:.2}, commit {:.2}",
            millis(parts.begin),
            millis(parts.load),
            millis(parts.decide),
            millis(parts.commit),
        );
    }
    Ok(())
}

impl Bench {
    /// `size` runs of one job, each from its creation to its end.
    fn lives(&mut self, size: u64) -> Result<(), StoreError> {
        let now = now();
        let first = self.runs + 1;
        self.runs += size;
        let id = |n: u64| RunId((now.0 as u128) << 80 | u128::from(n));
        let ids: Vec<RunId> = (first..first + size).map(id).collect();
        let runs = ids.iter().map(|id| Want::Run(*id)).collect();
        self.batch(0, now, runs, |_, _| {
            Ok(ids.iter().map(|id| create(*id)).collect())
        })?;
        let runners: Vec<Text> = (0..size).map(|n| format!("agent/{n}").into()).collect();
        let holder = |runner: &Text| Want::Holder("agent".into(), runner.clone());
        let mut held = Vec::new();
        self.batch(
            1,
            now,
            runners.iter().map(holder).collect(),
            |store, world| {
                let claim = Claim {
                    keys: vec!["linux".into()],
                    limit: size as usize,
                    skip: BTreeSet::new(),
                };
                let claimed = store.claim(&claim, world)?;
                held.extend(
                    claimed
                        .iter()
                        .zip(&runners)
                        .map(|(attempt, runner)| LeaseProof {
                            key: attempt.lease(epoch(1, 1)),
                            token: [3; 32],
                            principal: "agent".into(),
                            runner: runner.clone(),
                            speaker: delta_core::rights::Speaker::anybody(),
                        }),
                );
                Ok(held.iter().map(grant).collect())
            },
        )?;
        let attempts: BTreeSet<Want> = held
            .iter()
            .map(|proof| Want::Attempt(proof.key.attempt))
            .collect();
        self.batch(2, now, attempts.clone(), |_, _| {
            Ok(held.iter().map(acknowledge).collect())
        })?;
        self.batch(3, now, attempts, |_, _| {
            Ok(held.iter().map(complete).collect())
        })
    }

    fn batch(
        &mut self,
        step: usize,
        now: Millis,
        wants: BTreeSet<Want>,
        commands: impl FnOnce(&mut PgStore, &mut World) -> Result<Vec<Command>, StoreError>,
    ) -> Result<(), StoreError> {
        let clock = Instant::now();
        self.store.begin()?;
        let begun = clock.elapsed();
        let mut world = World::default();
        self.store.load(&wants, &mut world)?;
        let commands = commands(&mut self.store, &mut world)?;
        let loaded = clock.elapsed();
        let context = Context {
            now,
            settings: &self.settings,
            entropy: 1,
            lease_floor: Millis::ZERO,
        };
        let mut writes = Writes::default();
        for command in &commands {
            let decision = loop {
                match decide(&world, command, &context) {
                    Ok(decision) => break decision,
                    Err(Stop::Missing(want)) => self.store.load(&[want].into(), &mut world)?,
                    Err(Stop::Refused(refusal)) => panic!("{refusal}"),
                }
            };
            world.absorb(&decision.edits);
            writes.edits.absorb(decision.edits);
            writes.records.extend(decision.record);
            if let Command::CreateRun(new) = command {
                writes.specs.push((new.id.job(1), SPEC.into()));
                writes.notify = true;
            }
        }
        let decided = clock.elapsed();
        let committed = self.store.commit(&writes);
        committed.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let parts = &mut self.parts[step];
        parts.begin += begun;
        parts.load += loaded - begun;
        parts.decide += decided - loaded;
        parts.commit += clock.elapsed() - decided;
        Ok(())
    }
}

fn own_server() -> anyhow::Result<Postgres> {
    let settings = [("shared_buffers", "256MB"), ("max_wal_size", "4GB")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    Postgres::start_with(PostgresOptions {
        settings: settings.into(),
        ..PostgresOptions::durable()
    })
}

fn create(id: RunId) -> Command {
    let policy = Policy {
        requires: "linux".into(),
        ..Policy::plain(&Settings::recommended())
    };
    let job = NewJob {
        name: "job".into(),
        spec: sha256(SPEC.as_bytes()),
        kept: None,
        policy,
    };
    let header = RunHeader::plain("bench", &Settings::recommended());
    let jobs = Some(vec![job]);
    Command::CreateRun(Box::new(NewRun { id, header, jobs }))
}

fn grant(proof: &LeaseProof) -> Command {
    Command::Grant {
        attempt: proof.key.attempt,
        principal: proof.principal.clone(),
        runner: proof.runner.clone(),
        token: proof.token,
        epoch: proof.key.epoch,
    }
}

fn acknowledge(proof: &LeaseProof) -> Command {
    Command::AckLease {
        proof: proof.clone(),
        job: proof.key.attempt.job,
    }
}

fn complete(proof: &LeaseProof) -> Command {
    Command::Complete {
        proof: proof.clone(),
        digest: [1; 32],
        status: Status::Succeeded,
        cause: None,
        report: Box::new(Report {
            exit_code: Some(0),
            ..Report::default()
        }),
    }
}

fn now() -> Millis {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    Millis(since_epoch.map_or(0, |since| since.as_millis() as i64))
}

/// Processor time of a process so far, in hundredths of a second.
fn ticks(pid: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum()
}

/// Processor time of all processes that work in this folder, in hundredths of a second.
fn ticks_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str().map(str::to_owned));
    let works = |pid: &String| {
        std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == folder)
    };
    names.filter(works).map(|pid| ticks(&pid)).sum()
}
