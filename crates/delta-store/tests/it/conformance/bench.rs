//! A store on the bench: short words for what a case does with it.

use std::sync::Arc;

use delta_core::attempt::Progress;
use delta_core::command::{LeaseProof, NewJob, NewRun, Status};
use delta_core::run::RunHeader;
use delta_core::{
    Attempt, AttemptId, Cause, Command, Context, Digest, JobId, Millis, Policy, Reply, Run, RunId,
    Settings, Text,
};
use delta_store::StoreError;
use delta_store::events::sha256;
use delta_store::memory::Fault;
use delta_store::read::{JobRows, Reader, RunRows};
use delta_store::reference_driver::{self, Answer, LeaseAsk};
use delta_store::side_tables::SideTables;

use super::Fixture;
use super::faulty::Faulty;

/// Well after 1970, so that nothing runs below zero.
pub const START: Millis = Millis(1_800_000_000_000);

pub struct Bench {
    pub fixture: Fixture,
    pub store: Faulty,
    pub reader: Arc<dyn Reader>,
    pub tables: Arc<dyn SideTables>,
    pub now: Millis,
    pub settings: Settings,
    pub entropy: u64,
    tokens: u64,
}

/// A lease as its holder knows it.
#[derive(Clone, Debug)]
pub struct Held {
    pub proof: LeaseProof,
}

impl Held {
    pub fn attempt(&self) -> AttemptId {
        self.proof.key.attempt
    }
}

/// The n-th run of a case; ids sort by n.
pub fn run_id(n: u64) -> RunId {
    RunId(0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(n))
}

pub fn policy(requires: &str) -> Policy {
    Policy {
        requires: requires.into(),
        ..Policy::plain(&Settings::recommended())
    }
}

pub fn new_job(name: &str, policy: Policy) -> NewJob {
    NewJob {
        name: name.into(),
        spec: sha256(spec_text(name).as_bytes()),
        kept: None,
        policy,
    }
}

/// The spec that belongs to a job of this name.
pub fn spec_text(name: &str) -> Arc<str> {
    format!("{{\"name\": \"{name}\",  \"text\":\"żółw\\n\"}}\r\n").into()
}

pub fn header() -> RunHeader {
    RunHeader::plain("ann", &Settings::recommended())
}

pub fn digest(n: u64) -> Digest {
    sha256(&n.to_be_bytes())
}

impl Bench {
    pub fn new(make: &dyn Fn() -> Fixture) -> Bench {
        let fixture = make();
        let (store, reader, tables) = (fixture.open)();
        Bench {
            fixture,
            store: Faulty::new(store),
            reader,
            tables,
            now: START,
            settings: Settings::recommended(),
            entropy: 7,
            tokens: 0,
        }
    }

    /// The process dies here and another one opens the state.
    pub fn reopen(self) -> Bench {
        drop((self.store, self.reader, self.tables));
        let (store, reader, tables) = (self.fixture.open)();
        Bench {
            fixture: self.fixture,
            store: Faulty::new(store),
            reader,
            tables,
            now: self.now,
            settings: self.settings,
            entropy: self.entropy,
            tokens: self.tokens,
        }
    }

    pub fn inject(&mut self, fault: Fault) {
        self.store.inject(fault);
    }

