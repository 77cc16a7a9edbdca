//! One lease, from its grant to its release: the holder's machine decides, this loop obeys.
//!
//! Messages go out as tasks of their own, so that a slow answer never delays a heartbeat, and the
//! work runs beside them. Everything that happens comes back to one place and is told to the
//! machine; nothing else decides what is sent or stopped.

pub(crate) mod handover;
pub(crate) mod report;
mod resend;

use std::sync::Arc;
use std::time::Duration;

use delta_core::holder::{Answer, Holder, StopWhy, Terms, Todo};
use delta_core::time::{Millis, Span};
use delta_shim::clock;
use delta_shim::stop::StopReason;
use delta_wire::agent::proto::RunComplete;
use delta_wire::runner::LeaseGranted;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::agent::{Shutdown, SlotContext};
use crate::attempt::run::{self, Assignment, Visible, WorkEnd};
use crate::attempt::{Adopted, AdoptedState};
use crate::connection::{CallError, Connection, Followed, News, Settled, stale};
use crate::job_io::Carried;
use crate::lease::handover::HandoverNote;
use crate::lease::resend::{Resend, span};
use crate::work::{Identity, StopOrder};

/// The loop looks around at least this often, so that a machine that slept notices what it missed.
const MAX_SLEEP: Duration = Duration::from_secs(5);

/// How long past the shutdown a result is still offered to a server that does not answer.
const SHUTDOWN_REPORT: Duration = Duration::from_secs(15);

/// How a lease ended for its holder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeaseEnd {
    /// The server has the result.
    Settled,
    /// The lease was lost; nothing was or will be reported.
    Lost,
}

/// Holds a lease until it is over.
pub(crate) async fn hold(
    context: Arc<SlotContext>,
    granted: LeaseGranted,
    job_name: String,
    shutdown: Shutdown,
) -> LeaseEnd {
    let session = LeaseTask::new(context, granted, job_name, shutdown);
    tracing::info!(job_id = session.identity.job_id, "lease granted");
    session.until_over().await
}

/// Goes on with a lease, and the work under it, that an earlier agent held. The link knows of it
/// when this returns; what is returned must be driven.
pub(crate) fn resume(
    context: Arc<SlotContext>,
    note: HandoverNote,
    adopted: Adopted,
    shutdown: Shutdown,
) -> impl Future<Output = LeaseEnd> {
    let mut session = LeaseTask::new(context, note.granted, note.job_name, shutdown);
    session.carried = note.carried;
    session.holder = adopt(session.terms, &adopted.standing);
    // Above whatever the earlier agent counted to: it sent less than one a millisecond.
    session.seq = u64::try_from(clock::now().0).unwrap_or(0);
    session.start_work(Some(adopted));
    tracing::info!(job_id = session.identity.job_id, "lease taken over");
    session.until_over()
}

fn adopt(terms: Terms, standing: &AdoptedState) -> Holder {
    let stopping = standing.stop.and_then(|stop| {
        let why = match stop.reason {
            StopReason::Canceled => StopWhy::Cancel,
            StopReason::TimedOut => StopWhy::MaxRuntime,
            StopReason::LeaseLost => StopWhy::OutOfTouch,
            // It ends by itself, and its record says why.
            StopReason::StepTimedOut | StopReason::Silent | StopReason::Shutdown => return None,
        };
        Some((why, Millis(stop.kill_at)))
    });
    let (until, finish) = (standing.until, standing.must_finish_by);
    Holder::adopt(terms, until, finish, stopping, clock::now())
}

struct LeaseTask {
    context: Arc<SlotContext>,
    granted: Arc<LeaseGranted>,
    identity: Identity,
    terms: Terms,
    holder: Holder,
    shutdown: Shutdown,
    calls: JoinSet<Reply>,
    ack: Resend,
    result: Resend,
    /// The server has not seen the acknowledgement; it must before it takes a result.
    ack_missing: bool,
    seq: u64,
    stop: watch::Sender<Option<StopOrder>>,
    /// The lease's local end, for whoever watches over the work.
    until: watch::Sender<Millis>,
    visible: Arc<Visible>,
    working: Option<AbortOnDropHandle<WorkEnd>>,
    work_end: Option<WorkEnd>,
    report: Option<RunComplete>,
    followed: Followed,
    /// What an earlier agent left to this one.
    carried: Carried,
}

