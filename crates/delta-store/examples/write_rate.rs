//! How many events a second the SQLite store writes, in batches, each batch one flush.
//!
//! `cargo run --release -p delta-store --example write_rate -- BATCHES BATCH FINISHED QUEUED`
//! creates runs of one job, grants, acknowledges and completes them, a batch of commands at a time,
//! on one thread. With FINISHED and QUEUED it measures again in a store that holds so many.

use std::sync::Arc;
use std::time::{Duration, Instant};

use delta_core::attempt::Report;
use delta_core::command::{LeaseProof, NewJob, NewRun, Status};
use delta_core::run::RunHeader;
use delta_core::{Command, Context, JobId, Millis, Policy, RunId, Settings};
use delta_store::events::sha256;
use delta_store::reference_driver::{self, LeaseAsk};
use delta_store::sqlite::{self, SqliteStore};
use delta_store::{Store, StoreError};

const SPEC: &str = r#"{"steps":[{"run":"true"}],"policy":{"timeout":"30m","requires":["linux"]}}"#;

fn main() -> Result<(), StoreError> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |default| arguments.next().and_then(Result::ok).unwrap_or(default);
    let (batches, batch, finished, queued) = (next(400), next(100), next(0), next(0));
    let folder = tempfile::tempdir().map_err(|e| StoreError::Unavailable(e.to_string()))?;
    let (store, _, _) = sqlite::open(folder.path())?;
    let mut bench = Bench {
        store,
        settings: Settings::recommended(),
        now: 1_800_000_000_000,
        runs: 0,
    };
    bench.rounds("warm", 20, batch, "linux")?;
    bench.rounds("empty", batches / 4, batch, "linux")?;
    if finished + queued > 0 {
        bench.rounds("filling", finished / 1000, 1000, "linux")?;
        for _ in 0..queued / 1000 {
            bench.create(1000, "idle")?;
        }
        bench.rounds("full", batches / 4, batch, "linux")?;
        let Bench { store, .. } = bench;
        drop(store);
        let start = Instant::now();
        let _sides = sqlite::open(folder.path())?;
        println!("opened again in {:?}", start.elapsed());
    }
    Ok(())
}

struct Bench {
    store: SqliteStore,
    settings: Settings,
    now: i64,
    runs: u64,
}

impl Bench {
    fn rounds(&mut self, name: &str, rounds: u64, batch: u64, key: &str) -> Result<(), StoreError> {
        let flushes = self.store.flushes();
        let mut spent = [Duration::ZERO; 4];
        let start = Instant::now();
        for _ in 0..rounds {
            let times = self.round(batch, key)?;
            for (sum, time) in spent.iter_mut().zip(times) {
                *sum += time;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let events = rounds * batch * 4;
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / (rounds * batch) as f64;
        println!(
            "{name}: {events} events in {seconds:.2} s = {:.0} events/s, {} flushes; µs each: \
             create {:.1}, grant {:.1}, ack {:.1}, complete {:.1}",
            events as f64 / seconds,
            self.store.flushes() - flushes,
            micros(spent[0]),
            micros(spent[1]),
            micros(spent[2]),
            micros(spent[3]),
        );
        Ok(())
    }

    fn round(&mut self, batch: u64, key: &str) -> Result<[Duration; 4], StoreError> {
        self.now += 10;
        let clock = Instant::now();
        self.create(batch, key)?;
        let created = clock.elapsed();
        let held = self.grant(batch, key)?;
        let granted = clock.elapsed();
        let acks = held.iter().map(|proof| Command::AckLease {
            proof: proof.clone(),
            job: proof.key.attempt.job,
        });
        self.apply(&acks.collect::<Vec<_>>(), &[])?;
        let acknowledged = clock.elapsed();
        let completions = held.iter().map(|proof| Command::Complete {
            proof: proof.clone(),
            digest: proof.token,
            status: Status::Succeeded,
            cause: None,
            report: Box::new(Report {
                exit_code: Some(0),
                ..Report::default()
            }),
        });
        self.apply(&completions.collect::<Vec<_>>(), &[])?;
        let done = clock.elapsed();
        Ok([
            created,
            granted - created,
            acknowledged - granted,
            done - acknowledged,
        ])
    }

    fn create(&mut self, batch: u64, key: &str) -> Result<(), StoreError> {
        let mut commands = Vec::new();
        let mut specs: Vec<(JobId, Arc<str>)> = Vec::new();
        for _ in 0..batch {
            self.runs += 1;
            let id = RunId(u128::from(self.runs) << 64);
            specs.push((id.job(1), SPEC.into()));
            commands.push(Command::CreateRun(Box::new(new_run(id, key))));
        }
        self.apply(&commands, &specs)
    }

    fn grant(&mut self, batch: u64, key: &str) -> Result<Vec<LeaseProof>, StoreError> {
        let ask = |n: u64| LeaseAsk {
            keys: vec![key.into()],
            principal: "agent".into(),
            runner: format!("agent/{n}").into(),
            token: sha256(&(self.runs + n).to_be_bytes()),
        };
        let asks: Vec<LeaseAsk> = (0..batch).map(ask).collect();
        let context = context(&self.settings, self.now);
        let given = reference_driver::lease_many(&mut self.store, &asks, &context)?;
        let proof = |(ask, given): (LeaseAsk, Option<reference_driver::Given>)| {
            let given = given.expect("as many are queued");
            LeaseProof {
                key: given.attempt.lease(given.epoch),
                token: ask.token,
                principal: ask.principal,
                runner: ask.runner,
                speaker: delta_core::rights::Speaker::anybody(),
            }
        };
        Ok(asks.into_iter().zip(given).map(proof).collect())
    }

    fn apply(
        &mut self,
        commands: &[Command],
        specs: &[(JobId, Arc<str>)],
    ) -> Result<(), StoreError> {
        let context = context(&self.settings, self.now);
        let applied =
            reference_driver::apply_with_specs(&mut self.store, commands, specs, &context)?;
        assert!(applied.answers.iter().all(Result::is_ok));
        Ok(())
    }
}

fn context(settings: &Settings, now: i64) -> Context<'_> {
    Context {
        now: Millis(now),
        settings,
        entropy: 1,
        lease_floor: Millis::ZERO,
    }
}

fn new_run(id: RunId, key: &str) -> NewRun {
    NewRun {
        id,
        header: RunHeader::plain("bench", &Settings::recommended()),
        jobs: Some(vec![NewJob {
            name: "job".into(),
            spec: sha256(SPEC.as_bytes()),
            kept: None,
            policy: Policy {
                requires: key.into(),
                ..Policy::plain(&Settings::recommended())
            },
        }]),
    }
}
