//! The people of the simulated world: who makes runs, plans them, cancels them, runs them again and
//! publishes their outcome.

use std::sync::Arc;

use delta_core::command::{NewJob, NewRun};
use delta_core::policy::RetryOn;
use delta_core::run::{RunHeader, RunSettings};
use delta_core::{Cause, Command, Concurrency, Digest, JobId, Policy, RunId, Settings, Span, Text};
use delta_store::events::sha256;

use crate::rng::Rng;

/// Match keys in use: anybody, and those with the tag.
const KEYS: [&str; 3] = ["", "", "gpu"];

/// A run as a person wants it; sent again under the same key until it is answered.
#[derive(Clone, Debug)]
pub struct Wish {
    pub header: RunHeader,
    pub jobs: Vec<NewJob>,
    /// A planner answers later.
    pub planned: bool,
}

pub fn spec(name: &str) -> Arc<str> {
    format!("{{\"name\":\"{name}\"}}").into()
}

pub fn wish(rng: &mut Rng, rerun_of: Option<RunId>) -> Wish {
    let count = rng.between(1, 4) as u32;
    let jobs: Vec<NewJob> = (1..=count).map(|n| job(n, rng)).collect();
    let header = RunHeader {
        trusted: true,
        run_attempt: if rerun_of.is_some() { 2 } else { 1 },
        rerun_of,
        priority: rng.between(-1, 1) as i32,
        fail_fast: rng.per_mille(300),
        concurrency: group(rng, 250),
        needs_report: rng.per_mille(300),
        run_timeout: Span::secs(rng.between(8, 60)),
        wait_timeout: Span::secs(rng.between(5, 60)),
        planning_timeout: Span::secs(5),
        idempotency: Some((rng.digest(), rng.digest())),
        ..RunHeader::plain("ann", &Settings::recommended())
    };
    let planned = rng.per_mille(300);
    Wish {
        header,
        jobs,
        planned,
    }
}

/// One of two groups, for some.
fn group(rng: &mut Rng, per_mille: u64) -> Option<Concurrency> {
    let name = if rng.coin() { "one" } else { "two" };
    // Groups of runs and groups of jobs are never the same.
    let key = sha256(format!("{name} {per_mille}").as_bytes());
    let cancel_older = rng.per_mille(300);
    rng.per_mille(per_mille).then(|| Concurrency {
        group: name.into(),
        key,
        cancel_older,
    })
}

fn job(n: u32, rng: &mut Rng) -> NewJob {
    let needs = (1..n).filter(|_| rng.per_mille(350)).collect();
    let name: Text = format!("job {n}").into();
    let mut retry_on = Policy::default_retry_on();
    if rng.coin() {
        retry_on.insert(RetryOn::Timeout);
    }
    NewJob {
        spec: sha256(spec(&name).as_bytes()),
        kept: None,
        name,
        policy: Policy {
            required: rng.per_mille(750),
            needs,
            max_attempts: rng.between(1, 3) as u32,
            timeout: Span::secs(rng.between(1, 15)),
            requires: (*rng.pick(&KEYS).unwrap_or(&"")).into(),
            once: rng.per_mille(100),
            retry_on,
            fail_fast_group: rng.per_mille(200).then(|| "cells".into()),
            concurrency: group(rng, 150),
            ..Policy::plain(&Settings::recommended())
        },
    }
}

impl Wish {
    pub fn command(&self, id: RunId) -> Command {
        Command::CreateRun(Box::new(NewRun {
            id,
            header: self.header.clone(),
            jobs: (!self.planned).then(|| self.jobs.clone()),
        }))
    }

    pub fn specs(&self, id: RunId) -> Vec<(JobId, Arc<str>)> {
        let numbered = (1..).zip(&self.jobs);
        numbered
            .map(|(n, job)| (id.job(n), spec(&job.name)))
            .collect()
    }

    /// The planner's answer, or none.
    pub fn plan(&self, run: RunId, rng: &mut Rng) -> Option<Command> {
        match rng.below(10) {
            0 => None,
            1 => Some(Command::FailPlan {
                run,
                cause: Cause::PlanError,
            }),
            2 => Some(Command::Plan {
                run,
                jobs: Vec::new(),
                settings: None,
            }),
            _ => Some(Command::Plan {
                run,
                jobs: self.jobs.clone(),
                settings: Some(RunSettings {
                    fail_fast: rng.per_mille(300),
                    ..self.header.settings()
                }),
            }),
        }
    }

    pub fn key(&self) -> Option<Digest> {
        self.header.idempotency.map(|(key, _)| key)
    }
}

/// A cancel by hand of a run or one of its jobs.
pub fn cancel(run: RunId, rng: &mut Rng) -> Command {
    let (by, cause) = (Text::from("bob"), Cause::CanceledByUser);
    match rng.below(3) {
        0 => Command::CancelRun {
            run,
            cause: Cause::Superseded,
            by,
        },
        1 => Command::CancelRun { run, cause, by },
        _ => Command::CancelJob {
            job: run.job(rng.between(1, 4) as u32),
            cause,
            by,
        },
    }
}
