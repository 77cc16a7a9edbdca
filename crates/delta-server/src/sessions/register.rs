//! The first message of a session: who is it, may it be that, what does it hold (EP-3, EP-5, A26,
//! A29).

use std::collections::BTreeSet;
use std::time::Duration;

use delta_core::lease::Stale;
use delta_core::rights::{Barred, same_digest};
use delta_core::{Attempt, LeaseState, Millis, Text, Want, World};
use delta_store::StoreError;
use delta_store::agents::AgentRow;
use delta_wire::agent::proto::server_message::Message as ToAgent;
use delta_wire::agent::proto::{
    AgentConfig, HeldLease, RegisterRequest, RegisterResponse, ResumePoint,
};
use delta_wire::agent::{MAX_FRAME_BYTES, PROTOCOL_MAJOR, PROTOCOL_VERSION};
use delta_wire::api::tokens::{MAX_AGENT_ID, is_agent_id};
use delta_wire::runner::Reason;
use tonic::Status;

use super::agent_record;
use super::capabilities::{self, About};
use super::ended_leases;
use super::execution_id;
use super::intake::Intake;
use super::lease_table::{EndedLease, Leases, PendingCancel, StoredLease};
use super::offers::Offers;
use super::orders::SessionOrders;
use super::outgoing::Outgoing;
use super::rebind::rebind;
use super::registry::SessionEntry;
use super::sandbox;
use super::session::{Session, SessionAgent};
use crate::app::App;
use crate::identity::Principal;
use crate::not_done::NotDone;
use crate::objects::{MAX_ARTIFACT_BYTES, MAX_LOG_BYTES};
use crate::writer::{random, sha256};

/// Between two heartbeats of an agent that holds nothing (EP-48).
const HEARTBEAT_SECONDS: i32 = 30;
/// What the ids begin with that we give to agents whose credential is bound to none.
pub const AGENT_PREFIX: &str = "agt_";
/// Leases an agent may list: its slots, and as many that are over.
pub const MAX_LISTED: usize = 2 * delta_wire::agent::MAX_PARALLEL as usize;

/// Registers an agent; what is returned is ready to run.
pub async fn register(
    app: &App,
    principal: Principal,
    request: RegisterRequest,
) -> Result<(Session, SessionOrders), Status> {
    check(&request)?;
    let about = capabilities::about(&request, &principal.scope);
    sandbox::check(&app.pool_sandboxes, &about)?;
    let (row, secret) = identify(app, &principal, &request, &about).await?;
    let process = process(&request);
    let agent = row.id.clone();
    let now = app.writer.now();
    let drained = drained(app, &row);
    let entered = app
        .agents
        .enter(&agent, &request.instance, about.clone(), row.session, now)
        .map_err(|_| {
            Status::unavailable("QUARANTINED: another program uses this agent's identity")
        })?;
    let mut entry = SessionEntry::of(&app.agents, &agent, entered.epoch);
    // A server that is alone knows every session that there is.
    if row.process != process || app.writer.shared().several_writers {
        entry.epoch = begin(app, &agent, entered.epoch, process).await?;
    }
    let epoch = entry.epoch;
    let slots = row.slots.max(about.slots);
    let found = held(app, &principal.id, &agent, slots).await;
    let found = found.map_err(|why| Status::unavailable(why.to_string()))?;
    let past = ended_leases::listed(app, &principal.id, &agent, &request.leases, &found).await;
    let past = past.map_err(unavailable)?;
    let resume = resume_points(app, &request.leases, &found, &past).await;
    let mut outgoing = Outgoing::default();
    outgoing.say(ToAgent::RegisterResponse(RegisterResponse {
        agent_id: agent.to_string(),
        config: Some(config(app)),
        session_epoch: epoch,
        resume_secret: secret.unwrap_or_default(),
        resume,
        pool: about.pool.clone(),
        network_zones: about.zones.clone(),
        labels: about.labels.clone(),
        protocol_version: PROTOCOL_VERSION.to_owned(),
        drain_id: row.drain.as_deref().unwrap_or_default().to_owned(),
    }));
    let who = SessionAgent {
        principal,
        agent: agent.clone(),
        epoch,
    };
    let mut leases = Leases::new(agent, about.slots, found);
    // Only what ended by the agent's own word is its business still (A18, I25); of the rest it is
    // told whenever it speaks of it (A63).
    let own = past.into_iter();
    let own = own.filter(|past| past.why == Stale::AlreadyFinal);
    own.for_each(|past| leases.remember(past));
    let offers = Offers::of(&about);
    let draining = row.drain.is_some();
    let intake = Intake::new(row.drain, entered.quarantined);
    let mut session = Session::new(app.clone(), who, leases, intake, offers, outgoing);
    session.entry = Some(entry);
    session.note(|present| {
        present.draining = draining;
        present.drained = drained;
    });
    app.agents.note_present(&session.who.agent);
    Ok((session, entered.orders))
}