/// An answer that came back, with the moment its message was sent.
enum Reply {
    Ack {
        sent_at: Millis,
        answer: Result<Answer, CallError>,
    },
    Heartbeat {
        sent_at: Millis,
        answer: Result<Answer, CallError>,
    },
    Result(Result<Settled, CallError>),
}

impl LeaseTask {
    fn new(
        context: Arc<SlotContext>,
        granted: LeaseGranted,
        job_name: String,
        shutdown: Shutdown,
    ) -> LeaseTask {
        let terms = Terms {
            ttl: span(granted.lease_ttl_seconds),
            heartbeat_interval: span(granted.heartbeat_interval_seconds),
            max_runtime: span(granted.max_runtime_seconds),
            grace: span(context.settings.stop_grace.into()),
        };
        let identity = report::identity(&granted, job_name);
        let holder = Holder::new(terms, clock::now());
        let every = Duration::from_millis(granted.heartbeat_interval_seconds.as_millis());
        let link = &context.link;
        let followed = link.hold(&context.execution, &granted.lease_id, every);
        LeaseTask {
            until: watch::Sender::new(holder.valid_until()),
            holder,
            terms,
            followed,
            context,
            granted: Arc::new(granted),
            identity,
            shutdown,
            calls: JoinSet::new(),
            ack: Resend::new(),
            result: Resend::new(),
            ack_missing: false,
            seq: 0,
            stop: watch::Sender::new(None),
            visible: Arc::default(),
            working: None,
            work_end: None,
            report: None,
            carried: Carried::default(),
        }
    }

    async fn until_over(mut self) -> LeaseEnd {
        let end = self.run().await;
        self.context.link.release(&self.context.execution);
        tracing::info!(job_id = self.identity.job_id, ?end, "lease over");
        // What was not reported in time may still be, by the next agent.
        let over = matches!(self.holder.todo(clock::now()), Todo::Release(_));
        let Some(work_end) = self.work_end.filter(|_| over) else {
            return end;
        };
        if let Some(remains) = work_end.remains {
            remains.remove();
        }
        // The slot is free when nothing of the job is left on the disk.
        if let Some(folder) = work_end.folder {
            run::remove(folder).await;
        }
        end
    }

    async fn run(&mut self) -> LeaseEnd {
        loop {
            let (now, looked_at) = (clock::now(), Instant::now());
            self.obey_shutdown(looked_at);
            let Some(wake) = self.act(now) else { break };
            if self.too_late_to_report() {
                return LeaseEnd::Lost;
            }
            self.tell_until();
            let pause = self.pause(wake.since(now), looked_at);
            tokio::select! {
                Some(reply) = self.calls.join_next() => self.hear(reply),
                ended = finished(&mut self.working) => self.work_ended(ended),
                Ok(()) = self.followed.news.changed() => self.hear_news(),
                Ok(()) = self.followed.line.changed() => self.line_changed(),
                Ok(()) = self.shutdown.changed() => {}
                () = sleep(pause) => {}
            }
        }
        match self.holder.todo(clock::now()) {
            Todo::Release(None) => LeaseEnd::Settled,
            _ => LeaseEnd::Lost,
        }
    }

    /// Does everything that is due. Returns when to look again, or nothing when the lease is over.
    fn act(&mut self, now: Millis) -> Option<Millis> {
        if self.ack_missing && self.ack.due(now) {
            self.send_ack(now);
        }
        loop {
            match self.holder.todo(now) {
                Todo::Acknowledge => {
                    if self.ack.due(now) {
                        self.send_ack(now);
                    }
                    return Some(self.ack.next(self.holder.valid_until()));
                }
                Todo::StartWork => {
                    self.start_work(None);
                    self.holder.work_started();
                }
                Todo::Heartbeat => self.send_heartbeat(now),
                Todo::StopWork(why) => {
                    // With its end, so that the shim keeps it if this agent does not live to.
                    let grace = self.holder.kill_at().map_or(Span(0), |at| at.since(now));
                    let grace = Duration::from_millis(u64::try_from(grace.0).unwrap_or(0));
                    self.order(reason(why), Instant::now() + grace);
                    self.holder.stop_asked();
                }
                Todo::KillWork(why) => {
                    self.order(reason(why), Instant::now());
                    self.holder.kill_sent();
                }
                todo @ (Todo::Complete | Todo::CancelAck) => {
                    if self.result.due(now) && !self.ack_missing {
                        self.send_result(todo);
                    }
                    // Heartbeats fall due meanwhile; the machine knows when.
                    let beat = now + span(self.granted.heartbeat_interval_seconds);
                    return Some(self.result.next(beat.min(self.holder.valid_until())));
                }
                Todo::Wait(until) => return Some(until),
                Todo::Release(_) => return None,
            }
        }
    }

