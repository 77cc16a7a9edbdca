//! Where to put bytes: CreateUpload and its answer (A49). The bytes themselves follow by PUT, with
//! the lease in the `Delta-Lease` header.

use serde::Serialize;

use super::{LeaseToken, MAX_URI, MAX_WORD, Message, id, printable};
use crate::fields::{Fields, Node};
use crate::invalid::Invalid;
use crate::states::spelled;

/// Characters of an upload's name: what file systems allow for one path of a few folders.
const MAX_NAME: usize = 255;
/// Artifact bytes of one lease: an image of a small machine fits, a disk does not.
pub const MAX_ARTIFACT_BYTES: u64 = 10 * 1024 * 1024 * 1024;

/// The runner has bytes to store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub struct CreateUpload {
    pub lease_id: LeaseToken,
    pub runner_id: String,
    /// A relative path such as `coverage/index.html`.
    pub name: String,
    pub kind: UploadKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

spelled! {
    /// What the bytes are.
    UploadKind {
        Log = "log",
        Artifact = "artifact",
    }
}

spelled! {
    /// How they are sent.
    UploadMethod {
        Put = "PUT",
    }
}

impl Message for CreateUpload {
    const TYPE: &'static str = "CreateUpload";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        Ok(CreateUpload {
            lease_id: f.must("lease_id", LeaseToken::read)?,
            runner_id: f.must("runner_id", id)?,
            name: f.must("name", name)?,
            kind: f.must("kind", kind)?,
            size: f.may("size", Node::count)?,
            sha256: f.may("sha256", Node::sha256)?,
        })
    }
}

/// A relative path that stays where it is put, on any system that later downloads it.
fn name(node: Node<'_>) -> Result<String, Invalid> {
    let name = node.text(MAX_NAME)?;
    if upload_name(&name) {
        Ok(name)
    } else {
        Err(Invalid::here(
            "must be a relative path without `.`, `..`, `\\` or `:`",
        ))
    }
}

/// Whether something may be uploaded under this name: a relative path of at most 255 characters
/// that means the same on every system.
pub fn upload_name(name: &str) -> bool {
    let strange = |c: char| c.is_control() || matches!(c, '\\' | ':');
    let part = |part: &str| matches!(part, "" | "." | "..");
    name.chars().count() <= MAX_NAME && !name.contains(strange) && !name.split('/').any(part)
}

fn kind(node: Node<'_>) -> Result<UploadKind, Invalid> {
    UploadKind::from_text(&node.string()?)
        .ok_or_else(|| Invalid::here("must be `log` or `artifact`"))
}

/// Where the bytes go, and the reference to name in Complete afterwards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub struct UploadCreated {
    pub upload_id: String,
    /// Where to send the bytes.
    pub url: String,
    /// What to write into `artifacts[].uri`.
    pub uri: String,
    pub method: UploadMethod,
    pub max_bytes: u64,
}

impl Message for UploadCreated {
    const TYPE: &'static str = "UploadCreated";

    fn read(f: &mut Fields<'_>) -> Result<Self, Invalid> {
        Ok(UploadCreated {
            upload_id: f.must("upload_id", id)?,
            url: f.must("url", |it| printable(it, MAX_URI))?,
            uri: f.must("uri", |it| printable(it, MAX_URI))?,
            method: f.must("method", method)?,
            max_bytes: f.must("max_bytes", Node::count)?,
        })
    }
}

fn method(node: Node<'_>) -> Result<UploadMethod, Invalid> {
    UploadMethod::from_text(&node.text(MAX_WORD)?).ok_or_else(|| Invalid::here("must be `PUT`"))
}
