//! Why jobs wait (D12): one answer for a job that is asked for and for the jobs of a run, by the
//! core's own function.
//!
//! The list of a run costs a look at the queue per kind of requirements and one per concurrency
//! group, however many jobs wait.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use delta_core::group::Members;
use delta_core::requirement::queue_of;
use delta_core::why::{Line, Scene, SeenAgent, Why, why};
use delta_core::{Attempt, AttemptState, Digest, Job, Millis, Run, Text};
use delta_store::StoreError;
use delta_store::read::{Reader, RunRows};
use delta_wire::api::{self, JobSummary};
use delta_wire::states::JobState;

use crate::app::App;

/// What this server sees beside the rows.
pub struct Sight {
    agents: Vec<SeenAgent>,
    /// Queues that hand out nothing.
    paused: Vec<Text>,
    now: Millis,
}

/// Where a job stands among others, and with whom.
#[derive(Default)]
pub struct InLine {
    /// Queued attempts with the same requirements that come first.
    pub ahead: u64,
    /// In the line of its run's group, or of its own.
    pub line: Option<Line>,
    /// The agent that holds it was revoked.
    pub holder_revoked: bool,
}

/// Jobs of a run by their numbers.
pub type Jobs<'a> = HashMap<u32, &'a Job>;

pub fn by_number(jobs: &[(Job, Attempt)]) -> Jobs<'_> {
    jobs.iter().map(|(job, _)| (job.id.n, job)).collect()
}

impl Sight {
    pub fn of(app: &App) -> Sight {
        let mut agents = app.presence.agents();
        agents.extend(app.agents.seen());
        let queues = app.queues.all();
        let paused = queues.values().filter(|it| it.paused.is_some());
        Sight {
            agents,
            paused: paused.map(|it| it.name.clone()).collect(),
            now: app.writer.now(),
        }
    }

    /// Why one job is where it is.
    pub fn why(
        &self,
        run: &Run,
        (job, attempt): (&Job, &Attempt),
        jobs: &Jobs<'_>,
        place: InLine,
    ) -> Why {
        let needs = job.policy.needs.iter().filter_map(|n| jobs.get(n));
        let unmet = needs.filter(|need| !need.meets_needs());
        let queue = queue_of(&job.policy.requires);
        let paused = self.paused.iter().find(|it| Some(&***it) == queue);
        why(&Scene {
            run,
            job,
            attempt,
            unmet: unmet.map(|need| need.name.clone()).collect(),
            agents: &self.agents,
            ahead: place.ahead,
            line: place.line,
            paused: paused.cloned(),
            holder_revoked: place.holder_revoked,
            now: self.now,
        })
    }

    /// Says of each job of a run that waits what it waits for.
    pub fn tell(
        &self,
        reader: &dyn Reader,
        rows: &RunRows,
        told: &mut [JobSummary],
    ) -> Result<(), StoreError> {
        let jobs = by_number(&rows.jobs);
        let mut groups = Groups::default();
        let mut queued: HashMap<&str, (Why, u64)> = HashMap::new();
        let mut order: Vec<usize> = (0..rows.jobs.len().min(told.len())).collect();
        order.sort_by_key(|at| rows.jobs[*at].1.order_key);
        for at in order {
            let (job, attempt) = &rows.jobs[at];
            if !waits(told[at].state) {
                continue;
            }
            let key = &*job.policy.requires;
            let is_queued = attempt.state == AttemptState::Queued;
            let known = queued.get_mut(key).filter(|_| is_queued);
            let answer = match known {
                // One more of the same kind: the jobs before it come first.
                Some((why, ahead)) => {
                    *ahead += 1;
                    why.behind(*ahead)
                }
                None => {
                    let ahead = if is_queued {
                        reader.ahead(key, attempt.order_key)?
                    } else {
                        0
                    };
                    let line = groups.line(reader, &rows.run, job)?;
                    let place = InLine {
                        ahead,
                        line,
                        holder_revoked: false,
                    };
                    let why = self.why(&rows.run, (job, attempt), &jobs, place);
                    if is_queued {
                        queued.insert(key, (why.clone(), ahead));
                    }
                    why
                }
            };
            told[at].why = Some(view(&answer));
        }
        Ok(())
    }
}

/// Whether some job of these waits, so that it is worth looking around.
pub fn any(jobs: &[JobSummary]) -> bool {
    jobs.iter().any(|job| waits(job.state))
}

fn waits(state: JobState) -> bool {
    matches!(state, JobState::Created | JobState::Queued)
}

pub fn view(why: &Why) -> api::Why {
    api::Why {
        code: why.kind().into(),
        message: why.to_string(),
    }
}

/// Concurrency groups that were looked at, each once.
#[derive(Default)]
pub struct Groups(HashMap<Digest, Members>);

impl Groups {
    /// What a job waits for in a line: its run's turn, or its own.
    pub fn line(
        &mut self,
        reader: &dyn Reader,
        run: &Run,
        job: &Job,
    ) -> Result<Option<Line>, StoreError> {
        let (group, id) = match run.waits_for_turn() {
            true => (&run.header.concurrency, run.id.job(0)),
            false if job.waits_for_turn() => (&job.policy.concurrency, job.id),
            false => return Ok(None),
        };
        let Some(group) = group else {
            return Ok(None);
        };
        let members = match self.0.entry(group.key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(reader.group(&group.key)?),
        };
        Ok(Some(Line::of(group, members, id)))
    }
}
