//! Random commands against a store and against a plain model, compared row by row.
//!
//! The model is a world that holds everything and decides by the same core. What is tested is the
//! store: that it loads the right rows, writes all of them, keeps its memory in step with its
//! tables, and survives faults and reopening at any moment.

use std::collections::{BTreeMap, BTreeSet};

use delta_core::command::{LeaseProof, NewJob, NewRun, Status};
use delta_core::deadlines::attempt_due_at;
use delta_core::group::{self, Members};
use delta_core::run::RunSettings;
use delta_core::{
    AttemptId, AttemptState, Cause, Command, Concurrency, Context, Digest, Lease, Millis, RunId,
    RunState, Span, Stop, Text, Want, World, decide,
};
use delta_store::memory::Fault;
use delta_store::reference_driver::Answer;
use delta_store::{Due, Store};
use delta_testkit::rng::{Rng, fresh_seed};

use super::Fixture;
use super::bench::{
    Bench, Held, ack, complete, digest, header, heartbeat, new_job, policy, run_id,
};

const KEYS: [&str; 3] = ["", "linux", "gpu linux"];
const RUNNERS: u64 = 5;

/// Enough steps for every command to meet every state a few times.
fn steps() -> u64 {
    match std::env::var_os("DELTA_QUICK") {
        Some(_) => 250,
        None => 1200,
    }
}

/// Seeds of a storm, for each store: a quarter of an hour.
const STORM_SEEDS: usize = 50;

pub fn random_commands_match_the_model(make: &dyn Fn() -> Fixture) {
    let storm = std::env::var_os("DELTA_STORM").is_some();
    for _ in 0..if storm { STORM_SEEDS } else { 1 } {
        play(make, fresh_seed());
    }
}

