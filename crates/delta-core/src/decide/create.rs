//! Making runs (R1 … R4, A11, A14): a run with its jobs in one record, or a plan that comes later.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Stop, Work, settle, turn};
use crate::attempt::AttemptEvent;
use crate::cause::Cause;
use crate::command::{Kept, NewJob, NewRun, Refusal, Reply};
use crate::fact::Fact;
use crate::job::{Job, Resolution};
use crate::run::{Run, RunEvent, RunSettings, RunState};
use crate::world::Want;

pub(super) fn create_run(work: &mut Work, new: &NewRun) -> Result<Reply, Stop> {
    if let Some((key, digest)) = new.header.idempotency {
        let known = work
            .world
            .keys
            .get(&key)
            .ok_or(Stop::Missing(Want::Key(key)))?;
        if let Some(run) = known {
            return replay(work, *run, &digest);
        }
    }
    if let Some(run) = held_by(work, new)? {
        return Ok(Reply::Created {
            run,
            replayed: true,
        });
    }
    if work.find_run()?.is_some() {
        return Err(Refusal::RunExists(new.id).into());
    }
    work.emit(Fact::RunCreated(Box::new(Run {
        id: new.id,
        header: new.header.clone(),
        state: RunState::Created,
        outcome: None,
        cause: None,
        cancel: None,
        created_at: work.now(),
        queued_at: None,
        started_at: None,
        ended_at: None,
        jobs: 0,
        live_jobs: 0,
        required_failed: 0,
        required_canceled: 0,
        place: None,
    })))?;
    work.move_run(RunEvent::PlanningStarted, None)?;
    match &new.jobs {
        None => {}
        Some(jobs) if jobs.is_empty() => {
            fail_plan(work, Cause::EmptyPlan)?;
        }
        Some(jobs) => {
            plan(work, jobs, None)?;
        }
    }
    Ok(Reply::Created {
        run: new.id,
        replayed: false,
    })
}

/// A request that is repeated under its key gets the run it made; another one is refused.
fn replay(work: &Work, run: crate::RunId, digest: &crate::Digest) -> Result<Reply, Stop> {
    let known = work
        .world
        .runs
        .get(&run)
        .ok_or(Stop::Missing(Want::Run(run)))?;
    match known.as_ref().and_then(|run| run.header.idempotency) {
        Some((_, used)) if used == *digest => Ok(Reply::Created {
            run,
            replayed: true,
        }),
        _ => Err(Refusal::KeyReused(run).into()),
    }
}

/// The run that has the key for itself now, if there is one.
fn held_by(work: &Work, new: &NewRun) -> Result<Option<crate::RunId>, Stop> {
    let Some(unique) = new.header.unique else {
        return Ok(None);
    };
    let newest = work.world.uniques.get(&unique.key);
    let Some(run) = newest.ok_or(Stop::Missing(Want::Unique(unique.key)))? else {
        return Ok(None);
    };
    let known = work
        .world
        .runs
        .get(run)
        .ok_or(Stop::Missing(Want::Run(*run)))?;
    let until = known
        .as_ref()
        .and_then(|it| it.header.unique)
        .map(|unique| unique.until);
    Ok(until.filter(|until| work.now() < *until).map(|_| *run))
}

pub(super) fn plan(
    work: &mut Work,
    jobs: &[NewJob],
    settings: Option<&RunSettings>,
) -> Result<Reply, Stop> {
    let run = work.run()?;
    let state = run.state;
    if state != RunState::Planning {
        return Err(wrong_state(state, "a plan"));
    }
    let known = run.header.settings();
    if let Some(settings) = settings.filter(|settings| **settings != known) {
        work.emit(Fact::RunConfigured(settings.clone()))?;
    }
    create_jobs(work, jobs)?;
    work.move_run(RunEvent::Planned, None)?;
    if let Some(cancel) = work.run()?.cancel.clone() {
        // A11: asked for while planning. Nothing was dispatched, so nothing needs to be heard.
        work.move_run(RunEvent::CancelRequested, None)?;
        return super::cancel::every_job(work, cancel.cause, &cancel.by)
            .map(|()| Reply::Done { changed: true });
    }
    if jobs.is_empty() {
        work.move_run(RunEvent::Started, None)?;
        work.move_run(RunEvent::Succeeded, Some(Cause::NothingToRun))?;
        settle::publish_outcome(work)?;
        return Ok(Reply::Done { changed: true });
    }
    if work.run()?.header.concurrency.is_some() {
        work.emit(Fact::LineEntered { job: 0 })?;
    }
    let now = work.now();
    for (n, job) in (1..).zip(jobs).filter(|(_, job)| job.kept.is_none()) {
        let due = job.policy.not_before.is_none_or(|at| at <= now);
        if work.job(work.run.job(n))?.waiting_on == 0 && due {
            turn::ready(work, work.run.job(n))?;
        }
    }
    Ok(Reply::Done { changed: true })
}

