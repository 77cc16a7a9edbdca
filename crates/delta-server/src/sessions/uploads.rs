//! Artifacts of a session's leases: few bytes in a message, many by an upload that is asked for
//! here and sent over HTTP (EP-13, EP-46).
//!
//! Fenced like the log: a lease that is over stores nothing (D4). One task per session works on
//! the files, in order and off the session's own task. What an attempt has is what is there whole
//! when its result comes, whichever session or way it came by.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use delta_core::rights::Right;
use delta_core::{Command, LeaseKey};
use delta_wire::agent::proto::server_message::Message as ToAgent;
use delta_wire::agent::proto::{Artifact, CreateUpload, ProtocolError, UploadCreated};
use delta_wire::runner::upload_name;
use tokio::sync::mpsc;
use tonic::Status;

use super::execution_id;
use super::held_lease::{LeaseAction, LeaseEvent};
use super::receive::{MessageRefused, ProvenLease};
use super::session::Session;
use super::to_command::cut;
use crate::objects::{ArtifactMeta, MAX_ARTIFACT_BYTES, Objects, Sealed, UploadId};
use crate::runner_commands;
use crate::writer::sha256;

/// Bytes of an artifact inside a message: what a stream carries beside heartbeats without delay.
const MAX_INLINE_BYTES: usize = 1024 * 1024;
/// Bytes that wait for the disk, per session.
const MAX_WAITING_BYTES: usize = 8 * 1024 * 1024;
/// Orders that wait. An agent sends one artifact of a lease after the other.
const MAX_WAITING: usize = 1024;
/// Characters of what an artifact is to people.
const MAX_KIND: usize = 256;

/// Something to do with files.
enum UploadOrder {
    Announce(ArtifactMeta),
    Keep(ArtifactMeta, Bytes),
    /// It was sent over HTTP, the agent says.
    Refer(String, UploadId),
    /// What there is, for the result that waits.
    List,
}

/// What became of it.
pub(super) struct UploadDone {
    lease: LeaseKey,
    name: String,
    bytes: usize,
    answer: UploadAnswer,
}

enum UploadAnswer {
    Created {
        url: String,
        id: UploadId,
    },
    Refused {
        kind: &'static str,
        field: &'static str,
        words: String,
    },
    /// The files cannot be worked on now.
    Trouble(&'static str, io::Error),
    Listed(Vec<(UploadId, ArtifactMeta)>),
}

/// The task of a session, and what it has in hand.
pub(super) struct Uploads {
    asks: mpsc::Sender<(LeaseKey, UploadOrder)>,
    told: mpsc::Receiver<UploadDone>,
    bytes: usize,
    count: usize,
}

impl Uploads {
    fn start(objects: Arc<Objects>) -> Uploads {
        let (asks, mut waiting) = mpsc::channel::<(LeaseKey, UploadOrder)>(2 * MAX_WAITING);
        let (tells, told) = mpsc::channel(64);
        tokio::spawn(async move {
            while let Some((lease, ask)) = waiting.recv().await {
                let objects = objects.clone();
                let done = tokio::task::spawn_blocking(move || carry_out(&objects, lease, ask));
                let Ok(done) = done.await else { return };
                if tells.send(done).await.is_err() {
                    return;
                }
            }
        });
        Uploads {
            asks,
            told,
            bytes: 0,
            count: 0,
        }
    }

