//! One agent's session: a loop over what the agent says, what the writer answers, what operators
//! order, and time. It keeps the I/O; what its leases and its intake come to, machines say.
//!
//! It reads no further than it can answer, and never waits for the agent to read: a session that
//! is stuck costs its own agent and nobody else.

use std::sync::Arc;
use std::time::Duration;

use delta_core::Text;
use delta_core::rights::Speaker;
use delta_wire::agent::frame::Received;
use delta_wire::agent::proto::{Drain, ResultStream, Undrain, server_message::Message as ToAgent};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::held_lease::LeaseEvent;
use super::intake::{Heard, Intake, Wish};
use super::lease_table::Leases;
use super::logs::{self, LogOrder, LogWritten, MAX_WAITING_BYTES, MAX_WAITING_ORDERS};
use super::offences::{Offence, Offences};
use super::offers::Offers;
use super::orders::{SessionOrder, SessionOrders};
use super::outgoing::{Frame, MAX_WAITING, Outgoing};
use super::register::{revoked, superseded};
use super::registry::{OFFLINE_AFTER, SessionEntry, SessionPlace};
use super::results::{ResultWriting, ResultsTaken};
use super::runners::RunnerPool;
use super::uploads::{UploadDone, Uploads, next_done};
use crate::app::App;
use crate::identity::{Principal, Standing};
use crate::writer::{Outbox, Receipt};

/// How often a session looks at itself: credentials, slots that did not get parked, presence.
const TICK: Duration = Duration::from_secs(5);
/// How often the credential and the agent's row are looked at again, so that a revocation ends the
/// stream within a minute, and what another server was told reaches the agent.
pub const RECHECK: Duration = Duration::from_secs(20);
/// How often it is noted that the agent speaks: others need it to the second at most.
const HEARD_EVERY: Duration = Duration::from_secs(1);
/// What the session's agent is.
pub struct SessionAgent {
    pub principal: Principal,
    pub agent: Text,
    pub epoch: u64,
}

impl SessionAgent {
    pub fn speaker(&self) -> Speaker {
        Speaker::Session {
            agent: self.agent.clone(),
            epoch: self.epoch,
        }
    }
}

pub struct Session {
    pub app: App,
    pub who: SessionAgent,
    pub leases: Leases,
    pub intake: Intake,
    pub offers: Offers,
    pub outgoing: Outgoing,
    pub outbox: Arc<Outbox>,
    /// Its place among the sessions of this server.
    pub entry: Option<SessionEntry>,
    /// Messages sent to the writer and not answered.
    pub in_flight: usize,
    /// Results of leases that this session does not know, until they are looked up.
    pub unsure: Vec<(ResultStream, Receipt)>,
    log: Option<LogWriting>,
    pub results: Option<ResultWriting>,
    pub(super) uploads: Option<Uploads>,
    offences: Offences,
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
    written: mpsc::Receiver<LogWritten>,
    bytes: usize,
    count: usize,
}

/// Everything that a session waits for.
enum SessionEvent<'a> {
    /// The writer has answered something, or has news.
    Delivered,
    /// There is room for a frame to the agent.
    Room(mpsc::Permit<'a, OutgoingFrame>),
    Received(Received),
    LogWritten(LogWritten),
    ResultsTaken(ResultsTaken),
    UploadDone(UploadDone),
    Order(SessionOrder),
    Tick,
    /// The session is over, whoever ended it.
    End(Status),
}

/// A frame on its way to the agent, or the reason why there are no more.
pub type OutgoingFrame = Result<Box<Frame>, Status>;

/// What comes from outside: the agent's stream, operators' orders, time.
struct SessionSources {
    stream: Streaming<Received>,
    orders: SessionOrders,
    ticks: Interval,
    stop: CancellationToken,
    outbox: Arc<Outbox>,
}

impl Session {
    pub fn new(
        app: App,
        who: SessionAgent,
        leases: Leases,
        intake: Intake,
        offers: Offers,
        outgoing: Outgoing,
    ) -> Session {
        let now = Instant::now();
        Session {
            app,
            who,
            leases,
            intake,
            offers,
            outgoing,
            outbox: Arc::default(),
            entry: None,
            in_flight: 0,
            unsure: Vec::new(),
            log: None,
            results: None,
            uploads: None,
            offences: Offences::new(now.into_std()),
            rechecked: now,
            heard: now,
            heard_noted: now,
            end: None,
        }
    }

