//! One agent's session: a loop over what the agent says, what the writer answers, what operators
//! order, and time.
//!
//! It reads no further than it can answer, and never waits for the agent to read: a session that
//! is stuck costs its own agent and nobody else.

use std::sync::Arc;
use std::time::Duration;

use delta_core::Text;
use delta_core::rights::Speaker;
use delta_wire::agent::frame::Received;
use delta_wire::agent::proto::{Drain, ResultStream, Undrain, server_message::Message as Say};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::{Status, Streaming};

use super::leases::Leases;
use super::logs::{self, LogOrder, MAX_WAITING_BYTES, MAX_WAITING_ORDERS, Written};
use super::offers::Offers;
use super::orders::{Order, Orders};
use super::outgoing::{Frame, MAX_WAITING, Outgoing};
use super::register::{revoked, superseded};
use super::registry::{Entry, OFFLINE_AFTER, Place};
use super::results::Writing;
use super::runners::RunnerPool;
use super::uploads::{Uploads, next_told};
use crate::http::App;
use crate::identity::{Principal, Standing};
use crate::writer::{Outbox, Receipt};

/// How often a session looks at itself: credentials, slots that did not get parked, presence.
const TICK: Duration = Duration::from_secs(5);
/// How often the credential and the agent's row are looked at again, so that a revocation ends the
/// stream within a minute (D14), and what another server was told reaches the agent.
pub const RECHECK: Duration = Duration::from_secs(20);
/// How often it is noted that the agent speaks: others need it to the second at most.
const HEARD_EVERY: Duration = Duration::from_secs(1);
/// Messages that mean nothing, per minute, before the stream is closed (A36).
const MAX_OFFENCES: u32 = 100;
const OFFENCE_WINDOW: Duration = Duration::from_secs(60);
/// An agent that rejected work is left alone this long, doubling up to the cap (A32).
const REJECTED_BASE: Duration = Duration::from_secs(1);
const REJECTED_CAP: Duration = Duration::from_secs(60);
/// The same for one whose disk was full: longer than the job waits before its next try, so that it
/// is another agent's (F43).
const FULL_BASE: Duration = Duration::from_secs(5);

/// What the session's agent is.
pub struct Who {
    pub principal: Principal,
    pub agent: Text,
    pub epoch: u64,
}

impl Who {
    pub fn speaker(&self) -> Speaker {
        Speaker::Session {
            agent: self.agent.clone(),
            epoch: self.epoch,
        }
    }
}

pub struct Session {
    pub app: App,
    pub who: Who,
    pub leases: Leases,
    pub outgoing: Outgoing,
    pub outbox: Arc<Outbox>,
    pub offers: Offers,
    pub drain: Option<Text>,
    /// The agent itself wants no work.
    resting: bool,
    /// It lost a lease without a word, and has said nothing since.
    missing: bool,
    pub quarantined: bool,
    /// Its place among the sessions of this server.
    pub entry: Option<Entry>,
    /// Messages sent to the writer and not answered.
    pub in_flight: usize,
    /// Results of leases that this session does not know, until they are looked up.
    pub unsure: Vec<(ResultStream, Receipt)>,
    log: Option<LogWriting>,
    pub results: Option<Writing>,
    pub(super) uploads: Option<Uploads>,
    offences: u32,
    offences_since: Instant,
    rejections: u32,
    /// Attempts in a row that found its disk full.
    full_disks: u32,
    /// No work before this moment.
    rest_until: Option<Instant>,
    rechecked: Instant,
    /// When the agent last said something, and when that was last noted for others.
    heard: Instant,
    heard_noted: Instant,
    /// Set when the session must end, with what the agent is told.
    pub end: Option<Status>,
}

/// The task that writes logs, and what it has in hand.
struct LogWriting {
    orders: mpsc::Sender<LogOrder>,
    written: mpsc::Receiver<Written>,
    bytes: usize,
    count: usize,
}

impl Session {
    pub fn new(app: App, who: Who, leases: Leases, offers: Offers, outgoing: Outgoing) -> Session {
        Session {
            app,
            who,
            leases,
            outgoing,
            outbox: Arc::default(),
            offers,
            drain: None,
            resting: false,
            missing: false,
            quarantined: false,
            entry: None,
            in_flight: 0,
            unsure: Vec::new(),
            log: None,
            results: None,
            uploads: None,
            offences: 0,
            offences_since: Instant::now(),
            rejections: 0,
            full_disks: 0,
            rest_until: None,
            rechecked: Instant::now(),
            heard: Instant::now(),
            heard_noted: Instant::now(),
            end: None,
        }
    }