    pub fn has_room(&self) -> bool {
        self.bytes < MAX_WAITING_BYTES && self.count < MAX_WAITING
    }
}

/// The next answer; never, while nothing was asked.
pub(super) async fn next_done(uploads: &mut Option<Uploads>) -> Option<UploadDone> {
    match uploads {
        Some(uploads) => uploads.told.recv().await,
        None => std::future::pending().await,
    }
}

fn carry_out(objects: &Objects, lease: LeaseKey, ask: UploadOrder) -> UploadDone {
    let (name, bytes, kind) = match &ask {
        UploadOrder::Announce(meta) => (meta.name.clone(), 0, "CreateUpload"),
        UploadOrder::Keep(meta, data) => (meta.name.clone(), data.len(), "Artifact"),
        UploadOrder::Refer(name, _) => (name.clone(), 0, "Artifact"),
        UploadOrder::List => (String::new(), 0, "ResultStream"),
    };
    let done = match ask {
        UploadOrder::Announce(meta) => announce(objects, lease, &meta),
        UploadOrder::Keep(meta, data) => keep(objects, lease, &meta, &data),
        UploadOrder::Refer(_, id) => refer(objects, id),
        UploadOrder::List => objects.sealed(lease).map(UploadAnswer::Listed),
    };
    UploadDone {
        lease,
        name,
        bytes,
        answer: done.unwrap_or_else(|error| UploadAnswer::Trouble(kind, error)),
    }
}

fn announce(objects: &Objects, lease: LeaseKey, meta: &ArtifactMeta) -> io::Result<UploadAnswer> {
    let Some(id) = objects.named_artifact(lease, meta)? else {
        return Ok(refused(
            "CreateUpload",
            "name",
            "this lease has too many artifacts",
        ));
    };
    Ok(match objects.artifact(id)? {
        None => created(id, format!("/api/v1/runner/uploads/{id}")),
        Some(there) if (there.size, &there.sha256) == (meta.size, &meta.sha256) => {
            created(id, String::new())
        }
        Some(_) => refused("CreateUpload", "name", OTHER_BYTES),
    })
}

fn keep(
    objects: &Objects,
    lease: LeaseKey,
    meta: &ArtifactMeta,
    data: &[u8],
) -> io::Result<UploadAnswer> {
    let words = "this lease has too many artifacts, or too large ones";
    Ok(match objects.keep_artifact(lease, meta, data)? {
        None => refused("Artifact", "data", words),
        Some((id, Sealed::Done)) => created(id, String::new()),
        Some((_, Sealed::Differs)) => refused("Artifact", "name", OTHER_BYTES),
    })
}

fn refer(objects: &Objects, id: UploadId) -> io::Result<UploadAnswer> {
    let words = "not all of its bytes are here";
    Ok(match objects.artifact(id)? {
        Some(_) => created(id, String::new()),
        None => refused("Artifact", "upload_url", words),
    })
}

const OTHER_BYTES: &str = "another artifact of this lease has this name";

fn created(id: UploadId, url: String) -> UploadAnswer {
    UploadAnswer::Created { url, id }
}

fn refused(kind: &'static str, field: &'static str, words: &str) -> UploadAnswer {
    let words = words.to_owned();
    UploadAnswer::Refused { kind, field, words }
}

impl Session {
    pub(super) fn create_upload(&mut self, said: CreateUpload) -> Result<(), MessageRefused> {
        let proven = self.proven(&said.run_id, "", &said.lease)?;
        let hexadecimal = said.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        if said.sha256.len() != 64 || !hexadecimal {
            return Err(MessageRefused::Invalid(
                "sha256",
                "is 64 digits of hexadecimal",
            ));
        }
        if said.size > MAX_ARTIFACT_BYTES {
            return Err(MessageRefused::NotHere(
                "size",
                "is more than the artifacts of one lease may have",
            ));
        }
        let meta = ArtifactMeta {
            name: named(said.name)?,
            kind: kind(&said.kind),
            size: Some(said.size),
            sha256: Some(said.sha256.to_lowercase()),
        };
        self.ask(&proven, UploadOrder::Announce(meta))
    }

    pub(super) fn artifact(
        &mut self,
        proven: &ProvenLease,
        said: Artifact,
    ) -> Result<(), MessageRefused> {
        let words = "give the bytes or where they were sent, one of the two";
        let name = named(said.name)?;
        match (said.data.is_empty(), said.upload_url.is_empty()) {
            (false, false) => return Err(MessageRefused::Invalid("artifact.upload_url", words)),
            (true, false) => {
                let id = said.upload_url.strip_prefix("delta:");
                let id = id.and_then(|id| id.parse::<UploadId>().ok());
                let own = id.filter(|id| id.lease == proven.lease && id.artifact.is_some());
                let words = "is no place that this lease was given";
                let id = own.ok_or(MessageRefused::Invalid("artifact.upload_url", words))?;
                return self.ask(proven, UploadOrder::Refer(name, id));
            }
            (_, true) => {}
        }
        // No bytes at all are bytes, too, where it is said that they are an artifact's.
        if said.data.is_empty() && said.content_type.is_empty() {
            return Err(MessageRefused::Missing("artifact.data"));
        }
        if said.data.len() > MAX_INLINE_BYTES {
            let words = "is too large for a message; ask for an upload";
            return Err(MessageRefused::NotHere("artifact.data", words));
        }
        let meta = ArtifactMeta {
            name,
            kind: kind(&said.kind),
            size: Some(said.data.len() as u64),
            sha256: Some(runner_commands::hex(&sha256(&said.data))),
        };
        self.ask(proven, UploadOrder::Keep(meta, said.data))
    }

