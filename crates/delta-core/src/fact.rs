//! Facts: what a decision changed, and the only way rows change (D3).
//!
//! An accepted command is stored as one [`Record`] of facts. Applying the facts of a run in order
//! gives its rows back; nothing is decided again. Renewals and progress are no facts.

use crate::attempt::{Attempt, AttemptCancel, AttemptEvent, Progress, Report};
use crate::cause::Cause;
use crate::group::Place;
use crate::id::{AttemptId, JobId, RunId};
use crate::job::{Job, Resolution};
use crate::lease::{Closing, Lease, LeaseEvent, LeaseState, Revocation};
use crate::run::{Run, RunCancel, RunEvent, RunSettings, RunState};
use crate::time::{Millis, Span};
use crate::world::{Rows, Want};
use crate::{Digest, Text};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    RunCreated(Box<Run>),
    /// A job with its first attempt in `CREATED`.
    JobCreated(Box<Job>),
    RunMoved {
        event: RunEvent,
        cause: Option<Cause>,
    },
    /// What the plan says about the run itself; comes with the plan, before any job of it.
    RunConfigured(RunSettings),
    /// Somebody asked for the whole run to stop; recorded before any state moves.
    RunCancelAsked(RunCancel),
    NeedMet {
        job: u32,
    },
    /// Into the line of its group; job 0 is the run itself.
    LineEntered {
        job: u32,
    },
    /// Nobody else of its group is at work.
    TurnTaken {
        job: u32,
    },
    AttemptCreated {
        job: u32,
        index: u32,
        not_before: Millis,
    },
    AttemptMoved {
        job: u32,
        index: u32,
        event: AttemptEvent,
        cause: Option<Cause>,
    },
    CancelAsked {
        job: u32,
        index: u32,
        cancel: AttemptCancel,
    },
    Reported {
        job: u32,
        index: u32,
        report: Box<Report>,
    },
    LeaseGranted {
        job: u32,
        index: u32,
        grant: Box<Grant>,
    },
    LeaseMoved {
        job: u32,
        index: u32,
        event: LeaseEvent,
        ending: Ending,
    },
    /// Losses and unacknowledged grants counted so far.
    Spent {
        job: u32,
        index: u32,
        losses: u32,
        dispatches: u32,
    },
    JobResolved {
        job: u32,
        resolution: Resolution,
        cause: Option<Cause>,
    },
    /// The clamp at a start: a lease may not outlive now + ttl after the clock went back.
    LeaseClamped {
        job: u32,
        index: u32,
        expires_at: Millis,
    },
}

/// What a grant fixes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    pub epoch: u64,
    pub number: u32,
    pub token: Digest,
    pub principal: Text,
    pub runner: Text,
    pub ack_by: Millis,
    pub ttl: Span,
    pub expires_at: Millis,
}

/// How a lease ended, where there is more to say than its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ending {
    pub revocation: Option<Revocation>,
    pub closing: Option<Closing>,
}

/// One accepted command: who asked for what, when, and everything that followed from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub run: RunId,
    pub at: Millis,
    /// The command's name.
    pub command: &'static str,
    pub actor: Text,
    pub facts: Vec<Fact>,
}

