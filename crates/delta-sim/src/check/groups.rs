//! G1: of the members of a concurrency group, at most one is at work.

use std::collections::BTreeMap;

use delta_core::{Digest, Fact, JobId};

use super::{Memory, Step, Verdict};

/// The group of a member; number 0 of a run is the run itself.
fn group_of(step: &Step, id: JobId) -> Option<Digest> {
    let group = match id.n {
        0 => step.run_after(id.run)?.header.concurrency.as_ref()?,
        _ => step.job_after(id)?.policy.concurrency.as_ref()?,
    };
    Some(group.key)
}

/// G1: nobody takes a turn that another has, and nothing is granted without its turn.
pub fn g1_one_of_a_group_is_at_work(step: &Step, memory: &Memory) -> Verdict {
    let run = step.run_id();
    let holds = |id: JobId| match group_of(step, id) {
        Some(key) => memory.turns.get(&key) == Some(&id),
        None => true,
    };
    for fact in step.facts() {
        match fact {
            Fact::TurnTaken { job } => {
                let id = run.job(*job);
                let key = group_of(step, id).ok_or_else(|| format!("{id} is in no group"))?;
                if let Some(other) = memory.turns.get(&key) {
                    return Err(format!("{id} took the turn that {other} has"));
                }
            }
            Fact::LeaseGranted { job, .. } => {
                for id in [run.job(0), run.job(*job)] {
                    if !holds(id) {
                        return Err(format!("{id} is at work without its turn"));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Who has a turn after this step.
pub(super) fn remember(step: &Step, turns: &mut BTreeMap<Digest, JobId>) {
    for fact in step.facts() {
        if let Fact::TurnTaken { job } = fact {
            let id = step.run_id().job(*job);
            turns.extend(group_of(step, id).map(|key| (key, id)));
        }
    }
    turns.retain(|_, id| match id.n {
        0 => step
            .edits
            .runs
            .get(&id.run)
            .is_none_or(|run| run.member().is_some()),
        _ => step
            .edits
            .jobs
            .get(id)
            .is_none_or(|job| job.member().is_some()),
    });
}
