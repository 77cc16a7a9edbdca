//! Artifacts of a session's leases: few bytes in a message, many by an upload that is asked for
//! here and sent over HTTP (EP-13, EP-46).
//!
//! Fenced like the log: a lease that is over stores nothing (D4). One task per session works on
//! the files, in order and off the session's own task. What an attempt has is what is there whole
//! when its result comes, whichever session or way it came by.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use delta_core::command::Status as CompleteStatus;
use delta_core::rights::Right;
use delta_core::{Command, LeaseKey};
use delta_wire::agent::proto::server_message::Message as Say;
use delta_wire::agent::proto::{Artifact, CreateUpload, ProtocolError, UploadCreated};
use delta_wire::runner::upload_name;
use tokio::sync::mpsc;
use tonic::Status;

use super::execution;
use super::hear::{Proven, Refused};
use super::meaning::cut;
use super::session::Session;
use crate::holder;
use crate::objects::{ArtifactMeta, MAX_ARTIFACT_BYTES, Objects, Sealed, UploadId};
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
enum Ask {
    Announce(ArtifactMeta),
    Keep(ArtifactMeta, Bytes),
    /// It was sent over HTTP, the agent says.
    Refer(String, UploadId),
    /// What there is, for the result that waits.
    List,
}

/// What became of it.
pub(super) struct Told {
    lease: LeaseKey,
    name: String,
    bytes: usize,
    answer: Answer,
}

enum Answer {
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
    asks: mpsc::Sender<(LeaseKey, Ask)>,
    told: mpsc::Receiver<Told>,
    bytes: usize,
    count: usize,
}

