//! I2, I3, I4, I19, I20: who may act, and for how long.

use delta_core::command::LeaseProof;
use delta_core::{
    Attempt, AttemptId, AttemptState, Command, Fact, Lease, LeaseState, Millis, Reply,
};

use super::memory::accepts;
use super::{Memory, Step, Verdict};

fn proof(command: &Command) -> Option<&LeaseProof> {
    match command {
        Command::AckLease { proof, .. }
        | Command::Heartbeat { proof, .. }
        | Command::Complete { proof, .. }
        | Command::CancelAck { proof, .. }
        | Command::Decline { proof } => Some(proof),
        _ => None,
    }
}

/// I2: a runner's message is accepted only on the attempt's current lease, in the right state,
/// before its end, from its holder. What changes nothing is judged by I16.
pub fn i02_accepted_only_on_the_current_live_lease(step: &Step, _: &Memory) -> Verdict {
    let Some(proof) = proof(step.command) else {
        return Ok(());
    };
    let declined = matches!(step.command, Command::Decline { .. }) && step.changed();
    if !step.changed() && !matches!(step.reply, Reply::Renewed { .. }) {
        return Ok(());
    }
    if !accepts(step.reply) && !declined {
        return Err(format!("{:?} changed something", step.reply));
    }
    let current = step
        .attempt_before(proof.key.attempt)
        .and_then(|attempt| attempt.lease.as_ref())
        .filter(|lease| lease.epoch == proof.key.epoch);
    let Some(lease) = current else {
        return Err(format!("{:?} is not the current lease", proof.key));
    };
    let expected = match step.command {
        Command::AckLease { .. } | Command::Decline { .. } => LeaseState::Granted,
        _ => LeaseState::Active,
    };
    if lease.state != expected {
        return Err(format!("{:?} was {:?}", proof.key, lease.state));
    }
    if step.now >= end_of(lease).max(step.lease_floor) {
        return Err(format!("{:?} ended at {:?}", proof.key, end_of(lease)));
    }
    let holder = lease.principal == proof.principal && lease.runner == proof.runner;
    if lease.token != proof.token || !holder {
        return Err(format!("{:?} belongs to somebody else", proof.key));
    }
    Ok(())
}

/// When a live lease is over: an unacknowledged one at its acknowledgement's deadline.
fn end_of(lease: &Lease) -> Millis {
    match lease.state {
        LeaseState::Granted => lease.expires_at.min(lease.ack_by),
        _ => lease.expires_at,
    }
}