/// The process that registers, if it shows itself in its requests from now on.
fn process(request: &RegisterRequest) -> Option<Text> {
    let named = request.shows_itself && !request.instance.is_empty();
    named.then(|| request.instance.as_str().into())
}

/// This session is the agent's from now on, on every server and before it hears of it: what
/// another process still asks for is refused, and so is what comes over an earlier session.
/// The number is drawn where all servers draw it: what this one has read of sessions elsewhere may
/// be seconds old, and its clock behind that of the server before it.
async fn begin(app: &App, agent: &Text, epoch: u64, process: Option<Text>) -> Result<u64, Status> {
    let id = agent.clone();
    let begun = app.write(move |tables| tables.begin_session(&id, epoch, process.as_deref()));
    let begun = begun.await.map_err(unavailable)?.ok_or_else(superseded)?;
    if app.agents.renumber(agent, epoch, begun) {
        Ok(begun)
    } else {
        Err(superseded())
    }
}

/// What a session ends with that is not its agent's newest.
pub fn superseded() -> Status {
    Status::aborted("SUPERSEDED: another session of this agent has begun")
}

/// What an agent is told that was shut out for good (EP-35).
pub fn revoked() -> Status {
    Status::permission_denied(format!("AGENT_REVOKED: {}", Barred::Revoked))
}

/// A29, EP-39, EP-52: what must be there, and which versions we speak.
fn check(request: &RegisterRequest) -> Result<(), Status> {
    if request.protocol_version.is_empty() {
        return Err(Status::invalid_argument("protocol_version is missing"));
    }
    let major = request.protocol_version.split('.').next();
    match major.and_then(|major| major.parse::<u32>().ok()) {
        None => {
            return Err(Status::invalid_argument(
                "protocol_version must be like 1.0",
            ));
        }
        Some(PROTOCOL_MAJOR) => {}
        Some(_) => {
            let said = word(&request.protocol_version);
            let words = format!(
                "protocol_version {said} is not spoken here; {PROTOCOL_VERSION} and any later \
                 {PROTOCOL_MAJOR}.x is"
            );
            return Err(Status::failed_precondition(words));
        }
    }
    if request.agent_name.is_empty() {
        return Err(Status::invalid_argument("agent_name is missing"));
    }
    if request.capabilities.is_none() {
        return Err(Status::invalid_argument("capabilities is missing"));
    }
    for (field, value) in [
        ("agent_id", &request.agent_id),
        ("instance", &request.instance),
    ] {
        if !value.is_empty() && !is_agent_id(value) {
            let words =
                format!("{field} must be at most {MAX_AGENT_ID} letters, digits and . _ - :");
            return Err(Status::invalid_argument(words));
        }
    }
    if request.leases.len() > MAX_LISTED {
        return Err(Status::invalid_argument("leases has too many entries"));
    }
    Ok(())
}

fn word(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(20).collect()
}