impl Uploads {
    fn start(objects: Arc<Objects>) -> Uploads {
        let (asks, mut waiting) = mpsc::channel::<(LeaseKey, Ask)>(2 * MAX_WAITING);
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
pub(super) async fn next_told(uploads: &mut Option<Uploads>) -> Option<Told> {
    match uploads {
        Some(uploads) => uploads.told.recv().await,
        None => std::future::pending().await,
    }
}

fn carry_out(objects: &Objects, lease: LeaseKey, ask: Ask) -> Told {
    let (name, bytes, kind) = match &ask {
        Ask::Announce(meta) => (meta.name.clone(), 0, "CreateUpload"),
        Ask::Keep(meta, data) => (meta.name.clone(), data.len(), "Artifact"),
        Ask::Refer(name, _) => (name.clone(), 0, "Artifact"),
        Ask::List => (String::new(), 0, "ResultStream"),
    };
    let done = match ask {
        Ask::Announce(meta) => announce(objects, lease, &meta),
        Ask::Keep(meta, data) => keep(objects, lease, &meta, &data),
        Ask::Refer(_, id) => refer(objects, id),
        Ask::List => objects.sealed(lease).map(Answer::Listed),
    };
    Told {
        lease,
        name,
        bytes,
        answer: done.unwrap_or_else(|error| Answer::Trouble(kind, error)),
    }
}

fn announce(objects: &Objects, lease: LeaseKey, meta: &ArtifactMeta) -> io::Result<Answer> {
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
) -> io::Result<Answer> {
    let words = "this lease has too many artifacts, or too large ones";
    Ok(match objects.keep_artifact(lease, meta, data)? {
        None => refused("Artifact", "data", words),
        Some((id, Sealed::Done)) => created(id, String::new()),
        Some((_, Sealed::Differs)) => refused("Artifact", "name", OTHER_BYTES),
    })
}

fn refer(objects: &Objects, id: UploadId) -> io::Result<Answer> {
    let words = "not all of its bytes are here";
    Ok(match objects.artifact(id)? {
        Some(_) => created(id, String::new()),
        None => refused("Artifact", "upload_url", words),
    })
}

const OTHER_BYTES: &str = "another artifact of this lease has this name";

fn created(id: UploadId, url: String) -> Answer {
    Answer::Created { url, id }
}

fn refused(kind: &'static str, field: &'static str, words: &str) -> Answer {
    let words = words.to_owned();
    Answer::Refused { kind, field, words }
}

impl Session {
    pub(super) fn create_upload(&mut self, said: CreateUpload) -> Result<(), Refused> {
        let proven = self.proven(&said.run_id, "", &said.lease)?;
        let hexadecimal = said.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        if said.sha256.len() != 64 || !hexadecimal {
            return Err(Refused::Invalid("sha256", "is 64 digits of hexadecimal"));
        }
        if said.size > MAX_ARTIFACT_BYTES {
            return Err(Refused::NotHere(
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
        self.ask(&proven, Ask::Announce(meta))
    }

    pub(super) fn artifact(&mut self, proven: &Proven, said: Artifact) -> Result<(), Refused> {
        let words = "give the bytes or where they were sent, one of the two";
        let name = named(said.name)?;
        match (said.data.is_empty(), said.upload_url.is_empty()) {
            (false, false) => return Err(Refused::Invalid("artifact.upload_url", words)),
            (true, false) => {
                let id = said.upload_url.strip_prefix("delta:");
                let id = id.and_then(|id| id.parse::<UploadId>().ok());
                let own = id.filter(|id| id.lease == proven.lease && id.artifact.is_some());
                let words = "is no place that this lease was given";
                let id = own.ok_or(Refused::Invalid("artifact.upload_url", words))?;
                return self.ask(proven, Ask::Refer(name, id));
            }
            (_, true) => {}
        }
        // No bytes at all are bytes, too, where it is said that they are an artifact's.
        if said.data.is_empty() && said.content_type.is_empty() {
            return Err(Refused::Missing("artifact.data"));
        }
        if said.data.len() > MAX_INLINE_BYTES {
            let words = "is too large for a message; ask for an upload";
            return Err(Refused::NotHere("artifact.data", words));
        }
        let meta = ArtifactMeta {
            name,
            kind: kind(&said.kind),
            size: Some(said.data.len() as u64),
            sha256: Some(holder::hex(&sha256(&said.data))),
        };
        self.ask(proven, Ask::Keep(meta, said.data))
    }

    /// Hands something to the task that works on files, if the lease gives the right to it.
    fn ask(&mut self, proven: &Proven, ask: Ask) -> Result<(), Refused> {
        self.given(proven, Right::Artifact)?;
        let held = self.leases.get_mut(proven.lease).ok_or(Refused::Stale)?;
        if held.last_word.is_some() {
            return Err(Refused::Stale);
        }
        held.artifacts = true;
        self.work_on_files(proven.lease, ask);
        Ok(())
    }

    /// Finds what the attempt has, and says its last word with it.
    pub(super) fn list_artifacts(&mut self, lease: LeaseKey) {
        self.work_on_files(lease, Ask::List);
    }

    fn work_on_files(&mut self, lease: LeaseKey, ask: Ask) {
        let app = &self.app;
        let uploads = self
            .uploads
            .get_or_insert_with(|| Uploads::start(app.objects.clone()));
        let bytes = match &ask {
            Ask::Keep(_, data) => data.len(),
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

    pub(super) fn uploads_told(&mut self, told: Told) {
        if let Some(uploads) = &mut self.uploads {
            uploads.bytes = uploads.bytes.saturating_sub(told.bytes);
            uploads.count = uploads.count.saturating_sub(1);
        }
        let run_id = execution::name(told.lease);
        let error = |kind: &str, code: &str, field: &str, message: String| ProtocolError {
            message_type: kind.to_owned(),
            run_id: run_id.clone(),
            code: code.to_owned(),
            field: field.to_owned(),
            message,
            retryable: code == "STORAGE_FULL" || code == "UNAVAILABLE",
        };
        let say = match told.answer {
            Answer::Listed(found) => return self.say_with_artifacts(told.lease, Some(&found)),
            Answer::Created { url, id } => Say::UploadCreated(UploadCreated {
                name: told.name,
                url,
                uri: format!("delta:{id}"),
                max_bytes: MAX_ARTIFACT_BYTES,
                run_id,
            }),
            Answer::Refused { kind, field, words } => {
                Say::ProtocolError(error(kind, "CONFLICT", field, format!("{field}: {words}")))
            }
            Answer::Trouble(kind, problem) => {
                tracing::error!(error = %problem, attempt = %told.lease.attempt,
                    "artifacts could not be worked on");
                if kind == "ResultStream" {
                    return self.say_with_artifacts(told.lease, None);
                }
                let full = problem.kind() == io::ErrorKind::StorageFull
                    || problem.kind() == io::ErrorKind::QuotaExceeded;
                let (code, words) = match full {
                    true => ("STORAGE_FULL", "the server's disk is full"),
                    false => ("UNAVAILABLE", "the server cannot store it now"),
                };
                Say::ProtocolError(error(kind, code, "", words.to_owned()))
            }
        };
        self.outgoing.say(say);
    }

    /// Says the last word of a lease with what it has, if that can be known.
    fn say_with_artifacts(&mut self, lease: LeaseKey, found: Option<&[(UploadId, ArtifactMeta)]>) {
        let now = self.app.writer.now();
        let Some(held) = self.leases.get_mut(lease) else {
            return;
        };
        let Some(mut word) = held.last_word.take() else {
            return;
        };
        let (live, counted) = (held.ended.is_none() && now < held.until, held.counted);
        // No success without what it is to have. Any other result is not held back by a disk in
        // trouble (F44), nor is one that was taken before and is only said again.
        if live && is_success(&word.command) {
            let refused = match found {
                None if counted > 0 => Some(Refused::NotNow),
                Some(found) if found.len() < counted as usize => {
                    let words = "is more than the artifacts that are here as a whole";
                    Some(Refused::NotHere("run_complete.artifacts", words))
                }
                _ => None,
            };
            if let Some(refused) = refused {
                return self.refuse("ResultStream", execution::name(lease), &refused);
            }
        }
        let found = found.unwrap_or_default();
        let names = found.iter().map(|(id, meta)| delta_wire::runner::Artifact {
            kind: meta.kind.clone().unwrap_or_else(|| "file".to_owned()),
            uri: format!("delta:{id}"),
        });
        // What the message said has its digest already (A18); this is what the server knows.
        if let Command::Complete { report, .. } | Command::CancelAck { report, .. } =
            &mut word.command
        {
            report.artifacts = holder::kept(&names.collect::<Vec<_>>());
        }
        self.command(vec![(word.ticket, word.receipt, word.command)]);
    }
}

fn is_success(command: &Command) -> bool {
    matches!(
        command,
        Command::Complete {
            status: CompleteStatus::Succeeded,
            ..
        }
    )
}

fn named(name: String) -> Result<String, Refused> {
    if name.is_empty() {
        return Err(Refused::Missing("name"));
    }
    let words = "must be a relative path without `.`, `..`, `\\` or `:`, of at most 255 characters";
    match upload_name(&name) {
        true => Ok(name),
        false => Err(Refused::Invalid("name", words)),
    }
}

fn kind(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| cut(text, MAX_KIND))
}