    /// Serves the stream until it ends, whoever ends it. Leases live on.
    pub async fn run(
        mut self,
        mut stream: Streaming<Received>,
        orders: Orders,
        frames: mpsc::Sender<Result<Box<Frame>, Status>>,
        _place: Option<Place>,
    ) {
        self.begin();
        if self.leases.live_count() > 0 {
            Box::pin(self.look_again()).await;
        }
        let mut ticks = interval(TICK.min(self.app.recheck));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        let (stop, outbox) = (self.app.stop.clone(), self.outbox.clone());
        while self.end.is_none() {
            if !self.unsure.is_empty() {
                // As rare.
                Box::pin(self.look_up()).await;
            }
            let may_read = self.may_read();
            tokio::select! {
                () = outbox.arrived() => self.told(),
                permit = frames.reserve(), if !self.outgoing.is_empty() => match permit {
                    Ok(permit) => permit.send(Ok(Box::new(self.outgoing.frame()))),
                    Err(_) => break,
                },
                written = next_written(&mut self.log) => match written {
                    Some(written) => self.log_written(written),
                    None => self.end = Some(broken()),
                },
                taken = Writing::next(&mut self.results) => match taken {
                    Some(taken) => self.results_taken(&taken),
                    None => self.end = Some(broken()),
                },
                told = next_told(&mut self.uploads) => match told {
                    Some(told) => self.uploads_told(told),
                    None => self.end = Some(broken()),
                },
                received = stream.message(), if may_read => match received {
                    Ok(Some(received)) => self.hear(received),
                    Ok(None) => self.end = Some(Status::ok("")),
                    Err(status) => {
                        // Told where it can be: a frame that is too large has a reason.
                        tracing::debug!(agent = %self.who.agent, %status, "a session broke");
                        self.end = Some(status);
                    }
                },
                order = orders.next() => self.obey(order),
                _ = ticks.tick() => {
                    if self.tick() {
                        // Rare, so not part of what every session takes in memory.
                        Box::pin(self.recheck()).await;
                    }
                }
                () = stop.cancelled() => self.end = Some(Status::unavailable("the server stops")),
            }
        }
        self.outbox.close();
        drop(self.entry.take());
        self.say_goodbye(&frames);
    }

    /// What was said before is still sent where there is room, then the reason.
    fn say_goodbye(mut self, frames: &mpsc::Sender<Result<Box<Frame>, Status>>) {
        while !self.outgoing.is_empty() {
            if frames
                .try_send(Ok(Box::new(self.outgoing.frame())))
                .is_err()
            {
                return;
            }
        }
        if let Some(status) = self
            .end
            .take()
            .filter(|status| status.code() != tonic::Code::Ok)
        {
            let _ = frames.try_send(Err(status));
        }
    }

    fn begin(&mut self) {
        let held: Vec<_> = self.leases.live().map(|(lease, _)| lease).collect();
        if self
            .app
            .writer
            .listen(&self.outbox, held.into_iter())
            .is_err()
        {
            self.end = Some(Status::unavailable("the server is overloaded"));
        }
        self.ask_for_work();
    }

    /// A cancel that was asked for while the agent was away, and leases that ended between their
    /// listing and now. Looked up after the session listens, so that nothing falls between the two:
    /// a slot whose lease ended unheard would be taken for good.
    async fn look_again(&mut self) {
        let (who, agent) = (self.who.principal.id.clone(), self.who.agent.clone());
        let most = self.leases.live().map(|(_, held)| held.slot).max();
        // A store that does not answer now tells by the heartbeat.
        let found = super::held(&self.app, &who, &agent, most.unwrap_or(0)).await;
        let Ok(found) = found else { return };
        if self.leases.keep_only(&found) {
            self.ask_for_work();
        }
        for it in found {
            if let Some(cancel) = it.cancel {
                self.tell_cancel(it.lease, cancel.cause, cancel.remaining);
            }
        }
    }

    fn may_read(&self) -> bool {
        let log_room = self
            .log
            .as_ref()
            .is_none_or(|log| log.bytes < MAX_WAITING_BYTES && log.count < MAX_WAITING_ORDERS);
        let upload_room = self.uploads.as_ref().is_none_or(Uploads::has_room);
        let results_room = self.results.as_ref().is_none_or(Writing::has_room);
        let room = log_room && upload_room && results_room;
        room && self.outgoing.len() + self.in_flight < MAX_WAITING
    }