/// I3: at most one live lease per attempt, and a grant comes after the end of the one before.
pub fn i03_at_most_one_live_lease(step: &Step, memory: &Memory) -> Verdict {
    for attempt in step.edits.attempts.values() {
        let leases = step.leases_after(attempt);
        let live = leases.iter().filter(|lease| lease.state.is_live()).count();
        if live > 1 {
            return Err(format!("{} has {live} live leases", attempt.id));
        }
    }
    let run = step.run_id();
    let mut ended_here: Vec<AttemptId> = Vec::new();
    for fact in step.facts() {
        match fact {
            Fact::LeaseMoved { job, index, .. } => {
                ended_here.push(run.job(*job).attempt(*index));
            }
            Fact::LeaseGranted { job, index, .. } => {
                let id = run.job(*job).attempt(*index);
                let latest = memory.latest_lease(id).map(|key| memory.leases[&key]);
                if latest.is_some_and(|state| state.is_live()) && !ended_here.contains(&id) {
                    return Err(format!("{id} was granted while its lease was live"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// I4: per job, epochs rise in the order of grants; no two leases share a token.
pub fn i04_epochs_rise_and_tokens_are_unique(step: &Step, memory: &Memory) -> Verdict {
    let run = step.run_id();
    for fact in step.facts() {
        let Fact::LeaseGranted { job, grant, .. } = fact else {
            continue;
        };
        let last = memory.epochs.get(&run.job(*job)).and_then(|all| all.last());
        if last.is_some_and(|last| *last >= grant.epoch) {
            return Err(format!("epoch {:#x} after {last:x?}", grant.epoch));
        }
        if memory.tokens.contains(&grant.token) {
            return Err(format!("a token of {} was used before", run.job(*job)));
        }
    }
    Ok(())
}

/// I19: while a lease lives its end only moves later (but for the start-up clamp), only by a fresh
/// heartbeat or the acknowledgement, and never past the end of job, run or cancel.
pub fn i19_expiry_only_grows_up_to_its_cap(step: &Step, _: &Memory) -> Verdict {
    for (id, after) in &step.edits.attempts {
        let Some(lease) = after.live_lease() else {
            continue;
        };
        let before = step
            .attempt_before(*id)
            .and_then(Attempt::live_lease)
            .filter(|before| before.epoch == lease.epoch);
        match before {
            None => {
                if lease.expires_at > step.now + lease.ttl {
                    return Err(format!("{id} was granted for more than its ttl"));
                }
            }
            Some(before) => moved(step, after, before, lease)?,
        }
        within_cap(step, after, lease)?;
    }
    Ok(())
}

fn moved(step: &Step, after: &Attempt, before: &Lease, lease: &Lease) -> Verdict {
    let id = after.id;
    if lease.expires_at < before.expires_at && !matches!(step.command, Command::Clamp { .. }) {
        return Err(format!("the lease of {id} lost time"));
    }
    if lease.expires_at <= before.expires_at {
        return Ok(());
    }
    let renews = match step.command {
        Command::AckLease { .. } => before.state == LeaseState::Granted,
        Command::Heartbeat { seq, .. } => match (seq, before.heartbeat_seq) {
            (Some(seq), Some(last)) => *seq > last,
            _ => true,
        },
        _ => false,
    };
    if !renews {
        return Err(format!("{} renewed the lease of {id}", step.command.name()));
    }
    let cancel = after.cancel_deadline().unwrap_or(Millis::FAR);
    if lease.expires_at > cancel.min(step.now + lease.ttl) {
        return Err(format!("{id} was renewed past its ttl or its cancel"));
    }
    Ok(())
}

/// The ends that hold for an acknowledged lease at any time.
fn within_cap(step: &Step, attempt: &Attempt, lease: &Lease) -> Verdict {
    let (Some(acknowledged), Some(run)) = (lease.acknowledged_at, step.run_after(attempt.id.run()))
    else {
        return Ok(());
    };
    let Some(job) = step.job_after(attempt.id.job) else {
        return Err(format!("{} has no job", attempt.id));
    };
    let settings = step.settings;
    let slack = settings.cancel_deadline.plus(settings.timeout_buffer);
    // Replicas' clocks differ a little: the grant may be stamped later than its acknowledgement.
    let began = acknowledged.max(lease.granted_at);
    let job_end = began + job.policy.timeout.plus(slack);
    if lease.expires_at > job_end {
        return Err(format!(
            "the lease of {} lives to {:?}, past its job's end {job_end:?}",
            attempt.id, lease.expires_at
        ));
    }
    let run_end = run.deadline().map(|at| at + settings.force_after());
    if run_end.is_some_and(|at| lease.expires_at > at) {
        return Err(format!("the lease of {} outlives its run", attempt.id));
    }
    Ok(())
}

/// I20: what is leased has exactly one live lease, what is not has none, and what is queued is in
/// a run that still takes work.
pub fn i20_leased_means_one_live_lease(step: &Step, _: &Memory) -> Verdict {
    for (id, after) in &step.edits.attempts {
        if after.state.is_leased() != after.live_lease().is_some() {
            return Err(format!("{id} is {:?} with {:?}", after.state, after.lease));
        }
    }
    for job in step.jobs_after().filter(|job| job.resolution.is_none()) {
        let current = step.attempt_after(job.current());
        let queued = current.is_some_and(|a| a.state == AttemptState::Queued);
        let run = step.run_after(step.run_id());
        if queued && !run.is_some_and(|run| run.state.takes_work()) {
            return Err(format!("{} waits in a run that takes no work", job.id));
        }
    }
    Ok(())
}
