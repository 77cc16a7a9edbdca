//! One call: it waits for room, is sent, and is followed to its answer or to its end.
//!
//! A cancel goes out on a connection of its own. Who does not answer within the grace is ended with
//! its whole process, which gets no more calls; the others in there have their time first.

use std::collections::BTreeMap;
use std::time::Duration;

use delta_core::holder::KILL_MARGIN;
use delta_runner_protocol::{CancelRequest, Context, ExecutionRequest, Outcome, frame};
use delta_shim::stop::StopReason;
use delta_wire::job_spec::FunctionSpec;
use jiff::{SignedDuration, Timestamp};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::outcome::{self, CallEnd, Why};
use super::pool::{CallSlot, Live};
use super::serial_connection::{Ids, RunnerCallError};
use super::settings::PoolSettings;
use crate::backoff::entropy;
use crate::work::StopOrder;

/// How long a call whose lease is lost has to heed its cancel. Nobody waits for it, but its
/// neighbours are worth a moment.
const LOST_GRACE: Duration = Duration::from_secs(1);
/// How long the last answer of a process that ended may still be on its way.
const LAST_ANSWER: Duration = Duration::from_millis(200);
/// How long a place stays taken after its connection broke: the process may have ended, and nobody
/// else should be sent there before that is known.
const NOTICE: Duration = Duration::from_millis(200);
/// Between two tries with a runner that is busy: the first is soon over, as when it has answered
/// and not yet counted that; no try costs more than a look.
const FIRST_BUSY_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_BUSY_PAUSE: Duration = Duration::from_millis(500);
/// How long the end of a process is waited for, and the calls in it that have their time first.
/// Beyond it nobody claims that nothing of the call goes on.
const END_TIME: Duration = Duration::from_secs(20);
/// How far behind the moment at which a canceled call is to be over the server still listens: that
/// moment is twice as far before its deadline. Where the deadline was nearer than that to begin
/// with, the server may have ended the call itself by then.
const REPORT_TIME: Duration = Duration::from_millis(KILL_MARGIN.0 as u64 / 2);
/// Processes that a call is offered to in turn when none of them takes it, and how long each may
/// take to be known as gone.
pub(super) const TRIES: u32 = 4;
pub(super) const TRY_PAUSE: Duration = Duration::from_millis(200);

/// What is to be called.
#[derive(Clone, Debug)]
pub struct Call {
    pub job_id: String,
    /// From 1.
    pub attempt: u32,
    /// Which grant of the attempt this is: a call of an older one is refused.
    pub lease_epoch: u64,
    pub function: FunctionSpec,
    /// When the job's time is up.
    pub finish_by: Instant,
    /// Who asks, for people.
    pub worker_id: String,
}

/// What ends a call, as it is ordered.
pub type Stop = watch::Receiver<Option<StopOrder>>;

/// The runner saw nothing of a call, and why.
pub(super) struct NotSent(pub String);

/// What came of following a request.
enum Followed {
    Ended(Box<CallEnd>),
    /// The runner has not begun it: it has too much to do.
    Busy,
    /// It was told to end, and has not within its grace.
    Unheeded(Stopping),
}

/// Why it is to end, when it must have, and by when that is to be said, where somebody waits.
struct Stopping {
    why: Why,
    kill_at: Instant,
    say_by: Option<Instant>,
}

impl Call {
    fn request(&self, ids: &Ids, limit: Duration) -> Option<ExecutionRequest> {
        let now = Timestamp::now();
        let left = SignedDuration::try_from(limit).unwrap_or(SignedDuration::MAX);
        let function = &self.function;
        let enqueued = function.enqueued_at.as_ref().and_then(|it| it.parse().ok());
        let trace: BTreeMap<String, String> = function.trace_context.iter().cloned().collect();
        Some(ExecutionRequest {
            request_id: ids.request.clone(),
            job_id: ids.job.clone(),
            function_name: function.parts().1.to_owned(),
            params: RawValue::from_string(function.params.as_str().to_owned()).ok()?,
            context: Context {
                job_id: ids.job.clone(),
                attempt: self.attempt.max(1),
                enqueue_time: enqueued.unwrap_or(now),
                queue_name: function.queue.clone(),
                deadline: now.checked_add(left).ok(),
                trace_context: (!trace.is_empty()).then_some(trace),
                worker_id: Some(self.worker_id.clone()),
                lease_epoch: Some(self.lease_epoch),
            },
        })
    }
}

/// Carries out a call in this place. A runner that says that it is busy has not begun it, and is
/// asked again: its place stays taken, so that it gets less to do meanwhile.
pub(super) async fn carry_out(
    call: &Call,
    mut place: CallSlot,
    pool: &PoolSettings,
    stop: &mut Stop,
) -> Result<CallEnd, NotSent> {
    let silent_at = pool.response_timeout.map(|limit| Instant::now() + limit);
    let ends_at = silent_at.map_or(call.finish_by, |silent| silent.min(call.finish_by));
    let mut pause = FIRST_BUSY_PAUSE;
    loop {
        if place.live.is_leaving() {
            return Err(NotSent("the runner gets no more calls".to_owned()));
        }
        // Another request each time: a second answer to the one before is nobody's (RQ-20).
        let ids = Ids {
            request: format!("{:016x}{:016x}", entropy(), entropy()),
            job: call.job_id.clone(),
        };
        let request = call.request(&ids, ends_at.saturating_duration_since(Instant::now()));
        let Some(frame) = request.and_then(|request| frame(&request).ok()) else {
            return Ok(outcome::spec_error(
                "the parameters are larger than a frame",
            ));
        };
        match follow(&frame, &ids, &place.live, silent_at, pool, stop).await? {
            Followed::Ended(end) => return Ok(*end),
            Followed::Unheeded(stopping) => {
                place.condemn();
                let latest = Instant::now() + END_TIME;
                let by = stopping.say_by.map_or(latest, |by| by.min(latest));
                // Whatever somebody else's runner does now, nobody here can end it.
                let gone = place.live.gone.cancelled();
                let gone = place.live.ours && timeout_at(by, gone).await.is_ok();
                return Ok(outcome::stopped(stopping.why, gone));
            }
            Followed::Busy => {}
        }
        tokio::select! {
            biased;
            order = next(stop) => return Ok(outcome::stopped(Why::Ordered(order.reason), true)),
            () = moment(silent_at) => return Ok(outcome::stopped(Why::Silent, true)),
            () = sleep(pause) => pause = (pause * 2).min(LONGEST_BUSY_PAUSE),
        }
    }
}