    pub fn context(&self) -> Context<'_> {
        context(self.now, &self.settings, self.entropy)
    }

    pub fn apply(&mut self, commands: &[Command]) -> Vec<Answer> {
        self.try_apply(commands).expect("the store answers")
    }

    pub fn try_apply(&mut self, commands: &[Command]) -> Result<Vec<Answer>, StoreError> {
        let specs = specs_of(commands);
        let context = context(self.now, &self.settings, self.entropy);
        let applied =
            reference_driver::apply_with_specs(&mut self.store, commands, &specs, &context)?;
        Ok(applied.answers)
    }

    pub fn one(&mut self, command: Command) -> Answer {
        self.apply(&[command]).remove(0)
    }

    /// A run of jobs without needs, one for each of these requirements.
    pub fn create(&mut self, n: u64, requires: &[&str]) -> RunId {
        let jobs = requires
            .iter()
            .enumerate()
            .map(|(i, requires)| new_job(&format!("job-{n}-{i}"), policy(requires)))
            .collect();
        self.create_with(n, header(), jobs)
    }

    pub fn create_with(&mut self, n: u64, header: RunHeader, jobs: Vec<NewJob>) -> RunId {
        let id = run_id(n);
        let answer = self.one(Command::CreateRun(Box::new(NewRun {
            id,
            header,
            jobs: Some(jobs),
        })));
        let made = Reply::Created {
            run: id,
            replayed: false,
        };
        assert_eq!(answer, Ok(made));
        id
    }

    pub fn lease(&mut self, runner: &str, keys: &[&str]) -> Option<Held> {
        self.tokens += 1;
        let ask = LeaseAsk {
            keys: keys.iter().map(|key| Text::from(*key)).collect(),
            principal: "agent".into(),
            runner: runner.into(),
            token: digest(self.tokens),
        };
        let context = context(self.now, &self.settings, self.entropy);
        let given =
            reference_driver::lease(&mut self.store, &ask, &context).expect("the store answers")?;
        assert!(given.answer.is_ok(), "{:?}", given.answer);
        Some(Held {
            proof: LeaseProof {
                key: given.attempt.lease(given.epoch),
                token: ask.token,
                principal: ask.principal,
                runner: ask.runner,
                speaker: delta_core::rights::Speaker::anybody(),
            },
        })
    }

    pub fn ack(&mut self, held: &Held) -> Answer {
        self.one(ack(held))
    }

    pub fn heartbeat(&mut self, held: &Held, seq: u64) -> Answer {
        self.one(heartbeat(held, seq))
    }

    pub fn complete(&mut self, held: &Held) -> Answer {
        self.one(complete(held, Status::Succeeded, None))
    }

    /// Lease, acknowledge and complete whatever is first.
    pub fn work_off(&mut self, runner: &str, keys: &[&str]) -> Option<AttemptId> {
        let held = self.lease(runner, keys)?;
        assert!(matches!(self.ack(&held), Ok(Reply::Acknowledged { .. })));
        assert_eq!(self.complete(&held), Ok(Reply::Completed));
        Some(held.attempt())
    }

    pub fn run(&self, id: RunId) -> Run {
        self.run_rows(id).run
    }

    pub fn run_rows(&self, id: RunId) -> RunRows {
        let found = self.reader.run(id).expect("the store answers");
        found.unwrap_or_else(|| panic!("{id} is not there"))
    }

    pub fn job_rows(&self, id: JobId) -> JobRows {
        let found = self.reader.job(id).expect("the store answers");
        found.unwrap_or_else(|| panic!("{id} is not there"))
    }

    pub fn attempt(&self, id: AttemptId) -> Attempt {
        let rows = self.job_rows(id.job);
        let found = rows.attempts.into_iter().find(|row| row.id == id);
        found.unwrap_or_else(|| panic!("{id} is not there"))
    }
}

pub fn context(now: Millis, settings: &Settings, entropy: u64) -> Context<'_> {
    Context {
        now,
        settings,
        entropy,
        lease_floor: Millis::ZERO,
    }
}

/// The specs of every job these commands may create.
pub fn specs_of(commands: &[Command]) -> Vec<(JobId, Arc<str>)> {
    let jobs_of = |command: &Command| match command {
        Command::CreateRun(new) => (new.id, new.jobs.clone().unwrap_or_default()),
        Command::Plan { run, jobs, .. } => (*run, jobs.clone()),
        other => (other.run(), Vec::new()),
    };
    let mut specs = Vec::new();
    for command in commands {
        let (run, jobs) = jobs_of(command);
        let named = (1..).zip(jobs);
        specs.extend(named.map(|(n, job)| (run.job(n), spec_text(&job.name))));
    }
    specs
}

pub fn ack(held: &Held) -> Command {
    Command::AckLease {
        proof: held.proof.clone(),
        job: held.attempt().job,
    }
}

pub fn heartbeat(held: &Held, seq: u64) -> Command {
    Command::Heartbeat {
        proof: held.proof.clone(),
        seq: Some(seq),
        progress: Progress {
            percent: Some(seq as u8),
            message: Some(format!("step {seq}").into()),
            ..Progress::default()
        },
        uploading: false,
    }
}

pub fn complete(held: &Held, status: Status, cause: Option<Cause>) -> Command {
    let exit_code = match status {
        Status::Succeeded => 0,
        _ => 1,
    };
    Command::Complete {
        proof: held.proof.clone(),
        digest: digest(held.proof.key.epoch ^ exit_code),
        status,
        cause,
        report: Box::new(delta_core::attempt::Report {
            exit_code: Some(exit_code as i64),
            summary: Some("12 passed".into()),
            ..Default::default()
        }),
    }
}