    fn send_ack(&mut self, now: Millis) {
        self.ack.in_flight = true;
        let (link, execution) = self.line();
        let lease = self.granted.lease_id.clone();
        self.calls.spawn(async move {
            Reply::Ack {
                sent_at: now,
                answer: link.accept(&execution, &lease).await,
            }
        });
    }

    fn line(&self) -> (Connection, String) {
        let context = &self.context;
        (context.link.clone(), context.execution.clone())
    }

    fn send_heartbeat(&mut self, now: Millis) {
        self.seq += 1;
        let renewal = report::renewal(&self.visible, self.seq);
        self.holder.heartbeat_sent(now);
        let (link, execution) = self.line();
        let lease = self.granted.lease_id.clone();
        self.calls.spawn(async move {
            let answer = link.renew(&execution, &lease, renewal).await;
            Reply::Heartbeat {
                sent_at: now,
                answer,
            }
        });
    }

    fn send_result(&mut self, todo: Todo) {
        let Some(end) = &self.work_end else { return };
        self.result.in_flight = true;
        // Made once: every further try must be the same message.
        let message = self.report.get_or_insert_with(|| report::make(todo, end));
        let message = message.clone();
        let (link, execution) = self.line();
        let lease = self.granted.lease_id.clone();
        self.calls
            .spawn(async move { Reply::Result(link.complete(&execution, &lease, message).await) });
    }

    /// Something happened to the lease without us.
    fn hear_news(&mut self) {
        let now = clock::now();
        let news = self.followed.news.borrow_and_update().clone();
        match news {
            News::None => {}
            // The heartbeat is the proof that we heard of it, and brings the deadline.
            News::CancelAsked if self.holder.stopping().is_none() => self.send_heartbeat(now),
            News::CancelAsked => {}
            News::Stale(reason) => {
                tracing::warn!(job_id = self.identity.job_id, reason, "the lease is over");
                self.holder.heartbeat_answered(now, stale(&reason), now);
            }
        }
    }

    /// After a time without a line the lease may be about to end.
    fn line_changed(&mut self) {
        let up = self.followed.line.borrow_and_update().is_some();
        if up && self.working.is_some() {
            self.send_heartbeat(clock::now());
        }
    }

    fn start_work(&mut self, adopted: Option<Adopted>) {
        self.tell_until();
        let assignment = Assignment {
            context: Arc::clone(&self.context),
            granted: Arc::clone(&self.granted),
            identity: self.identity.clone(),
            stop: self.stop.subscribe(),
            until: self.until.subscribe(),
            must_finish_by: self.holder.must_finish_by(),
            visible: Arc::clone(&self.visible),
            cursors: self.followed.cursors.clone(),
            line: self.followed.line.clone(),
            carried: std::mem::take(&mut self.carried),
        };
        let work = run::perform(assignment, adopted);
        self.working = Some(AbortOnDropHandle::new(tokio::spawn(work)));
    }

    /// The shim counts for itself, so that the work ends with the lease whatever becomes of us.
    fn tell_until(&self) {
        let until = self.holder.valid_until();
        self.until
            .send_if_modified(|told| std::mem::replace(told, until) != until);
    }

    fn order(&mut self, reason: StopReason, kill_at: Instant) {
        let job_id = &self.identity.job_id;
        let grace = kill_at.duration_since(Instant::now());
        tracing::info!(job_id, ?reason, ?grace, "stopping the work");
        self.stop.send_replace(Some(StopOrder { reason, kill_at }));
    }

    fn work_ended(&mut self, ended: Result<WorkEnd, JoinError>) {
        self.working = None;
        self.work_end = Some(ended.unwrap_or_else(|problem| {
            tracing::error!(error = %problem, "the work failed inside the agent");
            report::broken()
        }));
        self.holder.work_ended();
    }