/// Sends a request and follows it, for as long as it may take.
async fn follow(
    frame: &[u8],
    ids: &Ids,
    live: &Live,
    silent_at: Option<Instant>,
    pool: &PoolSettings,
    stop: &mut Stop,
) -> Result<Followed, NotSent> {
    let exchange = exchange(live, frame, ids);
    tokio::pin!(exchange);
    let mut stopping: Option<Stopping> = None;
    loop {
        let kill_at = stopping.as_ref().map(|it| it.kill_at);
        let (why, by, say_by) = tokio::select! {
            biased;
            answer = &mut exchange => {
                if live.ours && matches!(answer, Err(RunnerCallError::Broken(_))) {
                    let _ = timeout(NOTICE, live.gone.cancelled()).await;
                }
                if stopping.is_none() && answer.as_ref().is_ok_and(Outcome::is_busy) {
                    return Ok(Followed::Busy);
                }
                if stopping.is_none() && answer.as_ref().is_ok_and(Outcome::is_shutting_down) {
                    return Err(NotSent("the runner is about to end".to_owned()));
                }
                let end = judge(answer, stopping, live)?;
                return Ok(Followed::Ended(Box::new(end)));
            }
            order = next(stop) => {
                let canceled = order.reason == StopReason::Canceled;
                let say_by = canceled.then(|| order.kill_at + REPORT_TIME);
                (Why::Ordered(order.reason), bounded(order, pool.grace), say_by)
            }
            () = moment(silent_at), if stopping.is_none() => {
                (Why::Silent, Instant::now() + pool.grace, None)
            }
            () = moment(kill_at) => break,
        };
        if stopping.is_none() {
            cancel(live, ids);
        }
        let first = stopping.map_or(by, |it| it.kill_at.min(by));
        stopping = Some(Stopping {
            why,
            kill_at: first,
            say_by,
        });
    }
    Ok(Followed::Unheeded(stopping.unwrap_or(Stopping {
        why: Why::Silent,
        kill_at: Instant::now(),
        say_by: None,
    })))
}

async fn exchange(live: &Live, frame: &[u8], ids: &Ids) -> Result<Outcome, RunnerCallError> {
    let ended = async {
        live.gone.cancelled().await;
        sleep(LAST_ANSWER).await;
    };
    tokio::select! {
        biased;
        answer = live.exchange(frame, ids) => answer,
        () = ended => Err(RunnerCallError::Broken("the runner's process ended".to_owned())),
    }
}

fn judge(
    answer: Result<Outcome, RunnerCallError>,
    stopping: Option<Stopping>,
    live: &Live,
) -> Result<CallEnd, NotSent> {
    let why = stopping.map(|it| it.why);
    match (answer, why) {
        (Ok(outcome), why) => Ok(outcome::answered(outcome, why)),
        (Err(RunnerCallError::NotSent(_)), Some(why)) => Ok(outcome::stopped(why, true)),
        (Err(RunnerCallError::Broken(_)), Some(why)) => {
            Ok(outcome::stopped(why, live.gone.is_cancelled()))
        }
        (Err(RunnerCallError::NotSent(words)), None) => Err(NotSent(words)),
        (Err(RunnerCallError::Broken(words)), None) => Ok(outcome::broken(words)),
    }
}

/// Asks the runner to end this one call (RQ-39, RQ-41). Beside everything else: a runner that does
/// not hear it is ended by the clock.
fn cancel(live: &Live, ids: &Ids) {
    let request = CancelRequest {
        job_id: ids.job.clone(),
        request_id: Some(ids.request.clone()),
        hard_kill: false,
    };
    let Ok(frame) = frame(&request) else { return };
    let door = live.door.clone();
    tokio::spawn(async move {
        if let Err(trouble) = door.say(&frame).await {
            tracing::warn!(?trouble, "a cancel did not reach its runner");
        }
    });
}

/// The next order; never, when nobody is left to give one.
pub(super) async fn next(stop: &mut Stop) -> StopOrder {
    loop {
        if stop.changed().await.is_err() {
            return std::future::pending().await;
        }
        if let Some(order) = *stop.borrow_and_update() {
            return order;
        }
    }
}

/// No call gets longer than its pool grants it, and none whose lease is lost no time at all.
fn bounded(order: StopOrder, grace: Duration) -> Instant {
    let now = Instant::now();
    match order.reason {
        StopReason::LeaseLost => now + LOST_GRACE.min(grace),
        _ => order.kill_at.min(now + grace),
    }
}

async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
