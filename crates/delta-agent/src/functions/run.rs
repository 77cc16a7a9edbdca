//! The work of a lease that is a call: no workspace, no shim, no log, and nothing on the disk.

use std::time::Duration;

use delta_core::Cause;
use delta_shim::clock;
use delta_wire::job_spec::FunctionSpec;
use tokio::time::Instant;

use super::{Call, CallEnd, Functions};
use crate::attempt::not_started::not_begun;
use crate::attempt::run::{Assignment, WorkEnd};
use crate::attempt::span::Traced;
use crate::work::Ended;

/// Longer than any job may take, and no clock ends before it.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// Carries out the call under a lease. Orders to stop, also those at the lease's local end, come
/// from its session: it lives in this process, as the call does.
pub(crate) async fn perform(
    assignment: &Assignment,
    functions: &Functions,
    mut function: FunctionSpec,
) -> Result<WorkEnd, Box<Ended>> {
    let context = &assignment.context;
    if context.untrusted {
        // Its author could call any handler of these processes, with whatever they may do.
        let summary = "a run that is not trusted may not call functions";
        return Err(not_begun(Cause::SpecError, summary.to_owned()));
    }
    let started_at = clock::wall_time();
    let left = assignment.must_finish_by.since(clock::now());
    let left = Duration::from_millis(u64::try_from(left.0).unwrap_or(0)).min(LONGEST);
    let identity = &assignment.identity;
    let mut traced = Traced::call(context, identity, &mut function);
    traced.runner(functions.runner(&function));
    let call = Call {
        job_id: identity.job_id.clone(),
        attempt: identity.attempt,
        lease_epoch: identity.lease_epoch,
        function,
        finish_by: Instant::now() + left,
        worker_id: format!("{}/{}", context.settings.name, context.slot),
    };
    let CallEnd { ended, answer } = functions.call(&call, assignment.stop.clone()).await;
    traced.end(&ended);
    Ok(WorkEnd {
        ended,
        started_at,
        finished_at: clock::wall_time(),
        steps: Vec::new(),
        summary: None,
        artifacts: 0,
        answer,
        remains: None,
        folder: None,
    })
}
