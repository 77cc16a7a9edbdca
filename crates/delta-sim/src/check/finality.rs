//! I1, I7, I11, I12: an attempt ends once, for good, and success has exactly one source.

use delta_core::command::Status;
use delta_core::{AttemptEvent, AttemptId, AttemptState, Command, Fact, LeaseState, RunState};

use super::edges::attempt_edge;
use super::{Memory, Step, Verdict};

fn moves(step: &Step) -> impl Iterator<Item = (AttemptId, AttemptEvent)> {
    let run = step.run_id();
    step.facts().iter().filter_map(move |fact| match fact {
        Fact::AttemptMoved {
            job, index, event, ..
        } => Some((run.job(*job).attempt(*index), *event)),
        _ => None,
    })
}

fn ends(event: AttemptEvent) -> bool {
    AttemptState::ALL
        .into_iter()
        .any(|from| attempt_edge(from, event).is_some_and(|to| to.is_final()))
}

/// I1: at most one record ever ends an attempt.
pub fn i01_finalised_at_most_once(step: &Step, memory: &Memory) -> Verdict {
    let mut here: Vec<AttemptId> = Vec::new();
    for (id, _) in moves(step).filter(|(_, event)| ends(*event)) {
        if memory.finals.get(&id).is_some_and(|count| *count > 0) || here.contains(&id) {
            return Err(format!("{id} was finalised a second time"));
        }
        here.push(id);
    }
    Ok(())
}

/// I7: nothing moves an ended attempt, a lease outside GRANTED and ACTIVE, or a reported run; an
/// outcome never changes.
pub fn i07_what_has_ended_stays(step: &Step, memory: &Memory) -> Verdict {
    for (id, after) in &step.edits.attempts {
        let was = memory.attempts.get(id);
        if was.is_some_and(|state| state.is_final() && *state != after.state) {
            return Err(format!("{id} left {was:?} for {:?}", after.state));
        }
        if let Some(lease) = &after.lease {
            let was = memory.leases.get(&id.lease(lease.epoch));
            if was.is_some_and(|state| !state.is_live() && *state != lease.state) {
                return Err(format!(
                    "a lease of {id} left {was:?} for {:?}",
                    lease.state
                ));
            }
        }
    }
    for (id, after) in &step.edits.runs {
        let reported = memory.runs.get(id) == Some(&RunState::Reported);
        if reported && after.state != RunState::Reported {
            return Err(format!("{id} left REPORTED for {:?}", after.state));
        }
        let outcome = memory.outcomes.get(id);
        if outcome.is_some() && after.outcome.as_ref() != outcome {
            return Err(format!("{id}: {outcome:?} became {:?}", after.outcome));
        }
    }
    Ok(())
}

/// I11: after a committed cancel the attempt does not succeed and its lease is not COMPLETED.
pub fn i11_no_success_after_a_cancel(step: &Step, memory: &Memory) -> Verdict {
    for (id, after) in &step.edits.attempts {
        if !memory.cancel_asked.contains(id) {
            continue;
        }
        let completed = after
            .lease
            .as_ref()
            .is_some_and(|lease| lease.state == LeaseState::Completed);
        if after.state == AttemptState::Succeeded || completed {
            return Err(format!("{id} succeeded after its cancel was committed"));
        }
    }
    Ok(())
}

/// I12: SUCCEEDED exactly when one lease of the attempt is COMPLETED by an accepted Complete that
/// says SUCCEEDED with exit code 0.
pub fn i12_success_is_one_completed_lease(step: &Step, _: &Memory) -> Verdict {
    for (id, after) in &step.edits.attempts {
        let completed = step
            .leases_after(after)
            .iter()
            .filter(|lease| lease.state == LeaseState::Completed)
            .count();
        let expected = match after.state {
            AttemptState::Succeeded => 1..=1,
            AttemptState::Failed | AttemptState::TimedOut => 0..=1,
            _ => 0..=0,
        };
        if !expected.contains(&completed) {
            return Err(format!(
                "{id} is {:?} with {completed} completed leases",
                after.state
            ));
        }
        let fresh = step.attempt_before(*id).map(|a| a.state) != Some(after.state);
        if after.state == AttemptState::Succeeded && fresh {
            let said = matches!(
                step.command,
                Command::Complete { status: Status::Succeeded, report, proof, .. }
                    if report.exit_code == Some(0) && proof.key.attempt == *id
            );
            if !said {
                return Err(format!(
                    "{id} succeeded, but nobody said so: {:?}",
                    step.command
                ));
            }
        }
    }
    Ok(())
}
