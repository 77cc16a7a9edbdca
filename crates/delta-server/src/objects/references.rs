//! The artifacts that an attempt names in its report, as its runner gave them.
//!
//! A runner may name anything (A49): only what it stored here under its own lease is ours.

use delta_core::{Attempt, LeaseKey};

use super::{Objects, UploadId};

/// An artifact as a runner names it.
#[derive(serde::Deserialize)]
pub struct ArtifactReference {
    pub r#type: String,
    pub uri: String,
}

impl ArtifactReference {
    /// The bytes it names here, whosever they are.
    pub fn upload(&self) -> Option<UploadId> {
        self.uri.strip_prefix("delta:")?.parse().ok()
    }
}

/// Everything that an attempt names; nothing where that cannot be read.
pub fn references(attempt: &Attempt) -> Vec<ArtifactReference> {
    let report = attempt.report.as_ref();
    let text = report.and_then(|report| report.artifacts.as_ref());
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// The lease whose artifacts count.
pub fn winner(attempt: &Attempt) -> Option<LeaseKey> {
    let lease = attempt.lease.as_ref();
    lease.map(|lease| attempt.id.lease(lease.epoch))
}

/// Artifacts of its own that an attempt named and that are not stored here any more.
pub fn lost_artifacts(objects: &Objects, attempt: &Attempt) -> Vec<UploadId> {
    let winner = winner(attempt);
    let own = references(attempt)
        .into_iter()
        .filter_map(|reference| reference.upload());
    own.filter(|id| Some(id.lease) == winner && id.artifact.is_some())
        .filter(|id| matches!(objects.artifact(*id), Ok(None)))
        .collect()
}
