//! What a push is compared with: a commit of its branch whose run went well.
//!
//! A job that nothing changed for counts as met, because it went well where it is compared with. So
//! that place must be one where everything went well: the commit before, or one before that. Where
//! there is none, nothing is left out. Only runs of the same repository, ref and kind of event
//! count: what somebody made by hand says nothing about a push.

use std::collections::HashSet;

use delta_core::{Resolution, Run, RunState};
use delta_store::StoreError;
use delta_store::read::{Reader, RunFilter, RunKind};
use delta_wire::api::Trigger;

/// Runs of a branch that are looked at: one that is red for longer is planned whole.
const LOOKED_AT: usize = 200;
/// Runs whose jobs are looked at, which costs more: those that succeeded although a job did not.
const LOOKED_INTO: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    Commit(String),
    /// There is none to compare with; why, as half a sentence.
    Unknown(&'static str),
}

pub fn of_push(reader: &dyn Reader, run: &Run, trigger: &Trigger) -> Result<Base, StoreError> {
    let Some(before) = trigger.before.as_deref() else {
        return Ok(Base::Unknown("there is nothing to compare the commit with"));
    };
    let filter = RunFilter {
        repository: run.header.repository.clone(),
        git_ref: run.header.git_ref.clone(),
        kind: RunKind::Plain,
        ..RunFilter::default()
    };
    let runs = reader.runs(&filter, LOOKED_AT)?;
    let alike = runs
        .iter()
        .filter(|it| it.id != run.id && is_like(it, trigger));
    let went_well = |run: &Run| -> Result<bool, StoreError> {
        let rows = reader.run(run.id)?;
        let well = |resolution| resolution == Some(Resolution::Succeeded);
        Ok(rows.is_some_and(|rows| rows.jobs.iter().all(|(job, _)| well(job.resolution))))
    };
    among(alike, run.header.commit.as_deref(), before, went_well)
}

/// Whether a run came of the same kind of event, of the same registered repository.
pub fn is_like(run: &Run, trigger: &Trigger) -> bool {
    let other = run.header.trigger.as_deref().and_then(Trigger::from_text);
    other.is_some_and(|it| it.repository == trigger.repository && it.event == trigger.event)
}

/// Of runs, the newest first. Of each commit the newest run counts: it is the last word on it. One
/// that succeeded may have jobs that were allowed to fail, and did: they are to run again.
fn among<'r>(
    runs: impl Iterator<Item = &'r Run>,
    own: Option<&str>,
    before: &str,
    went_well: impl Fn(&Run) -> Result<bool, StoreError>,
) -> Result<Base, StoreError> {
    let mut seen = HashSet::new();
    let mut last = None;
    let mut looks = LOOKED_INTO;
    for run in runs {
        let Some(commit) = run.header.commit.as_deref() else {
            continue;
        };
        let succeeded = run.outcome == Some(RunState::Success) && run.live_jobs == 0;
        if !seen.insert(commit) || !succeeded || own == Some(commit) {
            continue;
        }
        // Only the one before is better than the newest.
        let better = last.is_none() || commit == before;
        if !better || looks == 0 {
            continue;
        }
        looks -= 1;
        if !went_well(run)? {
            continue;
        }
        if commit == before {
            return Ok(Base::Commit(before.to_owned()));
        }
        last = Some(commit);
    }
    Ok(match last {
        Some(commit) => Base::Commit(commit.to_owned()),
        None => Base::Unknown("the last run of this branch did not go well"),
    })
}