/// Binds an id to its credential at first registration, and holds everybody to it afterwards
/// (A26, T3). Returns the row and, for a new agent, the secret it must show from now on.
async fn identify(
    app: &App,
    principal: &Principal,
    request: &RegisterRequest,
    about: &About,
) -> Result<(AgentRow, Option<String>), Status> {
    let bound = principal.agent.clone();
    if let Some(bound) = bound.as_ref()
        && !request.agent_id.is_empty()
        && *request.agent_id != **bound
    {
        return Err(impostor(app, principal, &request.agent_id));
    }
    let wanted = match (&bound, request.agent_id.as_str()) {
        (Some(bound), _) => bound.clone(),
        (None, "") => fresh_id(),
        (None, given) => given.into(),
    };
    let id = wanted.clone();
    let known = app.read(move |reader| reader.agent(&id)).await;
    let known = known.map_err(unavailable)?;
    if let Some(row) = known {
        let admitted = admit(app, principal, request, row).await;
        return admitted.map(|row| (row, None));
    }
    if bound.is_none() && !request.agent_id.is_empty() {
        // An id that nobody gave out, or that was deleted: the agent gets one of ours.
        let words = format!("there is no agent {wanted}; register with an empty agent_id");
        return Err(Status::not_found(words));
    }
    // An agent that names its process can keep a secret, too.
    let secret = (bound.is_none() && !request.instance.is_empty()).then(fresh_secret);
    let now = app.writer.now();
    let row = AgentRow {
        id: wanted,
        principal: principal.id.clone(),
        resume: secret.as_ref().map(|secret| sha256(secret.as_bytes())),
        slots: about.slots,
        about: agent_record::new(about),
        session: 0,
        drain: None,
        created_at: now,
        seen_at: now,
        revoked_at: None,
        process: process(request),
    };
    let new = row.clone();
    let entered = app.write(move |tables| tables.new_agent(&new)).await;
    if !entered.map_err(unavailable)? {
        return Err(Status::unavailable(
            "the agent is being registered; try again",
        ));
    }
    tracing::info!(target: "audit", action = "agent.register", by = %principal.id, what = %row.id);
    Ok((row, secret))
}

async fn admit(
    app: &App,
    principal: &Principal,
    request: &RegisterRequest,
    row: AgentRow,
) -> Result<AgentRow, Status> {
    let id = row.id.clone();
    if !knows_secret(&row, &request.resume_secret) {
        return Err(impostor(app, principal, &id));
    }
    // Whichever credential it shows: what was shut out is the agent.
    if row.revoked_at.is_some() {
        return Err(revoked());
    }
    if row.principal == principal.id {
        return Ok(row);
    }
    let rebound = rebind(app, principal, row).await?;
    rebound.ok_or_else(|| impostor(app, principal, &id))
}

fn knows_secret(row: &AgentRow, shown: &str) -> bool {
    row.resume
        .as_ref()
        .is_none_or(|expected| same_digest(expected, &sha256(shown.as_bytes())))
}

/// The last drain that the agent has finished, in whichever session.
fn drained(app: &App, row: &AgentRow) -> Option<(String, Millis)> {
    if let Some(present) = app.agents.here(&row.id) {
        return present.drained;
    }
    let unwritten = app.agents.unwritten_of(&row.id).map(|seen| seen.about);
    let noted = agent_record::read(&unwritten.unwrap_or_else(|| row.about.clone()));
    noted.drained.map(|(id, at)| (id, Millis(at)))
}

fn impostor(app: &App, principal: &Principal, agent: &str) -> Status {
    app.metrics().unauthenticated.inc();
    tracing::warn!(target: "audit", action = "agent.impostor", by = %principal.id, what = agent);
    Status::permission_denied(
        "the credential is not the one that this agent_id was made with; show that one, or let the \
         agent register anew: with another --state-dir, or without the file agent.json in it",
    )
}

fn fresh_id() -> Text {
    format!("{AGENT_PREFIX}{:016x}", u64::from_be_bytes(random())).into()
}

fn fresh_secret() -> String {
    let bytes: [u8; 32] = random();
    format!("resume_{}", crate::runner_commands::hex(&bytes))
}