    /// From the moment of shutdown on, running work is stopped, and work that is being stopped
    /// already has no longer than that; what it came to is still reported.
    fn obey_shutdown(&mut self, now: Instant) {
        let due = self.shutdown.borrow().filter(|at| now >= *at);
        let (Some(at), true) = (due, self.working.is_some()) else {
            return;
        };
        let kill_at = at + self.context.settings.stop_grace;
        let standing = *self.stop.borrow();
        match standing {
            None => self.order(StopReason::Shutdown, kill_at),
            Some(order) if order.kill_at > kill_at => self.order(order.reason, kill_at),
            Some(_) => {}
        }
    }

    /// How long nothing is due: until the machine's next moment, the shutdown, or a look around.
    /// A shutdown that was due at the last look has been obeyed.
    fn pause(&self, until_wake: Span, looked_at: Instant) -> Duration {
        let wake = Duration::from_millis(u64::try_from(until_wake.0).unwrap_or(0));
        let shutdown = self.shutdown.borrow().filter(|at| *at > looked_at);
        let shutdown = shutdown.map_or(MAX_SLEEP, |at| at.duration_since(Instant::now()));
        wake.min(MAX_SLEEP).min(shutdown)
    }

    fn too_late_to_report(&self) -> bool {
        let late = |at: Instant| Instant::now() >= at + SHUTDOWN_REPORT;
        let never = self.context.link.is_over();
        self.working.is_none() && (never || self.shutdown.borrow().is_some_and(late))
    }

    fn hear(&mut self, reply: Result<Reply, JoinError>) {
        let now = clock::now();
        match reply {
            Ok(Reply::Ack { sent_at, answer }) => self.hear_ack(sent_at, answer, now),
            Ok(Reply::Heartbeat { sent_at, answer }) => self.hear_heartbeat(sent_at, answer, now),
            Ok(Reply::Result(answer)) => self.hear_result(answer, now),
            Err(problem) => tracing::error!(error = %problem, "a call failed inside the agent"),
        }
    }

    fn hear_ack(&mut self, sent_at: Millis, answer: Result<Answer, CallError>, now: Millis) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(problem) => match self.lasting(&problem) {
                Some(retry_after) => return self.ack.failed(now, retry_after),
                None => Answer::Stale,
            },
        };
        self.ack.answered(now);
        self.ack_missing = false;
        self.holder.acknowledged(sent_at, answer, now);
    }

    fn hear_heartbeat(&mut self, sent_at: Millis, answer: Result<Answer, CallError>, now: Millis) {
        match answer {
            Ok(answer) => {
                self.ack_missing |= matches!(answer, Answer::NotAcknowledged);
                self.holder.heartbeat_answered(sent_at, answer, now);
            }
            // The next one is due in time; the time to live decides.
            Err(problem) => drop(self.lasting(&problem)),
        }
    }

    fn hear_result(&mut self, answer: Result<Settled, CallError>, now: Millis) {
        match answer {
            Ok(Settled::Taken) => self.holder.result_answered(false),
            Ok(Settled::Stale) => self.holder.result_answered(true),
            Ok(Settled::NotAcked) => {
                self.ack_missing = true;
                self.result.answered(now);
            }
            Err(problem) => match self.lasting(&problem) {
                Some(retry_after) => self.result.failed(now, retry_after),
                // The same message would be refused again, and no other may be sent.
                None => self.holder.result_answered(true),
            },
        }
    }

    /// Whether another try makes sense, and after how long at least.
    fn lasting(&self, problem: &CallError) -> Option<Option<Duration>> {
        let job_id = &self.identity.job_id;
        tracing::warn!(job_id, error = %problem, "a message was not answered");
        match problem {
            CallError::Busy { retry_after, .. } => Some(*retry_after),
            CallError::Unreachable(_) | CallError::StorageFull => Some(None),
            CallError::Refused { .. } => None,
        }
    }
}

/// Waits for the work, for ever when there is none.
async fn finished(working: &mut Option<AbortOnDropHandle<WorkEnd>>) -> Result<WorkEnd, JoinError> {
    match working {
        Some(handle) => handle.await,
        None => std::future::pending().await,
    }
}

fn reason(why: StopWhy) -> StopReason {
    match why {
        StopWhy::Cancel => StopReason::Canceled,
        StopWhy::MaxRuntime => StopReason::TimedOut,
        StopWhy::Stale | StopWhy::OutOfTouch => StopReason::LeaseLost,
    }
}
