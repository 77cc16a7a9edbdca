//! The line's life: dial, register, serve, and when it breaks, wait and dial again (A35, EP-29,
//! EP-33 … EP-36). It ends only when it is told to, or when the server refuses this agent for good.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use delta_grpc::dial::{self as wire, Dialed};
use delta_wire::agent::PROTOCOL_VERSION;
use delta_wire::agent::frame::Received;
use delta_wire::agent::proto::agent_message::Message as Said;
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{
    AgentFrame, AgentMessage, RegisterRequest, RegisterResponse, ServerMessage,
};
use delta_wire::{ErrorCode, Secret};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::Connection;
use super::dial::{Address, dial};
use super::identity::{AgentIdentity, Process};
use super::machine::Machine;
use super::outage::{Outage, Worth};
use super::state::Shared;
use crate::backoff::{Backoff, entropy};
use crate::container::Here;
use crate::tls::TlsFiles;
use crate::token_source::TokenSource;

/// Waits between tries while the server is away.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_CAP: Duration = Duration::from_secs(60);
/// A line that held this long was a good one: the next wait is short again.
const STABLE: Duration = Duration::from_secs(60);
/// How long the answer to a registration may take.
const REGISTER_TIME: Duration = Duration::from_secs(20);
/// How long it may take to find out what makes containers here, longer than two programs may take
/// to answer: a daemon that hangs keeps nobody from the server.
const LOOK_TIME: Duration = Duration::from_secs(15);
/// Frames between the line and its connection: one being sent and one behind it.
const FRAMES_AHEAD: usize = 2;
/// Between heartbeats where the server says nothing sensible.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// How the line reaches its server, and as whom.
pub struct ConnectionSettings {
    pub address: Address,
    /// Absent where the certificate says who this is.
    pub token: Option<TokenSource>,
    pub tls: TlsFiles,
    pub process: Process,
    pub name: String,
    pub machine: Machine,
    /// Looked at before each registration but the first, before which somebody else has.
    pub containers: Arc<Here>,
    pub labels: Vec<String>,
    pub zones: Vec<String>,
    /// What the sandbox enforces.
    pub enforced: Vec<String>,
}

/// The server refuses this agent; no later try will do.
#[derive(Debug)]
pub struct AgentRefused(pub String);

/// What a session showed of itself, to be compared with what there is later.
#[derive(PartialEq, Eq)]
struct ShownCredential {
    token: Option<Secret>,
    /// The hash of the certificate.
    certificate: Option<Vec<u8>>,
}

/// Why a session is over.
enum SessionOver {
    /// Try again.
    Broken(String),
    /// Try again; somebody should look at the certificates.
    NoTls(String),
    /// Refused with this credential.
    Refused(ShownCredential, String),
    /// It will not be otherwise later.
    Final(String),
    /// The server does not know this agent's id.
    Forgotten,
    Stopped,
}

