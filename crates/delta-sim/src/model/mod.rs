//! Model checking of the pure machines: every reachable state within a small bound, none skipped.
//!
//! [`explore`] is a breadth-first search; [`network`] is one job between two agents and a network
//! that loses, repeats and reorders; [`anyone`] is the same job and agents that say anything at any
//! time; [`finalise`] is three jobs and the end of their run. The core under test is the one the
//! server runs. Refuses to sample: a bound that is cut off is an error.

pub mod explore;
pub mod finalise;
pub mod lying_agents;
pub mod network;
pub mod print;
pub mod server_state;
pub mod stage;

use std::sync::Arc;

use delta_core::command::Context;
use delta_core::{Command, Decision, Millis, Settings, Stop, World, decide};

use crate::check::{self, Memory, Step, Tally, Violation};

/// Decides a command in a world that holds everything, and judges the step. `None`: refused.
pub(crate) fn decide_and_judge(
    world: &mut Arc<World>,
    memory: &mut Arc<Memory>,
    tally: &mut Tally,
    command: &Command,
    now: Millis,
    settings: &Settings,
) -> Result<Option<Decision>, Violation> {
    let context = Context {
        now,
        settings,
        entropy: 0,
        lease_floor: Millis::ZERO,
    };
    let decision = loop {
        match decide(world, command, &context) {
            Ok(decision) => break decision,
            Err(Stop::Refused(_)) => return Ok(None),
            Err(Stop::Missing(want)) => absent(Arc::make_mut(world), want),
        }
    };
    let step = Step {
        now,
        command,
        reply: &decision.reply,
        record: decision.record.as_ref(),
        before: world,
        edits: &decision.edits,
        settings,
        lease_floor: Millis::ZERO,
    };
    // Most steps of a model change nothing: those copy nothing either.
    check::holds(&step, memory, tally)?;
    if memory.gains_from(&step) {
        Arc::make_mut(memory).remember(&step);
    }
    if !decision.edits.is_empty() {
        Arc::make_mut(world).absorb(&decision.edits);
    }
    Ok(Some(decision))
}

/// The world is complete: what it does not hold does not exist.
fn absent(world: &mut World, want: delta_core::Want) {
    use delta_core::Want;
    match want {
        Want::Run(id) => world.runs.insert(id, None).map(drop),
        Want::Job(id) => world.jobs.insert(id, None).map(drop),
        Want::Attempt(id) => world.attempts.insert(id, None).map(drop),
        Want::PastLease(key) => world.past_leases.insert(key, None).map(drop),
        Want::Key(key) => world.keys.insert(key, None).map(drop),
        Want::Unique(key) => world.uniques.insert(key, None).map(drop),
        Want::Holder(principal, runner) => {
            world.holders.insert((principal, runner), None).map(drop)
        }
        Want::LiveJobs(id) => world.whole.insert(id).then_some(()),
        Want::Group(key) => {
            world.put_group(key, Default::default());
            None
        }
        Want::Agent(id) => world.agents.insert(id, None).map(drop),
    };
}