/// A fact that does not fit the rows it is applied to: a broken log, never a normal outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfit {
    Missing(Want),
    Illegal(String),
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unfit::Missing(want) => write!(f, "the fact speaks of {want:?}, which does not exist"),
            Unfit::Illegal(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Unfit {}

impl Fact {
    /// Changes the rows of `run` as this fact says, at the moment the record was made.
    pub fn apply<R: Rows>(&self, rows: &mut R, run: RunId, at: Millis) -> Result<(), Unfit> {
        match self {
            Fact::RunCreated(created) => {
                rows.put_run((**created).clone());
                Ok(())
            }
            Fact::JobCreated(job) => {
                let not_before = job.policy.not_before.unwrap_or(at).max(at);
                create_attempt(rows, job.id.attempt(1), at, not_before, 0);
                rows.put_job((**job).clone());
                let run = rows.edit_run(run)?;
                run.jobs += 1;
                run.live_jobs += 1;
                Ok(())
            }
            Fact::RunMoved { event, cause } => move_run(rows, run, at, *event, *cause),
            Fact::RunConfigured(settings) => {
                rows.edit_run(run)?.header.set(settings);
                Ok(())
            }
            Fact::RunCancelAsked(cancel) => {
                rows.edit_run(run)?.cancel = Some(cancel.clone());
                Ok(())
            }
            Fact::NeedMet { job } => {
                let job = rows.edit_job(run.job(*job))?;
                job.waiting_on = job.waiting_on.saturating_sub(1);
                Ok(())
            }
            Fact::LineEntered { job } => {
                *place(rows, run, *job)? = Some(Place {
                    since: at,
                    taken_at: None,
                });
                Ok(())
            }
            Fact::TurnTaken { job } => match place(rows, run, *job)? {
                Some(place) if place.waits() => {
                    place.taken_at = Some(at);
                    Ok(())
                }
                other => Err(illegal(other)),
            },
            Fact::AttemptCreated {
                job,
                index,
                not_before,
            } => {
                let id = run.job(*job);
                let number = rows.edit_attempt(id.attempt(index - 1))?.lease_number;
                create_attempt(rows, id.attempt(*index), at, *not_before, number);
                rows.edit_job(id)?.attempts = *index;
                Ok(())
            }
            Fact::JobResolved {
                job,
                resolution,
                cause,
            } => resolve(rows, run.job(*job), at, *resolution, *cause),
            other => other.apply_to_attempt(rows, run, at),
        }
    }

    fn apply_to_attempt<R: Rows>(&self, rows: &mut R, run: RunId, at: Millis) -> Result<(), Unfit> {
        let edit = |rows: &mut R, job: &u32, index: &u32| -> Result<AttemptId, Unfit> {
            let id = run.job(*job).attempt(*index);
            rows.edit_attempt(id).map(|_| id)
        };
        match self {
            Fact::AttemptMoved {
                job,
                index,
                event,
                cause,
            } => {
                let id = edit(rows, job, index)?;
                move_attempt(rows, id, at, *event, *cause)
            }
            Fact::CancelAsked { job, index, cancel } => {
                let id = edit(rows, job, index)?;
                rows.edit_attempt(id)?.cancel = Some(cancel.clone());
                Ok(())
            }
            Fact::Reported { job, index, report } => {
                let id = edit(rows, job, index)?;
                rows.edit_attempt(id)?.report = Some((**report).clone());
                Ok(())
            }
            Fact::Spent {
                job,
                index,
                losses,
                dispatches,
            } => {
                let id = edit(rows, job, index)?;
                let attempt = rows.edit_attempt(id)?;
                (attempt.losses, attempt.dispatches) = (*losses, *dispatches);
                Ok(())
            }
            Fact::LeaseGranted { job, index, grant } => {
                let id = edit(rows, job, index)?;
                grant_lease(rows, id, at, grant)
            }
            Fact::LeaseMoved {
                job,
                index,
                event,
                ending,
            } => {
                let id = edit(rows, job, index)?;
                move_lease(rows.edit_attempt(id)?, at, *event, ending)
            }
            Fact::LeaseClamped {
                job,
                index,
                expires_at,
            } => {
                let id = edit(rows, job, index)?;
                if let Some(lease) = &mut rows.edit_attempt(id)?.lease {
                    lease.expires_at = *expires_at;
                }
                Ok(())
            }
            other => Err(Unfit::Illegal(format!("{other:?} is not about an attempt"))),
        }
    }
}

/// The place of a job in its group's line, or of the run itself.
fn place<R: Rows>(rows: &mut R, run: RunId, job: u32) -> Result<&mut Option<Place>, Unfit> {
    match job {
        0 => Ok(&mut rows.edit_run(run)?.place),
        n => Ok(&mut rows.edit_job(run.job(n))?.place),
    }
}

fn illegal(what: impl std::fmt::Debug) -> Unfit {
    Unfit::Illegal(format!("{what:?}"))
}

fn create_attempt<R: Rows>(
    rows: &mut R,
    id: AttemptId,
    at: Millis,
    not_before: Millis,
    leases: u32,
) {
    rows.put_attempt(Attempt {
        id,
        state: crate::AttemptState::Created,
        created_at: at,
        not_before,
        queued_at: None,
        order_key: 0,
        ended_at: None,
        cause: None,
        losses: 0,
        dispatches: 0,
        cancel: None,
        report: None,
        lease: None,
        lease_number: leases,
        cancel_told_at: None,
        progress: Progress::default(),
    });
}

fn move_run<R: Rows>(
    rows: &mut R,
    id: RunId,
    at: Millis,
    event: RunEvent,
    cause: Option<Cause>,
) -> Result<(), Unfit> {
    let run = rows.edit_run(id)?;
    run.state = run.state.next(event).map_err(illegal)?;
    match run.state {
        RunState::Queued => run.queued_at = Some(at),
        RunState::Running => run.started_at = Some(at),
        RunState::Success | RunState::Failed | RunState::Canceled | RunState::Timeout => {
            run.outcome = Some(run.state);
            run.cause = cause;
            run.ended_at = Some(at);
        }
        _ => {}
    }
    Ok(())
}

fn move_attempt<R: Rows>(
    rows: &mut R,
    id: AttemptId,
    at: Millis,
    event: AttemptEvent,
    cause: Option<Cause>,
) -> Result<(), Unfit> {
    // The job is only asked when it has something to say: every edit is a copy.
    let priority = match event {
        AttemptEvent::Published => Some(rows.edit_job(id.job)?.policy.priority),
        _ => None,
    };
    let attempt = rows.edit_attempt(id)?;
    attempt.state = attempt.state.next(event).map_err(illegal)?;
    if let Some(priority) = priority {
        attempt.queued_at = Some(at);
        // A lost attempt keeps its first place in the queue: only publishing sets it.
        attempt.order_key = crate::attempt::order_key(at, priority, id.job.n - 1);
    }
    if attempt.state.is_final() {
        attempt.ended_at = Some(at);
        attempt.cause = cause;
    }
    Ok(())
}

fn grant_lease<R: Rows>(
    rows: &mut R,
    id: AttemptId,
    at: Millis,
    grant: &Grant,
) -> Result<(), Unfit> {
    let attempt = rows.edit_attempt(id)?;
    let former = attempt.lease.replace(Lease {
        epoch: grant.epoch,
        number: grant.number,
        token: grant.token,
        state: LeaseState::Granted,
        principal: grant.principal.clone(),
        runner: grant.runner.clone(),
        granted_at: at,
        ack_by: grant.ack_by,
        acknowledged_at: None,
        ended_at: None,
        revocation: None,
        closing: None,
        ttl: grant.ttl,
        expires_at: grant.expires_at,
        heartbeat_seq: None,
    });
    attempt.lease_number = grant.number;
    attempt.progress = Progress::default();
    if let Some(lease) = former {
        if lease.state.is_live() || lease.epoch >= grant.epoch {
            return Err(Unfit::Illegal(format!(
                "{id} was granted over a live or newer lease"
            )));
        }
        rows.put_past_lease(id, lease);
    }
    Ok(())
}

fn move_lease(
    attempt: &mut Attempt,
    at: Millis,
    event: LeaseEvent,
    ending: &Ending,
) -> Result<(), Unfit> {
    let Some(lease) = &mut attempt.lease else {
        return Err(Unfit::Illegal(format!("{} has no lease", attempt.id)));
    };
    lease.state = lease.state.next(event).map_err(illegal)?;
    if lease.state == LeaseState::Active {
        lease.acknowledged_at = Some(at);
    } else {
        lease.ended_at = Some(at);
        lease.revocation = ending.revocation;
        lease.closing = ending.closing;
    }
    Ok(())
}

fn resolve<R: Rows>(
    rows: &mut R,
    id: JobId,
    at: Millis,
    resolution: Resolution,
    cause: Option<Cause>,
) -> Result<(), Unfit> {
    let job = rows.edit_job(id)?;
    if job.resolution.is_some() {
        return Err(Unfit::Illegal(format!("{id} was resolved twice")));
    }
    job.resolution = Some(resolution);
    job.cause = cause;
    job.ended_at = Some(at);
    let required = job.policy.required;
    let run = rows.edit_run(id.run)?;
    run.live_jobs -= 1;
    run.required_failed += u32::from(required && resolution == Resolution::Failed);
    run.required_canceled += u32::from(required && resolution == Resolution::Canceled);
    Ok(())
}