    /// Parks every slot that is free, unless the agent is to take no work.
    pub fn ask_for_work(&mut self) {
        let now = Instant::now();
        if self.rest_until.is_some_and(|until| now < until) {
            return;
        }
        self.rest_until = None;
        if self.drain.is_some() || self.quarantined || self.resting {
            return;
        }
        // Presence gates what is assigned (EP-49): a program that hangs takes no work.
        if self.is_silent() || self.missing {
            return self.stop_asking();
        }
        self.outbox.rest(false);
        let slots = self.leases.park();
        if slots.is_empty() {
            return;
        }
        let offers = &self.offers;
        let slots = slots
            .into_iter()
            .map(|(slot, round, runner)| (slot, round, runner, offers.of_slot(slot)));
        let writer = &self.app.writer;
        let parked = writer.park(&self.outbox, &self.who.principal.id, slots);
        // The next tick asks again.
        if parked.is_err() {
            self.leases.unpark();
        }
    }

    fn is_silent(&self) -> bool {
        self.heard.elapsed() >= OFFLINE_AFTER
    }

    /// A lease that was given here is lost. An agent that was not heard as often as it should be
    /// gets no more of them before it says something: it may be stopped or cut off, with many slots
    /// that wait.
    pub fn lost_a_lease(&mut self) {
        let interval = self.app.writer.shared().settings.heartbeat_interval;
        let interval = Duration::from_millis(interval.0.unsigned_abs());
        if self.heard.elapsed() > interval {
            self.missing = true;
            self.stop_asking();
        }
    }

    /// The agent has said something, whatever it is.
    pub fn heard(&mut self) {
        let was_missing = std::mem::take(&mut self.missing);
        if (self.is_silent() || was_missing) && self.drain.is_none() && self.rest_until.is_none() {
            self.outbox.rest(false);
        }
        let noted = self.heard_noted.elapsed() < HEARD_EVERY && !self.is_silent();
        self.heard = Instant::now();
        if !noted {
            self.heard_noted = self.heard;
            let now = self.app.writer.now();
            self.app.agents.heard(&self.who.agent, self.who.epoch, now);
        }
    }

    /// The agent rejected work: others should have it, and this one not at once (A32, F43).
    pub fn rest_after_rejection(&mut self) {
        self.rest_for(REJECTED_BASE, self.rejections);
        self.rejections = self.rejections.saturating_add(1);
    }

    /// An attempt ended for want of room on the agent's disk (F43). That it accepts more work says
    /// nothing of its disk; that it succeeds with some does.
    pub fn rest_after_full_disk(&mut self) {
        self.rest_for(FULL_BASE, self.full_disks);
        self.full_disks = self.full_disks.saturating_add(1);
    }

    pub fn has_room(&mut self) {
        self.full_disks = 0;
    }

    fn rest_for(&mut self, base: Duration, times: u32) {
        let pause = base.saturating_mul(1 << times.min(10)).min(REJECTED_CAP);
        let until = Instant::now() + pause;
        self.rest_until = Some(self.rest_until.map_or(until, |other| other.max(until)));
        self.stop_asking();
    }

    pub fn accepted_work(&mut self) {
        self.rejections = 0;
    }

    /// The agent says whether it wants work.
    pub fn take_rest(&mut self, resting: bool) {
        if resting == self.resting {
            return;
        }
        self.resting = resting;
        match resting {
            true => self.stop_asking(),
            false => self.ask_for_work(),
        }
    }

    /// How its runner pools are: slots that offer something else now are asked for again.
    pub fn pools_are(&mut self, pools: &[RunnerPool]) {
        let changed = self.offers.pools_are(pools);
        if changed.is_empty() {
            return;
        }
        for slots in changed {
            self.leases.unpark_between(slots);
        }
        self.ask_for_work();
    }

    fn stop_asking(&mut self) {
        self.outbox.rest(true);
        self.leases.unpark();
    }

    /// Something that cannot be read or lacks a field: counted, and too much of it ends the session
    /// (A36).
    pub fn offence(&mut self, what: &'static str) {
        self.app.metrics().unknown_fields.inc();
        if self.offences_since.elapsed() >= OFFENCE_WINDOW {
            self.offences = 0;
            self.offences_since = Instant::now();
        }
        self.offences += 1;
        if self.offences == 1 {
            tracing::warn!(agent = %self.who.agent, what, "a message is ignored");
        }
        if self.offences > MAX_OFFENCES {
            let status = Status::resource_exhausted("too many messages that mean nothing");
            self.end = Some(status);
        }
    }