fn create_jobs(work: &mut Work, jobs: &[NewJob]) -> Result<(), Stop> {
    let dependents = dependents_of(jobs)?;
    check_kept(jobs)?;
    let unmet = |need: &&u32| jobs[**need as usize - 1].kept.is_none();
    for ((n, job), dependents) in (1u32..).zip(jobs).zip(dependents) {
        work.emit(Fact::JobCreated(Box::new(Job {
            id: work.run.job(n),
            name: job.name.clone(),
            waiting_on: job.policy.needs.iter().filter(unmet).count() as u32,
            policy: Arc::new(job.policy.clone()),
            spec: job.spec,
            dependents: dependents.into(),
            attempts: 1,
            resolution: None,
            cause: None,
            ended_at: None,
            kept: job.kept.map(|kept| kept.job),
            place: None,
        })))?;
    }
    for (n, kept) in (1u32..).zip(jobs.iter().map(|job| job.kept)) {
        if let Some(kept) = kept {
            keep(work, n, kept)?;
        }
    }
    Ok(())
}

/// A job that ends as it was made: as it ended in the run before.
fn keep(work: &mut Work, n: u32, kept: Kept) -> Result<(), Stop> {
    let event = match kept.resolution {
        Resolution::Succeeded => AttemptEvent::Kept,
        Resolution::Failed => AttemptEvent::KeptFailed,
        Resolution::Canceled => AttemptEvent::Dropped,
    };
    work.move_attempt(work.run.job(n).attempt(1), event, kept.cause)?;
    work.emit(Fact::JobResolved {
        job: n,
        resolution: kept.resolution,
        cause: kept.cause,
    })
}

/// Nothing runs on a need that was never met, nothing is kept whose need runs again, and something
/// is left to run.
fn check_kept(jobs: &[NewJob]) -> Result<(), Stop> {
    if !jobs.is_empty() && jobs.iter().all(|job| job.kept.is_some()) {
        return Err(Refusal::BadPlan("every job is kept: nothing is left to run".into()).into());
    }
    for job in jobs {
        let needs = job.policy.needs.iter().map(|n| &jobs[*n as usize - 1]);
        for need in needs {
            let met = need
                .kept
                .map(|it| it.resolution.meets_needs(need.policy.required));
            let fits = match job.kept {
                Some(_) => met.is_some(),
                None => met != Some(false),
            };
            if !fits {
                let why = format!("job {} does not fit its need {}", job.name, need.name);
                return Err(Refusal::BadPlan(why).into());
            }
        }
    }
    Ok(())
}

/// Who needs whom, turned around. Needs must name other jobs of the plan, each once, and lead
/// somewhere (Kahn's algorithm).
fn dependents_of(jobs: &[NewJob]) -> Result<Vec<Vec<u32>>, Stop> {
    let mut dependents = vec![Vec::new(); jobs.len()];
    for (n, job) in (1u32..).zip(jobs) {
        if job.policy.not_before.is_some() && !job.policy.needs.is_empty() {
            let why = format!("job {} has needs and a delay", job.name);
            return Err(Refusal::BadPlan(why).into());
        }
        let mut seen = BTreeSet::new();
        for need in &job.policy.needs {
            if *need == 0 || *need as usize > jobs.len() || *need == n || !seen.insert(need) {
                let why = format!("job {} has a need that cannot be: {need}", job.name);
                return Err(Refusal::BadPlan(why).into());
            }
            dependents[*need as usize - 1].push(n);
        }
    }
    let mut open: Vec<usize> = jobs.iter().map(|job| job.policy.needs.len()).collect();
    let mut ready: Vec<usize> = (0..jobs.len()).filter(|n| open[*n] == 0).collect();
    let mut done = 0;
    while let Some(n) = ready.pop() {
        done += 1;
        for &dependent in &dependents[n] {
            let other = dependent as usize - 1;
            open[other] -= 1;
            if open[other] == 0 {
                ready.push(other);
            }
        }
    }
    if done < jobs.len() {
        return Err(Refusal::BadPlan("the needs of the jobs form a cycle".into()).into());
    }
    Ok(dependents)
}

pub(super) fn fail_plan(work: &mut Work, cause: Cause) -> Result<Reply, Stop> {
    let state = work.run()?.state;
    if state != RunState::Planning {
        return Err(wrong_state(state, "a failed plan"));
    }
    work.move_run(RunEvent::PlanningFailed, None)?;
    work.move_run(RunEvent::Failed, Some(cause))?;
    settle::publish_outcome(work)?;
    Ok(Reply::Done { changed: true })
}

fn wrong_state(state: RunState, what: &str) -> Stop {
    Refusal::WrongState(format!(
        "{what} does not fit a run that is {}",
        state.name()
    ))
    .into()
}