/// The live leases of an agent's slots, found by who holds what.
pub async fn held(
    app: &App,
    who: &Text,
    agent: &Text,
    slots: u32,
) -> Result<Vec<StoredLease>, NotDone> {
    let runners: Vec<(u32, Text)> = (1..=slots)
        .map(|slot| (slot, format!("{agent}/{slot}").into()))
        .collect();
    let (who, now) = (who.clone(), app.writer.now());
    let found = app.writer.with_store(move |store| {
        store.begin()?;
        let found = load(store, now, &who, &runners);
        store.rollback();
        found
    });
    found.await
}

/// What is left to a holder that was asked to end.
fn cancel(attempt: Option<&Attempt>, now: Millis) -> Option<PendingCancel> {
    let attempt = attempt?;
    let asked = attempt.cancel.as_ref()?;
    Some(PendingCancel {
        cause: asked.cause,
        remaining: attempt.cancel_deadline().unwrap_or(now).since(now),
    })
}

fn load(
    store: &mut dyn delta_store::Store,
    now: Millis,
    who: &Text,
    runners: &[(u32, Text)],
) -> Result<Vec<StoredLease>, StoreError> {
    let mut world = World::default();
    let holders = runners
        .iter()
        .map(|(_, it)| Want::Holder(who.clone(), it.clone()));
    store.load(&holders.collect::<BTreeSet<_>>(), &mut world)?;
    let attempts = world.holders.values().flatten().copied();
    store.load(&attempts.map(Want::Attempt).collect(), &mut world)?;
    let mut found = Vec::new();
    for (slot, runner) in runners {
        let holder = (who.clone(), runner.clone());
        let held = world.holders.get(&holder).copied().flatten();
        let Some(id) = held else { continue };
        let attempt = world.attempts.get(&id).and_then(Option::as_deref);
        let Some(lease) = attempt.and_then(Attempt::live_lease) else {
            continue;
        };
        found.push(StoredLease {
            lease: id.lease(lease.epoch),
            slot: *slot,
            runner: runner.clone(),
            token: lease.token,
            accepted: lease.state == LeaseState::Active,
            until: lease.expires_at,
            cancel: cancel(attempt, now),
        });
    }
    Ok(found)
}

/// Where the agent goes on with what it says it holds (A27, EP-29).
async fn resume_points(
    app: &App,
    listed: &[HeldLease],
    found: &[StoredLease],
    past: &[EndedLease],
) -> Vec<ResumePoint> {
    let mut points = Vec::with_capacity(listed.len());
    for held in listed {
        let lease = execution_id::lease(&held.run_id);
        let live = found.iter().find(|it| Some(it.lease) == lease);
        let Some(live) = live else {
            let past = past.iter().find(|it| Some(it.lease) == lease);
            let reason = past.map_or(Reason::UnknownLease, |past| past.why.into());
            points.push(ResumePoint {
                run_id: held.run_id.clone(),
                reason: reason.as_str().to_owned(),
                ..Default::default()
            });
            continue;
        };
        let key = live.lease;
        let cursors = app.files(move |objects| objects.log_cursors(key)).await;
        let cursors = cursors.ok().flatten().unwrap_or_default();
        points.push(ResumePoint {
            run_id: held.run_id.clone(),
            live: true,
            reason: String::new(),
            log_received: cursors.received,
            log_stored: cursors.stored,
        });
    }
    points
}

fn config(app: &App) -> AgentConfig {
    let settings = &app.writer.shared().settings;
    let default = Duration::from_millis(settings.job_timeout.0.unsigned_abs());
    AgentConfig {
        heartbeat_interval_seconds: HEARTBEAT_SECONDS,
        default_timeout_seconds: i32::try_from(default.as_secs()).unwrap_or(i32::MAX),
        max_artifact_size_bytes: i64::try_from(MAX_ARTIFACT_BYTES).unwrap_or(i64::MAX),
        max_frame_bytes: u32::try_from(MAX_FRAME_BYTES).unwrap_or(u32::MAX),
        max_log_bytes: MAX_LOG_BYTES,
    }
}

pub fn unavailable(error: NotDone) -> Status {
    Status::unavailable(error.to_string())
}