/// Keeps the line up until `stop`.
pub async fn run(
    link: Connection,
    settings: ConnectionSettings,
    stop: CancellationToken,
) -> Result<(), AgentRefused> {
    let shared = link.0;
    let mut backoff = Backoff::new(RETRY_BASE, RETRY_CAP);
    let mut outage = Outage::default();
    loop {
        let began = Instant::now();
        let over = tokio::select! {
            over = session(&shared, &settings, &mut outage) => over,
            () = stop.cancelled() => SessionOver::Stopped,
        };
        if began.elapsed() >= STABLE {
            backoff.reset();
        }
        let tls = matches!(over, SessionOver::NoTls(_));
        let why = match over {
            SessionOver::Stopped => return Ok(()),
            SessionOver::Final(why) => return Err(refused(&shared, why)),
            SessionOver::Refused(shown, why) => {
                if is_still_there(&settings, &shown) {
                    return Err(refused(&shared, why));
                } else {
                    why
                }
            }
            SessionOver::Forgotten => {
                forget(&settings);
                "the server does not know this agent".to_owned()
            }
            SessionOver::Broken(why) | SessionOver::NoTls(why) => why,
        };
        shared.line_down(&why);
        let most = shared.lock().must_be_back_within();
        let pause = backoff.next_within(most, entropy());
        match outage.failed(Instant::now(), tls) {
            Worth::Saying => tracing::warn!(why, ?pause, "there is no line to the server"),
            Worth::Nothing => tracing::info!(why, ?pause, "there is no line to the server"),
        }
        let look = settings
            .containers
            .look(most.unwrap_or(LOOK_TIME).min(LOOK_TIME));
        tokio::select! {
            _ = async { tokio::join!(sleep(pause), look) } => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// Nobody waits for answers that cannot come any more.
fn refused(shared: &Shared, why: String) -> AgentRefused {
    shared.lock().over = true;
    shared.line_down(&why);
    AgentRefused(why)
}

/// What would be shown now; it is read anew for every session.
fn credential(settings: &ConnectionSettings) -> io::Result<ShownCredential> {
    Ok(ShownCredential {
        token: settings.token.as_ref().map(TokenSource::read).transpose()?,
        certificate: settings.tls.shown()?,
    })
}

/// Whether the credential that was refused is all there is (EP-35). One that cannot be read is
/// being written: the next try will find it.
fn is_still_there(settings: &ConnectionSettings, shown: &ShownCredential) -> bool {
    credential(settings).is_ok_and(|now| now == *shown)
}

fn forget(settings: &ConnectionSettings) {
    tracing::warn!("the server does not know this agent any more; it registers anew");
    if let Err(error) = settings.process.identity.keep(AgentIdentity::default()) {
        tracing::error!(%error, "the agent's identity cannot be kept");
    }
}

async fn session(
    shared: &Arc<Shared>,
    settings: &ConnectionSettings,
    outage: &mut Outage,
) -> SessionOver {
    let shown = match credential(settings) {
        Ok(shown) => shown,
        Err(error) => {
            return SessionOver::Broken(format!("the credential cannot be read: {error}"));
        }
    };
    let connection = match dial(&settings.address, &settings.tls).await {
        Ok(connection) => connection,
        Err(error) if error.is_tls() => return SessionOver::NoTls(error.to_string()),
        Err(error) => return SessionOver::Broken(error.to_string()),
    };
    let (frames, sent) = mpsc::channel(FRAMES_AHEAD);
    let register = request(shared, settings);
    let _ = frames.try_send(AgentFrame {
        messages: vec![AgentMessage {
            message: Some(Said::Register(register)),
        }],
    });
    let token = shown.token.as_ref().map(Secret::expose);
    let opened = wire::open(connection, settings.address.uri(), token, sent);
    let opened = match tokio::time::timeout(REGISTER_TIME, opened).await {
        Ok(opened) => opened,
        Err(_) => return SessionOver::Broken("the registration was not answered".to_owned()),
    };
    let mut dialed = match opened {
        Ok(dialed) => dialed,
        Err(status) => return refusal(&status, shown),
    };
    let answered = tokio::time::timeout(REGISTER_TIME, registered(&mut dialed)).await;
    let (response, rest) = match answered {
        Ok(Ok(answered)) => answered,
        Ok(Err(status)) => return refusal(&status, shown),
        Err(_) => return SessionOver::Broken("the registration was not answered".to_owned()),
    };
    let every = begin(shared, settings, &response);
    shared.hear(rest);
    if let Some(down_for) = outage.over(Instant::now()) {
        tracing::warn!(?down_for, "the line to the server is back");
    }
    let over = tokio::select! {
        over = serve(shared, &mut dialed, every, shown) => over,
        () = write(shared, frames) => SessionOver::Broken("the connection was lost".to_owned()),
    };
    dialed.connection.abort();
    over
}

fn request(shared: &Shared, settings: &ConnectionSettings) -> RegisterRequest {
    let known = settings.process.identity.known();
    let machine = settings.machine.clone();
    let machine = machine.with_containers(settings.containers.runtime().as_deref());
    let mut capabilities = machine.capabilities(shared.slots);
    capabilities.labels = settings.labels.clone();
    capabilities.network_zones = settings.zones.clone();
    capabilities.enforced = settings.enforced.clone();
    RegisterRequest {
        agent_id: known.agent_id,
        agent_name: settings.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        capabilities: Some(capabilities),
        protocol_version: PROTOCOL_VERSION.to_owned(),
        instance: settings.process.instance.to_string(),
        resume_secret: known.resume_secret,
        leases: shared.lock().held_leases(),
        shows_itself: true,
    }
}

/// EP-35: a refusal ends the agent, unless the server is only away.
fn refusal(status: &Status, shown: ShownCredential) -> SessionOver {
    let why = status.message().to_owned();
    match status.code() {
        // Of the agent, not of what it showed: another credential changes nothing.
        Code::PermissionDenied if why.starts_with(ErrorCode::AgentRevoked.as_str()) => {
            SessionOver::Final(why)
        }
        Code::Unauthenticated | Code::PermissionDenied => SessionOver::Refused(shown, why),
        Code::InvalidArgument | Code::FailedPrecondition => SessionOver::Final(why),
        Code::NotFound => SessionOver::Forgotten,
        _ => SessionOver::Broken(format!("{}: {why}", status.code())),
    }
}

/// The answer to the registration, and what came in the same frame: work may be assigned in the
/// moment a slot is known.
async fn registered(dialed: &mut Dialed) -> Result<(RegisterResponse, Received), Status> {
    let received = dialed.received.message().await?;
    let mut received = received.ok_or_else(|| Status::unavailable("the stream ended"))?;
    let first = (!received.messages.is_empty()).then(|| received.messages.remove(0));
    let first = first.and_then(|bytes| ServerMessage::decode(bytes).ok());
    match first.and_then(|message| message.message) {
        Some(Say::RegisterResponse(response)) => Ok((response, received)),
        _ => Err(Status::unavailable(
            "the registration was not answered first",
        )),
    }
}

/// Takes in what the server said; returns how often it wants to hear from us.
fn begin(shared: &Shared, settings: &ConnectionSettings, said: &RegisterResponse) -> Duration {
    let mut known = settings.process.identity.known();
    if known.agent_id != said.agent_id || !said.resume_secret.is_empty() {
        known = AgentIdentity {
            agent_id: said.agent_id.clone(),
            resume_secret: said.resume_secret.clone(),
        };
        if let Err(error) = settings.process.identity.keep(known) {
            tracing::error!(%error, "the agent's identity cannot be kept");
        }
    }
    for (what, wanted, granted) in [
        ("label", &settings.labels, &said.labels),
        ("zone", &settings.zones, &said.network_zones),
    ] {
        for missing in wanted.iter().filter(|it| !granted.contains(it)) {
            tracing::warn!("the {what} `{missing}` was not granted with this agent's credential");
        }
    }
    let session = {
        let mut state = shared.lock();
        state.agent_id = said.agent_id.clone();
        state.max_log_bytes = said.config.map(|it| it.max_log_bytes).filter(|it| *it > 0);
        state.sessions += 1;
        state.session = Some(state.sessions);
        let drain = (!said.drain_id.is_empty()).then(|| said.drain_id.clone());
        if state.drain != drain {
            state.drain = drain;
        }
        state.drain_said = false;
        state.presence_due = true;
        state.runners_due = true;
        state.sessions
    };
    shared.resume(&said.resume, session);
    shared.line.send_replace(Some(session));
    shared.more_room();
    shared.to_send.notify_one();
    tracing::info!(agent_id = said.agent_id, "registered");
    let seconds = said.config.map_or(0, |it| it.heartbeat_interval_seconds);
    let seconds = u64::try_from(seconds).unwrap_or(0);
    if seconds == 0 {
        HEARTBEAT
    } else {
        Duration::from_secs(seconds)
    }
}

/// Reads until the stream ends.
async fn serve(
    shared: &Shared,
    dialed: &mut Dialed,
    every: Duration,
    shown: ShownCredential,
) -> SessionOver {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    loop {
        tokio::select! {
            received = dialed.received.message() => match received {
                Ok(Some(received)) => shared.hear(received),
                Ok(None) => return SessionOver::Broken("the server ended the session".to_owned()),
                Err(status) => return refusal(&status, shown),
            },
            _ = ticks.tick() => {
                shared.lock().presence_due = true;
                shared.to_send.notify_one();
            }
        }
    }
}

/// Composes each frame when there is room for it, so that what matters most goes first.
async fn write(shared: &Shared, frames: mpsc::Sender<AgentFrame>) {
    while let Ok(room) = frames.reserve().await {
        let frame = loop {
            if let Some(frame) = shared.next_frame() {
                break frame;
            }
            shared.to_send.notified().await;
        };
        room.send(frame);
    }
}
