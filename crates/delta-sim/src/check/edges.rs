//! I6: every edge ever walked is one of these, by one of these commands.
//!
//! Written out by hand from the State Machines document and the table of A66, not derived from the
//! core: two tables that must agree.

use delta_core::{
    AttemptEvent as AE, AttemptState as AS, Fact, LeaseEvent as LE, LeaseState as LS,
    RunEvent as RE, RunState as RS,
};

use super::{Memory, Step, Verdict};

/// Commands by which something that executes may end without its holder's word.
const TAKEN: &[&str] = &["attempt_due", "run_due", "decline", "revoke"];
/// Commands after which a job is resolved, and with it perhaps others and the run.
const ENDINGS: &[&str] = &[
    "complete",
    "cancel_ack",
    "attempt_due",
    "run_due",
    "decline",
    "revoke",
    "cancel_job",
    "cancel_run",
    "plan",
    "create_run",
    "take_turn",
];
const PLANS: &[&str] = &["create_run", "plan"];
const PLAN_FAILS: &[&str] = &["create_run", "fail_plan", "run_due"];

type Row<S, E> = (&'static [S], E, S, &'static [&'static str]);

const RUN: &[Row<RS, RE>] = &[
    (
        &[RS::Created],
        RE::PlanningStarted,
        RS::Planning,
        &["create_run", "run_due"],
    ),
    (&[RS::Planning], RE::Planned, RS::Queued, PLANS),
    (
        &[RS::Planning],
        RE::PlanningFailed,
        RS::PlanFailed,
        PLAN_FAILS,
    ),
    (&[RS::PlanFailed], RE::Failed, RS::Failed, PLAN_FAILS),
    (&[RS::Queued], RE::Started, RS::Running, &["grant", "plan"]),
    (&[RS::Running], RE::Succeeded, RS::Success, ENDINGS),
    (&[RS::Running], RE::Failed, RS::Failed, ENDINGS),
    (
        &[RS::Queued],
        RE::Failed,
        RS::Failed,
        &["run_due", "cancel_job"],
    ),
    (
        &[RS::Queued, RS::Running],
        RE::CancelRequested,
        RS::CancelRequested,
        &["cancel_run", "cancel_job", "plan", "take_turn"],
    ),
    (&[RS::CancelRequested], RE::Canceled, RS::Canceled, ENDINGS),
    (
        &[RS::Running, RS::Queued],
        RE::TimedOut,
        RS::Timeout,
        &["run_due", "attempt_due"],
    ),
    (
        &[RS::Success, RS::Failed, RS::Canceled, RS::Timeout],
        RE::Reported,
        RS::Reported,
        &[
            "complete",
            "cancel_ack",
            "attempt_due",
            "run_due",
            "decline",
            "revoke",
            "cancel_job",
            "cancel_run",
            "plan",
            "create_run",
            "fail_plan",
            "report",
            "take_turn",
        ],
    ),
];

const HELD: &[AS] = &[AS::Leased, AS::Starting, AS::Running, AS::Uploading];

const ATTEMPT: &[Row<AS, AE>] = &[
    (&[AS::Created], AE::Published, AS::Queued, ENDINGS),
    (&[AS::Queued], AE::Granted, AS::Leased, &["grant"]),
    (
        &[AS::Leased],
        AE::Acknowledged,
        AS::Starting,
        &["ack_lease"],
    ),
    (
        &[AS::Starting],
        AE::Running,
        AS::Running,
        &["heartbeat", "complete"],
    ),
    (
        &[AS::Running],
        AE::Uploading,
        AS::Uploading,
        &["heartbeat", "complete"],
    ),
    (
        &[AS::Uploading],
        AE::Succeeded,
        AS::Succeeded,
        &["complete"],
    ),
    (&[AS::Uploading], AE::Failed, AS::Failed, &["complete"]),
    (
        HELD,
        AE::Lost,
        AS::Queued,
        &["attempt_due", "decline", "revoke", "grant"],
    ),
    (HELD, AE::GivenUp, AS::Failed, TAKEN),
    (&[AS::Queued], AE::NoAgent, AS::Failed, &["run_due"]),
    (
        &[AS::Starting, AS::Running, AS::Uploading],
        AE::TimedOut,
        AS::TimedOut,
        &["attempt_due", "complete"],
    ),
    (
        &[
            AS::Created,
            AS::Queued,
            AS::Leased,
            AS::Starting,
            AS::Running,
            AS::Uploading,
        ],
        AE::CancelRequested,
        AS::CancelRequested,
        ENDINGS,
    ),
    (&[AS::CancelRequested], AE::Canceled, AS::Canceled, ENDINGS),
    (
        &[AS::Created, AS::Queued],
        AE::Dropped,
        AS::Canceled,
        ENDINGS,
    ),
    (&[AS::Created], AE::Kept, AS::Succeeded, &["create_run"]),
    (&[AS::Created], AE::KeptFailed, AS::Failed, &["create_run"]),
];

const LEASE: &[Row<LS, LE>] = &[
    (&[LS::Granted], LE::Acknowledged, LS::Active, &["ack_lease"]),
    (
        &[LS::Granted, LS::Active],
        LE::Expired,
        LS::Expired,
        &["attempt_due"],
    ),
    (&[LS::Active], LE::Completed, LS::Completed, &["complete"]),
    (
        &[LS::Active],
        LE::Canceled,
        LS::Canceled,
        &["cancel_ack", "complete"],
    ),
    (
        &[LS::Granted, LS::Active],
        LE::Revoked,
        LS::Revoked,
        &[
            "attempt_due",
            "run_due",
            "grant",
            "decline",
            "revoke",
            "cancel_run",
            "cancel_job",
            "complete",
            "cancel_ack",
            "take_turn",
        ],
    ),
];

fn find<S: Copy + PartialEq, E: Copy + PartialEq>(
    table: &[Row<S, E>],
    from: S,
    event: E,
) -> Option<&Row<S, E>> {
    table
        .iter()
        .find(|(froms, on, _, _)| froms.contains(&from) && *on == event)
}

pub fn run_edge(from: RS, event: RE) -> Option<RS> {
    find(RUN, from, event).map(|row| row.2)
}

pub fn attempt_edge(from: AS, event: AE) -> Option<AS> {
    find(ATTEMPT, from, event).map(|row| row.2)
}

pub fn lease_edge(from: LS, event: LE) -> Option<LS> {
    find(LEASE, from, event).map(|row| row.2)
}

fn walk<S, E>(table: &[Row<S, E>], from: Option<S>, event: E, by: &str) -> Result<S, String>
where
    S: Copy + PartialEq + std::fmt::Debug,
    E: Copy + PartialEq + std::fmt::Debug,
{
    let from = from.ok_or_else(|| format!("{event:?} of something that does not exist"))?;
    let (_, _, to, triggers) =
        find(table, from, event).ok_or_else(|| format!("{event:?} is no edge out of {from:?}"))?;
    if !triggers.contains(&by) {
        return Err(format!("{from:?} -> {to:?} may not come from {by}"));
    }
    Ok(*to)
}

/// I6: each edge is listed, with its trigger, and starts where the last one of that object ended.
pub fn i06_only_listed_edges(step: &Step, memory: &Memory) -> Verdict {
    if step.record.is_none() {
        return Ok(());
    }
    let (run, by) = (step.run_id(), step.command.name());
    let mut now = Memory::default();
    for fact in step.facts() {
        match fact {
            Fact::RunMoved { event, .. } => {
                let from = now.runs.get(&run).or_else(|| memory.runs.get(&run));
                let to = walk(RUN, from.copied(), *event, by)?;
                now.runs.insert(run, to);
            }
            Fact::AttemptMoved {
                job, index, event, ..
            } => {
                let id = run.job(*job).attempt(*index);
                let from = now.attempts.get(&id).or_else(|| memory.attempts.get(&id));
                let to = walk(ATTEMPT, from.copied(), *event, by)?;
                now.attempts.insert(id, to);
            }
            Fact::LeaseMoved {
                job, index, event, ..
            } => {
                let id = run.job(*job).attempt(*index);
                let key = now.latest_lease(id).or_else(|| memory.latest_lease(id));
                let from = key.and_then(|key| {
                    now.leases
                        .get(&key)
                        .or_else(|| memory.leases.get(&key))
                        .copied()
                });
                let to = walk(LEASE, from, *event, by)?;
                now.leases.extend(key.map(|key| (key, to)));
            }
            other => now.remember_created(run, other),
        }
    }
    rows_agree(step, &now)
}

/// The rows stand where the edges of the record lead.
fn rows_agree(step: &Step, now: &Memory) -> Verdict {
    for (id, state) in &now.runs {
        if step.run_after(*id).map(|run| run.state) != Some(*state) {
            return Err(format!("the row of {id} is not {state:?}"));
        }
    }
    for (id, state) in &now.attempts {
        if step.attempt_after(*id).map(|attempt| attempt.state) != Some(*state) {
            return Err(format!("the row of {id} is not {state:?}"));
        }
    }
    Ok(())
}
