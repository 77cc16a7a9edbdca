//! Waiting for the others of a concurrency group: into the line, and out of it.
//!
//! Whose turn it is, is judged with the whole group in sight and nobody else looking at it, by
//! [`crate::group::turn`]. Entering the line looks at nobody: a sweep asks afterwards.

use super::{Stop, Work, cancel};
use crate::attempt::{AttemptEvent, AttemptState};
use crate::cause::Cause;
use crate::command::Reply;
use crate::fact::Fact;
use crate::group::{self, Concurrency, Place, Turn};
use crate::id::JobId;

const NOTHING: Reply = Reply::Done { changed: false };
const CHANGED: Reply = Reply::Done { changed: true };

/// A job that waits for nothing but its turn goes into the queue, or into the line of its group
/// first. While the run itself waits for its turn, nothing of it is queued.
pub(super) fn ready(work: &mut Work, id: JobId) -> Result<(), Stop> {
    if work.run()?.waits_for_turn() {
        return Ok(());
    }
    let job = work.job(id)?;
    match (&job.policy.concurrency, job.place) {
        (Some(_), None) => work.emit(Fact::LineEntered { job: id.n }),
        (Some(_), Some(place)) if place.waits() => Ok(()),
        _ => work.move_attempt(job.current(), AttemptEvent::Published, None),
    }
}

/// Looks whether it is this one's turn.
pub(super) fn take(work: &mut Work, id: JobId) -> Result<Reply, Stop> {
    let Some((concurrency, place)) = standing(work, id)? else {
        return Ok(NOTHING);
    };
    let turn = group::turn(id, work.group(&concurrency.key)?);
    let end = |work: &mut Work, cause| match id.n {
        0 => cancel::run(work, cause, &"server".into()),
        _ => cancel::job(work, id, cause, &"server".into()),
    };
    match turn {
        Turn::Superseded => end(work, Cause::Superseded),
        Turn::Full => end(work, Cause::GroupFull),
        Turn::Take if place.waits() && work.run()?.state.takes_work() => begin(work, id),
        Turn::Take | Turn::Wait => Ok(NOTHING),
    }
}

/// The group of a member and its place, while it is one.
fn standing(work: &Work, id: JobId) -> Result<Option<(Concurrency, Place)>, Stop> {
    let Some(run) = work.find_run()? else {
        return Ok(None);
    };
    let (group, place, member) = match id.n {
        0 => (&run.header.concurrency, run.place, run.member()),
        _ => {
            let job = work.job(id)?;
            (&job.policy.concurrency, job.place, job.member())
        }
    };
    let place = place.filter(|_| member.is_some());
    Ok(group.clone().zip(place))
}

fn begin(work: &mut Work, id: JobId) -> Result<Reply, Stop> {
    // Every unresolved job must be in sight before the first of them is touched.
    let live = match id.n {
        0 => work.live_jobs()?,
        _ => vec![id],
    };
    work.emit(Fact::TurnTaken { job: id.n })?;
    for id in live {
        let job = work.job(id)?;
        let (waits, current) = (job.waiting_on > 0, work.attempt(job.current())?);
        let due = current.not_before <= work.now();
        if current.state == AttemptState::Created && !waits && due {
            ready(work, id)?;
        }
    }
    Ok(CHANGED)
}