    /// Hands something to the task that works on files, if the lease gives the right to it.
    fn ask(&mut self, proven: &ProvenLease, ask: UploadOrder) -> Result<(), MessageRefused> {
        self.given(proven, Right::Artifact)?;
        let held = self.leases.get(proven.lease).ok_or(MessageRefused::Stale)?;
        if held.has_last_word() {
            return Err(MessageRefused::Stale);
        }
        self.leases.step(proven.lease, LeaseEvent::ArtifactSent);
        self.work_on_files(proven.lease, ask);
        Ok(())
    }

    /// Finds what the attempt has, so that its last word is passed on with it.
    pub(super) fn list_artifacts(&mut self, lease: LeaseKey) {
        self.work_on_files(lease, UploadOrder::List);
    }

    fn work_on_files(&mut self, lease: LeaseKey, ask: UploadOrder) {
        let app = &self.app;
        let uploads = self
            .uploads
            .get_or_insert_with(|| Uploads::start(app.objects.clone()));
        let bytes = match &ask {
            UploadOrder::Keep(_, data) => data.len(),
            _ => 0,
        };
        match uploads.asks.try_send((lease, ask)) {
            Ok(()) => {
                uploads.bytes += bytes;
                uploads.count += 1;
            }
            Err(_) => self.end = Some(Status::unavailable("artifacts cannot be stored")),
        }
    }

    pub(super) fn upload_done(&mut self, told: UploadDone) {
        if let Some(uploads) = &mut self.uploads {
            uploads.bytes = uploads.bytes.saturating_sub(told.bytes);
            uploads.count = uploads.count.saturating_sub(1);
        }
        let run_id = execution_id::name(told.lease);
        let error = |kind: &str, code: &str, field: &str, message: String| ProtocolError {
            message_type: kind.to_owned(),
            run_id: run_id.clone(),
            code: code.to_owned(),
            field: field.to_owned(),
            message,
            retryable: code == "STORAGE_FULL" || code == "UNAVAILABLE",
        };
        let say = match told.answer {
            UploadAnswer::Listed(found) => {
                return self.artifacts_listed(told.lease, Some(&found));
            }
            UploadAnswer::Created { url, id } => ToAgent::UploadCreated(UploadCreated {
                name: told.name,
                url,
                uri: format!("delta:{id}"),
                max_bytes: MAX_ARTIFACT_BYTES,
                run_id,
            }),
            UploadAnswer::Refused { kind, field, words } => {
                ToAgent::ProtocolError(error(kind, "CONFLICT", field, format!("{field}: {words}")))
            }
            UploadAnswer::Trouble(kind, problem) => {
                tracing::error!(error = %problem, attempt = %told.lease.attempt,
                    "artifacts could not be worked on");
                if kind == "ResultStream" {
                    return self.artifacts_listed(told.lease, None);
                }
                let full = problem.kind() == io::ErrorKind::StorageFull
                    || problem.kind() == io::ErrorKind::QuotaExceeded;
                let (code, words) = if full {
                    ("STORAGE_FULL", "the server's disk is full")
                } else {
                    ("UNAVAILABLE", "the server cannot store it now")
                };
                ToAgent::ProtocolError(error(kind, code, "", words.to_owned()))
            }
        };
        self.outgoing.say(say);
    }

    /// Passes the last word of a lease on with what it has, if that can be known.
    fn artifacts_listed(&mut self, lease: LeaseKey, found: Option<&[(UploadId, ArtifactMeta)]>) {
        let (whole, now) = (found.map(<[_]>::len), self.app.writer.now());
        let event = LeaseEvent::ArtifactsListed { whole, now };
        let mut actions = self.leases.step(lease, event);
        if let Some(LeaseAction::Submit(message, ..)) = &mut actions[0] {
            attach(&mut message.command, found.unwrap_or_default());
        }
        self.carry_out(lease, actions);
    }
}

/// What the message said has its digest already (A18); this is what the server knows.
fn attach(command: &mut Command, found: &[(UploadId, ArtifactMeta)]) {
    let names = found.iter().map(|(id, meta)| delta_wire::runner::Artifact {
        kind: meta.kind.clone().unwrap_or_else(|| "file".to_owned()),
        uri: format!("delta:{id}"),
    });
    if let Command::Complete { report, .. } | Command::CancelAck { report, .. } = command {
        report.artifacts = runner_commands::kept(&names.collect::<Vec<_>>());
    }
}

fn named(name: String) -> Result<String, MessageRefused> {
    if name.is_empty() {
        return Err(MessageRefused::Missing("name"));
    }
    let words = "must be a relative path without `.`, `..`, `\\` or `:`, of at most 255 characters";
    if upload_name(&name) {
        Ok(name)
    } else {
        Err(MessageRefused::Invalid("name", words))
    }
}

fn kind(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| cut(text, MAX_KIND))
}