    /// Hands something to the task that writes logs.
    pub fn log_order(&mut self, order: LogOrder) {
        let app = &self.app;
        let log = self.log.get_or_insert_with(|| {
            let (orders, written) = logs::start(app.objects.clone());
            LogWriting {
                orders,
                written,
                bytes: 0,
                count: 0,
            }
        });
        let length = match &order {
            LogOrder::Append(chunk) => chunk.data.len(),
            LogOrder::Store(_) => 0,
        };
        // There is room for as many as the session reads: without it something is broken, and the
        // agent sends again what is not answered.
        match log.orders.try_send(order) {
            Ok(()) => {
                log.bytes += length;
                log.count += 1;
            }
            Err(_) => self.end = Some(Status::unavailable("the log cannot be written")),
        }
    }

    /// Whether bytes of any log came in this session.
    pub fn writes_logs(&self) -> bool {
        self.log.is_some()
    }

    fn log_written(&mut self, written: Written) {
        if let Some(log) = &mut self.log {
            log.bytes = log.bytes.saturating_sub(written.bytes);
            log.count = log.count.saturating_sub(written.orders);
        }
        if written.settled {
            self.log_settled(written.lease);
        } else {
            self.tell_log(&written);
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Drain(id) => {
                if self.drain.as_ref() != Some(&id) {
                    let drain_id = id.to_string();
                    self.outgoing.say(Say::Drain(Drain { drain_id }));
                    self.drain = Some(id);
                }
                self.stop_asking();
            }
            Order::Undrain(id) => {
                if self.drain.take().is_some() {
                    let drain_id = id.to_string();
                    self.outgoing.say(Say::Undrain(Undrain { drain_id }));
                }
                self.ask_for_work();
            }
            Order::Superseded => {
                self.end = Some(superseded());
            }
            Order::Revoked => {
                self.end = Some(revoked());
            }
        }
        let draining = self.drain.is_some();
        self.note(|present| present.draining = draining);
        self.app.agents.note_present(&self.who.agent);
    }

    /// Notes something about the agent; a session that is not the newest ends.
    pub fn note(&mut self, note: impl FnOnce(&mut super::registry::Present)) {
        let leases = self.leases.live_count();
        let (slots, offers) = (self.leases.busy_slots(), &self.offers);
        let newest = self.app.agents.note(&self.who.agent, self.who.epoch, |it| {
            it.leases = leases;
            it.busy = offers.busy(slots);
            note(it);
        });
        if !newest && self.end.is_none() {
            self.end = Some(superseded());
        }
    }

    /// True when it is time to look again at who this is.
    fn tick(&mut self) -> bool {
        self.leases.forget_ended();
        self.quarantined = self.app.agents.is_quarantined(&self.who.agent);
        if self.quarantined {
            self.stop_asking();
        }
        self.ask_for_work();
        let due = self.rechecked.elapsed() >= self.app.recheck;
        if due {
            self.rechecked = Instant::now();
        }
        due
    }

    /// Looks again at who this is. A store that does not answer ends nobody.
    async fn recheck(&mut self) {
        let now = self.app.writer.now();
        match self.app.identity.recheck(&self.who.principal, now).await {
            Ok(Standing::Good) | Err(_) => {}
            Ok(ended @ Standing::Revoked) => {
                self.end = Some(Status::unauthenticated(ended.why()));
                return;
            }
            Ok(Standing::Expired) => {
                let words = "the credential has expired; show a fresh one";
                self.end = Some(Status::unauthenticated(words));
                return;
            }
            // What it grants is read at the next registration.
            Ok(Standing::Changed) => {
                self.end = Some(Status::unavailable("the credential has changed"));
                return;
            }
        }
        let (agent, epoch) = (self.who.agent.clone(), self.who.epoch);
        let row = self.app.read(move |reader| reader.agent(&agent)).await;
        match row {
            Ok(Some(row)) if row.revoked_at.is_some() => self.obey(Order::Revoked),
            Ok(Some(row)) if row.session > epoch => self.obey(Order::Superseded),
            Ok(Some(row)) => match (&self.drain, row.drain) {
                (None, Some(id)) => self.obey(Order::Drain(id)),
                (Some(id), None) => self.obey(Order::Undrain(id.clone())),
                (Some(old), Some(id)) if *old != id => self.obey(Order::Drain(id)),
                _ => {}
            },
            Ok(None) | Err(_) => {}
        }
    }
}

/// A task of the session is gone, and what it had in hand: the agent comes back and sends again
/// what was not answered.
fn broken() -> Status {
    Status::unavailable("the server cannot store what belongs to the work")
}

/// The next answer about logs; never, while no log was written.
async fn next_written(log: &mut Option<LogWriting>) -> Option<Written> {
    match log {
        Some(log) => log.written.recv().await,
        None => std::future::pending().await,
    }
}