fn play(make: &dyn Fn() -> Fixture, seed: u64) {
    println!("replay with DELTA_TEST_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut bench = Bench::new(make);
    let mut player = Player::default();
    for step in 0..steps() {
        bench.now = bench.now + Span(rng.below(15_000) as i64);
        bench.entropy = rng.next_u64();
        match rng.below(20) {
            0 => bench = bench.reopen(),
            1 => bench = crash_in_a_batch(bench),
            2..=5 => player.lease(&mut bench, &mut rng),
            6..=8 => player.sweep(&mut bench),
            _ => player.batch(&mut bench, &mut rng),
        }
        if step % 50 == 0 {
            player.compare(&mut bench);
        }
    }
    player.compare(&mut bench);
    let mut bench = bench.reopen();
    player.compare(&mut bench);
    let report = delta_store::doctor::examine(&*bench.reader, &mut |_| {}).unwrap();
    assert_eq!(report.first_difference, None);
}

/// Everything is looked at, nothing is committed.
fn crash_in_a_batch(mut bench: Bench) -> Bench {
    bench.store.begin().unwrap();
    let ids = bench.reader.run_ids(None, 10).unwrap();
    let wants: BTreeSet<Want> = ids
        .iter()
        .flat_map(|id| [Want::Run(*id), Want::LiveJobs(*id)])
        .collect();
    bench.store.load(&wants, &mut World::default()).unwrap();
    bench.reopen()
}

#[derive(Default)]
struct Player {
    model: World,
    runs: Vec<RunId>,
    held: Vec<Held>,
    seqs: u64,
    tokens: u64,
}

impl Player {
    /// The model's answer; what it does not hold does not exist.
    fn decide(&mut self, command: &Command, context: &Context) -> Answer {
        loop {
            let missing = match decide(&self.model, command, context) {
                Ok(decision) => {
                    self.model.absorb(&decision.edits);
                    return Ok(decision.reply);
                }
                Err(Stop::Refused(refusal)) => return Err(refusal),
                Err(Stop::Missing(want)) => want,
            };
            let model = &mut self.model;
            match missing {
                Want::Run(id) => drop(model.runs.insert(id, None)),
                Want::Job(id) => drop(model.jobs.insert(id, None)),
                Want::Attempt(id) => drop(model.attempts.insert(id, None)),
                Want::PastLease(key) => drop(model.past_leases.insert(key, None)),
                Want::Key(key) => drop(model.keys.insert(key, None)),
                Want::Unique(key) => drop(model.uniques.insert(key, None)),
                Want::Holder(principal, runner) => {
                    model.holders.insert((principal, runner), None);
                }
                Want::LiveJobs(run) => drop(model.whole.insert(run)),
                Want::Group(key) => model.put_group(key, Members::new()),
                Want::Agent(id) => drop(model.agents.insert(id, None)),
            }
        }
    }

    fn batch(&mut self, bench: &mut Bench, rng: &mut Rng) {
        let size = 1 + rng.below(6);
        let commands: Vec<Command> = (0..size).map(|_| self.command(bench, rng)).collect();
        for fault in [
            Fault::Conflict,
            Fault::UnknownApplied,
            Fault::UnknownNotApplied,
        ] {
            if rng.chance(0.03) {
                bench.inject(fault);
            }
        }
        self.apply(bench, &commands);
    }

    fn apply(&mut self, bench: &mut Bench, commands: &[Command]) {
        let answers = bench.apply(commands);
        for (command, answer) in commands.iter().zip(answers) {
            let expected = self.decide(command, &bench.context());
            assert_eq!(answer, expected, "{command:?}");
        }
    }

    fn command(&mut self, bench: &Bench, rng: &mut Rng) -> Command {
        let choice = rng.below(24);
        if choice < 3 || self.runs.is_empty() {
            return self.create(rng);
        }
        let run = *rng.pick(&self.runs);
        let cause = Cause::CanceledByUser;
        let by: Text = "ann".into();
        let job = run.job(1 + rng.below(4) as u32);
        match choice {
            3 => Command::Plan {
                run,
                jobs: plan(rng),
                settings: Some(RunSettings {
                    fail_fast: rng.below(2) == 0,
                    ..header().settings()
                }),
            },
            4 => Command::FailPlan {
                run,
                cause: Cause::PlanError,
            },
            5 => Command::CancelRun { run, cause, by },
            6 => Command::CancelJob { job, cause, by },
            7 => Command::Report { run },
            8 => Command::RunDue { run },
            9 => Command::AttemptDue {
                attempt: job.attempt(1 + rng.below(3) as u32),
            },
            _ if self.held.is_empty() => Command::Report { run },
            10..=13 => ack(&self.some_lease(rng)),
            14..=16 => {
                self.seqs += 1;
                heartbeat(&self.some_lease(rng), self.seqs)
            }
            17..=20 => {
                let (status, cause) = result(rng);
                complete(&self.some_lease(rng), status, cause)
            }
            21 => Command::CancelAck {
                proof: self.some_lease(rng).proof,
                digest: digest(bench.now.0 as u64),
                report: Box::default(),
            },
            22 => Command::Decline {
                proof: self.some_lease(rng).proof,
            },
            _ => Command::Revoke {
                lease: self.some_lease(rng).proof.key,
                why: delta_core::lease::Revocation::Operator,
            },
        }
    }

    /// Mostly a recent lease; sometimes an old one, sometimes a forged one.
    fn some_lease(&self, rng: &mut Rng) -> Held {
        let recent = self.held.len().saturating_sub(6);
        let from = if rng.chance(0.8) { recent } else { 0 };
        let mut held = rng.pick(&self.held[from..]).clone();
        if rng.chance(0.03) {
            held.proof.token = digest(u64::MAX);
        }
        held
    }

    fn create(&mut self, rng: &mut Rng) -> Command {
        let n = 1 + self.runs.len() as u64;
        let mut header = header();
        header.fail_fast = rng.chance(0.3);
        header.needs_report = rng.chance(0.3);
        header.run_timeout = Span::minutes(1 + rng.below(60) as i64);
        header.wait_timeout = Span::minutes(1 + rng.below(60) as i64);
        if rng.chance(0.2) {
            header.idempotency = Some((digest(rng.below(4)), digest(rng.below(2))));
        }
        header.concurrency = some_group(rng, 10);
        let jobs = rng.chance(0.8).then(|| plan(rng));
        self.runs.push(run_id(n));
        let id = run_id(n);
        Command::CreateRun(Box::new(NewRun { id, header, jobs }))
    }

    /// What a claim must find: the model's queue in order.
    fn first_queued(&self, keys: &[&str]) -> Option<AttemptId> {
        let attempts = self.model.attempts.values().flatten();
        attempts
            .filter(|attempt| attempt.state == AttemptState::Queued)
            .filter(|attempt| {
                let job = self.model.jobs[&attempt.id.job].as_ref();
                job.is_some_and(|job| keys.contains(&&*job.policy.requires))
            })
            .map(|attempt| (attempt.order_key, attempt.id))
            .min()
            .map(|(_, id)| id)
    }

    fn lease(&mut self, bench: &mut Bench, rng: &mut Rng) {
        self.tokens += 1;
        let runner: Text = format!("r{}", rng.below(RUNNERS)).into();
        let keys = &KEYS[..1 + rng.below(3) as usize];
        let holder = (Text::from("agent"), runner.clone());
        let held = self.model.holders.get(&holder).copied().flatten();
        let attempt = held.or_else(|| self.first_queued(keys));
        let ask = delta_store::reference_driver::LeaseAsk {
            keys: keys.iter().map(|key| Text::from(*key)).collect(),
            principal: holder.0,
            runner: holder.1,
            token: digest(self.tokens),
        };
        let settings = bench.settings.clone();
        let context = super::bench::context(bench.now, &settings, bench.entropy);
        let given = delta_store::reference_driver::lease(&mut bench.store, &ask, &context).unwrap();
        assert_eq!(given.as_ref().map(|given| given.attempt), attempt);
        let Some(given) = given else {
            return;
        };
        let command = Command::Grant {
            attempt: given.attempt,
            principal: ask.principal.clone(),
            runner: ask.runner.clone(),
            token: ask.token,
            epoch: given.epoch,
        };
        assert_eq!(given.answer, self.decide(&command, &context));
        if given.answer.is_ok() {
            self.held.push(Held {
                proof: LeaseProof {
                    key: given.attempt.lease(given.epoch),
                    token: ask.token,
                    principal: ask.principal,
                    runner: ask.runner,
                    speaker: delta_core::rights::Speaker::anybody(),
                },
            });
        }
    }

    fn sweep(&mut self, bench: &mut Bench) {
        let commands: Vec<Command> = self
            .due(bench)
            .into_iter()
            .map(|due| match due {
                Due::Run(run) => Command::RunDue { run },
                Due::Attempt(attempt) => Command::AttemptDue { attempt },
                Due::Turn(member) => Command::TakeTurn { member },
            })
            .collect();
        self.apply(bench, &commands);
    }

    /// The store finds exactly what the model says is due.
    fn due(&self, bench: &mut Bench) -> BTreeSet<Due> {
        let now = bench.now;
        let is_due = |at: Option<Millis>| at.is_some_and(|at| at <= now);
        let attempts = self
            .model
            .attempts
            .values()
            .flatten()
            .filter(|attempt| is_due(attempt_due_at(attempt)));
        let runs = self
            .model
            .runs
            .values()
            .flatten()
            .filter(|run| is_due(run.due_at()));
        let expected: BTreeSet<Due> = attempts
            .map(|attempt| Due::Attempt(attempt.id))
            .chain(runs.map(|run| Due::Run(run.id)))
            .chain(self.turns())
            .collect();
        let found: BTreeSet<Due> = bench.store.due(now, 100_000).unwrap().into_iter().collect();
        assert_eq!(found, expected);
        found
    }

    /// Members of groups about which something is to be done.
    fn turns(&self) -> Vec<Due> {
        let mut groups: BTreeMap<Digest, Members> = BTreeMap::new();
        let runs = self
            .model
            .runs
            .values()
            .flatten()
            .map(|run| (run.header.concurrency.clone(), run.member()));
        let jobs = self
            .model
            .jobs
            .values()
            .flatten()
            .map(|job| (job.policy.concurrency.clone(), job.member()));
        for (group, member) in runs.chain(jobs) {
            if let (Some(group), Some(member)) = (group, member) {
                groups
                    .entry(group.key)
                    .or_default()
                    .insert(member.id, member);
            }
        }
        let due = groups
            .values()
            .flat_map(|group| group::due(group, usize::MAX));
        due.map(Due::Turn).collect()
    }

    fn compare(&self, bench: &mut Bench) {
        self.due(bench);
        let stored = bench.reader.run_ids(None, 100_000).unwrap();
        let known: Vec<RunId> = self
            .model
            .runs
            .iter()
            .filter_map(|(id, run)| run.as_ref().map(|_| *id))
            .collect();
        assert_eq!(stored, known);
        for id in known {
            self.compare_run(bench, id);
        }
        let leased: Vec<AttemptId> = self
            .model
            .attempts
            .values()
            .flatten()
            .filter(|attempt| attempt.live_lease().is_some())
            .map(|attempt| attempt.id)
            .collect();
        assert_eq!(bench.store.leased().unwrap(), leased);
        self.compare_queue(bench);
    }

    fn compare_run(&self, bench: &Bench, id: RunId) {
        let rows = bench.run_rows(id);
        assert_eq!(Some(&rows.run), self.model.runs[&id].as_deref());
        let jobs: Vec<_> = self
            .model
            .jobs
            .range(id.job(0)..=id.job(u32::MAX))
            .filter_map(|(_, job)| job.clone())
            .collect();
        assert_eq!(rows.jobs.len(), jobs.len());
        for (job, (stored, current)) in jobs.iter().zip(&rows.jobs) {
            assert_eq!(&**job, stored);
            let model = self.model.attempts[&job.current()].as_deref();
            assert_eq!(model, Some(current));
            let rows = bench.job_rows(job.id);
            let all = job.id.attempt(0)..=job.id.attempt(u32::MAX);
            let attempts: Vec<_> = self
                .model
                .attempts
                .range(all)
                .filter_map(|(_, row)| row.as_deref())
                .collect();
            assert_eq!(rows.attempts.iter().collect::<Vec<_>>(), attempts);
            let past: Vec<(AttemptId, Lease)> = self
                .model
                .past_leases
                .iter()
                .filter(|(key, _)| key.attempt.job == job.id)
                .filter_map(|(key, lease)| Some((key.attempt, lease.clone()?)))
                .collect();
            assert_eq!(rows.past_leases, past);
        }
    }

    fn compare_queue(&self, bench: &mut Bench) {
        let mut expected: BTreeMap<Text, (u64, Millis)> = BTreeMap::new();
        for attempt in self.model.attempts.values().flatten() {
            if attempt.state == AttemptState::Queued {
                let job = self.model.jobs[&attempt.id.job].as_ref().unwrap();
                let since = attempt.queued_at.unwrap();
                let place = expected.entry(job.policy.requires.clone());
                let depth = place.or_insert((0, since));
                *depth = (depth.0 + 1, depth.1.min(since));
            }
        }
        let depths = bench.reader.queue().unwrap();
        let found: BTreeMap<Text, (u64, Millis)> = depths
            .into_iter()
            .map(|depth| (depth.match_key, (depth.attempts, depth.oldest)))
            .collect();
        assert_eq!(found, expected);
        let running = self
            .model
            .runs
            .values()
            .flatten()
            .filter(|run| run.state == RunState::Running)
            .count();
        let filter = delta_store::read::RunFilter {
            state: Some(RunState::Running),
            ..Default::default()
        };
        assert_eq!(bench.reader.runs(&filter, 100_000).unwrap().len(), running);
    }
}

/// One of two groups, for one in five. Groups of runs and of jobs are never the same.
fn some_group(rng: &mut Rng, of: u64) -> Option<Concurrency> {
    let (n, cancel_older) = (of + rng.below(2), rng.chance(0.3));
    rng.chance(0.2).then(|| Concurrency {
        group: format!("g{n}").into(),
        key: digest(n),
        cancel_older,
    })
}

fn plan(rng: &mut Rng) -> Vec<NewJob> {
    let count = rng.below(5) as u32;
    let job = |n: u32, rng: &mut Rng| {
        let mut policy = policy(rng.pick::<&str>(&KEYS));
        policy.needs = (1..n).filter(|_| rng.chance(0.3)).collect();
        policy.required = rng.chance(0.8);
        policy.once = rng.chance(0.1);
        policy.priority = rng.below(3) as i32 - 1;
        policy.max_attempts = 1 + rng.below(3) as u32;
        policy.concurrency = some_group(rng, 20);
        new_job(&format!("j{n}"), policy)
    };
    (1..=count).map(|n| job(n, rng)).collect()
}

fn result(rng: &mut Rng) -> (Status, Option<Cause>) {
    match rng.below(6) {
        0 => (Status::Failed, None),
        1 => (Status::Failed, Some(Cause::Clone)),
        2 => (Status::TimedOut, None),
        _ => (Status::Succeeded, None),
    }
}