    /// Serves the stream until it ends, whoever ends it. Leases live on.
    pub async fn run(
        mut self,
        stream: Streaming<Received>,
        orders: SessionOrders,
        frames: mpsc::Sender<OutgoingFrame>,
        _place: Option<SessionPlace>,
    ) {
        self.begin();
        if self.leases.live_count() > 0 {
            Box::pin(self.look_again()).await;
        }
        let mut ticks = interval(TICK.min(self.app.recheck));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        let mut sources = SessionSources {
            stream,
            orders,
            ticks,
            stop: self.app.stop.clone(),
            outbox: self.outbox.clone(),
        };
        while self.end.is_none() {
            if !self.unsure.is_empty() {
                // Rare, so not part of what every session takes in memory.
                Box::pin(self.look_up()).await;
            }
            let event = self.next_event(&mut sources, &frames).await;
            if let Looked::Again = self.handle(event) {
                Box::pin(self.recheck()).await;
            }
        }
        self.outbox.close();
        drop(self.entry.take());
        self.say_goodbye(&frames);
    }

    async fn next_event<'a>(
        &mut self,
        sources: &mut SessionSources,
        frames: &'a mpsc::Sender<OutgoingFrame>,
    ) -> SessionEvent<'a> {
        let may_read = self.may_read();
        tokio::select! {
            () = sources.outbox.arrived() => SessionEvent::Delivered,
            permit = frames.reserve(), if !self.outgoing.is_empty() => match permit {
                Ok(permit) => SessionEvent::Room(permit),
                Err(_) => SessionEvent::End(Status::ok("")),
            },
            written = next_written(&mut self.log) => {
                written.map_or_else(broken, SessionEvent::LogWritten)
            },
            taken = ResultWriting::next(&mut self.results) => {
                taken.map_or_else(broken, SessionEvent::ResultsTaken)
            },
            done = next_done(&mut self.uploads) => {
                done.map_or_else(broken, SessionEvent::UploadDone)
            },
            received = sources.stream.message(), if may_read => match received {
                Ok(Some(received)) => SessionEvent::Received(received),
                Ok(None) => SessionEvent::End(Status::ok("")),
                // Told where it can be: a frame that is too large has a reason.
                Err(status) => SessionEvent::End(status),
            },
            order = sources.orders.next() => SessionEvent::Order(order),
            _ = sources.ticks.tick() => SessionEvent::Tick,
            () = sources.stop.cancelled() => {
                SessionEvent::End(Status::unavailable("the server stops"))
            }
        }
    }

    fn handle(&mut self, event: SessionEvent<'_>) -> Looked {
        match event {
            SessionEvent::Delivered => self.take_deliveries(),
            SessionEvent::Room(permit) => permit.send(Ok(Box::new(self.outgoing.frame()))),
            SessionEvent::Received(received) => self.receive(received),
            SessionEvent::LogWritten(written) => self.log_written(written),
            SessionEvent::ResultsTaken(taken) => self.results_taken(&taken),
            SessionEvent::UploadDone(done) => self.upload_done(done),
            SessionEvent::Order(order) => self.obey(order),
            SessionEvent::Tick => return self.tick(),
            SessionEvent::End(status) => {
                tracing::debug!(agent = %self.who.agent, %status, "a session ends");
                self.end = Some(status);
            }
        }
        Looked::Enough
    }

    /// What was said before is still sent where there is room, then the reason.
    fn say_goodbye(mut self, frames: &mpsc::Sender<OutgoingFrame>) {
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
        for stored in found {
            if let Some(cancel) = stored.cancel {
                self.send_cancel(stored.lease, cancel.cause, cancel.remaining);
            }
        }
    }

    fn may_read(&self) -> bool {
        let log_room = self
            .log
            .as_ref()
            .is_none_or(|log| log.bytes < MAX_WAITING_BYTES && log.count < MAX_WAITING_ORDERS);
        let upload_room = self.uploads.as_ref().is_none_or(Uploads::has_room);
        let results_room = self.results.as_ref().is_none_or(ResultWriting::has_room);
        let room = log_room && upload_room && results_room;
        room && self.outgoing.len() + self.in_flight < MAX_WAITING
    }

    /// Parks every slot that is free, unless the agent is to take no work.
    pub fn ask_for_work(&mut self) {
        match self.intake.wish(self.heard_lately(), now()) {
            Wish::Ask => {}
            Wish::Leave => return,
            Wish::Stop => return self.stop_asking(),
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

    fn heard_lately(&self) -> Heard {
        if self.heard.elapsed() >= OFFLINE_AFTER {
            Heard::Silent
        } else {
            Heard::Lately
        }
    }

    /// A lease that was given here is lost.
    pub fn lost_a_lease(&mut self) {
        let interval = self.app.writer.shared().settings.heartbeat_interval;
        let interval = Duration::from_millis(interval.0.unsigned_abs());
        if self.heard.elapsed() > interval {
            self.intake.went_missing();
            self.stop_asking();
        }
    }

    /// The agent has said something, whatever it is.
    pub fn heard(&mut self) {
        let before = self.heard_lately();
        if self.intake.heard(before) {
            self.outbox.rest(false);
        }
        let noted = self.heard_noted.elapsed() < HEARD_EVERY && before == Heard::Lately;
        self.heard = Instant::now();
        if !noted {
            self.heard_noted = self.heard;
            let now = self.app.writer.now();
            self.app.agents.heard(&self.who.agent, self.who.epoch, now);
        }
    }

    /// The agent turned work away, and says why.
    pub fn rest_after_rejection(&mut self, reason: &str) {
        // A word for programs, and behind it what people are told, where there is more to say.
        let why = reason.split_once(": ").map_or(reason, |(_, why)| why);
        let why = Some(why.to_owned()).filter(|why| !why.is_empty());
        self.note(|present| present.turns_away = why);
        self.intake.rejected(now());
        self.stop_asking();
    }

    pub fn rest_after_full_disk(&mut self) {
        self.intake.disk_was_full(now());
        self.stop_asking();
    }

    pub fn accepted_work(&mut self) {
        self.intake.accepted();
        self.note(|present| present.turns_away = None);
    }

    /// The agent says whether it wants work.
    pub fn take_rest(&mut self, resting: bool) {
        if !self.intake.set_resting(resting) {
            return;
        }
        if resting {
            self.stop_asking();
        } else {
            self.ask_for_work();
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

    /// Something that cannot be read or lacks a field.
    pub fn offence(&mut self, what: &'static str) {
        self.app.metrics().unknown_fields.inc();
        match self.offences.count(now()) {
            Offence::Warn => {
                tracing::warn!(agent = %self.who.agent, what, "a message is ignored");
            }
            Offence::Ignore => {}
            Offence::EndSession => {
                let words = "too many messages that mean nothing";
                self.end = Some(Status::resource_exhausted(words));
            }
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

    fn log_written(&mut self, written: LogWritten) {
        if let Some(log) = &mut self.log {
            log.bytes = log.bytes.saturating_sub(written.bytes);
            log.count = log.count.saturating_sub(written.orders);
        }
        if written.settled {
            self.happened(written.lease, LeaseEvent::LogStored);
        } else {
            self.send_log_ack(&written);
        }
    }

    fn obey(&mut self, order: SessionOrder) {
        match order {
            SessionOrder::Drain(id) => {
                let drain_id = id.to_string();
                if self.intake.begin_drain(id) {
                    self.outgoing.say(ToAgent::Drain(Drain { drain_id }));
                }
                self.stop_asking();
            }
            SessionOrder::Undrain(id) => {
                if self.intake.end_drain() {
                    let drain_id = id.to_string();
                    self.outgoing.say(ToAgent::Undrain(Undrain { drain_id }));
                }
                self.ask_for_work();
            }
            SessionOrder::Superseded => {
                self.end = Some(superseded());
            }
            SessionOrder::Revoked => {
                self.end = Some(revoked());
            }
        }
        let draining = self.intake.drain().is_some();
        self.note(|present| present.draining = draining);
        self.app.agents.note_present(&self.who.agent);
    }

    /// Notes something about the agent; a session that is not the newest ends.
    pub fn note(&mut self, note: impl FnOnce(&mut super::registry::PresentAgent)) {
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

    fn tick(&mut self) -> Looked {
        self.leases.forget_ended(now());
        let quarantined = self.app.agents.is_quarantined(&self.who.agent);
        self.intake.set_quarantined(quarantined);
        if quarantined {
            self.stop_asking();
        }
        self.ask_for_work();
        if self.rechecked.elapsed() < self.app.recheck {
            return Looked::Enough;
        }
        self.rechecked = Instant::now();
        Looked::Again
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
            Ok(Some(row)) if row.revoked_at.is_some() => self.obey(SessionOrder::Revoked),
            Ok(Some(row)) if row.session > epoch => self.obey(SessionOrder::Superseded),
            Ok(Some(row)) => match (self.intake.drain(), row.drain) {
                (None, Some(id)) => self.obey(SessionOrder::Drain(id)),
                (Some(id), None) => {
                    let id = id.clone();
                    self.obey(SessionOrder::Undrain(id));
                }
                (Some(old), Some(id)) if *old != id => self.obey(SessionOrder::Drain(id)),
                _ => {}
            },
            Ok(None) | Err(_) => {}
        }
    }
}

/// Whether it is time to look again at who this is.
enum Looked {
    Enough,
    Again,
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

/// A task of the session is gone, and what it had in hand: the agent comes back and sends again
/// what was not answered.
fn broken<'a>() -> SessionEvent<'a> {
    let words = "the server cannot store what belongs to the work";
    SessionEvent::End(Status::unavailable(words))
}

/// The next answer about logs; never, while no log was written.
async fn next_written(log: &mut Option<LogWriting>) -> Option<LogWritten> {
    match log {
        Some(log) => log.written.recv().await,
        None => std::future::pending().await,
    }
}
